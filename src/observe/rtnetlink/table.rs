//! The table: what the events of the kernel add up to.
//!
//! In: [`Change`]s in the order they happened, and whole dumps. Out: a [`Network`], and whether a change is relevant.
//! The rule of this file: applying all events gives what a fresh dump gives; a property test holds it to that.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use crate::facts::network::{Address, DefaultRoute, Link, Network, SCOPE_LINK, Source};
use crate::observe::rtnetlink::decode::Change;

/// Links, addresses and default routes, kept up to date.
#[derive(Debug, Clone, Default)]
pub struct Table {
    links: BTreeMap<u32, Link>,
    addresses: BTreeMap<Key, Entry>,
    /// Rank of the next address: dump order first, then order of arrival.
    next_rank: u64,
    /// Sorted.
    default_routes: Vec<DefaultRoute>,
    routes_dirty: bool,
}

/// What makes an address one object for the kernel, links first so that a link's addresses are one range.
///
/// For IPv4 the other end belongs to it: `10.0.0.1 peer 10.0.0.2` and `10.0.0.1 peer 10.0.0.3` are two. For IPv6 it
/// does not: a replace changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    link: u32,
    value: IpAddr,
    prefix_len: u8,
    peer: Option<IpAddr>,
}

#[derive(Debug, Clone)]
struct Entry {
    rank: u64,
    address: Address,
}

/// What fresh dumps said.
#[derive(Debug, Clone, Default)]
pub struct Dumped {
    /// All links.
    pub links: BTreeMap<u32, Link>,
    /// All addresses, in the kernel's order.
    pub addresses: Vec<Address>,
    /// All unicast default routes.
    pub default_routes: Vec<DefaultRoute>,
}

impl Dumped {
    /// Takes what one message of a dump says.
    pub fn take(&mut self, change: Change) {
        match change {
            Change::Link(link) => drop(self.links.insert(link.index, link)),
            Change::Address(address) => self.addresses.push(address),
            Change::DefaultRoute(route) => self.default_routes.push(route),
            // A dump only says what is there.
            Change::LinkDeleted(_)
            | Change::AddressDeleted(_)
            | Change::DefaultRouteDeleted(_)
            | Change::DeadDefaultRoute => {}
        }
    }
}

impl Table {
    /// Applies one event; whether it is relevant. Route events only mark the routes dirty: see [`Table::routes_dirty`].
    pub fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Link(link) => self.put_link(link),
            Change::LinkDeleted(index) => self.remove_link(index),
            Change::Address(address) => self.put_address(address),
            Change::AddressDeleted(address) => self.remove_address(&address),
            Change::DefaultRoute(_) | Change::DefaultRouteDeleted(_) | Change::DeadDefaultRoute => {
                self.routes_dirty = true;
                false
            }
        }
    }

    /// Whether nothing was ever dumped: every network namespace has a loopback link.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Whether the default routes must be dumped again.
    ///
    /// They are not modelled from events, because the events do not add up: replace does not say what it replaced,
    /// append builds multipath routes in IPv6 only, and IPv4 removes routes without any event when a link goes down,
    /// when its last address goes, or when a preferred source goes (`fib_sync_down_addr`, `fib_disable_ip`). A dump is
    /// right by definition, and default routes change seldom.
    pub const fn routes_dirty(&self) -> bool {
        self.routes_dirty
    }

    /// Puts dumped default routes in place of the known ones; whether they differ.
    pub fn replace_routes(&mut self, mut routes: Vec<DefaultRoute>) -> bool {
        // The dump's order means nothing (a hash table's in IPv6). A kernel without IPv6 answers for both families
        // when asked for it, so a route may come twice.
        routes.sort_unstable();
        routes.dedup();
        self.routes_dirty = false;
        let differ = self.default_routes != routes;
        self.default_routes = routes;
        differ
    }

    /// Puts fresh dumps in place of everything; whether anything relevant differs.
    pub fn replace(&mut self, dumped: Dumped) -> bool {
        let mut relevant = false;
        let before = std::mem::take(&mut self.addresses);
        self.next_rank = 0;
        for mut address in dumped.addresses {
            let known = before.get(&Key::of(&address)).map(|entry| &entry.address);
            // The kernel forgets IFA_PROTO on a replace that omits it. Another creation time means another address:
            // its deletion was among lost events.
            if let Some(known) = known
                && known.created == address.created
            {
                address.protocol = address.protocol.or(known.protocol);
            }
            relevant |= known.is_none_or(|known| !same_to_decisions(known, &address)) && matters(&address);
            let rank = self.rank();
            self.addresses.insert(Key::of(&address), Entry { rank, address });
        }
        relevant |= before.iter().any(|(key, entry)| matters(&entry.address) && !self.addresses.contains_key(key));
        relevant |= self.replace_routes(dumped.default_routes);
        let links = std::mem::replace(&mut self.links, dumped.links);
        relevant |= self.links.values().any(|link| self.link_change_matters(links.get(&link.index), Some(link)));
        relevant |= links
            .values()
            .any(|link| !self.links.contains_key(&link.index) && self.link_change_matters(Some(link), None));
        relevant
    }

    /// The table as a snapshot, addresses in dump order and newer ones after them.
    pub fn network(&self, complete: bool) -> Network {
        let mut entries: Vec<&Entry> = self.addresses.values().collect();
        entries.sort_unstable_by_key(|entry| entry.rank);
        Network {
            links: self.links.clone(),
            addresses: entries.into_iter().map(|entry| entry.address.clone()).collect(),
            default_routes: self.default_routes.clone(),
            complete,
            source: Source::Rtnetlink,
        }
    }

    fn rank(&mut self) -> u64 {
        self.next_rank += 1;
        self.next_rank
    }

    fn put_link(&mut self, mut link: Link) -> bool {
        let before = self.links.get(&link.index);
        // A name is never absent in a whole message; if it could not be read, the old one is likelier than none.
        if let (true, Some(before)) = (link.name.0.is_empty(), before) {
            link.name = before.name.clone();
        }
        // Down removes IPv4 routes silently, and so does a move to another VRF.
        if before.is_some_and(|before| (before.up, before.master) != (link.up, link.master)) {
            self.routes_dirty = true;
        }
        let relevant = self.link_change_matters(before, Some(&link));
        self.links.insert(link.index, link);
        relevant
    }

    fn remove_link(&mut self, index: u32) -> bool {
        let before = self.links.remove(&index);
        let relevant = before.is_some_and(|before| self.link_change_matters(Some(&before), None));
        let gone: Vec<Key> = self.on_link(index).map(|(&key, _)| key).collect();
        for key in gone {
            self.addresses.remove(&key);
        }
        if self.carries_route(index) {
            self.routes_dirty = true;
        }
        relevant
    }

    fn put_address(&mut self, mut address: Address) -> bool {
        let key = Key::of(&address);
        if let Some(entry) = self.addresses.get_mut(&key) {
            address.protocol = address.protocol.or(entry.address.protocol);
            let relevant = !same_to_decisions(&entry.address, &address) && matters(&address);
            entry.address = address;
            return relevant;
        }
        let relevant = matters(&address);
        let rank = self.rank();
        self.addresses.insert(key, Entry { rank, address });
        relevant
    }

    fn remove_address(&mut self, address: &Address) -> bool {
        let routes = |route: &DefaultRoute| {
            route.preferred_source == Some(address.value) || route.hops.iter().any(|hop| hop.link == address.link)
        };
        if self.default_routes.iter().any(routes) {
            self.routes_dirty = true;
        }
        self.addresses.remove(&Key::of(address)).is_some_and(|entry| matters(&entry.address))
    }

    /// Whether what happened to a link can change a decision. Names, kinds and masters of links that have addresses or
    /// a default route are evidence, and so are the ports of a bridge. A pod's veth that comes and goes with nothing
    /// but a link-local address is not: a node may start hundreds of pods a minute.
    fn link_change_matters(&self, before: Option<&Link>, after: Option<&Link>) -> bool {
        let seen = |link: Option<&Link>| link.map(|l| (l.name.clone(), l.kind.clone(), l.master, l.up));
        let Some(index) = after.or(before).map(|link| link.index) else { return false };
        if seen(before) == seen(after) {
            return false;
        }
        let port = |link: Option<&Link>| link.is_some_and(|link| link.master.is_some());
        port(before)
            || port(after)
            || self.on_link(index).any(|(_, entry)| matters(&entry.address))
            || self.carries_route(index)
    }

    fn carries_route(&self, link: u32) -> bool {
        self.default_routes.iter().any(|route| route.hops.iter().any(|hop| hop.link == link))
    }

    fn on_link(&self, link: u32) -> impl Iterator<Item = (&Key, &Entry)> {
        let lowest = Key { link, value: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), prefix_len: 0, peer: None };
        self.addresses.range(lowest..).take_while(move |(key, _)| key.link == link)
    }
}

impl Key {
    const fn of(address: &Address) -> Self {
        let peer = match address.value {
            IpAddr::V4(_) => address.peer,
            IpAddr::V6(_) => None,
        };
        Self { link: address.link, value: address.value, prefix_len: address.prefix_len, peer }
    }
}

/// Link-local IPv6 addresses are never in a certificate (no SAN can carry their zone), and every pod brings one.
fn matters(address: &Address) -> bool {
    match address.value {
        IpAddr::V4(_) => true,
        IpAddr::V6(value) => address.scope != SCOPE_LINK || !is_link_local(value),
    }
}

const fn is_link_local(value: Ipv6Addr) -> bool {
    value.segments()[0] & 0xffc0 == 0xfe80
}

/// Lifetimes and time stamps change with every router advertisement, labels with every rename: neither means anything.
fn same_to_decisions(a: &Address, b: &Address) -> bool {
    (a.flags, a.scope, a.peer, a.protocol) == (b.flags, b.scope, b.peer, b.protocol)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::network::Flags;

    fn address(link: u32, value: &str, protocol: Option<u8>, created: u32) -> Address {
        let value: IpAddr = value.parse().expect("an address");
        Address {
            value,
            prefix_len: 32,
            link,
            peer: None,
            scope: 0,
            flags: Flags(0x80),
            label: None,
            protocol,
            valid: None,
            preferred: None,
            created: Some(created),
            updated: Some(created),
        }
    }

    fn link(index: u32, name: &str) -> Link {
        Link { index, name: name.into(), ..Link::default() }
    }

    #[test]
    fn a_deleted_link_takes_its_addresses_along_and_no_others() {
        let mut table = Table::default();
        for index in [1, 2, 3] {
            table.apply(Change::Link(link(index, "x")));
            table.apply(Change::Address(address(index, "192.0.2.1", None, 1)));
            table.apply(Change::Address(address(index, "2001:db8::1", None, 1)));
        }
        assert!(table.apply(Change::LinkDeleted(2)));
        let network = table.network(true);
        assert_eq!(network.addresses.iter().map(|a| a.link).collect::<Vec<_>>(), [1, 1, 3, 3]);
        assert!(!network.links.contains_key(&2));
        assert!(!table.apply(Change::LinkDeleted(2)), "nothing is left to delete");
    }

    #[test]
    fn a_rename_keeps_the_index_and_its_addresses() {
        let mut table = Table::default();
        table.apply(Change::Link(link(5, "eth0")));
        table.apply(Change::Address(address(5, "192.0.2.1", None, 1)));
        assert!(table.apply(Change::Link(link(5, "uplink"))));
        assert!(!table.apply(Change::Link(link(5, "uplink"))));
        // A name that could not be read does not erase the one that was.
        assert!(!table.apply(Change::Link(link(5, ""))));
        let network = table.network(true);
        assert_eq!((network.link_name(5).as_str(), network.addresses.len()), ("uplink", 1));
    }

    #[test]
    fn one_address_with_two_other_ends_is_two_addresses_in_ipv4_only() {
        let mut table = Table::default();
        for peer in ["10.0.0.2", "10.0.0.3"] {
            let peer = Some(peer.parse().expect("an address"));
            table.apply(Change::Address(Address { peer, ..address(1, "10.0.0.1", None, 1) }));
        }
        for peer in ["fd00::2", "fd00::3"] {
            let peer = Some(peer.parse().expect("an address"));
            assert!(table.apply(Change::Address(Address { peer, ..address(1, "fd00::1", None, 1) })));
        }
        assert_eq!(table.network(true).addresses.len(), 3);
    }

    #[test]
    fn a_dump_keeps_the_protocol_of_the_same_address_and_not_of_a_new_one() {
        let mut table = Table::default();
        table.apply(Change::Address(address(1, "192.0.2.1", Some(18), 100)));
        table.apply(Change::Address(address(1, "192.0.2.2", Some(18), 100)));
        let addresses = vec![address(1, "192.0.2.1", None, 100), address(1, "192.0.2.2", None, 200)];
        table.replace(Dumped { addresses, ..Dumped::default() });
        let protocols: Vec<_> = table.network(true).addresses.iter().map(|a| a.protocol).collect();
        assert_eq!(protocols, [Some(18), None]);
    }

    #[test]
    fn a_dump_is_news_only_where_it_differs() {
        let dumped = || Dumped {
            links: BTreeMap::from([(1, link(1, "eth0"))]),
            addresses: vec![address(1, "192.0.2.1", None, 100)],
            default_routes: Vec::new(),
        };
        let mut table = Table::default();
        assert!(table.replace(dumped()));
        let mut later = dumped();
        later.addresses[0].valid = Some(std::time::Duration::from_secs(5));
        later.addresses[0].updated = Some(700);
        assert!(!table.replace(later), "lifetimes and stamps mean nothing");
        let mut renamed = dumped();
        renamed.links.insert(1, link(1, "eth9"));
        assert!(table.replace(renamed));
        assert!(table.replace(Dumped::default()));
        assert!(table.network(true).addresses.is_empty());
    }
}
