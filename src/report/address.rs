//! `explain ADDRESS`: everything about one address.
//!
//! In: a plan, the names of the certificate, and the network the address was seen in. Out: text, [`None`] for an address
//! that is not there. The rule of this file: somebody who does not like a verdict is told what would change it.

use std::fmt::Write as _;
use std::net::IpAddr;

use crate::config::refused_as_pin;
use crate::decide::plan::Plan;
use crate::decide::verdict::{Class, Verdict};
use crate::facts::network::{Address, Family, Network, SCOPE_LINK};
use crate::facts::san::{San, SanSet};
use crate::report::explain::{is_node_address, name, paint};
use crate::report::printable;

/// Everything about one address; `None` when it is neither on the host nor pinned.
pub fn text(plan: &Plan, in_certificate: &SanSet, network: &Network, address: IpAddr, colour: bool) -> Option<String> {
    let address = address.to_canonical();
    let verdict = plan.addresses.iter().find(|verdict| verdict.address == address)?;
    let mut text = String::new();
    let class = paint(verdict.class).on(name(verdict.class), colour);
    let node = match Family::of(address) {
        _ if !is_node_address(plan, address) => "",
        Family::Ipv4 => ", and the node's IPv4 address",
        Family::Ipv6 => ", and the node's IPv6 address",
    };
    let known = if in_certificate.contains(&San::ip(address)) { "yes" } else { "no" };
    let copies: Vec<String> = network.copies(address).map(|copy| describe(network, copy)).collect();
    let mut field = |key: &str, value: &str| {
        writeln!(text, "  {key:<16}{value}").expect("writing to a String does not fail");
    };
    field("rule", verdict.rule);
    field("why", &printable(&verdict.evidence));
    field("in certificate", known);
    if copies.is_empty() {
        field("on", "no link of this host");
    }
    for (index, copy) in copies.iter().enumerate() {
        field(if index == 0 { "on" } else { "" }, copy);
    }
    for (index, advice) in advice(plan, in_certificate, verdict).iter().enumerate() {
        field(if index == 0 { "as a SAN" } else { "" }, advice);
    }
    Some(format!("{address} is {class}{node}\n{text}"))
}

/// A copy of an address with whatever is not ordinary about it.
fn describe(network: &Network, copy: &Address) -> String {
    let mut said = network.link_name(copy.link);
    if let Some(kind) = network.links.get(&copy.link).and_then(|link| link.kind.as_deref()) {
        said += &format!(" ({})", printable(kind));
    }
    said += &format!(": {}/{}", copy.value, copy.prefix_len);
    let mut say = |text: String| said += &format!(", {text}");
    if let Some(peer) = copy.peer {
        say(format!("peer {peer}"));
    }
    if let Some(label) = copy.label.as_ref().filter(|label| label.to_string() != network.link_name(copy.link)) {
        say(format!("label {label}"));
    }
    if copy.scope >= SCOPE_LINK {
        say(format!("scope {}", if copy.scope == SCOPE_LINK { "link" } else { "host" }));
    }
    let ipv4 = copy.family() == Family::Ipv4;
    let flags = [
        (copy.flags.secondary() && ipv4, "secondary"),
        (copy.flags.temporary() && !ipv4, "temporary"),
        (copy.flags.tentative(), "tentative"),
        (copy.flags.dad_failed(), "dadfailed"),
        (copy.flags.deprecated(), "deprecated"),
    ];
    for (_, flag) in flags.iter().filter(|(is_set, _)| *is_set) {
        say((*flag).to_owned());
    }
    match copy.valid {
        Some(valid) => say(format!("valid for {}", crate::config::duration::format(valid))),
        None => say("permanent".to_owned()),
    }
    if let Some(protocol) = copy.protocol {
        say(format!("protocol {protocol}"));
    }
    said
}

/// What makes, or would make, the address a name of the certificate.
fn advice(plan: &Plan, in_certificate: &SanSet, verdict: &Verdict) -> Vec<String> {
    let san = San::ip(verdict.address);
    let value = verdict.address;
    if plan.san.left_out.contains(&san) {
        return vec!["left out: the certificate would have too many names".to_owned()];
    }
    if plan.san.dropped.contains(&san) {
        return vec!["in the certificate until the next reissue, which drops it".to_owned()];
    }
    match (in_certificate.contains(&san), plan.san.desired.contains(&san)) {
        (true, true) => return vec!["it is one".to_owned()],
        (true, false) => return vec!["it is one; the next reissue keeps it".to_owned()],
        (false, true) => return vec!["demanded and missing: `ipguard check` shows what is planned or held".to_owned()],
        (false, false) => {}
    }
    let named = format!("[certificate] extra_sans = [\"{value}\"], if it is not this node's own");
    let own = match refused_as_pin(value) {
        Some(_) => None,
        None => Some(format!("[addresses] pin = [\"{value}\"], if it is this node's own")),
    };
    match verdict.class {
        Class::Primary => vec!["primary, yet not demanded: `ipguard check` shows what holds it back".to_owned()],
        Class::Unsettled => vec!["no verdict in this pass; look again when the network has settled".to_owned()],
        Class::Secondary => {
            [Some("[addresses] secondary = \"include\", with the next reissue".to_owned()), own, Some(named)]
                .into_iter()
                .flatten()
                .collect()
        }
        Class::LbOwned | Class::Ignored => own.into_iter().chain([named]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::facts::network::{Flags, Link, LinkName};
    use crate::report::tests::{ip, node, sans};

    fn copy(value: &str, prefix_len: u8, link: u32) -> Address {
        Address {
            value: ip(value),
            prefix_len,
            link,
            peer: None,
            scope: 0,
            flags: Flags(0x80),
            label: None,
            protocol: None,
            valid: None,
            preferred: None,
            created: None,
            updated: None,
        }
    }

    fn network() -> Network {
        let link = |index, name: &str, kind: Option<&str>| {
            (index, Link { index, name: name.into(), kind: kind.map(str::to_owned), ..Link::default() })
        };
        let mut vip = copy("192.0.2.77", 32, 2);
        vip.flags = Flags(0x21);
        vip.valid = Some(Duration::from_secs(90));
        vip.protocol = Some(18);
        vip.label = Some(LinkName(b"eth0:vip".to_vec()));
        let mut tunnel = copy("192.0.2.10", 32, 9);
        tunnel.peer = Some(ip("192.0.2.254"));
        tunnel.scope = 254;
        Network {
            links: BTreeMap::from([link(2, "eth0", None), link(7, "kube-ipvs0", Some("dummy"))]),
            addresses: vec![copy("192.0.2.10", 24, 2), copy("192.0.2.10", 32, 7), vip, tunnel],
            ..Network::default()
        }
    }

    #[test]
    fn one_address_is_told_with_all_its_copies() {
        let expected = "\
192.0.2.10 is primary, and the node's IPv4 address
  rule            incumbent
  why             evidence of incumbent
  in certificate  yes
  on              eth0: 192.0.2.10/24, permanent
                  kube-ipvs0 (dummy): 192.0.2.10/32, permanent
                  #9: 192.0.2.10/32, peer 192.0.2.254, scope host, permanent
  as a SAN        it is one
";
        let told = text(&node(), &sans(&["192.0.2.10"]), &network(), ip("192.0.2.10"), false);
        assert_eq!(told.as_deref(), Some(expected));
    }

    #[test]
    fn an_address_that_is_no_san_is_told_with_what_would_make_it_one() {
        let expected = "\
192.0.2.77 is secondary
  rule            host-prefix
  why             renamed to eth\\u{1b}[2J
  in certificate  no
  on              eth0: 192.0.2.77/32, label eth0:vip, secondary, deprecated, valid for 1m30s, protocol 18
  as a SAN        [addresses] secondary = \"include\", with the next reissue
                  [addresses] pin = [\"192.0.2.77\"], if it is this node's own
                  [certificate] extra_sans = [\"192.0.2.77\"], if it is not this node's own
";
        let told = text(&node(), &SanSet::new(), &network(), ip("192.0.2.77"), false);
        assert_eq!(told.as_deref(), Some(expected));
        assert_eq!(text(&node(), &SanSet::new(), &network(), ip("192.0.2.78"), false), None);
    }

    #[test]
    fn the_advice_fits_the_case() {
        let mut plan = node();
        plan.san.left_out = sans(&["198.51.100.2"]);
        plan.san.dropped = sans(&["192.0.2.77"]);
        let known = sans(&["192.0.2.10", "192.0.2.240", "192.0.2.77"]);
        let said = |address: &str| {
            let verdict = plan.addresses.iter().find(|verdict| verdict.address == ip(address)).expect("on the node");
            advice(&plan, &known, verdict).join(" | ")
        };
        assert_eq!(said("192.0.2.10"), "it is one");
        assert_eq!(said("192.0.2.240"), "it is one; the next reissue keeps it");
        assert_eq!(said("203.0.113.50"), "demanded and missing: `ipguard check` shows what is planned or held");
        assert_eq!(said("2001:db8::2"), "primary, yet not demanded: `ipguard check` shows what holds it back");
        assert_eq!(said("2001:db8::10"), "no verdict in this pass; look again when the network has settled");
        assert_eq!(said("198.51.100.2"), "left out: the certificate would have too many names");
        assert_eq!(said("192.0.2.77"), "in the certificate until the next reissue, which drops it");
        // No pin is offered that the configuration would refuse.
        assert_eq!(said("127.0.0.1"), "[certificate] extra_sans = [\"127.0.0.1\"], if it is not this node's own");
    }
}
