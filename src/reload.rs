//! The configuration, read again: SIGHUP.
//!
//! In: a [`Site`] in force. Out: the site as the file and the disk say it now. The rule of this file: all or nothing - what
//! is wrong in one place changes nothing anywhere, and what the command line said keeps its precedence.

use crate::config::file::ConfigError;
use crate::profiles::{Profile, ProfileError};
use crate::site::Site;

/// Why the configuration before stays in force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The file: each fault with line and column.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// It names a distribution that does not exist, or the disk cannot be looked at.
    #[error(transparent)]
    Profile(#[from] ProfileError),
}

/// Reads everything that a start reads; `--root` and the snap's environment are the process's own.
///
/// # Errors
/// The configuration is wrong, or the profile that it names does not exist.
pub fn reread(site: &Site) -> Result<Site, ReloadError> {
    let config = site.source.read()?;
    let found = Profile::find(&config.profile, &site.root, &site.snap)?;
    Ok(Site { config, found, ..site.clone() })
}
