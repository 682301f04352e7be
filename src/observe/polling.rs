//! The network without rtnetlink events: getifaddrs, /proc/net and /sys/class/net.
//!
//! In: files below a root, and the C library's list of interfaces. Out: a [`Network`] that says it was polled. The rule
//! of this file: what these sources do not tell stays unknown; nothing is guessed but the link of an IPv4 address,
//! where only /proc is left.
//!
//! The C library's getifaddrs asks over netlink too, so a sandbox that forbids AF_NETLINK takes it away as well. Then
//! the links come from /sys/class/net, IPv4 addresses from /proc/net/fib_trie and IPv6 ones from /proc/net/if_inet6.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;

use crate::facts::network::{
    Address, DefaultRoute, Family, Flags, Link, LinkName, MAIN_TABLE, Network, NextHop, SCOPE_LINK, Source,
};
use crate::observe::network::{Drained, NetworkError};

/// Reads the whole network at each question.
#[derive(Debug)]
pub struct Polling {
    root: PathBuf,
    last: Network,
}

impl Polling {
    /// Reads once, below `root`.
    ///
    /// # Errors
    /// When not even the links can be listed.
    pub fn open(root: &Path) -> Result<Self, NetworkError> {
        Ok(Self { root: root.to_owned(), last: snapshot(root)? })
    }

    /// Whether anything differs from the last time. Carrier alone does not count, as with events.
    pub fn drain(&mut self) -> Drained {
        let Ok(now) = snapshot(&self.root) else { return Drained { relevant: true, ..Drained::default() } };
        let relevant = without_carrier(&now) != without_carrier(&self.last);
        self.last = now;
        Drained { relevant, ..Drained::default() }
    }

    /// The network as it is now.
    ///
    /// # Errors
    /// When not even the links can be listed.
    pub fn snapshot(&mut self) -> Result<Network, NetworkError> {
        self.last = snapshot(&self.root)?;
        Ok(self.last.clone())
    }
}

fn without_carrier(network: &Network) -> Network {
    let mut network = network.clone();
    network.links.values_mut().for_each(|link| link.carrier = false);
    network
}

/// One look at everything. /proc and /sys are below `root`; the list of interfaces is the running kernel's.
///
/// # Errors
/// When neither getifaddrs nor /sys/class/net lists the links.
pub fn snapshot(root: &Path) -> Result<Network, NetworkError> {
    match listed() {
        Ok((links, addresses)) => Ok(complete(root, links, addresses)),
        Err(_) => snapshot_from_files(root),
    }
}

/// One look without getifaddrs: only files below `root`.
///
/// # Errors
/// When /sys/class/net cannot be listed.
pub fn snapshot_from_files(root: &Path) -> Result<Network, NetworkError> {
    let links = links_of_sysfs(root)?;
    let mut addresses = ipv4_of_fib_trie(&proc_net(root, "fib_trie"), &proc_net(root, "route"), &links);
    let known = |address: &Inet6| links.contains_key(&address.link);
    addresses.extend(if_inet6(&proc_net(root, "if_inet6")).iter().filter(|a| known(a)).map(Inet6::address));
    Ok(complete(root, links, addresses))
}

/// Adds what the files say to links and addresses.
fn complete(root: &Path, mut links: BTreeMap<u32, Link>, mut addresses: Vec<Address>) -> Network {
    // getifaddrs gives IPv6 addresses in the kernel's order and without flags; the file the other way round.
    for six in if_inet6(&proc_net(root, "if_inet6")) {
        let same = |a: &&mut Address| a.value == IpAddr::V6(six.value) && a.link == six.link;
        if let Some(address) = addresses.iter_mut().find(same) {
            (address.flags, address.scope, address.prefix_len) = (six.flags, six.scope, six.prefix_len);
        }
    }
    for link in links.values_mut() {
        describe(root, link);
    }
    let mut default_routes = ipv4_default_routes(&proc_net(root, "route"), &links);
    default_routes.extend(ipv6_default_routes(&proc_net(root, "ipv6_route"), &links));
    default_routes.sort_unstable();
    default_routes.dedup();
    Network { links, addresses, default_routes, complete: true, source: Source::Polling }
}

/// Links and addresses as the C library lists them.
fn listed() -> Result<(BTreeMap<u32, Link>, Vec<Address>), Errno> {
    let mut links = BTreeMap::new();
    let mut named: BTreeMap<String, u32> = BTreeMap::new();
    let mut addresses = Vec::new();
    // The AF_PACKET entries, which carry the index, come before all addresses.
    for entry in getifaddrs()? {
        let Some(socket_address) = entry.address else { continue };
        if let Some(packet) = socket_address.as_link_addr() {
            let Ok(index) = u32::try_from(packet.ifindex()) else { continue };
            named.insert(entry.interface_name.clone(), index);
            let has = |flag| entry.flags.contains(flag);
            let link = Link {
                index,
                name: LinkName(entry.interface_name.into_bytes()),
                up: has(InterfaceFlags::IFF_UP),
                carrier: has(InterfaceFlags::IFF_LOWER_UP),
                loopback: has(InterfaceFlags::IFF_LOOPBACK),
                ..Link::default()
            };
            links.insert(index, link);
            continue;
        }
        let Some(value) = ip(&socket_address) else { continue };
        // For an IPv4 address the name is its label: eth0:1.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let Some(&link) = named.get(name) else { continue };
        let mask = entry.netmask.as_ref().and_then(ip);
        let peer = entry.destination.as_ref().and_then(ip);
        let label = value.is_ipv4().then(|| LinkName(entry.interface_name.clone().into_bytes()));
        addresses.push(Address {
            prefix_len: mask.map_or_else(|| Family::of(value).bits(), prefix_len),
            scope: if value.is_loopback() { SCOPE_HOST } else { 0 },
            peer: peer.filter(|&peer| entry.flags.contains(InterfaceFlags::IFF_POINTOPOINT) && peer != value),
            label,
            ..bare_address(value, link)
        });
    }
    Ok((links, addresses))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
}

fn prefix_len(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    u8::try_from(ones).unwrap_or(u8::MAX)
}

/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;

/// Everything that these sources do not tell is unknown, not absent.
const fn bare_address(value: IpAddr, link: u32) -> Address {
    Address {
        value,
        prefix_len: Family::of(value).bits(),
        link,
        peer: None,
        scope: 0,
        flags: Flags(0),
        label: None,
        protocol: None,
        valid: None,
        preferred: None,
        created: None,
        updated: None,
    }
}

/// A file of /proc/net; empty where it is missing, as `if_inet6` is without IPv6.
fn proc_net(root: &Path, name: &str) -> String {
    // Bytes, not text: a link's name need not be UTF-8 and must not hide the other lines.
    let bytes = std::fs::read(root.join("proc/net").join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn links_of_sysfs(root: &Path) -> Result<BTreeMap<u32, Link>, NetworkError> {
    let folder = root.join("sys/class/net");
    let failed = |source: io::Error| NetworkError::File { path: folder.clone(), source };
    let mut links = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // Plain files (bonding_masters) live in the folder too.
        let Ok(index) = read("ifindex").trim().parse() else { continue };
        let flags = u32::from_str_radix(read("flags").trim().trim_start_matches("0x"), 16).unwrap_or(0);
        let has = |flag: i32| flags & flag.unsigned_abs() != 0;
        let link = Link {
            index,
            name: LinkName(entry.file_name().into_vec()),
            up: has(libc::IFF_UP),
            // IFF_LOWER_UP is not among the flags here, and a link that is down has no carrier to read.
            carrier: read("carrier").trim() == "1",
            loopback: has(libc::IFF_LOOPBACK),
            ..Link::default()
        };
        links.insert(index, link);
    }
    Ok(links)
}

/// Kind and master, as far as /sys/class/net tells them.
fn describe(root: &Path, link: &mut Link) {
    let folder = root.join("sys/class/net").join(std::ffi::OsStr::from_bytes(&link.name.0));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let index = |folder: &Path| read(&folder.join("ifindex")).trim().parse::<u32>().ok();
    // sysfs shows the network namespace it was mounted in, which need not be ours.
    if index(&folder) != Some(link.index) {
        return;
    }
    let master = folder.join("master");
    link.master = master.exists().then(|| index(&master)).flatten();
    // The device types that virtual links register under the name of their kind; veth, macvlan and others have none,
    // and wlan or wwan are hardware.
    let uevent = read(&folder.join("uevent"));
    let device_type = uevent.lines().find_map(|line| line.strip_prefix("DEVTYPE="));
    link.kind = match device_type {
        Some(kind @ ("bridge" | "bond" | "vlan" | "vxlan" | "geneve" | "wireguard")) => Some(kind.to_owned()),
        _ if folder.join("tun_flags").exists() => Some("tun".to_owned()),
        _ => None,
    };
}

/// A line of /proc/net/if_inet6: address, index, prefix length, scope and flags, all hexadecimal, and the name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inet6 {
    value: Ipv6Addr,
    link: u32,
    prefix_len: u8,
    scope: u8,
    flags: Flags,
}

impl Inet6 {
    const fn address(&self) -> Address {
        let mut address = bare_address(IpAddr::V6(self.value), self.link);
        address.prefix_len = self.prefix_len;
        address.scope = self.scope;
        address.flags = self.flags;
        address
    }
}

fn if_inet6(text: &str) -> Vec<Inet6> {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let mut hex = || u32::from_str_radix(fields.next()?, 16).ok();
        let value = line.split_ascii_whitespace().next().and_then(ipv6_hex)?;
        // The address does not fit 32 bits; skip it.
        let _ = hex();
        let (link, prefix_len, scope, flags) = (hex()?, hex()?, hex()?, hex()?);
        Some(Inet6 {
            value,
            link,
            prefix_len: u8::try_from(prefix_len).ok().filter(|&len| len <= 128)?,
            // IPV6_ADDR_LOOPBACK, LINKLOCAL and SITELOCAL (include/net/ipv6.h), as rtnetlink names them.
            scope: match scope {
                0x10 => SCOPE_HOST,
                0x20 => SCOPE_LINK,
                0x40 => 200,
                _ => 0,
            },
            flags: Flags(flags),
        })
    };
    text.lines().filter_map(line).collect()
}

fn ipv6_hex(text: &str) -> Option<Ipv6Addr> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from_bits)).flatten()
}

fn index_of(links: &BTreeMap<u32, Link>, name: &str) -> Option<u32> {
    links.values().find(|link| String::from_utf8_lossy(&link.name.0) == name).map(|link| link.index)
}

const RTF_UP: u32 = 0x1;
const RTF_REJECT: u32 = 0x200;
/// IPv6 only (include/uapi/linux/ipv6_route.h): anycast, cached and local routes.
const RTF_ANYCAST_CACHE_LOCAL: u32 = 0x0010_0000 | 0x0100_0000 | 0x8000_0000;

/// A line of /proc/net/route, which shows the main table: Iface Destination Gateway Flags RefCnt Use Metric Mask …
/// Addresses are hexadecimal words as they lie in memory.
struct Inet4Route<'a> {
    interface: &'a str,
    destination: Ipv4Addr,
    gateway: Ipv4Addr,
    flags: u32,
    metric: u32,
    mask: Ipv4Addr,
}

fn ipv4_routes(text: &str) -> impl Iterator<Item = Inet4Route<'_>> {
    text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let address = |at: usize| hex(at).map(|word| Ipv4Addr::from(word.to_ne_bytes()));
        Some(Inet4Route {
            interface: fields.first()?,
            destination: address(1)?,
            gateway: address(2)?,
            flags: hex(3)?,
            // The one decimal number among them.
            metric: fields.get(6)?.parse().ok()?,
            mask: address(7)?,
        })
    })
}

fn ipv4_default_routes(text: &str, links: &BTreeMap<u32, Link>) -> Vec<DefaultRoute> {
    ipv4_routes(text)
        .filter(|route| route.destination.is_unspecified() && route.mask.is_unspecified())
        .filter(|route| route.flags & (RTF_UP | RTF_REJECT) == RTF_UP)
        .filter_map(|route| {
            let gateway = (!route.gateway.is_unspecified()).then_some(IpAddr::V4(route.gateway));
            Some(default_route(Family::Ipv4, route.metric, index_of(links, route.interface)?, gateway))
        })
        .collect()
}

/// /proc/net/ipv6_route: destination, its length, source, its length, next hop, metric, reference count, use, flags,
/// all hexadecimal, and the interface. It shows every table without saying which.
fn ipv6_default_routes(text: &str, links: &BTreeMap<u32, Link>) -> Vec<DefaultRoute> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let hex = |at: usize| u32::from_str_radix(fields.get(at)?, 16).ok();
        let flags = hex(8)?;
        let unicast = flags & (RTF_UP | RTF_REJECT | RTF_ANYCAST_CACHE_LOCAL) == RTF_UP;
        if !unicast || hex(1)? != 0 {
            return None;
        }
        let gateway = ipv6_hex(fields.get(4)?).filter(|gateway| !gateway.is_unspecified());
        Some(default_route(Family::Ipv6, hex(5)?, index_of(links, fields.get(9)?)?, gateway.map(IpAddr::V6)))
    };
    text.lines().filter_map(line).collect()
}

fn default_route(family: Family, metric: u32, link: u32, gateway: Option<IpAddr>) -> DefaultRoute {
    let hops = vec![NextHop { link, gateway }];
    DefaultRoute { family, table: MAIN_TABLE, metric, preferred_source: None, hops, protocol: 0 }
}

/// IPv4 addresses without netlink: /proc/net/fib_trie lists the local ones, without a link. It is the link of the
/// narrowest connected route around the address; one that no such route covers (a /32) cannot be placed and is left out.
fn ipv4_of_fib_trie(trie: &str, routes: &str, links: &BTreeMap<u32, Link>) -> Vec<Address> {
    let mut found: Vec<Address> = Vec::new();
    let mut value = None;
    for line in trie.lines().map(str::trim) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            value = leaf.parse::<Ipv4Addr>().ok();
        }
        let Some(value) = value.filter(|_| line.starts_with("/32 host LOCAL")) else { continue };
        // While there are no policy rules, both tables are one and each is printed.
        if found.iter().any(|address| address.value == IpAddr::V4(value)) {
            continue;
        }
        let place = if value.is_loopback() {
            links.values().find(|link| link.loopback).map(|link| (link.index, 8))
        } else {
            ipv4_routes(routes)
                .filter(|route| route.gateway.is_unspecified() && !route.mask.is_unspecified())
                .filter(|route| value & route.mask == route.destination)
                .filter_map(|route| Some((index_of(links, route.interface)?, prefix_len(route.mask.into()))))
                .max_by_key(|&(_, prefix_len)| prefix_len)
        };
        if let Some((link, prefix_len)) = place {
            let scope = if value.is_loopback() { SCOPE_HOST } else { 0 };
            found.push(Address { prefix_len, scope, ..bare_address(value.into(), link) });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> BTreeMap<u32, Link> {
        let link = |index, name: &[u8], loopback| {
            (index, Link { index, name: LinkName(name.to_vec()), loopback, ..Link::default() })
        };
        BTreeMap::from([link(1, b"lo", true), link(2, b"eth0", false), link(3, b"br\xff", false)])
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    // The words of /proc/net/route lie as on a little-endian machine.
    #[cfg(target_endian = "little")]
    const ROUTE: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t00000000\t00000000\t0001\t0\t0\t300\t00000000\t0\t0\t0
*\t00000000\t00000000\t0201\t0\t0\t4278198272\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
gone0\t00000000\t010200C0\t0003\t0\t0\t7\t00000000\t0\t0\t0
eth0\t00000000
";

    #[cfg(target_endian = "little")]
    #[test]
    fn ipv4_default_routes_are_read_and_dead_ones_are_not() {
        let hop = |gateway| vec![NextHop { link: 2, gateway }];
        let routes = ipv4_default_routes(ROUTE, &links());
        let seen: Vec<_> = routes.into_iter().map(|route| (route.metric, route.hops)).collect();
        assert_eq!(seen, [(100, hop(Some(ip("192.0.2.1")))), (300, hop(None))]);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn local_ipv4_addresses_are_placed_by_their_connected_route() {
        let trie = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
Local:
  +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 192.0.2.10
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
        |-- 203.0.113.5
           /32 host LOCAL
        |-- 192.0.2.10
           /32 host LOCAL
";
        let addresses = ipv4_of_fib_trie(trie, ROUTE, &links());
        let seen: Vec<_> = addresses.iter().map(|a| (a.link, a.value, a.prefix_len, a.scope)).collect();
        assert_eq!(seen, [(1, ip("127.0.0.1"), 8, SCOPE_HOST), (2, ip("192.0.2.10"), 24, 0)]);
    }

    #[test]
    fn ipv6_default_routes_are_read_and_dead_ones_are_not() {
        let zero = "0".repeat(32);
        let gateway = "fe800000000000000000000000000001";
        let text = format!(
            "{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003     eth0\n\
             {zero} 00 {zero} 00 {zero} 00000100 00000001 00000000 00000001 br\u{fffd}\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             {gateway} 80 {zero} 00 {zero} 00000000 00000002 00000000 80200001     eth0\n\
             {zero} 00 short\n"
        );
        let routes = ipv6_default_routes(&text, &links());
        let seen: Vec<_> = routes.iter().map(|r| (r.family, r.metric, r.hops[0].link, r.hops[0].gateway)).collect();
        assert_eq!(seen, [(Family::Ipv6, 1024, 2, Some(ip("fe80::1"))), (Family::Ipv6, 256, 3, None)]);
    }

    #[test]
    fn inet6_lines_give_flags_and_scope_and_broken_ones_nothing() {
        let text = "\
20010db8000000000000000000000001 02 40 00 a0     eth0
fe8000000000000000fffffffe000001 02 40 20 80     eth0
00000000000000000000000000000001 01 80 10 80       lo
+0010db8000000000000000000000001 02 40 00 80     eth0
20010db8000000000000000000000001 02 ff 00 80     eth0
20010db8 02 40
";
        let seen: Vec<_> = if_inet6(text)
            .iter()
            .map(|six| (six.value.into(), six.link, six.prefix_len, six.scope, six.flags))
            .collect();
        let expected = [
            (ip("2001:db8::1"), 2, 64, 0, Flags(0xa0)),
            (ip("fe80::ff:ffff:fe00:1"), 2, 64, SCOPE_LINK, Flags(0x80)),
            (ip("::1"), 1, 128, SCOPE_HOST, Flags(0x80)),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn no_list_of_links_is_an_error_that_names_the_folder() {
        let error = snapshot_from_files(Path::new("/nonexistent")).expect_err("there is nothing to read");
        assert_eq!(error.to_string(), "/nonexistent/sys/class/net cannot be read");
    }
}
