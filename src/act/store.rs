//! Replacing files so that every reader sees the old one or the new one, whole.
//!
//! In: a folder, a path beneath it, the content. Out: the file, replaced. The rule of this file: every step is relative to
//! a folder that is already open, no symbolic link is ever followed beneath it, and the file before stays untouched until
//! the rename. Members of a group can write to these folders, so any name in them may change under our hands.
//!
//! Owner, group, mode, access control list and security label are read from the file before by its descriptor and given
//! to the new one by its own: nothing is ever changed by name. Other attributes are not copied - a capability, for one,
//! could come from a program that somebody linked here.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use ring::rand::SecureRandom as _;
use zeroize::Zeroizing;

use crate::sys;

/// Temporary files are named like this, with 16 random hex digits behind it.
const TEMPORARY: &str = ".ipguard-";

/// A folder whose files may be replaced.
#[derive(Debug)]
pub struct Folder {
    file: File,
    path: PathBuf,
}

/// A file beneath a [`Folder`], there or not: its own folder is open, so renaming what is above changes nothing.
#[derive(Debug)]
pub struct Place {
    folder: File,
    name: OsString,
    path: PathBuf,
}

/// Extended attributes that a file keeps: labels of SELinux and Smack, and the access control list.
const KEPT: [&CStr; 3] = [c"security.selinux", c"security.SMACK64", c"system.posix_acl_access"];

/// What [`Place::replace`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// The new content is in place and on disk.
    Written,
    /// The file had this content already; it was not touched.
    Unchanged,
}

/// Why a file was not replaced. Unless the folder could not be synchronised, the file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The path leads elsewhere: by its text, or by a link beneath the folder.
    #[error("{path} is outside the certificate folder {folder}", path = path.display(), folder = folder.display())]
    Outside {
        /// As given.
        path: PathBuf,
        /// The folder it should be beneath.
        folder: PathBuf,
    },
    /// A symbolic link stands at the place of the file.
    #[error("{path} is a symbolic link and is not followed", path = path.display())]
    Symlink {
        /// The link.
        path: PathBuf,
    },
    /// A folder, fifo, socket or device stands there.
    #[error("{path} is not a regular file", path = path.display())]
    NotRegular {
        /// What stands there.
        path: PathBuf,
    },
    /// Owner or group of the file before could not be given to the new one.
    #[error("{path} cannot be given to owner {owner} and group {group}", path = path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Wanted owner.
        owner: u32,
        /// Wanted group.
        group: u32,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The security label or the access control list of the file before could not be given to the new one.
    #[error("{path}: the new file cannot get {attribute} of the one before", path = path.display())]
    Attribute {
        /// The file.
        path: PathBuf,
        /// Which attribute.
        attribute: String,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// A system call failed: no space, no permission, a broken disk.
    #[error("{path}: cannot {doing}", path = path.display())]
    System {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl Folder {
    /// Opens a folder. Links above it are followed (`/var/snap/microk8s/current` is one), the folder itself is none.
    ///
    /// # Errors
    /// It is missing, a link, or no folder.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = open(path, FOLDER, Mode::empty()).map_err(|error| system(path, "open the folder", error))?;
        Ok(Self { file: file.into(), path: path.to_owned() })
    }

    /// Finds the place of a file beneath this folder. A path that begins otherwise is looked up too (an argument file may
    /// name the revision where the profile says `current`), but what is opened is always beneath this folder.
    ///
    /// # Errors
    /// The path leads out of the folder, or something other than a regular file stands there.
    pub fn place(&self, path: &Path) -> Result<Place, StoreError> {
        let outside = || StoreError::Outside { path: path.to_owned(), folder: self.path.clone() };
        let relative = self.relative(path).ok_or_else(outside)?;
        let (above, name) = (relative.parent(), relative.file_name().ok_or_else(outside)?);
        let mut folder = self.file.try_clone().map_err(|source| StoreError::System {
            path: self.path.clone(),
            doing: "keep the folder open",
            source,
        })?;
        for component in above.into_iter().flat_map(Path::components) {
            folder = match openat(&folder, component.as_os_str(), FOLDER, Mode::empty()) {
                Ok(next) => next.into(),
                // With O_DIRECTORY and O_NOFOLLOW together a link gives the one or the other.
                Err(Errno::ELOOP | Errno::ENOTDIR) => return Err(outside()),
                Err(error) => return Err(system(path, "open the folder of the file", error)),
            };
        }
        let place = Place { folder, name: name.to_owned(), path: path.to_owned() };
        place.check_kind()?;
        Ok(place)
    }

    /// The rest of the path below this folder, made of plain names only.
    fn relative(&self, path: &Path) -> Option<PathBuf> {
        if path.components().any(|component| component == Component::ParentDir) {
            return None;
        }
        let relative = match path.strip_prefix(&self.path) {
            Ok(relative) => relative.to_owned(),
            Err(_) => {
                // Where the open folder is now, not where its path leads now.
                let here = std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())).ok()?;
                let above = path.parent()?.canonicalize().ok()?;
                above.strip_prefix(here).ok()?.join(path.file_name()?)
            }
        };
        let plain = relative.components().all(|component| matches!(component, Component::Normal(_)));
        (plain && relative.file_name().is_some()).then_some(relative)
    }
}

impl Place {
    /// The path it was asked for by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole content, never read through a link; `None` when there is no file.
    ///
    /// # Errors
    /// Something other than a regular file of at most 1 MiB stands there, or it cannot be read. A file with a second name
    /// is one of somebody else's folder too, where the kernel lets everybody make such links (`fs.protected_hardlinks`).
    pub fn content(&self) -> Result<Option<Zeroizing<Vec<u8>>>, StoreError> {
        const LARGEST: u64 = 1 << 20;
        let Some(there) = self.existing()? else { return Ok(None) };
        if there.metadata.len() > LARGEST {
            return Err(self.failed("read it", io::Error::other("it is larger than 1 MiB")));
        }
        if there.metadata.nlink() > 1 {
            return Err(self.failed("read it", io::Error::other("it has a second name (a hard link)")));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        (&there.file).take(LARGEST).read_to_end(&mut bytes).map_err(|source| self.failed("read it", source))?;
        Ok(Some(bytes))
    }

    /// Replaces the file, or makes it. Mode, owner and group of the file before are kept; a new file gets `new_mode` and
    /// the group of its folder. The caller holds the lock: temporary files found here are left from a crash.
    ///
    /// # Errors
    /// The file is as it was; the temporary file is removed.
    pub fn replace(&self, content: &[u8], new_mode: u32) -> Result<Replaced, StoreError> {
        self.remove_leftovers();
        let before = self.existing()?;
        if let Some(before) = &before
            && before.holds(content)
        {
            return Ok(Replaced::Unchanged);
        }
        self.put(content, before.as_ref(), new_mode)
    }

    /// Makes the file anew, with nothing of the one before: its content, mode and owner are whatever a member of the
    /// group wanted them to be, and the new content is secret.
    ///
    /// # Errors
    /// As [`Place::replace`].
    pub fn replace_secret(&self, content: &[u8]) -> Result<Replaced, StoreError> {
        self.remove_leftovers();
        self.check_kind()?;
        self.put(content, None, 0o600)
    }

    /// Removes the file, and lasts when it returns. False when there was none.
    ///
    /// # Errors
    /// It is something else than a regular file, or the disk does not take the change.
    pub fn remove(&self) -> Result<bool, StoreError> {
        self.check_kind()?;
        match unlinkat(&self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) => return Ok(false),
            removed => removed.map_err(|error| self.failed("remove it", error.into()))?,
        }
        // Without this a power loss may bring it back.
        self.folder.sync_all().map_err(|source| self.failed("write the folder to disk", source))?;
        Ok(true)
    }

    fn put(&self, content: &[u8], before: Option<&Existing>, new_mode: u32) -> Result<Replaced, StoreError> {
        let (owner, group, mode) = match before {
            Some(before) => (before.metadata.uid(), before.metadata.gid(), before.metadata.mode() & 0o777),
            None => {
                let folder = self.folder.metadata().map_err(|source| self.failed("look at the folder", source))?;
                (nix::unistd::geteuid().as_raw(), folder.gid(), new_mode & 0o777)
            }
        };
        let mut temporary = Temporary::create(self)?;
        temporary.file.write_all(content).map_err(|source| self.failed("write the new file", source))?;
        temporary.give_to(self, owner, group)?;
        fchmod(&temporary.file, Mode::from_bits_truncate(mode))
            .map_err(|error| self.failed("set the mode", error.into()))?;
        // Behind the mode, which would change the mask of a list.
        if let Some(before) = before {
            temporary.give_attributes(self, &before.file)?;
        }
        temporary.file.sync_all().map_err(|source| self.failed("write the new file to disk", source))?;
        temporary.rename(self)?;
        // Without this a power loss may bring the old name back; the content is safe either way.
        self.folder.sync_all().map_err(|source| self.failed("write the folder to disk", source))?;
        Ok(Replaced::Written)
    }

    /// Looks at the name itself, without opening what it stands for.
    fn check_kind(&self) -> Result<(), StoreError> {
        match fstatat(&self.folder, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(()),
            Err(error) => Err(self.failed("look at it", error.into())),
            Ok(status) => match SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFREG => Ok(()),
                SFlag::S_IFLNK => Err(StoreError::Symlink { path: self.path.clone() }),
                _ => Err(StoreError::NotRegular { path: self.path.clone() }),
            },
        }
    }

    fn existing(&self) -> Result<Option<Existing>, StoreError> {
        // A fifo put here since the check must not block the open.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = match openat(&self.folder, self.name.as_os_str(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ELOOP) => return Err(StoreError::Symlink { path: self.path.clone() }),
            Err(error) => return Err(self.failed("open it", error.into())),
        };
        let metadata = file.metadata().map_err(|source| self.failed("look at it", source))?;
        if !metadata.is_file() {
            return Err(StoreError::NotRegular { path: self.path.clone() });
        }
        Ok(Some(Existing { file, metadata }))
    }

    /// Removes what an interrupted write left beside the file. The caller holds the lock, so nobody is writing now. Best
    /// effort: a leftover takes a little space and harms nobody.
    pub fn remove_leftovers(&self) {
        // The listing of the open folder itself, wherever its path leads by now.
        let Ok(listing) = std::fs::read_dir(format!("/proc/self/fd/{}", self.folder.as_raw_fd())) else { return };
        for entry in listing.flatten() {
            let name = &*entry.file_name();
            if is_temporary(name) {
                match unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir) {
                    Ok(()) => tracing::info!(name = ?name, "removed a temporary file that an interrupted write left"),
                    Err(error) => tracing::debug!(name = ?name, %error, "a leftover could not be removed"),
                }
            }
        }
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::System { path: self.path.clone(), doing, source }
    }
}

/// The file as it is before it is replaced.
struct Existing {
    file: File,
    metadata: std::fs::Metadata,
}

impl Existing {
    /// Whether it has this content. When it cannot be read, it has not: then it is replaced.
    fn holds(&self, content: &[u8]) -> bool {
        let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
        if self.metadata.len() != length {
            return false;
        }
        let mut bytes = Zeroizing::new(vec![0; content.len()]);
        (&self.file).read_exact(&mut bytes).is_ok() && *bytes == content
    }
}

/// A file that removes itself unless it was renamed.
struct Temporary<'a> {
    folder: &'a File,
    name: OsString,
    file: File,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    fn create(place: &'a Place) -> Result<Self, StoreError> {
        let mut random = [0; 8];
        ring::rand::SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| place.failed("find a name", io::Error::other("the system gave no random bytes")))?;
        let name = OsString::from(format!("{TEMPORARY}{:016x}", u64::from_ne_bytes(random)));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // For us alone until owner and mode are right: it may hold a private key.
        let file = openat(&place.folder, name.as_os_str(), flags, Mode::from_bits_truncate(0o600))
            .map_err(|error| place.failed("make a temporary file beside it", error.into()))?;
        Ok(Self { folder: &place.folder, name, file: file.into(), renamed: false })
    }

    /// Asks the kernel only for what differs: in a user namespace even a change to an unmapped group that is there
    /// already fails with EINVAL, and whoever may not change owners need not.
    fn give_to(&self, place: &Place, owner: u32, group: u32) -> Result<(), StoreError> {
        let metadata = self.file.metadata().map_err(|source| place.failed("look at the new file", source))?;
        let new_owner = (metadata.uid() != owner).then(|| Uid::from_raw(owner));
        let new_group = (metadata.gid() != group).then(|| Gid::from_raw(group));
        if new_owner.is_none() && new_group.is_none() {
            return Ok(());
        }
        fchown(&self.file, new_owner, new_group).map_err(|error| StoreError::Owner {
            path: place.path.clone(),
            owner,
            group,
            source: error.into(),
        })
    }

    /// Asks the kernel only for what differs: whoever may not set a label need not where policy has given the same one.
    fn give_attributes(&self, place: &Place, before: &File) -> Result<(), StoreError> {
        for name in KEPT {
            let of = |file| sys::attribute(file, name).map_err(|source| place.failed("read its attributes", source));
            let wanted = of(before)?;
            if of(&self.file)? == wanted {
                continue;
            }
            // A label cannot be taken away, and the kernel shows one only where it has one for every file.
            if wanted.is_none() && name.to_bytes().starts_with(b"security.") {
                continue;
            }
            sys::set_attribute(&self.file, name, wanted.as_deref()).map_err(|source| StoreError::Attribute {
                path: place.path.clone(),
                attribute: name.to_string_lossy().into_owned(),
                source,
            })?;
        }
        Ok(())
    }

    /// Replaces the name itself: a link put there at the last moment is replaced, not followed.
    fn rename(mut self, place: &Place) -> Result<(), StoreError> {
        renameat(self.folder, self.name.as_os_str(), self.folder, place.name.as_os_str())
            .map_err(|error| place.failed("put the new file in place", error.into()))?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed
            && let Err(error) = unlinkat(self.folder, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)
        {
            tracing::warn!(name = ?self.name, %error, "a temporary file could not be removed; the next write tries again");
        }
    }
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn is_temporary(name: &OsStr) -> bool {
    name.as_bytes()
        .strip_prefix(TEMPORARY.as_bytes())
        .is_some_and(|digits| digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit))
}

fn system(path: &Path, doing: &'static str, error: Errno) -> StoreError {
    StoreError::System { path: path.to_owned(), doing, source: error.into() }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
