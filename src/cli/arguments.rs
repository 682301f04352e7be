//! What can be typed.
//!
//! In: words. Out: [`Arguments`], exactly as typed: what they mean on this machine is [`crate::cli::Setup`]'s business.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::LogLevel;

/// Keeps a Kubernetes API server's certificate true to the node's own addresses.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "ipguard", version)]
#[command(after_help = "Exit status: 0 in step or done, 1 error, 2 change needed (check), 64 usage.")]
pub struct Arguments {
    /// What every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Global {
    /// Configuration file, taken as it is; without it /etc/ipguard/ipguard.toml below the root, if it exists
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kubernetes distribution: auto, or a name such as microk8s
    #[arg(long, global = true, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub profile: Option<String>,
    /// Folder that every path is below: a test tree, or an image that does not run
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Most detailed messages on standard error; the configuration's level otherwise
    #[arg(long, global = true, value_name = "LEVEL", value_parser = log_level())]
    pub log_level: Option<LogLevel>,
}

/// The subcommands.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Watch addresses and certificates, and act: the daemon
    Run {
        /// Decide and report everything, touch nothing
        #[arg(long)]
        observe: bool,
    },
    /// One pass: what is in step, what would be done and what holds it back
    Check(Check),
    /// Every address with its class, the rule that decided and the evidence
    Explain {
        /// Only this address, with everything known about it
        #[arg(value_parser = address)]
        address: Option<IpAddr>,
        /// How to print
        #[arg(long, value_enum, default_value_t)]
        format: Format,
    },
    /// The node's own addresses in one line, or none
    Ips,
    /// What the daemon last saw, decided and did, and when certificates end; needs no root
    Status(Status),
    /// Sign certificates anew now: same key, fresh validity, the names it has and those it lacks; ends a rollback
    Renew(Renew),
    /// Put an earlier certificate back and keep it until `renew` or a changed configuration
    Rollback(Rollback),
    /// Turn MicroK8s' own guard off for good and ipguard's service on; what `microk8s start` turns on again is turned off
    Takeover,
    /// Turn ipguard's service off and MicroK8s' own guard on: the end of a takeover
    Release {
        /// Nothing, unless this installation of ipguard is the one that took over: for a snap that is removed
        #[arg(long, hide = true)]
        own: bool,
    },
    /// One pass of MicroK8s' upkeep besides certificates: permissions, hooks, registry note
    Chores,
    /// The configuration
    Config {
        /// What about it
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

/// `check`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Check {
    /// Carry the steps out
    #[arg(long)]
    pub apply: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: CheckFormat,
}

/// `status`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Status {
    /// Print again whenever it changes, until interrupted; JSON documents on one line each
    #[arg(long)]
    pub watch: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `renew`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Renew {
    /// Which; all of them without a name
    #[arg(value_name = "CERT")]
    pub certificates: Vec<String>,
    /// Leave out the names that nothing demands
    #[arg(long)]
    pub exact: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `rollback`.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Rollback {
    /// How far back: 1 is the certificate that was replaced last
    #[arg(value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=99))]
    pub back: u8,
    /// Which certificate; without it the one that the API server serves
    #[arg(long, value_name = "CERT")]
    pub certificate: Option<String>,
    /// Print what can be put back, and change nothing
    #[arg(long)]
    pub list: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `config`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum ConfigCommand {
    /// Print what is in force, as a configuration file
    Show,
    /// Say what is wrong with the configuration file, all of it
    Check,
    /// Print the documented defaults, as a configuration file to start from
    Default,
    /// For the hook of the snap: the keys to ask snapd for
    #[command(hide = true)]
    SnapKeys,
    /// For the hook of the snap: the document of `snapctl get -d` on standard input becomes a configuration file
    #[command(hide = true)]
    FromSnap,
}

/// How to print data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs: one document
    Json,
}

/// How to print the plan of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CheckFormat {
    /// For people
    #[default]
    Text,
    /// For programs: one document
    Json,
    /// For MicroK8s' scripts: 1 if the caller must restart kubelite, else 0; the exit status is always 0
    Microk8s,
}

fn log_level() -> impl TypedValueParser<Value = LogLevel> {
    PossibleValuesParser::new(LogLevel::WORDS.map(|(word, _)| word)).map(|typed| {
        let known = LogLevel::WORDS.into_iter().find(|(word, _)| *word == typed);
        known.map_or_else(LogLevel::default, |(_, level)| level)
    })
}

/// An address as people copy it from a table: a prefix length behind it is no mistake.
fn address(text: &str) -> Result<IpAddr, String> {
    let value = text.split_once('/').map_or(text, |(address, _)| address);
    value.parse::<IpAddr>().map(|address| address.to_canonical()).map_err(|_| "not an IP address".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_options_may_stand_on_either_side() -> Result<(), clap::Error> {
        let before = Arguments::try_parse_from(["ipguard", "--root", "/r", "--log-level", "debug", "ips"])?;
        let after = Arguments::try_parse_from(["ipguard", "ips", "--log-level=debug", "--root=/r"])?;
        assert_eq!(before, after);
        assert_eq!(after.global.log_level, Some(LogLevel::Debug));
        Ok(())
    }

    #[test]
    fn every_log_level_is_understood() -> Result<(), clap::Error> {
        for (word, level) in LogLevel::WORDS {
            let typed = Arguments::try_parse_from(["ipguard", "ips", "--log-level", word])?;
            assert_eq!(typed.global.log_level, Some(level));
        }
        Ok(())
    }

    #[test]
    fn an_address_is_read_in_any_form_people_copy() {
        for text in ["192.0.2.10", "192.0.2.10/24", "::ffff:192.0.2.10"] {
            assert_eq!(address(text).map(|value| value.to_string()).as_deref(), Ok("192.0.2.10"));
        }
        assert!(address("eth0").is_err());
        assert!(address("").is_err());
    }
}
