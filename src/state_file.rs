//! The state on disk: one JSON file in our own folder.
//!
//! In: the folder. Out: a [`State`]. The rule of this file: what cannot be trusted or understood is not used - "nothing is
//! known" causes no reissue and no restart, and is no leave to restart - and a write leaves the old file or the new one, whole.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::act::store::{Folder, StoreError};
use crate::decide::state::State;
use crate::facts::time::Timestamp;
use crate::facts::{Problem, ReadError};
use crate::observe::file;

const NAME: &str = "state.json";

/// Why the state was not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file could not be replaced.
    #[error("writing {path}", path = path.display())]
    Store {
        /// The state file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// The state does not serialise.
    #[error("writing {path}", path = path.display())]
    Format {
        /// The state file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the state. With it comes why a file that is there was not used.
pub fn load(folder: &Path) -> (State, Option<ReadError>) {
    let path = folder.join(NAME);
    match read(folder, &path) {
        Ok(state) => (state, None),
        Err(error) if error.problem == Problem::Missing => (State::default(), None),
        Err(error) => (State::lost(changed(&path)), Some(error)),
    }
}

/// When a file that cannot be used became what it is. Whatever restart was written down before was so no later than that;
/// not the time of its content, which anybody may set who writes it. Where nobody can tell, now and ever: the limit holds.
fn changed(path: &Path) -> Timestamp {
    let seconds = std::fs::symlink_metadata(path).map(|status| status.ctime());
    seconds.map_or(Timestamp::from_millis(i64::MAX), Timestamp::from_seconds)
}

fn read(folder: &Path, path: &Path) -> Result<State, ReadError> {
    let text = trusted_text(folder, path)?;
    serde_json::from_str(&text).map_err(|error| ReadError::malformed(path, format!("not a state file: {error}")))
}

/// The text of a file in our own folder, unless somebody else may have written it: a state of theirs could make any
/// address the node's own.
pub(crate) fn trusted_text(folder: &Path, path: &Path) -> Result<String, ReadError> {
    let status = |path: &Path| std::fs::symlink_metadata(path).map_err(|error| ReadError::from_io(path, &error));
    let (above, itself) = (status(folder)?, status(path)?);
    let me = nix::unistd::geteuid().as_raw();
    let refuse = |why: String| Err(ReadError::malformed(path, why + "; not used"));
    for (what, owner) in [("its folder", above.uid()), ("it", itself.uid())] {
        if owner != me && owner != 0 {
            return refuse(format!("{what} belongs to user {owner}"));
        }
    }
    if above.mode() & 0o022 != 0 {
        return refuse(format!("its folder is writable by others (mode {:04o})", above.mode() & 0o7777));
    }
    if !itself.is_file() {
        return refuse("not a regular file".to_owned());
    }
    file::read_text(path)
}

/// Writes the state. The folder exists and is ours: the caller holds the lock in it.
///
/// # Errors
/// The file before stays as it is.
pub fn save(folder: &Path, state: &State) -> Result<(), SaveError> {
    let path = folder.join(NAME);
    let text = serde_json::to_vec_pretty(state).map_err(|source| SaveError::Format { path: path.clone(), source })?;
    let store = |source| SaveError::Store { path: path.clone(), source: Box::new(source) };
    let folder = Folder::open(folder).map_err(store)?;
    folder.place(&path).and_then(|place| place.replace(&text, 0o600)).map_err(store)?;
    Ok(())
}

/// Removes what an interrupted [`save`] left, where nothing has to be saved that would do it. The caller holds the lock.
/// Best effort, as a leftover harms nobody.
pub fn remove_leftovers(folder: &Path) {
    if let Ok(place) = Folder::open(folder).and_then(|open| open.place(&folder.join(NAME))) {
        place.remove_leftovers();
    }
}
