//! `config show|check|default`.

use crate::cli::arguments::ConfigCommand;
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::config::print;

/// Prints the configuration, or that there is nothing wrong with it: a setup that exists has passed every check.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(setup: &Setup, command: ConfigCommand) -> Result<Status, CliError> {
    let text = match command {
        ConfigCommand::Default => print::default_text(),
        ConfigCommand::Show => print::show(&setup.config),
        ConfigCommand::Check => {
            let path = setup.config_path.display();
            // Asked again for the message alone; had it been missing and required, there would be no setup.
            let there = setup.config_required || setup.config_path.exists();
            let verdict = if there { "valid" } else { "not there, so the defaults apply" };
            format!("{path}: {verdict}\n")
        }
    };
    output::data(&text)?;
    Ok(Status::Done)
}
