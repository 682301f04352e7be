//! The hooks of ipguard's own snap, with the real ipguard and a snapctl that answers from a file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use nix::unistd::Uid;

use crate::{Folder, Ran, program, repository, run};

/// An installed snap: `$SNAP` with the real binary, and snapctl first in the path.
fn snap() -> Folder {
    let snap = Folder::new();
    for folder in ["snap/bin", "data", "common"] {
        fs::create_dir_all(snap.path(folder)).expect("it is ours");
    }
    symlink(env!("CARGO_BIN_EXE_ipguard"), snap.path("snap/bin/ipguard")).expect("it is ours");
    let folder = snap.0.display();
    let snapctl = format!(
        "echo \"$@\" >> '{folder}/calls'\ncase $1 in\n\
         get) [ ! -e '{folder}/broken' ] && cat '{folder}/kept' ;;\n\
         services) printf 'Service Startup Current Notes\\nipguard.daemon enabled %s -\\n' \"$(cat '{folder}/state')\" ;;\n\
         restart) ;;\n*) exit 64 ;;\nesac"
    );
    snap.script("path/snapctl", &snapctl);
    snap.write("kept", "{}");
    snap.write("state", "active");
    snap
}

fn hook(snap: &Folder, name: &str) -> Command {
    let mut command = program(repository("snap/hooks").join(name));
    command
        .env("PATH", format!("{}:/usr/bin:/bin", snap.path("path").display()))
        .env("SNAP", snap.path("snap"))
        .env("SNAP_DATA", snap.path("data"))
        .env("SNAP_COMMON", snap.path("common"))
        .env("SNAP_INSTANCE_NAME", "ipguard");
    command
}

fn configure(snap: &Folder, kept: &str) -> Ran {
    snap.write("kept", kept);
    let _ = fs::remove_file(snap.path("calls"));
    run(&mut hook(snap, "configure"))
}

#[test]
fn what_is_set_becomes_the_configuration_that_the_program_reads() {
    let snap = snap();
    let ran = configure(
        &snap,
        r#"{"settle": {"quiet": "7s"}, "chores": {"hooks": false}, "certificate": {"extra-sans": ["a.example"]}}"#,
    );
    assert_eq!((ran.status, &*ran.stdout, &*ran.stderr), (Some(0), "", ""));
    let calls = snap.read("calls");
    let asked = "get -d profile observe addresses certificate settle restart probe service chores log\n";
    assert_eq!(calls, format!("{asked}services ipguard.daemon\nrestart ipguard.daemon\n"));
    // By the program of the snap, without --config.
    let mut show = program(snap.path("snap/bin/ipguard"));
    show.args(["config", "show"]).env("SNAP_DATA", snap.path("data")).env("SNAP_INSTANCE_NAME", "ipguard");
    let shown = run(&mut show).stdout;
    for line in ["quiet = \"7s\"", "hooks = false", "extra_sans = [\"a.example\"]", "permissions = true"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }

    configure(&snap, &snap.read("kept"));
    assert_eq!(snap.read("calls"), asked, "nothing changed, so nothing is restarted");
    snap.write("state", "inactive");
    assert_eq!(configure(&snap, "{}").status, Some(0));
    assert_eq!(snap.read("calls"), format!("{asked}services ipguard.daemon\n"), "what is stopped stays so");
    let left: Vec<_> = fs::read_dir(snap.path("data")).expect("it is there").collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_wrong_value_is_refused_with_its_reason_and_the_file_stays() {
    let snap = snap();
    assert_eq!(configure(&snap, r#"{"settle": {"quiet": "7s"}}"#).status, Some(0));
    let before = snap.read("data/ipguard.toml");
    for (kept, reason) in [
        (r#"{"settle": {"promotion-hold": "soon"}}"#, "`settle.promotion-hold` must be a duration"),
        (r#"{"restart": {"limit": 0}}"#, "`restart.limit` must be a number from 1 to 1000, not 0"),
        (r#"{"log": {"levle": "debug"}}"#, "did you mean `level`?"),
        (r#"{"profile": "k9s"}"#, "there is no profile \"k9s\""),
        ("not json", "not the JSON document"),
    ] {
        let ran = configure(&snap, kept);
        assert_ne!(ran.status, Some(0), "{kept}");
        assert!(ran.stderr.contains(reason), "{kept}: {}", ran.stderr);
        assert!(!snap.read("calls").contains("restart ipguard"), "{kept}");
        assert_eq!(snap.read("data/ipguard.toml"), before, "{kept}");
    }
    snap.write("broken", "");
    assert_ne!(configure(&snap, "{}").status, Some(0), "snapctl failed");
    assert_eq!(snap.read("data/ipguard.toml"), before);
}

#[test]
fn a_refresh_to_a_version_that_refuses_the_configuration_is_refused() {
    let snap = snap();
    assert_eq!(run(&mut hook(&snap, "post-refresh")).status, Some(0), "none yet");
    assert_eq!(configure(&snap, "{}").status, Some(0));
    assert_eq!(run(&mut hook(&snap, "post-refresh")).status, Some(0));
    snap.write("data/ipguard.toml", "[settle]\nloud = \"5s\"\n");
    let ran = run(&mut hook(&snap, "post-refresh"));
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("unknown key \"loud\" in [settle]"), "{}", ran.stderr);
}

/// The hooks of the beginning and the end, on a host of their own: both look at `/var/lib`.
#[test]
fn removing_leaves_the_state_of_others_and_takes_ours_even_when_the_release_fails() {
    if !Uid::effective().is_root() {
        crate::skipped::skipped("needs root for a mount namespace");
        return;
    }
    for (before, releases, ordered) in
        [(false, true, false), (true, true, false), (false, false, false), (false, true, true)]
    {
        let snap = snap();
        fs::remove_file(snap.path("snap/bin/ipguard")).expect("it is ours");
        let script = format!("echo \"$@\" >> '{}'; exit {}", snap.path("asked").display(), i32::from(!releases));
        snap.script("snap/bin/ipguard", &script);
        let made = if before { "mkdir /var/lib/ipguard; " } else { "" };
        // What the release has left is the order of an ipguard outside the snap.
        let order = if ordered { "takeover.json" } else { "state.json" };
        let hooks = repository("snap/hooks");
        let hook = |name: &str| Path::new(&hooks).join(name).display().to_string();
        let script = format!(
            "mount -t tmpfs none /var/lib && mount -t tmpfs none /run && {made}'{0}' && mkdir -p /var/lib/ipguard && \
             touch /var/lib/ipguard/{order} && '{1}' && ls /var/lib",
            hook("install"),
            hook("remove")
        );
        let mut command = program("/usr/bin/unshare");
        command.args(["--mount", "--propagation", "private", "/bin/sh", "-ec", &script]);
        command.env("SNAP", snap.path("snap")).env("SNAP_COMMON", snap.path("common"));
        let ran = run(&mut command);
        assert_eq!(
            (ran.status, &*ran.stdout),
            (Some(0), if before || ordered { "ipguard\n" } else { "" }),
            "{}",
            ran.stderr
        );
        assert_eq!(snap.read("asked"), "release --own\n");
        assert_eq!(ran.stderr.is_empty(), releases, "{}", ran.stderr);
    }
}
