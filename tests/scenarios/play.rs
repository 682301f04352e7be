//! Plays one scenario in this process: network, tree, stand-ins, ipguard, steps, and the look at the result.
//!
//! In: a scenario, a mode and a time scale. Out: what was seen. The process must have one thread when it comes here
//! and is good for one scenario.

use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::expect::Seen;
use crate::scenario::{Address, CertState, Link, Scenario, ServiceStarted, Step};
use crate::stage::api_server::ApiServer;
use crate::stage::certificate_watch::CertificateWatch;
use crate::stage::guard::{Daemon, Guard};
use crate::stage::namespace::{FarEnd, ip, ip_all, settle_defaults, sysctl};
use crate::stage::timeline::{Timeline, monotonic};
use crate::stage::tree::{Tree, TreeSpec};
use crate::stage::{Result, authority, secrets, services};

/// Which form of ipguard plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The daemon.
    Watch,
    /// `check --apply`.
    Check,
}

/// How much faster than life: configured times and the waits of the steps are divided by this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale(pub(crate) f64);

/// The defaults of ipguard, in seconds.
const QUIET: f64 = 5.0;
const MAX: f64 = 30.0;
const PROMOTION_HOLD: f64 = 30.0;
const JITTER: f64 = 20.0;
const RELOAD_TIMEOUT: f64 = 70.0;
/// Longest time a scenario may still change after what it must have waited for.
const RESTLESS: Duration = Duration::from_secs(15);

impl Scale {
    fn of(self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds / self.0)
    }

    /// Whether the configuration is left as ipguard ships it.
    fn is_default(self) -> bool {
        self.0 <= 1.0
    }

    /// After this long, whatever a change causes has at least begun.
    fn consequences(self) -> Duration {
        let jitter = if self.is_default() { JITTER } else { 0.0 };
        self.of(QUIET + PROMOTION_HOLD + jitter) + Duration::from_millis(1500)
    }

    /// The configuration file. Jitter is not scaled but switched off: it has its place in the runs at the defaults.
    fn config(self) -> String {
        if self.is_default() {
            return String::new();
        }
        let ms = |seconds| self.of(seconds).as_millis();
        format!(
            "[settle]\nquiet = \"{}ms\"\nmax = \"{}ms\"\npromotion_hold = \"{}ms\"\n\n\
             [restart]\njitter = \"0s\"\n\n[probe]\nreload_timeout = \"{}ms\"\n",
            ms(QUIET),
            ms(MAX),
            ms(PROMOTION_HOLD),
            ms(RELOAD_TIMEOUT)
        )
    }
}

/// How long a run may take at most.
pub(crate) fn patience(scenario: &Scenario, scale: Scale) -> Duration {
    scale.of(scenario.waits()) * 2 + scale.consequences() + RESTLESS + Duration::from_secs(60)
}

/// Plays it. The namespace has been entered.
pub(crate) fn play(
    scenario: &Scenario,
    mode: Mode,
    scale: Scale,
    program: PathBuf,
    keep: bool,
    timeline: &Timeline,
) -> Result<Seen> {
    let mut network = Network::set_up(scenario, timeline)?;
    let tree = Tree::create(
        &TreeSpec {
            args: scenario.args.clone(),
            locks: scenario.locks.clone(),
            sans: scenario.cert_sans.clone(),
            certificate: scenario.cert_state.into(),
            ..TreeSpec::default()
        },
        keep,
    )?;
    let guard = Guard { program, environment: Vec::new(), root: tree.root().to_owned(), log_level: "debug" };
    std::fs::write(guard.config(), scenario.config.join("\n") + "\n" + &scale.config())?;
    services::install(tree.root())?;
    // The kernel stamps addresses in ticks, which lag behind the monotonic clock by up to half a second: leave a gap on
    // both sides of the services' start that the lag cannot hide.
    let started = match scenario.service_started {
        ServiceStarted::AfterAddresses => monotonic(),
        ServiceStarted::BeforeAddresses => network.began.saturating_sub(Duration::from_secs(5)),
    };
    sleep(Duration::from_millis(600));
    let watch = CertificateWatch::start(tree.server_certificate(), timeline);
    let server = ApiServer::start(tree.root(), tree.data("certs"), scenario.api_server.into(), started, timeline)?;
    sleep(Duration::from_millis(50));
    timeline.note("stage", network.describe()?);

    let mut player = Player { scenario, scale, guard, watch, server, tree, timeline: timeline.clone() };
    let mut seen = match mode {
        Mode::Watch => player.watch(&mut network)?,
        Mode::Check => player.check(&mut network)?,
    };
    player.look(&mut seen)?;
    secrets::stay_secret(&player.tree, timeline)?;
    Ok(seen)
}

struct Player<'a> {
    scenario: &'a Scenario,
    scale: Scale,
    guard: Guard,
    // Dropped in this order: who looks at the tree goes before the tree.
    watch: CertificateWatch,
    server: ApiServer,
    tree: Tree,
    timeline: Timeline,
}

impl Player<'_> {
    /// The daemon watches while the steps are played; checks among them belong to the other mode.
    fn watch(&mut self, network: &mut Network) -> Result<Seen> {
        let mut daemon = self.guard.run(&self.timeline)?;
        daemon.first_pass(self.scale.of(MAX) + Duration::from_secs(10))?;
        let mut pending = Vec::new();
        for step in self.scenario.flat_steps() {
            match step {
                Step::Ip { ip } => pending.push(ip),
                Step::Check { .. } => {}
                other => {
                    network.run(&mut pending, &self.timeline)?;
                    self.plain_step(&other)?;
                }
            }
        }
        network.run(&mut pending, &self.timeline)?;
        sleep(self.scale.consequences());
        self.rest(&mut daemon)?;
        let mut seen = Seen { explain: self.explain()?, ..Seen::default() };
        seen.temporary = network.temporary()?;
        let status = daemon.stop(Duration::from_secs(10))?;
        if !status.success() {
            return Err(format!("after SIGTERM the daemon ended with {status}").into());
        }
        Ok(seen)
    }

    /// One-shots where the steps say so and once more at the end, which must find nothing left to do.
    fn check(&mut self, network: &mut Network) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut pending = Vec::new();
        let mut checked_last = false;
        for step in self.scenario.flat_steps() {
            checked_last = matches!(step, Step::Check { check: true });
            match step {
                Step::Ip { ip } => pending.push(ip),
                Step::Check { check: true } => {
                    network.run(&mut pending, &self.timeline)?;
                    seen.verdicts.push(self.check_once()?);
                }
                other => {
                    network.run(&mut pending, &self.timeline)?;
                    self.plain_step(&other)?;
                }
            }
        }
        network.run(&mut pending, &self.timeline)?;
        if !checked_last {
            seen.verdicts.push(self.check_once()?);
        }
        let before = self.watch.sightings().replacements.len();
        let again = self.check_once()?;
        if self.watch.sightings().replacements.len() > before {
            return Err("a second check on the same host made another certificate".into());
        }
        seen.verdicts.push(again);
        seen.explain = self.explain()?;
        seen.temporary = network.temporary()?;
        Ok(seen)
    }

    fn check_once(&self) -> Result<String> {
        let patience = self.scale.of(RELOAD_TIMEOUT) + Duration::from_secs(20);
        let document = self.guard.document(&["check", "--apply", "--format", "json"], patience, &self.timeline)?;
        // The watch looks every few milliseconds, the server a little slower: both must have seen what was done, and
        // services whose certificate was missing come up.
        sleep(Duration::from_millis(600));
        document["verdict"].as_str().map(str::to_owned).ok_or_else(|| "check says no verdict".into())
    }

    fn explain(&self) -> Result<serde_json::Value> {
        self.guard.document(&["explain", "--format", "json"], Duration::from_secs(10), &self.timeline)
    }

    fn plain_step(&self, step: &Step) -> Result<()> {
        match step {
            Step::Wait { wait_s } => {
                self.timeline.note("step", format!("wait {wait_s} s"));
                // Duplicate address detection takes the kernel's time, not ours.
                let time = if self.scenario.dad { Duration::from_secs_f64(*wait_s) } else { self.scale.of(*wait_s) };
                sleep(time);
            }
            Step::TemplateAdd { template_add } => {
                self.timeline.note("step", format!("template: {}", template_add.join("; ")));
                self.tree.template_add(template_add)?;
            }
            Step::LockDel { lock_del } => {
                self.timeline.note("step", format!("remove lock {lock_del}"));
                self.tree.lock_del(lock_del)?;
            }
            // The callers take the others; a check that is switched off is none.
            Step::Ip { .. } | Step::Check { .. } | Step::Repeat { .. } => {}
        }
        Ok(())
    }

    /// Waits until nothing has happened for a while.
    fn rest(&self, daemon: &mut Daemon) -> Result<()> {
        let pause = Duration::from_millis(1500);
        let deadline = Instant::now() + RESTLESS;
        let mut last = (self.deeds()?, Instant::now());
        while last.1.elapsed() < pause {
            daemon.check_alive()?;
            if Instant::now() > deadline {
                self.timeline.note("stage", "still restless, going on");
                break;
            }
            sleep(Duration::from_millis(50));
            let now = self.deeds()?;
            if now != last.0 {
                last = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn deeds(&self) -> Result<(usize, usize)> {
        Ok((services::calls(self.tree.root())?.len(), self.watch.sightings().replacements.len()))
    }

    /// What is on disk, on the port and in the log of calls.
    fn look(&self, seen: &mut Seen) -> Result<()> {
        match authority::names(&self.tree.server_certificate()) {
            Ok(names) => seen.sans = Some(names),
            Err(error) => self.timeline.note("stage", error.to_string()),
        }
        seen.calls = services::calls(self.tree.root())?;
        for call in &seen.calls {
            self.timeline.note_at(call.at, "call", format!("{} {}", call.program, call.arguments.join(" ")));
        }
        let sightings = self.watch.sightings();
        seen.reissues = sightings.replacements.len();
        seen.broken = sightings.broken;
        let on_disk = std::fs::read(self.tree.server_certificate()).ok();
        let on_disk = on_disk.and_then(|pem| x509_parser::pem::parse_x509_pem(&pem).ok().map(|(_, pem)| pem.contents));
        seen.served = self.server.serving().map(|leaf| Some(leaf.as_ref()) == on_disk.as_deref());
        self.timeline.note("stage", format!("{} handshakes", self.server.handshakes()));
        Ok(())
    }
}

/// The host's network and the far end of its cables.
struct Network {
    far_end: FarEnd,
    peers: Vec<String>,
    began: Duration,
}

impl Network {
    fn set_up(scenario: &Scenario, timeline: &Timeline) -> Result<Self> {
        let began = monotonic();
        settle_defaults(scenario.dad)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("--far-end");
        let mut far_end = FarEnd::start(command)?;
        let silence = u8::from(!scenario.dad);
        far_end.sysctl(&format!("net.ipv6.conf.default.disable_ipv6={silence}"))?;
        far_end.sysctl("net.ipv6.conf.default.accept_dad=0")?;
        let peers: Vec<String> = scenario.links.iter().filter_map(|link| link.peer.clone()).collect();
        let mut network = Self { far_end, peers, began };
        network.links(&scenario.links)?;
        for setting in &scenario.sysctls {
            sysctl(setting)?;
        }
        // A service that runs since before the addresses must be older than they are by more than the kernel's
        // hundredth of a second.
        sleep(Duration::from_millis(100));
        let addresses: Vec<String> = scenario.addrs.iter().map(address_command).collect();
        ip_all(&addresses)?;
        for route in &scenario.routes {
            ip(&format!("route add {route}"))?;
        }
        let initial = matches!(scenario.cert_state, CertState::Valid | CertState::SignedByOtherCa);
        timeline.note("stage", format!("{}: network is up, usable pair: {initial}", scenario.id));
        Ok(network)
    }

    fn links(&mut self, links: &[Link]) -> Result<()> {
        for link in links {
            ip(&link_command(link)?)?;
            if let Some(peer) = &link.peer {
                ip(&format!("link set {peer} netns {}", self.far_end.pid()))?;
                self.far_end.ip(&format!("link set {peer} up"))?;
            }
        }
        for link in links {
            if let Some(master) = &link.master {
                ip(&format!("link set {} master {master}", link.name))?;
            }
        }
        for link in links.iter().filter(|link| link.up) {
            ip(&format!("link set {} up", link.name))?;
        }
        // IPv6 routes need the link's own address, which comes with the carrier.
        sleep(Duration::from_millis(50));
        Ok(())
    }

    /// Runs the commands that have been collected, those that name a peer at the far end.
    fn run(&mut self, commands: &mut Vec<String>, timeline: &Timeline) -> Result<()> {
        let commands = std::mem::take(commands);
        let is_far =
            |command: &String| command.split_whitespace().any(|word| self.peers.iter().any(|peer| peer == word));
        for run in commands.chunk_by(|one, next| is_far(one) == is_far(next)) {
            let shown = if run.len() > 12 {
                format!("{}\n… {} commands …\n{}", run[0], run.len() - 2, run[run.len() - 1])
            } else {
                run.join("\n")
            };
            timeline.note("step", shown);
            if run.first().is_some_and(is_far) {
                run.iter().try_for_each(|command| self.far_end.ip(command))?;
            } else {
                ip_all(run)?;
            }
        }
        Ok(())
    }

    /// Kernel-made privacy addresses.
    fn temporary(&self) -> Result<Vec<std::net::IpAddr>> {
        let listed = ip("-6 -o addr show temporary")?;
        let cidrs = listed.lines().filter_map(|line| line.split_whitespace().nth(3));
        Ok(cidrs.filter_map(|cidr| cidr.split('/').next()?.parse().ok()).collect())
    }

    fn describe(&self) -> Result<String> {
        Ok(format!("{}{}{}", ip("-br addr")?, ip("route")?, ip("-6 route show default")?))
    }
}

fn link_command(link: &Link) -> Result<String> {
    let name = &link.name;
    Ok(match link.kind.as_str() {
        "veth" => {
            let peer = link.peer.as_ref().ok_or_else(|| format!("{name}: a veth needs a peer"))?;
            format!("link add {name} type veth peer name {peer}")
        }
        "bridge" => format!("link add {name} type bridge"),
        "vxlan" => {
            let options = link.vxlan.as_ref().ok_or_else(|| format!("{name}: a vxlan needs its options"))?;
            format!("link add {name} type vxlan {options} dev eth0 nolearning")
        }
        "macvlan" => {
            let below = link.link.as_ref().ok_or_else(|| format!("{name}: a macvlan needs a link"))?;
            format!("link add link {below} name {name} type macvlan mode bridge")
        }
        other => return Err(format!("{name}: this kind cannot be made: {other}").into()),
    })
}

/// Only some flags are for the asking; the others come from order and lifetimes.
fn address_command(address: &Address) -> String {
    let mut command = format!("addr add {}", address.cidr);
    if let Some(peer) = &address.peer {
        command += &format!(" peer {peer}");
    }
    command += &format!(" dev {}", address.interface);
    for flag in ["nodad", "noprefixroute", "mngtmpaddr"] {
        if address.flags.iter().any(|given| given == flag) {
            command += &format!(" {flag}");
        }
    }
    if let Some(label) = &address.label {
        command += &format!(" label {label}");
    }
    if let Some(scope) = &address.scope {
        command += &format!(" scope {scope}");
    }
    if let Some(lifetime) = address.lft {
        command += &format!(" valid_lft {} preferred_lft {}", lifetime.valid, lifetime.preferred);
    }
    command
}
