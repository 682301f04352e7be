//! What people and machines read.
//!
//! In: a [`Plan`](crate::decide::plan::Plan) and the facts it rests on. Out: text, and JSON documents that carry
//! `"version": 1` and only ever gain fields. The rule of this folder: nothing is decided, read or written here - the
//! caller knows whether there is a terminal, and where the text goes.

pub mod address;
pub mod check;
pub mod explain;
pub mod generations;
pub mod log;
pub mod status;
pub mod status_line;

use std::borrow::Cow;

use serde::Serialize;

/// Version of every JSON document.
const VERSION: u32 = 1;

/// A JSON document, for `jq` and for eyes.
fn json(document: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(document).expect("plain values with string keys serialise");
    text.push('\n');
    text
}

/// A text on one line of a terminal, whatever is in it: evidence holds names that others chose.
fn printable(text: &str) -> Cow<'_, str> {
    if text.contains(hostile) {
        let mut safe = String::with_capacity(text.len() + 8);
        for c in text.chars() {
            if hostile(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
        }
        Cow::Owned(safe)
    } else {
        Cow::Borrowed(text)
    }
}

/// What drives a terminal (C0, C1), or turns the direction of the text around it.
fn hostile(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// SGR attributes; `None` leaves the text as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paint {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
    Cyan,
}

impl Paint {
    fn on(self, text: &str, colour: bool) -> String {
        let code = match self {
            Self::Bold => 1,
            Self::Dim => 2,
            Self::Red => 31,
            Self::Green => 32,
            Self::Yellow => 33,
            Self::Cyan => 36,
        };
        if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use super::*;
    use crate::decide::plan::{Plan, SanPlan, Summary};
    use crate::decide::state::State;
    use crate::decide::verdict::{Class, Verdict};
    use crate::facts::network::Family;
    use crate::facts::san::{NotASan, SanSet};

    /// A plan with nothing in it, to be filled by the tests of this folder.
    pub(crate) fn plan() -> Plan {
        Plan {
            summary: Summary::InStep,
            reasons: Vec::new(),
            holds: Vec::new(),
            notices: Vec::new(),
            steps: Vec::new(),
            mend: None,
            san: SanPlan::default(),
            addresses: Vec::new(),
            node_address: BTreeMap::new(),
            state: State::default(),
            needs_services: false,
            needs_listed: None,
            load_once_services: Vec::new(),
            caller_restarts: false,
            look_again: None,
        }
    }

    pub(crate) fn verdict(address: &str, prefix_len: u8, interface: &str, class: Class, rule: &'static str) -> Verdict {
        Verdict {
            address: ip(address),
            prefix_len,
            interface: interface.to_owned(),
            link_kind: None,
            class,
            rule,
            evidence: format!("evidence of {rule}"),
        }
    }

    pub(crate) fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    pub(crate) fn sans(names: &[&str]) -> SanSet {
        names.iter().map(|name| name.parse()).collect::<Result<_, NotASan>>().expect("names of this test")
    }

    /// A node with one address of every class, in the kernel's order.
    pub(crate) fn node() -> Plan {
        let mut plan = plan();
        plan.addresses = vec![
            verdict("127.0.0.1", 8, "lo", Class::Ignored, "by-value"),
            verdict("192.0.2.10", 24, "eth0", Class::Primary, "incumbent"),
            verdict("192.0.2.77", 32, "eth0", Class::Secondary, "host-prefix"),
            verdict("198.51.100.2", 24, "eth1", Class::Primary, "uplink"),
            verdict("192.0.2.240", 32, "kube-lb0", Class::LbOwned, "known-link"),
            verdict("203.0.113.50", 32, "", Class::Primary, "pinned"),
            verdict("2001:db8::10", 64, "eth0", Class::Unsettled, "tentative"),
            verdict("2001:db8::2", 64, "eth0", Class::Primary, "uplink"),
        ];
        plan.addresses[4].link_kind = Some("dummy".to_owned());
        plan.addresses[2].evidence = "renamed to eth\u{1b}[2J".to_owned();
        plan.node_address = BTreeMap::from([(Family::Ipv4, ip("192.0.2.10")), (Family::Ipv6, ip("2001:db8::2"))]);
        plan.san.desired = sans(&["192.0.2.10", "198.51.100.2", "203.0.113.50"]);
        plan
    }

    #[test]
    fn names_that_others_chose_cannot_drive_the_terminal() {
        assert_eq!(printable("plain, größe 192.0.2.10"), "plain, größe 192.0.2.10");
        assert_eq!(printable("a\u{1b}[2J\nb\u{9b}c\u{202e}d"), "a\\u{1b}[2J\\u{a}b\\u{9b}c\\u{202e}d");
    }
}
