//! The hooks of a distribution: other people's programs, run as root because the distribution promises it.
//!
//! In: the folder, the environment. Out: what they said, and which failed. The rule of this file: one after the other, each
//! ended with its process group when its time is up, and none of them keeps the next from running.
//!
//! The folder is writable by the distribution's group, and whatever is executable there is run, links included: that is
//! what its members were promised, and they are root on this node by other ways too. A rule of our own about owners
//! would only break hooks that work today.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::act::child::{Child, Command};
use crate::act::chores::wait::{StopSignals, Waited};
use crate::act::chores::{Report, shown};
use crate::chain::chain;
use crate::decide::chores;
use crate::facts::chores::HookFile;

/// The libraries that hooks are to find, where this program must not find them: it may be the host's, and its loader
/// would take those of the snap for its own.
const LIBRARIES: &str = "IPGUARD_HOOK_LIBRARY_PATH";

/// Runs the hooks of a folder, each for that time at most; `false` when we were stopped meanwhile.
pub fn run(
    folder: &Path,
    time: Duration,
    environment: &[(OsString, OsString)],
    signals: &StopSignals,
    report: &mut Report,
) -> bool {
    let found = match list(folder) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return true,
        Err(error) => {
            report.failed(format!("{}: cannot be listed: {error}", shown(folder)));
            return true;
        }
    };
    let environment = of_hooks(environment);
    for hook in chores::hooks(found) {
        let program = folder.join(&hook.name);
        let name = shown(Path::new(&hook.name));
        let command = Command { program, arguments: Vec::new(), keeps: &[] };
        let child = Child::spawn_with(command.clone(), &environment, Instant::now() + time);
        let ended = match child.map(|child| signals.wait(child)) {
            Ok(Waited::Ended(ended)) => ended,
            Ok(Waited::Stopped) => {
                report.failed(format!("hook {name}: ended, because we were told to stop"));
                return false;
            }
            Err(error) => Err(error),
        };
        let outcome = ended.and_then(|output| {
            let said = [&output.stdout, &output.stderr].into_iter().flat_map(|text| text.lines());
            for line in said.map(str::trim_end).filter(|line| !line.is_empty()) {
                report.done(format!("hook {name}: {}", shown(Path::new(line))));
            }
            output.success(&command)
        });
        if let Err(error) = outcome {
            report.failed(format!("hook {name}: {}", chain(&error)));
        }
    }
    true
}

/// Whether there are any.
pub fn any(folder: &Path) -> bool {
    list(folder).is_ok_and(|found| !chores::hooks(found).is_empty())
}

fn list(folder: &Path) -> std::io::Result<Vec<HookFile>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A link that leads nowhere, and what went away meanwhile, is no hook.
        if let Ok(metadata) = std::fs::metadata(entry.path()) {
            let mode = metadata.permissions().mode();
            found.push(HookFile { name: entry.file_name(), regular: metadata.is_file(), mode });
        }
    }
    Ok(found)
}

/// Hooks see what we see, which is the environment of the snap; but not what was meant for us alone.
fn of_hooks(environment: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
    let ours =
        |name: &OsStr| ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", LIBRARIES].iter().any(|own| name == *own);
    let libraries = environment.iter().find(|(name, _)| name == LIBRARIES).map(|(_, value)| value.clone());
    let kept = environment.iter().filter(|(name, _)| !ours(name) && (libraries.is_none() || name != "LD_LIBRARY_PATH"));
    kept.cloned().chain(libraries.clone().map(|value| ("LD_LIBRARY_PATH".into(), value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_get_the_libraries_of_the_snap_and_nothing_of_ours() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let given = [
            pair("SNAP", "/snap/microk8s/1"),
            pair("NOTIFY_SOCKET", "/run/n"),
            pair("LD_LIBRARY_PATH", "/host"),
            pair(LIBRARIES, "/snap/microk8s/1/lib"),
        ];
        let expected = [pair("SNAP", "/snap/microk8s/1"), pair("LD_LIBRARY_PATH", "/snap/microk8s/1/lib")];
        assert_eq!(of_hooks(&given), expected);
        // Inside the snap the path is right already.
        assert_eq!(of_hooks(&given[..3]), [pair("SNAP", "/snap/microk8s/1"), pair("LD_LIBRARY_PATH", "/host")]);
    }
}
