//! Which process it was: a number alone comes again.
//!
//! In: `/proc`. Out: a [`Process`], and whether it still is. The rule of this file: who must not look at a process (`hidepid`
//! of proc(5)) does not take it for dead.

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::facts::process::Process;

/// This process.
pub fn own() -> Process {
    let pid = std::process::id();
    Process { pid, started: started(pid).unwrap_or_default(), boot_id: boot_id() }
}

/// Whether it runs.
pub fn is_running(process: &Process) -> bool {
    if process.boot_id != boot_id() {
        return false;
    }
    match (started(process.pid), i32::try_from(process.pid)) {
        (Some(started), _) => started == process.started,
        (None, Ok(pid)) if pid > 0 => kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH),
        _ => false,
    }
}

fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// A zombie has ended.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, which may hold blanks and brackets.
    let behind = stat.iter().rposition(|byte| *byte == b')')?;
    let mut fields = str::from_utf8(stat.get(behind + 1..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    // Another number than any that a living one has.
    Some(if matches!(state, "Z" | "X") { u64::MAX } else { started })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_itself_and_no_other() {
        let this = own();
        assert!(this.started > 0 && is_running(&this));
        assert!(!is_running(&Process { started: this.started + 1, ..this.clone() }), "the number came again");
        assert!(!is_running(&Process { boot_id: "another".to_owned(), ..this.clone() }));
        assert!(!is_running(&Process { pid: u32::MAX, ..this.clone() }));
        assert!(!is_running(&Process { pid: 0, ..this.clone() }));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep is there");
        let other = Process { pid: child.id(), started: started(child.id()).expect("it runs"), ..this };
        assert!(is_running(&other));
        child.kill().expect("it is ours");
        // Killed and not waited for: a zombie, perhaps a moment later.
        let began = std::time::Instant::now();
        while is_running(&other) && began.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        assert!(!is_running(&other));
        child.wait().expect("it is ours");
        assert!(!is_running(&other));
    }
}
