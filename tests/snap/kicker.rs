//! The wrapper that replaces `apiservice-kicker`, with an ipguard that only says what it was asked for.

use std::fs;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Folder, Ran, eventually, program, repository, run};

/// A snap whose ipguard writes down its calls; `run` runs until it is ended, and says so.
fn snap() -> Folder {
    let snap = Folder::new();
    snap.write("actions/common/utils.sh", "use_snap_env() { :; }");
    let script = format!(
        "log='{0}'\necho \"$1 begins $$\" >> \"$log\"\n\
         [ \"$1\" = chores ] && exit 1\n\
         trap 'echo \"$1 was told to stop\" >> \"$log\"; kill $!; exit 0' TERM\n\
         sleep 300 >/dev/null 2>&1 & echo \"sleeps $!\" >> \"$log\"; wait",
        snap.path("log").display()
    );
    snap.script("bin/ipguard", &script);
    fs::create_dir_all(snap.path("data/var/lock")).expect("it is ours");
    snap
}

fn wrapper(snap: &Folder) -> Command {
    let mut command = program(repository("snap/local/microk8s/apiservice-kicker"));
    command.env("SNAP", &snap.0).env("SNAP_DATA", snap.path("data")).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(child: Child) -> Ran {
    child.wait_with_output().expect("it ends").into()
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.parse().expect("a process number"))
}

/// The process of the daemon, once it and a first pass of the chores have begun.
fn daemon(snap: &Folder) -> Pid {
    let log = || snap.read("log");
    eventually("both run", || log().contains("sleeps ") && log().contains("chores begins"));
    pid(log().lines().find_map(|line| line.strip_prefix("run begins ")).expect("it began"))
}

#[test]
fn where_the_loop_did_not_run_the_wrapper_ends_well_and_starts_nothing() {
    for lock in ["clustered.lock", "low-memory-guard.lock"] {
        let snap = snap();
        snap.write(&format!("data/var/lock/{lock}"), "");
        let ran = run(&mut wrapper(&snap));
        assert_eq!((ran.status, ran.stdout), (Some(0), format!("ipguard does not run here: {lock}\n")));
        assert_eq!(snap.read("log"), "");
    }
}

#[test]
fn a_stop_ends_the_daemon_by_its_own_means_and_the_wrapper_well() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let snap = snap();
        snap.write("data/var/lock/cni-loaded", "");
        let child = wrapper(&snap).spawn().expect("bash is there");
        let process = daemon(&snap);
        kill(pid(&child.id().to_string()), signal).expect("it runs");
        let ran = ended(child);
        assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
        assert!(snap.read("log").ends_with("run was told to stop\n"), "{}", snap.read("log"));
        assert!(kill(process, None).is_err(), "the daemon is left");
    }
}

#[test]
fn a_daemon_that_ends_by_itself_takes_the_wrapper_with_it_so_that_both_are_brought_back() {
    let snap = snap();
    snap.write("data/var/lock/cni-loaded", "");
    let child = wrapper(&snap).spawn().expect("bash is there");
    kill(daemon(&snap), Signal::SIGKILL).expect("it runs");
    let ran = ended(child);
    // What the stand-in started has nobody else to end it.
    let sleeps = snap.read("log").lines().find_map(|line| line.strip_prefix("sleeps ").map(pid)).expect("it slept");
    kill(sleeps, Signal::SIGKILL).expect("it runs");
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("ipguard run has ended by itself"), "{}", ran.stderr);
}

#[test]
fn a_node_without_its_network_is_looked_after_every_five_seconds() {
    let snap = snap();
    let child = wrapper(&snap).spawn().expect("bash is there");
    // A minute between two passes would not bring three within the patience of this test; failing ones go on.
    eventually("a third pass", || snap.read("log").matches("chores begins").count() >= 3);
    kill(pid(&child.id().to_string()), Signal::SIGTERM).expect("it runs");
    assert_eq!(ended(child).status, Some(0));
}
