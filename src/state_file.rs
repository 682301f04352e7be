//! The state on disk: one JSON file in our own folder.
//!
//! In: the folder. Out: a [`State`]. The rule of this file: what cannot be trusted or understood is not used - "nothing is
//! known" causes no reissue and no restart - and a write leaves the old file or the new one, whole.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::act::store::{Folder, StoreError};
use crate::decide::state::State;
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
        Err(error) => (State::default(), Some(error)),
    }
}

fn read(folder: &Path, path: &Path) -> Result<State, ReadError> {
    // A state somebody else wrote could make any address the node's own.
    let me = nix::unistd::geteuid().as_raw();
    for (what, place) in [("its folder", folder), ("it", path)] {
        let owner = std::fs::symlink_metadata(place).map_err(|error| ReadError::from_io(path, &error))?.uid();
        if owner != me && owner != 0 {
            return Err(ReadError::malformed(path, format!("{what} belongs to user {owner}; not used")));
        }
    }
    let text = file::read_text(path)?;
    serde_json::from_str(&text).map_err(|error| ReadError::malformed(path, format!("not a state file: {error}")))
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder of its own for each test, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ipguard-state-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = Scratch::new("round");
        let state = State { version: 1, boot_id: "a-boot".to_owned(), ..State::default() };
        save(&folder.0, &state).expect("the folder is ours");
        let (loaded, unused) = load(&folder.0);
        assert_eq!((loaded, unused), (state, None));
    }

    #[test]
    fn nothing_is_nothing_and_damage_is_said() {
        let folder = Scratch::new("damaged");
        assert_eq!(load(&folder.0), (State::default(), None), "no file is no fault");
        for damage in ["", "{", "{\"version\": \"one\"}", "\u{0}\u{0}\u{0}"] {
            fs::write(folder.0.join(NAME), damage).expect("the folder is ours");
            let (state, unused) = load(&folder.0);
            assert_eq!(state, State::default(), "{damage:?}");
            assert!(unused.is_some(), "{damage:?} was taken for a state");
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_not_used() {
        if !nix::unistd::geteuid().is_root() {
            // Only root can make one; CI runs this as root.
            eprintln!("skipped: needs root");
            return;
        }
        let folder = Scratch::new("foreign");
        save(&folder.0, &State { version: 1, ..State::default() }).expect("the folder is ours");
        std::os::unix::fs::chown(folder.0.join(NAME), Some(4711), None).expect("root may");
        let (state, unused) = load(&folder.0);
        assert_eq!(state, State::default());
        assert!(unused.is_some_and(|error| error.to_string().ends_with("it belongs to user 4711; not used")));
    }
}
