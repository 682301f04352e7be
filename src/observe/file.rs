//! Small files, read whole.
//!
//! In: a path. Out: bytes or text, or a fact about why not. The rule of this file: nothing that is found at a path can
//! block us, fill our memory or make us panic, and a symbolic link that a member of a group put there leads to nothing.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use nix::fcntl::{OFlag, open, openat};
use nix::libc;
use nix::sys::stat::Mode;

use crate::facts::{Problem, Read, ReadError};

/// Largest file that is read: none of those that matter comes near it.
pub const MOST_BYTES: u64 = 1024 * 1024;

/// Reads a regular file of at most [`MOST_BYTES`].
///
/// # Errors
/// Missing, empty, unreadable, too large, or not a regular file.
pub fn read_bytes(path: &Path) -> Read<Vec<u8>> {
    let file = open_itself(path).map_err(|error| unopened(path, &error))?;
    let metadata = file.metadata().map_err(|error| ReadError::from_io(path, &error))?;
    if !metadata.is_file() {
        return Err(ReadError::malformed(path, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| ReadError::from_io(path, &error))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ReadError::malformed(path, format!("larger than {MOST_BYTES} bytes")));
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(ReadError { path: path.to_owned(), problem: Problem::Empty });
    }
    Ok(bytes)
}

/// Opens what stands at a path itself: neither the file nor its folder may be a symbolic link. Group members can put links
/// into the folders of a distribution, and what we read as root would be read for them. Links further up belong to the
/// system (`/var/snap/microk8s/current` is one).
pub(crate) fn open_itself(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let folder = open(above, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())?;
    // O_NONBLOCK: opening a FIFO that somebody put there returns at once.
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(openat(&folder, name, flags, Mode::empty())?.into())
}

/// Why a file could not be opened, in words that name the cause.
pub(crate) fn unopened(path: &Path, error: &io::Error) -> ReadError {
    match error.raw_os_error() {
        Some(libc::ELOOP) => ReadError::malformed(path, "a symbolic link, which is not followed"),
        _ => ReadError::from_io(path, error),
    }
}

/// Reads a UTF-8 text file.
///
/// # Errors
/// As [`read_bytes`], or not UTF-8.
pub fn read_text(path: &Path) -> Read<String> {
    let bytes = read_bytes(path)?;
    String::from_utf8(bytes).map_err(|_| ReadError::malformed(path, "not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn neither_the_file_nor_its_folder_may_be_a_link() {
        let root = std::env::temp_dir().join(format!("ipguard-file-{}", std::process::id()));
        let folder = root.join("folder");
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        std::fs::write(folder.join("text"), "text").expect("it is ours");
        symlink("text", folder.join("link")).expect("it is ours");
        symlink("folder", root.join("elsewhere")).expect("it is ours");
        symlink(&root, root.join("above")).expect("it is ours");
        assert_eq!(read_text(&folder.join("text")), Ok("text".to_owned()));
        let refused = read_text(&folder.join("link")).expect_err("a link");
        assert!(refused.to_string().ends_with("link: a symbolic link, which is not followed"), "{refused}");
        assert!(read_text(&root.join("elsewhere/text")).is_err(), "the folder is a link");
        // The system's own links are further up.
        assert_eq!(read_text(&root.join("above/folder/text")), Ok("text".to_owned()));
        std::fs::remove_dir_all(root).expect("it is ours");
    }
}
