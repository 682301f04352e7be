//! Carrying out an order: build, verify, then write.
//!
//! In: an order, where its files are, the lock. Out: the fingerprint of the leaf in place. The rule of this file: the CA
//! and the keys are read again, everything that can be refused is refused before the first write, and the writes are
//! ordered so that a crash between two of them leaves something the next pass sees and repairs.

use std::path::PathBuf;

use crate::act::generations::{self, GenerationError};
use crate::act::leaf::{self, Authority, Built, LeafError};
use crate::act::lock::Lock;
use crate::act::store::{Folder, Place, StoreError};
use crate::decide::plan::IssueOrder;
use crate::facts::Problem;
use crate::facts::certificate::Fingerprint;
use crate::facts::cluster::CertificatePaths;
use crate::facts::time::Timestamp;
use crate::observe::certificate;
use crate::observe::private_key::{LoadError, PrivateKey, Unusable};

/// Where the files of one certificate are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificate, key, CA and CA key.
    pub paths: CertificatePaths,
    /// The folder that everything written must be beneath.
    pub folder: PathBuf,
    /// The request file, where the distribution has one.
    pub request: Option<PathBuf>,
    /// Mode of a certificate or request file that is not there yet; one that is keeps its own.
    pub new_mode: u32,
}

/// A leaf that is in place.
#[derive(Debug)]
pub struct Issued {
    /// Of the leaf.
    pub fingerprint: Fingerprint,
    /// Why the pair before was not kept. That stops nothing: a certificate that is needed does not wait for room on a disk.
    pub not_kept: Option<GenerationError>,
}

/// Why no leaf was put in place. Nothing was written, unless a [`StoreError`] came between two files.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The leaf could not be built, or did not pass its verification.
    #[error(transparent)]
    Leaf(#[from] LeafError),
    /// A file could not be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key to keep cannot be loaded.
    #[error("the certificate's key cannot be used")]
    Key(#[source] LoadError),
    /// The order makes a new key, and meanwhile there is one.
    #[error("{path} has a usable key now, which is kept: the next pass decides anew", path = path.display())]
    KeyAppeared {
        /// The key file.
        path: PathBuf,
    },
    /// The order makes a new key, and somebody's key would be lost.
    #[error("{path} holds a key that cannot be used here and is not overwritten: move it away", path = path.display())]
    ForeignKey {
        /// The key file.
        path: PathBuf,
        /// What is the matter with it.
        #[source]
        why: Unusable,
    },
    /// The order has a request text and the distribution no file for it.
    #[error("the order has a request text for {certificate}, which has no request file")]
    NoRequestFile {
        /// Name of the certificate.
        certificate: String,
    },
}

/// As MicroK8s leaves its files: the group that administers the cluster may read and write them, others may not.
pub const SHARED: u32 = 0o660;

/// On a node that the CIS addon has hardened they are for root alone.
pub const HARDENED: u32 = 0o600;

/// Makes the leaf of an order and puts it in place. The lock is the proof that nobody else writes, and its folder is
/// where the pair before is kept.
///
/// # Errors
/// Says what was refused or failed; the certificate in place is the old one or the new one, whole.
pub fn issue(order: &IssueOrder, files: &CertificateFiles, lock: &Lock, now: Timestamp) -> Result<Issued, IssueError> {
    let places = Places::find(order, files)?;
    let authority = Authority::load(&files.paths, order.purpose, now)?;
    let key = key(order, &files.paths)?;
    let built = leaf::build(order, &authority, key.as_ref(), now)?;
    // Without a key that can be kept there is no pair that anybody could want back.
    let kept = key.as_ref().map(|key| generations::keep(&order.certificate, files, key.public(), lock, now));
    let not_kept = kept.and_then(Result::err);
    places.write(&built, order)?;
    Ok(Issued { fingerprint: built.fingerprint, not_kept })
}

/// Finishes what an interrupted write left: its temporary files are removed, and the request file says what it should.
/// `_lock` is the proof that nobody else writes.
///
/// # Errors
/// A file could not be replaced; it is as it was.
pub fn mend(request: Option<&str>, files: &CertificateFiles, _lock: &Lock) -> Result<(), StoreError> {
    let folder = Folder::open(&files.folder)?;
    if let (Some(text), Some(path)) = (request, &files.request) {
        folder.place(path)?.replace(text.as_bytes(), files.new_mode)?;
    }
    folder.place(&files.paths.certificate)?.remove_leftovers();
    Ok(())
}

/// The files to write, all found before the first is written.
struct Places {
    certificate: Place,
    key: Option<Place>,
    request: Option<Place>,
    new_mode: u32,
}

impl Places {
    fn find(order: &IssueOrder, files: &CertificateFiles) -> Result<Self, IssueError> {
        let folder = Folder::open(&files.folder)?;
        let request = match (&order.request, &files.request) {
            (None, _) => None,
            (Some(_), Some(path)) => Some(folder.place(path)?),
            (Some(_), None) => return Err(IssueError::NoRequestFile { certificate: order.certificate.clone() }),
        };
        Ok(Self {
            certificate: folder.place(&files.paths.certificate)?,
            // A key that is kept is only read: it may be wherever the operator wants it.
            key: order.new_key.then(|| folder.place(&files.paths.key)).transpose()?,
            request,
            new_mode: files.new_mode,
        })
    }

    /// Key, certificate, request. After a crash behind the first the key does not fit the certificate, behind the second
    /// the request is the old one: both are seen by the next pass, and the certificate made then fits the key in place.
    fn write(&self, built: &Built, order: &IssueOrder) -> Result<(), StoreError> {
        if let (Some(place), Some(key)) = (&self.key, &built.key_pem) {
            place.replace_secret(key.as_bytes())?;
        }
        self.certificate.replace(built.pem.as_bytes(), self.new_mode)?;
        if let (Some(place), Some(text)) = (&self.request, &order.request) {
            place.replace(text.as_bytes(), self.new_mode)?;
        }
        Ok(())
    }
}

/// The key to keep. For a new one: makes sure that nothing is lost by it.
fn key(order: &IssueOrder, paths: &CertificatePaths) -> Result<Option<PrivateKey>, IssueError> {
    match PrivateKey::load(&paths.key, &certificate::server_owner(&paths.certificate)) {
        Ok(key) if !order.new_key => Ok(Some(key)),
        Ok(_) => Err(IssueError::KeyAppeared { path: paths.key.clone() }),
        Err(error) if !order.new_key => Err(IssueError::Key(error)),
        Err(LoadError::Unusable { path, why }) if why.holds_a_key() => Err(IssueError::ForeignKey { path, why }),
        Err(LoadError::Unusable { .. }) => Ok(None),
        Err(LoadError::File(error)) if matches!(error.problem, Problem::Missing | Problem::Empty) => Ok(None),
        // What cannot be read may well be a good key.
        Err(error) => Err(IssueError::Key(error)),
    }
}

#[cfg(test)]
#[path = "issue_tests.rs"]
mod tests;
