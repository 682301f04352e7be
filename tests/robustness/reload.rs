//! SIGHUP: the configuration is read again, idle and in the middle of work, good and bad, and the service manager is told.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, await_status, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::guard::Daemon;
use crate::stage::timeline::{Timeline, monotonic};

pub(crate) const CASES: &[Case] = &[
    Case { name: "reload::told-through-an-abstract-socket", play: abstract_socket, patience: 40 },
    Case { name: "reload::what-is-new-takes-effect", play: takes_effect, patience: 60 },
    Case { name: "reload::a-limit-of-restarts-takes-effect", play: limit, patience: 60 },
    Case { name: "reload::a-bad-configuration-keeps-the-one-before", play: bad, patience: 60 },
    Case { name: "reload::the-command-line-keeps-its-precedence", play: precedence, patience: 60 },
    Case { name: "reload::a-rollback-ends-by-a-good-one-only", play: rolled_back, patience: 60 },
    Case { name: "reload::in-the-middle-of-a-kubelite-restart", play: mid_restart, patience: 60 },
    Case { name: "reload::before-a-restart-is-handed-over", play: before_restart, patience: 60 },
    Case { name: "reload::observing-begins-in-the-middle-of-a-restart", play: begins_to_observe, patience: 60 },
];

/// The standard configuration with more keys at its top, or in place of others.
fn configure(host: &Host, text: &str) -> Result<()> {
    host.timeline.note("step", "the configuration is edited");
    Ok(fs::write(host.guard.config(), text)?)
}

/// SIGHUP, and what the service manager hears from RELOADING=1 to READY=1. That of the start may be still to come: a daemon
/// that says in its log that it is ready has not told the manager yet.
fn reload(daemon: &mut Daemon) -> Result<Vec<String>> {
    daemon.hears()?;
    let before = monotonic();
    kill(daemon.pid(), Signal::SIGHUP)?;
    let (began, mut heard) = (Instant::now(), Vec::new());
    let begun = |heard: &[String]| heard.iter().position(|said| said.starts_with("RELOADING=1\n"));
    let over = |heard: &[String]| begun(heard).is_some_and(|at| heard[at..].iter().any(|said| said == "READY=1"));
    while !over(&heard) {
        expect(began.elapsed() < SOON, format!("READY=1 is heard behind RELOADING=1: {heard:?}"))?;
        heard.extend(daemon.hears()?);
        std::thread::sleep(Duration::from_millis(5));
    }
    let heard = heard.split_off(begun(&heard).unwrap_or_default());
    let at = heard.iter().find_map(|said| said.strip_prefix("RELOADING=1\nMONOTONIC_USEC="));
    let at: u64 = at.ok_or_else(|| format!("RELOADING=1 says its moment: {heard:?}"))?.parse()?;
    let span = before.as_micros()..=monotonic().as_micros();
    expect(span.contains(&u128::from(at)), format!("the moment of the reload, {at}, is in {span:?}"))?;
    Ok(heard)
}

fn takes_effect(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    await_status(
        &mut daemon,
        &["watching addresses and certificates of microk8s, node address 192.0.2.10", "in step"],
    )?;
    // Pins.
    configure(&host, &format!("[addresses]\npin = [\"203.0.113.9\"]\n{CONFIG}"))?;
    host.nothing_happens(A_WHILE)?;
    expect(!host.covers("203.0.113.9"), "an edit alone changes nothing")?;
    reload(&mut daemon)?;
    host.await_covered("203.0.113.9")?;
    host.await_restarts((0, 1))?;
    // Rules: what is excluded is no reason.
    let rule = "[[addresses.rule]]\ncidr = \"198.51.100.0/24\"\nclass = \"ignored\"\n";
    configure(&host, &format!("{rule}{CONFIG}"))?;
    reload(&mut daemon)?;
    host.add("198.51.100.7")?;
    host.nothing_happens(A_WHILE)?;
    expect(!host.covers("198.51.100.7"), "the rule excludes it")?;
    // Observing: it is said and not done, and done once it ends.
    configure(&host, &format!("observe = true\n{CONFIG}"))?;
    reload(&mut daemon)?;
    await_status(&mut daemon, &["(observing only)", "to be done: make a certificate (address-missing:"])?;
    host.nothing_happens(A_WHILE)?;
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 2))?;
    // Settle times.
    configure(&host, &CONFIG.replace("300ms", "9s").replace("\"2s\"\npromotion", "\"10s\"\npromotion"))?;
    reload(&mut daemon)?;
    host.add("198.51.101.7")?;
    host.nothing_happens(Duration::from_secs(4))?;
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    host.await_covered("198.51.101.7")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn limit(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    host.await_said("is ready (/readyz): ready")?;
    // The kernel's stamps on addresses lag behind the clock by up to half a second.
    std::thread::sleep(Duration::from_secs(1));
    configure(&host, &CONFIG.replace("limit = 100\njitter", "limit = 1\njitter"))?;
    reload(&mut daemon)?;
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    let held = await_status(&mut daemon, &["held until 20", "by restart-limit: 1 restarts within 3600 s"])?;
    expect(held.contains("node address 192.0.2.12"), &held)?;
    same("restarts of kubelite", &host.restarts()?.0, &1)?;
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 2))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn bad(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    let text = format!("{CONFIG}\n[addresses]\npin = [\"203.0.113.9\", 7]\n");
    let line = text.lines().count();
    configure(&host, &text)?;
    reload(&mut daemon)?;
    let place = format!("ipguard.toml:{line}:23: ");
    await_status(&mut daemon, &["in step", "configuration refused, the one before stays in force", &place])?;
    expect(host.said().contains(&place), "the log names the place")?;
    // Neither the half of it that is right nor the defaults: what was in force is.
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    expect(!host.covers("203.0.113.9"), "nothing of a bad configuration is taken over")?;
    await_status(&mut daemon, &["configuration refused"])?;
    // A profile that does not exist, and no file at all where one was named.
    configure(&host, &format!("profile = \"k4s\"\n{CONFIG}"))?;
    reload(&mut daemon)?;
    await_status(&mut daemon, &["there is no profile \"k4s\""])?;
    fs::remove_file(host.guard.config())?;
    reload(&mut daemon)?;
    await_status(&mut daemon, &["configuration refused", "No such file"])?;
    // Its end.
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    let began = Instant::now();
    while daemon.status()?.contains("refused") {
        expect(began.elapsed() < SOON, "nothing is refused any more")?;
        std::thread::sleep(Duration::from_millis(10));
    }
    host.await_restarts((0, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn precedence(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    // The host's own options are `--root`, `--config` and `--log-level debug`.
    host.run_through("exec \"$guard\" \"$@\" --profile microk8s --observe")?;
    let mut daemon = host.daemon()?;
    configure(&host, &format!("profile = \"k4s\"\nobserve = false\n{CONFIG}[log]\nlevel = \"error\"\n"))?;
    reload(&mut daemon)?;
    host.add("198.51.100.7")?;
    await_status(&mut daemon, &["of microk8s (observing only)", "to be done: make a certificate"])?;
    host.await_said("observing only, not done")?;
    same("reissues", &host.reissues(), &0)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // Where the command line says nothing the file's level counts, from one message to the next.
    host.run_through("shift 3; exec \"$guard\" run \"$@\"")?;
    configure(&host, &format!("{CONFIG}[log]\nlevel = \"warn\"\n"))?;
    let mut daemon = host.daemon()?;
    let infos = |host: &Host| host.said().matches(" INFO ").count();
    let quiet = infos(&host);
    host.add("198.51.101.7")?;
    host.await_covered("198.51.101.7")?;
    same("lines of a level that is not written", &infos(&host), &quiet)?;
    configure(&host, &format!("{CONFIG}[log]\nlevel = \"info\"\n"))?;
    reload(&mut daemon)?;
    host.add("198.51.102.7")?;
    host.await_covered("198.51.102.7")?;
    until("they are written now", SOON, || infos(&host) > quiet)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn rolled_back(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    same("exit status of rollback", &host.once(&["rollback"])?.status.code(), &Some(0))?;
    until("it is back", SOON, || !host.covers("198.51.100.7"))?;
    host.nothing_happens(A_WHILE)?;
    // One that asks for something, and is wrong elsewhere.
    let asks = CONFIG.replace("[certificate]", "[certificate]\nextra_sans = [\"new.example\"]");
    configure(&host, &format!("{asks}\n[log]\nlevel = \"loud\"\n"))?;
    reload(&mut daemon)?;
    host.nothing_happens(A_WHILE)?;
    await_status(&mut daemon, &["by rolled-back", "configuration refused"])?;
    expect(!host.covers("198.51.100.7"), "what is refused ends no hold")?;
    configure(&host, &asks)?;
    reload(&mut daemon)?;
    until("the new name is there", SOON, || host.covers("DNS:new.example"))?;
    expect(host.covers("198.51.100.7"), "and so is the address")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// What snapd was asked for goes on to its end; what was to come behind it is decided anew.
fn mid_restart(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in(
        "snap",
        "\"$real\" \"$@\"; case $2 in *kubelite) sleep 4; echo > \"$root/state/over\" ;; esac",
    )?;
    let mut daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("kubelite is being restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    configure(&host, &format!("[addresses]\npin = [\"203.0.113.9\"]\n{CONFIG}"))?;
    reload(&mut daemon)?;
    await_status(&mut daemon, &["now: restart kubelite (node-address-replaced)"])?;
    expect(!host.tree.path("state/over").exists(), "READY=1 does not wait for a restart")?;
    host.await_covered("203.0.113.9")?;
    expect(host.tree.path("state/over").exists(), "the restart came to its end")?;
    host.await_restarts((1, 2))?;
    let restarts = host.state()["restarts"].clone();
    same("restarts that are remembered", &restarts.as_array().map(Vec::len), &Some(1))?;
    same("how it ended is known", &restarts[0]["open"], &false.into())?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Another change is in the way of a restart, and meanwhile the operator forbids it.
fn before_restart(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let refused = host.put_a_change_in_the_way()?;
    let mut daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("snapd is asked and refuses", SOON, || refused.exists())?;
    configure(&host, &CONFIG.replace("[restart]", "[restart]\npolicy = \"never\""))?;
    reload(&mut daemon)?;
    host.restore_stand_in("snap")?;
    await_status(&mut daemon, &["by restart-disabled"])?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    same("nothing was handed over", &host.state()["restarts"].as_array().map(Vec::len), &Some(0))?;
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    host.await_restarts((1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// From that moment on nothing is touched, and nothing that was done is forgotten.
fn begins_to_observe(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in("snap", "\"$real\" \"$@\"; sleep 5")?;
    let mut daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("the cluster-agent is being restarted", SOON, || host.restarts().is_ok_and(|now| now == (0, 1)))?;
    // The stand-in does it itself, snapd would go on without its client.
    std::thread::sleep(Duration::from_millis(300));
    configure(&host, &format!("observe = true\n{CONFIG}"))?;
    reload(&mut daemon)?;
    host.restore_stand_in("snap")?;
    let written = fs::read(host.state_file())?;
    await_status(&mut daemon, &["(observing only)", "to be done: restart the API server"])?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    expect(fs::read(host.state_file())? == written, "the state file is not touched")?;
    configure(&host, CONFIG)?;
    reload(&mut daemon)?;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A manager whose socket has no place in the file system hears everything, too.
fn abstract_socket(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    let name = format!("ipguard/test/{}", std::process::id());
    let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    manager.set_read_timeout(Some(SOON))?;
    let mut message = [0; 4096];
    let mut await_word = |word: &str| -> Result<()> {
        let began = Instant::now();
        loop {
            let length = manager.recv(&mut message).map_err(|error| format!("{word} is not heard: {error}"))?;
            let said = String::from_utf8_lossy(&message[..length]).into_owned();
            timeline.note("notify", &said);
            if said.starts_with(word) {
                return Ok(());
            }
            expect(began.elapsed() < SOON, format!("{word} is heard"))?;
        }
    };
    host.guard.environment.push(("WATCHDOG_USEC".into(), "1000000".into()));
    host.run_through(&format!("export NOTIFY_SOCKET='@{name}'\nexec \"$guard\" \"$@\""))?;
    let daemon = host.start()?;
    for word in ["READY=1", "STATUS=watching addresses and certificates of microk8s", "WATCHDOG=1", "WATCHDOG=1"] {
        await_word(word)?;
    }
    kill(daemon.pid(), Signal::SIGHUP)?;
    await_word("RELOADING=1")?;
    await_word("READY=1")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    await_word("STOPPING=1")
}
