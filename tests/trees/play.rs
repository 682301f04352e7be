//! Plays one tree: looks, applies, looks again, and judges every file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::runner::skip;
use crate::stage::age::Age;
use crate::stage::api_server::Reloading;
use crate::stage::authority;
use crate::stage::guard::Guard;
use crate::stage::namespace::{ip_all, settle_defaults};
use crate::stage::port::{API_SERVER, Port};
use crate::stage::timeline::{Timeline, monotonic};
use crate::stage::tree::{Tree, TreeSpec};
use crate::stage::{Result, secrets, services};

/// The node address.
pub(crate) const NODE: &str = "192.0.2.10";
/// A second address of the node, in a subnet of its own, that the certificate does not name: in most rows the reason.
pub(crate) const SECOND: &str = "198.51.100.7";
/// The names that the template of the stage asks for.
pub(crate) const SHIPPED: &[&str] = &[
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster",
    "DNS:kubernetes.default.svc.cluster.local",
    "127.0.0.1",
    "10.152.183.1",
];
/// One-shots wait for a port that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG: &str = "[settle]\nquiet = \"300ms\"\nmax = \"2s\"\npromotion_hold = \"HOLD\"\n\n\
    [restart]\njitter = \"0s\"\n\n[probe]\nreload_timeout = \"2s\"\n";

/// A tree, the host around it, and what must come of them.
#[derive(Debug)]
pub(crate) struct Row {
    /// What is on the disk.
    pub(crate) spec: TreeSpec,
    /// What is changed on the disk after that.
    pub(crate) prepare: fn(&Tree) -> Result<()>,
    /// Commands of `ip`, behind the uplink `eth0`.
    pub(crate) network: Vec<String>,
    /// `promotion_hold`: long, so that nothing is restarted for an address, but where that is tried.
    pub(crate) promotion_hold: &'static str,
    /// Whether the services were there before the addresses.
    pub(crate) services_first: bool,
    /// What ipguard remembers.
    pub(crate) state: Option<&'static str>,
    /// Lines in front of the configuration.
    pub(crate) config: &'static str,
    /// Whether ipguard runs inside the MicroK8s snap.
    pub(crate) inside_snap: bool,
    /// What `check` says.
    pub(crate) verdict: &'static str,
    /// Code and certificate of each reason.
    pub(crate) reasons: Vec<(&'static str, &'static str)>,
    pub(crate) holds: Vec<&'static str>,
    /// Words that must stand in a hold.
    pub(crate) said: &'static str,
    /// The steps, word for word up to a closing bracket.
    pub(crate) steps: Vec<String>,
    /// Files below the data folder that `--apply` writes, and their mode behind it.
    pub(crate) written: Vec<(&'static str, u32)>,
    /// All names of the server certificate at the end; `None` where there is none to read.
    pub(crate) names: Option<Vec<String>>,
    /// The API server's file, below the data folder.
    pub(crate) certificate: &'static str,
    /// Certificates of the chain that is presented.
    pub(crate) chain: usize,
    /// Days that it is good for from now on, where that is not a year.
    pub(crate) days: Option<u32>,
    /// What `ips` prints.
    pub(crate) ips: String,
}

impl Row {
    /// A node of that age, in step but for its second address.
    pub(crate) fn of(age: Age) -> Self {
        let mut sans: Vec<String> = SHIPPED.iter().map(|name| (*name).to_owned()).collect();
        sans.push(NODE.to_owned());
        let mut names = sans.clone();
        names.push(SECOND.to_owned());
        Self {
            spec: TreeSpec { age: Some(age), sans, beside: Some(NODE.to_owned()), ..TreeSpec::default() },
            prepare: |_| Ok(()),
            network: vec![
                format!("addr add {NODE}/24 dev eth0"),
                format!("addr add {SECOND}/24 dev eth0"),
                "route add default via 192.0.2.1".to_owned(),
            ],
            promotion_hold: "10m",
            services_first: false,
            state: None,
            config: "",
            inside_snap: false,
            verdict: "reissue",
            reasons: vec![("address-missing", "server")],
            holds: Vec::new(),
            said: "",
            steps: [
                "reissue server with 9 names (adding 198.51.100.7)",
                "confirm that 127.0.0.1:16443 serves the server certificate",
                "restart cluster-agent (loaded-once)",
            ]
            .map(str::to_owned)
            .into(),
            written: vec![("certs/csr.conf", 0o660), ("certs/server.crt", 0o660)],
            names: Some(names),
            certificate: "certs/server.crt",
            chain: 1,
            days: None,
            ips: format!("{NODE} {SECOND}"),
        }
    }

    /// The same without its reason: the certificate names the second address too.
    pub(crate) fn in_step(mut self) -> Self {
        self.spec.sans.push(SECOND.to_owned());
        (self.verdict, self.reasons, self.steps, self.written) = ("in-step", vec![], vec![], vec![]);
        self
    }

    /// Everything waits.
    pub(crate) fn held(mut self, holds: &[&'static str]) -> Self {
        (self.verdict, self.holds, self.steps, self.written) = ("hold", holds.to_vec(), vec![], vec![]);
        self.names = Some(self.spec.sans.clone());
        self
    }
}

/// A file as it was found: content, mode, owner, group.
type Seen = (Vec<u8>, u32, u32, u32);

/// Every file below a folder. Folders that are not regular files are left out, as are links.
fn seen(folder: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut rest = vec![folder.to_owned()];
    while let Some(next) = rest.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_dir() {
                rest.push(entry.path());
            } else if metadata.is_file() {
                let content = fs::read(entry.path()).unwrap_or_default();
                let mode = metadata.permissions().mode() & 0o7777;
                all.insert(entry.path(), (content, mode, metadata.uid(), metadata.gid()));
            }
        }
    }
    all
}

fn strings(value: &Value, field: &str) -> Vec<String> {
    let of = |item: &Value| item[field].as_str().unwrap_or_default().to_owned();
    value.as_array().into_iter().flatten().map(of).collect()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, there: &T, wanted: &T) -> Result<()> {
    if there == wanted { Ok(()) } else { Err(format!("{what}: {there:?}, not {wanted:?}").into()) }
}

/// Plays a row.
pub(crate) fn play(row: &Row, timeline: &Timeline) -> Result<()> {
    settle_defaults(false)?;
    let uplink = ["link add eth0 type veth peer name far0", "link set far0 up", "link set eth0 up"].map(str::to_owned);
    ip_all(&uplink)?;
    ip_all(&row.network)?;
    let tree = Tree::create(&row.spec, false)?;
    (row.prepare)(&tree)?;
    services::install(tree.root())?;
    let before = Duration::from_secs(if row.services_first { 60 } else { 0 });
    let started = monotonic().saturating_sub(before);
    services::set_active(tree.root(), Some(started))?;
    if row.spec.age == Some(Age::V1_18) {
        services::before_kubelite(tree.root(), started)?;
    }
    let data = tree.data("").canonicalize()?;
    let mut environment = Vec::new();
    if row.inside_snap {
        let inside = |path: &Path| Path::new("/").join(path.strip_prefix(tree.root()).unwrap_or(path));
        environment.push(("SNAP_INSTANCE_NAME".into(), "microk8s".into()));
        environment.push(("SNAP_DATA".into(), inside(&data).into()));
        environment.push(("SNAP_COMMON".into(), "/var/snap/microk8s/common".into()));
        fs::create_dir_all(tree.path("var/snap/microk8s/common"))?;
    }
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ipguard"));
    let guard = Guard { program, environment, root: tree.root().to_owned(), log_level: "debug" };
    fs::write(guard.config(), format!("{}\n{}", row.config, CONFIG.replace("HOLD", row.promotion_hold)))?;
    if let Some(state) = row.state {
        let folder = tree.path("var/lib/ipguard");
        fs::create_dir(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        fs::write(folder.join("state.json"), state)?;
    }
    // The kernel's stamps on addresses lag behind the clock by up to half a second.
    std::thread::sleep(Duration::from_millis(600));

    let name = Path::new(row.certificate).file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let _port = Port::open(API_SERVER, tree.root(), data.join("certs"), name, Reloading::OnChange, timeline)?;

    let before = seen(&tree.path("var"));
    look(row, &guard, timeline)?;
    same("what a look has written", &seen(&tree.path("var")), &before)?;
    let restarts = services::calls(tree.root())?.iter().filter(|call| call.restarted().is_some()).count();
    same("restarts by a look", &restarts, &0)?;
    let printed = guard.once(&["ips"], PATIENCE, timeline)?;
    same("ips", &printed.stdout.trim(), &row.ips.as_str())?;

    let applied = guard.once(&["check", "--apply"], PATIENCE, timeline)?;
    same("exit status of check --apply", &applied.status.code(), &Some(0))?;
    let after = seen(&data);
    judge_files(row, &data, &before, &after)?;
    judge_certificate(row, &tree, &data)?;
    judge_calls(row, &tree)?;

    // What was done once is not done again, and what is held still is.
    let again = guard.document(&["check", "--format", "json"], PATIENCE, timeline)?;
    let reissues = strings(&again["steps"], "").len();
    let makes = again["steps"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let makes: Vec<&str> = makes.filter(|step| step.starts_with("reissue")).collect();
    same(&format!("certificates that a second look would make ({reissues} steps)"), &makes, &vec![])?;
    same(
        "holds of a second look",
        &strings(&again["holds"], "code"),
        &row.holds.iter().map(|h| (*h).to_owned()).collect(),
    )?;
    let twice = guard.once(&["check", "--apply"], PATIENCE, timeline)?;
    same("exit status of a second check --apply", &twice.status.code(), &Some(0))?;
    same("what a second one has written", &seen(&data), &after)?;
    secrets::stay_secret(&tree, timeline)
}

/// What is read and what is held.
fn look(row: &Row, guard: &Guard, timeline: &Timeline) -> Result<()> {
    let printed = guard.once(&["check", "--format", "json"], PATIENCE, timeline)?;
    let document: Value = serde_json::from_str(&printed.stdout)?;
    same("verdict", &document["verdict"].as_str().unwrap_or_default(), &row.verdict)?;
    let reasons: Vec<(String, String)> =
        strings(&document["reasons"], "code").into_iter().zip(strings(&document["reasons"], "certificate")).collect();
    let wanted = row.reasons.iter().map(|(code, name)| ((*code).to_owned(), (*name).to_owned())).collect();
    same("reasons", &reasons, &wanted)?;
    same("holds", &strings(&document["holds"], "code"), &row.holds.iter().map(|h| (*h).to_owned()).collect())?;
    let details = strings(&document["holds"], "detail").join("\n");
    if !details.contains(row.said) {
        return Err(format!("no hold says {:?}: {details}", row.said).into());
    }
    let steps: Vec<String> =
        document["steps"].as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned)).collect();
    same("steps", &steps, &row.steps)?;
    let makes = row.steps.iter().any(|step| step.starts_with("reissue"));
    same("exit status of check", &printed.status.code(), &Some(if makes { 2 } else { 0 }))
}

/// Exactly the files of the row have changed, have its modes, and kept owner and group.
fn judge_files(
    row: &Row,
    data: &Path,
    before: &BTreeMap<PathBuf, Seen>,
    after: &BTreeMap<PathBuf, Seen>,
) -> Result<()> {
    let changed: BTreeSet<PathBuf> =
        after.iter().filter(|(path, now)| before.get(*path) != Some(now)).map(|(path, _)| path.clone()).collect();
    let wanted: BTreeSet<PathBuf> = row.written.iter().map(|(path, _)| data.join(path)).collect();
    same("files written", &changed, &wanted)?;
    let gone: Vec<&PathBuf> =
        before.keys().filter(|path| path.starts_with(data) && !after.contains_key(*path)).collect();
    same("files gone", &gone, &vec![])?;
    for (path, mode) in &row.written {
        let now = &after[&data.join(path)];
        same(&format!("mode of {path}"), &format!("{:o}", now.1), &format!("{mode:o}"))?;
        let folder = fs::metadata(data.join(path).parent().unwrap_or(data))?;
        let (owner, group) = before.get(&data.join(path)).map_or_else(|| (now.2, folder.gid()), |was| (was.2, was.3));
        same(&format!("owner and group of {path}"), &(now.2, now.3), &(owner, group))?;
    }
    Ok(())
}

/// The server certificate has exactly the row's names, verifies against the CA, and its request file says the same to
/// openssl.
fn judge_certificate(row: &Row, tree: &Tree, data: &Path) -> Result<()> {
    let certificate = data.join(row.certificate);
    let Some(names) = &row.names else { return Ok(()) };
    let wanted: BTreeSet<String> = names.iter().map(|name| authority::canonical(name)).collect();
    same("names", &authority::names(&certificate)?, &wanted)?;
    if !row.written.iter().any(|(path, _)| *path == row.certificate) {
        return Ok(());
    }
    let chain = fs::read_to_string(&certificate)?.matches("BEGIN CERTIFICATE").count();
    same("certificates in the chain", &chain, &row.chain)?;
    let openssl = |words: &[&str]| Command::new("openssl").args(words).current_dir(data.join("certs")).output();
    let version = openssl(&["version"]);
    if version.map_or(true, |output| !output.status.success()) {
        return skip("openssl not found");
    }
    let seconds = u64::from(row.days.unwrap_or(365)) * 86_400;
    let ends = |seconds: u64| {
        let (file, seconds) = (certificate.display().to_string(), seconds.to_string());
        openssl(&["x509", "-in", &file, "-noout", "-checkend", &seconds]).map(|output| !output.status.success())
    };
    same("its end", &(ends(seconds - 3600)?, ends(seconds + 3600)?), &(false, true))?;
    let run = |words: &[&str]| {
        let output = openssl(words)?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() {
            Ok(said)
        } else {
            Err(format!("openssl {words:?}: {said}")) as std::result::Result<String, String>
        }
        .map_err(crate::stage::Failure::from)
    };
    let file = certificate.display().to_string();
    run(&["verify", "-CAfile", "ca.crt", "-untrusted", &file, "-purpose", "sslserver", &file])?;
    run(&["verify", "-CAfile", "ca.crt", "-untrusted", &file, "-purpose", "sslclient", &file])?;
    if !row.written.iter().any(|(path, _)| *path == "certs/csr.conf") {
        return Ok(());
    }
    // As the scripts sign with it, on a key that exists only here.
    let own = tree.path("state/own.pem").display().to_string();
    let csr = tree.path("state/own.csr").display().to_string();
    run(&[
        "req", "-new", "-batch", "-newkey", "rsa:2048", "-nodes", "-keyout", &own, "-config", "csr.conf", "-out", &csr,
    ])?;
    let signed =
        ["x509", "-req", "-in", &csr, "-signkey", &own, "-extfile", "csr.conf", "-extensions", "v3_ext", "-days", "1"];
    let pem = run(&signed)?;
    let start = pem.find("-----BEGIN").ok_or("openssl printed no certificate")?;
    same("names by csr.conf", &authority::names_of(&pem.as_bytes()[start..])?, &wanted)
}

/// Nothing is started, stopped or killed, and only the plan's services are restarted.
fn judge_calls(row: &Row, tree: &Tree) -> Result<()> {
    let calls = services::calls(tree.root())?;
    for call in &calls {
        if row.inside_snap && call.program != "snapctl" {
            return Err(format!("inside the snap only snapctl may be asked: {call:?}").into());
        }
        if call.restarted().is_none() && !call.only_asks() {
            return Err(format!("a call that is neither a question nor a restart: {call:?}").into());
        }
    }
    let restarted: Vec<&str> = calls.iter().filter_map(|call| call.restarted()).collect();
    let units = [
        ("restart cluster-agent", services::CLUSTER_AGENT),
        ("restart kubelite", services::KUBELITE),
        ("restart apiserver", services::FORMER_API_SERVER),
    ];
    let planned = row.steps.iter().filter_map(|step| units.iter().find(|(words, _)| step.starts_with(words)));
    same("restarts", &restarted, &planned.map(|(_, unit)| *unit).collect())
}
