//! What the monitor promises, one promise a test.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use ipguard::facts::network::{Family, Network, SCOPE_LINK, Source};
use ipguard::observe::network::NetworkSource;
use ipguard::observe::polling;
use ipguard::observe::rtnetlink::Monitor;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use crate::histories::{assert_adds_up, index};
use crate::namespace::{ip, promote_secondaries};
use crate::raw;

fn value(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn has(network: &Network, text: &str) -> bool {
    network.copies(value(text)).next().is_some()
}

pub(crate) fn a_forged_message_changes_nothing() {
    ip("addr add 192.0.2.1/24 dev lo");
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let mut forged = raw::new_ipv4(1, [203, 0, 113, 66], 32, 0);
    // Without NLM_F_REQUEST: what is sent to a group goes to the kernel too, and must not be a request to it.
    forged[6..8].fill(0);
    let mut forger = Socket::new(NETLINK_ROUTE).expect("rtnetlink is there");
    forger.bind_auto().expect("a port is free");
    // To the socket itself, and to the group it joined (1 << (RTNLGRP_IPV4_IFADDR - 1)).
    let sent = forger.send_to(&forged, &SocketAddr::new(monitor.port(), 0), 0).expect("root may");
    assert_eq!(sent, forged.len());
    forged[31] = 67;
    let _ = forger.send_to(&forged, &SocketAddr::new(0, 1 << (libc::RTNLGRP_IPV4_IFADDR - 1)), 0);
    // It did arrive: the socket is readable.
    let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(&monitor), nix::poll::PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut poll, 1000_u16), Ok(1));
    let drained = monitor.drain();
    assert!(!has(&monitor.known(), "203.0.113.66") && !has(&monitor.known(), "203.0.113.67"));
    assert_eq!((drained.relevant, drained.messages), (false, 0));
    // In the middle of a dump, too.
    let _ = forger.send_to(&forged, &SocketAddr::new(monitor.port(), 0), 0).expect("root may");
    let network = monitor.snapshot().expect("a dump");
    assert!(has(&network, "192.0.2.1") && !has(&network, "203.0.113.67"));
    assert!(network.complete);
}

pub(crate) fn a_protocol_outlives_the_replace_that_erases_it() {
    ip("link add n0 type bridge\nlink set n0 up");
    let mut monitor = Monitor::with_receive_buffer(1).expect("rtnetlink is there");
    let link = index(&monitor.known(), "n0");
    raw::request(&raw::new_ipv4(link, [192, 0, 2, 77], 32, 18));
    let vip6 = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);
    raw::request(&raw::new_ipv6(link, vip6.octets(), 128, 18));
    // So small a buffer may overrun already.
    let drained = drain(&mut monitor);
    assert!(drained.relevant || drained.overrun, "{drained:?}");
    let protocols = |network: &Network| {
        let of = |value: IpAddr| network.copies(value).next().expect("it is there").protocol;
        (of(value("192.0.2.77")), of(IpAddr::V6(vip6)))
    };
    assert_eq!(protocols(&monitor.known()), (Some(18), Some(18)));
    ip("addr change 192.0.2.77/32 dev n0 valid_lft 100 preferred_lft 50\n\
        addr change 2001:db8::77/128 dev n0 valid_lft 100 preferred_lft 50");
    let fresh = Monitor::open().and_then(|mut fresh| fresh.snapshot()).expect("a dump");
    assert_eq!(protocols(&fresh), (None, None), "the kernel forgets: else this test proves nothing");
    drain(&mut monitor);
    assert_eq!(protocols(&monitor.known()), (Some(18), Some(18)), "after events");
    assert_eq!(protocols(&monitor.snapshot().expect("a dump")), (Some(18), Some(18)), "after a dump");
    let mut storm = String::new();
    for n in 0..200 {
        storm += &format!("addr add 10.0.0.{n}/32 dev n0\n");
    }
    ip(&storm);
    assert!(drain(&mut monitor).overrun);
    assert_eq!(protocols(&monitor.known()), (Some(18), Some(18)), "after lost events");
    assert_eq!(protocols(&monitor.snapshot().expect("a dump")), (Some(18), Some(18)));
}

pub(crate) fn a_protocol_dies_with_its_address() {
    ip("link add n0 type bridge\nlink set n0 up");
    let mut monitor = Monitor::with_receive_buffer(1).expect("rtnetlink is there");
    let link = index(&monitor.known(), "n0");
    let protocol = |network: &Network| network.copies(value("192.0.2.77")).next().expect("it is there").protocol;
    raw::request(&raw::new_ipv4(link, [192, 0, 2, 77], 32, 18));
    drain(&mut monitor);
    assert_eq!(protocol(&monitor.known()), Some(18));
    ip("addr del 192.0.2.77/32 dev n0\naddr add 192.0.2.77/32 dev n0");
    drain(&mut monitor);
    assert_eq!(protocol(&monitor.known()), None);
    // The same when both events are lost: the kernel's time stamp tells that it is another address.
    raw::request(&raw::new_ipv4(link, [192, 0, 2, 77], 32, 18));
    drain(&mut monitor);
    assert_eq!(protocol(&monitor.known()), Some(18));
    std::thread::sleep(std::time::Duration::from_millis(20));
    let mut storm = String::new();
    for n in 0..200 {
        storm += &format!("addr add 10.0.0.{n}/32 dev n0\n");
    }
    ip(&(storm + "addr del 192.0.2.77/32 dev n0\naddr add 192.0.2.77/32 dev n0"));
    assert!(drain(&mut monitor).overrun);
    assert_eq!(protocol(&monitor.known()), None);
}

/// Everything that the last commands announce. The kernel announces an IPv6 address from a work queue, a moment after the
/// command has returned: wait until nothing more comes.
fn drain(monitor: &mut Monitor) -> ipguard::observe::network::Drained {
    let mut all = monitor.drain();
    while something_comes(monitor) {
        let more = monitor.drain();
        all.relevant |= more.relevant;
        all.overrun |= more.overrun;
        all.messages += more.messages;
    }
    all
}

/// Waits a moment for a message; false when none came.
fn something_comes(monitor: &Monitor) -> bool {
    let mut poll = [nix::poll::PollFd::new(std::os::fd::AsFd::as_fd(monitor), nix::poll::PollFlags::POLLIN)];
    nix::poll::poll(&mut poll, 100_u16) == Ok(1)
}

pub(crate) fn only_relevant_changes_are_relevant() {
    ip("link add n0 type veth peer name p0\nlink set n0 up\nlink set p0 up\nlink add n1 type bridge\nlink set n1 up\n\
        addr add 192.0.2.1/24 dev n0\nroute add default via 192.0.2.9 dev n0 metric 100");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let mut expect = |relevant: bool, commands: &str| {
        ip(commands);
        let drained = drain(&mut monitor);
        assert_eq!(drained.relevant, relevant, "{commands}: {drained:?}");
        assert!(!drained.overrun);
        assert!(drained.messages > 0, "{commands}: nothing was announced");
    };
    expect(true, "addr add 192.0.2.2/24 dev n0");
    expect(false, "addr change 192.0.2.2/24 dev n0");
    // Finite lifetimes clear the PERMANENT flag; after that only the clock differs.
    expect(true, "addr change 192.0.2.2/24 dev n0 valid_lft 500 preferred_lft 300");
    expect(false, "addr change 192.0.2.2/24 dev n0 valid_lft 600 preferred_lft 400");
    expect(true, "addr change 192.0.2.2/24 dev n0 valid_lft 600 preferred_lft 0");
    expect(true, "addr del 192.0.2.2/24 dev n0");
    expect(true, "addr add 2001:db8::1/64 dev n0 nodad");
    expect(false, "addr add fe80::77/64 dev n0 nodad");
    // A pod: its veth, up, moved about, gone.
    expect(false, "link add c0 type veth peer name c1");
    expect(false, "link set c0 up\nlink set c1 up");
    expect(false, "link set c0 name c9 down");
    expect(false, "route add 10.1.7.7/32 dev p0");
    expect(false, "link del c9");
    // A port of a bridge says what the bridge is.
    expect(false, "link add c0 type veth peer name c1");
    expect(true, "link set c0 master n1");
    expect(true, "link set c0 down name c5");
    expect(true, "link del c5");
    // The link of the node's address.
    expect(true, "link set p0 down name p1\nlink set n0 down\nlink set n0 name e0\nlink set e0 up\nlink set p1 up");
    expect(true, "route add default via 192.0.2.9 dev e0 metric 100");
    expect(true, "route add default via 192.0.2.8 dev e0 metric 50");
    expect(true, "route replace default via 192.0.2.7 dev e0 metric 50");
    expect(false, "route add blackhole default table 77");
    expect(true, "route change blackhole default metric 50");
    expect(true, "route change default via 192.0.2.7 dev e0 metric 50");
    expect(true, "route del default via 192.0.2.7 dev e0 metric 50");
    expect(true, "link del e0");
}

pub(crate) fn a_silently_removed_route_is_missed() {
    ip("link add n0 type veth peer name p0\nlink set n0 up\nlink set p0 up\naddr add 192.0.2.1/24 dev n0\n\
        addr add 192.0.2.2/24 dev n0\nroute add default via 192.0.2.9 dev n0 metric 1\n\
        route add default via 192.0.2.9 dev n0 metric 2 src 192.0.2.2");
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let ipv4_metrics = |network: &Network| -> Vec<u32> {
        network.default_routes.iter().filter(|r| r.family == Family::Ipv4).map(|r| r.metric).collect()
    };
    assert_eq!(ipv4_metrics(&monitor.known()), [1, 2]);
    // IPv4 announces no route deletion in any of these cases.
    ip("addr del 192.0.2.2/24 dev n0");
    assert!(drain(&mut monitor).relevant);
    assert_eq!(ipv4_metrics(&monitor.known()), [1]);
    ip("link set n0 down");
    assert!(drain(&mut monitor).relevant);
    assert!(ipv4_metrics(&monitor.known()).is_empty());
    ip("link set n0 up\nroute add default via 192.0.2.9 dev n0 metric 3");
    assert!(drain(&mut monitor).relevant);
    assert_eq!(ipv4_metrics(&monitor.known()), [3]);
    ip("addr del 192.0.2.1/24 dev n0");
    assert!(drain(&mut monitor).relevant);
    assert!(ipv4_metrics(&monitor.known()).is_empty());
    ip("addr add 192.0.2.1/24 dev n0\nroute add default via 192.0.2.9 dev n0 metric 4");
    drain(&mut monitor);
    ip("link del n0");
    assert!(drain(&mut monitor).relevant);
    assert!(ipv4_metrics(&monitor.known()).is_empty());
    assert_adds_up(&mut monitor);
}

pub(crate) fn addresses_are_in_dump_order() {
    ip("link add n0 type bridge\nlink set n0 up\naddr add 192.0.2.1/24 dev n0\naddr add 192.0.2.2/24 dev n0\n\
        addr add 10.0.0.1/32 dev n0");
    promote_secondaries(true);
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    // The promoted address moves before the others; its event does not say so.
    ip("addr del 192.0.2.1/24 dev n0\naddr add 192.0.2.1/24 dev n0\naddr add 10.0.0.2/32 dev n0");
    let network = monitor.snapshot().expect("a dump");
    let ours: Vec<String> = network.addresses.iter().map(|a| a.value.to_string()).collect();
    let printed = String::from_utf8(crate::namespace::printed("-4 -o addr")).expect("no odd name here");
    let kernel: Vec<&str> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().skip_while(|word| *word != "inet").nth(1)?.split('/').next())
        .collect();
    assert_eq!(ours.iter().filter(|text| text.contains('.')).collect::<Vec<_>>(), kernel.iter().collect::<Vec<_>>());
    assert_eq!(kernel.len(), 5);
}

pub(crate) fn an_odd_name_hides_nothing() {
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"br\xff");
    let run = |arguments: [&std::ffi::OsStr; 5]| {
        let status = Command::new("ip").args(arguments).status().expect("ip runs");
        assert!(status.success());
    };
    let word = std::ffi::OsStr::new;
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    run([word("link"), word("add"), odd, word("type"), word("bridge")]);
    run([word("addr"), word("add"), word("192.0.2.5/24"), word("dev"), odd]);
    assert!(drain(&mut monitor).relevant);
    for network in [monitor.known(), monitor.snapshot().expect("a dump")] {
        let address = network.copies(value("192.0.2.5")).next().expect("the address is seen");
        assert_eq!(network.links[&address.link].name.0, b"br\xff");
        assert_eq!(address.label.as_ref().map(|label| label.0.as_slice()), Some(&b"br\xff"[..]));
    }
    assert_eq!((monitor.unreadable().attributes, monitor.unreadable().messages), (0, 0));
}

const MIXED: &str = "\
link add n0 type veth peer name p0
link add n1 type bridge
link set n0 up
link set p0 up
link set n1 up
addr add 192.0.2.1/24 dev n0
addr add 192.0.2.2/24 dev n0 label n0:2
addr add 198.51.100.1/25 dev n1
addr add 2001:db8::1/64 dev n0 nodad
addr add 2001:db8::2/64 dev n0 preferred_lft 0 nodad
addr add fd00::1/128 dev n1 nodad
route add default via 192.0.2.9 dev n0 metric 100
route add default dev n1 metric 300
route add unreachable default metric 400
route add ::/0 via fe80::9 dev n0 metric 77
route add unreachable ::/0 metric 4278198272
";

type Seen = BTreeSet<(u32, IpAddr, u8, bool)>;
type Routes = Vec<(Family, u32, u32, Option<IpAddr>)>;

fn seen(network: &Network) -> (Seen, Routes) {
    let deprecated = |a: &ipguard::facts::network::Address| a.value.is_ipv6() && a.flags.deprecated();
    let addresses = network.addresses.iter().map(|a| (a.link, a.value, a.prefix_len, deprecated(a))).collect();
    let routes = network.default_routes.iter().map(|r| (r.family, r.metric, r.hops[0].link, r.hops[0].gateway));
    (addresses, routes.collect())
}

pub(crate) fn polling_sees_what_rtnetlink_sees() {
    ip(MIXED);
    let netlink = NetworkSource::open().and_then(|mut source| source.snapshot()).expect("a dump");
    assert_eq!(netlink.source, Source::Rtnetlink);
    let polled = polling::snapshot(Path::new("/")).expect("getifaddrs works");
    assert_eq!(polled.source, Source::Polling);
    assert_eq!(seen(&polled), seen(&netlink));
    assert!(seen(&netlink).1.len() == 3 && seen(&netlink).0.len() >= 8);
    let link = |l: &ipguard::facts::network::Link| (l.index, l.name.clone(), l.up, l.loopback, l.carrier);
    assert!(polled.links.values().map(link).eq(netlink.links.values().map(link)));
    let link_local = |network: &Network| network.addresses.iter().filter(|a| a.scope == SCOPE_LINK).count();
    assert_eq!(link_local(&polled), link_local(&netlink));
    let order = |network: &Network| -> Vec<IpAddr> { network.addresses.iter().map(|a| a.value).collect() };
    assert_eq!(order(&polled), order(&netlink));

    let mut polling = polling::Polling::open(Path::new("/")).expect("getifaddrs works");
    assert!(!polling.drain().relevant);
    ip("addr add 192.0.2.77/32 dev n0");
    assert!(polling.drain().relevant);
    assert!(!polling.drain().relevant);
}

pub(crate) fn files_alone_show_the_same_addresses() {
    ip(MIXED);
    // The kernel gives a link its own address when it has noticed the carrier, which may be between two looks.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let (polled, netlink) = seen_in_files();
        if polled == netlink {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{polled:?} is not {netlink:?}");
    }
}

/// What the files say, and what rtnetlink says.
fn seen_in_files() -> ((Seen, Routes), (Seen, Routes)) {
    let netlink = Monitor::open().and_then(|mut monitor| monitor.snapshot()).expect("a dump");
    // /proc is real; /sys shows the namespace it was mounted in, so the links are written as it would show them here.
    let root = std::env::temp_dir().join(format!("ipguard-polling-{}", std::process::id()));
    std::fs::create_dir_all(root.join("proc")).expect("a folder");
    std::os::unix::fs::symlink("/proc/self/net", root.join("proc/net")).expect("a link");
    for link in netlink.links.values() {
        let folder = root.join("sys/class/net").join(link.name.to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        let flags = u32::from(link.up) | u32::from(link.loopback) << 3;
        std::fs::write(folder.join("ifindex"), format!("{}\n", link.index)).expect("a file");
        std::fs::write(folder.join("flags"), format!("{flags:#x}\n")).expect("a file");
    }
    let polled = polling::snapshot_from_files(&root);
    std::fs::remove_dir_all(&root).expect("it was just made");
    (seen(&polled.expect("the links can be listed")), seen(&netlink))
}
