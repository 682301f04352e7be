//! Facts: the plain values that `observe/` reads from the world and `decide/` judges.
//!
//! In: nothing. Out: types. The rule of this folder: no behaviour that reads, waits or decides - a fact says what is
//! there, and a file that could not be read is a fact too ([`ReadError`]), never an exit.

pub mod certificate;
pub mod chores;
pub mod cluster;
pub mod kubeconfig;
pub mod network;
pub mod process;
pub mod san;
pub mod takeover;
pub mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cluster::{Cluster, ServiceState};
use network::Network;
use takeover::Takeover;
use time::Timestamp;

/// Everything one pass looks at.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Links, addresses and default routes, as one settled snapshot.
    pub network: Network,
    /// What the distribution's files say; `None` where no Kubernetes distribution was found, which is enough for
    /// `explain` and `ips`.
    pub cluster: Option<Cluster>,
    /// The data folder that the cluster was read from. It is the folder of one revision, and another one takes its place.
    pub data: Option<PathBuf>,
    /// A distribution is here, and its data folder cannot be found: as for a moment of each snap refresh.
    pub data_missing: Option<String>,
    /// States of services by their name in the profile. Asking costs a child process, so it is empty until a plan
    /// says that it needs them.
    pub services: BTreeMap<String, ServiceState>,
    /// `/proc/sys/kernel/random/boot_id`; empty where it cannot be read. Uptimes of another boot mean nothing.
    pub boot_id: String,
    /// Our own process and its ancestors: a service whose main process is one of them is us.
    pub lineage: Vec<u32>,
    /// Since when every change of the network has been followed, by a daemon; `None` for a look from outside.
    pub watched_since: Option<Timestamp>,
    /// Certificates that somebody wants made anew whatever they say.
    pub forced: BTreeSet<String>,
    /// Those get no name that nothing demands.
    pub exact: bool,
    /// SHA-256 over the configuration in force and the template, hexadecimal; `None` while the template cannot be read.
    pub configuration: Option<String>,
    /// Whether the kernel says that its clock is synchronised; `None` where it does not say.
    pub clock_synchronised: Option<bool>,
    /// The takeover that somebody ordered; `None` where nobody has.
    pub takeover: Option<Read<Takeover>>,
    /// When a daemon asked for the services' states last.
    pub services_asked: Option<Timestamp>,
    /// There is a kubeconfig to ask the API server with.
    pub credentials: bool,
    /// The addresses that the `kubernetes` Service lists, or why nobody said so. Asking costs a connection, so it is `None`
    /// until a plan says that it needs them.
    pub listed: Option<Result<BTreeSet<IpAddr>, String>>,
}

/// A value read from a file, or why it could not be.
pub type Read<T> = Result<T, ReadError>;

/// A file that gave no value. The file stays as it is; what follows from it is decided elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is no such file.
    #[error("no such file")]
    Missing,
    /// Zero bytes, or white space only: what an interrupted in-place write leaves behind (canonical/microk8s#2216).
    #[error("the file is empty")]
    Empty,
    /// The kernel refused to read it; the text is its reason.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// It was read and means nothing; the text says where.
    #[error("{0}")]
    Malformed(String),
}

impl ReadError {
    /// A file whose content means nothing.
    pub fn malformed(path: &Path, why: impl Into<String>) -> Self {
        Self { path: path.to_owned(), problem: Problem::Malformed(why.into()) }
    }

    /// What an I/O error says about a file.
    pub fn from_io(path: &Path, error: &std::io::Error) -> Self {
        let problem = match error.kind() {
            std::io::ErrorKind::NotFound => Problem::Missing,
            _ => Problem::Unreadable(error.to_string()),
        };
        Self { path: path.to_owned(), problem }
    }
}
