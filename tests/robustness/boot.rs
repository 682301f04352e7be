//! The first minutes of a host: the network is not there yet, no service runs, and others wait for the end of our first pass.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::clock::{Clock, Kernel, no_compiler};
use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::guard::Daemon;
use crate::stage::services;
use crate::stage::timeline::{Timeline, monotonic};

pub(crate) const CASES: &[Case] = &[
    Case { name: "boot::the-certificate-is-made-before-anybody-else-starts", play: before_others, patience: 60 },
    Case { name: "boot::no-network-at-all", play: no_network, patience: 60 },
    Case { name: "boot::a-restart-of-the-service-waits-for-nothing", play: no_boot, patience: 60 },
    Case { name: "boot::a-hanging-service-manager-delays-nobody", play: hanging_manager, patience: 60 },
    Case { name: "boot::a-hanging-restart-delays-nobody", play: hanging_restart, patience: 60 },
];

/// A host that is up for twenty seconds: no address, no service, and a state of the boot before. `None` without a C
/// compiler.
fn just_started(timeline: &Timeline, wait: &str) -> Result<Option<Host>> {
    let config = CONFIG.replace("promotion_hold", &format!("boot = \"{wait}\"\npromotion_hold"));
    let mut host = Host::with(&Setup { config, reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    expect(host.daemon()?.stop(SOON)?.success(), "ends well")?;
    let mut state = host.state();
    state["boot_id"] = "the boot before".into();
    fs::write(host.state_file(), state.to_string())?;
    host.ip("route del default")?;
    host.ip(&format!("addr del {NODE}/24 dev eth0"))?;
    services::set_active(host.tree.root(), None)?;
    if Clock::of(&mut host, Kernel::Synchronised, 0)?.is_none() {
        return Ok(None);
    }
    host.guard.environment.push(("UPTIME_SECONDS".into(), "20".into()));
    Ok(Some(host))
}

/// Waits for READY=1, and says how long that took.
fn ready(daemon: &mut Daemon, patience: Duration) -> Result<Duration> {
    let began = Instant::now();
    while !daemon.hears()?.iter().any(|said| said == "READY=1") {
        expect(began.elapsed() < patience, "READY=1 is heard")?;
        sleep(Duration::from_millis(5));
    }
    Ok(began.elapsed())
}

fn commands(host: &Host) -> Result<Vec<String>> {
    let calls = services::calls(host.tree.root())?;
    Ok(calls.iter().filter(|call| !call.only_asks()).map(|call| call.arguments.join(" ")).collect())
}

/// DHCP takes some seconds and brings another address. Whoever waits for READY=1 finds it in the certificate, and no
/// service was started, asked at its port, or waited for.
fn before_others(timeline: &Timeline) -> Result<()> {
    let Some(mut host) = just_started(timeline, "30s")? else { return no_compiler() };
    let mut daemon = host.start()?;
    let began = Instant::now();
    while !daemon.status()?.contains("waiting for a default route") {
        expect(began.elapsed() < SOON, "it says that it waits")?;
        sleep(Duration::from_millis(5));
    }
    // A link of its own comes up first, as in every boot: it is no reason to begin.
    host.ip("addr add 203.0.113.7/24 dev eth0")?;
    sleep(A_WHILE);
    same("READY=1 before there is a network", &daemon.hears()?.iter().any(|said| said == "READY=1"), &false)?;
    same("service commands", &services::calls(host.tree.root())?.len(), &0)?;
    host.ip("addr add 192.0.2.77/24 dev eth0")?;
    host.ip("route add default via 192.0.2.1")?;
    ready(&mut daemon, SOON)?;
    expect(host.covers("192.0.2.77"), "the certificate covers the new address when others may start")?;
    host.nothing_happens(A_WHILE)?;
    same("changes of services", &commands(&host)?, &Vec::new())?;
    expect(!host.said().contains("confirm that"), "nobody's port is asked")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // They start, with everything as it should be: nobody is restarted. (On the clock that the kernel's stamps are of.)
    host.guard.environment.pop();
    services::set_active(host.tree.root(), Some(monotonic()))?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE * 2)?;
    same("changes of services", &commands(&host)?, &Vec::new())?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Nothing comes but events without end: others are let start when the time is over.
fn no_network(timeline: &Timeline) -> Result<()> {
    let Some(host) = just_started(timeline, "3s")? else { return no_compiler() };
    let mut daemon = host.start()?;
    let (began, mut waited) = (Instant::now(), None);
    for round in 0.. {
        let verb = if round % 2 == 0 { "add" } else { "del" };
        host.ip(&format!("addr {verb} 203.0.113.7/24 dev eth0"))?;
        if daemon.hears()?.iter().any(|said| said == "READY=1") {
            waited = Some(began.elapsed());
            break;
        }
        expect(began.elapsed() < SOON, "the wait has an end")?;
        sleep(Duration::from_millis(100));
    }
    let waited = waited.ok_or("READY=1 was not heard")?;
    expect(waited > Duration::from_millis(2500), format!("it waited for {waited:?}"))?;
    same("the certificate", &host.reissues(), &0)?;
    same("changes of services", &commands(&host)?, &Vec::new())?;
    // The address is known when it comes.
    host.ip("addr add 192.0.2.77/24 dev eth0")?;
    host.ip("route add default via 192.0.2.1")?;
    host.await_covered("192.0.2.77")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Neither behind a boot that was seen already, nor long after one, nor where there is no state.
fn no_boot(timeline: &Timeline) -> Result<()> {
    let Some(mut host) = just_started(timeline, "30s")? else { return no_compiler() };
    let soon = Duration::from_secs(10);
    host.guard.environment.last_mut().ok_or("no uptime")?.1 = "3600".into();
    let mut daemon = host.start()?;
    expect(ready(&mut daemon, soon)? < soon, "an hour after the boot")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // That pass has noted this boot.
    host.guard.environment.last_mut().ok_or("no uptime")?.1 = "20".into();
    let mut daemon = host.start()?;
    expect(ready(&mut daemon, soon)? < soon, "the service is restarted")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    fs::remove_file(host.state_file())?;
    let mut daemon = host.start()?;
    expect(ready(&mut daemon, soon)? < soon, "without a state")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The states of services are asked for before anything is decided about them: that has an end too.
fn hanging_manager(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    services::set_active(host.tree.root(), None)?;
    host.replace_stand_in("systemctl", "sleep 1000")?;
    host.add("198.51.100.7")?;
    let mut daemon = host.start()?;
    let waited = ready(&mut daemon, Duration::from_secs(45))?;
    timeline.note("stage", format!("READY=1 after {waited:?}"));
    expect(host.covers("198.51.100.7"), "the certificate covers the address when others may start")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// One that runs is restarted in the first pass, and its start may be ordered behind others that wait for us.
fn hanging_restart(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    host.replace_stand_in("snap", "echo > \"$root/state/called\"; sleep 1000")?;
    host.add("198.51.100.7")?;
    let mut daemon = host.start()?;
    let waited = ready(&mut daemon, SOON)?;
    timeline.note("stage", format!("READY=1 after {waited:?}"));
    expect(host.covers("198.51.100.7"), "the certificate covers the address when others may start")?;
    until("the cluster-agent is being restarted", SOON, || host.tree.path("state/called").exists())?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
