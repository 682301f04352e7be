//! `config show|check|default`.

use std::io::{self, Read as _};

use crate::cli::arguments::ConfigCommand;
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::config::file::LARGEST;
use crate::config::{print, snap};

/// Prints the configuration, or that there is nothing wrong with it: a setup that exists has passed every check.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(setup: &Setup, command: ConfigCommand) -> Result<Status, CliError> {
    let text = match command {
        ConfigCommand::Default | ConfigCommand::SnapKeys | ConfigCommand::FromSnap => return without_setup(command),
        ConfigCommand::Show => print::show(&setup.config),
        ConfigCommand::Check => {
            let path = setup.source.path.display();
            // Asked again for the message alone; had it been missing and required, there would be no setup.
            let there = setup.source.required || setup.source.path.exists();
            let verdict = if there { "valid" } else { "not there, so the defaults apply" };
            format!("{path}: {verdict}\n")
        }
    };
    output::data(&text)?;
    Ok(Status::Done)
}

/// What needs no file, so that it also helps where the file is what is wrong.
///
/// # Errors
/// Standard input is no document of snapd's, or says what is no configuration; standard output cannot be written.
pub fn without_setup(command: ConfigCommand) -> Result<Status, CliError> {
    match command {
        ConfigCommand::Default => output::data(&print::default_text())?,
        ConfigCommand::SnapKeys => output::data(&(snap::keys().join(" ") + "\n"))?,
        ConfigCommand::FromSnap => {
            let mut document = String::new();
            io::stdin().take(LARGEST).read_to_string(&mut document).map_err(CliError::Input)?;
            output::data(&snap::to_toml(&document)?)?;
        }
        ConfigCommand::Show | ConfigCommand::Check => {}
    }
    Ok(Status::Done)
}
