//! What a settled pass leaves in the state, whether or not its plan is carried out.
//!
//! In: the state before, the classification. Out: the state after. The rule of this file: nothing here is news by itself -
//! a pass over an unchanged host leaves an unchanged state, so that nothing is written.

use std::net::IpAddr;

use crate::decide::holds::clock_is_behind;
use crate::decide::node_address::{NodeAddresses, api_server_choice};
use crate::decide::rules::UNANNOUNCED;
use crate::decide::state::{Accepted, Advertised, Candidate, Choice, State, VERSION, push_bounded};
use crate::decide::verdict::{Class, Classification};
use crate::decide::word::Word;
use crate::facts::network::Network;
use crate::facts::san::SanSet;
use crate::facts::time::{Now, Timestamp};

/// What a pass found.
pub(crate) struct Pass<'a> {
    pub(crate) network: &'a Network,
    pub(crate) classes: &'a Classification,
    pub(crate) node: &'a NodeAddresses,
    pub(crate) desired: &'a SanSet,
    pub(crate) advertised: Option<&'a Advertised>,
    /// What the API server said in this pass.
    pub(crate) word: Option<&'a Word>,
    pub(crate) waiting_for_joins: Option<Timestamp>,
    /// When the API server was started, once asked.
    pub(crate) started: Option<Timestamp>,
    /// When the state before was still true for certain.
    pub(crate) last_true: Timestamp,
    pub(crate) boot_id: &'a str,
    /// What the kernel says about its clock.
    pub(crate) clock_synchronised: Option<bool>,
    pub(crate) now: Now,
}

/// Rules whose verdict matters later: the address may come up for promotion. Service addresses on kube-ipvs0 and the like
/// do not, and there may be thousands.
const PASSED_OVER: &[&str] =
    &["protocol", "deprecated", "beside-holder", "host-prefix", "second-of-subnet", "dynamic-ipv6", "held-back"];

/// Most passed-over addresses that are remembered: a bound against a pod that adds addresses without end.
const MOST_CANDIDATES: usize = 1024;

pub(crate) fn after(before: &State, pass: &Pass<'_>) -> State {
    let now = pass.now.wall;
    let memory = &pass.classes.memory;
    let mut state = before.clone();
    state.version = VERSION;
    if !clock_is_behind(before, pass.now, pass.clock_synchronised) {
        state.written = now;
    }
    pass.boot_id.clone_into(&mut state.boot_id);

    // Accepted: what is primary and on the host, and incumbents that are only unusable for a moment.
    state.accepted = pass
        .classes
        .verdicts
        .iter()
        .filter(|v| !v.interface.is_empty())
        .filter(|v| {
            let a_moment = v.class == Class::Unsettled || v.rule == UNANNOUNCED || v.rule == "dad-failed";
            v.class == Class::Primary || (a_moment && memory.incumbents.contains(&v.address))
        })
        .map(|v| {
            let since = before.accepted.iter().find(|a| a.address == v.address).map_or(now, |a| a.since);
            Accepted { address: v.address, link: v.interface.clone(), since }
        })
        .collect();
    state.accepted.sort_by_key(|a| a.address);
    let accepted = |address: IpAddr| state.accepted.iter().any(|a| a.address == address);

    // Behind a restart whose end nobody saw the service has started: it came to its end.
    if let Some(last) = state.restarts.last_mut() {
        last.open &= pass.started.is_none_or(|started| started <= last.at);
    }

    state.lost.clone_from(&memory.lost);
    state.lost.sort_by_key(|l| l.address);

    state.candidates = pass
        .classes
        .verdicts
        .iter()
        .filter(|v| matches!(v.class, Class::Secondary | Class::LbOwned) && PASSED_OVER.contains(&v.rule))
        .map(|v| {
            // Once a load balancer's, always: a replace may erase the mark (the kernel forgets IFA_PROTO).
            let known = before.candidate(v.address);
            let class = match known.map(|c| c.class) {
                Some(Class::LbOwned) => Class::LbOwned,
                _ => v.class,
            };
            Candidate { address: v.address, class, since: known.map_or(now, |c| c.since) }
        })
        .take(MOST_CANDIDATES)
        .collect();
    state.candidates.sort_by_key(|c| c.address);

    state.promoted = before
        .promoted
        .iter()
        .copied()
        .chain(pass.classes.promoted.iter().copied())
        // A stand-in that left and is back still is one.
        .chain(before.lost.iter().filter(|l| l.stand_in && memory.returned.contains(&l.address)).map(|l| l.address))
        .filter(|address| accepted(*address) && !memory.fallen_back.contains(address))
        .collect();
    state.promoted.sort_unstable();
    state.promoted.dedup();

    state.node_address.clone_from(&pass.node.of);
    // A pinned address that is not there is no loss to be waited for; the others keep their place.
    for lost in &mut state.lost {
        lost.node_address |= before.node_address.values().any(|n| *n == lost.address);
    }
    note_choice(&mut state, before, pass);
    state.advertised = pass.advertised.cloned().or_else(|| before.advertised.clone());
    if let Some(word) = pass.word {
        state.word = Some(word.clone());
        // It is not on the list any more: should it come back, that is news.
        state.restarted_for = state.restarted_for.filter(|_| word.unclear > 0);
    }
    state.waiting_for_joins = pass.waiting_for_joins;
    for added in &mut state.added {
        // What is still on the host has not left, whatever it is now.
        let here = added.san.as_ip().is_some_and(|ip| pass.classes.verdict(ip).is_some());
        added.unneeded_since = match (here || pass.desired.contains(&added.san), added.unneeded_since) {
            (true, _) => None,
            (false, since) => since.or(Some(now)),
        };
    }
    state
}

/// Keeps a record of what an API server started now would pick: once the address is gone, nobody can tell any more.
fn note_choice(state: &mut State, before: &State, pass: &Pass<'_>) {
    if before.boot_id != pass.boot_id {
        state.choices.clear();
    }
    // A process that comes later starts later: of what was, only what the running one picked still matters.
    if let Some(started) = pass.started
        && let Some(last) = state.choices.last().cloned()
    {
        let mut kept = state.choices_at(started).0.to_vec();
        if kept.last() != Some(&last) {
            kept.push(last);
        }
        state.choices = kept;
    }
    let address = api_server_choice(pass.network, pass.now, None);
    let restarted = before.restarts.last().map(|restart| restart.at);
    let after = match state.choices.last_mut() {
        Some(last) if last.address == address => {
            if restarted.is_some_and(|at| at >= last.seen) {
                last.seen = pass.now.wall;
            }
            return;
        }
        Some(last) => pass.last_true.max(last.seen),
        // The first look of a boot: it may have been so for as long as the address is there.
        None => {
            let ages = address.into_iter().flat_map(|a| pass.network.copies(a)).filter_map(|copy| copy.age(pass.now));
            pass.now.wall - ages.max().unwrap_or_default()
        }
    };
    let since = pass.now.wall;
    push_bounded(&mut state.choices, Choice { address, since, after: after.min(since), seen: since });
}
