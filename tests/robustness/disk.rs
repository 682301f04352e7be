//! Disks that take nothing: read-only, or full.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::host::{Host, NODE, SOON, Setup, expect, is_calm, same, until};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "disk::read-only", play: read_only, patience: 60 },
    Case { name: "disk::full", play: full, patience: 60 },
];

/// A host whose `var` is a disk of its own. The mount namespace must be made before there is a second thread.
fn host_with_a_disk(timeline: &Timeline) -> Result<Host> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let made =
        unshare(CloneFlags::CLONE_NEWNS).and_then(|()| mount(None::<&str>, "/", None::<&str>, private, None::<&str>));
    if let Err(error) = made {
        return skip(format!("no mount namespace: {error}"));
    }
    // The stand-in of the API server is started on the disk, so the disk comes first.
    let mut host = Host::with(&Setup { reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    host.server = None;
    host.put_var_on_a_disk(512)?;
    host.restart_watchers()?;
    Ok(host)
}

fn remount(host: &Host, flags: MsFlags) -> Result<()> {
    let all = MsFlags::MS_REMOUNT | flags;
    Ok(mount(None::<&str>, &host.tree.path("var"), None::<&str>, all, None::<&str>)?)
}

/// Nothing can be written: not the certificate, not the state. Nothing is restarted for it, and nobody spins.
fn read_only(timeline: &Timeline) -> Result<()> {
    let host = host_with_a_disk(timeline)?;
    let daemon = host.daemon()?;
    timeline.note("step", "the disk becomes read-only");
    remount(&host, MsFlags::MS_RDONLY)?;
    host.nothing_happens(Duration::from_millis(700))?;
    host.add("198.51.100.7")?;
    host.await_said("ead-only file system")?;
    sleep(Duration::from_millis(500));
    is_calm(&host, &daemon)?;
    same("reissues", &host.reissues(), &0)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status of check", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains("ead-only file system"), format!("a clear error, not {:?}", printed.stderr))?;
    same("exit status of check without --apply", &host.once(&["check"])?.status.code(), &Some(2))?;
    // A daemon that starts on such a disk is no worse.
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let daemon = host.daemon()?;
    sleep(Duration::from_millis(500));
    is_calm(&host, &daemon)?;
    host.ip("addr del 198.51.100.7/24 dev eth0")?;
    host.nothing_happens(Duration::from_millis(700))?;
    remount(&host, MsFlags::empty())?;
    host.add("198.51.101.7")?;
    until("the certificate covers 198.51.101.7", Duration::from_secs(25), || host.covers("198.51.101.7"))?;
    expect(host.covers(NODE), "the node address stays")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// No space for the new certificate: the old one stays, whole and served, until there is.
fn full(timeline: &Timeline) -> Result<()> {
    let host = host_with_a_disk(timeline)?;
    let daemon = host.daemon()?;
    let before = fs::read(host.tree.server_certificate())?;
    let filler = host.tree.path("var/filler");
    // To the last byte: what does not fit in one piece is cut off.
    let _ = fs::write(&filler, vec![0; 1024 * 1024]);
    timeline.note("step", "the disk is full");
    host.add("198.51.100.7")?;
    host.await_said("o space left on device")?;
    sleep(Duration::from_millis(300));
    is_calm(&host, &daemon)?;
    expect(fs::read(host.tree.server_certificate())? == before, "the certificate is untouched")?;
    host.pair_is_usable()?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    let leftovers = fs::read_dir(host.tree.data("certs"))?
        .filter_map(std::result::Result::ok)
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(".ipguard-"))
        .count();
    same("temporary files", &leftovers, &0)?;
    timeline.note("step", "there is space again");
    fs::remove_file(&filler)?;
    until("the certificate covers 198.51.100.7", Duration::from_secs(25), || host.covers("198.51.100.7"))?;
    host.await_restarts((0, 1))?;
    host.pair_is_usable()?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
