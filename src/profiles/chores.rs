//! Where the upkeep of a distribution finds what it looks after.

use std::path::PathBuf;

use serde::Deserialize;

/// `[chores]` of a profile.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Chores {
    /// Data folder of all revisions, absolute.
    pub common: PathBuf,
    /// Files of the snap, absolute.
    pub snap: PathBuf,
    /// Group whose members administer the node.
    pub group: String,
    /// The same where the snap is confined.
    pub strict_group: String,
    /// Folder of the data store, below the data folder.
    pub backend: PathBuf,
    /// Files below the data folder that tell one cluster from another.
    pub identity: Vec<PathBuf>,
    /// containerd's socket, below `common`.
    pub socket: PathBuf,
    /// Folder of hooks, below `common`.
    pub hooks: PathBuf,
    /// How long each of them may run.
    pub hook_seconds: u64,
    /// kubectl, below `snap`.
    pub kubectl: PathBuf,
    /// Credentials of an administrator, below the data folder.
    pub kubeconfig: PathBuf,
}
