//! What the environment says, read once in `main`: nothing else of the program reads it.

use std::ffi::OsString;
use std::os::fd::AsFd as _;

use crate::notify::Manager;
use crate::profiles::Snap;

/// The environment as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The snap this process runs in.
    pub snap: Snap,
    /// Standard output is a terminal, and the user has nothing against colours (<https://no-color.org>).
    pub colour: bool,
    /// Standard error goes to the journal, which has time stamps of its own.
    pub journal: bool,
    /// All of it, for programs that are promised what we were given.
    pub variables: Vec<(OsString, OsString)>,
    /// Who started us as a service, if anybody did.
    pub manager: Manager,
}

impl Environment {
    /// Reads it.
    pub fn read() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
        Self {
            snap: Snap::from_environment(),
            colour: terminal && !set("NO_COLOR"),
            variables: std::env::vars_os().collect(),
            manager: Manager {
                socket: std::env::var_os("NOTIFY_SOCKET"),
                watchdog_usec: std::env::var_os("WATCHDOG_USEC"),
                watchdog_pid: std::env::var_os("WATCHDOG_PID"),
            },
            journal: std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stderr_is(&stream)),
        }
    }
}

/// Whether standard error is the stream named by device and inode. The variable alone does not say so: terminals that a
/// service started inherit it (systemd.exec(5), `$JOURNAL_STREAM`).
fn stderr_is(stream: &str) -> bool {
    nix::sys::stat::fstat(std::io::stderr().as_fd())
        .is_ok_and(|status| stream == format!("{}:{}", status.st_dev, status.st_ino))
}
