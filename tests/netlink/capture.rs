//! Captures what the kernel really says, for `tests/netlink_fixtures.rs`.
//!
//! `cargo test --test netlink_table -- --capture fixtures/netlink`

use std::path::Path;

use ipguard::observe::rtnetlink::decode::{Unreadable, messages};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

use crate::namespace::{self, ip, printed};
use crate::raw;

/// Everything that has ever been mistaken for something else.
const HOST: &str = "\
link add eth0 address 02:00:00:00:00:01 type veth peer name far0 address 02:00:00:00:00:02
link add br0 address 02:00:00:00:00:03 type bridge
link add port0 address 02:00:00:00:00:04 type veth peer name far1 address 02:00:00:00:00:05
link set port0 master br0
link add vxlan.calico address 02:00:00:00:00:06 type vxlan id 4096 dev eth0 dstport 4789
link add down0 address 02:00:00:00:00:07 type bridge
link set far0 up
link set far1 up
link set eth0 up
link set br0 up
link set port0 up
link set vxlan.calico up
addr add 192.0.2.10/24 brd + dev eth0
addr add 192.0.2.20/24 dev eth0 label eth0:vip
addr add 192.0.2.30/32 dev eth0 preferred_lft 0
addr add 10.99.0.1 peer 10.99.0.2/32 dev eth0
addr add 198.51.100.7/24 dev br0 valid_lft 3600 preferred_lft 1800 noprefixroute
addr add 10.1.44.0/32 dev vxlan.calico scope link
addr add 2001:db8:1::10/64 dev eth0 nodad
addr add 2001:db8:1::20/64 dev eth0 preferred_lft 0 nodad
addr add 2001:db8:1::30 peer 2001:db8:1::31/128 dev eth0 nodad
addr add 2001:db8:2::7/64 dev br0 valid_lft 7200 preferred_lft 3600 noprefixroute nodad
route add default via 192.0.2.1 dev eth0 src 192.0.2.10 metric 100 proto static
route add 0.0.0.0/0 proto bgp metric 200 nexthop via inet6 fe80::1 dev eth0 weight 1 nexthop via 192.0.2.2 dev eth0 weight 1
route add default dev br0 metric 300
route add default via 192.0.2.3 dev eth0 table 2005
route add blackhole default table 2006
route add local default dev lo table 2007
route add unreachable default metric 4278198272
route add throw default table 2008
route add 203.0.113.0/24 via 192.0.2.1
route add ::/0 via fe80::1 dev eth0 metric 1024 proto ra
route add ::/0 metric 2048 proto bgp nexthop via fe80::2 dev eth0 nexthop via fe80::3 dev eth0
route add unreachable ::/0 metric 4278198272
";

/// A VIP comes, moves up, is refreshed and goes; the link is renamed; everything under it goes.
const EVENTS: [&str; 11] = [
    "link add ev0 address 02:00:00:00:00:11 type veth peer name ev1 address 02:00:00:00:00:12",
    "link set ev1 up",
    "link set ev0 up",
    "addr add 192.0.2.40/25 dev ev0",
    "addr add 192.0.2.41/25 dev ev0 valid_lft 600 preferred_lft 300",
    "addr change 192.0.2.41/25 dev ev0 valid_lft 900 preferred_lft 0",
    "addr del 192.0.2.40/25 dev ev0",
    "link set ev0 master br0",
    "route replace default via 192.0.2.9 dev eth0 src 192.0.2.10 metric 100 proto static",
    "link set ev0 down",
    "link del ev0",
];

/// Makes the host and writes every capture and text below `folder`.
pub(crate) fn run(folder: &Path) {
    std::fs::create_dir_all(folder).expect("the folder can be made");
    ip(HOST);
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"br\xff");
    let add = |arguments: &[&std::ffi::OsStr]| {
        let status = std::process::Command::new("ip").args(arguments).status().expect("ip runs");
        assert!(status.success());
    };
    let word = std::ffi::OsStr::new;
    add(&[word("link"), word("add"), odd, word("address"), word("02:00:00:00:00:08"), word("type"), word("bridge")]);
    add(&[word("addr"), word("add"), word("172.31.0.1/16"), word("dev"), odd]);
    let eth0 = index("eth0");
    raw::request(&raw::new_ipv4(eth0, [203, 0, 113, 5], 32, 18));
    let vip: std::net::Ipv6Addr = "2001:db8:1::50".parse().expect("an address");
    raw::request(&raw::new_ipv6(eth0, vip.octets(), 128, 18));

    let save = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).expect("the file can be written");
    save("dump-links.bin", &framed(&dumped(libc::RTM_GETLINK, &[0; 16])));
    for (name, family) in [("ipv4", 2), ("ipv6", 10)] {
        let mut body = [0; 12];
        body[0] = family;
        save(&format!("dump-addresses-{name}.bin"), &framed(&dumped(libc::RTM_GETADDR, &body[..8])));
        save(&format!("dump-routes-{name}.bin"), &framed(&dumped(libc::RTM_GETROUTE, &body)));
    }
    save("ip-link.txt", &printed("-d link"));
    save("ip-addr.txt", &printed("-d addr"));
    save("ip-route.txt", &printed("-d route show table all"));

    let mut socket = Socket::new(NETLINK_ROUTE).expect("rtnetlink is there");
    socket.bind_auto().expect("a port is free");
    for group in [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR] {
        socket.add_membership(group).expect("groups are open to everybody");
    }
    for group in [libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV6_ROUTE] {
        socket.add_membership(group).expect("groups are open to everybody");
    }
    EVENTS.iter().for_each(|command| ip(command));
    socket.set_non_blocking(true).expect("it is a socket");
    let mut datagrams = Vec::new();
    while let Ok((datagram, _)) = socket.recv_from_full() {
        datagrams.push(datagram);
    }
    save("events.bin", &framed(&datagrams));
    save("events.txt", (EVENTS.join("\n") + "\n").as_bytes());
    namespace::fresh();
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).expect("the link was just made")
}

fn dumped(message_type: u16, body: &[u8]) -> Vec<Vec<u8>> {
    let mut socket = Socket::new(NETLINK_ROUTE).expect("rtnetlink is there");
    socket.bind_auto().expect("a port is free");
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).expect("16 bits");
    let request = raw::message(message_type, flags, 1, body, &[]);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).expect("the kernel listens");
    let mut datagrams = Vec::new();
    loop {
        let mut datagram = Vec::with_capacity(64 * 1024);
        socket.recv_from(&mut datagram, 0).expect("the kernel answers");
        // NLMSG_DONE may share the last datagram.
        let mut unreadable = Unreadable::default();
        let done = messages(&datagram, &mut unreadable).any(|message| message.message_type == 3);
        datagrams.push(datagram);
        if done {
            return datagrams;
        }
    }
}

/// A little-endian 32-bit length before each datagram.
fn framed(datagrams: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for datagram in datagrams {
        bytes.extend_from_slice(&u32::try_from(datagram.len()).expect("short").to_le_bytes());
        bytes.extend_from_slice(datagram);
    }
    bytes
}
