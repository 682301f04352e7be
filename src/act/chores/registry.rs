//! The note that tells tools where a cluster's local registry is explained: a ConfigMap that a Kubernetes convention
//! (KEP-1755) gives a name and a place.
//!
//! In: the distribution's kubectl and credentials. Out: the note, if there was none. The rule of this file: one that is
//! there is never changed, and once the cluster is known to have it kubectl is not run again. The credentials are those that
//! MicroK8s' own scripts use as root; members of its group may write them, and run programs by them as by hooks.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::act::child::{Child, ChildError, Command};
use crate::act::chores::wait::{StopSignals, Waited};
use crate::decide::chores::{RegistryNote, registry_note};

/// For kubectl to end; it gives up by itself before that.
const TIME: Duration = Duration::from_secs(30);
/// A port on this host answers at once or not at all.
const CONNECT: Duration = Duration::from_secs(1);

/// The value of the key that the convention names: YAML with the one field for people.
const NOTE: &str = "--from-literal=localRegistryHosting.v1=help: \"https://microk8s.io/docs/registry-built-in\"\n";

/// How to reach the cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    /// The distribution's kubectl.
    pub program: PathBuf,
    /// Credentials of an administrator.
    pub kubeconfig: PathBuf,
    /// A folder of ours for what kubectl remembers; else it would look for a home, and find the root folder.
    pub cache: PathBuf,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// The cluster had the note.
    Before,
    /// It has it now.
    Now,
    /// It is too early to tell.
    NotYet,
    /// We are to stop.
    Stopped,
}

/// Whether something listens on the API server's port: asked before kubectl is run, which costs a hundred times as much.
pub fn answers(port: u16) -> bool {
    let both = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    both.iter().any(|address| TcpStream::connect_timeout(address, CONNECT).is_ok())
}

impl Kubectl {
    /// Makes the note if there is none.
    ///
    /// # Errors
    /// kubectl cannot be run, or says that it failed.
    pub fn register(&self, signals: &StopSignals) -> Result<Registered, ChildError> {
        // One question for both: the note alone does not tell whether its namespace is there.
        let ask =
            ["get", "namespace/kube-public", "configmap/local-registry-hosting", "--ignore-not-found", "--output=name"];
        let Some(answer) = self.run(&ask, signals)? else { return Ok(Registered::Stopped) };
        match registry_note(&answer) {
            RegistryNote::There => Ok(Registered::Before),
            RegistryNote::TooEarly => Ok(Registered::NotYet),
            RegistryNote::Missing => {
                // `create` fails where somebody was faster, and never changes what is theirs.
                let made = self.run(&["create", "configmap", "local-registry-hosting", NOTE], signals)?;
                Ok(made.map_or(Registered::Stopped, |_| Registered::Now))
            }
        }
    }

    fn run(&self, arguments: &[&str], signals: &StopSignals) -> Result<Option<String>, ChildError> {
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut all = vec![option("kubeconfig", &self.kubeconfig), option("cache-dir", &self.cache)];
        all.extend(["--request-timeout=10s", "--namespace=kube-public"].map(str::to_owned));
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let command = Command { program: self.program.clone(), arguments: all, keeps: &[] };
        match signals.wait(Child::spawn(command.clone(), Instant::now() + TIME)?) {
            Waited::Ended(ended) => Ok(Some(ended?.success(&command)?.stdout)),
            Waited::Stopped => Ok(None),
        }
    }
}
