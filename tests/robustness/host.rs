//! The host that all cases play on: one uplink with a default route, a MicroK8s tree, stand-ins, the real binary.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::stage::Result;
use crate::stage::api_server::{ApiServer, Reloading};
use crate::stage::authority;
use crate::stage::certificate_watch::CertificateWatch;
use crate::stage::guard::{Daemon, Guard, Printed};
use crate::stage::namespace::{ip, settle_defaults};
use crate::stage::secrets;
use crate::stage::services::{self, CLUSTER_AGENT, KUBELITE};
use crate::stage::timeline::{Timeline, monotonic};
use crate::stage::tree::{Tree, TreeSpec};

/// The node address at the start.
pub(crate) const NODE: &str = "192.0.2.10";
/// Its gateway.
const GATEWAY: &str = "192.0.2.1";
/// Longest time to wait for what must happen: long against every configured time, for a machine that is busy.
pub(crate) const SOON: Duration = Duration::from_secs(15);
/// How long to look for what must not happen: several times `quiet`, and `promotion_hold`.
pub(crate) const A_WHILE: Duration = Duration::from_millis(2500);

/// Short times; the limits out of the way of those who do not try them.
pub(crate) const CONFIG: &str = "[certificate]\nreissue_limit = 1000\n\n\
    [settle]\nquiet = \"300ms\"\nmax = \"2s\"\npromotion_hold = \"1s\"\n\n\
    [restart]\nlimit = 100\njitter = \"0s\"\n\n[probe]\nreload_timeout = \"2s\"\n";

/// What a host starts from.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: String,
    pub(crate) spec: TreeSpec,
    pub(crate) reloading: Reloading,
    pub(crate) addresses: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster"];
        let mut sans: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
        sans.push("DNS:kubernetes.default.svc.cluster.local".to_owned());
        sans.extend(["127.0.0.1", "10.152.183.1", NODE].map(str::to_owned));
        Self {
            config: CONFIG.to_owned(),
            spec: TreeSpec { sans, ..TreeSpec::default() },
            reloading: Reloading::OnChange,
            addresses: true,
        }
    }
}

/// The host; everything of it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) guard: Guard,
    pub(crate) watch: CertificateWatch,
    pub(crate) server: Option<ApiServer>,
    pub(crate) tree: Tree,
    pub(crate) timeline: Timeline,
}

/// A disk that was mounted in the tree goes before the tree does. In most cases there is none.
impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            secrets::stay_secret(&self.tree, &self.timeline).expect("keys stay where they are");
        }
        let _ = nix::mount::umount2(&self.tree.path("var"), nix::mount::MntFlags::MNT_DETACH);
    }
}

impl Host {
    pub(crate) fn new(timeline: &Timeline) -> Result<Self> {
        Self::with(&Setup::default(), timeline)
    }

    pub(crate) fn with(setup: &Setup, timeline: &Timeline) -> Result<Self> {
        settle_defaults(false)?;
        ip("link add eth0 type veth peer name far0")?;
        ip("link set far0 up")?;
        ip("link set eth0 up")?;
        sleep(Duration::from_millis(50));
        if setup.addresses {
            ip(&format!("addr add {NODE}/24 dev eth0"))?;
            ip(&format!("route add default via {GATEWAY}"))?;
        }
        let tree = Tree::create(&setup.spec, false)?;
        services::install(tree.root())?;
        let guard = Guard {
            program: PathBuf::from(env!("CARGO_BIN_EXE_ipguard")),
            environment: Vec::new(),
            root: tree.root().to_owned(),
            log_level: "debug",
        };
        fs::write(guard.config(), &setup.config)?;
        // The kernel's stamps on addresses lag behind the clock by up to half a second.
        sleep(Duration::from_millis(600));
        let watch = CertificateWatch::start(tree.server_certificate(), timeline);
        let server = ApiServer::start(tree.root(), tree.data("certs"), setup.reloading, monotonic(), timeline)?;
        Ok(Self { guard, watch, server: Some(server), tree, timeline: timeline.clone() })
    }

    /// Starts those who look at the certificate anew, on the tree as it is now.
    pub(crate) fn restart_watchers(&mut self) -> Result<()> {
        self.server = None;
        self.watch = CertificateWatch::start(self.tree.server_certificate(), &self.timeline);
        let (root, certificates) = (self.tree.root(), self.tree.data("certs"));
        self.server = Some(ApiServer::start(root, certificates, Reloading::OnChange, monotonic(), &self.timeline)?);
        Ok(())
    }

    /// Starts the daemon and waits for its first pass.
    pub(crate) fn daemon(&self) -> Result<Daemon> {
        let mut daemon = self.start()?;
        daemon.first_pass(SOON)?;
        Ok(daemon)
    }

    /// Starts the daemon.
    pub(crate) fn start(&self) -> Result<Daemon> {
        let socket = self.tree.path("run/notify");
        if socket.exists() {
            fs::remove_file(socket)?;
        }
        self.guard.run(&self.timeline)
    }

    pub(crate) fn once(&self, arguments: &[&str]) -> Result<Printed> {
        self.guard.once(arguments, Duration::from_secs(60), &self.timeline)
    }

    /// Runs an `ip` command and notes it.
    pub(crate) fn ip(&self, words: &str) -> Result<()> {
        self.timeline.note("step", words);
        ip(words).map(|_| ())
    }

    /// Another subnet on the uplink: a primary address, never a reason to restart the API server.
    pub(crate) fn add(&self, address: &str) -> Result<()> {
        self.ip(&format!("addr add {address}/24 dev eth0"))
    }

    /// What DHCP does when it hands out another lease.
    pub(crate) fn replace_node_address(&self, before: &str, after: &str) -> Result<()> {
        self.ip(&format!("addr del {before}/24 dev eth0"))?;
        self.ip(&format!("addr add {after}/24 dev eth0"))?;
        self.ip(&format!("route replace default via {GATEWAY}"))
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        authority::names(&self.tree.server_certificate()).unwrap_or_default()
    }

    pub(crate) fn covers(&self, address: &str) -> bool {
        self.names().contains(address)
    }

    pub(crate) fn await_covered(&self, address: &str) -> Result<()> {
        until(&format!("the certificate covers {address}"), SOON, || self.covers(address))
    }

    /// Restarts so far: of kubelite, of the cluster-agent.
    pub(crate) fn restarts(&self) -> Result<(usize, usize)> {
        let calls = services::calls(self.tree.root())?;
        let of = |unit| calls.iter().filter(|call| call.restarted() == Some(unit)).count();
        Ok((of(KUBELITE), of(CLUSTER_AGENT)))
    }

    pub(crate) fn await_restarts(&self, wanted: (usize, usize)) -> Result<()> {
        let seen = || self.restarts().unwrap_or_default();
        let waited = until("restarts", SOON, || {
            let seen = seen();
            seen.0 >= wanted.0 && seen.1 >= wanted.1
        });
        waited.map_err(|_| format!("kubelite and cluster-agent restarted {:?} times, not {wanted:?}", seen()))?;
        same("restarts of kubelite and the cluster-agent", &self.restarts()?, &wanted)
    }

    /// How often another certificate appeared.
    pub(crate) fn reissues(&self) -> usize {
        self.watch.sightings().replacements.len()
    }

    /// For a while neither certificate nor restarts change.
    pub(crate) fn nothing_happens(&self, for_so_long: Duration) -> Result<()> {
        let before = (self.reissues(), self.restarts()?);
        sleep(for_so_long);
        same("reissues and restarts while nothing should happen", &(self.reissues(), self.restarts()?), &before)
    }

    /// The state file as a document; null when it is not there or is none.
    pub(crate) fn state(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.state_file()).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    pub(crate) fn state_folder(&self) -> PathBuf {
        self.tree.path("var/lib/ipguard")
    }

    pub(crate) fn state_file(&self) -> PathBuf {
        self.state_folder().join("state.json")
    }

    /// Everything the daemon has said so far.
    pub(crate) fn said(&self) -> String {
        self.timeline.texts("ipguard").join("\n")
    }

    pub(crate) fn await_said(&self, words: &str) -> Result<()> {
        until(&format!("ipguard says {words:?}"), SOON, || self.said().contains(words))
    }

    /// A certificate that parses, and the key it belongs to.
    pub(crate) fn pair_is_usable(&self) -> Result<()> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_file_iter(self.tree.server_certificate())?.collect::<std::result::Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(self.tree.data("certs/server.key"))?;
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        Ok(())
    }

    /// Puts a shell script in a stand-in's place. `$real` is the stand-in it replaces.
    pub(crate) fn replace_stand_in(&self, name: &str, script: &str) -> Result<()> {
        let real = self.tree.path("state/real");
        let place = self.tree.path("usr/bin").join(name);
        if !real.join(name).exists() {
            fs::create_dir_all(&real)?;
            fs::rename(&place, real.join(name))?;
        }
        let script = format!(
            "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nroot='{}'\nreal='{}'\n{script}\n",
            self.tree.root().display(),
            real.join(name).display()
        );
        self.timeline.note("step", format!("{name} is replaced"));
        put(&place, &script, 0o755)
    }

    /// snapd refuses to restart kubelite, for it is at something else. The file is there once it has.
    pub(crate) fn put_a_change_in_the_way(&self) -> Result<PathBuf> {
        self.replace_stand_in(
            "snap",
            "case $2 in *kubelite) echo > \"$root/state/refused\"\n\
             echo 'error: snap \"microk8s\" has \"refresh-snap\" change in progress' >&2; exit 10 ;; esac\n\
             exec \"$real\" \"$@\"",
        )?;
        Ok(self.tree.path("state/refused"))
    }

    /// Puts the stand-in back.
    pub(crate) fn restore_stand_in(&self, name: &str) -> Result<()> {
        self.timeline.note("step", format!("{name} is back"));
        Ok(fs::rename(self.tree.path("state/real").join(name), self.tree.path("usr/bin").join(name))?)
    }

    /// Runs the daemon through a script: `$guard` is the real program.
    pub(crate) fn run_through(&mut self, script: &str) -> Result<()> {
        let path = self.tree.path("state/through");
        let guard = env!("CARGO_BIN_EXE_ipguard");
        put(&path, &format!("#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nguard='{guard}'\n{script}\n"), 0o755)?;
        self.guard.program = path;
        Ok(())
    }

    /// Mounts a small disk of its own over `var`, with what was there.
    pub(crate) fn put_var_on_a_disk(&self, kibibytes: u32) -> Result<()> {
        let (var, before) = (self.tree.path("var"), self.tree.path("var.before"));
        fs::rename(&var, &before)?;
        fs::create_dir(&var)?;
        let options = format!("size={kibibytes}k");
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("tmpfs"), &var, Some("tmpfs"), flags, Some(options.as_str()))?;
        let from = format!("{}/.", before.display());
        let status = Command::new("cp").args(["-a", &from]).arg(&var).status()?;
        if status.success() { Ok(()) } else { Err("cp failed".into()) }
    }
}

/// Writes beside the place and moves it there: a running script is not changed under its shell.
pub(crate) fn put(place: &Path, text: &str, mode: u32) -> Result<()> {
    let new = place.with_extension("new");
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    Ok(fs::rename(new, place)?)
}

/// Waits until something holds.
pub(crate) fn until(what: &str, patience: Duration, holds: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + patience;
    while !holds() {
        if Instant::now() > deadline {
            return Err(format!("not within {patience:?}: {what}").into());
        }
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits until the status line has these words.
pub(crate) fn await_status(daemon: &mut Daemon, words: &[&str]) -> Result<String> {
    let began = Instant::now();
    loop {
        let last = daemon.status()?;
        if words.iter().all(|word| last.contains(word)) {
            return Ok(last.to_owned());
        }
        expect(began.elapsed() < SOON, format!("a status with {words:?}: {last:?}"))?;
        sleep(Duration::from_millis(10));
    }
}

/// An error unless it holds.
pub(crate) fn expect(holds: bool, what: impl Display) -> Result<()> {
    if holds { Ok(()) } else { Err(format!("does not hold: {what}").into()) }
}

/// An error unless both are the same.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, wanted: &T) -> Result<()> {
    if seen == wanted { Ok(()) } else { Err(format!("{what}: {seen:?}, not {wanted:?}").into()) }
}

/// What the kernel has counted about the daemon.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) wakeups: u64,
    pub(crate) resident_kib: u64,
}

impl Usage {
    pub(crate) fn of(daemon: &Daemon) -> Result<Self> {
        let folder = PathBuf::from(format!("/proc/{}", daemon.pid()));
        let statistics = fs::read_to_string(folder.join("schedstat"))?;
        let nanos: u64 = statistics.split_whitespace().next().ok_or("schedstat is empty")?.parse()?;
        let status = fs::read_to_string(folder.join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        };
        Ok(Self {
            cpu: Duration::from_nanos(nanos),
            wakeups: field("voluntary_ctxt_switches:").ok_or("no voluntary_ctxt_switches")?,
            resident_kib: field("VmRSS:").ok_or("no VmRSS")?,
        })
    }

    /// CPU time of the daemon over a span, children not counted.
    pub(crate) fn cpu_over(daemon: &Daemon, span: Duration) -> Result<Duration> {
        let before = Self::of(daemon)?;
        sleep(span);
        Ok(Self::of(daemon)?.cpu.saturating_sub(before.cpu))
    }
}

/// A daemon that has nothing to do, or cannot do it, does not burn the processor.
pub(crate) fn is_calm(host: &Host, daemon: &Daemon) -> Result<()> {
    let calls = services::calls(host.tree.root())?.len();
    let cpu = Usage::cpu_over(daemon, Duration::from_secs(3))?;
    let calls = services::calls(host.tree.root())?.len() - calls;
    host.timeline.note("stage", format!("{cpu:?} of CPU and {calls} service commands in 3 s"));
    expect(cpu < Duration::from_millis(50), format!("calm: {cpu:?} of CPU in 3 s"))?;
    expect(calls <= 6, format!("calm: {calls} service commands in 3 s"))
}
