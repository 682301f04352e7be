//! The command line: what was typed, what it is applied to, and the exit status.
//!
//! In: arguments and the environment, each read once. Out: data on standard output, everything else on standard error,
//! and an exit status: 0 in step, 1 error, 2 change needed, 64 usage. The rule of this folder: one file per subcommand,
//! which turns plain values into text; nothing is decided here.

mod arguments;
pub mod check;
pub mod chores;
pub mod config;
mod environment;
pub mod explain;
pub mod ips;
mod log;
mod no_dump;
mod output;
pub mod renew;
pub mod rollback;
mod setup;
pub mod status;
pub mod takeover;

use std::ffi::OsString;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;
use nix::errno::Errno;

use crate::chores::ChoresError;
use crate::config::file::ConfigError;
use crate::config::snap::SnapConfigError;
use crate::daemon::{self, DaemonError};
use crate::decide::Mode;
use crate::facts::time::Timestamp;
use crate::notify::{Manager, Notify};
use crate::one_shot::{self, Look, OneShotError};
use crate::profiles::{Found, ProfileError};
use crate::rollback::RollbackError;
use crate::status_file::StatusError;
use crate::takeover::TakeoverError;

pub use arguments::{Arguments, CheckFormat, Command, ConfigCommand, Format};
pub use environment::Environment;
pub use setup::Setup;

/// The exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// In step, applied, or nothing to object to.
    Done = 0,
    /// It did not work.
    Failed = 1,
    /// `check` without `--apply` found something to do.
    ChangeNeeded = 2,
    /// The command line makes no sense (`EX_USAGE` of sysexits.h). Not clap's 2, which means "change needed" here.
    Usage = 64,
}

/// Why a command did not work.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What snapd keeps is no configuration.
    #[error(transparent)]
    SnapConfig(#[from] SnapConfigError),
    /// Standard input cannot be read.
    #[error("reading standard input")]
    Input(#[source] io::Error),
    /// The choice of the distribution.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// `--root` is no folder.
    #[error("--root {path}", path = path.display())]
    Root {
        /// As given.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Standard output takes no more, for another reason than that its reader went away.
    #[error("writing to standard output")]
    Output(#[source] io::Error),
    /// `explain ADDRESS` of an address that is not there.
    #[error("{0} is not on this host, and not pinned")]
    UnknownAddress(IpAddr),
    /// One pass could not be made or carried out.
    #[error(transparent)]
    OneShot(#[from] OneShotError),
    /// A certificate was not put back, or there is none of that name.
    #[error(transparent)]
    Rollback(#[from] RollbackError),
    /// The other guard is as it was.
    #[error(transparent)]
    Takeover(#[from] TakeoverError),
    /// There is no status to show.
    #[error(transparent)]
    Status(StatusError),
    /// What is shown is not up to date.
    #[error("stale since {since}: the daemon that published it, process {pid}, does not run any more")]
    Stale {
        /// When it was published.
        since: Timestamp,
        /// The daemon.
        pid: u32,
    },
    /// The status cannot be watched.
    #[error("watching {path}", path = path.display())]
    Watching {
        /// Its folder.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
    /// There was no pass of the chores.
    #[error(transparent)]
    Chores(#[from] ChoresError),
    /// The daemon ended with an error.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// Runs a command line and says how it ended.
pub fn run_from(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error).into(),
    };
    let digit_expected = matches!(&arguments.command, Command::Check(check) if check.format == CheckFormat::Microk8s);
    let status = run(&arguments, environment).unwrap_or_else(|error| {
        output::complain(&error);
        // The shell that asked reads a number, whatever happened, and takes a failed command for a failed install.
        if digit_expected {
            output::data(check::NO_RESTART).map_or(Status::Done, |()| Status::Done)
        } else {
            Status::Failed
        }
    });
    status.into()
}

fn run(arguments: &Arguments, environment: &Environment) -> Result<Status, CliError> {
    if let Command::Config {
        command: command @ (ConfigCommand::Default | ConfigCommand::SnapKeys | ConfigCommand::FromSnap),
    } = arguments.command
    {
        return config::without_setup(command);
    }
    // Before the configuration is read: who asks may not be allowed to, and need not.
    if let Command::Status(status) = &arguments.command {
        return status::run(&arguments.global, status, environment.colour);
    }
    let setup = Setup::new(&arguments.global, environment)?;
    let set_level = log::start(setup.config.log_level, environment.journal);
    let profile = setup.profile.as_ref().map_or_else(|| "none".to_owned(), Found::to_string);
    tracing::debug!(root = %setup.root.display(), config = %setup.source.path.display(), %profile, "set up");
    // Before a key is read: all of these commands look at keys.
    no_dump::start();
    match &arguments.command {
        Command::Status(status) => status::run(&arguments.global, status, environment.colour),
        Command::Renew(renew) => renew::run(&setup, renew),
        Command::Rollback(rollback) => rollback::run(&setup, rollback),
        Command::Takeover => takeover::take_over(&setup),
        Command::Release { own } => takeover::release(&setup, *own),
        Command::Config { command } => config::run(&setup, *command),
        Command::Explain { address, format } => explain::run(&setup, &glance(&setup)?, *address, *format),
        Command::Ips => ips::run(&glance(&setup)?),
        Command::Check(check) => {
            let mode = if check.format == CheckFormat::Microk8s { Mode::Hook } else { Mode::OneShot };
            let look = look(&setup, mode)?;
            let mut plan = look.plan.clone();
            let applied = if check.apply { Some(one_shot::apply(&setup.site(), look, mode)?) } else { None };
            if let Some(applied) = &applied {
                plan.caller_restarts = applied.caller_restarts;
            }
            check::run(&setup, &plan, applied.as_ref().map(|applied| &*applied.outcomes), check.format)
        }
        Command::Chores => chores::run(&setup, &environment.variables),
        Command::Run { observe } => watch(&setup, *observe, environment.manager.clone(), set_level),
    }
}

/// Help and versions are answers, everything else clap says is a usage error.
fn usage(error: &clap::Error) -> Status {
    let status = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Status::Done,
        _ => Status::Usage,
    };
    // To standard output or standard error, as the kind demands; a reader that went away is nobody to tell.
    let _ = error.print();
    status
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

/// One pass without acting.
fn look(setup: &Setup, mode: Mode) -> Result<Look, CliError> {
    Ok(warned(one_shot::look(&setup.site(), mode)?))
}

/// One pass without acting or asking.
fn glance(setup: &Setup) -> Result<Look, CliError> {
    Ok(warned(one_shot::glance(&setup.site())?))
}

fn warned(look: Look) -> Look {
    if let Some(error) = &look.state_unused {
        tracing::warn!("{error}: going on without what was remembered");
    }
    look
}

/// The daemon.
fn watch(setup: &Setup, observe: bool, manager: Manager, set_level: log::SetLevel) -> Result<Status, CliError> {
    let mut site = setup.site();
    site.source.overrides.observe = observe;
    site.config.observe |= observe;
    daemon::run(site, Notify::new(manager), set_level)?;
    Ok(Status::Done)
}
