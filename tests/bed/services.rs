//! The log of the service stand-ins, and their scripts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::stage::Result;
use crate::stage::services::{CLUSTER_AGENT, KUBELITE, calls, install, parse, restarts, set_active};
use crate::stage::timeline::monotonic;
use crate::stage::tree::{Tree, TreeSpec};

#[test]
fn restarts_are_recognised_by_snap_name_and_unit_name() -> Result<()> {
    assert_eq!(parse("12000000 snap restart microk8s.daemon-kubelite")?.restarted(), Some(KUBELITE));
    assert_eq!(parse("1 systemctl try-restart snap.microk8s.daemon-kubelite")?.restarted(), Some(KUBELITE));
    assert_eq!(parse("1 snap restart microk8s")?.restarted(), None, "the whole snap is not a service of ours");
    assert_eq!(parse("1 snap restart microk8s.daemon-containerd")?.restarted(), None);
    Ok(())
}

/// Runs a stand-in as ipguard does: by path, without a shell, with a clean environment.
fn run(root: &Path, program: &str, arguments: &[&str]) -> Result<(bool, String)> {
    let output = Command::new(root.join("usr/bin").join(program)).env_clear().args(arguments).output()?;
    Ok((output.status.success(), String::from_utf8(output.stdout)?))
}

#[test]
fn the_scripts_answer_as_systemd_and_snapd_do() -> Result<()> {
    let tree = Tree::create(&TreeSpec::default(), false)?;
    let root = tree.root();
    install(root)?;
    let show =
        ["show", "--property=Id,ActiveState,SubState,MainPID,ExecMainStartTimestampMonotonic", KUBELITE, "ssh.service"];
    let (ok, printed) = run(root, "systemctl", &show)?;
    let dead = |unit| {
        format!("Id={unit}\nActiveState=inactive\nSubState=dead\nMainPID=0\nExecMainStartTimestampMonotonic=0\n")
    };
    assert!(ok);
    assert_eq!(printed, format!("{}\n{}", dead(KUBELITE), dead("ssh.service")));

    let started = Duration::from_secs(7);
    set_active(root, Some(started))?;
    let (_, printed) = run(root, "systemctl", &show[..3])?;
    assert!(
        printed.contains("ActiveState=active\nSubState=running\nMainPID=0\nExecMainStartTimestampMonotonic=7000000\n"),
        "{printed}"
    );

    let before = monotonic();
    assert!(run(root, "snap", &["restart", "microk8s.daemon-kubelite"])?.0);
    let (_, printed) = run(root, "systemctl", &show[..3])?;
    let since: u64 = printed.trim_end().rsplit('=').next().unwrap_or_default().parse()?;
    // /proc/uptime has hundredths.
    let since = Duration::from_micros(since) + Duration::from_millis(20);
    assert!(since >= before && since <= monotonic() + Duration::from_millis(40), "{before:?} {since:?}");
    assert_eq!(restarts(root), 1);

    assert!(!run(root, "snap", &["restart", "docker.dockerd"])?.0, "an unknown service");
    assert!(!run(root, "systemctl", &["daemon-reload"])?.0, "an unknown command");
    let calls = calls(root)?;
    assert_eq!(calls.len(), 6);
    assert_eq!(calls.iter().filter(|call| call.restarted() == Some(KUBELITE)).count(), 1);
    Ok(())
}

#[test]
fn what_is_not_running_is_not_started_by_try_restart() -> Result<()> {
    let tree = Tree::create(&TreeSpec::default(), false)?;
    install(tree.root())?;
    assert!(run(tree.root(), "systemctl", &["try-restart", CLUSTER_AGENT])?.0);
    let (_, printed) = run(tree.root(), "systemctl", &["show", CLUSTER_AGENT])?;
    assert!(printed.contains("ActiveState=inactive"), "{printed}");
    Ok(())
}
