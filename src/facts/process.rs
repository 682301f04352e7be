//! Processes that somebody names and somebody else looks for later.

use serde::{Deserialize, Serialize};

/// A process, told apart from every other of this host's past.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number, which comes again.
    pub pid: u32,
    /// When it started, in clock ticks since the boot (field 22 of `/proc/PID/stat`).
    pub started: u64,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}
