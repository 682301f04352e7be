//! Storms and silence: what the daemon costs.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::host::{A_WHILE, Host, NODE, SOON, Usage, expect, same, until};
use crate::runner::{Case, skip};
use crate::stage::guard::Daemon;
use crate::stage::timeline::Timeline;
use crate::stage::{Result, services};

pub(crate) const CASES: &[Case] = &[
    Case { name: "load::a-storm-of-addresses", play: storm, patience: 85 },
    Case { name: "load::events-are-lost", play: overrun, patience: 60 },
    Case { name: "load::nothing-happens", play: idle, patience: 30 },
    Case { name: "load::rtnetlink-is-refused", play: polling, patience: 60 },
];

fn batch(commands: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(["-force", "-batch", "-"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    child.stdin.take().ok_or("ip has no stdin")?.write_all(commands.as_bytes())?;
    if child.wait()?.success() { Ok(()) } else { Err("ip -batch failed".into()) }
}

/// As many addresses as a cluster has services, on the link that kube-proxy puts them on: they come, and they go.
fn storm(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    host.ip("link add kube-ipvs0 type bridge")?;
    let of_verb = |verb: &str| {
        let line = |n: u32| format!("addr {verb} 10.152.{}.{}/32 dev kube-ipvs0\n", n / 250, 1 + n % 250);
        (0..20_000).map(line).collect::<String>()
    };
    let before = Usage::of(&daemon)?;
    let began = Instant::now();
    batch(&of_verb("add"))?;
    timeline.note("step", "20000 addresses came");
    host.add("198.51.100.7")?;
    until("the certificate covers 198.51.100.7", Duration::from_secs(40), || host.covers("198.51.100.7"))?;
    batch(&of_verb("del"))?;
    timeline.note("step", "20000 addresses went");
    host.add("198.51.101.7")?;
    until("the certificate covers 198.51.101.7", Duration::from_secs(40), || host.covers("198.51.101.7"))?;
    daemon.check_alive()?;
    let after = Usage::of(&daemon)?;
    let cpu = after.cpu.saturating_sub(before.cpu);
    let text = format!("{cpu:?} of CPU in {:?}, {} KiB resident", began.elapsed(), after.resident_kib);
    timeline.note("stage", &text);
    expect(after.resident_kib < 160 * 1024, &text)?;
    same("restarts of kubelite", &host.restarts()?.0, &0)?;
    expect(host.names().len() < 12, "none of them is in the certificate")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The daemon is stopped while more happens than its buffer holds.
fn overrun(timeline: &Timeline) -> Result<()> {
    use nix::sys::signal::{Signal, kill};
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    host.ip("link add kube-ipvs0 type bridge")?;
    kill(daemon.pid(), Signal::SIGSTOP)?;
    let storm: String = (0..30_000_u32)
        .map(|n| {
            format!(
                "addr {} 10.152.1.{}/32 dev kube-ipvs0\n",
                if n / 200 % 2 == 0 { "add" } else { "del" },
                1 + n % 200
            )
        })
        .collect();
    batch(&storm)?;
    host.add("198.51.100.7")?;
    kill(daemon.pid(), Signal::SIGCONT)?;
    host.await_said("the kernel dropped events")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn children(daemon: &Daemon) -> Result<u64> {
    // Forks of one process are not counted; the CPU time of children that were waited for is, and commands are written
    // down by the stand-ins.
    let text = fs::read_to_string(format!("/proc/{}/stat", daemon.pid()))?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let of = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or_default();
    // cminflt, counted from the state field behind the name: any child that ran has had page faults.
    Ok(of(8))
}

/// Before anything happened, and after work was done: asleep.
fn idle(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let sleeps = |what: &str| {
        let calls = services::calls(host.tree.root())?.len();
        let (before, forks) = (Usage::of(&daemon)?, children(&daemon)?);
        sleep(Duration::from_secs(5));
        let after = Usage::of(&daemon)?;
        let wakeups = after.wakeups - before.wakeups;
        timeline.note("stage", format!("{what}: {wakeups} wake-ups, {:?}", after.cpu.saturating_sub(before.cpu)));
        expect(wakeups <= 1, format!("{what}: {wakeups} wake-ups in 5 s"))?;
        same("service commands", &services::calls(host.tree.root())?.len(), &calls)?;
        same("page faults of children", &children(&daemon)?, &forks)
    };
    sleep(Duration::from_millis(500));
    sleeps("before anything")?;
    host.add("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    sleep(Duration::from_millis(1500));
    sleeps("after a reissue")?;
    timeline.note("stage", format!("{:?}", Usage::of(&daemon)?));
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A sandbox without AF_NETLINK: addresses are followed by looking, which is said once.
fn polling(timeline: &Timeline) -> Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    // /sys shows the network namespace it was mounted in.
    let made = unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(None::<&str>, "/", None::<&str>, private, None::<&str>))
        .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>));
    if let Err(error) = made {
        return skip(format!("/sys of this network namespace cannot be mounted: {error}"));
    }
    let mut host = Host::new(timeline)?;
    let myself = std::env::current_exe()?;
    host.run_through(&format!("exec '{}' {} \"$guard\" \"$@\"", myself.display(), crate::sandbox::WORD))?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    host.nothing_happens(Duration::from_secs(6))?;
    let said = host.said();
    same("how often it is said", &said.matches("polling instead").count(), &1)?;
    let cpu = Usage::cpu_over(&daemon, Duration::from_secs(6))?;
    expect(cpu < Duration::from_millis(100), format!("{cpu:?} of CPU in 6 s"))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
