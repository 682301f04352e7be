//! Paths below `--root`, links included.
//!
//! In: the root and an absolute path as the host's programs would write it. Out: the path that this process opens. The
//! rule of this file: never outside the root - an absolute link target starts at the root again, and `..` at the root
//! stays there, as it would for a process whose root it is (path_resolution(7)).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The kernel's own limit on links in one resolution (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// A path with the root in front, links not looked at: for messages, and for what does not exist yet.
pub(super) fn prefixed(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A path with the root in front and every link followed. Everything on the way must exist.
///
/// # Errors
/// A part is missing or cannot be read, or there are more than 40 links.
pub fn beneath(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut rest: VecDeque<OsString> = names(path);
    // Names below the root that are resolved already.
    let mut resolved: Vec<OsString> = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let mut full = root.to_path_buf();
        full.extend(&resolved);
        full.push(&name);
        if !full.symlink_metadata()?.is_symlink() {
            resolved.push(name);
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(io::Error::from_raw_os_error(nix::libc::ELOOP));
        }
        let target = full.read_link()?;
        if target.is_absolute() {
            resolved.clear();
        }
        let mut next = names(&target);
        next.append(&mut rest);
        rest = next;
    }
    let mut full = root.to_path_buf();
    full.extend(resolved);
    Ok(full)
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}
