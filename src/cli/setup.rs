//! What a command works on: the arguments and the environment, applied to this machine.

use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::arguments::Global;
use crate::cli::environment::Environment;
use crate::config::Config;
use crate::config::file::DEFAULT_PATH;
use crate::config::overrides::{Overrides, Source};
use crate::profiles::{Found, Profile, Snap};
use crate::site::Site;

/// Everything a command needs to know before it looks at the host.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Prefix of every path; absolute.
    pub root: PathBuf,
    /// Where the configuration is read from, and what the command line changes about it.
    pub source: Source,
    /// The configuration.
    pub config: Config,
    /// The distribution; `None` where there is none.
    pub profile: Option<Found>,
    /// The snap this process runs in.
    pub snap: Snap,
    /// Whether text for people may have colours.
    pub colour: bool,
}

impl Setup {
    /// Loads the configuration and looks for the distribution.
    ///
    /// # Errors
    /// The root is no folder, the configuration is wrong, or the profile that was named does not exist.
    pub fn new(global: &Global, environment: &Environment) -> Result<Self, CliError> {
        let root = root(&global.root)?;
        let path = global.config.clone().unwrap_or_else(|| default_path(&root, &environment.snap));
        let overrides = Overrides { profile: global.profile.clone(), log_level: global.log_level, observe: false };
        let source = Source { path, required: global.config.is_some(), overrides };
        let config = source.read()?;
        let snap = environment.snap.clone();
        let profile = Profile::find(&config.profile, &root, &snap)?;
        Ok(Self { root, source, config, profile, snap, colour: environment.colour })
    }

    /// The host to work on.
    pub fn site(&self) -> Site {
        Site {
            root: self.root.clone(),
            snap: self.snap.clone(),
            config: self.config.clone(),
            source: self.source.clone(),
            found: self.profile.clone(),
        }
    }

    /// Name of the profile, for reports.
    pub fn profile_name(&self) -> Option<&'static str> {
        self.profile.as_ref().map(|found| found.profile.name.as_str())
    }
}

/// In our own snap the file that its hook writes, in every other the system's.
fn default_path(root: &Path, snap: &Snap) -> PathBuf {
    // A second installation of a snap is called ipguard_name.
    let ours = snap.instance_name.as_deref().is_some_and(|name| name.split('_').next() == Some("ipguard"));
    match &snap.data {
        Some(data) if ours => root.join(data.strip_prefix("/").unwrap_or(data)).join("ipguard.toml"),
        _ => root.join(DEFAULT_PATH.trim_start_matches('/')),
    }
}

/// The root as an absolute path.
pub(super) fn root(path: &Path) -> Result<PathBuf, CliError> {
    let refuse = |source| CliError::Root { path: path.to_owned(), source };
    // Absolute, so that it stays the same folder wherever the process goes. A link is kept: it may be moved on purpose.
    let absolute = std::path::absolute(path).map_err(refuse)?;
    match absolute.metadata().map_err(refuse)? {
        metadata if metadata.is_dir() => Ok(absolute),
        _ => Err(refuse(std::io::ErrorKind::NotADirectory.into())),
    }
}
