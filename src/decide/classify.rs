//! placeholder

use std::net::IpAddr;

/// What an address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The node's own: a SAN.
    Primary,
    /// On the node, not its identity.
    Secondary,
    /// A load balancer's or a CNI's.
    LbOwned,
    /// Not looked at.
    Ignored,
    /// No verdict in this pass.
    Unsettled,
}

/// One address value with the rule that decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The value.
    pub address: IpAddr,
    /// Prefix length of the copy that decided.
    pub prefix_len: u8,
    /// Link of the copy that decided; empty for a pinned address that is not on the host.
    pub interface: String,
    /// Kind of that link.
    pub link_kind: Option<String>,
    /// What it is.
    pub class: Class,
    /// Label of the rule that decided.
    pub rule: &'static str,
    /// What the rule saw.
    pub evidence: String,
}
