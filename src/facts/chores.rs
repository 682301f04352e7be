//! What the upkeep of a distribution looks at: files of its group, hooks, the answer about a registry.

use std::ffi::OsString;

/// A file or folder, as the kernel describes what an open descriptor leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// How many names it has. Of a folder this says nothing.
    pub links: u64,
    /// Its group.
    pub group: u32,
    /// Its permission bits, those for set-id and sticky included.
    pub mode: u32,
}

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A socket.
    Socket,
    /// A symbolic link.
    Link,
    /// A fifo or a device.
    Other,
}

/// A name in the folder of hooks, with what it leads to: links are followed, as whoever runs it follows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookFile {
    /// Its name in the folder.
    pub name: OsString,
    /// It leads to a regular file.
    pub regular: bool,
    /// Permission bits of that.
    pub mode: u32,
}
