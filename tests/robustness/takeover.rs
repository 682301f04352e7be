//! `takeover`, `release`, and the daemon that keeps the other guard off - with service managers that get in the way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::host::{A_WHILE, Host, SOON, Setup, expect, is_calm, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::guard::Printed;
use crate::stage::services;
use crate::stage::timeline::{Timeline, monotonic};

pub(crate) const CASES: &[Case] = &[
    Case { name: "takeover::there-and-back-twice", play: there_and_back, patience: 60 },
    Case { name: "takeover::its-chores-come-along", play: chores, patience: 40 },
    Case { name: "takeover::the-guard-stays-on-where-ipguard-does-not-start", play: not_started, patience: 40 },
    Case { name: "takeover::snap-fails-and-the-daemon-does-it", play: snap_fails, patience: 90 },
    Case { name: "takeover::snap-says-change-in-progress", play: change_in_progress, patience: 40 },
    Case { name: "takeover::killed-while-snap-hangs", play: killed, patience: 60 },
    Case { name: "takeover::turned-on-again", play: turned_on_again, patience: 90 },
    Case { name: "takeover::turned-on-again-while-the-daemon-was-down", play: while_down, patience: 60 },
    Case { name: "takeover::without-an-order-nothing-is-touched", play: no_order, patience: 60 },
    Case { name: "takeover::an-order-that-makes-no-sense", play: damaged_order, patience: 60 },
    Case { name: "takeover::observing-only", play: observing, patience: 60 },
    Case { name: "takeover::released-under-a-running-daemon", play: released, patience: 60 },
    Case { name: "takeover::a-stopped-node-stays-stopped", play: stopped_node, patience: 40 },
    Case { name: "takeover::the-hook-that-removes-ipguards-own-snap", play: own_snap, patience: 40 },
    Case { name: "takeover::where-it-makes-no-sense", play: refused, patience: 40 },
];

pub(crate) const KICKER: &str = "snap.microk8s.daemon-apiserver-kicker.service";
const OWN: &str = "ipguard.service";
const OFF: &str = "snap stop --disable microk8s.daemon-apiserver-kicker";
pub(crate) const ON: &str = "snap start --enable microk8s.daemon-apiserver-kicker";
const OWN_ON: &str = "systemctl enable --now ipguard.service";
const OWN_OFF: &str = "systemctl disable --now ipguard.service";

/// A host on which MicroK8s' own guard is on, and ipguard's unit installed.
pub(crate) fn host(timeline: &Timeline) -> Result<Host> {
    let host = Host::new(timeline)?;
    for unit in [KICKER, OWN] {
        fs::create_dir_all(host.tree.path("etc/systemd/system"))?;
        fs::write(host.tree.path("etc/systemd/system").join(unit), "[Service]\n")?;
    }
    manage(&host, ON)?;
    fs::remove_file(host.tree.path("calls.log"))?;
    Ok(host)
}

/// What somebody else does with the service manager.
pub(crate) fn manage(host: &Host, line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = host.tree.path("usr/bin").join(words.next().unwrap_or_default());
    let done = Command::new(&program).args(words).env_clear().output()?;
    expect(done.status.success(), format!("{line}: {}", String::from_utf8_lossy(&done.stderr)))
}

fn order(host: &Host) -> PathBuf {
    host.state_folder().join("takeover.json")
}

/// Enabled and active, or neither.
pub(crate) fn is_on(host: &Host, unit: &str) -> (bool, bool) {
    let active = fs::read_to_string(host.tree.path(&format!("state/{unit}.active"))).unwrap_or_default();
    let enabled = host.tree.path("etc/systemd/system/multi-user.target.wants").join(unit).is_symlink();
    (enabled, active.trim() == "active")
}

/// Every call that changes something, in order.
fn changes(host: &Host) -> Result<Vec<String>> {
    let calls = services::calls(host.tree.root())?;
    let changes = calls.iter().filter(|call| !call.only_asks());
    Ok(changes.map(|call| format!("{} {}", call.program, call.arguments.join(" "))).collect())
}

/// The last call that changed something, and how many of its kind there were.
fn count(host: &Host, line: &str) -> usize {
    changes(host).unwrap_or_default().iter().filter(|call| *call == line).count()
}

fn works(printed: &Printed, lines: &[&str]) -> Result<()> {
    expect(printed.status.success(), format!("{}{}", printed.stdout, printed.stderr))?;
    let said: Vec<&str> = printed.stdout.lines().collect();
    same("lines", &said.len(), &lines.len())?;
    for (said, wanted) in said.iter().zip(lines) {
        expect(said.contains(wanted), format!("{wanted:?} in {said:?}"))?;
    }
    Ok(())
}

fn fails(printed: &Printed, words: &str) -> Result<()> {
    same("exit status", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains(words), format!("{words:?} in {:?}", printed.stderr))
}

fn there_and_back(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    let lines = ["ipguard.service: enabled and started", "recorded in", "kicker.service: stopped and disabled"];
    works(&host.once(&["takeover"])?, &lines)?;
    same("calls", &changes(&host)?, &vec![OWN_ON.to_owned(), OFF.to_owned()])?;
    same("kicker", &is_on(&host, KICKER), &(false, false))?;
    same("ipguard", &is_on(&host, OWN), &(true, true))?;
    same("mode of the order", &(fs::metadata(order(&host))?.permissions().mode() & 0o777), &0o600)?;
    let first = fs::read_to_string(order(&host))?;
    let again = ["enabled and started already", "recorded already", "stopped and disabled already"];
    works(&host.once(&["takeover"])?, &again)?;
    same("the order", &fs::read_to_string(order(&host))?, &first)?;

    let lines = ["is withdrawn", "ipguard.service: stopped and disabled", "kicker.service: enabled and started"];
    works(&host.once(&["release"])?, &lines)?;
    same("calls", &changes(&host)?.split_off(4), &vec![OWN_OFF.to_owned(), ON.to_owned()])?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    same("ipguard", &is_on(&host, OWN), &(false, false))?;
    expect(!order(&host).exists(), "no order")?;
    let again = ["no takeover was ordered", "stopped and disabled already", "enabled and started already"];
    works(&host.once(&["release"])?, &again)?;
    same("reissues", &host.reissues(), &0)
}

/// Where the units for the kicker's other work are installed, they are on exactly while it is off.
fn chores(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    let units = ["ipguard-microk8s-chores.path", "ipguard-microk8s-chores.timer"];
    for unit in units {
        fs::write(host.tree.path("etc/systemd/system").join(unit), "[Unit]\n")?;
    }
    let on = ["ipguard.service: enabled", "recorded in", "kicker.service: stopped", "chores.path: enabled and started"];
    works(&host.once(&["takeover"])?, &[&on[..], &["chores.timer: enabled and started"]].concat())?;
    works(&host.once(&["takeover"])?, &["already"; 5])?;
    let calls: Vec<String> = units.iter().map(|unit| format!("systemctl enable --now {unit}")).collect();
    same("calls", &changes(&host)?[2..4].to_vec(), &calls)?;
    let off = ["is withdrawn", "ipguard.service: stopped", "chores.path: stopped and disabled"];
    works(
        &host.once(&["release"])?,
        &[&off[..], &["chores.timer: stopped and disabled", "kicker.service: en"]].concat(),
    )?;
    for unit in units {
        expect(!host.tree.path("etc/systemd/system/timers.target.wants").join(unit).is_symlink(), unit)?;
        expect(!host.tree.path("etc/systemd/system/paths.target.wants").join(unit).is_symlink(), unit)?;
    }
    Ok(())
}

/// A guard that does not start is worse than the one that runs.
fn not_started(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.replace_stand_in(
        "systemctl",
        "case $1 in enable) echo 'Job for ipguard.service failed.' >&2; exit 1 ;; esac\nexec \"$real\" \"$@\"",
    )?;
    fails(&host.once(&["takeover"])?, "Job for ipguard.service failed")?;
    same("calls", &changes(&host)?, &Vec::new())?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    expect(!order(&host).exists(), "no order")
}

/// The order stands whatever snapd says, and the daemon goes on where the command had to give up.
fn snap_fails(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.replace_stand_in("snap", "echo 'error: cannot communicate with server' >&2; exit 1")?;
    let daemon = host.daemon()?;
    fails(&host.once(&["takeover"])?, "cannot communicate with server")?;
    expect(order(&host).exists(), "the order stands")?;
    is_calm(&host, &daemon)?;
    host.restore_stand_in("snap")?;
    until("the daemon turns it off", Duration::from_secs(45), || is_on(&host, KICKER) == (false, false))?;
    host.nothing_happens(A_WHILE)?;
    same("turned off", &count(&host, OFF), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn change_in_progress(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    let script = "if [ ! -e \"$root/state/refused\" ]; then : > \"$root/state/refused\"\n\
        echo 'error: snap \"microk8s\" has \"refresh-snap\" change in progress' >&2; exit 10; fi\n\
        exec \"$real\" \"$@\"";
    host.replace_stand_in("snap", script)?;
    let lines = ["enabled and started", "recorded in", "stopped and disabled"];
    works(&host.once(&["takeover"])?, &lines)?;
    expect(host.tree.path("state/refused").exists(), "it was refused once")
}

/// The order is on the disk before the other guard is touched; the same command goes on where it was cut short.
fn killed(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.replace_stand_in("snap", ": > \"$root/state/asked\"\nexec sleep 1000")?;
    let mut child = Command::new(env!("CARGO_BIN_EXE_ipguard"))
        .args(["takeover", "--root"])
        .arg(host.tree.root())
        .env_clear()
        .stdout(std::process::Stdio::null())
        .spawn()?;
    until("snap is called", SOON, || host.tree.path("state/asked").exists())?;
    child.kill()?;
    child.wait()?;
    expect(order(&host).exists(), "the order stands")?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    host.restore_stand_in("snap")?;
    works(&host.once(&["takeover"])?, &["started already", "recorded already", "stopped and disabled"])?;
    same("kicker", &is_on(&host, KICKER), &(false, false))
}

/// `microk8s start` enables everything. Once is answered at once; again and again is not a loop.
fn turned_on_again(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    same("turned off", &count(&host, OFF), &1)?;
    manage(&host, ON)?;
    until("it is off again", SOON, || is_on(&host, KICKER) == (false, false))?;
    host.await_said("code=guard-enabled")?;
    host.await_said("stop and disable apiserver-kicker (guard-enabled): stopped and disabled")?;
    host.nothing_happens(A_WHILE)?;
    same("turned off", &count(&host, OFF), &2)?;
    // While it is on, nothing is done; behind that, what there is to do.
    manage(&host, ON)?;
    host.add("198.51.100.7")?;
    host.await_said("again and again")?;
    host.await_said("another-guard-active")?;
    expect(!host.covers("198.51.100.7"), "nothing is made while the other guard runs")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    same("kicker", &is_on(&host, KICKER), &(false, false))?;
    same("turned off", &count(&host, OFF), &3)?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// As after a boot that has started it again.
fn while_down(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    manage(&host, ON)?;
    let daemon = host.daemon()?;
    until("it is off again", SOON, || is_on(&host, KICKER) == (false, false))?;
    host.nothing_happens(A_WHILE)?;
    same("turned off", &count(&host, OFF), &2)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn no_order(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_said("another-guard-active")?;
    manage(&host, OFF)?;
    manage(&host, ON)?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    same("calls", &changes(&host)?, &vec![OFF.to_owned(), ON.to_owned()])?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    expect(!host.covers("198.51.100.7"), "nothing is made while the other guard runs")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Whether the guard is to stay off is not known then: it is not touched, and somebody is told what to do.
fn damaged_order(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    fs::write(order(&host), "{\"version\": 9}")?;
    manage(&host, ON)?;
    let daemon = host.daemon()?;
    host.await_said("run `ipguard takeover` or `ipguard release`")?;
    host.nothing_happens(A_WHILE)?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    host.once(&["takeover"])?;
    same("kicker", &is_on(&host, KICKER), &(false, false))?;
    manage(&host, ON)?;
    until("it is off again", SOON, || is_on(&host, KICKER) == (false, false))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn observing(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    fs::write(host.guard.config(), format!("observe = true\n{}", Setup::default().config))?;
    manage(&host, ON)?;
    let before = changes(&host)?;
    let daemon = host.daemon()?;
    host.await_said("observing only, not done: stop and disable apiserver-kicker")?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    same("calls", &changes(&host)?, &before)?;
    // Nobody would do the work of the guard that is turned off.
    fails(&host.once(&["takeover"])?, "observe = true")?;
    same("calls", &changes(&host)?, &before)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// What is turned on by a release stays on, however the daemon is still around.
fn released(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    let daemon = host.daemon()?;
    works(&host.once(&["release"])?, &["is withdrawn", "stopped and disabled", "enabled and started"])?;
    host.nothing_happens(A_WHILE)?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    same("turned off", &count(&host, OFF), &1)?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The other guard would start the API server that somebody has stopped.
fn stopped_node(timeline: &Timeline) -> Result<()> {
    let host = host(timeline)?;
    host.once(&["takeover"])?;
    fs::write(host.tree.data("var/lock/stopped.lock"), "")?;
    works(&host.once(&["release"])?, &["is withdrawn", "stopped and disabled", "left off, as the node is stopped"])?;
    same("kicker", &is_on(&host, KICKER), &(false, false))?;
    fs::remove_file(host.tree.data("var/lock/stopped.lock"))?;
    works(&host.once(&["release"])?, &["no takeover", "stopped and disabled already", "enabled and started"])?;
    same("kicker", &is_on(&host, KICKER), &(true, true))
}

/// snapd refuses to touch the services of a snap whose hook runs; the other guard is given back all the same.
fn own_snap(timeline: &Timeline) -> Result<()> {
    let mut host = host(timeline)?;
    let unit = "snap.ipguard.daemon.service";
    fs::write(host.tree.path("etc/systemd/system").join(unit), "[Service]\n")?;
    host.guard.environment.push(("SNAP_INSTANCE_NAME".into(), "ipguard".into()));
    let script = "case $* in\n\
        'start --enable ipguard.daemon') exec \"$root/usr/bin/systemctl\" enable --now snap.ipguard.daemon.service ;;\n\
        *ipguard.daemon) echo 'error: snap \"ipguard\" has \"remove-snap\" change in progress' >&2; exit 10 ;; esac\n\
        exec \"$real\" \"$@\"";
    host.replace_stand_in("snap", script)?;
    works(
        &host.once(&["takeover"])?,
        &["snap.ipguard.daemon.service: enabled", "recorded in", "kicker.service: stopped"],
    )?;
    same("ipguard", &is_on(&host, unit), &(true, true))?;
    // The hook withdraws only what its own snap was told: not what the host's ipguard was told since, ...
    host.guard.environment.retain(|(name, _)| name != "SNAP_INSTANCE_NAME");
    works(&host.once(&["takeover"])?, &["ipguard.service: enabled", "recorded in", "stopped and disabled already"])?;
    host.guard.environment.push(("SNAP_INSTANCE_NAME".into(), "ipguard".into()));
    let calls = changes(&host)?.len();
    works(&host.once(&["release", "--own"])?, &["ipguard.service has taken over, so there is nothing to give back"])?;
    same("calls", &changes(&host)?.len(), &calls)?;
    expect(order(&host).exists(), "the order of the host's ipguard")?;
    works(&host.once(&["takeover"])?, &["already", "recorded in", "already"])?;
    works(
        &host.once(&["release", "--own"])?,
        &["is withdrawn", "left to snapd", "kicker.service: enabled and started"],
    )?;
    same("kicker", &is_on(&host, KICKER), &(true, true))?;
    // ... and not what somebody turned off without any takeover.
    manage(&host, OFF)?;
    works(&host.once(&["release", "--own"])?, &["no takeover was ordered, so there is nothing to give back"])?;
    same("kicker", &is_on(&host, KICKER), &(false, false))?;
    // An order that nobody can read was one: the node is not left without any guard.
    fs::write(order(&host), "")?;
    works(&host.once(&["release", "--own"])?, &["is withdrawn", "left to snapd", "kicker.service: enabled and started"])
}

fn refused(timeline: &Timeline) -> Result<()> {
    let mut host = host(timeline)?;
    // A node without the service, as some versions have none.
    fs::remove_file(host.tree.path("etc/systemd/system").join(KICKER))?;
    works(&host.once(&["takeover"])?, &["enabled and started", "recorded in", "not installed here"])?;
    works(&host.once(&["release"])?, &["is withdrawn", "stopped and disabled", "not installed here"])?;
    same("calls", &changes(&host)?, &vec![OWN_ON.to_owned(), OWN_OFF.to_owned()])?;
    host.guard.environment.push(("SNAP_INSTANCE_NAME".into(), "microk8s".into()));
    host.guard.environment.push(("SNAP_DATA".into(), "/var/snap/microk8s/current".into()));
    for command in ["takeover", "release"] {
        fails(&host.once(&[command])?, "inside the snap microk8s")?;
    }
    host.guard.environment.clear();
    services::set_active(host.tree.root(), Some(monotonic()))?;
    fs::remove_dir_all(host.tree.path("var/snap/microk8s"))?;
    for command in ["takeover", "release"] {
        fails(&host.once(&[command])?, "no Kubernetes distribution was found here")?;
    }
    same("calls", &changes(&host)?.len(), &2)
}
