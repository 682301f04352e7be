//! What every address on the host is: primary, secondary, a load balancer's, or not to be looked at.
//!
//! In: [`Grounds`] - one settled snapshot, what the operator and the cluster say, what the last pass accepted, `now`.
//! Out: one [`Verdict`] per address value, with the rule that decided and what it saw. The rule of this file: the first
//! row of the tables below that has an opinion decides; list order, numeric order and the order of events never do. An
//! address that no row describes is never primary.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::config::{Config, RuleClass};
use crate::decide::incumbents::Memory;
use crate::decide::links::{self, Owner};
use crate::decide::promotion;
use crate::decide::state::State;
use crate::facts::network::{Address, Family, Link, MAIN_TABLE, Network, SCOPE_LINK, Source};
use crate::facts::time::{Now, Timestamp};

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

/// What a classification rests on.
#[derive(Debug)]
pub struct Grounds<'a> {
    /// The snapshot.
    pub network: &'a Network,
    /// Operator's rules and times.
    pub config: &'a Config,
    /// The last pass.
    pub state: &'a State,
    /// The moment.
    pub now: Now,
    /// Pinned addresses, each with who pins it.
    pub pins: &'a BTreeMap<IpAddr, String>,
    /// Pod and service networks.
    pub cluster_cidrs: &'a [IpNet],
    /// IP SANs of the certificate that configuration does not ask for: they stand in for the last accepted set when no
    /// state is known. (Configured names say nothing about an address's class.)
    pub certificate_ips: &'a BTreeSet<IpAddr>,
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

/// One row: a label, and an opinion on a copy or none.
pub(crate) struct Rule {
    label: &'static str,
    judge: fn(&Case<'_>, &Address) -> Option<(Class, String)>,
}

/// The rules that look at one copy by itself, in order. Numbers are those of the design.
const ALONE: &[Rule] = &[
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
const NEWCOMER: &[Rule] = &[
    Rule { label: "incumbent", judge: incumbent },   // 9
    Rule { label: "link-kind", judge: link_kind },   // 10
    Rule { label: "deprecated", judge: deprecated }, // 11
];

/// The rules that compare a newcomer with the other addresses of its link.
const COMPANY: &[Rule] = &[
    Rule { label: "beside-holder", judge: beside_holder }, // 12
    Rule { label: "host-prefix", judge: host_prefix },
    Rule { label: "second-of-subnet", judge: second_of_subnet },
    Rule { label: "dynamic-ipv6", judge: dynamic_ipv6 }, // 13
];

/// All labels a verdict may carry, in the order they are asked.
pub const LABELS: &[&str] = &[
    "unsettled",
    "pinned",
    "operator-rule",
    "by-value",
    "cluster-network",
    "dad-failed",
    "protocol",
    "known-link",
    UNANNOUNCED,
    "temporary",
    "incumbent",
    "link-kind",
    "deprecated",
    "beside-holder",
    "host-prefix",
    "second-of-subnet",
    "dynamic-ipv6",
    "held-back",
    "promoted",
    "primary",
    "last-resort",
    "unclassified",
];

/// Label of the rule about `lo` and dummy links.
pub(crate) const UNANNOUNCED: &str = "unannounced";

/// `IFA_PROTO` of managers that mark what they add: keepalived since 2.3.2, OVN-Kubernetes EgressIP.
const MANAGERS: &[(u8, &str)] = &[(18, "keepalived"), (85, "OVN-Kubernetes")];

/// Everything a rule may look at.
pub(crate) struct Case<'a> {
    pub(crate) grounds: &'a Grounds<'a>,
    pub(crate) memory: Memory,
    /// Copies that no rule about a single copy has set aside: the company that rules 12 and 13 compare with.
    pub(crate) standing: Vec<&'a Address>,
}

/// Classifies every address of the snapshot.
pub fn classify(grounds: &Grounds<'_>) -> Classification {
    let network = grounds.network;
    let mut case = Case { grounds, memory: Memory::default(), standing: Vec::new() };
    // Rule 4 asks for the incumbents already, and which addresses they are depends on the rules about a single copy:
    // until that is known, each that may be one counts.
    case.memory.incumbents = if grounds.state.is_known() {
        let state = grounds.state;
        state.accepted.iter().map(|a| a.address).chain(state.lost.iter().map(|l| l.address)).collect()
    } else {
        grounds.certificate_ips.clone()
    };
    case.memory = Memory::recall(&case);

    let mut judged: Vec<Option<Judgement>> =
        network.addresses.iter().map(|a| first(&case, ALONE, a).or_else(|| first(&case, NEWCOMER, a))).collect();
    case.standing = network
        .addresses
        .iter()
        .zip(&judged)
        .filter(|(a, j)| j.as_ref().is_none_or(|j| j.class == Class::Primary || holds_its_place(&case, a)))
        .map(|(a, _)| a)
        .collect();
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() {
            *verdict = first(&case, COMPANY, address);
        }
    }
    // Who was secondary until now competes only for a link that nobody else holds: decide the others first.
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() && !promotion::was_passed_over(&case, address.value) {
            *verdict = Some(newcomer(&case, address));
        }
    }
    let held: BTreeSet<(u32, Family)> = network
        .addresses
        .iter()
        .zip(&judged)
        .filter(|(a, j)| j.as_ref().is_some_and(|j| j.class == Class::Primary || holds_its_place(&case, a)))
        .map(|(a, _)| (a.link, a.family()))
        .collect();
    let mut result = Classification::default();
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() {
            let held = held.contains(&(address.link, address.family()));
            *verdict = Some(promotion::judge(&case, address, held, &mut result));
        }
    }
    last_resort(&case, &mut judged);
    result.dad_failed = network
        .addresses
        .iter()
        .filter(|a| a.flags.dad_failed() && case.memory.incumbents.contains(&a.value))
        .map(|a| a.value)
        .collect();
    result.verdicts = best_of_each_value(&case, judged);
    result.memory = case.memory;
    result
}

/// The first row with an opinion.
pub(crate) fn first(case: &Case<'_>, rules: &[Rule], address: &Address) -> Option<Judgement> {
    rules.iter().find_map(|rule| {
        (rule.judge)(case, address).map(|(class, evidence)| Judgement { class, rule: rule.label, evidence })
    })
}

/// Whether the rules about a single copy leave it standing.
pub(crate) fn stands_alone(case: &Case<'_>, address: &Address) -> bool {
    first(case, ALONE, address).is_none_or(|j| j.class == Class::Primary)
}

/// Whether a copy keeps the place of an address that was accepted: one that stands, or is only unusable for a moment.
/// A copy on a service link (kube-ipvs0) does not.
pub(crate) fn keeps_place(case: &Case<'_>, address: &Address) -> bool {
    first(case, ALONE, address).is_none_or(|j| {
        matches!(j.class, Class::Primary | Class::Unsettled) || j.rule == UNANNOUNCED || j.rule == "dad-failed"
    })
}

/// An incumbent, even one that is unusable for a moment: nothing beside it takes its place meanwhile.
fn holds_its_place(case: &Case<'_>, address: &Address) -> bool {
    case.memory.incumbents.contains(&address.value) && keeps_place(case, address)
}

fn best_of_each_value(case: &Case<'_>, judged: Vec<Option<Judgement>>) -> Vec<Verdict> {
    let network = case.grounds.network;
    let mut best: Vec<(Verdict, u32)> = Vec::with_capacity(judged.len());
    let mut at: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (address, judgement) in network.addresses.iter().zip(judged) {
        let Some(judgement) = judgement else { continue };
        let link = network.links.get(&address.link);
        let verdict = Verdict {
            address: address.value,
            prefix_len: address.prefix_len,
            interface: network.link_name(address.link),
            link_kind: link.and_then(|l| l.kind.clone()),
            class: judgement.class,
            rule: judgement.rule,
            evidence: judgement.evidence,
        };
        match at.get(&address.value) {
            Some(&index) => {
                // Two copies of one class: the earlier rule and the older link speak, not the order of the dump.
                let rank = |(v, link): &(Verdict, u32)| {
                    (v.class, LABELS.iter().position(|l| *l == v.rule), *link, v.prefix_len)
                };
                let candidate = (verdict, address.link);
                if rank(&candidate) < rank(&best[index]) {
                    best[index] = candidate;
                }
            }
            None => {
                at.insert(address.value, best.len());
                best.push((verdict, address.link));
            }
        }
    }
    let mut best: Vec<Verdict> = best.into_iter().map(|(verdict, _)| verdict).collect();
    for (&address, who) in case.grounds.pins {
        if !at.contains_key(&address) {
            best.push(Verdict {
                address,
                prefix_len: Family::of(address).bits(),
                interface: String::new(),
                link_kind: None,
                class: Class::Primary,
                rule: "pinned",
                evidence: format!("pinned by {who}; not on the host"),
            });
        }
    }
    best
}

impl Case<'_> {
    pub(crate) fn link(&self, address: &Address) -> Option<&Link> {
        self.grounds.network.links.get(&address.link)
    }

    /// Whether a main-table default route of either family leaves through the link.
    pub(crate) fn is_uplink(&self, link: u32) -> bool {
        self.grounds.network.carries_default_route(link, |table| table == MAIN_TABLE)
    }

    /// Whether any table's default route does.
    fn carries_any_default(&self, link: u32) -> bool {
        self.grounds.network.carries_default_route(link, |_| true)
    }

    pub(crate) fn owner(&self, link: &Link) -> Option<&'static Owner> {
        links::owner(link, self.grounds.network.source == Source::Rtnetlink)
    }

    /// A link that is or stands for hardware: no kind at all, or one that puts the node on a real wire. A veth counts
    /// (the NIC of a container that is a node), unless its name says that it leads to a workload.
    fn is_wire(&self, link: &Link) -> bool {
        const WIRES: &[&str] =
            &["bond", "team", "vlan", "veth", "ipoib", "dsa", "macsec", "ppp", "wwan", "hsr", "virt_wifi"];
        !link.loopback
            && link.kind.as_deref().is_none_or(|kind| WIRES.contains(&kind))
            && self.owner(link).is_none_or(|_| self.is_uplink(link.index))
    }

    /// Whether a bridge (or switch) enslaves a link that leads out of the host.
    fn has_physical_port(&self, bridge: u32) -> bool {
        self.grounds.network.links.values().any(|port| port.master == Some(bridge) && self.is_wire(port))
    }

    /// The other addresses that stand on the same link in the same family.
    pub(crate) fn company<'c>(&'c self, of: &'c Address) -> impl Iterator<Item = &'c Address> {
        self.standing
            .iter()
            .copied()
            .filter(move |a| a.link == of.link && a.family() == of.family() && a.value != of.value)
    }

    /// A pin, an incumbent, or what a default route names as its source.
    pub(crate) fn is_known_holder(&self, value: IpAddr) -> bool {
        self.grounds.pins.contains_key(&value)
            || self.memory.incumbents.contains(&value)
            || self.grounds.network.is_preferred_source(value)
    }
}

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
    // The node renumbered while it holds a VIP: the VIP was secondary in the last pass, the newcomer was never seen.
    if promotion::was_passed_over(case, first.value) && !promotion::was_passed_over(case, address.value) {
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

/// 11, last resort: a first certificate without any node address serves nobody, and an ageing address is still one.
fn last_resort(case: &Case<'_>, judged: &mut [Option<Judgement>]) {
    let any_primary = judged.iter().flatten().any(|j| j.class == Class::Primary) || !case.grounds.pins.is_empty();
    if any_primary {
        return;
    }
    for (address, judgement) in case.grounds.network.addresses.iter().zip(judged) {
        let Some(judgement) = judgement else { continue };
        let ageing = judgement.rule == "deprecated" && judgement.class == Class::Secondary;
        if ageing && case.carries_any_default(address.link) {
            judgement.class = Class::Primary;
            judgement.rule = "last-resort";
            "deprecated, but nothing else is primary and its link carries a default route"
                .clone_into(&mut judgement.evidence);
        }
    }
}

/// Whether `value` lies in the subnet of `holder`.
pub(crate) fn same_subnet(holder: &Address, value: IpAddr) -> bool {
    // The on-link prefix of a point-to-point address is its peer's.
    let base = holder.peer.unwrap_or(holder.value);
    IpNet::new(base, holder.prefix_len).is_ok_and(|net| net.contains(&value))
}

/// Lifetimes up to this long that are renewed over and over are a load balancer's (PureLB: 300 s), not a lease's.
pub(crate) const SELF_RENEWED: Duration = Duration::from_secs(600);
