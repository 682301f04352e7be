//! The status that a daemon publishes: one JSON file that everybody may read.
//!
//! In: the root. Out: [`Published`]. The rule of this file: a reader sees the old document or the new one, whole, and a
//! document that makes no sense is an error with the file's name.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::act::store::{Folder, StoreError};
use crate::chain::chain;
use crate::facts::{Problem, ReadError};
use crate::observe::file;
use crate::report::status::Published;

const NAME: &str = "status.json";

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The folder cannot be made.
    #[error("making {path}", path = path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The file cannot be replaced.
    #[error("writing {path}", path = path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
}

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// There is no file.
    #[error(
        "nothing is published at {path}: no daemon has run since the host was started, or it only observes, or it is of \
         a version that does not publish", path = path.display()
    )]
    Nothing {
        /// Where it would be.
        path: PathBuf,
    },
    /// It cannot be read, or makes no sense.
    #[error("{0}; a daemon that starts writes it anew")]
    File(ReadError),
}

/// Where it is, in a folder of its own.
pub fn folder(root: &Path) -> PathBuf {
    root.join("run/ipguard")
}

/// Writes it. The folder is made where systemd has not done that (`RuntimeDirectory=`).
///
/// # Errors
/// The file before stays as it is.
pub fn write(folder: &Path, published: &Published) -> Result<(), PublishError> {
    let path = folder.join(NAME);
    let store = |source| PublishError::Store { path: path.clone(), source: Box::new(source) };
    let text = crate::report::status::file(published);
    let refused = |source| PublishError::Folder { path: folder.to_owned(), source };
    match std::fs::create_dir_all(folder.parent().unwrap_or(folder)).and_then(|()| std::fs::create_dir(folder)) {
        // Whatever the umask is: it is for everybody.
        Ok(()) => std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).map_err(refused)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refused(error)),
    }
    let open = Folder::open(folder).map_err(store)?;
    open.place(&path).and_then(|place| place.replace(text.as_bytes(), 0o644)).map_err(store)?;
    Ok(())
}

/// Removes it. Best effort: where that is refused, so is everything else.
pub fn withdraw(folder: &Path) {
    let removed = Folder::open(folder).and_then(|open| open.place(&folder.join(NAME))).and_then(|place| place.remove());
    if let Err(error) = removed {
        tracing::warn!("`ipguard status` shows what is not true any more: {}", chain(&error));
    }
}

/// Reads it.
///
/// # Errors
/// There is none, or it makes no sense.
pub fn read(folder: &Path) -> Result<Published, StatusError> {
    let path = folder.join(NAME);
    let text = file::read_text(&path).map_err(|error| match error.problem {
        Problem::Missing => StatusError::Nothing { path: path.clone() },
        _ => StatusError::File(error),
    })?;
    let malformed = |why: String| StatusError::File(ReadError::malformed(&path, why));
    let not_a_status = |error: serde_json::Error| malformed(format!("not a status: {error}"));
    // The version first: a later format may have nothing else in common with this one.
    let Version { version } = serde_json::from_str(&text).map_err(not_a_status)?;
    if version != 1 {
        return Err(malformed(format!("its format is of version {version}, and this program knows 1")));
    }
    serde_json::from_str(&text).map_err(not_a_status)
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}
