//! One prepared tree, of which every fault gets a copy of its own, and the judge of what a fault leaves.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::stage::namespace::{ip, settle_defaults};
use crate::stage::tree::{Tree, TreeSpec};
use crate::stage::{Failure, Result, authority, services};

/// The node address, which the certificate at the start names.
pub(crate) const NODE: &str = "192.0.2.10";
/// An address that it does not: the reason of the reissue.
pub(crate) const ADDED: &str = "198.51.100.7";
/// Some group that is not ours, so that the write path has to give files to it.
pub(crate) const GROUP: u32 = 4242;
/// Side by side: each waits for its disk and for strace most of the time.
const JOBS: usize = 6;
const CONFIG: &str = "[certificate]\nreissue_limit = 1000\n\n[restart]\nlimit = 100\njitter = \"0s\"\n\n[probe]\nreload_timeout = \"1ms\"\n";

/// The prepared tree.
#[derive(Debug)]
pub(crate) struct Bed {
    pristine: Tree,
    copies: AtomicUsize,
    pub(crate) old: Files,
    /// `csr.conf` as a reissue that nothing disturbs leaves it.
    pub(crate) new_request: String,
}

/// What a write may change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) certificate: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) request: Option<Vec<u8>>,
}

/// A copy of the tree; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) root: PathBuf,
}

impl Bed {
    /// A tree with the server's certificate alone; `change` is the last to touch it.
    pub(crate) fn new(change: impl FnOnce(&Tree) -> Result<()>) -> Result<Self> {
        Self::prepare(None, change)
    }

    /// A tree with all three certificates.
    pub(crate) fn complete(change: impl FnOnce(&Tree) -> Result<()>) -> Result<Self> {
        Self::prepare(Some(NODE.to_owned()), change)
    }

    /// Brings up the network of the namespace and prepares the tree.
    fn prepare(beside: Option<String>, change: impl FnOnce(&Tree) -> Result<()>) -> Result<Self> {
        settle_defaults(false)?;
        ip("link add eth0 type veth peer name far0")?;
        ip("link set far0 up")?;
        ip("link set eth0 up")?;
        ip(&format!("addr add {NODE}/24 dev eth0"))?;
        ip(&format!("addr add {ADDED}/24 dev eth0"))?;
        ip("route add default via 192.0.2.1")?;
        let mut sans: Vec<String> =
            ["", ".default", ".default.svc", ".default.svc.cluster", ".default.svc.cluster.local"]
                .map(|rest| format!("DNS:kubernetes{rest}"))
                .into();
        sans.extend(["127.0.0.1", "10.152.183.1", NODE].map(str::to_owned));
        let pristine = Tree::create(&TreeSpec { sans, beside, ..TreeSpec::default() }, false)?;
        fs::write(pristine.path("etc/ipguard/ipguard.toml"), CONFIG)?;
        let certs = pristine.data("certs");
        // Refused in a user namespace with one group only: then there is nothing to give away.
        if chown(&certs, None, Some(GROUP)).is_ok() {
            for entry in fs::read_dir(&certs)? {
                chown(entry?.path(), None, Some(GROUP))?;
            }
        }
        let mut bed =
            Self { old: Files::of(pristine.root()), pristine, copies: AtomicUsize::new(0), new_request: String::new() };
        let reference = bed.host()?;
        let output = reference.apply(&[])?;
        reference.is_done().map_err(|error| format!("{error}: {}", text(&output)))?;
        bed.new_request = fs::read_to_string(reference.certs("csr.conf"))?;
        change(&bed.pristine)?;
        bed.old = Files::of(bed.pristine.root());
        Ok(bed)
    }

    /// A fresh copy.
    pub(crate) fn host(&self) -> Result<Host> {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let root = self.pristine.root().with_extension(number.to_string());
        let host = Host { root };
        let status = Command::new("cp").arg("-a").arg(self.pristine.root()).arg(&host.root).status()?;
        if !status.success() {
            return Err("cp failed".into());
        }
        services::install(&host.root)?;
        Ok(host)
    }

    /// Certificate and key are the old pair or a new one, `csr.conf` the old text or the new one.
    pub(crate) fn old_or_new(&self, host: &Host) -> Result<()> {
        let now = Files::of(&host.root);
        if now.key != self.old.key {
            return Err("the key is another one".into());
        }
        if now.certificate != self.old.certificate {
            host.covers()?;
        }
        host.pair_is_servable()?;
        self.request_is_whole(&now)
    }

    pub(crate) fn request_is_whole(&self, now: &Files) -> Result<()> {
        match &now.request {
            request if *request == self.old.request => Ok(()),
            Some(request) if *request == self.new_request.as_bytes() => Ok(()),
            other => Err(format!("csr.conf is neither old nor new: {other:?}").into()),
        }
    }

    /// A run that nothing disturbs finishes the job, and leaves nothing lying about.
    pub(crate) fn heals(&self, host: &Host) -> Result<()> {
        let output = host.apply(&[])?;
        let said = |error: Failure| format!("after the second run: {error}\n{}", text(&output));
        if output.status.code() != Some(0) {
            return Err(said(format!("{}", output.status).into()).into());
        }
        host.is_done().map_err(said)?;
        if fs::read(host.certs("csr.conf"))? != self.new_request.as_bytes() {
            return Err(said("csr.conf is not the new one".into()).into());
        }
        host.is_at_rest().map_err(|error| said(error).into())
    }
}

impl Files {
    pub(crate) fn of(root: &Path) -> Self {
        let read = |name: &str| fs::read(root.join("var/snap/microk8s/current/certs").join(name)).ok();
        Self { certificate: read("server.crt"), key: read("server.key"), request: read("csr.conf") }
    }
}

impl Host {
    pub(crate) fn certs(&self, name: &str) -> PathBuf {
        self.root.join("var/snap/microk8s/current/certs").join(name)
    }

    /// `check --apply`, through another program that is given first.
    pub(crate) fn apply(&self, through: &[&str]) -> Result<Output> {
        self.run(through, &["check", "--apply"])
    }

    pub(crate) fn run(&self, through: &[&str], arguments: &[&str]) -> Result<Output> {
        Ok(self.command(through, arguments).output()?)
    }

    pub(crate) fn command(&self, through: &[&str], arguments: &[&str]) -> Command {
        command(&self.root, through, arguments)
    }

    /// Nothing is left lying about, and nothing is left to do.
    pub(crate) fn is_at_rest(&self) -> Result<()> {
        for folder in [self.certs(""), self.root.join("var/lib/ipguard")] {
            if let Some(name) = names(&folder)?.iter().find(|name| name.starts_with(".ipguard-")) {
                return Err(format!("{name} was left in {}", folder.display()).into());
            }
        }
        let output = self.run(&[], &["check"])?;
        if output.status.code() == Some(0) { Ok(()) } else { Err(format!("not in step: {}", text(&output)).into()) }
    }

    /// The certificate covers both addresses and has its key.
    pub(crate) fn is_done(&self) -> Result<()> {
        self.covers()?;
        self.pair_is_servable()
    }

    pub(crate) fn covers(&self) -> Result<()> {
        let names = authority::names(&self.certs("server.crt"))?;
        match [NODE, ADDED].iter().find(|address| !names.contains(**address)) {
            Some(missing) => Err(format!("the certificate does not cover {missing}").into()),
            None => Ok(()),
        }
    }

    pub(crate) fn pair_is_servable(&self) -> Result<()> {
        self.pair_loads("server")
    }

    /// Certificate and key of this name belong together.
    pub(crate) fn pair_loads(&self, name: &str) -> Result<()> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(self.certs(&format!("{name}.crt")))?
            .collect::<std::result::Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(self.certs(&format!("{name}.key")))?;
        ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?;
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // What cannot be removed is left in the temporary folder, where it does no harm.
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn command(root: &Path, through: &[&str], arguments: &[&str]) -> Command {
    let words: Vec<&str> = through.iter().copied().chain([env!("CARGO_BIN_EXE_ipguard")]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(arguments);
    command.arg("--root").arg(root).arg("--config").arg(root.join("etc/ipguard/ipguard.toml"));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command
}

/// Makes the reissue in the prepared tree itself, so that every copy begins behind it.
pub(crate) fn reissue(tree: &Tree) -> Result<()> {
    services::install(tree.root())?;
    let output = command(tree.root(), &[], &["check", "--apply"]).output()?;
    if output.status.success() { Ok(()) } else { Err(text(&output).into()) }
}

pub(crate) fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let listing = match fs::read_dir(folder) {
        // A run that was killed early has made no folder.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        listing => listing?,
    };
    listing.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// What a run said, for people.
pub(crate) fn text(output: &Output) -> String {
    let part = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}\n{}{}", output.status, part(&output.stdout), part(&output.stderr))
}

/// Exit status 0, or 1 with a message: nothing else is an answer to a fault.
pub(crate) fn answered(output: &Output) -> Result<()> {
    match output.status.code() {
        Some(0) => Ok(()),
        Some(1) if !output.stderr.is_empty() => Ok(()),
        _ => Err(format!("no clear answer: {}", text(output)).into()),
    }
}

/// Tries all, some side by side; the first failures are shown.
pub(crate) fn all<T: Sync + std::fmt::Debug>(faults: &[T], attempt: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let queue = Mutex::new(faults.iter().collect::<VecDeque<_>>());
    let failures = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some(fault) = next() {
                    if let Err(error) = attempt(fault) {
                        let line = format!("{fault:?}: {error}");
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failures.is_empty() {
        return Ok(());
    }
    let shown = failures.iter().take(8).cloned().collect::<Vec<_>>().join("\n\n");
    Err(format!("{} of {} failed:\n{shown}", failures.len(), faults.len()).into())
}

pub(crate) fn put(path: &Path, text: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o660))?)
}
