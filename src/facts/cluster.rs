//! What the distribution's files say: component arguments, lock files, the request template, services.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::facts::certificate::CertificateFacts;
use crate::facts::san::San;
use crate::facts::time::Timestamp;
use crate::facts::{Read, ReadError};

/// A distribution found on this host.
#[derive(Debug, Clone)]
pub struct Cluster {
    /// Name of the profile.
    pub profile: String,
    /// The node's name: kubelet `--hostname-override`, else the host's.
    pub hostname: String,
    /// Flags of the components.
    pub arguments: Arguments,
    /// Lock and marker files that exist, with their modification time.
    pub locks: BTreeMap<String, Timestamp>,
    /// Why they cannot be listed: then nobody knows what they forbid.
    pub locks_unreadable: Option<ReadError>,
    /// Whether a process of a running join was seen; `None` where that was not looked at.
    pub joining: Option<bool>,
    /// The certificate request template; `None` where the distribution has none.
    pub template: Option<Read<Template>>,
    /// The address by which pods reach the host, from the lock file of the host-access addon.
    pub host_access: Option<IpAddr>,
    /// The request made from it; `None` where the distribution has none.
    pub request: Option<Read<Template>>,
    /// The certificates the profile names, `server` first.
    pub certificates: Vec<CertificateFacts>,
    /// Tokens by which nodes may still join.
    pub join_tokens: JoinTokens,
    /// Why the bundle of other CAs cannot be read: until it can, any certificate may rest on it.
    pub foreign_unreadable: Option<ReadError>,
}

/// Tokens by which nodes may still join. Only their number and their ends: whoever knows one may join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinTokens {
    /// Tokens without an end: they are good for one node, or for any number.
    pub lasting: usize,
    /// When the others end, or ended.
    pub ends: Vec<Timestamp>,
    /// Why there may be more.
    pub unreadable: Option<ReadError>,
}

/// The flags that matter, from the argument files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// The API server's file was read, or there is none: whether it switches address following off is known.
    pub switches_known: bool,
    /// kube-apiserver `--advertise-address`.
    pub advertise: FlagAddress,
    /// kube-apiserver `--bind-address`.
    pub bind: FlagAddress,
    /// kubelet `--node-ip`: up to one per family.
    pub node_ips: Vec<IpAddr>,
    /// kube-apiserver `--service-cluster-ip-range`, both families.
    pub service_cidrs: Vec<IpNet>,
    /// kube-proxy or controller-manager `--cluster-cidr`, both families.
    pub pod_cidrs: Vec<IpNet>,
    /// kube-apiserver `--secure-port`.
    pub secure_port: u16,
    /// kubelet `--port`.
    pub kubelet_port: u16,
    /// kubelet `--address`.
    pub kubelet_address: FlagAddress,
    /// kube-apiserver `--kubelet-certificate-authority` is given: it asks kubelets who they are.
    pub verifies_kubelets: bool,
    /// kube-apiserver `--endpoint-reconciler-type=none`: what the `kubernetes` Service lists is somebody else's business.
    pub endpoints_are_others: bool,
    /// kubelet `--hostname-override`.
    pub hostname_override: Option<String>,
    /// Argument files that exist and could not be read, and values that could not be parsed: what they would have
    /// said is unknown, so nothing may be dropped on their account.
    pub errors: Vec<ReadError>,
}

impl Arguments {
    /// Where the API server is reached from this host: a wildcard includes the loopback, an address of its own does not.
    pub const fn api_server_host(&self) -> IpAddr {
        self.bind.or_loopback()
    }

    /// Where the kubelet is.
    pub const fn kubelet_host(&self) -> IpAddr {
        self.kubelet_address.or_loopback()
    }
}

/// An address-valued flag.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FlagAddress {
    /// Not given: addresses are followed.
    #[default]
    Absent,
    /// `0.0.0.0` or `::`: pins nothing, but is the documented switch that turns address following off.
    Wildcard,
    /// One address: it is a SAN and the node address, and address following is off.
    Address(IpAddr),
    /// Given and not an address: following is off, nothing is pinned.
    Unparsable(String),
}

impl FlagAddress {
    /// The pinned address, if there is one.
    pub const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(value) => Some(*value),
            _ => None,
        }
    }

    const fn or_loopback(&self) -> IpAddr {
        match self {
            Self::Address(address) => *address,
            _ => IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        }
    }

    /// Whether the flag is there at all.
    pub const fn is_given(&self) -> bool {
        !matches!(self, Self::Absent)
    }
}

/// The mark in a template that stands for the node's addresses.
pub const MARKER: &str = "#MOREIPS";

/// `csr.conf.template`: an OpenSSL request configuration with a marker where the node's addresses go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The file as it is: `csr.conf` is this text with the marker replaced.
    pub text: String,
    /// `DNS.n` and `IP.n` entries of the alt_names section.
    pub sans: Vec<San>,
    /// Subject attributes of the distinguished-name section, in order: (`C`, `GB`) …
    pub subject: Vec<(String, String)>,
    /// Whether `#MOREIPS` is there. Without it the certificate has the template's names and no others.
    pub marker: bool,
    /// Bytes of the text that more names take the place of: the marker, or nothing at the end of the section of names
    /// where the marker is elsewhere. `None` where there is no such section.
    pub place: Option<Range<usize>>,
    /// Entries that OpenSSL does not see, since a later one has the same number.
    pub overridden: Vec<San>,
    /// `default_days` of the `req` section.
    pub validity: Option<Duration>,
}

/// A service as the service manager sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceState {
    /// `ActiveState` is `active`; `None` when it could not be asked.
    pub active: Option<bool>,
    /// When its main process started, on the monotonic clock.
    pub started: Option<Duration>,
    /// Its main process; `None` when it has none or the manager does not say.
    pub main_process: Option<u32>,
    /// What one that is not active is besides.
    pub standing: Standing,
    /// What the manager answered, for people: `active`, `inactive`, or why it gave no answer.
    pub detail: String,
}

/// What a service that is not active is besides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Standing {
    /// Stopped, or the manager does not say more: snapd calls a failed service inactive.
    #[default]
    Stopped,
    /// On its way up or down: `activating`, `deactivating`, `reloading`.
    Changing,
    /// `failed`, and the manager has given it up. systemd's `Result` says how: `exit-code`, `start-limit-hit`.
    Failed(String),
}

/// systemd's name for a unit that it does not start any more for a while.
pub const START_LIMIT_HIT: &str = "start-limit-hit";

/// A service of the profile.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Service {
    /// Name used in plans and logs: `kubelite`.
    pub name: String,
    /// What it is to us.
    pub role: Role,
    /// systemd unit, asked for its state: `snap.microk8s.daemon-kubelite.service`.
    pub unit: String,
    /// Snap application, when it is one: `microk8s.daemon-kubelite`. Restarted through snapd.
    #[serde(default)]
    pub snap: Option<String>,
    /// Where the API server says whether it is ready: `/readyz`. `None` where it is not asked.
    #[serde(default)]
    pub ready: Option<String>,
}

/// What a service is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs the API server: reloads the certificate by itself, advertises one address until it is restarted.
    ApiServer,
    /// Runs the API server on a node of an age at which one process did not yet run all components.
    FormerApiServer,
    /// Loads the server certificate once at start: restarted on every new one; cheap.
    LoadsCertificateOnce,
    /// Makes certificates too: while it runs, two would undo each other's work. Touched only where a takeover was ordered.
    OtherGuard,
}

impl Role {
    /// Whether it runs the API server, on a node of whatever age.
    pub const fn is_api_server(self) -> bool {
        matches!(self, Self::ApiServer | Self::FormerApiServer)
    }
}

/// Where the files of a certificate are; paths are resolved when they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificatePaths {
    /// The leaf.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The CA bundle.
    pub authority: PathBuf,
    /// The CA's key.
    pub authority_key: PathBuf,
}
