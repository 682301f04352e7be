//! The rules, in the order they are asked: first match wins.
//!
//! In: a `Case` and one copy of an address. Out: an opinion with its evidence, or none. The rule of this file: one
//! function a rule; no rule trusts list order, numeric order, or the order of events. Numbers are those of the design.

use std::net::IpAddr;

use crate::config::RuleClass;
use crate::decide::case::{Case, same_subnet};
use crate::decide::links;
use crate::decide::promotion;
use crate::decide::verdict::{Class, Judgement};
use crate::facts::network::{Address, Family, SCOPE_LINK};

/// One row: a label, and an opinion on a copy or none.
pub(crate) struct Rule {
    pub(crate) label: &'static str,
    pub(crate) judge: fn(&Case<'_>, &Address) -> Option<(Class, String)>,
}

/// The rules that look at one copy by itself, in order. Numbers are those of the design.
pub(crate) const ALONE: &[Rule] = &[
    Rule { label: "unsettled", judge: unsettled },         // 1
    Rule { label: "pinned", judge: pinned },               // 2
    Rule { label: "operator-rule", judge: operator_rule }, // 3
    Rule { label: "by-value", judge: by_value },           // 4
    Rule { label: "cluster-network", judge: cluster_network },
    Rule { label: "dad-failed", judge: dad_failed }, // 5
    Rule { label: "protocol", judge: protocol },     // 6
    Rule { label: "known-link", judge: known_link }, // 7
    Rule { label: UNANNOUNCED, judge: unannounced },
    Rule { label: "temporary", judge: temporary }, // 8
];

/// The incumbent, and the rules that only newcomers meet but that still look at one copy by itself.
pub(crate) const NEWCOMER: &[Rule] = &[
    Rule { label: "incumbent", judge: incumbent },   // 9
    Rule { label: "link-kind", judge: link_kind },   // 10
    Rule { label: "deprecated", judge: deprecated }, // 11
];

/// The rules that compare a newcomer with the other addresses of its link.
pub(crate) const COMPANY: &[Rule] = &[
    Rule { label: "beside-holder", judge: beside_holder }, // 12
    Rule { label: "host-prefix", judge: host_prefix },
    Rule { label: "second-of-subnet", judge: second_of_subnet },
    Rule { label: "dynamic-ipv6", judge: dynamic_ipv6 }, // 13
];
/// Label of the rule about `lo` and dummy links.
pub(crate) const UNANNOUNCED: &str = "unannounced";

/// `IFA_PROTO` of managers that mark what they add: keepalived since 2.3.2, OVN-Kubernetes EgressIP.
const MANAGERS: &[(u8, &str)] = &[(18, "keepalived"), (85, "OVN-Kubernetes")];

// 1. No verdict while the kernel itself has none.
fn unsettled(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let why = if !case.grounds.network.complete {
        "the snapshot is not complete"
    } else if case.link(address).is_none() {
        "its link is not known"
    } else if address.flags.tentative() && !address.flags.dad_failed() {
        "duplicate address detection has not ended"
    } else {
        return None;
    };
    Some((Class::Unsettled, why.to_owned()))
}

// 2.
fn pinned(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    case.grounds.pins.get(&address.value).map(|who| (Class::Primary, format!("pinned by {who}")))
}

// 3.
fn operator_rule(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let link = case.link(address)?;
    let rule = case.grounds.config.addresses.rules.iter().find(|rule| {
        rule.address.is_none_or(|value| value == address.value)
            && rule.cidr.is_none_or(|cidr| cidr.contains(&address.value))
            && rule.interface.as_deref().is_none_or(|pattern| links::glob(pattern, &link.name.0))
            && rule.kind.as_deref().is_none_or(|kind| kind == link.kind.as_deref().unwrap_or("physical"))
            && rule.protocol.is_none_or(|protocol| Some(protocol) == address.protocol)
    })?;
    let class = match rule.class {
        RuleClass::Primary => Class::Primary,
        RuleClass::Secondary => Class::Secondary,
        RuleClass::LbOwned => Class::LbOwned,
        RuleClass::Ignored => Class::Ignored,
    };
    Some((class, format!("[[addresses.rule]] {:?}", rule.name)))
}

// 4. Values that can never name a node, wherever they are.
fn by_value(_: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let why = match address.value {
        value if value.is_loopback() => "loopback",
        value if value.is_unspecified() => "unspecified",
        value if value.is_multicast() => "multicast",
        IpAddr::V4(v4) if v4.is_broadcast() => "broadcast",
        // dhcpcd gives IPv4LL global scope on veth and vxlan (canonical/microk8s#1822): by range, not by scope alone.
        IpAddr::V4(v4) if v4.is_link_local() => "169.254.0.0/16 is link-local (RFC 3927)",
        IpAddr::V4(v4) if v4.octets()[..3] == [192, 0, 0] && v4.octets()[3] < 8 => "192.0.0.0/29 is CLAT (RFC 7335)",
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "fe80::/10 is link-local",
        IpAddr::V6(v6) if v6.segments()[..7] == [0xfd69, 0, 0, 0, 0, 0, 0] => "fd69::/112 is OVN's masquerade range",
        _ if address.scope >= SCOPE_LINK => return Some((Class::Ignored, format!("scope {}", scope(address.scope)))),
        _ => return None,
    };
    Some((Class::Ignored, why.to_owned()))
}

fn scope(scope: u8) -> String {
    match scope {
        253 => "link".to_owned(),
        254 => "host".to_owned(),
        255 => "nowhere".to_owned(),
        other => other.to_string(),
    }
}

// 4, second half. Real LANs overlap the default pod network 10.1.0.0/16, so the range alone does not decide.
fn cluster_network(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let cidr = case.grounds.cluster_cidrs.iter().find(|cidr| cidr.contains(&address.value))?;
    let link = case.link(address)?;
    let real_subnet = !address.is_host_prefix() && case.is_wire(link);
    if case.memory.incumbents.contains(&address.value) || case.is_uplink(link.index) || real_subnet {
        return None;
    }
    Some((Class::LbOwned, format!("inside the cluster's network {cidr}")))
}

// 5. Listed and unusable (RFC 4862 section 5.4.5).
fn dad_failed(_: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    address.flags.dad_failed().then(|| (Class::Ignored, "duplicate address detection failed".to_owned()))
}

// 6.
fn protocol(_: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let number = address.protocol?;
    let (_, name) = MANAGERS.iter().find(|(manager, _)| *manager == number)?;
    Some((Class::LbOwned, format!("address protocol {number} is {name}")))
}

// 7. An owned copy says nothing about the same value on another link: kube-ipvs0 holds the node's own address too.
fn known_link(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let link = case.link(address)?;
    let owner = case.owner(link)?;
    if !owner.vpn && case.is_uplink(link.index) {
        return None;
    }
    Some((owner.class, format!("{} is a {} link", link.name, owner.name)))
}

// 7, links without a wire: what is on them is a service's - unless a default route names it as its source, which is
// how a node whose identity is announced by BGP tells it.
fn unannounced(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    let link = case.link(address)?;
    let wireless = link.loopback || link.kind.as_deref() == Some("dummy");
    if !wireless || case.is_uplink(link.index) || case.grounds.network.is_preferred_source(address.value) {
        return None;
    }
    // The host-access add-on's address belongs to the kubelet's certificate only.
    if address.label.as_ref().is_some_and(|label| label.0 == b"lo:microk8s") {
        return Some((Class::Ignored, "host-access address on lo".to_owned()));
    }
    Some((Class::LbOwned, format!("on {}, and no default route prefers it as source", link.name)))
}

// 8. Bit 0x01 means *temporary* on IPv6 and *secondary* on IPv4.
fn temporary(_: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    (address.family() == Family::Ipv6 && address.flags.temporary())
        .then(|| (Class::Secondary, "a temporary (privacy) address".to_owned()))
}

// 9. Neutralises promote_secondaries, order flips, renames, bridge take-overs and kube-vip's deprecated flag.
fn incumbent(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    case.memory.incumbents.contains(&address.value).then(|| (Class::Primary, case.memory.evidence(address.value)))
}

// 10.
fn link_kind(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    const TUNNELS: &[&str] = &[
        "vxlan",
        "geneve",
        "ipip",
        "ip6tnl",
        "gre",
        "gretap",
        "ip6gre",
        "ip6gretap",
        "erspan",
        "ip6erspan",
        "sit",
        "vti",
        "vti6",
        "xfrm",
    ];
    const VPNS: &[&str] = &["wireguard", "tun", "ovpn"];
    const SWITCHES: &[&str] = &["bridge", "openvswitch", "macvlan", "macvtap", "ipvlan", "ipvtap"];
    let link = case.link(address)?;
    let kind = link.kind.as_deref()?;
    if TUNNELS.contains(&kind) {
        return Some((Class::LbOwned, format!("newcomer on a {kind} link")));
    }
    if VPNS.contains(&kind) {
        return Some((Class::Ignored, format!("newcomer on a {kind} link: pin it if the cluster runs over it")));
    }
    if SWITCHES.contains(&kind) && !case.is_uplink(link.index) && !case.has_physical_port(link.index) {
        return Some((Class::Ignored, format!("{kind} without a default route and without a physical port")));
    }
    None
}

// 11. The flag, not the lifetime: a permanent IPv4 address with preferred 0 reports a preferred lifetime of for ever.
fn deprecated(_: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    if !address.flags.deprecated() {
        return None;
    }
    Some(if address.flags.permanent() {
        (Class::LbOwned, "deprecated for ever: how kube-vip and keepalived mark a virtual address".to_owned())
    } else {
        (Class::Secondary, "deprecated: an ageing lease or prefix, or a load balancer's".to_owned())
    })
}

// 12. Whatever the kernel's flags say: a VIP that was there first leaves the flag on the node's own address.
fn beside_holder(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    if case.is_known_holder(address.value) {
        return None;
    }
    let holder = case.company(address).find(|other| {
        !other.is_host_prefix() && case.is_known_holder(other.value) && same_subnet(other, address.value)
    })?;
    Some((Class::Secondary, format!("in the subnet of {}/{}, which holds it", holder.value, holder.prefix_len)))
}

// 12, host prefixes: the default of keepalived, kube-vip and OpenELB - and of cloud DHCP, where it stands alone.
fn host_prefix(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    if !address.is_host_prefix() || case.is_known_holder(address.value) {
        return None;
    }
    // A finite /128 is a DHCPv6 lease (RFC 8415 hands out bare addresses), not a virtual address.
    if address.family() == Family::Ipv6 && address.valid.is_some() {
        return None;
    }
    if let Some(wider) = case.company(address).find(|other| !other.is_host_prefix()) {
        return Some((Class::Secondary, format!("a host prefix beside {}/{}", wider.value, wider.prefix_len)));
    }
    if let Some(holder) = case.company(address).find(|other| case.memory.incumbents.contains(&other.value)) {
        return Some((Class::Secondary, format!("a host prefix beside {}", holder.value)));
    }
    let source = case.grounds.network.default_routes.iter().find_map(|route| {
        let here = route.family == address.family() && route.hops.iter().any(|hop| hop.link == address.link);
        route.preferred_source.filter(|source| here && *source != address.value)
    })?;
    Some((Class::Secondary, format!("a host prefix on a link whose default route prefers {source}")))
}

// 12, the flag: it only ranks two unknown addresses of one subnet.
fn second_of_subnet(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    if address.family() != Family::Ipv4 || !address.flags.secondary() || case.is_known_holder(address.value) {
        return None;
    }
    let first = case.company(address).find(|other| {
        !other.flags.secondary() && other.prefix_len == address.prefix_len && same_subnet(other, address.value)
    })?;
    // The node renumbered while it holds a VIP: the VIP was secondary in the last pass, or stands in since, and the
    // newcomer was never seen.
    let stands_in = case.grounds.state.promoted.contains(&first.value);
    let first_is_known = stands_in || promotion::was_passed_over(case, first.value);
    if first_is_known && !promotion::was_passed_over(case, address.value) {
        return None;
    }
    Some((Class::Secondary, format!("arrived after {} in the same subnet", first.value)))
}

// 13.
fn dynamic_ipv6(case: &Case<'_>, address: &Address) -> Option<(Class, String)> {
    if address.family() != Family::Ipv6 || address.valid.is_none() || case.is_known_holder(address.value) {
        return None;
    }
    if let Some(permanent) = case.company(address).find(|other| other.valid.is_none() && !other.is_host_prefix()) {
        return Some((Class::Secondary, format!("dynamic, beside the permanent {}", permanent.value)));
    }
    let kind = |value: IpAddr| matches!(value, IpAddr::V6(v6) if v6.is_unique_local());
    let of_kind = |value| if kind(value) { "unique local" } else { "global" };
    if let Some(holder) = case
        .company(address)
        .find(|other| case.memory.incumbents.contains(&other.value) && kind(other.value) == kind(address.value))
    {
        let detail = format!("dynamic, beside the {} incumbent {}", of_kind(address.value), holder.value);
        return Some((Class::Secondary, detail));
    }
    let routed = case
        .grounds
        .network
        .default_routes
        .iter()
        .any(|route| route.family == Family::Ipv6 && route.hops.iter().any(|hop| hop.link == address.link));
    if !routed {
        return Some((Class::Secondary, "dynamic, on a link without an IPv6 default route".to_owned()));
    }
    let lease = case.company(address).find(|other| other.is_host_prefix() && other.valid.is_some())?;
    (!address.is_host_prefix())
        .then(|| (Class::Secondary, format!("autoconfigured, beside the DHCPv6 lease {}", lease.value)))
}

// 14 and 15.
pub(crate) fn newcomer(case: &Case<'_>, address: &Address) -> Judgement {
    let link = case.link(address);
    let why = match link {
        Some(link) if case.grounds.network.is_preferred_source(address.value) => {
            Some(format!("a default route's preferred source, on {}", link.name))
        }
        Some(link) if case.carries_any_default(link.index) => Some(format!("{} carries a default route", link.name)),
        Some(link) if case.is_wire(link) => Some(match &link.kind {
            Some(kind) => format!("on {}, a {kind} link", link.name),
            None => format!("on {}, a physical link", link.name),
        }),
        Some(link) if case.has_physical_port(link.index) => Some(format!("{} enslaves a physical port", link.name)),
        _ => None,
    };
    match why {
        Some(evidence) => Judgement { class: Class::Primary, rule: "primary", evidence },
        None => Judgement {
            class: Class::Secondary,
            rule: "unclassified",
            evidence: "no rule describes it; pin it or write a rule if clients use it".to_owned(),
        },
    }
}
