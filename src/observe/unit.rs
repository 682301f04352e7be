//! What the kernel tells of a systemd unit: its processes, and when the first was started. snapctl tells neither.
//!
//! In: the control group that systemd gives every unit, and the processes in it. Out: their numbers, and a moment of the
//! monotonic clock. The rule of this file: what cannot be read - in a strict sandbox, say - is not known, and no error.
//!
//! The main process is the one that has been there longest: whatever else is in the group was started by it, and all of them
//! end with it.

use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

/// Where control groups are mounted: version 2, and systemd's own hierarchy of version 1.
const CONTROL_GROUPS: [&str; 3] = ["sys/fs/cgroup", "sys/fs/cgroup/systemd", "sys/fs/cgroup/unified"];

/// Position of `starttime` behind the name in `/proc/PID/stat`: field 22 (proc_pid_stat(5)), of which two are cut off.
const START: usize = 19;

/// The processes of a unit; none where its control group cannot be read.
pub fn members(root: &Path, unit: &str) -> Vec<u32> {
    let of_hierarchy = |mounted: &&str| {
        let members = root.join(mounted).join("system.slice").join(unit).join("cgroup.procs");
        // Not by observe/file.rs: files of the kernel say that they are empty.
        let text = std::fs::read_to_string(members).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect::<Vec<u32>>()
    };
    CONTROL_GROUPS.iter().map(of_hierarchy).find(|members| !members.is_empty()).unwrap_or_default()
}

/// When the unit's main process was started.
pub fn started(root: &Path, unit: &str) -> Option<Duration> {
    let processes = members(root, unit);
    let first = processes.iter().filter_map(|process| of_process(root, *process)).min()?;
    // The kernel counts the time asleep, systemd does not. What is left out is a sleep before the start, and makes the
    // service older than it is: a restart too many, never one too few.
    let asleep = clock(ClockId::CLOCK_BOOTTIME)?.saturating_sub(clock(ClockId::CLOCK_MONOTONIC)?);
    Some(first.saturating_sub(asleep))
}

/// Since boot, the time asleep included.
fn of_process(root: &Path, process: u32) -> Option<Duration> {
    // Not by observe/file.rs: files of the kernel say that they are empty.
    let stat = std::fs::read_to_string(root.join("proc").join(process.to_string()).join("stat")).ok()?;
    // The name is whatever the program calls itself, brackets and blanks included.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(START)?.parse().ok()?;
    let in_second = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok().filter(|ticks| *ticks > 0)?;
    Some(Duration::from_millis(ticks.checked_mul(1000)? / in_second))
}

fn clock(id: ClockId) -> Option<Duration> {
    clock_gettime(id).ok().map(Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_process_of_the_group_counts_and_what_is_not_there_is_not_known() {
        let root = std::env::temp_dir().join(format!("ipguard-unit-start-{}", std::process::id()));
        let group = root.join("sys/fs/cgroup/system.slice/a.service");
        std::fs::create_dir_all(&group).expect("a temporary folder");
        assert_eq!(started(&root, "a.service"), None);
        std::fs::write(group.join("cgroup.procs"), "7\n8\n9\n").expect("it is ours");
        assert_eq!(started(&root, "a.service"), None, "no process can be looked at");
        // Far ahead of any sleep of this machine.
        let ahead = clock(ClockId::CLOCK_BOOTTIME).expect("a clock").as_secs() + 1000;
        for (process, seconds, name) in [(7, ahead + 5, "a"), (8, ahead, "a) S 1 (b"), (9, ahead + 9, "")] {
            let folder = root.join(format!("proc/{process}"));
            std::fs::create_dir_all(&folder).expect("it is ours");
            let ticks = seconds * 100;
            let zeros = "0 ".repeat(START - 1);
            std::fs::write(folder.join("stat"), format!("{process} ({name}) S {zeros}{ticks} 0 0\n"))
                .expect("it is ours");
        }
        let time = |id| clock(id).expect("a clock");
        let asleep = time(ClockId::CLOCK_BOOTTIME).saturating_sub(time(ClockId::CLOCK_MONOTONIC));
        let found = started(&root, "a.service").expect("it is known");
        let expected = Duration::from_secs(ahead).saturating_sub(asleep);
        assert!(found.abs_diff(expected) < Duration::from_millis(50), "{found:?}, not {expected:?}");
        std::fs::write(root.join("proc/8/stat"), "8 (a) S 1\n").expect("it is ours");
        assert!(started(&root, "a.service").expect("the others are") > expected + Duration::from_secs(4));
        std::fs::remove_dir_all(&root).expect("it is ours");
    }
}
