//! Group and mode of a tree that members of a group may write to, given by root.
//!
//! In: a folder, a path beneath it, the group. Out: what was changed. The rule of this file: everything is an open
//! descriptor. A name is opened once, without following it, and looked at, judged, changed and entered through that same
//! descriptor; what the name leads to afterwards does not matter. Opening is `O_PATH`: no fifo blocks and no device wakes.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{Gid, fchownat};

use crate::act::chores::{Report, shown};
use crate::decide::chores::{Mend, Wanted, mend};
use crate::facts::chores::{Entry, EntryKind};

/// Folders within folders that are entered. The data store has one level; a group member could make a thousand, and each
/// costs a descriptor and a piece of the stack.
const DEEPEST: usize = 32;

const LOOK: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What is done with a tree.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The group that everything is to have.
    pub group: u32,
    /// Whether the mode matters too.
    pub wanted: Wanted,
    /// Only say what would be changed.
    pub observe: bool,
}

/// Corrects what is at a path beneath a folder, and everything below it. What is not there needs nothing.
pub fn correct(folder: &Path, beneath: &Path, task: Task, report: &mut Report) {
    let path = folder.join(beneath);
    match find(folder, beneath) {
        Ok(fd) => visit(&fd, &path, DEEPEST, task, report),
        Err(Errno::ENOENT) => {}
        // With O_PATH and O_DIRECTORY a link on the way gives the one or the other.
        Err(Errno::ELOOP | Errno::ENOTDIR) => {
            report.failed(format!("{}: a symbolic link is on the way, which is not followed", shown(&path)));
        }
        Err(error) => report.failed(format!("{}: cannot be opened: {}", shown(&path), error.desc())),
    }
}

/// Opens a path step by step: no part of it below the folder may be a link, and neither may the folder.
fn find(folder: &Path, beneath: &Path) -> nix::Result<OwnedFd> {
    let mut fd = open(folder, LOOK | OFlag::O_DIRECTORY, Mode::empty())?;
    let mut parts = beneath.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Errno::EINVAL) };
        let folder = if parts.peek().is_some() { OFlag::O_DIRECTORY } else { OFlag::empty() };
        fd = openat(&fd, name, LOOK | folder, Mode::empty())?;
    }
    Ok(fd)
}

fn visit(fd: &OwnedFd, path: &Path, deeper: usize, task: Task, report: &mut Report) {
    let failed = |doing: &str, error: Errno| format!("{}: cannot {doing}: {}", shown(path), error.desc());
    let entry = match fstat(fd) {
        Ok(status) => entry(&status),
        Err(error) => return report.failed(failed("be looked at", error)),
    };
    match mend(&entry, task.group, task.wanted) {
        Mend::Nothing => {}
        // Every minute again, so no more than a remark.
        Mend::Skip(why) => return tracing::debug!("{}: left alone: {why}", shown(path)),
        Mend::Change { group, mode } => {
            let outcome = if task.observe { Ok(()) } else { change(fd, group, mode) };
            match outcome {
                Ok(()) => report.done(told(path, &entry, group, mode, task.observe)),
                Err(error) => report.failed(failed("be given group and mode", error)),
            }
        }
    }
    if entry.kind == EntryKind::Folder {
        if deeper == 0 {
            return report.failed(format!("{}: {DEEPEST} folders deep, not looked into", shown(path)));
        }
        if let Err(error) = enter(fd, path, deeper - 1, task, report) {
            report.failed(failed("be listed", error));
        }
    }
}

fn enter(fd: &OwnedFd, path: &Path, deeper: usize, task: Task, report: &mut Report) -> nix::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut folder = Dir::openat(fd, ".", flags, Mode::empty())?;
    for found in folder.iter() {
        let found = found?;
        let name = found.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        match openat(fd, name, LOOK, Mode::empty()) {
            Ok(fd) => visit(&fd, &path, deeper, task, report),
            // The data store removes files all the time.
            Err(Errno::ENOENT) => {}
            Err(error) => report.failed(format!("{}: cannot be opened: {}", shown(&path), error.desc())),
        }
    }
    Ok(())
}

/// First the group: a change of it takes set-id bits away, which a mode given before would lose.
fn change(fd: &OwnedFd, group: Option<u32>, mode: Option<u32>) -> nix::Result<()> {
    if let Some(group) = group {
        fchownat(fd.as_fd(), "", None, Some(Gid::from_raw(group)), AtFlags::AT_EMPTY_PATH)?;
    }
    if let Some(mode) = mode {
        // fchmod(2) refuses a descriptor of O_PATH; this name of it leads to the open file itself, whatever it is called
        // now. fchmodat2(2) could do without, on Linux 6.6.
        let itself = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let given = std::fs::set_permissions(itself, Permissions::from_mode(mode));
        given.map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
    }
    Ok(())
}

fn told(path: &Path, before: &Entry, group: Option<u32>, mode: Option<u32>, observe: bool) -> String {
    let group = group.map(|group| format!("group {} to {group}", before.group));
    let mode = mode.map(|mode| format!("mode {:04o} to {mode:04o}", before.mode));
    let changes: Vec<String> = group.into_iter().chain(mode).collect();
    let verb = if observe { "would be corrected" } else { "corrected" };
    format!("{}: {verb}: {}", shown(path), changes.join(", "))
}

fn entry(status: &FileStat) -> Entry {
    let kind = match SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFDIR => EntryKind::Folder,
        SFlag::S_IFREG => EntryKind::File,
        SFlag::S_IFSOCK => EntryKind::Socket,
        SFlag::S_IFLNK => EntryKind::Link,
        _ => EntryKind::Other,
    };
    Entry { kind, links: status.st_nlink, group: status.st_gid, mode: status.st_mode & 0o7777 }
}
