//! The node address of each family, and what the API server would advertise if it were started now.
//!
//! In: the snapshot, the classification, pins, the state. Out: at most one address per family. The rule of this file:
//! the accepted one stays while it is on the host, and for `promotion_hold` after it left; once it is gone, only the
//! default route decides - never the lowest value, and list order only where the API server would decide by it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::config::Config;
use crate::decide::case::same_subnet;
use crate::decide::plan::Mode;
use crate::decide::rules::UNANNOUNCED;
use crate::decide::state::State;
use crate::decide::verdict::{Class, Classification};
use crate::facts::cluster::Arguments;
use crate::facts::network::{Address, DefaultRoute, Family, MAIN_TABLE, Network};
use crate::facts::time::{Now, Timestamp};

/// The node address of each family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// By family; IPv4 first, as the API server prefers it.
    pub of: BTreeMap<Family, IpAddr>,
    /// A node address is lost and is waited for until then.
    pub waiting_until: Option<Timestamp>,
}

impl NodeAddresses {
    /// The one the API server advertises: IPv4 where there is one.
    pub fn advertised(&self) -> Option<IpAddr> {
        self.of.values().next().copied()
    }
}

/// What the choice rests on.
#[derive(Debug)]
pub struct Input<'a> {
    /// The snapshot.
    pub network: &'a Network,
    /// What every address of it is.
    pub classes: &'a Classification,
    /// IP SANs of the certificate that configuration does not ask for.
    pub certificate: &'a BTreeSet<IpAddr>,
    /// The API server's arguments.
    pub arguments: Option<&'a Arguments>,
    /// `promotion_hold`.
    pub config: &'a Config,
    /// The last pass.
    pub state: &'a State,
    /// The moment.
    pub now: Now,
    /// Who asks.
    pub mode: Mode,
}

/// Chooses the node address of each family.
pub fn choose(input: &Input<'_>) -> NodeAddresses {
    let (network, now) = (input.network, input.now);
    let mut chosen = NodeAddresses::default();
    for family in [Family::Ipv4, Family::Ipv6] {
        if let Some(pinned) = input.arguments.and_then(told).filter(|p| Family::of(*p) == family) {
            chosen.of.insert(family, pinned);
            continue;
        }
        let newcomer = by_default_route(network, input.classes, input.certificate, family);
        // The daemon was there when the address left. Others only know when somebody last looked: what arrived since then
        // dates the loss by the kernel's stamp.
        let arrived = newcomer
            .filter(|_| input.mode != Mode::Daemon)
            .and_then(|value| network.copies(value).filter_map(|copy| copy.age(now)).max())
            .map(|age| now.wall - age)
            .filter(|arrived| *arrived > input.state.written);
        let (address, waiting) = kept(input, family, arrived);
        if let Some(until) = waiting {
            chosen.waiting_until = Some(chosen.waiting_until.map_or(until, |other| other.min(until)));
        }
        if let Some(address) = address.or(newcomer) {
            chosen.of.insert(family, address);
        }
    }
    chosen
}

/// The address that the API server's arguments tell it to advertise. Bound to the loopback it chooses one, as if nothing
/// were said.
pub fn told(arguments: &Arguments) -> Option<IpAddr> {
    arguments.advertise.address().or_else(|| arguments.bind.address().filter(|bound| !bound.is_loopback()))
}

/// The accepted node address, while it may be kept, and until when it is waited for if it is gone.
fn kept(input: &Input<'_>, family: Family, arrived: Option<Timestamp>) -> (Option<IpAddr>, Option<Timestamp>) {
    let Input { classes, config, state, now, .. } = input;
    let of_family = |value: IpAddr| Family::of(value) == family;
    // One that was lost and has returned takes the place back from whoever stood in for it.
    let returned = state
        .lost
        .iter()
        .filter(|l| l.node_address && of_family(l.address))
        .filter(|l| classes.memory.returned.contains(&l.address) && usable(classes, l.address))
        // Of several it is the one that was lost last.
        .max_by_key(|l| l.since);
    if let Some(returned) = returned {
        return (Some(returned.address), None);
    }
    let Some(&accepted) = state.node_address.get(&family) else { return (None, None) };
    if usable(classes, accepted) {
        return (Some(accepted), None);
    }
    let hold = config.settle.promotion_hold;
    let lost = classes.memory.lost.iter().find(|l| l.address == accepted);
    match lost.map(|lost| arrived.map_or(lost.since, |arrived| arrived.min(lost.since))) {
        Some(since) if now.wall.since(since) < hold => (Some(accepted), Some(since + hold)),
        _ => (None, None),
    }
}

/// On the host and not set aside: a stand-in that fell back no longer is the node.
fn usable(classes: &Classification, address: IpAddr) -> bool {
    let verdict = classes.verdict(address);
    verdict.is_some_and(|v| matches!(v.class, Class::Primary | Class::Unsettled))
        // An identity on lo stays the node's while the default route that names it is away for a moment, and one that
        // failed duplicate detection until it is deleted.
        || verdict.is_some_and(|v| {
            (v.rule == UNANNOUNCED || v.rule == "dad-failed") && classes.memory.incumbents.contains(&address)
        })
}

/// The primary address on the lowest-metric unicast default route, main table first.
fn by_default_route(
    network: &Network,
    classes: &Classification,
    certificate: &BTreeSet<IpAddr>,
    family: Family,
) -> Option<IpAddr> {
    let primary = |value: IpAddr| classes.verdict(value).is_some_and(|v| v.class == Class::Primary);
    let mut routes: Vec<&DefaultRoute> = network.default_routes.iter().filter(|r| r.family == family).collect();
    routes.sort_by_key(|r| (r.table != MAIN_TABLE, r.metric, r.table));
    routes.iter().find_map(|route| {
        if let Some(source) = route.preferred_source.filter(|s| primary(*s)) {
            return Some(source);
        }
        route.hops.iter().find_map(|hop| {
            let holds_gateway = |a: &Address| hop.gateway.is_some_and(|g| same_subnet(a, g));
            // A gateway outside every prefix (cloud /32, link-local next hop) tells nothing: then the certificate does,
            // then the flags. What is still a tie is settled as the API server itself settles it, by kernel order; any
            // other choice would only be held back by `would-advertise-other`.
            network
                .addresses
                .iter()
                .filter(|a| a.link == hop.link && a.family() == family && primary(a.value))
                .min_by_key(|a| {
                    let second = family == Family::Ipv4 && a.flags.secondary();
                    (!holds_gateway(a), !certificate.contains(&a.value), second)
                })
                .map(|a| a.value)
        })
    })
}

/// What kube-apiserver picks at its start: the first global address, in kernel order, of the link of the first default
/// route, IPv4 before IPv6 (apimachinery `ChooseHostInterface`). With `started`, only addresses that were there then.
pub fn api_server_choice(network: &Network, now: Now, started: Option<Duration>) -> Option<IpAddr> {
    [Family::Ipv4, Family::Ipv6].into_iter().find_map(|family| {
        let mut routes: Vec<&DefaultRoute> =
            network.default_routes.iter().filter(|r| r.family == family && r.table == MAIN_TABLE).collect();
        routes.sort_by_key(|r| r.metric);
        routes.iter().filter_map(|route| route.hops.first()).find_map(|hop| {
            let up = network.links.get(&hop.link).is_some_and(|link| link.up);
            network
                .addresses
                .iter()
                .filter(|a| up && a.link == hop.link && a.family() == family)
                .filter(|a| started.is_none_or(|started| was_there(a, started, now)))
                .map(|a| a.value)
                .find(|value| is_global_unicast(*value))
        })
    })
}

/// Whether the address was on its link at that uptime, by the kernel's stamp. Unknown counts as there.
pub fn was_there(address: &Address, at: Duration, now: Now) -> bool {
    address.age(now).is_none_or(|age| now.uptime.saturating_sub(age) <= at)
}

/// Go's `net.IP.IsGlobalUnicast`: private ranges count.
fn is_global_unicast(value: IpAddr) -> bool {
    let link_local = match value {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(link_local || value.is_unspecified() || value.is_loopback() || value.is_multicast())
}
