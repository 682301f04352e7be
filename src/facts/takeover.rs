//! A takeover that somebody ordered: another guard is to stay off, and ipguard does its work.

use std::collections::BTreeSet;

use crate::facts::time::Timestamp;

/// The order, and what it is about as it is now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takeover {
    /// When it was given.
    pub since: Timestamp,
    /// Services with the role of another guard that systemd starts at the next boot, by name in the profile.
    pub enabled_guards: BTreeSet<String>,
}
