//! Random histories of real kernel operations: whatever happens, the table must add up to what a fresh dump says.

use std::cell::Cell;
use std::fmt::Write;
use std::time::{Duration, Instant};

use ipguard::facts::network::Network;
use ipguard::observe::rtnetlink::Monitor;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::namespace::{self, ip, promote_secondaries, try_ip};

/// Lifetimes, stamps and labels change without events, the order is the dump's alone, and the table may know a protocol
/// that the kernel has forgotten. Everything else must be equal.
fn comparable(network: &Network, other: &Network) -> Network {
    let mut network = network.clone();
    for address in &mut network.addresses {
        (address.valid, address.preferred, address.updated, address.label) = (None, None, None, None);
        let same = |a: &&ipguard::facts::network::Address| a.value == address.value && a.link == address.link;
        if other.addresses.iter().filter(same).any(|a| a.protocol.is_none()) {
            address.protocol = None;
        }
    }
    network.addresses.sort_by_key(|a| (a.link, a.value, a.prefix_len, a.peer));
    network
}

/// Drains until the table equals a fresh dump. Carrier is announced up to a second late, so one look is not enough; a
/// table that is wrong stays wrong.
pub(crate) fn assert_adds_up(monitor: &mut Monitor) {
    let deadline = Instant::now() + Duration::from_secs(3);
    loop {
        monitor.drain();
        let fresh = Monitor::open().and_then(|mut fresh| fresh.snapshot()).expect("a dump");
        // What happened between the two is in the queue.
        monitor.drain();
        let known = monitor.known();
        let (table, dump) = (comparable(&known, &fresh), comparable(&fresh, &known));
        if table == dump {
            assert!(table.complete);
            return;
        }
        assert!(Instant::now() < deadline, "the table\n{table:#?}\nis not the dump\n{dump:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

const NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];
const IPV4: [&str; 6] = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.65", "198.51.100.1", "10.0.0.1"];
const IPV6: [&str; 4] = ["2001:db8::1", "2001:db8::2", "2001:db8:1::1", "fd00::1"];

#[derive(Debug, Clone)]
enum Operation {
    Ip(String),
    PromoteSecondaries(bool),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn address() -> impl Strategy<Value = String> {
    prop_oneof![
        (prop::sample::select(&IPV4[..]), prop::sample::select(&[24_u8, 25, 32][..]))
            .prop_map(|(value, len)| format!("{value}/{len}")),
        (prop::sample::select(&IPV6[..]), prop::sample::select(&[64_u8, 128][..]))
            .prop_map(|(value, len)| format!("{value}/{len}")),
        (prop::sample::select(&IPV4[..]), prop::sample::select(&["10.9.0.1/32", "10.9.0.2/32", "10.9.1.0/24"][..]))
            .prop_map(|(value, peer)| format!("{value} peer {peer}")),
        (prop::sample::select(&IPV6[..]), prop::sample::select(&["fd09::1/128", "fd09::2/128"][..]))
            .prop_map(|(value, peer)| format!("{value} peer {peer}")),
    ]
}

fn command() -> impl Strategy<Value = String> {
    let options = prop::sample::select(
        &["", "valid_lft 300 preferred_lft 200", "preferred_lft 0", "noprefixroute", "scope link", "scope host"][..],
    );
    let verbs = prop::sample::select(&["add", "add", "add", "replace", "change"][..]);
    let kinds = prop::sample::select(
        &["bridge", "veth peer name p0", "vxlan id 7 dstport 4789", "macvlan link-of n0", "macvlan link-of n1"][..],
    );
    let route_verbs = prop::sample::select(&["add", "replace", "append", "del", "change", "prepend"][..]);
    let tables = prop::sample::select(&["main", "main", "main", "2005"][..]);
    let vias = prop::sample::select(
        &[
            "via 192.0.2.9 dev n0 onlink",
            "via 198.51.100.9 dev n1 onlink",
            "dev n2",
            "dev n0 src 192.0.2.1",
            "nexthop via 192.0.2.9 dev n0 onlink nexthop via 192.0.2.8 dev n1 onlink",
        ][..],
    );
    let vias6 = prop::sample::select(
        &[
            "via fe80::9 dev n0",
            "via fe80::8 dev n0",
            "via fe80::9 dev n1",
            "dev n2",
            "nexthop via fe80::9 dev n0 nexthop via fe80::8 dev n1",
        ][..],
    );
    let metrics = prop::sample::select(&[100_u32, 200][..]);
    let kind_of_route = prop::sample::select(&["", "", "", "unreachable ", "blackhole "][..]);
    prop_oneof![
        6 => (verbs, address(), name(), options)
            .prop_map(|(verb, address, link, options)| format!("addr {verb} {address} dev {link} {options} nodad")),
        3 => (address(), name()).prop_map(|(address, link)| format!("addr del {address} dev {link}")),
        1 => name().prop_map(|link| format!("addr flush dev {link}")),
        3 => (name(), kinds).prop_map(|(link, kind)| match kind.strip_prefix("macvlan link-of ") {
            Some(parent) => format!("link add {link} link {parent} type macvlan mode bridge"),
            None => format!("link add {link} type {kind}"),
        }),
        1 => name().prop_map(|link| format!("link del {link}")),
        2 => (name(), name()).prop_map(|(link, master)| format!("link set {link} master {master}")),
        1 => name().prop_map(|link| format!("link set {link} nomaster")),
        4 => name().prop_map(|link| format!("link set {link} up")),
        2 => name().prop_map(|link| format!("link set {link} down")),
        2 => (name(), name()).prop_map(|(from, to)| format!("link set {from} name {to}")),
        4 => (route_verbs.clone(), vias, tables.clone(), metrics.clone(), kind_of_route.clone()).prop_map(
            |(verb, via, table, metric, kind)| if kind.is_empty() {
                format!("route {verb} default {via} table {table} metric {metric}")
            } else {
                format!("route {verb} {kind}default table {table} metric {metric}")
            }
        ),
        3 => (route_verbs, vias6, tables, metrics, kind_of_route).prop_map(
            |(verb, via, table, metric, kind)| if kind.is_empty() {
                format!("route {verb} ::/0 {via} table {table} metric {metric}")
            } else {
                format!("route {verb} {kind}::/0 table {table} metric {metric}")
            }
        ),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        20 => command().prop_map(Operation::Ip),
        1 => any::<bool>().prop_map(Operation::PromoteSecondaries),
    ]
}

/// The same links in each history, so that most operations find something to work on.
const START: &str = "\
link add n0 type veth peer name p9
link add n1 type bridge
link set p9 up
link set n0 up
link set n1 up
addr add 192.0.2.1/24 dev n0
addr add 192.0.2.2/24 dev n0
addr add 2001:db8::1/64 dev n0
route add default via 192.0.2.9 dev n0 metric 100
";

pub(crate) fn any_history_adds_up_to_a_fresh_dump() {
    // More for an afternoon's search: PROPTEST_CASES=5000.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150);
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 60, ..Config::default() });
    // Several commands are queued between two drains, as in life.
    let history = vec(vec(operation(), 1..8), 1..6);
    let (commands_run, refused) = (Cell::new(0), Cell::new(0));
    let run = |commands: &str| {
        commands_run.set(commands_run.get() + commands.lines().count());
        refused.set(refused.get() + try_ip(commands));
    };
    let result = runner.run(&history, |history| {
        namespace::fresh();
        let mut monitor = Monitor::open().expect("rtnetlink is there");
        ip(START);
        for batch in &history {
            let mut commands = String::new();
            for operation in batch {
                match operation {
                    Operation::Ip(command) => writeln!(commands, "{command}").expect("a string"),
                    Operation::PromoteSecondaries(on) => {
                        run(&std::mem::take(&mut commands));
                        promote_secondaries(*on);
                    }
                }
            }
            run(&commands);
            monitor.drain();
        }
        assert_adds_up(&mut monitor);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // A history of refused commands proves nothing.
    let (run, refused) = (commands_run.get(), refused.get());
    assert!(refused * 3 < run * 2, "{refused} of {run} commands were refused");
}

/// Thousands of addresses added, then most of them deleted again.
fn storm() -> String {
    let mut commands = String::new();
    let address = |n: u32| std::net::Ipv4Addr::from_bits(0x0a00_0000 + n);
    for n in 1..2000 {
        writeln!(commands, "addr add {}/32 dev n1", address(n)).expect("a string");
    }
    for n in (1..2000).filter(|n| n % 7 != 0) {
        writeln!(commands, "addr del {}/32 dev n1", address(n)).expect("a string");
    }
    commands
}

pub(crate) fn a_lost_storm_ends_in_the_kernels_state() {
    ip(START);
    // The kernel's minimum: two or three events.
    let mut monitor = Monitor::with_receive_buffer(1).expect("rtnetlink is there");
    ip(&storm());
    let drained = monitor.drain();
    assert!(drained.overrun && drained.relevant, "{drained:?}");
    let known = monitor.known();
    assert!(known.complete, "the storm was over before the dump");
    assert_eq!(known.addresses.iter().filter(|a| a.link == index(&known, "n1") && a.value.is_ipv4()).count(), 285);
    assert_adds_up(&mut monitor);

    // And with a reader that keeps reading while it storms.
    ip("addr flush dev n1");
    let (finished, overruns) = while_it_storms(|| monitor.drain().overrun);
    assert!(finished > 0);
    assert!(overruns > 0, "a buffer of the minimal size cannot hold a storm");
    assert_adds_up(&mut monitor);
}

/// Calls again and again until a storm in another process is over; how often, and how often it said true.
fn while_it_storms(mut call: impl FnMut() -> bool) -> (usize, usize) {
    let commands = storm();
    let mut child = std::process::Command::new("ip")
        .args(["-batch", "-"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("ip runs");
    let mut input = child.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, commands.as_bytes()));
    let (mut calls, mut yes) = (0, 0);
    while child.try_wait().expect("our child").is_none() {
        calls += 1;
        yes += usize::from(call());
    }
    writer.join().expect("no panic").expect("ip reads all");
    (calls, yes)
}

pub(crate) fn snapshots_in_a_storm_are_sound_or_say_so() {
    ip(START);
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let mut complete = 0;
    let (snapshots, _) = while_it_storms(|| {
        let network = monitor.snapshot().expect("a busy kernel still answers");
        // The address that never moved is in each snapshot that calls itself complete.
        if network.complete {
            complete += 1;
            assert!(
                network.addresses.iter().any(|a| a.value == IPV4[0].parse::<std::net::IpAddr>().expect("an address"))
            );
        }
        false
    });
    assert!(snapshots > 0);
    assert!(complete * 2 >= snapshots, "only {complete} of {snapshots} snapshots were complete");
    assert_adds_up(&mut monitor);
}

/// Index of a link by its name.
pub(crate) fn index(network: &Network, name: &str) -> u32 {
    network.links.values().find(|link| link.name == name.into()).expect("the link is there").index
}
