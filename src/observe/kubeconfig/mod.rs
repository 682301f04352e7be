//! Kubeconfigs: the certificates in them, and the credentials.
//!
//! In: a path and the root. Out: [`KubeconfigFacts`] without any key, or [`Credentials`] for `act/`. The rule of this
//! folder: it reads what client-go reads of the current context, a file that is named as well as embedded data, and refuses
//! with the reason what it cannot do alike: a program to run, a password, a proxy, a server that is not verified.
//!
//! Where the two differ, this one is the narrower (client-go `tools/clientcmd`): keys twice, aliases and tags are refused
//! (`yaml.rs`), as is a server without https or without a CA of its own.

mod cache;
mod context;
mod credentials;
mod server;
mod source;
mod yaml;

use std::path::{Path, PathBuf};

use crate::facts::certificate::{Authority, Purpose};
use crate::facts::kubeconfig::{Client, Content, KubeconfigFacts};
use crate::facts::time::Timestamp;
use crate::facts::{Problem, Read, ReadError};
use crate::observe::{certificate, pem};
use context::{Context, Way};

pub use cache::KubeconfigCache;
pub use credentials::{ClientCredentials, Credentials};
pub use server::Server;

/// Why a kubeconfig gives nothing, or not this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}", path = path.display())]
pub struct KubeconfigError {
    /// The kubeconfig.
    pub path: PathBuf,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(Problem),
    /// It is no document that can mean one thing only.
    #[error("line {line}: {why}")]
    Document {
        /// From 1.
        line: usize,
        /// What stands there.
        why: &'static str,
    },
    /// A field that is needed is missing.
    #[error("{field} is missing")]
    Missing {
        /// Its name: `current-context`, `user admin: client-key`.
        field: String,
    },
    /// A field makes no sense.
    #[error("{field}: {why}")]
    Malformed {
        /// Its name.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// A field asks for what is not done here.
    #[error("{field} is not used: {why}")]
    Refused {
        /// Its name.
        field: String,
        /// Why not.
        why: &'static str,
    },
    /// A file that a field names.
    #[error("{field}: {source}")]
    File {
        /// The field.
        field: String,
        /// The file and what is wrong with it.
        source: ReadError,
    },
}

impl From<KubeconfigError> for ReadError {
    fn from(error: KubeconfigError) -> Self {
        let problem = match error.fault {
            Fault::Unreadable(problem) => problem,
            other => Problem::Malformed(other.to_string()),
        };
        Self { path: error.path, problem }
    }
}

/// Reads the certificates of the current context and nothing else: keys, tokens and passwords are skipped, and files with
/// them are not opened. `authority` are the cluster's CAs, if they can be read.
pub fn read(path: &Path, root: &Path, authority: Option<&Authority>, now: Timestamp) -> KubeconfigFacts {
    KubeconfigFacts { path: path.to_owned(), content: content(path, root, authority, now).map_err(ReadError::from) }
}

/// Reads what a client needs to talk to the API server. The key is in memory for as long as the value is, and wiped then.
///
/// # Errors
/// The kubeconfig, or a file that it names, cannot be read, or asks for what is not done here.
pub fn credentials(path: &Path, root: &Path) -> Result<Credentials, KubeconfigError> {
    let context = load(path, root, &["password", "auth-provider", "exec"])?;
    credentials::of(&context).map_err(|fault| KubeconfigError { path: path.to_owned(), fault })
}

fn load(path: &Path, root: &Path, withheld: &[&str]) -> Result<Context, KubeconfigError> {
    let read = || {
        let (bytes, _) = pem::read_file(path).map_err(|error| Fault::Unreadable(error.problem))?;
        let text =
            str::from_utf8(&bytes).map_err(|_| Fault::Unreadable(Problem::Malformed("not UTF-8 text".to_owned())))?;
        let document =
            yaml::parse(text, withheld).map_err(|fault| Fault::Document { line: fault.line, why: fault.why })?;
        Context::current(document, path, root)
    };
    read().map_err(|fault| KubeconfigError { path: path.to_owned(), fault })
}

fn content(
    path: &Path,
    root: &Path,
    authority: Option<&Authority>,
    now: Timestamp,
) -> Result<Content, KubeconfigError> {
    let context = load(path, root, &["client-key-data", "token", "password", "auth-provider", "exec"])?;
    let at = |fault| KubeconfigError { path: path.to_owned(), fault };
    let read = |what: Fault| ReadError::from(at(what));
    let (client, issued_by_authority) = match context.way().map_err(at)? {
        Way::Certificate(source) => {
            let der: Read<Vec<u8>> = source
                .bytes()
                .and_then(|text| certificate::first_in(&text).map_err(|why| source.malformed(why)))
                .map_err(read);
            let issued = match (&der, authority) {
                (Ok(leaf), Some(authority)) => certificate::is_issued_by_known(leaf, authority),
                _ => None,
            };
            let leaf = der.and_then(|der| certificate::leaf(&der).map_err(|why| read(source.malformed(why))));
            (Client::Certificate(Box::new(leaf)), issued)
        }
        Way::Token(_) => (Client::Token, None),
        Way::Refused(fault) => (Client::Refused(fault.to_string()), None),
        Way::Nobody => (Client::Nobody, None),
    };
    let authority = context.authority().map_err(at)?.map(|source| {
        let ders = source
            .bytes()
            .and_then(|text| certificate::bundle_in(&text).map_err(|why| source.malformed(why)))
            .map_err(read)?;
        certificate::authority(&ders, None, Purpose::Server, now).map_err(|why| read(source.malformed(why)))
    });
    let insecure = context.cluster.flag("insecure-skip-tls-verify").map_err(at)?;
    let names_files = context.names_files();
    Ok(Content { user: context.user_name.clone(), client, issued_by_authority, authority, insecure, names_files })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
