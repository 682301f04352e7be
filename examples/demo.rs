//! ipguard at work, in a minute, on a node that does not exist: `cargo run --release --example demo`.
//!
//! No root, no Kubernetes, nothing of this machine is touched: the demo makes a network namespace and a folder that
//! looks like a MicroK8s host, starts the real daemon there (this program again, as ipguard) and lets happen to it what
//! happens to nodes. After each act it says what the kernel reported, what ipguard made of it and did, and what a loop
//! would have done that polls the addresses and compares their text.

#[path = "../tests/stage/mod.rs"]
mod stage;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use stage::api_server::{ApiServer, Reloading};
use stage::certificate_watch::CertificateWatch;
use stage::guard::{Daemon, Guard};
use stage::namespace::{self, FarEnd, ip, ip_all, sysctl};
use stage::secrets;
use stage::services::{self, KUBELITE};
use stage::timeline::{Timeline, monotonic};
use stage::tree::{Tree, TreeSpec};

/// What this process is: unset for the demo, else one of the two words below.
const ROLE: &str = "IPGUARD_DEMO_ROLE";
const ROLE_IPGUARD: &str = "ipguard";
const ROLE_FAR_END: &str = "far-end";

/// One twentieth of the defaults: 5 s, 30 s, 30 s, 70 s; and no delay for the sake of other control planes.
const CONFIG: &str = "[settle]\nquiet = \"250ms\"\nmax = \"1500ms\"\npromotion_hold = \"1500ms\"\n\n\
                      [restart]\njitter = \"0s\"\n\n[probe]\nreload_timeout = \"3500ms\"\n";
/// Longer than `quiet`, with time for the pass behind it.
const SETTLED: Duration = Duration::from_millis(900);
/// Longer than `promotion_hold`, with time for a restart behind it.
const HELD: Duration = Duration::from_millis(3500);

/// What the certificate has when the curtain rises.
const NAMES: [&str; 8] = [
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster",
    "DNS:kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "10.152.183.1",
    "192.0.2.10",
];

fn main() -> ExitCode {
    match std::env::var(ROLE).as_deref() {
        Ok(ROLE_IPGUARD) => return ipguard::cli::run_from(std::env::args_os(), &ipguard::cli::Environment::read()),
        Ok(ROLE_FAR_END) => return namespace::serve_far_end(),
        _ => {}
    }
    if let Err(refused) = namespace::enter() {
        eprintln!(
            "The demo needs a network namespace of its own, and this machine permits none: {}.\n\
             Without root that takes unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian),\n\
             kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), user.max_user_namespaces above 0; in a container,\n\
             --cap-add SYS_ADMIN --cap-add NET_ADMIN. It also needs `ip` (iproute2).",
            refused.0
        );
        return ExitCode::FAILURE;
    }
    match demo() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("The demo broke off: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The whole play; whether ipguard did what the narrator says.
fn demo() -> stage::Result<bool> {
    let timeline = Timeline::start();
    let far_end = network()?;
    let spec = TreeSpec { sans: NAMES.map(str::to_owned).into(), ..TreeSpec::default() };
    let tree = Tree::create(&spec, false)?;
    let guard = Guard {
        program: PathBuf::from("/proc/self/exe"),
        environment: vec![(ROLE.into(), ROLE_IPGUARD.into())],
        root: tree.root().to_owned(),
        log_level: "info",
    };
    std::fs::write(guard.config(), CONFIG)?;
    services::install(tree.root())?;
    sleep(Duration::from_millis(100));
    let watch = CertificateWatch::start(tree.server_certificate(), &timeline);
    let server = ApiServer::start(tree.root(), tree.data("certs"), Reloading::OnChange, monotonic(), &timeline)?;

    let paint = Paint::for_stdout();
    println!("{}", paint.bold("A MicroK8s node at 192.0.2.10, and what happens to its addresses"));
    println!("Settle times are one twentieth of the defaults (quiet 0.25 s, promotion hold 1.5 s), jitter is off.");
    let kernel = KernelEvents::listen(tree.root().join("kernel-events"))?;
    let daemon = guard.run(&timeline)?;
    let mut play = Play {
        paint,
        guard,
        timeline,
        watch,
        server,
        tree,
        _far_end: far_end,
        texts: text_list()?,
        known: BTreeSet::new(),
        log_lines: 0,
        kernel,
        events_before: 0,
        told: 0,
        acts: Vec::new(),
        current: Counts::default(),
        before: Deeds::default(),
    };
    play.perform(daemon)
}

/// Two uplinks to a far end; the second one has no address yet.
fn network() -> stage::Result<FarEnd> {
    namespace::settle_defaults(false)?;
    // What systemd sets on every host it manages.
    sysctl("net.ipv4.conf.all.promote_secondaries=1")?;
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, ROLE_FAR_END);
    let mut far_end = FarEnd::start(command)?;
    far_end.sysctl("net.ipv6.conf.default.disable_ipv6=1")?;
    for (link, peer) in [("eth0", "peer0"), ("eth1", "peer1")] {
        ip(&format!("link add {link} type veth peer name {peer}"))?;
        ip(&format!("link set {peer} netns {}", far_end.pid()))?;
        far_end.ip(&format!("link set {peer} up"))?;
        ip(&format!("link set {link} up"))?;
    }
    sleep(Duration::from_millis(50));
    ip("addr add 192.0.2.10/24 dev eth0")?;
    ip("route add default via 192.0.2.1 dev eth0 proto dhcp metric 100")?;
    Ok(far_end)
}

/// The play while it runs.
struct Play {
    paint: Paint,
    guard: Guard,
    timeline: Timeline,
    watch: CertificateWatch,
    server: ApiServer,
    tree: Tree,
    _far_end: FarEnd,
    /// The text a polling loop would have seen last.
    texts: String,
    /// Verdicts that have been shown: address, link, class.
    known: BTreeSet<[String; 3]>,
    log_lines: usize,
    /// The kernel's own messages, as `ip monitor` prints them.
    kernel: KernelEvents,
    events_before: usize,
    /// Commands of this act that were shown.
    told: usize,
    acts: Vec<(String, Counts)>,
    current: Counts,
    before: Deeds,
}

/// What one act came to.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Messages of the kernel about links, addresses and routes.
    events: usize,
    reissues: usize,
    restarts: usize,
    /// Times at which a loop that compares texts would have reissued and restarted everything.
    polled: usize,
}

/// What has been done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Deeds {
    reissues: usize,
    restarts: usize,
}

impl Play {
    fn perform(&mut self, mut daemon: Daemon) -> stage::Result<bool> {
        let began = Instant::now();
        if let Err(error) = daemon.first_pass(Duration::from_secs(10)) {
            let said = self.timeline.texts("ipguard").join("\n");
            return Err(format!("{error}\n{said}").into());
        }
        self.listen(SETTLED);
        self.show()?;
        self.events_before = self.kernel.count()?;
        self.acts()?;
        let status = daemon.stop(Duration::from_secs(10))?;
        let faithful = self.table();
        secrets::stay_secret(&self.tree, &self.timeline)?;
        println!("\n{:.0} seconds; the daemon ended with {status}.", began.elapsed().as_secs_f64());
        Ok(faithful && status.success())
    }

    fn acts(&mut self) -> stage::Result<()> {
        self.open("PureLB adds a service address to the uplink and takes it away, ten times");
        for _ in 0..10 {
            self.change(&["addr add 192.0.2.100/24 dev eth0"])?;
            self.wait_and_poll(Duration::from_millis(400))?;
            self.change(&["addr del 192.0.2.100/24 dev eth0"])?;
            self.wait_and_poll(Duration::from_millis(400))?;
        }
        self.close(SETTLED)?;

        self.open("PureLB's dummy link kube-lb0 gets an address from a remote pool");
        self.make_dummy("kube-lb0")?;
        self.change(&["link set kube-lb0 up", "addr add 198.51.100.20/32 dev kube-lb0"])?;
        self.close(SETTLED)?;

        self.open("Calico starts: vxlan.calico with an address of the pod network");
        self.change(&["link add vxlan.calico type vxlan id 4096 dstport 4789 dev eth0 nolearning"])?;
        self.change(&["link set vxlan.calico up", "addr add 10.1.173.192/32 dev vxlan.calico"])?;
        self.close(SETTLED)?;

        self.open("docker compose makes a network");
        self.change(&["link add br-0123456789ab type bridge", "link set br-0123456789ab up"])?;
        self.change(&["addr add 172.19.0.1/16 dev br-0123456789ab"])?;
        self.close(SETTLED)?;

        self.open("A router announces an IPv6 prefix; the kernel adds a privacy address");
        sysctl("net.ipv6.conf.eth0.use_tempaddr=2")?;
        self.change(&[
            "addr add 2001:db8:1:0:5054:ff:fe12:3456/64 dev eth0 mngtmpaddr noprefixroute valid_lft 3600 preferred_lft 1800",
        ])?;
        self.close(SETTLED)?;

        self.open("The node address vanishes for a moment and comes back behind a service address, flagged secondary");
        self.change(&["addr add 192.0.2.100/24 dev eth0"])?;
        self.wait_and_poll(SETTLED)?;
        self.change(&["addr del 192.0.2.10/24 dev eth0"])?;
        sleep(Duration::from_millis(100));
        self.change(&["addr add 192.0.2.10/24 dev eth0"])?;
        self.close(HELD)?;

        self.open("The service address moves to another node");
        self.change(&["addr del 192.0.2.100/24 dev eth0"])?;
        self.change(&["route replace default via 192.0.2.1 dev eth0 proto dhcp metric 100"])?;
        self.close(SETTLED)?;

        self.open("A second NIC gets an address of its own");
        self.change(&["addr add 192.168.1.1/24 dev eth1"])?;
        self.close(HELD)?;

        self.open("DHCP gives the node another address");
        self.change(&["addr del 192.0.2.10/24 dev eth0"])?;
        sleep(Duration::from_millis(100));
        self.change(&[
            "addr add 192.0.2.57/24 dev eth0 valid_lft 3600 preferred_lft 3600",
            "route replace default via 192.0.2.1 dev eth0 proto dhcp metric 100",
        ])?;
        self.close(HELD + SETTLED)
    }

    /// Not every kernel has dummy links; a bridge of the name serves, since the name decides.
    fn make_dummy(&mut self, name: &str) -> stage::Result<()> {
        if self.change(&[&format!("link add {name} type dummy")]).is_ok() {
            return Ok(());
        }
        self.change(&[&format!("link add {name} type bridge")])
    }

    fn open(&mut self, title: &str) {
        println!("\n{}", self.paint.bold(&format!("{}. {title}", self.acts.len() + 1)));
        self.acts.push((title.to_owned(), Counts::default()));
        self.current = Counts::default();
        self.told = 0;
    }

    /// Lets time pass, and repeats what ipguard says while it says it.
    fn listen(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let lines = self.timeline.texts("ipguard");
            // The stage's own notes are of no interest here.
            let said = |line: &&String| !line.starts_with("explain ") && !line.starts_with("run,");
            for line in lines.iter().skip(self.log_lines).filter(said) {
                println!("   {}", self.paint.dim(line));
            }
            self.log_lines = lines.len();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// Changes the network in one go.
    fn change(&mut self, commands: &[&str]) -> stage::Result<()> {
        ip_all(&commands.iter().map(|command| (*command).to_owned()).collect::<Vec<_>>())?;
        for command in commands {
            match self.told {
                0 | 1 => println!("   {}", self.paint.dim(&format!("ip {command}"))),
                2 => println!("   {}", self.paint.dim("...")),
                _ => {}
            }
            self.told += 1;
        }
        Ok(())
    }

    /// Waits, then looks as a loop does that polls every five seconds, here every quarter of a second: what came and
    /// went in between it has not seen.
    fn wait_and_poll(&mut self, time: Duration) -> stage::Result<()> {
        self.listen(time);
        let texts = text_list()?;
        self.current.polled += usize::from(texts != self.texts);
        self.texts = texts;
        Ok(())
    }

    /// Waits, and says what came of the act.
    fn close(&mut self, time: Duration) -> stage::Result<()> {
        self.wait_and_poll(time)?;
        self.show()?;
        let now = Deeds {
            reissues: self.watch.sightings().replacements.len(),
            restarts: services::calls(self.tree.root())?
                .iter()
                .filter(|call| call.restarted() == Some(KUBELITE))
                .count(),
        };
        self.current.reissues = now.reissues - self.before.reissues;
        self.current.restarts = now.restarts - self.before.restarts;
        self.before = now;
        let events = self.kernel.count()?;
        self.current.events = events - self.events_before;
        self.events_before = events;
        let served = self.server.serving().is_some();
        println!("   {}", self.paint.green(&deeds(self.current, served)));
        if self.current.polled > 0 {
            let times =
                if self.current.polled == 1 { "once".to_owned() } else { format!("{} times", self.current.polled) };
            let text = format!("a loop comparing texts: reissues and restarts everything, {times}");
            println!("   {}", self.paint.red(&text));
        }
        if let Some((_, counts)) = self.acts.last_mut() {
            *counts = self.current;
        }
        Ok(())
    }

    /// What is new in ipguard's verdicts.
    fn show(&mut self) -> stage::Result<()> {
        let document =
            self.guard.document(&["explain", "--format", "json"], Duration::from_secs(10), &self.timeline)?;
        let mut now = BTreeSet::new();
        for entry in document["addresses"].as_array().into_iter().flatten() {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            let key = [text("address"), text("interface"), text("class")];
            if !self.known.contains(&key) && is_worth_showing(&key[0]) {
                println!("   {}", self.verdict(entry));
            }
            now.insert(key);
        }
        self.known = now;
        Ok(())
    }

    fn verdict(&self, entry: &Value) -> String {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let class = match text("class") {
            "primary" => self.paint.green("primary"),
            other => self.paint.yellow(other),
        };
        let node = if entry["node_address"] == true { ", the node address" } else { "" };
        let (address, length, interface) = (text("address"), &entry["prefix_len"], text("interface"));
        format!("{address}/{length} on {interface}: {class}{node} ({}: {})", text("rule"), text("evidence"))
    }

    /// The bill; whether it is what was promised.
    fn table(&self) -> bool {
        println!("\n{}", self.paint.bold("The bill"));
        println!("   {:<58} {:>7} {:>9} {:>9} {:>10}", "", "events", "reissues", "restarts", "text loop");
        let mut sum = Counts::default();
        for (n, (title, counts)) in self.acts.iter().enumerate() {
            sum.events += counts.events;
            sum.reissues += counts.reissues;
            sum.restarts += counts.restarts;
            sum.polled += counts.polled;
            println!("   {:<58} {}", shortened(&format!("{}. {title}", n + 1), 58), row(*counts));
        }
        println!("   {:<58} {}", "total", self.paint.bold(&row(sum)));
        println!(
            "   The text loop is one that polls `hostname -I`, less 169.254/16 and the CNI links it knows: every difference is\n   \
             a reissue and a restart of the API server with all pods. It misses what is shorter than its period."
        );
        let faithful = (sum.reissues, sum.restarts) == (2, 1);
        if !faithful {
            println!("   {}", self.paint.red("This is not what was promised: two reissues and one restart."));
        }
        faithful
    }
}

/// Counts the kernel's messages about links, addresses and routes: one line of `ip -o monitor` each.
struct KernelEvents {
    monitor: std::process::Child,
    lines: PathBuf,
}

impl KernelEvents {
    fn listen(lines: PathBuf) -> stage::Result<Self> {
        let monitor = std::process::Command::new("ip")
            .args(["-o", "monitor", "link", "address", "route"])
            .stdin(std::process::Stdio::null())
            .stdout(std::fs::File::create(&lines)?)
            .stderr(std::process::Stdio::null())
            .spawn()?;
        Ok(Self { monitor, lines })
    }

    fn count(&self) -> stage::Result<usize> {
        Ok(std::fs::read(&self.lines)?.iter().filter(|byte| **byte == b'\n').count())
    }
}

impl Drop for KernelEvents {
    fn drop(&mut self) {
        // It only listens; it may have ended by itself.
        let _ = self.monitor.kill();
        let _ = self.monitor.wait();
    }
}

fn deeds(counts: Counts, served: bool) -> String {
    let port = if served { "the API server's port is up" } else { "the API server's port is down" };
    match (counts.reissues, counts.restarts) {
        (0, 0) => "ipguard: nothing to do".to_owned(),
        (reissues, 0) => format!("ipguard: {reissues} reissue, loaded without a restart; {port}"),
        (reissues, restarts) => format!("ipguard: {reissues} reissue, {restarts} restart; {port}"),
    }
}

fn row(counts: Counts) -> String {
    format!("{:>7} {:>9} {:>9} {:>10}", counts.events, counts.reissues, counts.restarts, counts.polled)
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// Loopback and link-local addresses are on every link and tell no story.
fn is_worth_showing(address: &str) -> bool {
    !address.starts_with("127.") && address != "::1" && !address.starts_with("fe80:")
}

/// What a loop in a shell compares: the addresses of `hostname -I` in kernel order, less 169.254/16, less the first
/// IPv4 address of four CNI links.
fn text_list() -> stage::Result<String> {
    let listed = ip("-o addr show up")?;
    let rows: Vec<(&str, &str, &str)> = listed
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (link, family, cidr) = (words.next()?, words.next()?, words.next()?);
            Some((link, family, cidr.split('/').next()?))
        })
        .collect();
    let of_cni = ["vxlan.calico", "flannel.1", "cni0", "ovn0"]
        .iter()
        .filter_map(|cni| rows.iter().find(|(link, family, _)| link == cni && *family == "inet"))
        .map(|(_, _, address)| *address)
        .collect::<Vec<_>>();
    let texts: Vec<&str> = rows
        .iter()
        .filter(|(link, _, address)| *link != "lo" && !address.starts_with("fe80:") && !address.starts_with("169.254."))
        .map(|(_, _, address)| *address)
        .filter(|address| !of_cni.contains(address))
        .collect();
    Ok(texts.join(" "))
}

/// Colours, where somebody looks who wants them (https://no-color.org).
#[derive(Debug, Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(std::io::stdout().is_terminal() && !refused)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    fn red(self, text: &str) -> String {
        self.with("31", text)
    }
}
