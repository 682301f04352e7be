//! What rules may look at, and the questions they share.
//!
//! In: [`Grounds`]. Out: answers about links, company and holders. The rule of this file: it answers, it does not judge.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::Config;
use crate::decide::incumbents::Memory;
use crate::decide::links::{self, Owner};
use crate::decide::state::State;
use crate::facts::network::{Address, Link, MAIN_TABLE, Network, Source};
use crate::facts::time::Now;

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
    /// Its IP SANs that configuration does ask for: no incumbents by that, but one of them on the host speaks against a VIP
    /// beside it that an older guard has put into the certificate.
    pub configured_ips: &'a BTreeSet<IpAddr>,
}

/// Everything a rule may look at.
pub(crate) struct Case<'a> {
    pub(crate) grounds: &'a Grounds<'a>,
    pub(crate) memory: Memory,
    /// Copies that no rule about a single copy has set aside: the company that rules 12 and 13 compare with.
    pub(crate) standing: Vec<&'a Address>,
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
    pub(crate) fn carries_any_default(&self, link: u32) -> bool {
        self.grounds.network.carries_default_route(link, |_| true)
    }

    pub(crate) fn owner(&self, link: &Link) -> Option<&'static Owner> {
        links::owner(link, self.grounds.network.source == Source::Rtnetlink)
    }

    /// A link that is or stands for hardware: no kind at all, or one that puts the node on a real wire. A veth counts
    /// (the NIC of a container that is a node), unless its name says that it leads to a workload.
    pub(crate) fn is_wire(&self, link: &Link) -> bool {
        const WIRES: &[&str] =
            &["bond", "team", "vlan", "veth", "ipoib", "dsa", "macsec", "ppp", "wwan", "hsr", "virt_wifi"];
        !link.loopback
            && link.kind.as_deref().is_none_or(|kind| WIRES.contains(&kind))
            && self.owner(link).is_none_or(|_| self.is_uplink(link.index))
    }

    /// Whether a bridge (or switch) enslaves a link that leads out of the host.
    pub(crate) fn has_physical_port(&self, bridge: u32) -> bool {
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
        // What only stands in for a lost primary holds no subnet against an address that was never seen: that may well be
        // the node's new one, and a certificate without it locks people out.
        let stands_in = self.grounds.state.promoted.contains(&value);
        self.grounds.pins.contains_key(&value)
            || (self.memory.incumbents.contains(&value) && !stands_in)
            || self.grounds.network.is_preferred_source(value)
    }
}

/// Whether `value` lies in the subnet of `holder`.
pub(crate) fn same_subnet(holder: &Address, value: IpAddr) -> bool {
    // The on-link prefix of a point-to-point address is its peer's.
    let base = holder.peer.unwrap_or(holder.value);
    IpNet::new(base, holder.prefix_len).is_ok_and(|net| net.contains(&value))
}
