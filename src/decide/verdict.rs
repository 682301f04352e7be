//! Classes and verdicts: what a classification says.
//!
//! In: nothing. Out: types. The rule of this file: an address value has one class, by one rule, with what the rule saw.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::decide::incumbents::Memory;
use crate::facts::time::Timestamp;

/// What an address is. Ordered from best to worst: a value on several links counts under its best class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The node's own: a SAN.
    Primary,
    /// On the node, not its identity.
    Secondary,
    /// A load balancer's or a CNI's.
    LbOwned,
    /// No verdict in this pass.
    Unsettled,
    /// Not looked at.
    Ignored,
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
/// The classified host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classification {
    /// One per value, in kernel order of the deciding copies; absent pins last.
    pub verdicts: Vec<Verdict>,
    /// Values that are primary only because their link lost its last primary.
    pub promoted: BTreeSet<IpAddr>,
    /// What stands in for the last accepted set, and what was lost of it.
    pub memory: Memory,
    /// When a promotion that is being held becomes due.
    pub promotion_due: Option<Timestamp>,
    /// Promotions that load-balancer evidence forbids, for people.
    pub notices: Vec<String>,
    /// Values whose incumbent copy failed duplicate detection.
    pub dad_failed: Vec<IpAddr>,
}

impl Classification {
    /// The primary values.
    pub fn primary(&self) -> BTreeSet<IpAddr> {
        self.verdicts.iter().filter(|v| v.class == Class::Primary).map(|v| v.address).collect()
    }

    /// The verdict on a value.
    pub fn verdict(&self, address: IpAddr) -> Option<&Verdict> {
        self.verdicts.iter().find(|v| v.address == address)
    }
}

/// What a row of the table says about one copy of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) class: Class,
    pub(crate) rule: &'static str,
    pub(crate) evidence: String,
}
