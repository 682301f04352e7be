//! The plan: what one pass concludes, as data.
//!
//! In: nothing but the other files of this folder. Out: [`Plan`], printed by `check`, carried out by `act/`, compared by
//! tests. Every reason is listed, not the first; a hold always says what ends it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use crate::config::AuthorityKeyId;
use crate::decide::mend::Mend;
use crate::decide::state::{Advertised, State};
use crate::decide::verdict::Verdict;
use crate::facts::certificate::Purpose;
use crate::facts::network::Family;
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;

/// What one pass concludes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// In one word.
    pub summary: Summary,
    /// Why a certificate is made or a service restarted; all of them.
    pub reasons: Vec<Reason>,
    /// What is not done although there would be a reason, and what ends the wait.
    pub holds: Vec<Hold>,
    /// Things people should know that change nothing.
    pub notices: Vec<String>,
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// What an interrupted write left to be finished beside a certificate that is in step.
    pub mend: Option<Mend>,
    /// Names of the server certificate.
    pub san: SanPlan,
    /// Every address with its class.
    pub addresses: Vec<Verdict>,
    /// The node address of each family.
    pub node_address: BTreeMap<Family, IpAddr>,
    /// The state as this observation leaves it, whether or not the steps are carried out.
    pub state: State,
    /// The plan cannot be completed without the services' states: ask, then plan again.
    pub needs_services: bool,
    /// The plan cannot be completed without what the API server lists: ask, together with the services, then plan again.
    pub needs_listed: Option<Question>,
    /// Services that must be restarted once a new server certificate is in place, by name.
    pub load_once_services: Vec<String>,
    /// `check --format microk8s`: the caller has to restart kubelite.
    pub caller_restarts: bool,
    /// When time alone will change this plan.
    pub look_again: Option<Timestamp>,
}

/// Which API server is asked for the addresses that the `kubernetes` Service lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Certificate that it serves.
    pub certificate: String,
    /// The address to connect to.
    pub host: IpAddr,
    /// Port on the API server's own address.
    pub port: u16,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The daemon: it has seen every settled pass, and it will be there later.
    Daemon,
    /// One pass for a person or a timer.
    OneShot,
    /// One pass for `produce_certs` or a hook: restarts of the API server are the caller's, nothing is waited for.
    Hook,
}

/// A plan in one word: the `verdict` of `check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Summary {
    /// Nothing to do.
    InStep,
    /// Make certificates.
    Reissue,
    /// Make certificates and restart the API server.
    ReissueAndRestart,
    /// Restart the API server.
    Restart,
    /// There is something to do, and a reason to wait with all of it.
    Hold,
}

/// Why something is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Which kind.
    pub code: ReasonCode,
    /// Certificate it concerns.
    pub certificate: String,
    /// The evidence, for people.
    pub detail: String,
}

/// Kinds of reasons, named by the violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasonCode {
    /// A primary address is not in the certificate.
    AddressMissing,
    /// A configured name is not in the certificate.
    ConfiguredSanMissing,
    /// There is no certificate file, or it is empty or cannot be parsed.
    CertificateUnusable,
    /// The key is missing or unusable.
    KeyUnusable,
    /// Certificate and key do not belong together.
    KeyMismatch,
    /// Not issued by the current CA.
    IssuerMismatch,
    /// The rest of the validity is short.
    NearExpiry,
    /// The validity is over.
    Expired,
    /// The validity has not begun.
    NotYetValid,
    /// It does not allow what it is for: no serverAuth or clientAuth, no digitalSignature, or it is a CA.
    WrongUsage,
    /// A SAN entry that a Go server refuses.
    SanRefused,
    /// A signature algorithm that Go refuses.
    SignatureRefused,
    /// Somebody asked for it.
    Forced,
    /// The node address the API server advertises was replaced.
    NodeAddressReplaced,
    /// A running API server still serves the certificate before.
    ServedStale,
    /// The API server came up behind a restart and cannot use the certificate.
    ServedUnusable,
    /// The API server did not come back behind our own restart.
    ServiceDown,
    /// A service that loads the certificate once has not been restarted since it changed.
    LoadedOnce,
    /// Another guard was enabled or started again after it was taken over from.
    GuardEnabled,
}

impl ReasonCode {
    /// Whether the reason comes from the host's addresses: those are limited and held, the others are not.
    pub const fn is_address_caused(self) -> bool {
        matches!(self, Self::AddressMissing | Self::NodeAddressReplaced)
    }

    /// Whether a rollback holds it: it is about names, and the certificate that was put back works without them.
    pub const fn is_held_by_rollback(self) -> bool {
        matches!(self, Self::AddressMissing | Self::ConfiguredSanMissing)
    }

    /// Whether the reason compares dates with the clock: without a clock to trust it waits.
    pub const fn is_date_caused(self) -> bool {
        matches!(self, Self::NearExpiry | Self::Expired | Self::NotYetValid)
    }

    /// Whether it is one to make a certificate, not to restart a service.
    pub const fn is_about_certificate(self) -> bool {
        !matches!(
            self,
            Self::NodeAddressReplaced
                | Self::ServedStale
                | Self::ServedUnusable
                | Self::ServiceDown
                | Self::LoadedOnce
                | Self::GuardEnabled
        )
    }
}

/// Why something is not done yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hold {
    /// Which kind.
    pub code: HoldCode,
    /// What is held and what ends it, for people.
    pub detail: String,
    /// When it ends by itself, if time does it.
    #[serde(serialize_with = "timestamp_or_null")]
    pub until: Option<Timestamp>,
}

/// Kinds of holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldCode {
    /// The network or a candidate has not been stable for long enough.
    Settling,
    /// The distribution's data folder cannot be found.
    DataMissing,
    /// The API server's arguments cannot be read: whether they switch address following off is not known.
    ArgsUnreadable,
    /// The snapshot could not be completed.
    SnapshotIncomplete,
    /// The API server was restarted as often as allowed.
    RestartLimit,
    /// Address-caused reissues were as many as allowed.
    ReissueLimit,
    /// A restart was begun, and how it ended is not known yet.
    RestartUnderWay,
    /// The configuration forbids restarts.
    RestartDisabled,
    /// The stable delay before a restart, so that control planes do not go down together.
    RestartJitter,
    /// The lock files cannot be listed: what they forbid is not known.
    LocksUnreadable,
    /// A node is joining the cluster.
    JoinInProgress,
    /// Nodes may still join by a string that carries the certificate's fingerprint.
    JoinTokens,
    /// The operator stopped the node.
    Stopped,
    /// A worker node: no API server here.
    Worker,
    /// The node has too little memory for a control plane.
    LowMemoryGuard,
    /// `no-cert-reissue`: addresses are not followed.
    ReissueDisabled,
    /// `--advertise-address` or `--bind-address` is given: addresses are not followed.
    PinnedArgs,
    /// The template has no marker: its names and no others.
    ManualTemplate,
    /// The template cannot be read or parsed, so the configured names are not known.
    TemplateUnreadable,
    /// The host has no default route.
    NoDefaultRoute,
    /// No address is primary.
    NoPrimaryAddress,
    /// A primary address failed duplicate detection.
    DadFailed,
    /// A restart would make the API server advertise an address that is not the node's.
    WouldAdvertiseOther,
    /// There is no usable CA certificate.
    CaMissing,
    /// There is no CA key that belongs to the CA certificate.
    CaKeyMissing,
    /// The CA is expired or not yet valid.
    CaNotValid,
    /// The CA ends before the certificate, or soon: no renewal can live longer.
    CaExpiring,
    /// A verifier refuses what the CA signs: it is no CA, or may not sign certificates.
    CaCannotSign,
    /// Pin and exclude on one address.
    ConfigurationConflict,
    /// The certificate is by somebody else's CA, with a subject of its own: it is left alone.
    ForeignIssuer,
    /// The API server's arguments name another certificate file than the distribution's.
    CertificateElsewhere,
    /// The clock is behind what this host has already seen, or behind the CA's start while nobody has set it.
    ClockUnsynchronised,
    /// The same plan failed before; backing off.
    FailedBefore,
    /// The state of the service to restart is not known.
    ServiceInactive,
    /// Another guard is at work.
    AnotherGuardActive,
    /// An earlier certificate was put back: names are not a reason to replace it.
    RolledBack,
}

/// A step of a plan, in the imperative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Build a leaf, verify it, put it in place.
    Issue(IssueOrder),
    /// Put an earlier leaf back and hold it.
    PutBack {
        /// Certificate of the profile.
        certificate: String,
        /// SHA-256 of the leaf to put back, hexadecimal.
        leaf: String,
        /// What is wrong with the one in place.
        cause: String,
    },
    /// Wait until a port serves the certificate on disk.
    ConfirmServed {
        /// Certificate it should serve.
        certificate: String,
        /// Whether it is the kubelet's port; else it is the API server's.
        shown_by_kubelet: bool,
        /// Port on the server's own address.
        port: u16,
        /// The address to connect to.
        host: IpAddr,
        /// When a port that answers with another leaf counts as stale.
        deadline: Timestamp,
    },
    /// Wait until the API server says that it is ready.
    ConfirmReady {
        /// Certificate that it serves, and that it is asked with.
        certificate: String,
        /// Port on the API server's own address.
        port: u16,
        /// The address to connect to.
        host: IpAddr,
        /// What is asked for: `/readyz`.
        path: String,
        /// When one that is not ready is reported.
        deadline: Timestamp,
    },
    /// Restart a service, if it runs.
    Restart {
        /// Its name in the profile.
        service: String,
        /// Why.
        reason: ReasonCode,
    },
    /// Stop a service, and keep it from being started at the next boot.
    Disable {
        /// Its name in the profile.
        service: String,
        /// Why.
        reason: ReasonCode,
    },
}

/// A leaf to be made. Complete: nothing is left to choose while making it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueOrder {
    /// Name in the profile.
    pub certificate: String,
    /// What it and its CA must be good for.
    pub purpose: Purpose,
    /// Its names.
    pub sans: SanSet,
    /// Which of them this order adds to what the certificate had.
    pub added: SanSet,
    /// Names the certificate had that this order leaves out.
    pub dropped: SanSet,
    /// Subject.
    pub subject: Subject,
    /// Start of validity: at most an hour back, never before the CA's.
    pub not_before: Timestamp,
    /// End of validity, clamped to the CA's.
    pub not_after: Timestamp,
    /// Make a new key, because there is no usable one that could be kept.
    pub new_key: bool,
    /// How it points to its CA; [`AuthorityKeyId::KeyId`] unless configuration says otherwise.
    pub authority_key_id: AuthorityKeyId,
    /// Text of the request file to write last, where the distribution has one.
    pub request: Option<String>,
    /// Whether the host's addresses are the only cause, for the limit.
    pub address_caused: bool,
    /// Whether it is the one the API server serves: its port is asked then, and who loads it once is restarted.
    pub served: bool,
    /// Whether it is the one the kubelet serves: the kubelet's port is asked then.
    pub shown_by_kubelet: bool,
}

/// The subject of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Attribute types and values, in order.
    Attributes(Vec<(String, String)>),
    /// The subject of the certificate before, byte for byte (DER).
    Keep(Vec<u8>),
}

/// Names of the server certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SanPlan {
    /// What configuration and the host demand.
    pub desired: SanSet,
    /// What the certificate has; empty when it cannot be read.
    pub certificate: SanSet,
    /// Demanded and not there.
    pub missing: SanSet,
    /// There and not demanded: kept.
    pub extra: SanSet,
    /// What a reissue drops: added by ipguard, gone for longer than `retain`.
    pub dropped: SanSet,
    /// Demanded and left out, because the certificate would have too many names.
    pub left_out: SanSet,
}

impl SanPlan {
    /// For a certificate that keeps the names it has.
    pub fn keeping(names: Option<&SanSet>) -> Self {
        let names = names.cloned().unwrap_or_default();
        Self { desired: names.clone(), certificate: names, ..Self::default() }
    }
}

impl Plan {
    /// Whether the plan restarts the API server.
    pub fn restarts_api_server(&self) -> bool {
        matches!(self.summary, Summary::Restart | Summary::ReissueAndRestart)
    }

    /// What the API server advertises once it has been restarted: the node address, IPv4 where there is one.
    pub fn advertised_after_restart(&self) -> Option<Advertised> {
        let address = self.node_address.values().next()?;
        Some(Advertised::now(*address))
    }

    /// Why the caller of a hook restarts the API server, if it does so for more than a first certificate. Until it has, a
    /// second restart would be for nothing.
    pub fn restart_of_caller(&self) -> Option<ReasonCode> {
        let restart = |code: &ReasonCode| matches!(code, ReasonCode::NodeAddressReplaced | ReasonCode::ServedStale);
        self.reasons.iter().map(|reason| reason.code).find(restart).filter(|_| self.caller_restarts)
    }

    /// Whether there is anything to carry out.
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InStep => "in-step",
            Self::Reissue => "reissue",
            Self::ReissueAndRestart => "reissue-and-restart",
            Self::Restart => "restart",
            Self::Hold => "hold",
        })
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kebab(f, self)
    }
}

impl fmt::Display for HoldCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        kebab(f, self)
    }
}

/// The serialised name is the stable one; text output uses the same.
fn kebab(f: &mut fmt::Formatter<'_>, code: &impl Serialize) -> fmt::Result {
    match serde_json::to_value(code) {
        Ok(serde_json::Value::String(name)) => f.write_str(&name),
        _ => Err(fmt::Error),
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issue(order) => {
                write!(f, "reissue {} with {} names", order.certificate, order.sans.len())?;
                for (what, names) in [("adding", &order.added), ("dropping", &order.dropped)] {
                    let names: Vec<String> = names.iter().map(San::to_string).collect();
                    if !names.is_empty() {
                        write!(f, " ({what} {})", names.join(", "))?;
                    }
                }
                Ok(())
            }
            Self::PutBack { certificate, leaf, .. } => {
                write!(f, "put the {certificate} certificate {} back", leaf.get(..16).unwrap_or(leaf))
            }
            Self::ConfirmServed { certificate, port, host, .. } => {
                write!(
                    f,
                    "confirm that {} serves the {certificate} certificate",
                    std::net::SocketAddr::from((*host, *port))
                )
            }
            Self::ConfirmReady { port, host, path, .. } => {
                write!(f, "confirm that {} is ready ({path})", std::net::SocketAddr::from((*host, *port)))
            }
            Self::Restart { service, reason } => write!(f, "restart {service} ({reason})"),
            Self::Disable { service, reason } => write!(f, "stop and disable {service} ({reason})"),
        }
    }
}

fn timestamp_or_null<S: serde::Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.collect_str(at),
        None => to.serialize_none(),
    }
}
