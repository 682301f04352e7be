//! The last accepted primary set: who was the node's own and still is.
//!
//! In: the state, or without one the certificate's own addresses. Out: [`Memory`]. The rule of this file: an address
//! that was accepted keeps its place for as long as it is on the host, and for `retain` after it left - unless it only
//! stood in for one that has returned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::decide::case::{Case, same_subnet};
use crate::decide::classify::{keeps_place, stands_alone};
use crate::decide::state::Lost;
use crate::facts::network::{Address, Family};

/// Who was primary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Primary before and on the host now.
    pub incumbents: BTreeSet<IpAddr>,
    /// Primary before and not on the host, within `retain`.
    pub lost: Vec<Lost>,
    /// Lost before and back now.
    pub returned: BTreeSet<IpAddr>,
    /// Stand-ins that fall back because the one they stood in for has returned.
    pub fallen_back: BTreeSet<IpAddr>,
    /// The incumbents come from the certificate, since no state is known.
    pub from_certificate: bool,
}

impl Memory {
    pub(crate) fn recall(case: &Case<'_>) -> Self {
        if case.grounds.state.is_known() { Self::from_state(case) } else { Self::from_certificate(case) }
    }

    fn from_state(case: &Case<'_>) -> Self {
        let (state, now) = (case.grounds.state, case.grounds.now.wall);
        let network = case.grounds.network;
        let present = |value| network.copies(value).any(|copy| keeps_place(case, copy));
        let retain = case.grounds.config.certificate.retain;
        let mut memory = Self::default();
        for accepted in &state.accepted {
            if present(accepted.address) {
                memory.incumbents.insert(accepted.address);
            } else {
                memory.lost.push(Lost {
                    address: accepted.address,
                    link: accepted.link.clone(),
                    since: now,
                    node_address: state.node_address.values().any(|n| *n == accepted.address),
                    stand_in: state.promoted.contains(&accepted.address),
                });
            }
        }
        for gone in &state.lost {
            if present(gone.address) {
                memory.incumbents.insert(gone.address);
                memory.returned.insert(gone.address);
            } else if now.since(gone.since) < retain && !memory.lost.iter().any(|l| l.address == gone.address) {
                memory.lost.push(gone.clone());
            }
        }
        // What was promoted in the absence of a primary falls back when that one is on its link and family again - even
        // if the stand-in itself had left and comes back only now.
        let own = |address: IpAddr| !state.promoted.contains(&address) && memory.incumbents.contains(&address);
        let holders: Vec<(IpAddr, &str)> = state
            .lost
            .iter()
            .filter(|l| !l.stand_in && memory.returned.contains(&l.address))
            .map(|l| (l.address, l.link.as_str()))
            .collect();
        let stayed: Vec<(IpAddr, &str)> =
            state.accepted.iter().filter(|a| own(a.address)).map(|a| (a.address, a.link.as_str())).collect();
        let back = |stand_in: IpAddr, place: Option<&str>, holders: &[(IpAddr, &str)]| {
            holders.iter().any(|(address, link)| {
                Family::of(*address) == Family::of(stand_in) && place.is_none_or(|place| place == *link)
            })
        };
        let mut fallen_back = BTreeSet::new();
        for stand_in in &state.promoted {
            let place = state.accepted.iter().find(|a| a.address == *stand_in).map(|a| a.link.as_str());
            if back(*stand_in, place, &holders) {
                fallen_back.insert(*stand_in);
            }
        }
        for gone in state.lost.iter().filter(|l| l.stand_in && memory.returned.contains(&l.address)) {
            let place = Some(gone.link.as_str());
            if back(gone.address, place, &holders) || back(gone.address, place, &stayed) {
                fallen_back.insert(gone.address);
            }
        }
        for stand_in in &fallen_back {
            memory.incumbents.remove(stand_in);
            memory.returned.remove(stand_in);
        }
        memory.fallen_back = fallen_back;
        memory
    }

    /// Without a state, the certificate's addresses that are still on the host. Certificates made by the kicker contain
    /// VIPs, so rules 11 and 12 may set one aside, as long as another of that link and family remains.
    fn from_certificate(case: &Case<'_>) -> Self {
        let named: Vec<&Address> = case
            .grounds
            .network
            .addresses
            .iter()
            .filter(|a| {
                // A name that configuration asks for makes no incumbent, but it speaks against a VIP beside it.
                case.grounds.certificate_ips.contains(&a.value)
                    || case.grounds.configured_ips.contains(&a.value)
                    || case.grounds.pins.contains_key(&a.value)
            })
            .filter(|a| stands_alone(case, a))
            .collect();
        let mut places: BTreeMap<(u32, Family), Vec<&Address>> = BTreeMap::new();
        for address in &named {
            places.entry((address.link, address.family())).or_default().push(address);
        }
        let mut memory = Self { from_certificate: true, ..Self::default() };
        for members in places.values_mut() {
            for doubt in DOUBTS {
                // One at a time: the last one standing is not doubted.
                while members.len() > 1 {
                    let doubted = |a: &&Address| !case.grounds.pins.contains_key(&a.value) && doubt(case, a, members);
                    let Some(index) = members.iter().position(doubted) else { break };
                    members.remove(index);
                }
            }
            let named = members.iter().map(|a| a.value).filter(|value| case.grounds.certificate_ips.contains(value));
            memory.incumbents.extend(named);
        }
        memory
    }

    /// Why an incumbent is one, for people.
    pub(crate) fn evidence(&self, value: IpAddr) -> String {
        if self.from_certificate {
            "in the certificate and on the host".to_owned()
        } else if self.returned.contains(&value) {
            "returned: it was the node's own before it left".to_owned()
        } else {
            "the node's own since an earlier pass".to_owned()
        }
    }
}

type Doubt = fn(&Case<'_>, &Address, &[&Address]) -> bool;

/// What speaks against one of several certificate addresses on a link, strongest first.
const DOUBTS: &[Doubt] = &[
    |case, a, all| {
        all.iter().any(|other| {
            case.grounds.pins.contains_key(&other.value) && !other.is_host_prefix() && same_subnet(other, a.value)
        })
    },
    |_, a, _| a.flags.deprecated(),
    |case, a, all| {
        let source = case.grounds.network.is_preferred_source(a.value);
        let lease = a.family() == Family::Ipv6 && a.valid.is_some();
        a.is_host_prefix() && !source && !lease && all.iter().any(|other| !other.is_host_prefix())
    },
    |case, a, all| {
        !case.grounds.network.is_preferred_source(a.value)
            && all.iter().any(|other| {
                other.value != a.value
                    && case.grounds.network.is_preferred_source(other.value)
                    && !other.is_host_prefix()
                    && same_subnet(other, a.value)
            })
    },
    |case, a, all| {
        a.family() == Family::Ipv4
            && a.flags.secondary()
            && !case.grounds.network.is_preferred_source(a.value)
            && all.iter().any(|other| other.value != a.value && !other.flags.secondary() && same_subnet(other, a.value))
    },
];
