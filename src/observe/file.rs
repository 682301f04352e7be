//! Small files, read whole.
//!
//! In: a path. Out: bytes or text, or a fact about why not. The rule of this file: nothing that is found at a path can
//! block us, fill our memory or make us panic.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::facts::{Problem, Read, ReadError};

/// Largest file that is read: none of those that matter comes near it.
pub const MOST_BYTES: u64 = 1024 * 1024;

/// Reads a regular file of at most [`MOST_BYTES`].
///
/// # Errors
/// Missing, empty, unreadable, too large, or not a regular file.
pub fn read_bytes(path: &Path) -> Read<Vec<u8>> {
    // O_NONBLOCK: opening a FIFO that somebody put there returns at once.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| ReadError::from_io(path, &error))?;
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

/// Reads a UTF-8 text file.
///
/// # Errors
/// As [`read_bytes`], or not UTF-8.
pub fn read_text(path: &Path) -> Read<String> {
    let bytes = read_bytes(path)?;
    String::from_utf8(bytes).map_err(|_| ReadError::malformed(path, "not UTF-8 text"))
}
