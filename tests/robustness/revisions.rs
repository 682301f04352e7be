//! Refreshes of the snap: the data folder moves to another revision while a pass is made or carried out.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::host::{CONFIG, Host, SOON, Setup, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::authority;
use crate::stage::timeline::Timeline;
use crate::stage::tree::{MARKER, template};

pub(crate) const CASES: &[Case] = &[
    Case { name: "revisions::one-comes-within-a-one-shot", play: within_a_one_shot, patience: 40 },
    Case { name: "revisions::they-come-at-any-moment", play: at_any_moment, patience: 90 },
];

const REVISIONS: [&str; 3] = ["7400", "7500", "7600"];

/// Copies the data folder as snapd does; the template of each revision asks for a name that tells it from the others.
fn make_revisions(host: &Host) -> Result<()> {
    let snap = host.tree.path("var/snap/microk8s");
    for revision in &REVISIONS[1..] {
        let status = Command::new("cp").arg("-a").arg(snap.join(REVISIONS[0])).arg(snap.join(revision)).status()?;
        expect(status.success(), "cp works")?;
    }
    REVISIONS.iter().try_for_each(|revision| ask_for(host, revision, 0))
}

/// Edits the template of a revision, in force or not.
fn ask_for(host: &Host, revision: &str, round: usize) -> Result<()> {
    let path = host.tree.path("var/snap/microk8s").join(revision).join("certs/csr.conf.template");
    Ok(fs::write(path, template(&[format!("DNS.9 = r{revision}-{round}.example.org")]))?)
}

fn move_to(host: &Host, revision: &str) -> Result<()> {
    let snap = host.tree.path("var/snap/microk8s");
    symlink(revision, snap.join("new"))?;
    host.timeline.note("step", format!("current leads to {revision}"));
    Ok(fs::rename(snap.join("new"), snap.join("current"))?)
}

/// The services are asked for between the look and the writing: the moment for a link to move.
fn within_a_one_shot(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    make_revisions(&host)?;
    let snap = host.tree.path("var/snap/microk8s");
    let content = |revision: &str, name: &str| fs::read(snap.join(revision).join("certs").join(name));
    let old = (content("7400", "server.crt")?, content("7400", "csr.conf")?);
    host.add("198.51.100.7")?;
    host.replace_stand_in(
        "systemctl",
        "snap=\"$root/var/snap/microk8s\"\nif [ ! -e \"$root/state/moved\" ]; then\n  touch \"$root/state/moved\"\n  \
         ln -s 7500 \"$snap/new\" && mv -T \"$snap/new\" \"$snap/current\"\nfi\nexec \"$real\" \"$@\"",
    )?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status", &printed.status.code(), &Some(0))?;
    host.await_said("the data folder has moved meanwhile")?;
    expect((content("7400", "server.crt")?, content("7400", "csr.conf")?) == old, "the old revision is as it was")?;
    let names = authority::names(&snap.join("7500/certs/server.crt"))?;
    expect(names.contains("198.51.100.7"), format!("the new revision covers the address: {names:?}"))?;
    expect(names.contains("DNS:r7500-0.example.org"), format!("and what its own template asks for: {names:?}"))?;
    expect(!names.iter().any(|name| name.contains("r7400")), format!("and nothing of the old one: {names:?}"))?;
    host.await_restarts((0, 1))
}

/// What is read in one revision is never written in another, whenever the link moves.
fn at_any_moment(timeline: &Timeline) -> Result<()> {
    let config = CONFIG.replace("300ms", "40ms").replace("max = \"2s\"", "max = \"150ms\"");
    let host = Host::with(&Setup { config, ..Setup::default() }, timeline)?;
    make_revisions(&host)?;
    let daemon = host.daemon()?;
    let began = Instant::now();
    let mut round = 0;
    while began.elapsed() < Duration::from_secs(15) {
        round += 1;
        ask_for(&host, REVISIONS[round % 3], round)?;
        // Steps of a prime number of milliseconds meet every part of a pass.
        sleep(Duration::from_millis(u64::try_from(round * 37 % 211)?));
        move_to(&host, REVISIONS[(round * 2) % 3])?;
    }
    move_to(&host, REVISIONS[2])?;
    ask_for(&host, REVISIONS[2], round + 1)?;
    let last = format!("DNS:r7600-{}.example.org", round + 1);
    until(&last, SOON, || host.covers(&last))?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    timeline.note("step", format!("{round} moves, {} reissues", host.reissues()));
    expect(host.reissues() > 5, "certificates were made")?;
    for revision in REVISIONS {
        let certs = host.tree.path("var/snap/microk8s").join(revision).join("certs");
        let names = authority::names(&certs.join("server.crt"))?;
        let request = fs::read_to_string(certs.join("csr.conf"))?;
        for other in REVISIONS.iter().filter(|other| **other != revision) {
            let theirs = format!("r{other}-");
            expect(!names.iter().any(|name| name.contains(&theirs)), format!("{revision} has {names:?}"))?;
            expect(!request.contains(&theirs), format!("{revision} has {request}"))?;
        }
        expect(!request.contains(MARKER), format!("the request of {revision} is rendered"))?;
    }
    Ok(())
}
