//! The demo where it cannot be shown: it says why, what helps, and that it failed.
//!
//! `.ci/run` plays it where it can, and fails when that takes longer than a minute.

mod skipped;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use skipped::skipped;

/// Forbids further namespaces inside a user namespace of its own, and becomes the program in it.
const FORBID: &str =
    "echo 0 > /proc/sys/user/max_net_namespaces && echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\"";

/// The demo as this build made it; made now if only this test was asked for.
fn demo() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let folder = test.parent().and_then(Path::parent).expect("below the folder of the build");
    let demo = folder.join("examples/demo");
    if !demo.exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "demo"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        build.args(folder.ends_with("release").then_some("--release"));
        assert!(build.status().expect("cargo runs").success(), "the demo does not build");
    }
    demo
}

fn without_namespaces(program: &Path, temporary: &Path) -> std::io::Result<Output> {
    Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", FORBID])
        .arg(program)
        .env("TMPDIR", temporary)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
}

#[test]
fn where_namespaces_are_forbidden_the_demo_says_so() {
    let temporary = std::env::temp_dir().join(format!("ipguard-demo-{}", std::process::id()));
    std::fs::create_dir_all(&temporary).expect("the temporary folder is writable");
    // The way to forbid them is itself not open everywhere.
    let allowed = without_namespaces(Path::new("/bin/true"), &temporary);
    if !allowed.as_ref().is_ok_and(|output| output.status.success()) {
        std::fs::remove_dir_all(&temporary).expect("it is ours");
        return skipped(&format!("no user namespace to forbid namespaces in: {allowed:?}"));
    }
    let output = without_namespaces(&demo(), &temporary).expect("it ran a moment ago");
    let left = std::fs::read_dir(&temporary).expect("it is ours").count();
    std::fs::remove_dir_all(&temporary).expect("it is ours");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "nothing was played");
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "The demo needs a network namespace of its own, and this machine permits none: \
         unshare of a user and a network namespace: ENOSPC: No space left on device.\n\
         Without root that takes unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian),\n\
         kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces above 0; in a container,\n\
         --cap-add SYS_ADMIN --cap-add NET_ADMIN. It also needs `ip` (iproute2).\n"
    );
    assert_eq!(left, 0, "it left something behind");
}
