//! Edits of the files a plan rests on, by inotify(7).
//!
//! In: folders and the names that matter. Out: "look again". The rule of this file: an event carries no meaning of its
//! own; folders are watched rather than files, since editors and we ourselves replace files instead of writing to them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

/// Watched folders.
#[derive(Debug)]
pub struct Watch {
    inotify: Inotify,
    folders: BTreeMap<PathBuf, Folder>,
}

#[derive(Debug)]
struct Folder {
    descriptor: WatchDescriptor,
    names: Names,
}

/// Which names of a folder matter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Names {
    /// All of them: a lock file may have any name.
    All,
    /// These: the certificate folder also holds what scripts rewrite every few seconds.
    Only(Vec<OsString>),
}

impl Watch {
    /// Opens it, watching nothing.
    ///
    /// # Errors
    /// The user has too many inotify instances.
    pub fn open() -> Result<Self, Errno> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Self { inotify, folders: BTreeMap::new() })
    }

    /// What to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Watches these folders and no others. One that is missing is tried again at the next call.
    pub fn set(&mut self, wanted: &[(PathBuf, Names)]) {
        let gone: Vec<PathBuf> =
            self.folders.keys().filter(|path| !wanted.iter().any(|(p, _)| p == *path)).cloned().collect();
        for path in gone {
            if let Some(folder) = self.folders.remove(&path) {
                // It may have been removed with the folder itself.
                let _ = self.inotify.rm_watch(folder.descriptor);
            }
        }
        for (path, names) in wanted {
            // Adding a folder twice gives the same descriptor, and a new one when the folder was replaced.
            match self.inotify.add_watch(path.as_path(), events()) {
                Ok(descriptor) => {
                    self.folders.insert(path.clone(), Folder { descriptor, names: names.clone() });
                }
                Err(error) => tracing::debug!("{} cannot be watched: {error}", path.display()),
            }
        }
    }

    /// Reads what has happened; true when any of it matters.
    pub fn drain(&self) -> bool {
        self.drain_but(None)
    }

    /// The same behind a write of our own: what happened to that name is no news.
    pub fn drain_but(&self, own: Option<&OsStr>) -> bool {
        let mut relevant = false;
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    relevant |= events.iter().any(|event| {
                        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                            return true;
                        }
                        if own.is_some() && event.name.as_deref() == own {
                            return false;
                        }
                        // One folder may be watched by two paths.
                        let mut folders = self.folders.values().filter(|folder| folder.descriptor == event.wd);
                        folders.any(|folder| match (&folder.names, &event.name) {
                            (Names::All, Some(name)) => !is_ours(Path::new(name)),
                            (Names::Only(names), Some(name)) => names.contains(name),
                            (_, None) => true,
                        })
                    });
                }
                Err(Errno::EINTR) => {}
                Err(_) => return relevant,
            }
        }
    }
}

fn events() -> AddWatchFlags {
    AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR
}

/// Our own temporary files.
fn is_ours(name: &Path) -> bool {
    name.to_string_lossy().starts_with(".ipguard-")
}
