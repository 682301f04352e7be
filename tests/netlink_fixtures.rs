//! What was captured from a real kernel (`fixtures/netlink/README.md`), decoded: every field as written out here by hand,
//! and as the `ip` command printed it at the same moment. Then the same bytes, damaged.

#![cfg(target_endian = "little")]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipguard::facts::network::{Address, DefaultRoute, Family, Flags, Link, LinkName, Network, NextHop};
use ipguard::observe::rtnetlink::decode::{Change, Unreadable, messages};
use ipguard::observe::rtnetlink::table::{Dumped, Table};

const DUMPS: [&str; 5] = [
    "dump-links.bin",
    "dump-addresses-ipv4.bin",
    "dump-addresses-ipv6.bin",
    "dump-routes-ipv4.bin",
    "dump-routes-ipv6.bin",
];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/netlink").join(name)
}

fn datagrams(name: &str) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path(name)).expect("the fixture is there");
    let (mut rest, mut datagrams) = (bytes.as_slice(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk() {
        let (datagram, after) = after.split_at(u32::from_le_bytes(*length) as usize);
        datagrams.push(datagram.to_vec());
        rest = after;
    }
    datagrams
}

fn changes(datagram: &[u8], unreadable: &mut Unreadable) -> Vec<Change> {
    let mut messages = messages(datagram, unreadable);
    std::iter::from_fn(|| messages.next_change()).filter_map(|(_, change)| change).collect()
}

fn table() -> Table {
    let (mut dumped, mut unreadable) = (Dumped::default(), Unreadable::default());
    for datagram in DUMPS.iter().flat_map(|name| datagrams(name)) {
        changes(&datagram, &mut unreadable).into_iter().for_each(|change| dumped.take(change));
    }
    assert_eq!(unreadable, Unreadable::default());
    let mut table = Table::default();
    assert!(table.replace(dumped), "a first dump is news");
    table
}

fn network() -> Network {
    table().network(true)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// index, name, kind, master, up, carrier
type ExpectedLink = (u32, &'static [u8], Option<&'static str>, Option<u32>, bool, bool);

const LINKS: [ExpectedLink; 9] = [
    (1, b"lo", None, None, true, true),
    (2, b"far0", Some("veth"), None, true, true),
    (3, b"eth0", Some("veth"), None, true, true),
    (4, b"br0", Some("bridge"), None, true, true),
    (5, b"far1", Some("veth"), None, true, true),
    (6, b"port0", Some("veth"), Some(4), true, true),
    (7, b"vxlan.calico", Some("vxlan"), None, true, true),
    (8, b"down0", Some("bridge"), None, false, false),
    (9, b"br\xff", Some("bridge"), None, false, false),
];

#[test]
fn every_field_of_every_link() {
    let expected = LINKS.map(|(index, name, kind, master, up, carrier)| Link {
        index,
        name: LinkName(name.to_vec()),
        kind: kind.map(str::to_owned),
        master,
        up,
        carrier,
        loopback: index == 1,
    });
    assert_eq!(network().links.into_values().collect::<Vec<_>>(), expected);
}

/// link, value, prefix length, peer, scope, flags, label, protocol, valid and preferred seconds
type ExpectedAddress =
    (u32, &'static str, u8, Option<&'static str>, u8, u32, Option<&'static [u8]>, Option<u8>, Option<u64>, Option<u64>);

#[rustfmt::skip]
const ADDRESSES: [ExpectedAddress; 20] = [
    (1, "127.0.0.1", 8, None, 254, 0x80, Some(b"lo"), None, None, None),
    (3, "192.0.2.10", 24, None, 0, 0x80, Some(b"eth0"), None, None, None),
    // IPv4, deprecated for ever: only the flag says so.
    (3, "192.0.2.30", 32, None, 0, 0xa0, Some(b"eth0"), None, None, None),
    (3, "10.99.0.1", 32, Some("10.99.0.2"), 0, 0x80, Some(b"eth0"), None, None, None),
    (3, "203.0.113.5", 32, None, 0, 0x80, Some(b"eth0"), Some(18), None, None),
    (3, "192.0.2.20", 24, None, 0, 0x81, Some(b"eth0:vip"), None, None, None),
    (4, "198.51.100.7", 24, None, 0, 0x200, Some(b"br0"), None, Some(3600), Some(1800)),
    (7, "10.1.44.0", 32, None, 253, 0x80, Some(b"vxlan.calico"), None, None, None),
    (9, "172.31.0.1", 16, None, 0, 0x80, Some(b"br\xff"), None, None, None),
    (1, "::1", 128, None, 254, 0x80, None, Some(1), None, None),
    (2, "fe80::ff:fe00:2", 64, None, 253, 0x80, None, Some(3), None, None),
    (3, "2001:db8:1::50", 128, None, 0, 0x82, None, Some(18), None, None),
    (3, "2001:db8:1::30", 128, Some("2001:db8:1::31"), 0, 0x82, None, None, None, None),
    (3, "2001:db8:1::20", 64, None, 0, 0xa2, None, None, None, Some(0)),
    (3, "2001:db8:1::10", 64, None, 0, 0x82, None, None, None, None),
    (3, "fe80::ff:fe00:1", 64, None, 253, 0x80, None, Some(3), None, None),
    (4, "2001:db8:2::7", 64, None, 0, 0x202, None, None, Some(7200), Some(3600)),
    (4, "fe80::ff:fe00:3", 64, None, 253, 0x80, None, Some(3), None, None),
    (5, "fe80::ff:fe00:5", 64, None, 253, 0x80, None, Some(3), None, None),
    (6, "fe80::ff:fe00:4", 64, None, 253, 0x80, None, Some(3), None, None),
];

#[test]
fn every_field_of_every_address_in_the_kernels_order() {
    let addresses = network().addresses;
    let stamps: Vec<_> = addresses.iter().map(|a| (a.created, a.updated)).collect();
    let expected =
        ADDRESSES.map(|(link, value, prefix_len, peer, scope, flags, label, protocol, valid, preferred)| Address {
            value: ip(value),
            prefix_len,
            link,
            peer: peer.map(ip),
            scope,
            flags: Flags(flags),
            label: label.map(|label| LinkName(label.to_vec())),
            protocol,
            valid: valid.map(Duration::from_secs),
            preferred: preferred.map(Duration::from_secs),
            created: None,
            updated: None,
        });
    let mut unstamped = addresses;
    unstamped.iter_mut().for_each(|a| (a.created, a.updated) = (None, None));
    // The last one, of vxlan.calico.
    let last = unstamped.pop().expect("there are addresses");
    assert_eq!((last.link, last.value), (7, ip("fe80::ff:fe00:6")));
    assert_eq!(unstamped, expected);
    // All were made within the second before the dump, by a clock that does not start at zero.
    let created: Vec<u32> = stamps.iter().map(|(created, _)| created.expect("IFA_CACHEINFO is there")).collect();
    let (first, last) = (created.iter().min().expect("some"), created.iter().max().expect("some"));
    assert!(*first > 0 && last - first < 200, "{created:?}");
    assert!(stamps.iter().all(|(created, updated)| updated >= created));
}

#[test]
fn every_field_of_every_default_route() {
    let hop = |link, gateway: Option<&str>| NextHop { link, gateway: gateway.map(ip) };
    let route = |family, table, metric, source: Option<&str>, hops: &[NextHop], protocol| DefaultRoute {
        family,
        table,
        metric,
        preferred_source: source.map(ip),
        hops: hops.to_vec(),
        protocol,
    };
    let (four, six) = (Family::Ipv4, Family::Ipv6);
    let mut expected = vec![
        route(four, 2005, 0, None, &[hop(3, Some("192.0.2.3"))], 3),
        route(four, 254, 100, Some("192.0.2.10"), &[hop(3, Some("192.0.2.1"))], 4),
        route(four, 254, 200, None, &[hop(3, Some("fe80::1")), hop(3, Some("192.0.2.2"))], 186),
        route(four, 254, 300, None, &[hop(4, None)], 3),
        route(six, 254, 1024, None, &[hop(3, Some("fe80::1"))], 9),
        route(six, 254, 2048, None, &[hop(3, Some("fe80::2")), hop(3, Some("fe80::3"))], 186),
    ];
    expected.sort();
    assert_eq!(network().default_routes, expected);
}

fn text(name: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(path(name)).expect("the fixture is there")).into_owned()
}

#[test]
fn the_ip_command_saw_the_same_links_and_addresses() {
    let network = network();
    let (mut link, mut links, mut printed) = (0, BTreeSet::new(), BTreeSet::new());
    for line in text("ip-addr.txt").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            link = words[0].trim_end_matches(':').parse().expect("an index");
            let name = words[1].trim_end_matches(':').split('@').next().expect("a name");
            let master = words.iter().position(|word| *word == "master").map(|at| words[at + 1].to_owned());
            links.insert((link, name.to_owned(), words[2].contains(",UP"), words[2].contains("LOWER_UP"), master));
        } else if words[0].starts_with("inet") {
            let peer = (words[2] == "peer").then(|| words[3].split('/').next().expect("an address"));
            let prefix = if peer.is_some() { words[3] } else { words[1] };
            let value = words[1].split('/').next().expect("an address");
            let has = |word: &str| words.contains(&word);
            let prefix_len: u8 = prefix.split('/').nth(1).expect("a length").parse().expect("a number");
            printed.insert((
                link,
                ip(value),
                prefix_len,
                peer.map(ip),
                has("deprecated"),
                has("secondary"),
                has("dynamic"),
            ));
        }
    }
    let name = |link: &Link| String::from_utf8_lossy(&link.name.0).into_owned();
    let ours: BTreeSet<_> = network
        .links
        .values()
        .map(|l| (l.index, name(l), l.up, l.carrier, l.master.map(|index| name(&network.links[&index]))))
        .collect();
    assert_eq!(ours, links);
    let ours: BTreeSet<_> = network
        .addresses
        .iter()
        .map(|a| {
            let f = a.flags;
            (a.link, a.value, a.prefix_len, a.peer, f.deprecated(), a.value.is_ipv4() && f.secondary(), !f.permanent())
        })
        .collect();
    assert_eq!(ours, printed);
}

#[test]
fn the_ip_command_saw_the_same_default_routes() {
    let mut printed: Vec<(u32, u32)> = Vec::new();
    for line in text("ip-route.txt").lines().filter(|line| line.starts_with("unicast default")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word: &str| words.iter().position(|w| *w == word).map(|at| words[at + 1]);
        let table = after("table").expect("each line says it");
        printed.push((
            if table == "main" { 254 } else { table.parse().expect("a number") },
            after("metric").map_or(0, |metric| metric.parse().expect("a number")),
        ));
    }
    let mut ours: Vec<_> = network().default_routes.iter().map(|route| (route.table, route.metric)).collect();
    printed.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, printed);
}

#[test]
fn events_tell_the_story_in_order() {
    let (mut table, mut unreadable, mut story, mut routes) = (table(), Unreadable::default(), Vec::new(), Vec::new());
    let before = table.network(true);
    for change in datagrams("events.bin").iter().flat_map(|datagram| changes(datagram, &mut unreadable)) {
        match &change {
            Change::Address(a) if a.value.is_ipv4() => {
                let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
                story.push((true, a.value.to_string(), a.flags.0, seconds(a.valid), seconds(a.preferred)));
            }
            Change::AddressDeleted(a) if a.value.is_ipv4() => story.push((false, a.value.to_string(), 0, None, None)),
            Change::DefaultRoute(route) => routes.push((route.metric, route.hops[0].gateway)),
            _ => {}
        }
        table.apply(change);
    }
    assert_eq!(unreadable, Unreadable::default());
    let is = |there, value: &str, flags, valid, preferred| (there, value.to_owned(), flags, valid, preferred);
    let expected = [
        is(true, "192.0.2.40", 0x80, None, None),
        is(true, "192.0.2.41", 0x01, Some(600), Some(300)),
        is(true, "192.0.2.41", 0x21, Some(900), Some(0)),
        // promote_secondaries=0: the primary takes its secondaries along, and they are announced first.
        is(false, "192.0.2.41", 0, None, None),
        is(false, "192.0.2.40", 0, None, None),
    ];
    assert_eq!(story, expected);
    assert_eq!(routes, [(100, Some(ip("192.0.2.9")))]);
    assert!(table.routes_dirty());
    // Everything that came also went; the routes wait for their dump.
    let after = table.network(true);
    assert_eq!((after.links, after.addresses.len()), (before.links, before.addresses.len()));
}

/// xorshift64: the same damage in each run.
struct Damage(u64);

impl Damage {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound.max(1)).expect("64 bits")).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("a byte")
    }
}

#[test]
fn damaged_datagrams_never_panic() {
    let mut damage = Damage(0x9e37_79b9_7f4a_7c15);
    let all: Vec<Vec<u8>> = DUMPS.iter().chain(&["events.bin"]).flat_map(|name| datagrams(name)).collect();
    let mut table = table();
    let mut unreadable = Unreadable::default();
    for _ in 0..40_000 {
        let source = &all[damage.below(all.len())];
        let start = damage.below(source.len()) & !3;
        let mut bytes = source[if damage.below(2) == 0 { 0 } else { start }..].to_vec();
        bytes.truncate(1200);
        for _ in 0..=damage.below(6) {
            let at = damage.below(bytes.len());
            bytes[at] = damage.byte();
        }
        if damage.below(3) == 0 {
            bytes.truncate(damage.below(bytes.len() + 1));
        }
        for change in changes(&bytes, &mut unreadable) {
            table.apply(change);
        }
    }
    assert!(unreadable.attributes > 1000 && unreadable.messages > 1000, "the damage was not felt: {unreadable:?}");
    assert!(unreadable.last.is_some_and(|last| last.bytes.len() <= 64));
}

/// A message's body without attributes, and its attributes.
type Parts = (Vec<u8>, Vec<(u16, Vec<u8>)>);

/// The messages of the address dumps, taken apart.
fn address_messages() -> Vec<Parts> {
    let mut parts = Vec::new();
    for datagram in [DUMPS[1], DUMPS[2]].iter().flat_map(|name| datagrams(name)) {
        let mut unreadable = Unreadable::default();
        for message in messages(&datagram, &mut unreadable).filter(|message| message.message_type == 20) {
            let (mut rest, mut attributes) = (&message.payload[8..], Vec::new());
            while rest.len() >= 4 {
                let length = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
                attributes.push((u16::from_le_bytes([rest[2], rest[3]]), rest[4..length].to_vec()));
                rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            }
            parts.push((message.payload[..8].to_vec(), attributes));
        }
    }
    parts
}

fn build(body: &[u8], attributes: &[(u16, Vec<u8>)], tail: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend_from_slice(body);
    for (kind, value) in attributes {
        bytes.extend_from_slice(&u16::try_from(4 + value.len()).expect("short").to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    bytes.extend_from_slice(tail);
    let length = u32::try_from(bytes.len()).expect("short");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..6].copy_from_slice(&20_u16.to_le_bytes());
    bytes
}

#[test]
fn one_odd_attribute_never_hides_an_address() {
    let mut damage = Damage(0x2545_f491_4f6c_dd1d);
    let parts = address_messages();
    assert_eq!(parts.len(), 21);
    for (number, (body, attributes)) in parts.iter().enumerate() {
        let (whole, mut unreadable) = (build(body, attributes, &[]), Unreadable::default());
        let [Change::Address(expected)] = &changes(&whole, &mut unreadable)[..] else { panic!("message {number}") };
        // IFA_LOCAL (2) carries the value where it is, else IFA_ADDRESS (1).
        let carrier = if attributes.iter().any(|(kind, _)| *kind == 2) { 2 } else { 1 };
        for at in (0..attributes.len()).filter(|&at| attributes[at].0 != carrier) {
            for round in 0..400 {
                let mut odd = attributes.clone();
                let length = damage.below(40);
                odd[at].1 = (0..length).map(|_| damage.byte()).collect();
                // From time to time one that no kernel has yet, or a tail that is no attribute.
                if round % 4 == 0 {
                    odd[at].0 = 200 + u16::from(damage.byte());
                }
                let tail: &[u8] = if round % 5 == 0 { &[0xff, 0xff, 0xff] } else { &[] };
                let mut unreadable = Unreadable::default();
                let found = changes(&build(body, &odd, tail), &mut unreadable);
                let [Change::Address(address)] = &found[..] else {
                    panic!("message {number}, attribute {at}: {found:?}")
                };
                let identity = |a: &Address| (a.link, a.value, a.prefix_len, a.scope);
                assert_eq!(identity(address), identity(expected), "message {number}, attribute {at}");
                assert_eq!(unreadable.messages, 0);
                assert!(tail.is_empty() || unreadable.attributes > 0);
            }
        }
    }
}

#[test]
fn a_local_address_that_cannot_be_read_is_not_replaced_by_its_peer() {
    let (body, mut attributes) = address_messages()
        .into_iter()
        .find(|(_, attributes)| attributes.iter().any(|(kind, value)| *kind == 1 && value == &[10, 99, 0, 2]))
        .expect("the point-to-point address");
    let local = attributes.iter_mut().find(|(kind, _)| *kind == 2).expect("IFA_LOCAL");
    local.1.push(0);
    let mut unreadable = Unreadable::default();
    assert_eq!(changes(&build(&body, &attributes, &[]), &mut unreadable), []);
    assert_eq!(unreadable.messages, 1);
}

#[test]
fn wider_numbers_of_a_newer_kernel_are_read() {
    let (body, mut attributes) = address_messages().swap_remove(4);
    for (kind, value) in &mut attributes {
        match *kind {
            8 => *value = 0x1_0000_0280_u64.to_le_bytes().to_vec(),
            11 => *value = 18_u32.to_le_bytes().to_vec(),
            6 => value.extend([0; 8]),
            _ => {}
        }
    }
    let mut unreadable = Unreadable::default();
    let found = changes(&build(&body, &attributes, &[]), &mut unreadable);
    let [Change::Address(address)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((address.flags, address.protocol, address.valid), (Flags(0x280), Some(18), None));
    assert!(address.created.is_some());
    assert_eq!(unreadable, Unreadable::default());
}
