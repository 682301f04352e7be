//! Kubeconfigs: the certificates in them, which nobody renews when those on disk are.

use std::path::PathBuf;

use crate::facts::Read;
use crate::facts::certificate::{Authority, Leaf};

/// One kubeconfig of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeconfigFacts {
    /// The file.
    pub path: PathBuf,
    /// What its current context says.
    pub content: Read<Content>,
}

/// The public parts of the context that a client takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Name of the user entry: `admin`.
    pub user: String,
    /// How that user says who it is.
    pub client: Client,
    /// Whether a CA of the cluster signed the client's certificate; `None` where either cannot be read.
    pub issued_by_authority: Option<bool>,
    /// The CAs by which the client knows the API server; `None` where it trusts whatever the system does.
    pub authority: Option<Read<Authority>>,
    /// It takes any server for the API server (`insecure-skip-tls-verify`).
    pub insecure: bool,
    /// Not everything that it says is in the file itself.
    pub names_files: bool,
}

/// How a client says who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Client {
    /// A certificate, in the kubeconfig or in a file that it names.
    Certificate(Box<Read<Leaf>>),
    /// A token.
    Token,
    /// What can be neither looked at nor used here, and why.
    Refused(String),
    /// Not at all.
    Nobody,
}
