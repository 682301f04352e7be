//! A private network namespace, and the `ip` command in it.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getgid, getuid};

/// Enters a network namespace of our own; must run before there is a second thread. Says why it cannot.
pub(crate) fn enter() -> Result<(), String> {
    if !Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return Err("there is no ip command".to_owned());
    }
    // Root needs no user namespace, and without one it may force the size of socket buffers.
    if getuid().is_root() && unshare(CloneFlags::CLONE_NEWNET).is_ok() {
        return empty();
    }
    let (user, group) = (getuid(), getgid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
        .map_err(|errno| format!("user and network namespaces are not allowed here: {errno}"))?;
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|error| format!("/proc/self/{file}: {error}"))
    };
    // Without this an unprivileged process may not map its group (user_namespaces(7)).
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {user} 1"))?;
    write("gid_map", format!("0 {group} 1"))?;
    empty()
}

/// Leaves the present namespace for a new, empty one with the loopback link up.
pub(crate) fn fresh() {
    unshare(CloneFlags::CLONE_NEWNET).expect("it was allowed a moment ago");
    empty().expect("the loopback link is there");
}

fn empty() -> Result<(), String> {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    if !up.is_ok_and(|status| status.success()) {
        return Err("the loopback link of the new namespace cannot be set up".to_owned());
    }
    // Duplicate detection takes seconds and proves nothing here.
    for scope in ["all", "default"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0");
    }
    Ok(())
}

/// Runs `ip` commands, one a line, all of which must succeed.
pub(crate) fn ip(commands: &str) {
    let output = batch(&["-batch", "-"], commands);
    assert!(output.status.success(), "{}\n{commands}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `ip` commands of which the kernel may refuse any; how many it did.
pub(crate) fn try_ip(commands: &str) -> usize {
    let output = batch(&["-force", "-batch", "-"], commands);
    String::from_utf8_lossy(&output.stderr).matches("Command failed").count()
}

/// What an `ip` command prints.
pub(crate) fn printed(arguments: &str) -> Vec<u8> {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn batch(arguments: &[&str], commands: &str) -> std::process::Output {
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip runs");
    let mut input = child.stdin.take().expect("it is piped");
    // A batch that stops at a refused command closes the pipe early; its status tells.
    let _ = input.write_all(commands.as_bytes());
    drop(input);
    child.wait_with_output().expect("ip ends")
}

/// Sets a sysctl of the namespace's IPv4.
pub(crate) fn promote_secondaries(on: bool) {
    std::fs::write("/proc/sys/net/ipv4/conf/all/promote_secondaries", if on { "1" } else { "0" })
        .expect("sysctls of the namespace are ours");
}
