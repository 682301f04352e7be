//! Layouts nobody handed over: random hosts, and what must hold on every one of them.

mod hosts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use hosts::{DEPRECATED, Host, PERMANENT, SECONDARY, TEMPORARY, ip};
use ipguard::decide::plan::HoldCode;
use ipguard::decide::verdict::Class;
use ipguard::facts::network::{Address, Family, Link};
use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Something that may be on a host.
#[derive(Debug, Clone)]
enum Piece {
    Nic { v4: bool, v6: bool, uplink: bool, source: bool, kind: Option<&'static str> },
    Bridge { name: &'static str, port: bool, address: u8 },
    Vpn { uplink: bool },
    Overlay,
    ServiceLink,
    Vip { nic: Index, prefix: u8, host: u8, deprecated: bool, finite: bool, protocol: Option<u8>, v6: bool },
    Slaac { nic: Index, temporary: bool, ula: bool },
    Lease { nic: Index },
}

fn piece() -> impl Strategy<Value = Piece> {
    let kind = select(vec![None, None, Some("bond"), Some("vlan"), Some("veth")]);
    prop_oneof![
        4 => (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), kind)
            .prop_map(|(v4, v6, uplink, source, kind)| Piece::Nic { v4, v6, uplink, source, kind }),
        1 => (select(vec!["docker0", "br-0123456789ab", "vmbr0", "br-ex"]), any::<bool>(), 1..250_u8)
            .prop_map(|(name, port, address)| Piece::Bridge { name, port, address }),
        1 => any::<bool>().prop_map(|uplink| Piece::Vpn { uplink }),
        1 => Just(Piece::Overlay),
        1 => Just(Piece::ServiceLink),
        4 => (any::<Index>(), select(vec![24, 25, 32]), 100..250_u8, any::<bool>(), any::<bool>(),
              select(vec![None, None, Some(18), Some(85)]), any::<bool>())
            .prop_map(|(nic, prefix, host, deprecated, finite, protocol, v6)| Piece::Vip {
                nic, prefix, host, deprecated, finite, protocol, v6 }),
        2 => (any::<Index>(), any::<bool>(), any::<bool>())
            .prop_map(|(nic, temporary, ula)| Piece::Slaac { nic, temporary, ula }),
        1 => any::<Index>().prop_map(|nic| Piece::Lease { nic }),
    ]
}

/// How the host is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Uplink {
    /// An IPv4 address, and a default route of the main table.
    Usual,
    /// No IPv4 at all; the next hop is a router's link-local address, as routers announce it.
    Ipv6Only,
    /// Nobody leads out, unless a VPN does.
    NoDefaultRoute,
    /// Every NIC's default route is in a table of its own kind (a VRF, policy routing).
    OtherTable,
}

/// A host as it is drawn.
#[derive(Debug, Clone)]
struct Layout {
    uplink: Uplink,
    pieces: Vec<Piece>,
}

fn layout() -> impl Strategy<Value = Layout> {
    let uplink = prop_oneof![
        4 => Just(Uplink::Usual), 2 => Just(Uplink::Ipv6Only), 1 => Just(Uplink::NoDefaultRoute), 1 => Just(Uplink::OtherTable),
    ];
    (uplink, prop::collection::vec(piece(), 0..9)).prop_map(|(uplink, pieces)| Layout { uplink, pieces })
}

/// Builds a host of one to four NICs and whatever else was drawn.
fn build(layout: &Layout) -> Host {
    let mut host = Host::new();
    let mut nics: Vec<String> = Vec::new();
    let ipv6_only = layout.uplink == Uplink::Ipv6Only;
    let first = Piece::Nic { v4: true, v6: ipv6_only, uplink: true, source: false, kind: None };
    let nic_pieces = layout.pieces.iter().filter(|p| matches!(p, Piece::Nic { .. })).take(3);
    for nic in std::iter::once(&first).chain(nic_pieces) {
        let Piece::Nic { v4, v6, uplink, source, kind } = nic else { unreachable!("filtered") };
        let n = nics.len();
        let name = format!("eth{n}");
        host.link(&name, *kind);
        let v4 = *v4 && !ipv6_only;
        if v4 {
            host.add(&name, &format!("10.{}.0.10/24", 20 + n));
        }
        if *v6 {
            host.add(&name, &format!("2001:db8:{n}::10/64"));
        }
        if *uplink && layout.uplink != Uplink::NoDefaultRoute {
            let metric = u32::try_from(100 + n).expect("few NICs");
            let (gateway, own) = if ipv6_only {
                ("fe80::1".to_owned(), format!("2001:db8:{n}::10"))
            } else {
                (format!("10.{}.0.1", 20 + n), format!("10.{}.0.10", 20 + n))
            };
            let route = host.default_via(&name, Some(&gateway));
            route.metric = metric;
            route.preferred_source = (*source && (if ipv6_only { *v6 } else { v4 })).then(|| ip(&own));
            if layout.uplink == Uplink::OtherTable {
                route.table = 2005;
            }
        }
        nics.push(name);
    }
    for piece in &layout.pieces {
        match piece {
            Piece::Vip { nic, prefix, host: number, deprecated, finite, protocol, .. } if ipv6_only => {
                let (nic, prefix, number) = (*nic, *prefix, *number);
                let (deprecated, finite, protocol) = (*deprecated, *finite, *protocol);
                let vip = Piece::Vip { nic, prefix, host: number, deprecated, finite, protocol, v6: true };
                add_piece(&mut host, &nics, &vip);
            }
            piece => add_piece(&mut host, &nics, piece),
        }
    }
    host
}

fn add_piece(host: &mut Host, nics: &[String], piece: &Piece) {
    let has_link = |host: &Host, name: &str| host.network.links.values().any(|l| l.name.0 == name.as_bytes());
    let has_value = |host: &Host, value: &str| host.network.copies(ip(value)).next().is_some();
    match piece {
        Piece::Nic { .. } => {}
        Piece::Bridge { name, port, address } => {
            if has_link(host, name) {
                return;
            }
            host.link(name, Some("bridge"));
            host.add(name, &format!("172.{}.{address}.1/24", 16 + address % 16));
            if *port {
                let free = format!("{name}-p");
                host.link(&free, None);
                host.enslave(&free, name);
            }
        }
        Piece::Vpn { uplink } => {
            if has_link(host, "wg0") {
                return;
            }
            host.link("wg0", Some("wireguard"));
            host.add("wg0", "10.99.0.2/24");
            if *uplink {
                host.default_via("wg0", None).metric = 0;
            }
        }
        Piece::Overlay => {
            if !has_link(host, "vxlan.calico") {
                host.link("vxlan.calico", Some("vxlan"));
                host.add("vxlan.calico", "10.1.3.0/32");
            }
        }
        Piece::ServiceLink => {
            if !has_link(host, "kube-ipvs0") {
                host.link("kube-ipvs0", Some("dummy"));
                host.add("kube-ipvs0", "10.152.183.77/32");
                host.add("kube-ipvs0", "10.20.0.10/32");
            }
        }
        Piece::Vip { nic, prefix, host: number, deprecated, finite, protocol, v6 } => {
            let n = nic.index(nics.len());
            let (value, prefix) = if *v6 {
                (format!("2001:db8:{n}::{number}"), if *prefix == 32 { 128 } else { 64 })
            } else {
                (format!("10.{}.0.{number}", 20 + n), *prefix)
            };
            if has_value(host, &value) {
                return;
            }
            let address = host.add(&nics[n], &format!("{value}/{prefix}"));
            address.protocol = *protocol;
            if *deprecated {
                address.flags.0 |= DEPRECATED;
            }
            if *finite {
                address.flags.0 &= !PERMANENT;
                address.valid = Some(Duration::from_secs(300));
            }
        }
        Piece::Slaac { nic, temporary, ula } => {
            let n = nic.index(nics.len());
            let net = if *ula { format!("fd00:{n}::") } else { format!("2001:db8:{n}::") };
            let value = format!("{net}5054:ff:fe00:{}", if *temporary { 2 } else { 1 });
            if has_value(host, &value) {
                return;
            }
            let address = host.lease(&nics[n], &format!("{value}/64"), 3600);
            if *temporary {
                address.flags.0 |= TEMPORARY;
            }
        }
        Piece::Lease { nic } => {
            let n = nic.index(nics.len());
            let value = format!("2001:db8:{n}::1:7");
            if !has_value(host, &value) {
                host.lease(&nics[n], &format!("{value}/128"), 7200);
            }
        }
    }
}

fn classes(host: &Host) -> BTreeSet<(IpAddr, Class, &'static str)> {
    host.classify().verdicts.iter().map(|v| (v.address, v.class, v.rule)).collect()
}

/// Numbers that depend on the drawn seed alone.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for index in (1..list.len()).rev() {
            let other = self.below(index + 1);
            list.swap(index, other);
        }
    }
}

/// The same host as another kernel would tell it: links have other numbers, routes and addresses come in another order.
/// The addresses of one link keep theirs if asked: it says which of them an API server picks, and so it is news.
fn told_otherwise(host: &Host, seed: u64, order_within_links: bool) -> Host {
    let (mut host, mut random) = (host.clone(), Random(seed));
    let network = &mut host.network;
    let mut numbers: Vec<u32> = network.links.keys().copied().collect();
    random.shuffle(&mut numbers);
    let numbers: BTreeMap<u32, u32> = network.links.keys().copied().zip(numbers).collect();
    network.links = std::mem::take(&mut network.links)
        .into_values()
        .map(|link| {
            (
                numbers[&link.index],
                Link { index: numbers[&link.index], master: link.master.map(|m| numbers[&m]), ..link },
            )
        })
        .collect();
    network.addresses.iter_mut().for_each(|address| address.link = numbers[&address.link]);
    network.default_routes.iter_mut().flat_map(|route| &mut route.hops).for_each(|hop| hop.link = numbers[&hop.link]);
    random.shuffle(&mut network.default_routes);
    let before = network.addresses.clone();
    random.shuffle(&mut network.addresses);
    if order_within_links {
        let mut queues: BTreeMap<u32, VecDeque<Address>> = BTreeMap::new();
        before.into_iter().for_each(|address| queues.entry(address.link).or_default().push_back(address));
        for address in &mut network.addresses {
            *address = queues.get_mut(&address.link).and_then(VecDeque::pop_front).expect("as many as before");
        }
    }
    host
}

/// Every message twice.
fn twice(host: &Host) -> Host {
    let mut host = host.clone();
    let network = &mut host.network;
    network.addresses = network.addresses.iter().flat_map(|a| [a.clone(), a.clone()]).collect();
    network.default_routes = network.default_routes.iter().flat_map(|r| [r.clone(), r.clone()]).collect();
    host
}

/// All of a plan that anybody acts on or reads.
fn decided(host: &Host) -> String {
    let plan = host.plan();
    format!(
        "{:?}\nreasons {:#?}\nholds {:#?}\nsteps {:#?}\nnames {:#?}\nnode {:?}\nagain {:?}\nnotices {:#?}",
        plan.summary, plan.reasons, plan.holds, plan.steps, plan.san, plan.node_address, plan.look_again, plan.notices
    )
}

/// What may happen to a host between two looks.
#[derive(Debug, Clone)]
enum Change {
    None,
    /// Other things come.
    Pieces(Vec<Piece>),
    /// The node address leaves, another of its subnet comes, and time goes by.
    Renumbered {
        minutes: u64,
    },
    /// The certificate names nothing of this host, or cannot be read.
    Uncovered,
    Unreadable,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        Just(Change::None),
        prop::collection::vec(piece(), 1..4).prop_map(Change::Pieces),
        (0..30_u64).prop_map(|minutes| Change::Renumbered { minutes }),
        Just(Change::Uncovered),
        Just(Change::Unreadable),
    ]
}

fn happen(host: &mut Host, change: &Change) {
    match change {
        Change::None => {}
        Change::Pieces(pieces) => pieces.iter().for_each(|piece| add_piece(host, &["eth0".to_owned()], piece)),
        Change::Renumbered { minutes } => {
            let node = host.settle().node_address.values().next().copied();
            let Some(copy) = node.and_then(|node| host.network.copies(node).next().cloned()) else { return };
            let name = host.network.link_name(copy.link);
            host.remove(&copy.value.to_string());
            let new = if copy.value.is_ipv4() { "10.20.0.77/24" } else { "2001:db8:0::77/64" };
            host.add(&name, new);
            host.settle();
            host.pass_time(Duration::from_secs(minutes * 60));
        }
        Change::Uncovered => host.certificate(&[]),
        Change::Unreadable => {
            let error = ipguard::facts::Problem::Empty;
            host.cluster.certificates[0].leaf =
                Err(ipguard::facts::ReadError { path: "server.crt".into(), problem: error });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Neither the order of the dump nor a message seen twice decides anything.
    #[test]
    fn order_and_duplicates_never_matter(layout in layout(), seed in any::<u64>()) {
        let host = build(&layout);
        let expected = classes(&host);
        let shuffled = told_otherwise(&host, seed, false);
        prop_assert_eq!(&classes(&shuffled), &expected);
        prop_assert_eq!(&classes(&twice(&shuffled)), &expected);
    }

    /// Neither the numbers of links, nor the order of routes, nor that of addresses of different links, nor a message seen
    /// twice changes anything of a plan: at a first look, of a host that is known, and of one to which something happened.
    #[test]
    fn a_plan_does_not_depend_on_how_it_is_told(layout in layout(), named in any::<bool>(), known in any::<bool>(),
                                                change in change(), seed in any::<u64>()) {
        let mut host = build(&layout);
        if named {
            host.certificate(&["10.20.0.10", "2001:db8::10"]);
        }
        if known {
            host.settle();
            host.pass_time(Duration::from_secs(600));
        }
        happen(&mut host, &change);
        let expected = decided(&host);
        let otherwise = told_otherwise(&host, seed, true);
        prop_assert_eq!(&decided(&otherwise), &expected);
        prop_assert_eq!(&decided(&twice(&otherwise)), &expected);
    }

    /// Nor does the order of the addresses of one link, while the node address stays: only an API server that is to be
    /// restarted picks by it.
    #[test]
    fn the_order_within_a_link_decides_nothing_about_a_known_host(layout in layout(), more in change(), seed in any::<u64>()) {
        let mut host = build(&layout);
        host.settle();
        host.pass_time(Duration::from_secs(600));
        if !matches!(more, Change::Renumbered { .. }) {
            happen(&mut host, &more);
        }
        let expected = decided(&host);
        let otherwise = told_otherwise(&host, seed, false);
        prop_assert_eq!(&decided(&otherwise), &expected);
        prop_assert_eq!(&decided(&twice(&otherwise)), &expected);
    }

    /// Every address gets exactly one verdict; the last accepted set is never emptied by what others do.
    #[test]
    fn never_empty_while_an_incumbent_is_there(layout in layout(),
                                               more in prop::collection::vec(piece(), 0..5)) {
        let mut host = build(&layout);
        let before = host.settle();
        let own: BTreeSet<IpAddr> = before.addresses.iter().filter(|v| v.class == Class::Primary).map(|v| v.address).collect();
        prop_assert!(!own.is_empty(), "eth0 has an address that is nobody else's");
        let nics: Vec<String> = vec!["eth0".to_owned()];
        for piece in &more {
            add_piece(&mut host, &nics, piece);
        }
        let classes = host.classify();
        let values: BTreeSet<IpAddr> = host.network.addresses.iter().map(|a| a.value).collect();
        let judged: Vec<IpAddr> = classes.verdicts.iter().map(|v| v.address).collect();
        prop_assert_eq!(values.len(), judged.len());
        prop_assert_eq!(values, judged.into_iter().collect::<BTreeSet<_>>());
        prop_assert!(own.is_subset(&classes.primary()), "{:?} lost of {:?}", own.difference(&classes.primary()), own);
    }

    /// An address added in the subnet of an incumbent on its link never becomes primary while that one stays - not now,
    /// not after any time.
    #[test]
    fn a_newcomer_in_an_incumbents_subnet_stays_out(layout in layout(),
                                                    number in 150..250_u8, prefix in select(vec![24_u8, 25, 28, 32]),
                                                    passes in 1..5_usize) {
        let mut host = build(&layout);
        host.settle();
        let incumbents: Vec<Address> = host.network.addresses.iter()
            .filter(|a| !a.is_host_prefix() && host.primary().contains(&a.value.to_string())).cloned().collect();
        for incumbent in incumbents {
            let newcomer = match IpNet::new(incumbent.value, incumbent.prefix_len).expect("a prefix").trunc() {
                IpNet::V4(net) => {
                    let size = 1_u32 << (32 - net.prefix_len());
                    IpAddr::from(std::net::Ipv4Addr::from(u32::from(net.network()) + 1 + u32::from(number) % (size - 2)))
                }
                IpNet::V6(net) => IpAddr::from(std::net::Ipv6Addr::from(u128::from(net.network()) + 0x7777 + u128::from(number))),
            };
            if host.network.copies(newcomer).next().is_some() {
                continue;
            }
            let mut with = host.clone();
            let name = with.network.link_name(incumbent.link);
            let prefix = match Family::of(newcomer) { Family::Ipv4 => prefix, Family::Ipv6 => if prefix == 32 { 128 } else { 64 } };
            with.add(&name, &format!("{newcomer}/{prefix}"));
            for _ in 0..passes {
                let verdict = with.verdict(&newcomer.to_string());
                prop_assert_ne!(verdict.0, Class::Primary, "{} beside {} by {}", newcomer, incumbent.value, verdict.1);
                with.settle();
                with.pass_time(Duration::from_secs(3_600));
            }
        }
    }

    /// Removing every address that is not primary changes nothing about those that are: neither of a host that is known,
    /// where the primary ones are incumbents, nor at a first look, where rules alone decide.
    #[test]
    fn the_others_are_not_needed(layout in layout(), known in any::<bool>(), named in any::<bool>()) {
        let mut host = build(&layout);
        if named {
            host.certificate(&["10.20.0.10", "2001:db8::10"]);
        }
        if known {
            host.settle();
        }
        let own = host.primary();
        let mut alone = host.clone();
        alone.network.addresses.retain(|a| own.contains(&a.value.to_string()));
        // The kernel takes the flag from an address that becomes the first of its subnet.
        for address in &mut alone.network.addresses {
            if address.value.is_ipv4() {
                address.flags.0 &= !SECONDARY;
            }
        }
        prop_assert_eq!(alone.primary(), own);
    }

    /// A plan carried out and planned again has nothing left to do.
    #[test]
    fn applied_once_then_in_step(layout in layout(), first in any::<bool>()) {
        let mut host = build(&layout);
        host.certificate(if first { &[] } else { &["10.20.0.10"] });
        let plan = host.settle();
        for step in &plan.steps {
            if let ipguard::decide::plan::Step::Issue(order) = step {
                host.cluster.certificates[0].leaf.as_mut().expect("readable").sans = order.sans.clone();
            }
        }
        let again = host.plan();
        prop_assert!(again.steps.is_empty(), "{:?} {:?}", again.reasons, again.steps);
        // Without a default route a usable certificate is left as it is, and that is said as long as it lasts.
        let waits = layout.uplink == Uplink::NoDefaultRoute && again.holds.iter().any(|h| h.code == HoldCode::NoDefaultRoute);
        prop_assert!(again.reasons.is_empty() || (waits && plan.steps.is_empty()), "{:?} {:?}", again.reasons, again.holds);
    }
}
