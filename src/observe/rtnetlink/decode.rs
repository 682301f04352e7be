//! rtnetlink messages, attribute by attribute.
//!
//! In: bytes of a datagram. Out: [`Change`]s in our own types. The rule of this file: an attribute that cannot be read
//! costs that attribute, never the message - an interface named `br\xff` must not hide the address on it. What could
//! not be read is counted and the last of it kept ([`Unreadable`]).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use netlink_packet_core::{NetlinkBuffer, NlaBuffer, NlasIterator};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;
use netlink_packet_route::link::{LinkFlags, LinkHeader};
use netlink_packet_route::route::{RouteHeader, RouteType};
use nix::libc;

use crate::facts::network::{Address, DefaultRoute, Family, Flags, Link, LinkName, NextHop};

/// What a message says about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A link is there, and looks like this.
    Link(Link),
    /// No link has this index any more.
    LinkDeleted(u32),
    /// An address is there, and looks like this.
    Address(Address),
    /// An address left; only what identifies it counts.
    AddressDeleted(Address),
    /// A unicast default route is there.
    DefaultRoute(DefaultRoute),
    /// A unicast default route left.
    DefaultRouteDeleted(DefaultRoute),
    /// A default route that leads nowhere came or went: it may have taken the place of a unicast one, which is not
    /// announced (`ip route change blackhole default`).
    DeadDefaultRoute,
}

/// What could not be read so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Attributes that were left out.
    pub attributes: u64,
    /// Whole messages that were left out: a cut header, or none of the attributes that identify the object.
    pub messages: u64,
    /// The last of them.
    pub last: Option<UnreadableBytes>,
}

/// Something that could not be read, for a bug report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableBytes {
    /// `nlmsg_type`.
    pub message_type: u16,
    /// `nla_type`; `None` when the message or the chain of attributes itself is broken.
    pub attribute: Option<u16>,
    /// The first bytes of it.
    pub bytes: Vec<u8>,
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub message_type: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`.
    pub sequence: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The messages of a datagram; ends early, with a count, where a header is broken.
#[derive(Debug)]
pub struct Messages<'a, 'u> {
    rest: &'a [u8],
    unreadable: &'u mut Unreadable,
}

/// Walks over a datagram.
pub const fn messages<'a, 'u>(datagram: &'a [u8], unreadable: &'u mut Unreadable) -> Messages<'a, 'u> {
    Messages { rest: datagram, unreadable }
}

impl<'a> Messages<'a, '_> {
    /// The next message that says something about the host, decoded.
    pub fn next_change(&mut self) -> Option<(Message<'a>, Option<Change>)> {
        let message = self.next()?;
        Some((message, change(&message, self.unreadable)))
    }
}

impl<'a> Iterator for Messages<'a, '_> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let Ok(buffer) = NetlinkBuffer::new_checked(self.rest) else {
            self.unreadable.message(0, self.rest);
            self.rest = &[];
            return None;
        };
        let length = buffer.length() as usize;
        let message = Message {
            message_type: buffer.message_type(),
            flags: buffer.flags(),
            sequence: buffer.sequence_number(),
            payload: buffer.payload(),
        };
        // NLMSG_ALIGN: messages start at multiples of four; the last one may lack its padding.
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// What one message says; `None` when it is about something else, or cannot be read at all (which is counted).
pub fn change(message: &Message<'_>, unreadable: &mut Unreadable) -> Option<Change> {
    let mut unreadable = Noted { message, unreadable };
    match message.message_type {
        libc::RTM_NEWLINK => link(message.payload, &mut unreadable).map(Change::Link),
        libc::RTM_DELLINK => link(message.payload, &mut unreadable).map(|link| Change::LinkDeleted(link.index)),
        libc::RTM_NEWADDR => address(message.payload, &mut unreadable).map(Change::Address),
        libc::RTM_DELADDR => address(message.payload, &mut unreadable).map(Change::AddressDeleted),
        libc::RTM_NEWROUTE => default_route(message.payload, &mut unreadable, Change::DefaultRoute),
        libc::RTM_DELROUTE => default_route(message.payload, &mut unreadable, Change::DefaultRouteDeleted),
        _ => None,
    }
}

/// `struct ifinfomsg` and its attributes (`include/uapi/linux/if_link.h`).
fn link(payload: &[u8], unreadable: &mut Noted<'_>) -> Option<Link> {
    let Ok(header) = LinkHeader::parse(payload) else { return unreadable.whole() };
    // A bridge tells about its ports to the same group with AF_BRIDGE: there, RTM_DELLINK means that the link is no
    // port any more, not that it is gone.
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let mut link = Link {
        index: header.index,
        up: header.flags.contains(LinkFlags::Up),
        carrier: header.flags.contains(LinkFlags::LowerUp),
        loopback: header.flags.contains(LinkFlags::Loopback),
        ..Link::default()
    };
    let mut partial = false;
    unreadable.each_attribute(&payload[LINK_HEADER..], |attribute, unreadable| match attribute.kind() {
        libc::IFLA_IFNAME => link.name = LinkName(text(attribute.value()).to_vec()),
        libc::IFLA_MASTER => link.master = unreadable.number_u32(attribute).filter(|&master| master != 0),
        libc::IFLA_LINKINFO => unreadable.each_attribute(attribute.value(), |nested, unreadable| {
            if nested.kind() == libc::IFLA_INFO_KIND {
                match std::str::from_utf8(text(nested.value())) {
                    Ok(kind) => link.kind = Some(kind.to_owned()).filter(|kind| !kind.is_empty()),
                    Err(_) => unreadable.attribute(nested),
                }
            }
        }),
        libc::IFLA_WIRELESS => partial = true,
        _ => {}
    });
    // Wireless extensions report scans in an RTM_NEWLINK that has no other attributes than the name: taken for a
    // whole one it would take the link out of its bridge.
    (!partial).then_some(link)
}

/// `struct ifaddrmsg` and its attributes (`include/uapi/linux/if_addr.h`).
fn address(payload: &[u8], unreadable: &mut Noted<'_>) -> Option<Address> {
    let Ok(header) = AddressHeader::parse(payload) else { return unreadable.whole() };
    let family = family(header.family)?;
    let (mut local, mut other, mut local_given) = (None, None, false);
    let (mut flags, mut label, mut protocol) = (None, None, None);
    let (mut preferred, mut valid, mut created, mut updated) = (None, None, None, None);
    unreadable.each_attribute(&payload[ADDRESS_HEADER..], |attribute, unreadable| match attribute.kind() {
        libc::IFA_LOCAL => {
            local_given = true;
            local = local.or_else(|| unreadable.ip(family, attribute));
        }
        libc::IFA_ADDRESS => other = other.or_else(|| unreadable.ip(family, attribute)),
        libc::IFA_LABEL => label = Some(LinkName(text(attribute.value()).to_vec())),
        libc::IFA_FLAGS => flags = unreadable.number_u32(attribute),
        IFA_PROTO => protocol = unreadable.number_u8(attribute).filter(|&protocol| protocol != 0),
        libc::IFA_CACHEINFO => {
            // struct ifa_cacheinfo { ifa_prefered, ifa_valid, cstamp, tstamp }. Structures grow at their end.
            let mut words = attribute.value().chunks_exact(4).map(word);
            match (words.next(), words.next()) {
                (Some(a), Some(b)) => (preferred, valid) = (lifetime(a), lifetime(b)),
                _ => unreadable.attribute(attribute),
            }
            (created, updated) = (words.next(), words.next());
        }
        _ => {}
    });
    // On a point-to-point link IFA_ADDRESS is the other end. A local address that is there and unreadable must not be
    // replaced by it: the certificate would name somebody else.
    let value = match (local, local_given, other) {
        (Some(local), _, _) => local,
        (None, false, Some(address)) => address,
        _ => return unreadable.whole(),
    };
    Some(Address {
        value,
        prefix_len: header.prefix_len.min(family.bits()),
        link: header.index,
        peer: other.filter(|&other| other != value),
        scope: header.scope.into(),
        flags: Flags(flags.unwrap_or_else(|| u32::from(header.flags.bits()))),
        label,
        protocol,
        valid,
        preferred,
        created,
        updated,
    })
}

/// `struct rtmsg` and its attributes (`include/uapi/linux/rtnetlink.h`); `None` for routes that are not default routes.
fn default_route(payload: &[u8], unreadable: &mut Noted<'_>, unicast: fn(DefaultRoute) -> Change) -> Option<Change> {
    let Ok(header) = RouteHeader::parse(payload) else { return unreadable.whole() };
    let family = family(header.address_family)?;
    // A cloned route is an entry of the kernel's cache.
    if header.destination_prefix_length != 0 || header.flags.bits() & libc::RTM_F_CLONED != 0 {
        return None;
    }
    // Unreachable, blackhole, prohibit and throw lead nowhere; `local default` is transparent proxying.
    if header.kind != RouteType::Unicast {
        return Some(Change::DeadDefaultRoute);
    }
    let mut route = DefaultRoute {
        family,
        table: u32::from(header.table),
        metric: 0,
        preferred_source: None,
        hops: Vec::new(),
        protocol: header.protocol.into(),
    };
    let (mut link, mut gateway) = (None, None);
    unreadable.each_attribute(&payload[ROUTE_HEADER..], |attribute, unreadable| match attribute.kind() {
        libc::RTA_TABLE => route.table = unreadable.number_u32(attribute).unwrap_or(route.table),
        libc::RTA_PRIORITY => route.metric = unreadable.number_u32(attribute).unwrap_or(0),
        libc::RTA_PREFSRC => route.preferred_source = unreadable.ip(family, attribute),
        libc::RTA_OIF => link = unreadable.number_u32(attribute),
        libc::RTA_GATEWAY => gateway = unreadable.ip(family, attribute),
        libc::RTA_VIA => gateway = unreadable.via(attribute),
        libc::RTA_MULTIPATH => unreadable.next_hops(family, attribute, &mut route.hops),
        _ => {}
    });
    if let (true, Some(link)) = (route.hops.is_empty(), link) {
        route.hops.push(NextHop { link, gateway });
    }
    // A route that only names a nexthop object (nexthop_compat_mode=0) says nothing about where it leads.
    if route.hops.is_empty() {
        unreadable.message();
        return Some(Change::DeadDefaultRoute);
    }
    Some(unicast(route))
}

/// Where unreadable things of the message at hand are noted.
struct Noted<'a> {
    message: &'a Message<'a>,
    unreadable: &'a mut Unreadable,
}

impl Noted<'_> {
    /// Calls for each attribute up to the end, or to the first whose length is impossible.
    fn each_attribute(&mut self, attributes: &[u8], mut each: impl FnMut(&NlaBuffer<&[u8]>, &mut Self)) {
        for attribute in NlasIterator::new(attributes) {
            match attribute {
                Ok(attribute) => each(&attribute, self),
                Err(_) => {
                    self.unreadable.attributes += 1;
                    self.unreadable.keep(self.message.message_type, None, attributes);
                }
            }
        }
    }

    fn attribute(&mut self, attribute: &NlaBuffer<&[u8]>) {
        self.unreadable.attributes += 1;
        self.unreadable.keep(self.message.message_type, Some(attribute.kind()), attribute.value());
    }

    fn message(&mut self) {
        self.unreadable.message(self.message.message_type, self.message.payload);
    }

    fn whole<T>(&mut self) -> Option<T> {
        self.message();
        None
    }

    /// An unsigned number of any width the kernel might give it: widths have grown before (`IFA_FLAGS`).
    fn number_u32(&mut self, attribute: &NlaBuffer<&[u8]>) -> Option<u32> {
        let number = match *attribute.value() {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]) & u64::from(u32::MAX),
            _ => u64::MAX,
        };
        let number = u32::try_from(number).ok();
        if number.is_none() {
            self.attribute(attribute);
        }
        number
    }

    fn number_u8(&mut self, attribute: &NlaBuffer<&[u8]>) -> Option<u8> {
        let number = self.number_u32(attribute)?;
        let small = u8::try_from(number).ok();
        if small.is_none() {
            self.attribute(attribute);
        }
        small
    }

    fn ip(&mut self, family: Family, attribute: &NlaBuffer<&[u8]>) -> Option<IpAddr> {
        let value = ip(family, attribute.value());
        if value.is_none() {
            self.attribute(attribute);
        }
        value
    }

    /// `struct rtvia`: a family and an address of it, for a next hop of another family than the route's (RFC 5549).
    fn via(&mut self, attribute: &NlaBuffer<&[u8]>) -> Option<IpAddr> {
        let value = attribute.value().split_first_chunk().and_then(|(family_bytes, address)| {
            let number = u8::try_from(u16::from_ne_bytes(*family_bytes)).ok()?;
            ip(family(number.into())?, address)
        });
        if value.is_none() {
            self.attribute(attribute);
        }
        value
    }

    /// An array of `struct rtnexthop` { length, flags, hops, ifindex }, each followed by its own attributes.
    fn next_hops(&mut self, family: Family, attribute: &NlaBuffer<&[u8]>, hops: &mut Vec<NextHop>) {
        let mut rest = attribute.value();
        while let Some(&[l0, l1, _, _, i0, i1, i2, i3]) = rest.first_chunk() {
            let length = usize::from(u16::from_ne_bytes([l0, l1]));
            let Some(attributes) = rest.get(8..length) else { break };
            let mut gateway = None;
            self.each_attribute(attributes, |nested, unreadable| match nested.kind() {
                libc::RTA_GATEWAY => gateway = unreadable.ip(family, nested),
                libc::RTA_VIA => gateway = unreadable.via(nested),
                _ => {}
            });
            hops.push(NextHop { link: u32::from_ne_bytes([i0, i1, i2, i3]), gateway });
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        if !rest.is_empty() {
            self.attribute(attribute);
        }
    }
}

impl Unreadable {
    fn message(&mut self, message_type: u16, bytes: &[u8]) {
        self.messages += 1;
        self.keep(message_type, None, bytes);
    }

    /// Only the last is kept and only its beginning: a kernel that sends one odd attribute sends it with every message.
    fn keep(&mut self, message_type: u16, attribute: Option<u16>, bytes: &[u8]) {
        let last = self.last.get_or_insert_with(|| UnreadableBytes { message_type, attribute, bytes: Vec::new() });
        (last.message_type, last.attribute) = (message_type, attribute);
        last.bytes.clear();
        last.bytes.extend_from_slice(&bytes[..bytes.len().min(64)]);
    }
}

/// `IFA_PROTO` (Linux 5.18).
const IFA_PROTO: u16 = 11;
/// `sizeof(struct ifinfomsg)`, `ifaddrmsg`, `rtmsg`: where the attributes start.
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

const fn family(family: AddressFamily) -> Option<Family> {
    match family {
        AddressFamily::Inet => Some(Family::Ipv4),
        AddressFamily::Inet6 => Some(Family::Ipv6),
        _ => None,
    }
}

fn ip(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        Family::Ipv4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into()),
        Family::Ipv6 => <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into()),
    }
}

/// A C string: what comes before the first NUL. Any bytes: the kernel lets names be anything but `/`, `:` and space.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn word(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_ne_bytes)
}

/// `INFINITY_LIFE_TIME` is for ever.
fn lifetime(seconds: u32) -> Option<Duration> {
    (seconds != u32::MAX).then(|| Duration::from_secs(u64::from(seconds)))
}
