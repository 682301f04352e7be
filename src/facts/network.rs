//! Links, addresses and default routes as rtnetlink tells them (rtnetlink(7), `include/uapi/linux/if_addr.h`).
//!
//! In: nothing. Out: types, and questions that the snapshot itself can answer without judging it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::facts::time::Now;

/// One settled snapshot of the host's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Links by index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses in the kernel's dump order, which is the order the API server sees them in. One value may appear
    /// several times: on two links, or on one link with two prefix lengths.
    pub addresses: Vec<Address>,
    /// Unicast default routes of every table and both families; `unreachable`, `blackhole` and `prohibit` are not here.
    pub default_routes: Vec<DefaultRoute>,
    /// False when the dump was interrupted or overrun and repeating it did not help: no verdict may rest on it.
    pub complete: bool,
    /// Where it comes from.
    pub source: Source,
}

/// How the snapshot was taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Source {
    /// rtnetlink dumps.
    #[default]
    Rtnetlink,
    /// getifaddrs and /proc, because the netlink socket was refused: no lifetimes, protocols or link kinds.
    Polling,
}

/// IPv4 or IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// `AF_INET`.
    Ipv4,
    /// `AF_INET6`.
    Ipv6,
}

/// A link's name, or an address's label: bytes, since the kernel accepts almost any.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LinkName(pub Vec<u8>);

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// `ifi_index`.
    pub index: u32,
    /// `IFLA_IFNAME`.
    pub name: LinkName,
    /// `IFLA_INFO_KIND`; `None` on physical hardware and `lo`.
    pub kind: Option<String>,
    /// `IFLA_MASTER`: the bridge, bond or VRF that enslaves it.
    pub master: Option<u32>,
    /// `IFF_UP`.
    pub up: bool,
    /// `IFF_LOWER_UP`: there is a carrier.
    pub carrier: bool,
    /// `IFF_LOOPBACK`.
    pub loopback: bool,
}

/// An address on a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host's own address: `IFA_LOCAL` where present, else `IFA_ADDRESS` (they differ on point-to-point links).
    pub value: IpAddr,
    /// `ifa_prefixlen`.
    pub prefix_len: u8,
    /// `ifa_index`.
    pub link: u32,
    /// The other end of a point-to-point address.
    pub peer: Option<IpAddr>,
    /// `ifa_scope`.
    pub scope: u8,
    /// `IFA_FLAGS` (32 bit), else the header's eight.
    pub flags: Flags,
    /// `IFA_LABEL` (IPv4 only). A colon may be left over from a rename: never identity.
    pub label: Option<LinkName>,
    /// `IFA_PROTO`, remembered until the address is deleted: a replace that omits it erases it in the kernel.
    pub protocol: Option<u8>,
    /// Remaining valid lifetime when the message was made; `None` is for ever (or unknown).
    pub valid: Option<Duration>,
    /// Remaining preferred lifetime; `None` is for ever (or unknown).
    pub preferred: Option<Duration>,
    /// When it was created: hundredths of a second since boot (`cstamp`); wraps after 497 days.
    pub created: Option<u32>,
    /// When it was last replaced: hundredths of a second since boot (`tstamp`).
    pub updated: Option<u32>,
}

/// `IFA_F_*`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

/// A unicast route whose destination has prefix length 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// Of the destination; a next hop may be of the other family (RFC 5549).
    pub family: Family,
    /// `RTA_TABLE`; 254 is the main table.
    pub table: u32,
    /// `RTA_PRIORITY`; lower wins, absent is 0.
    pub metric: u32,
    /// `RTA_PREFSRC`.
    pub preferred_source: Option<IpAddr>,
    /// One, or several for multipath; never empty.
    pub hops: Vec<NextHop>,
    /// `rtm_protocol`: who installed it (4 static, 16 DHCP, 9 RA).
    pub protocol: u8,
}

/// Where a route leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NextHop {
    /// `RTA_OIF`.
    pub link: u32,
    /// `RTA_GATEWAY` or `RTA_VIA`; `None` for an on-link route (`default dev ppp0`).
    pub gateway: Option<IpAddr>,
}

/// `RT_TABLE_MAIN`.
pub const MAIN_TABLE: u32 = 254;
/// `RT_SCOPE_LINK`; host scope is 254, nowhere 255.
pub const SCOPE_LINK: u8 = 253;

impl Network {
    /// All copies of a value, in kernel order.
    pub fn copies(&self, value: IpAddr) -> impl Iterator<Item = &Address> {
        self.addresses.iter().filter(move |a| a.value == value)
    }

    /// Whether a default route of the given tables leaves through the link, for either family.
    pub fn carries_default_route(&self, link: u32, table: impl Fn(u32) -> bool) -> bool {
        self.default_routes.iter().any(|r| table(r.table) && r.hops.iter().any(|h| h.link == link))
    }

    /// Whether any default route names the value as its preferred source.
    pub fn is_preferred_source(&self, value: IpAddr) -> bool {
        self.default_routes.iter().any(|r| r.preferred_source == Some(value))
    }

    /// The name of a link, or `#7` for one that is not in the snapshot.
    pub fn link_name(&self, index: u32) -> String {
        self.links.get(&index).map_or_else(|| format!("#{index}"), |l| l.name.to_string())
    }
}

impl Address {
    /// Its family.
    pub const fn family(&self) -> Family {
        Family::of(self.value)
    }

    /// Whether the prefix covers this one address only: /32 or /128.
    pub const fn is_host_prefix(&self) -> bool {
        self.prefix_len == self.family().bits()
    }

    /// How long it has been on the link, by the kernel's own time stamp.
    pub fn age(&self, now: Now) -> Option<Duration> {
        self.created.map(|stamp| since_stamp(stamp, now))
    }

    /// The whole valid lifetime it was last given: what remained then, `None` for ever. A manager that renews ten
    /// minutes or less is no DHCP server with a sane lease.
    pub fn granted(&self, now: Now) -> Option<Duration> {
        let valid = self.valid?;
        Some(valid + self.updated.map_or(Duration::ZERO, |stamp| since_stamp(stamp, now)))
    }
}

/// Time since a kernel stamp in hundredths of a second, across its wrap.
fn since_stamp(stamp: u32, now: Now) -> Duration {
    // The stamp is the low 32 bits of a longer count, so only the low 32 bits of ours may be compared with it.
    let hundredths = u32::try_from((now.uptime.as_millis() / 10) & u128::from(u32::MAX)).unwrap_or(0);
    let age = hundredths.wrapping_sub(stamp);
    // A stamp a moment ahead of us (the snapshot is younger than `now`) is age zero, not 497 days.
    if age > u32::MAX / 2 { Duration::ZERO } else { Duration::from_millis(u64::from(age) * 10) }
}

impl Family {
    /// Of an address value.
    pub const fn of(value: IpAddr) -> Self {
        match value {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    /// Bits of an address: 32 or 128.
    pub const fn bits(self) -> u8 {
        match self {
            Self::Ipv4 => 32,
            Self::Ipv6 => 128,
        }
    }
}

impl Flags {
    const SECONDARY_OR_TEMPORARY: u32 = 0x01;
    const DADFAILED: u32 = 0x08;
    const DEPRECATED: u32 = 0x20;
    const TENTATIVE: u32 = 0x40;
    const PERMANENT: u32 = 0x80;
    const OPTIMISTIC: u32 = 0x04;

    /// Bit 0x01 on IPv4: arrived second with the same mask and subnet. Evidence, never identity.
    pub const fn secondary(self) -> bool {
        self.0 & Self::SECONDARY_OR_TEMPORARY != 0
    }
    /// Bit 0x01 on IPv6: a privacy address (RFC 8981). The same bit as [`Flags::secondary`].
    pub const fn temporary(self) -> bool {
        self.0 & Self::SECONDARY_OR_TEMPORARY != 0
    }
    /// Duplicate address detection failed: the address is listed and unusable.
    pub const fn dad_failed(self) -> bool {
        self.0 & Self::DADFAILED != 0
    }
    /// Preferred lifetime is over. On a permanent IPv4 address only this bit says so.
    pub const fn deprecated(self) -> bool {
        self.0 & Self::DEPRECATED != 0
    }
    /// Duplicate address detection has not ended. An optimistic address (RFC 4429) is already in use.
    pub const fn tentative(self) -> bool {
        self.0 & Self::TENTATIVE != 0 && self.0 & Self::OPTIMISTIC == 0
    }
    /// No finite valid lifetime.
    pub const fn permanent(self) -> bool {
        self.0 & Self::PERMANENT != 0
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Printable ASCII as it is, anything else escaped, so that a hostile name cannot drive a terminal.
impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in &self.0 {
            match byte {
                b'!'..=b'~' => write!(f, "{}", byte as char)?,
                _ => write!(f, "\\x{byte:02x}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<&str> for LinkName {
    fn from(name: &str) -> Self {
        Self(name.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::time::Timestamp;

    fn at(uptime: Duration) -> Now {
        Now { wall: Timestamp::default(), uptime }
    }

    #[test]
    fn ages_survive_the_wrap_of_the_kernel_stamp() {
        let wrap = Duration::from_millis((u64::from(u32::MAX) + 1) * 10);
        assert_eq!(since_stamp(u32::MAX - 99, at(wrap)), Duration::from_secs(1));
        assert_eq!(since_stamp(500, at(Duration::from_secs(7))), Duration::from_secs(2));
        assert_eq!(since_stamp(700, at(Duration::from_millis(6_990))), Duration::ZERO);
    }

    #[test]
    fn a_hostile_name_is_escaped() {
        assert_eq!(LinkName(b"br\xff\x1b[2J".to_vec()).to_string(), "br\\xff\\x1b[2J");
    }

    #[test]
    fn an_optimistic_address_is_in_use() {
        assert!(Flags(0x40).tentative());
        assert!(!Flags(0x44).tentative());
    }
}
