//! The daemon is not alone: one-shots beside it, a lock that somebody keeps, and a state file that somebody broke.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};

use crate::host::{A_WHILE, Host, NODE, SOON, Usage, expect, is_calm, same, until};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::guard::Guard;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "sharing::check-beside-the-daemon", play: beside_the_daemon, patience: 60 },
    Case { name: "sharing::two-checks-at-once", play: two_checks, patience: 60 },
    Case { name: "sharing::one-inside-the-snap-and-one-beside-it", play: two_state_folders, patience: 60 },
    Case { name: "sharing::a-restart-that-is-under-way", play: under_way, patience: 60 },
    Case { name: "sharing::a-limit-that-kills-do-not-reset", play: limit_survives, patience: 90 },
    Case { name: "sharing::a-lock-that-is-kept", play: kept_lock, patience: 60 },
    Case { name: "sharing::a-state-file-that-is-damaged", play: damaged_state, patience: 80 },
    Case { name: "sharing::a-state-of-another-owner", play: foreign_state, patience: 40 },
    Case { name: "sharing::a-state-folder-that-others-may-write-to", play: open_folder, patience: 40 },
];

/// Both see the same missing address at the same moment: one of them makes the certificate.
fn beside_the_daemon(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    for round in 0..4 {
        let address = format!("198.51.{round}.7");
        let before = host.restarts()?;
        host.add(&address)?;
        sleep(Duration::from_millis(220 + 40 * round));
        let printed = host.once(&["check", "--apply"])?;
        same("exit status of check", &printed.status.code(), &Some(0))?;
        host.await_covered(&address)?;
        until("the cluster-agent is restarted", SOON, || host.restarts().is_ok_and(|now| now.1 > before.1))?;
        sleep(Duration::from_millis(1500));
        let after = host.restarts()?;
        let round = usize::try_from(round)?;
        same("reissues", &host.reissues(), &(round + 1))?;
        same("restarts of kubelite", &after.0, &0)?;
        restarted_once_or_together(after.1 - before.1)?;
    }
    let state = host.state();
    same("reissues that are remembered", &state["reissues"].as_array().map(Vec::len), &Some(4))?;
    same("names that are remembered as added", &state["added"].as_array().map(Vec::len), &Some(4))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Once is right. Two processes that ask for the cluster-agent's state within the same few milliseconds both see that it
/// has not been restarted yet; twice is harmless then, and more is not.
fn restarted_once_or_together(times: usize) -> Result<()> {
    expect((1..=2).contains(&times), format!("the cluster-agent is restarted once, not {times} times"))
}

fn two_checks(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    // A state is known, so that what is added is remembered.
    host.once(&["check", "--apply"])?;
    for round in 0..5_usize {
        let before = host.restarts()?.1;
        host.add(&format!("198.51.{round}.7"))?;
        let apply = |delay| {
            let (guard, timeline) = (host.guard.clone(), timeline.clone());
            thread::spawn(move || {
                sleep(Duration::from_millis(delay));
                guard.once(&["check", "--apply"], Duration::from_secs(30), &timeline)
            })
        };
        let both = [apply(0), apply(u64::try_from(round)? * 15)];
        for one in both {
            let printed = one.join().map_err(|_| "a check panicked")??;
            same("exit status of check", &printed.status.code(), &Some(0))?;
        }
        expect(host.covers(&format!("198.51.{round}.7")), "covered")?;
        sleep(Duration::from_millis(50));
        same("reissues", &host.reissues(), &(round + 1))?;
        restarted_once_or_together(host.restarts()?.1 - before)?;
        let state = host.state();
        same("reissues that are remembered", &state["reissues"].as_array().map(Vec::len), &Some(round + 1))?;
        same("restarts that are owed", &state["owed_restarts"].as_array().map(Vec::len), &Some(0))?;
    }
    host.pair_is_usable()
}

/// A hook inside the MicroK8s snap has a state folder of its own, and so a lock of its own. They meet at the folder of the
/// certificates: here both are held up in front of it, each with the same plan, and one of them makes the certificate.
/// Whoever else keeps that folder locked is waited for a moment and no longer: everybody may who can read it.
fn two_state_folders(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.once(&["check", "--apply"])?;
    host.add("198.51.100.7")?;
    let mut inside = host.guard.clone();
    let data = Path::new("/").join(host.tree.data("").canonicalize()?.strip_prefix(host.tree.root())?);
    inside.environment.push(("SNAP_INSTANCE_NAME".into(), "microk8s".into()));
    inside.environment.push(("SNAP_DATA".into(), data.into()));
    inside.environment.push(("SNAP_COMMON".into(), "/var/snap/microk8s/common".into()));
    let common = host.tree.path("var/snap/microk8s/common");
    fs::create_dir_all(&common)?;
    let certificates = || -> Result<Flock<fs::File>> {
        let folder = fs::File::open(host.tree.data("certs"))?;
        Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
    };
    let run = |guard: &Guard, arguments: &'static [&'static str]| {
        let (guard, notes) = (guard.clone(), timeline.clone());
        thread::spawn(move || guard.once(arguments, Duration::from_secs(30), &notes))
    };
    let held = certificates()?;
    let hook = run(&inside, &["check", "--apply", "--format", "microk8s"]);
    let beside = run(&host.guard, &["check", "--apply"]);
    // Whoever holds the lock of its state writes its number into it.
    let at_work = |folder: &Path| fs::metadata(folder.join("lock")).is_ok_and(|lock| lock.len() > 0);
    until("both have the lock of their own state", SOON, || {
        at_work(&common.join("ipguard")) && at_work(&host.state_folder())
    })?;
    drop(held);
    for one in [hook, beside] {
        let printed = one.join().map_err(|_| "a check panicked")??;
        same("exit status", &printed.status.code(), &Some(0))?;
    }
    expect(host.covers("198.51.100.7"), "covered")?;
    same("reissues", &host.reissues(), &1)?;
    same("restarts of kubelite", &host.restarts()?.0, &0)?;

    host.add("198.51.101.7")?;
    let held = certificates()?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status", &printed.status.code(), &Some(0))?;
    expect(printed.stderr.contains("is locked by another process"), "it is said")?;
    expect(host.covers("198.51.101.7"), "a lock that anybody can take does not stop it")?;
    drop(held);
    host.pair_is_usable()
}

/// snapd takes its time before it stops the service: nobody who looks meanwhile restarts it once more.
fn under_way(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in(
        "snap",
        "case $2 in *kubelite) echo > \"$root/state/called\"; sleep 4 ;; esac; \"$real\" \"$@\"",
    )?;
    let called = host.tree.path("state/called");
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("the restart is handed over", SOON, || called.exists())?;
    for arguments in [&["check", "--apply"][..], &["check", "--apply", "--format", "microk8s"]] {
        let printed = host.once(arguments)?;
        same("exit status", &printed.status.code(), &Some(0))?;
        match arguments {
            [_, _] => expect(printed.stdout.contains("restart-under-way"), &printed.stdout)?,
            _ => same("what the hook's caller is told", &printed.stdout.trim(), &"0")?,
        }
        same("the daemon's restart is still under way", &host.restarts()?.0, &0)?;
    }
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    // And the other way round: a one-shot restarts, and the daemon looks.
    fs::remove_file(&called)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    sleep(Duration::from_secs(2));
    let (guard, notes) = (host.guard.clone(), timeline.clone());
    let check = thread::spawn(move || guard.once(&["check", "--apply"], Duration::from_secs(30), &notes));
    until("the restart is handed over", SOON, || called.exists())?;
    let daemon = host.daemon()?;
    let printed = check.join().map_err(|_| "check panicked")??;
    same("exit status of check", &printed.status.code(), &Some(0))?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(2, 2))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Killed in the middle of each restart, and before its end could be written down: the third is one too many all the same.
fn limit_survives(timeline: &Timeline) -> Result<()> {
    let config = crate::host::CONFIG.replace("limit = 100\n", "limit = 2\n");
    let host = Host::with(&crate::host::Setup { config, ..crate::host::Setup::default() }, timeline)?;
    host.replace_stand_in("snap", "\"$real\" \"$@\"; case $2 in *kubelite) sleep 30 ;; esac")?;
    let mut before = NODE.to_owned();
    for round in 1..=2 {
        let daemon = host.daemon()?;
        let after = format!("192.0.2.{}", 10 + round);
        host.replace_node_address(&before, &after)?;
        until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == round))?;
        daemon.kill()?;
        let remembered = host.state()["restarts"].as_array().map(Vec::len);
        same("restarts that are remembered behind the kill", &remembered, &Some(round))?;
        before = after;
    }
    let daemon = host.daemon()?;
    host.replace_node_address(&before, "192.0.2.99")?;
    host.await_covered("192.0.2.99")?;
    host.await_said("restart-limit")?;
    host.nothing_happens(A_WHILE)?;
    same("restarts of kubelite", &host.restarts()?.0, &2)?;
    daemon.kill()
}

/// Twelve seconds: check gives up after ten, the daemon waits and then does its work.
fn kept_lock(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let file = fs::OpenOptions::new().read(true).write(true).open(host.state_folder().join("lock"))?;
    let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error)?;
    let began = Instant::now();
    timeline.note("step", "the lock is held");
    host.add("198.51.100.7")?;
    let (guard, notes) = (host.guard.clone(), timeline.clone());
    let check = thread::spawn(move || {
        let began = Instant::now();
        guard.once(&["check", "--apply"], Duration::from_secs(30), &notes).map(|printed| (printed, began.elapsed()))
    });
    sleep(Duration::from_secs(1));
    let cpu = Usage::cpu_over(&daemon, Duration::from_secs(3))?;
    expect(cpu < Duration::from_millis(150), format!("waits calmly: {cpu:?} of CPU in 3 s"))?;
    // Reading needs no lock.
    same("exit status of check without --apply", &host.once(&["check"])?.status.code(), &Some(2))?;
    let (printed, took) = check.join().map_err(|_| "check panicked")??;
    same("exit status of check", &printed.status.code(), &Some(1))?;
    expect((10.0..11.5).contains(&took.as_secs_f32()), format!("gives up after 10 s, not {took:?}"))?;
    expect(printed.stderr.contains("lock is held by"), format!("a clear error, not {:?}", printed.stderr))?;
    sleep(Duration::from_secs(12).saturating_sub(began.elapsed()));
    same("reissues", &host.reissues(), &0)?;
    drop(held);
    timeline.note("step", "the lock is free");
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// What stands in the state file's place must not matter: neither a reissue nor a restart comes of it, and following
/// addresses goes on.
fn damaged_state(timeline: &Timeline) -> Result<()> {
    type Damage = fn(&Path) -> Result<()>;
    let damages: [(&str, Damage); 7] = [
        ("garbage", |path| Ok(fs::write(path, b"\xff\xfe{]garbage\0")?)),
        ("truncated", |path| {
            let text = fs::read(path)?;
            Ok(fs::write(path, &text[..text.len() / 2])?)
        }),
        ("empty", |path| Ok(fs::write(path, "")?)),
        ("another form", |path| Ok(fs::write(path, "{\"version\": \"one\", \"accepted\": 7}")?)),
        ("unreadable", |path| Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o0))?)),
        ("a link", |path| {
            // A state that would make the node address a stranger's, if it were followed.
            let target = path.with_file_name("elsewhere");
            let text = fs::read_to_string(path)?.replace(NODE, "203.0.113.9");
            fs::write(&target, text)?;
            fs::remove_file(path)?;
            Ok(symlink(target, path)?)
        }),
        ("a folder", |path| {
            fs::remove_file(path)?;
            Ok(fs::create_dir(path)?)
        }),
    ];
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    for (round, (what, damage)) in damages.iter().enumerate() {
        expect(daemon.stop(SOON)?.success(), "ends well")?;
        timeline.note("step", format!("the state file becomes: {what}"));
        damage(&host.state_file())?;
        daemon = host.daemon()?;
        host.nothing_happens(Duration::from_millis(700))?;
        let address = format!("198.51.{round}.7");
        host.add(&address)?;
        host.await_covered(&address)?;
        host.await_restarts((0, round + 1)).map_err(|error| format!("{what}: {error}"))?;
        // The daemon writes it down behind the call.
        sleep(Duration::from_millis(300));
        daemon.check_alive()?;
        if *what == "a link" {
            let target = host.state_folder().join("elsewhere");
            expect(fs::read_to_string(&target)?.contains("203.0.113.9"), "the link's target is left alone")?;
            if host.state_file().is_symlink() {
                fs::remove_file(host.state_file())?;
                fs::rename(&target, host.state_file())?;
            }
        }
    }
    // Nothing can be put in the place of a folder; the daemon lives on, and says so.
    host.await_said("not a regular file")?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A state that belongs to somebody else could make any address the node's own.
fn foreign_state(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let text = fs::read_to_string(host.state_file())?;
    fs::write(host.state_file(), text.replace(NODE, "192.0.2.200"))?;
    if chown(host.state_file(), Some(4242), Some(4242)).is_err() {
        return skip("needs root to give a file to somebody else");
    }
    // Were it believed, the node address would have been replaced, and kubelite be restarted for it.
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    chown(host.state_folder(), Some(4242), Some(4242))?;
    let daemon = host.daemon()?;
    host.await_said("belongs to user 4242")?;
    host.nothing_happens(Duration::from_secs(1))?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status of check", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains("belongs to user 4242"), format!("a clear error, not {:?}", printed.stderr))?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// In such a folder anybody can put a state, and swap the lock.
fn open_folder(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let text = fs::read_to_string(host.state_file())?;
    fs::remove_dir_all(host.state_folder())?;
    fs::DirBuilder::new().mode(0o777).create(host.state_folder())?;
    fs::set_permissions(host.state_folder(), fs::Permissions::from_mode(0o777))?;
    fs::write(host.state_file(), text.replace(NODE, "192.0.2.200"))?;
    let daemon = host.daemon()?;
    host.await_said("writable by others")?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    // Without a lock nothing is written, and not being able to is no reason to try again and again.
    host.add("198.51.100.7")?;
    sleep(Duration::from_secs(1));
    is_calm(&host, &daemon)?;
    same("reissues", &host.reissues(), &0)?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status of check", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains("writable by others"), format!("a clear error, not {:?}", printed.stderr))?;
    // Once it is put right, the daemon finds its way back by itself.
    fs::set_permissions(host.state_folder(), fs::Permissions::from_mode(0o700))?;
    fs::remove_file(host.state_file())?;
    until("the certificate covers 198.51.100.7", Duration::from_secs(25), || host.covers("198.51.100.7"))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
