//! The configuration as it is meant: checked values, nothing optional without meaning.
//!
//! In: the file as written. Out: [`Config`], which decisions read. Every field's default is the documented
//! one; `ipguard config default` prints them.

mod address;
pub mod duration;
pub mod file;
pub mod overrides;
pub mod print;
pub mod snap;
mod suggest;
mod table;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::facts::cluster::Service;
use crate::facts::san::San;

pub use address::refused_as_pin;

/// Checked configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which distribution.
    pub profile: ProfileChoice,
    /// Decide and report everything, touch nothing.
    pub observe: bool,
    /// `[addresses]`.
    pub addresses: AddressConfig,
    /// `[certificate]`.
    pub certificate: CertificateConfig,
    /// `[settle]`.
    pub settle: SettleConfig,
    /// `[restart]`.
    pub restart: RestartConfig,
    /// `[probe]`.
    pub probe: ProbeConfig,
    /// `[[service]]`: services besides the profile's; one of the same name replaces it.
    pub services: Vec<Service>,
    /// `[chores]`: the distribution's upkeep besides certificates.
    pub chores: ChoresConfig,
    /// `[log]`: the most detailed level that is written.
    pub log_level: LogLevel,
}

/// Which distribution's files to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileChoice {
    /// Found from what is on disk.
    Auto,
    /// Named by the operator.
    Named(String),
}

/// `auto`, or a name.
impl From<&str> for ProfileChoice {
    fn from(word: &str) -> Self {
        match word {
            "auto" => Self::Auto,
            name => Self::Named(name.to_owned()),
        }
    }
}

/// `[log] level` and `--log-level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// And what needs attention.
    Warn,
    /// And each pass that changed something.
    #[default]
    Info,
    /// And each pass.
    Debug,
    /// And each message.
    Trace,
}

impl LogLevel {
    /// The words for it, in the file and on the command line.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

/// `[addresses]`: what the operator says about addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressConfig {
    /// Always primary and always a SAN, even while absent from the host.
    pub pin: Vec<IpAddr>,
    /// What becomes of secondary addresses when a certificate is made.
    pub secondary: SecondaryPolicy,
    /// Rules, first match wins.
    pub rules: Vec<AddressRule>,
}

/// What becomes of secondary addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecondaryPolicy {
    /// Never SANs.
    #[default]
    Ignore,
    /// SANs of a certificate that is made for another reason; never a reason themselves.
    Include,
}

/// `[[addresses.rule]]`: every given condition must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRule {
    /// Shown as evidence.
    pub name: String,
    /// This value.
    pub address: Option<IpAddr>,
    /// Inside this network.
    pub cidr: Option<IpNet>,
    /// Link name, with `*` and `?`.
    pub interface: Option<String>,
    /// `IFLA_INFO_KIND`; `physical` stands for a link without one.
    pub kind: Option<String>,
    /// `IFA_PROTO`.
    pub protocol: Option<u8>,
    /// What it is.
    pub class: RuleClass,
}

/// Classes an operator may assign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleClass {
    /// The node's own: a SAN while it is there.
    Primary,
    /// On the node, not its identity.
    Secondary,
    /// A load balancer's or CNI's.
    LbOwned,
    /// Not looked at.
    Ignored,
}

/// `[certificate]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateConfig {
    /// Names every certificate gets.
    pub extra_sans: Vec<San>,
    /// Validity of a new leaf, clamped to the CA's.
    pub validity: Duration,
    /// How a new leaf points to its CA.
    pub authority_key_id: AuthorityKeyId,
    /// Renew when less than this is left; `None` is a third of the certificate's life.
    pub renew_before: Option<Duration>,
    /// CAs besides the cluster's whose certificates are left alone.
    pub foreign_bundle: Option<PathBuf>,
    /// How long an address that ipguard added stays after it left the host.
    pub retain: Duration,
    /// Address-caused reissues allowed in an hour.
    pub reissue_limit: u32,
}

/// What the authorityKeyIdentifier of a leaf names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthorityKeyId {
    /// The CA's key: the leaf outlives a renewal of the CA's certificate.
    #[default]
    KeyId,
    /// The CA's certificate too, by its issuer and serial, as MicroK8s' `keyid,issuer:always` does.
    KeyIdIssuerSerial,
}

/// `[settle]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettleConfig {
    /// Act after this long without a relevant change …
    pub quiet: Duration,
    /// … at most this long after the first.
    pub max: Duration,
    /// How long a link must have lost its primary before another address takes its place, and how long a node
    /// address must be gone before it counts as replaced.
    pub promotion_hold: Duration,
    /// How long the first pass behind a boot waits for a default route.
    pub boot: Duration,
}

/// `[restart]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartConfig {
    /// Restarts of the API server allowed in `window`.
    pub limit: u32,
    /// See `limit`.
    pub window: Duration,
    /// Largest stable delay, derived from the node's name, so that control planes do not restart together.
    pub jitter: Duration,
    /// Whether ipguard may restart the API server at all.
    pub policy: RestartPolicy,
}

/// Whether ipguard may restart the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestartPolicy {
    /// When nothing gentler can do.
    #[default]
    WhenNeeded,
    /// Never: reported as a hold.
    Never,
}

/// `[probe]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeConfig {
    /// How long a running API server may take to serve a new certificate. Kubernetes before 1.23 looks once a minute.
    pub reload_timeout: Duration,
}

/// `[chores]`: what `ipguard chores` may do; each can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoresConfig {
    /// Group and mode of the data store's folder, group of containerd's socket.
    pub permissions: bool,
    /// The `reconcile` hooks.
    pub hooks: bool,
    /// The ConfigMap that says how to reach a local registry.
    pub registry: bool,
}

impl Default for ChoresConfig {
    fn default() -> Self {
        Self { permissions: true, hooks: true, registry: true }
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Config {
    fn default() -> Self {
        Self {
            profile: ProfileChoice::Auto,
            observe: false,
            addresses: AddressConfig::default(),
            certificate: CertificateConfig {
                extra_sans: Vec::new(),
                validity: DAY * 365,
                authority_key_id: AuthorityKeyId::KeyId,
                renew_before: None,
                foreign_bundle: None,
                retain: DAY,
                reissue_limit: 6,
            },
            settle: SettleConfig {
                quiet: Duration::from_secs(5),
                max: Duration::from_secs(30),
                promotion_hold: Duration::from_secs(30),
                boot: Duration::from_secs(30),
            },
            restart: RestartConfig {
                limit: 3,
                window: HOUR,
                jitter: Duration::from_secs(20),
                policy: RestartPolicy::WhenNeeded,
            },
            probe: ProbeConfig { reload_timeout: Duration::from_secs(70) },
            services: Vec::new(),
            chores: ChoresConfig::default(),
            log_level: LogLevel::Info,
        }
    }
}
