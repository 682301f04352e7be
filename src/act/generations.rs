//! The pairs that were replaced: kept as copies in our own folder, and put back on request.
//!
//! In: the files in place, the lock. Out: generations, newest first. The rule of this file: only a pair that a server can
//! load is worth keeping; it is copied, never hard-linked, for an API server that watches the file by inotify would not
//! see the name change; and a generation counts once its certificate, which is written last, is there.
//!
//! No key is ever copied: the key is not replaced as long as one is there that loads (`issue` refuses it), so the key in
//! place belongs to every generation that can still be used, and no second copy of it lies about.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::act::issue::CertificateFiles;
use crate::act::lock::Lock;
use crate::act::store::{Folder, StoreError};
use crate::facts::ReadError;
use crate::facts::certificate::{Leaf, PublicKey};
use crate::facts::cluster::CertificatePaths;
use crate::facts::time::Timestamp;
use crate::observe::certificate;

/// How many are kept of each certificate.
pub const KEPT: usize = 5;

/// In the state folder.
const FOLDER: &str = "generations";
const CERTIFICATE: &str = "certificate.pem";
const REQUEST: &str = "request.conf";
const ABOUT: &str = "generation.json";
/// For root alone, whatever the files in place are.
const PRIVATE: u32 = 0o600;

/// A pair that was in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// Counts up for each certificate; never used twice.
    pub number: u64,
    /// When it was replaced, and so kept.
    pub replaced: Timestamp,
    /// What its certificate says.
    pub leaf: Leaf,
    /// Where it is.
    pub folder: PathBuf,
}

/// The files of a generation, read.
#[derive(Debug)]
pub struct Loaded {
    certificate: Vec<u8>,
    request: Option<Vec<u8>>,
}

/// What is written beside a generation.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    version: u32,
    replaced: Timestamp,
}

/// Why a pair was not kept or not put back.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// The folder of the generations cannot be made, listed or synchronised.
    #[error("{path}: cannot {doing}", path = path.display())]
    System {
        /// The folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// A file of it could not be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The kept certificate is not one any more.
    #[error("a kept certificate cannot be used")]
    Certificate(#[source] ReadError),
    /// What is written beside it does not serialise.
    #[error("{path}: cannot be written", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Keeps the pair in place, which is about to be replaced. `None` when it is not worth it: the certificate is missing,
/// broken or for another key, or it is the newest generation already.
///
/// # Errors
/// It could not be kept. The generations before are as they were.
pub fn keep(
    name: &str,
    files: &CertificateFiles,
    key: &PublicKey,
    lock: &Lock,
    now: Timestamp,
) -> Result<Option<u64>, GenerationError> {
    let in_place = Folder::open(&files.folder)?;
    let certificate = in_place.place(&files.paths.certificate)?.content()?;
    let Some(certificate) = certificate.filter(|_| usable(&files.paths.certificate, key)) else { return Ok(None) };
    let above = folder(lock.folder(), name);
    make(above.parent().unwrap_or_else(|| lock.folder()))?;
    make(&above)?;
    let numbers = numbers(&above)?;
    // What has no certificate was left half-way by a crash.
    let whole: Vec<u64> = numbers.iter().copied().filter(|number| is_whole(&above, *number)).collect();
    if let Some(newest) = whole.last()
        && content(&above, *newest, CERTIFICATE)?.is_some_and(|kept| kept == *certificate)
    {
        return Ok(None);
    }
    let number = numbers.last().map_or(1, |newest| newest + 1);
    let written = write(&above, number, files, &in_place, &certificate, now);
    if written.is_err() {
        // A disk that is full must not be kept full by what is of no use.
        let _ = std::fs::remove_dir_all(above.join(number.to_string()));
    }
    written?;
    let old = whole.len().saturating_sub(KEPT - 1);
    for number in numbers.iter().filter(|number| !whole.contains(number)).chain(&whole[..old]) {
        let path = above.join(number.to_string());
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(path = %path.display(), %error, "an old generation could not be removed");
        }
    }
    Ok(Some(number))
}

/// The generations of a certificate, newest first. Those that cannot be used any more are left out, and said.
///
/// # Errors
/// The folder cannot be listed.
pub fn list(state_dir: &Path, name: &str) -> Result<Vec<Generation>, GenerationError> {
    let above = folder(state_dir, name);
    if !above.exists() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for number in numbers(&above)?.into_iter().rev().filter(|number| is_whole(&above, *number)) {
        match read(&above, number) {
            Ok(generation) => all.push(generation),
            Err(error) => tracing::warn!(number, "a generation is passed over: {}", crate::chain::chain(&error)),
        }
    }
    Ok(all)
}

impl Generation {
    /// The kept certificate file.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join(CERTIFICATE)
    }

    /// Where everything is that this generation would be used with: its own certificate, and the key and CA in place.
    pub fn paths(&self, in_place: &CertificatePaths) -> CertificatePaths {
        CertificatePaths { certificate: self.certificate(), ..in_place.clone() }
    }

    /// Reads its files: keeping what is in place may take the oldest generation away.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn load(&self) -> Result<Loaded, GenerationError> {
        let kept = Folder::open(&self.folder)?;
        let certificate = kept.place(&self.certificate())?.content()?.ok_or_else(|| GenerationError::System {
            path: self.certificate(),
            doing: "read it",
            source: io::ErrorKind::NotFound.into(),
        })?;
        let request = kept.place(&self.folder.join(REQUEST))?.content()?;
        Ok(Loaded { certificate: certificate.to_vec(), request: request.map(|text| text.to_vec()) })
    }
}

impl Loaded {
    /// Puts it in place: the certificate, then the request. The caller has verified it and holds the lock.
    ///
    /// # Errors
    /// The certificate in place is the old one or the new one, whole.
    pub fn put_back(&self, files: &CertificateFiles, _lock: &Lock) -> Result<(), GenerationError> {
        let folder = Folder::open(&files.folder)?;
        let place = folder.place(&files.paths.certificate)?;
        let request = match (&self.request, &files.request) {
            (Some(text), Some(path)) => Some((folder.place(path)?, text)),
            _ => None,
        };
        place.replace(&self.certificate, files.new_mode)?;
        if let Some((place, text)) = request {
            place.replace(text, files.new_mode)?;
        }
        Ok(())
    }
}

fn write(
    above: &Path,
    number: u64,
    files: &CertificateFiles,
    in_place: &Folder,
    certificate: &[u8],
    now: Timestamp,
) -> Result<(), GenerationError> {
    let path = above.join(number.to_string());
    make(&path)?;
    let folder = Folder::open(&path)?;
    let put = |name: &str, content: &[u8]| folder.place(&path.join(name))?.replace(content, PRIVATE).map(drop);
    if let Some(request) = &files.request
        && let Some(text) = in_place.place(request)?.content()?
    {
        put(REQUEST, &text)?;
    }
    let about = serde_json::to_vec_pretty(&About { version: 1, replaced: now })
        .map_err(|source| GenerationError::Format { path: path.join(ABOUT), source })?;
    put(ABOUT, &about)?;
    put(CERTIFICATE, certificate)?;
    // The name of the generation's own folder, too, must be on disk before older ones go.
    File::open(above).and_then(|folder| folder.sync_all()).map_err(|source| GenerationError::System {
        path: above.to_owned(),
        doing: "write it to disk",
        source,
    })
}

fn read(above: &Path, number: u64) -> Result<Generation, GenerationError> {
    let folder = above.join(number.to_string());
    let path = folder.join(CERTIFICATE);
    let der = certificate::first_certificate(&path).map_err(GenerationError::Certificate)?;
    let leaf = certificate::leaf(&der).map_err(|why| GenerationError::Certificate(ReadError::malformed(&path, why)))?;
    let about = content(above, number, ABOUT)?.and_then(|text| serde_json::from_slice::<About>(&text).ok());
    // Without the note it is still a certificate that can be put back.
    let replaced = about.map_or(leaf.not_before, |about| about.replaced);
    Ok(Generation { number, replaced, leaf, folder })
}

/// Whether a server could load the certificate together with this key.
fn usable(path: &Path, key: &PublicKey) -> bool {
    let leaf = certificate::first_certificate(path).ok().and_then(|der| certificate::leaf(&der).ok());
    leaf.is_some_and(|leaf| leaf.public_key == *key && leaf.refused_sans.is_empty())
}

fn folder(state_dir: &Path, name: &str) -> PathBuf {
    state_dir.join(FOLDER).join(name)
}

fn make(path: &Path) -> Result<(), GenerationError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(GenerationError::System { path: path.to_owned(), doing: "make the folder", source })
        }
        _ => Ok(()),
    }
}

/// In ascending order.
fn numbers(above: &Path) -> Result<Vec<u64>, GenerationError> {
    let listing = std::fs::read_dir(above).map_err(|source| GenerationError::System {
        path: above.to_owned(),
        doing: "list it",
        source,
    })?;
    let mut numbers: Vec<u64> =
        listing.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

fn is_whole(above: &Path, number: u64) -> bool {
    above.join(number.to_string()).join(CERTIFICATE).exists()
}

fn content(above: &Path, number: u64, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let path = above.join(number.to_string());
    Ok(Folder::open(&path)?.place(&path.join(name))?.content()?.map(|bytes| bytes.to_vec()))
}

#[cfg(test)]
#[path = "generations_tests.rs"]
mod tests;
