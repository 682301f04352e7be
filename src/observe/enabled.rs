//! Which services systemd starts at the next boot.
//!
//! In: the prefix, units. Out: whether each is there, and enabled. The rule of this file: the names of the links that
//! systemd itself goes by, and no child process. snapd installs every service of a snap for the target looked at here; a
//! unit that another target wants counts as not enabled, and is found once it runs.

use std::path::{Path, PathBuf};

/// Folder of the links of enabled services, below the prefix: a change of it is worth a look.
pub fn folder(root: &Path) -> PathBuf {
    root.join("etc/systemd/system/multi-user.target.wants")
}

/// The same for a unit of any kind.
fn folder_of(root: &Path, unit: &str) -> PathBuf {
    match Path::new(unit).extension().and_then(std::ffi::OsStr::to_str) {
        Some("timer") => root.join("etc/systemd/system/timers.target.wants"),
        Some("path") => root.join("etc/systemd/system/paths.target.wants"),
        _ => folder(root),
    }
}

/// Whether systemd starts the unit at the next boot.
pub fn is_enabled(root: &Path, unit: &str) -> bool {
    // The link itself: whether it leads anywhere is another question.
    folder_of(root, unit).join(unit).symlink_metadata().is_ok()
}

/// Whether there is such a unit at all, in one of the folders that units are installed to.
pub fn is_installed(root: &Path, unit: &str) -> bool {
    let folders =
        ["etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"];
    folders.iter().chain(&["lib/systemd/system"]).any(|folder| root.join(folder).join(unit).symlink_metadata().is_ok())
}
