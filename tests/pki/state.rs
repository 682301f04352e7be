//! The state of a folder, so that it can be said that nothing changed.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Every file below the folder, and the folder itself, with all that would show a change.
pub(crate) fn of(folder: &Path) -> Vec<String> {
    let mut state = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        state.push(described(&folder, None));
        for entry in std::fs::read_dir(&folder).expect("it is ours") {
            let path = entry.expect("readable").path();
            let kind = path.symlink_metadata().expect("it was just listed").file_type();
            if kind.is_dir() {
                folders.push(path);
            } else {
                let content = kind.is_file().then(|| std::fs::read(&path).expect("readable"));
                state.push(described(&path, content.as_deref()));
            }
        }
    }
    state.sort();
    state
}

/// Inode, mode, owner, size, links, the times of writing and of any change, and the content.
fn described(path: &Path, content: Option<&[u8]>) -> String {
    let m = path.symlink_metadata().expect("it is there");
    let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    let rights = (m.ino(), m.mode(), m.uid(), m.gid(), m.size(), m.nlink());
    format!("{} {rights:?} {times:?} {:?}", path.display(), content.map(|content| content.escape_ascii().to_string()))
}
