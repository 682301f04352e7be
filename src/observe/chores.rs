//! What the upkeep of a distribution has to know about the host.
//!
//! In: files of the system and of the distribution. Out: plain values. The rule of this file: no child process, so that a
//! look every minute costs nothing.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::observe::file;
use crate::observe::unit::members;

/// Where groups are listed: the system's file, and that of systems whose own cannot be written (Ubuntu Core).
const GROUPS: [&str; 2] = ["etc/group", "var/lib/extrausers/group"];

/// The number of a group. Read from the files: a static program has no name service, and a fake root has groups of its
/// own. Groups of a directory service are not found.
pub fn group(root: &Path, name: &str) -> Option<u32> {
    GROUPS.iter().find_map(|path| {
        let text = file::read_text(&root.join(path)).ok()?;
        text.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        })
    })
}

/// Whether a snap is confined. What cannot be read is taken for classic, which MicroK8s is.
pub fn is_strict(snap: &Path) -> bool {
    let text = file::read_text(&snap.join("meta/snap.yaml")).unwrap_or_default();
    let confinement = text.lines().find_map(|line| line.strip_prefix("confinement:"));
    confinement.is_some_and(|word| word.trim().trim_matches(['"', '\'']) == "strict")
}

/// Whether a unit has processes, and none of them is one of these.
pub fn runs_beside(root: &Path, unit: &str, lineage: &[u32]) -> bool {
    let members = members(root, unit);
    !members.is_empty() && !members.iter().any(|process| lineage.contains(process))
}

/// A text that changes with the boot and with any of these files being made anew. It says which cluster this is, as well
/// as can be told without asking it.
pub fn identity(root: &Path, data: &Path, files: &[PathBuf]) -> String {
    let boot = std::fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default();
    let mut text = format!("boot {}\n", boot.trim());
    for path in files {
        let file = match std::fs::symlink_metadata(data.join(path)) {
            Ok(there) => format!("{} {}.{:09}", there.ino(), there.mtime(), there.mtime_nsec()),
            Err(_) => "none".to_owned(),
        };
        text += &format!("{} {file}\n", path.display());
    }
    text
}
