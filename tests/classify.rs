//! What every address is: one table of layouts per rule, and the layouts that would break it.

mod hosts;

use std::time::Duration;

use hosts::{DADFAILED, DEPRECATED, Host, PERMANENT, SECONDARY, TEMPORARY, TENTATIVE, ip};
use ipguard::config::{AddressRule, RuleClass};
use ipguard::decide::classify::LABELS;
use ipguard::decide::verdict::Class;
use ipguard::decide::verdict::Class::{Ignored, LbOwned, Primary, Secondary, Unsettled};
use ipguard::facts::network::NextHop;

/// A host, what an address on it must be, and by which rule.
type Layout = (&'static str, fn() -> Host, &'static str, Class, &'static str);

fn with(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::usual();
    change(&mut host);
    host
}

/// No state, no certificate address: a first certificate.
fn bare(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::new();
    change(&mut host);
    host
}

const LAYOUTS: &[Layout] = &[
    (
        "an address under duplicate detection has no verdict",
        || with(|h| h.add("eth0", "2001:db8::9/64").flags.0 = TENTATIVE),
        "2001:db8::9",
        Unsettled,
        "unsettled",
    ),
    (
        "an interrupted snapshot has none at all",
        || with(|h| h.network.complete = false),
        "192.0.2.10",
        Unsettled,
        "unsettled",
    ),
    (
        "a pin beats the link it is on",
        || {
            with(|h| {
                h.link("wg0", Some("wireguard"));
                h.add("wg0", "10.9.0.1/24");
                h.cluster.arguments.node_ips = vec![ip("10.9.0.1")];
            })
        },
        "10.9.0.1",
        Primary,
        "pinned",
    ),
    (
        "an operator's rule by link name",
        || {
            with(|h| {
                h.link("storage0", None);
                h.add("storage0", "10.44.0.1/24");
                h.config.addresses.rules = vec![rule(|r| r.interface = Some("storage*".to_owned()))];
            })
        },
        "10.44.0.1",
        Ignored,
        "operator-rule",
    ),
    (
        "IPv4LL with global scope on a physical link",
        || with(|h| h.add("eth0", "169.254.5.20/16").scope = 0),
        "169.254.5.20",
        Ignored,
        "by-value",
    ),
    (
        "CLAT",
        || {
            with(|h| {
                h.add("eth0", "192.0.0.4/32");
            })
        },
        "192.0.0.4",
        Ignored,
        "by-value",
    ),
    (
        "host scope is never a remote identity",
        || with(|h| h.add("lo", "198.51.100.5/32").scope = 254),
        "198.51.100.5",
        Ignored,
        "by-value",
    ),
    (
        "a pod address on an unknown bridge",
        || {
            with(|h| {
                h.link("mycni", Some("bridge"));
                h.add("mycni", "10.1.7.1/24");
            })
        },
        "10.1.7.1",
        LbOwned,
        "cluster-network",
    ),
    (
        "a real LAN inside the default pod network",
        || {
            with(|h| {
                h.link("eth1", None);
                h.add("eth1", "10.1.1.11/24");
            })
        },
        "10.1.1.11",
        Primary,
        "primary",
    ),
    (
        "a service address alone on a physical link",
        || {
            with(|h| {
                h.link("eth1", None);
                h.add("eth1", "10.152.183.9/32");
            })
        },
        "10.152.183.9",
        LbOwned,
        "cluster-network",
    ),
    (
        "duplicate detection failed, although it was the node's own",
        || {
            with(|h| {
                h.add("eth0", "2001:db8::10/64");
                h.certificate(&["192.0.2.10", "2001:db8::10"]);
                h.settle();
                h.network.addresses.last_mut().expect("there").flags.0 = TENTATIVE | DADFAILED;
            })
        },
        "2001:db8::10",
        Ignored,
        "dad-failed",
    ),
    (
        "keepalived marks what it adds",
        || with(|h| h.add("eth0", "203.0.113.9/24").protocol = Some(18)),
        "203.0.113.9",
        LbOwned,
        "protocol",
    ),
    (
        "PureLB's remote pool",
        || {
            with(|h| {
                h.link("kube-lb0", Some("dummy"));
                h.add("kube-lb0", "198.51.100.20/32");
            })
        },
        "198.51.100.20",
        LbOwned,
        "known-link",
    ),
    (
        "Cilium's default route in a table of its own does not make cilium_host the uplink",
        || {
            with(|h| {
                h.link("cilium_host", Some("veth"));
                h.add("cilium_host", "10.0.0.118/32");
                h.default_via("cilium_host", None).table = 2005;
            })
        },
        "10.0.0.118",
        LbOwned,
        "known-link",
    ),
    (
        "a veth that carries the default route is a node's NIC, whatever its name",
        || {
            bare(|h| {
                h.link("veth12ab", Some("veth"));
                h.add("veth12ab", "10.66.0.4/24");
                h.default_via("veth12ab", Some("10.66.0.1"));
            })
        },
        "10.66.0.4",
        Primary,
        "primary",
    ),
    (
        "a VPN with the default route is still a VPN",
        || {
            with(|h| {
                h.link("wg0", Some("wireguard"));
                h.add("wg0", "172.16.42.1/24");
                h.default_via("wg0", None).metric = 0;
            })
        },
        "172.16.42.1",
        Ignored,
        "known-link",
    ),
    (
        "docker's bridge is the host's end of a private network",
        || {
            with(|h| {
                h.link("br-0123456789ab", Some("bridge"));
                h.add("br-0123456789ab", "172.19.0.1/16");
            })
        },
        "172.19.0.1",
        Ignored,
        "known-link",
    ),
    (
        "a service address on lo",
        || {
            with(|h| {
                h.add("lo", "198.51.100.5/32");
            })
        },
        "198.51.100.5",
        LbOwned,
        "unannounced",
    ),
    (
        "the identity of a BGP node on a dummy link",
        || {
            bare(|h| {
                h.link("node0", Some("dummy"));
                h.link("eth0", None);
                h.add("node0", "10.20.0.7/32");
                h.default_via("eth0", Some("fe80::1")).preferred_source = Some(ip("10.20.0.7"));
            })
        },
        "10.20.0.7",
        Primary,
        "primary",
    ),
    (
        "bit 0x01 is temporary on IPv6",
        || with(|h| h.lease("eth0", "2001:db8::abcd/64", 3600).flags.0 = TEMPORARY),
        "2001:db8::abcd",
        Secondary,
        "temporary",
    ),
    (
        "the node's own address demoted behind a VIP",
        || {
            with(|h| {
                h.settle();
                h.remove("192.0.2.10");
                h.add("eth0", "192.0.2.100/24");
                h.add("eth0", "192.0.2.10/24");
            })
        },
        "192.0.2.10",
        Primary,
        "incumbent",
    ),
    (
        "and the VIP that is first now",
        || {
            with(|h| {
                h.settle();
                h.remove("192.0.2.10");
                h.add("eth0", "192.0.2.100/24");
                h.add("eth0", "192.0.2.10/24");
            })
        },
        "192.0.2.100",
        Secondary,
        "beside-holder",
    ),
    (
        "kube-vip made the node's own address deprecated (kube-vip#1475)",
        || {
            with(|h| {
                h.settle();
                h.network.addresses.last_mut().expect("there").flags.0 |= DEPRECATED;
            })
        },
        "192.0.2.10",
        Primary,
        "incumbent",
    ),
    (
        "a newcomer on an overlay with a name nobody knows",
        || {
            with(|h| {
                h.link("ovl7", Some("geneve"));
                h.add("ovl7", "10.77.0.1/24");
            })
        },
        "10.77.0.1",
        LbOwned,
        "link-kind",
    ),
    (
        "a bridge with a container's veth is no bridge to the world",
        || {
            with(|h| {
                h.link("mybridge", Some("bridge"));
                h.link("veth77", Some("veth"));
                h.enslave("veth77", "mybridge");
                h.add("mybridge", "172.30.0.1/24");
            })
        },
        "172.30.0.1",
        Ignored,
        "link-kind",
    ),
    (
        "a bridge that enslaves a NIC is",
        || {
            bare(|h| {
                h.link("vmbr0", Some("bridge"));
                h.link("eno1", None);
                h.enslave("eno1", "vmbr0");
                h.add("vmbr0", "10.5.0.4/24");
            })
        },
        "10.5.0.4",
        Primary,
        "primary",
    ),
    (
        "kube-vip's deprecated for ever",
        || with(|h| h.add("eth0", "203.0.113.9/24").flags.0 = DEPRECATED | PERMANENT),
        "203.0.113.9",
        LbOwned,
        "deprecated",
    ),
    (
        "an ageing prefix beside a fresh one",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.default_via("eth0", Some("fe80::1"));
                h.lease("eth0", "2001:db8:1::5/64", 3600);
                h.lease("eth0", "2001:db8:2::5/64", 3600).flags.0 = DEPRECATED;
            })
        },
        "2001:db8:2::5",
        Secondary,
        "deprecated",
    ),
    (
        "an ageing address is better than none",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.default_via("eth0", Some("fe80::1"));
                h.lease("eth0", "2001:db8:2::5/64", 3600).flags.0 = DEPRECATED;
            })
        },
        "2001:db8:2::5",
        Primary,
        "last-resort",
    ),
    (
        "a VIP that won the race at boot, and the route that knows better",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.add("eth0", "10.34.10.2/24");
                h.lease("eth0", "10.34.10.3/24", 86_400);
                h.default_via("eth0", Some("10.34.10.1")).preferred_source = Some(ip("10.34.10.3"));
            })
        },
        "10.34.10.2",
        Secondary,
        "beside-holder",
    ),
    (
        "the same without any hint: the flag ranks two unknown",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.add("eth0", "10.34.10.2/24");
                h.add("eth0", "10.34.10.3/24");
                h.default_via("eth0", Some("10.34.10.1"));
            })
        },
        "10.34.10.3",
        Secondary,
        "second-of-subnet",
    ),
    (
        "keepalived's /32 beside the node's /24",
        || {
            with(|h| {
                h.add("eth0", "198.51.100.70/32");
            })
        },
        "198.51.100.70",
        Secondary,
        "host-prefix",
    ),
    (
        "a cloud's /32 beside an IPv4LL /16, which is no wider address of the node",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.lease("eth0", "10.156.0.18/32", 86_400);
                h.add("eth0", "169.254.9.9/16");
                h.default_via("eth0", Some("10.156.0.1"));
            })
        },
        "10.156.0.18",
        Primary,
        "primary",
    ),
    (
        "a failover /32 on a link whose route prefers another",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.lease("eth0", "203.0.113.5/32", 86_400);
                h.add("eth0", "198.51.100.66/32");
                h.default_via("eth0", Some("172.31.1.1")).preferred_source = Some(ip("203.0.113.5"));
            })
        },
        "198.51.100.66",
        Secondary,
        "host-prefix",
    ),
    (
        "a DHCPv6 lease is a /128 and no VIP",
        || {
            bare(|h| {
                h.link("eth0", None);
                h.lease("eth0", "2001:db8::7/128", 7200);
                h.add("eth0", "fe80::1/64");
                h.default_via("eth0", Some("fe80::2"));
            })
        },
        "2001:db8::7",
        Primary,
        "primary",
    ),
    (
        "a permanent /128 beside the node's DHCPv6 lease is",
        || {
            with(|h| {
                h.lease("eth0", "2001:db8::7/128", 7200);
                h.certificate(&["192.0.2.10", "2001:db8::7"]);
                h.add("eth0", "2001:db8::100/128");
                h.default_via("eth0", Some("fe80::2"));
            })
        },
        "2001:db8::100",
        Secondary,
        "host-prefix",
    ),
    (
        "a Thread border router's prefix has no default route",
        || {
            with(|h| {
                h.lease("eth0", "fd11:22::5/64", 1800);
            })
        },
        "fd11:22::5",
        Secondary,
        "dynamic-ipv6",
    ),
    (
        "SLAAC beside a static address",
        || {
            with(|h| {
                h.add("eth0", "2001:db8::10/64");
                h.lease("eth0", "2001:db8::5054:ff:fe12:3456/64", 3600);
                h.default_via("eth0", Some("fe80::1"));
            })
        },
        "2001:db8::5054:ff:fe12:3456",
        Secondary,
        "dynamic-ipv6",
    ),
    (
        "SLAAC alone in its family",
        || {
            with(|h| {
                h.lease("eth0", "2001:db8::5054:ff:fe12:3456/64", 3600);
                h.default_via("eth0", Some("fe80::1"));
            })
        },
        "2001:db8::5054:ff:fe12:3456",
        Primary,
        "primary",
    ),
    (
        "SLAAC beside a DHCPv6 lease",
        || {
            with(|h| {
                h.lease("eth0", "2001:db8::7/128", 7200);
                h.lease("eth0", "2001:db8::5054:ff:fe12:3456/64", 3600);
                h.default_via("eth0", Some("fe80::1"));
            })
        },
        "2001:db8::5054:ff:fe12:3456",
        Secondary,
        "dynamic-ipv6",
    ),
    (
        "a VIP left behind when its subnet's holder is gone, while the link has another primary",
        || {
            let mut host = two_subnets();
            host.remove("198.51.100.9");
            host.pass_time(Duration::from_secs(120));
            host
        },
        "198.51.100.50",
        Secondary,
        "held-back",
    ),
    (
        "a VIP that stays where the node's address was, before the hold ends",
        || vip_left_alone(Duration::from_secs(29)),
        "192.0.2.100",
        Secondary,
        "held-back",
    ),
    ("and after it", || vip_left_alone(Duration::from_secs(31)), "192.0.2.100", Primary, "promoted"),
    (
        "an address no rule describes",
        || {
            with(|h| {
                h.link("vrf-blue", Some("vrf"));
                h.add("vrf-blue", "10.99.0.1/24");
            })
        },
        "10.99.0.1",
        Secondary,
        "unclassified",
    ),
];

fn rule(change: impl FnOnce(&mut AddressRule)) -> AddressRule {
    let mut rule = AddressRule {
        name: "a rule".to_owned(),
        address: None,
        cidr: None,
        interface: None,
        kind: None,
        protocol: None,
        class: RuleClass::Ignored,
    };
    change(&mut rule);
    rule
}

fn two_subnets() -> Host {
    let mut host = Host::usual();
    host.add("eth0", "198.51.100.9/24");
    host.add("eth0", "198.51.100.50/24");
    host.certificate(&["192.0.2.10", "198.51.100.9"]);
    host.settle();
    host
}

fn vip_left_alone(after: Duration) -> Host {
    let mut host = Host::usual();
    host.add("eth0", "192.0.2.100/24");
    host.settle();
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(after);
    host
}

#[test]
fn every_layout_gets_its_class_by_its_rule() {
    let mut wrong = Vec::new();
    for (title, host, address, class, rule) in LAYOUTS {
        let got = host().verdict(address);
        if got != (*class, rule) {
            wrong.push(format!("{title}: {address} is {got:?}, not {:?}", (class, rule)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_rule_decides_a_layout() {
    for label in LABELS {
        assert!(LAYOUTS.iter().any(|(_, _, _, _, rule)| rule == label), "no layout shows the rule {label}");
    }
    for (title, _, _, _, rule) in LAYOUTS {
        assert!(LABELS.contains(rule), "{title}: there is no rule {rule}");
    }
}

#[test]
fn the_same_value_on_a_service_link_takes_nothing_away() {
    let mut host = Host::usual();
    host.link("kube-ipvs0", Some("dummy"));
    host.add("kube-ipvs0", "192.0.2.10/32");
    assert_eq!(host.verdict("192.0.2.10"), (Primary, "incumbent"));
    // And it does not stand in for the address once the NIC has lost it.
    host.settle();
    let nic = host.index("eth0");
    host.network.addresses.retain(|a| a.link != nic);
    assert_eq!(host.verdict("192.0.2.10"), (LbOwned, "known-link"));
    let plan = host.settle();
    assert!(plan.steps.is_empty() && plan.state.lost.iter().any(|l| l.address == ip("192.0.2.10")));
    // Back beside a VIP that came first, it is the incumbent at once.
    host.add("eth0", "192.0.2.100/24");
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(host.verdict("192.0.2.10"), (Primary, "incumbent"));
    assert_eq!(host.verdict("192.0.2.100"), (Secondary, "beside-holder"));
}

#[test]
fn a_renumbered_node_that_holds_a_vip() {
    let mut host = Host::usual();
    host.add("eth0", "192.0.2.100/24");
    host.settle();
    host.remove("192.0.2.10");
    host.add("eth0", "192.0.2.12/24");
    assert!(host.network.addresses.last().expect("there").flags.secondary(), "the flag says the opposite of the truth");
    assert_eq!(host.verdict("192.0.2.12").0, Primary);
    assert_eq!(host.verdict("192.0.2.100").0, Secondary);
}

#[test]
fn a_certificate_made_by_the_kicker_names_the_vip_too() {
    let mut host = Host::usual();
    host.add("eth0", "192.0.2.100/24");
    host.certificate(&["192.0.2.10", "192.0.2.100"]);
    assert_eq!(host.primary(), ["192.0.2.10"]);
    // If the VIP is all that is left of that link and family, it is not doubted.
    host.remove("192.0.2.10");
    assert_eq!(host.primary(), ["192.0.2.100"]);
}

#[test]
fn a_mark_that_the_kernel_forgot_is_remembered() {
    let mut host = Host::usual();
    host.add("eth0", "203.0.113.9/24").protocol = Some(18);
    host.settle();
    // `ip addr change` without proto erases it.
    host.network.addresses.last_mut().expect("there").protocol = None;
    host.settle();
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(Duration::from_secs(3_600));
    assert_eq!(host.verdict("203.0.113.9"), (Secondary, "held-back"));
    assert!(!host.classify().notices.is_empty(), "it is reported, not promoted");
}

#[test]
fn a_self_renewed_lifetime_is_never_promoted_unless_a_route_names_it() {
    let mut host = Host::usual();
    host.lease("eth0", "192.0.2.100/24", 300).flags.0 |= SECONDARY;
    host.settle();
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(Duration::from_secs(100));
    // Renewed a moment ago.
    let hundredths = u32::try_from(host.now.uptime.as_millis() / 10).expect("fits");
    host.network.addresses.last_mut().expect("there").updated = Some(hundredths);
    assert_eq!(host.verdict("192.0.2.100"), (Secondary, "held-back"));
    host.network.default_routes[0].preferred_source = Some(ip("192.0.2.100"));
    assert_eq!(host.verdict("192.0.2.100"), (Primary, "promoted"));
}

#[test]
fn a_primary_that_returns_sends_its_stand_in_back() {
    let mut host = vip_left_alone(Duration::from_secs(31));
    host.settle();
    assert_eq!(host.primary(), ["192.0.2.100"]);
    host.pass_time(Duration::from_secs(3_600));
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(host.primary(), ["192.0.2.10"]);
    assert_eq!(host.verdict("192.0.2.100").0, Secondary);
    let plan = host.settle();
    assert_eq!(plan.node_address.values().next(), Some(&ip("192.0.2.10")));
    assert_eq!(host.primary(), ["192.0.2.10"], "and it stays so");
}

#[test]
fn other_links_neither_help_nor_hinder_a_promotion() {
    let mut host = vip_left_alone(Duration::from_secs(31));
    host.link("eth1", None);
    host.add("eth1", "10.7.0.4/24");
    assert_eq!(host.verdict("192.0.2.100"), (Primary, "promoted"));
    assert_eq!(host.verdict("10.7.0.4"), (Primary, "primary"));
    // A link without the default route promotes nobody.
    let mut host = Host::usual();
    host.link("eth1", None);
    host.add("eth1", "10.7.0.4/24");
    host.add("eth1", "10.7.0.100/24");
    host.settle();
    host.remove("10.7.0.4");
    host.settle();
    host.pass_time(Duration::from_secs(3_600));
    assert_eq!(host.verdict("10.7.0.100"), (Secondary, "held-back"));
}

#[test]
fn an_identity_on_lo_survives_its_route() {
    let mut host = Host::new();
    host.link("eth0", None);
    host.link("eth1", None);
    host.add("lo", "10.20.0.7/32");
    let eth1 = host.index("eth1");
    let route = host.default_via("eth0", Some("fe80::1"));
    route.family = ipguard::facts::network::Family::Ipv4;
    route.preferred_source = Some(ip("10.20.0.7"));
    route.hops.push(NextHop { link: eth1, gateway: Some(ip("fe80::2")) });
    host.certificate(&["10.20.0.7"]);
    assert_eq!(host.primary(), ["10.20.0.7"]);
    host.settle();
    let routes = std::mem::take(&mut host.network.default_routes);
    let plan = host.settle();
    assert!(plan.steps.is_empty());
    assert_eq!(plan.node_address.values().next(), Some(&ip("10.20.0.7")), "the node address stays");
    host.network.default_routes = routes;
    assert_eq!(host.verdict("10.20.0.7"), (Primary, "incumbent"));
}

#[test]
fn a_hostile_pair_of_rules_pin_and_exclude_is_told_apart_from_an_exception() {
    let mut host = Host::usual();
    host.cluster.arguments.node_ips = vec![ip("192.0.2.10")];
    host.config.addresses.rules = vec![rule(|r| r.cidr = Some("192.0.2.0/24".parse().expect("a net")))];
    assert!(host.plan().holds.is_empty(), "a pin is the exception to a rule about its network");
    host.config.addresses.rules = vec![rule(|r| r.address = Some(ip("192.0.2.10")))];
    let holds = host.plan().holds;
    assert_eq!(holds[0].code.to_string(), "configuration-conflict");
}

/// An address of the node's own that is only unusable for a moment still holds its subnet and its link: nothing beside it
/// takes its place, and nothing is restarted.
#[test]
fn an_incumbent_under_duplicate_detection_keeps_its_place() {
    for flags in [TENTATIVE, TENTATIVE | DADFAILED, PERMANENT | TENTATIVE | DADFAILED] {
        let mut host = Host::new();
        host.link("eth0", None);
        host.add("eth0", "2001:db8::10/64");
        host.default_via("eth0", Some("2001:db8::1"));
        host.certificate(&["2001:db8::10"]);
        host.settle();
        host.add("eth0", "2001:db8::100/64");
        host.settle();
        host.pass_time(Duration::from_secs(3_600));
        host.network.addresses[1].flags.0 = flags;
        for _ in 0..3 {
            assert_eq!(host.verdict("2001:db8::100"), (Secondary, "beside-holder"));
            let plan = host.settle();
            assert!(plan.steps.is_empty(), "{:?}", plan.steps);
            assert_eq!(plan.node_address.values().next(), Some(&ip("2001:db8::10")));
            host.pass_time(Duration::from_secs(3_600));
        }
        // A second address of the node's own does not become the node address meanwhile either.
        host.add("eth0", "2001:db8:2::10/64");
        host.settle();
        host.pass_time(Duration::from_secs(3_600));
        let plan = host.plan();
        assert_eq!(plan.node_address.values().next(), Some(&ip("2001:db8::10")));
        assert!(!plan.restarts_api_server());
    }
}

/// A stand-in that leaves is not an address of the node's own that was lost: it comes back as what it was.
#[test]
fn a_stand_in_that_left_does_not_return_as_the_node() {
    let stood_in = || {
        let mut host = vip_left_alone(Duration::from_secs(31));
        host.settle();
        host.pass_time(Duration::from_secs(60));
        host
    };
    // It moves to another node, the node's address returns, and the VIP comes back.
    let mut host = stood_in();
    host.remove("192.0.2.100");
    host.settle();
    host.pass_time(Duration::from_secs(60));
    host.add("eth0", "192.0.2.10/24");
    host.settle();
    host.pass_time(Duration::from_secs(60));
    host.add("eth0", "192.0.2.100/24");
    for _ in 0..3 {
        assert_eq!(host.primary(), ["192.0.2.10"]);
        let plan = host.settle();
        assert_eq!(plan.node_address.values().next(), Some(&ip("192.0.2.10")));
        assert_eq!(host.verdict("192.0.2.100").0, Secondary);
        host.pass_time(Duration::from_secs(3_600));
    }
    // Both come at once.
    let mut host = stood_in();
    host.remove("192.0.2.100");
    host.settle();
    host.pass_time(Duration::from_secs(60));
    host.add("eth0", "192.0.2.100/24");
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(host.primary(), ["192.0.2.10"]);
    // It only flaps while the node's address is away: it stands in again at once, and falls back as ever.
    let mut host = stood_in();
    host.remove("192.0.2.100");
    host.settle();
    host.pass_time(Duration::from_secs(10));
    host.add("eth0", "192.0.2.100/24");
    assert_eq!(host.primary(), ["192.0.2.100"]);
    let plan = host.settle();
    assert_eq!(plan.node_address.values().next(), Some(&ip("192.0.2.100")));
    host.pass_time(Duration::from_secs(3_600));
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(host.primary(), ["192.0.2.10"]);
}

/// A pin is what a VIP in a certificate by the kicker is compared with, too.
#[test]
fn a_vip_in_the_certificate_beside_a_pinned_address() {
    for pinned_first in [true, false] {
        let mut host = Host::new();
        host.link("eth0", None);
        for value in
            if pinned_first { ["192.0.2.10/24", "192.0.2.100/24"] } else { ["192.0.2.100/24", "192.0.2.10/24"] }
        {
            host.add("eth0", value);
        }
        host.default_via("eth0", Some("192.0.2.1"));
        host.cluster.arguments.node_ips = vec![ip("192.0.2.10")];
        host.certificate(&["192.0.2.10", "192.0.2.100"]);
        assert_eq!(host.verdict("192.0.2.10"), (Primary, "pinned"));
        assert_eq!(host.verdict("192.0.2.100"), (Secondary, "beside-holder"), "pinned first: {pinned_first}");
        let plan = host.settle();
        assert_eq!(plan.node_address.values().next(), Some(&ip("192.0.2.10")));
        assert!(plan.steps.is_empty());
    }
}
