//! What the command line says instead of the file.
//!
//! In: options as typed. Out: a [`Config`] changed by them. The rule of this file: one place for it, so that a
//! configuration that is read again is overruled exactly as the first one was.

use std::path::PathBuf;

use crate::config::file::{self, ConfigError};
use crate::config::{Config, LogLevel, ProfileChoice};

/// Where the configuration is, and what overrules it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The file, whether or not it is there.
    pub path: PathBuf,
    /// Somebody named the file, so that it must be there.
    pub required: bool,
    /// The command line.
    pub overrides: Overrides,
}

/// Options of the command line that overrule the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--profile`.
    pub profile: Option<String>,
    /// `--log-level`.
    pub log_level: Option<LogLevel>,
    /// `run --observe`. The file cannot take it back.
    pub observe: bool,
}

impl Source {
    /// Reads the configuration as the file says it now.
    ///
    /// # Errors
    /// The file is wrong or cannot be read.
    pub fn read(&self) -> Result<Config, ConfigError> {
        let mut config = file::load(&self.path, self.required)?;
        if let Some(name) = &self.overrides.profile {
            config.profile = ProfileChoice::from(name.as_str());
        }
        if let Some(level) = self.overrides.log_level {
            config.log_level = level;
        }
        config.observe |= self.overrides.observe;
        Ok(config)
    }
}
