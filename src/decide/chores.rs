//! The distribution's upkeep besides certificates: when there is any, what is wrong with a file, which hooks run in which
//! order, and whether the cluster lacks its note about a registry.
//!
//! In: lock files, entries of a tree, names in a folder, an answer of the API server. Out: what to do with each. The rule
//! of this file: only what is wrong is changed, and a file that others may have put there under a second name never is.

use std::collections::BTreeMap;

use crate::facts::chores::{Entry, EntryKind, HookFile};
use crate::facts::time::Timestamp;

/// Owner and group may read and write; the `rw` of `ug+rwX`.
const READ_WRITE: u32 = 0o660;
/// The `X` of it.
const EXECUTE: u32 = 0o110;

/// Why there is nothing to do at all on this node; `None` when there may be.
pub fn gate(locks: &BTreeMap<String, Timestamp>, other_guard_runs: bool) -> Option<&'static str> {
    let locked = |name: &str| locks.contains_key(name);
    // The same two that end MicroK8s' own loop at its start; and `microk8s stop` stops the loop.
    if locked("clustered.lock") {
        Some("clustered.lock: a worker node")
    } else if locked("low-memory-guard.lock") {
        Some("low-memory-guard.lock: the control plane must not start here")
    } else if locked("stopped.lock") {
        Some("stopped.lock: the node is stopped")
    } else if other_guard_runs {
        Some("MicroK8s' own loop runs, which does them itself")
    } else {
        None
    }
}

/// Whether group members are to reach the data store and containerd: they share it on dqlite nodes, and a hardened node
/// keeps them out on purpose.
pub fn is_shared_with_group(locks: &BTreeMap<String, Timestamp>) -> bool {
    locks.contains_key("ha-cluster") && !locks.contains_key("cis-hardening")
}

/// What of a file is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The group, and what `ug+rwX` means.
    GroupAndMode,
    /// The group alone.
    Group,
}

/// What to do with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// It is right.
    Nothing,
    /// It is not touched, and neither is what is below it.
    Skip(&'static str),
    /// Something is wrong.
    Change {
        /// The group it gets.
        group: Option<u32>,
        /// The mode it gets.
        mode: Option<u32>,
    },
}

/// Judges a file.
pub fn mend(entry: &Entry, group: u32, wanted: Wanted) -> Mend {
    match entry.kind {
        // Whoever may write to the tree may make it point anywhere.
        EntryKind::Link => return Mend::Skip("a symbolic link"),
        EntryKind::Other => return Mend::Skip("neither file, folder nor socket"),
        EntryKind::Folder | EntryKind::File | EntryKind::Socket => {}
    }
    let new_mode = match wanted {
        Wanted::Group => entry.mode,
        Wanted::GroupAndMode => {
            let executable = entry.kind == EntryKind::Folder || entry.mode & 0o111 != 0;
            entry.mode | READ_WRITE | if executable { EXECUTE } else { 0 }
        }
    };
    let group = (entry.group != group).then_some(group);
    let mode = (entry.mode != new_mode).then_some(new_mode);
    if group.is_none() && mode.is_none() {
        return Mend::Nothing;
    }
    // Its other name may be anywhere on the disk: a file of root's that a member of the group linked here.
    if entry.kind != EntryKind::Folder && entry.links > 1 {
        return Mend::Skip("it has several names");
    }
    Mend::Change { group, mode }
}

/// The hooks to run, in order: by name, byte by byte. The owner's bit decides, as for MicroK8s' own runner.
pub fn hooks(mut found: Vec<HookFile>) -> Vec<HookFile> {
    found.retain(|hook| hook.regular && hook.mode & 0o100 != 0);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// What an answer about the note on registries asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryNote {
    /// The cluster is not that far: its public namespace is not there yet.
    TooEarly,
    /// It has one. Whose it is does not matter: it is never changed.
    There,
    /// It has none.
    Missing,
}

/// Reads the names of those that exist, out of the namespace and the note.
pub fn registry_note(answer: &str) -> RegistryNote {
    let has = |name: &str| answer.lines().any(|line| line.trim() == name);
    if has("configmap/local-registry-hosting") {
        RegistryNote::There
    } else if has("namespace/kube-public") {
        RegistryNote::Missing
    } else {
        RegistryNote::TooEarly
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u32 = 998;

    fn entry(kind: EntryKind, group: u32, mode: u32) -> Entry {
        Entry { kind, links: 1, group, mode }
    }

    fn locks(names: &[&str]) -> BTreeMap<String, Timestamp> {
        names.iter().map(|name| ((*name).to_owned(), Timestamp::from_millis(0))).collect()
    }

    #[test]
    fn a_file_that_is_right_is_left_alone_whatever_else_it_is() {
        for (kind, mode) in [
            (EntryKind::Folder, 0o770),
            (EntryKind::Folder, 0o2775),
            (EntryKind::File, 0o660),
            (EntryKind::File, 0o664),
            (EntryKind::File, 0o770),
            (EntryKind::Socket, 0o775),
        ] {
            assert_eq!(mend(&entry(kind, OURS, mode), OURS, Wanted::GroupAndMode), Mend::Nothing, "{kind:?} {mode:o}");
        }
        let linked = Entry { links: 2, ..entry(EntryKind::File, OURS, 0o660) };
        assert_eq!(mend(&linked, OURS, Wanted::GroupAndMode), Mend::Nothing);
    }

    #[test]
    fn modes_become_what_chmod_makes_of_them() {
        // Made with `chmod ug+rwX` of coreutils.
        for (kind, before, after) in [
            (EntryKind::File, 0o600, 0o660),
            (EntryKind::File, 0o000, 0o660),
            (EntryKind::File, 0o644, 0o664),
            (EntryKind::File, 0o700, 0o770),
            (EntryKind::File, 0o601, 0o771),
            (EntryKind::File, 0o4700, 0o4770),
            (EntryKind::Folder, 0o700, 0o770),
            (EntryKind::Folder, 0o1000, 0o1770),
            (EntryKind::Socket, 0o755, 0o775),
        ] {
            let mended = mend(&entry(kind, OURS, before), OURS, Wanted::GroupAndMode);
            assert_eq!(mended, Mend::Change { group: None, mode: Some(after) }, "{kind:?} {before:o}");
            assert_eq!(mend(&entry(kind, OURS, before), OURS, Wanted::Group), Mend::Nothing);
        }
        let foreign = mend(&entry(EntryKind::Socket, 0, 0o600), OURS, Wanted::Group);
        assert_eq!(foreign, Mend::Change { group: Some(OURS), mode: None });
    }

    #[test]
    fn links_devices_and_files_with_several_names_are_never_changed() {
        for kind in [EntryKind::Link, EntryKind::Other] {
            assert!(matches!(mend(&entry(kind, 0, 0o777), OURS, Wanted::GroupAndMode), Mend::Skip(_)));
        }
        for kind in [EntryKind::File, EntryKind::Socket] {
            let linked = Entry { links: 2, ..entry(kind, 0, 0o600) };
            assert!(matches!(mend(&linked, OURS, Wanted::GroupAndMode), Mend::Skip(_)), "{kind:?}");
        }
        // A folder's count is that of its folders.
        let folder = Entry { links: 7, ..entry(EntryKind::Folder, 0, 0o700) };
        assert!(matches!(mend(&folder, OURS, Wanted::GroupAndMode), Mend::Change { .. }));
    }

    #[test]
    fn hooks_run_in_the_order_of_their_names_when_their_owner_may_run_them() {
        let file = |name: &str, mode: u32| HookFile { name: name.into(), regular: true, mode };
        let folder = HookFile { regular: false, ..file("00-folder", 0o755) };
        let found = vec![
            file("90-b", 0o755),
            file("9-a", 0o100),
            folder,
            file("README", 0o644),
            file("10-c", 0o750),
            file("1", 0o011),
        ];
        let names: Vec<_> = hooks(found).into_iter().map(|hook| hook.name).collect();
        assert_eq!(names, ["10-c", "9-a", "90-b"]);
    }

    #[test]
    fn the_gates_of_the_node() {
        assert_eq!(gate(&locks(&["ha-cluster", "lite.lock"]), false), None);
        for name in ["clustered.lock", "low-memory-guard.lock", "stopped.lock"] {
            assert!(gate(&locks(&["ha-cluster", name]), false).is_some_and(|why| why.starts_with(name)));
        }
        assert!(gate(&locks(&[]), true).is_some());
        assert!(is_shared_with_group(&locks(&["ha-cluster"])));
        assert!(!is_shared_with_group(&locks(&[])));
        assert!(!is_shared_with_group(&locks(&["ha-cluster", "cis-hardening"])));
    }

    #[test]
    fn only_a_public_namespace_without_the_note_lacks_it() {
        assert_eq!(registry_note(""), RegistryNote::TooEarly);
        assert_eq!(registry_note("namespace/kube-public\n"), RegistryNote::Missing);
        let both = "namespace/kube-public\nconfigmap/local-registry-hosting\n";
        assert_eq!(registry_note(both), RegistryNote::There);
        assert_eq!(registry_note("configmap/local-registry-hosting-old\nnamespace/kube-public"), RegistryNote::Missing);
    }
}
