//! SIGTERM in the middle of every kind of step that is waited for: it ends at once, and the next daemon goes on from there.
//! (Making a certificate and putting one back are done in one go; `kills` tries the restarts.)

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::host::{A_WHILE, Host, NODE, SOON, Setup, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::guard::Daemon;
use crate::stage::services;
use crate::stage::timeline::Timeline;
use crate::takeover;

pub(crate) const CASES: &[Case] = &[
    Case { name: "stopping::while-a-port-is-asked", play: confirming, patience: 40 },
    Case { name: "stopping::while-the-api-server-is-not-ready", play: not_ready, patience: 60 },
    Case { name: "stopping::while-another-guard-is-turned-off", play: disabling, patience: 60 },
    Case { name: "stopping::while-another-change-is-in-the-way", play: pausing, patience: 60 },
    Case { name: "stopping::while-a-restarted-service-comes-up", play: coming_up, patience: 60 },
];

/// Waits until the daemon is at a step, and ends it there.
fn stop_at(host: &Host, mut daemon: Daemon, step: &str) -> Result<()> {
    let began = Instant::now();
    while !daemon.status()?.contains(&format!("now: {step}")) {
        expect(began.elapsed() < SOON, format!("it is at {step:?}: {:?}", daemon.status()?))?;
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(300));
    let began = Instant::now();
    let status = daemon.stop(SOON)?;
    expect(status.success(), format!("ends with status 0, not {status}"))?;
    expect(began.elapsed() < Duration::from_secs(3), format!("ends at once; it took {:?}", began.elapsed()))?;
    host.pair_is_usable()
}

fn confirming(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::AtRestart, ..Setup::default() }, timeline)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    stop_at(&host, daemon, "confirm that 127.0.0.1:16443 serves")?;
    expect(host.covers("198.51.100.7"), "the certificate is in place")?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    // The question, and what follows from the answer, is still to come.
    let daemon = host.daemon()?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn not_ready(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    fs::write(host.tree.path("state/not-ready"), "etcd")?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    stop_at(&host, daemon, "confirm that 127.0.0.1:16443 is ready")?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    fs::remove_file(host.tree.path("state/not-ready"))?;
    let daemon = host.daemon()?;
    until("it is asked again", SOON, || host.state()["awaited_ready"].is_null())?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn disabling(timeline: &Timeline) -> Result<()> {
    let host = takeover::host(timeline)?;
    expect(host.once(&["takeover"])?.status.success(), "taken over")?;
    let daemon = host.daemon()?;
    takeover::manage(&host, takeover::ON)?;
    host.replace_stand_in("snap", "sleep 1000")?;
    stop_at(&host, daemon, "stop and disable")?;
    host.restore_stand_in("snap")?;
    same("the other guard", &takeover::is_on(&host, takeover::KICKER), &(true, true))?;
    let daemon = host.daemon()?;
    until("it is turned off", Duration::from_secs(30), || takeover::is_on(&host, takeover::KICKER) == (false, false))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Nothing was handed over: nobody waits for the end of it, and nothing counts against the limit.
fn pausing(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let refused = host.put_a_change_in_the_way()?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("snapd refuses", SOON, || refused.exists())?;
    stop_at(&host, daemon, "restart kubelite")?;
    same("restarts that are remembered", &host.state()["restarts"].as_array().map(Vec::len), &Some(0))?;
    host.restore_stand_in("snap")?;
    let daemon = host.daemon()?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The command is over, and the service on its way up: that counts as begun, and no second restart follows.
fn coming_up(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let unit = services::KUBELITE;
    host.replace_stand_in(
        "snap",
        &format!("\"$real\" \"$@\"; case $2 in *kubelite) echo activating > \"$root/state/{unit}.active\" ;; esac"),
    )?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("the command is over", SOON, || {
        fs::read_to_string(host.tree.path(&format!("state/{unit}.active")))
            .is_ok_and(|state| state.contains("activating"))
    })?;
    stop_at(&host, daemon, "restart kubelite")?;
    host.restore_stand_in("snap")?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    fs::write(host.tree.path(&format!("state/{unit}.active")), "active")?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE * 2)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
