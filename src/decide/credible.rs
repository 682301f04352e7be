//! What of a state can be about this host.
//!
//! In: the state, what was observed. Out: the state without what cannot be. The rule of this file: a memory that has
//! nothing in common with the host - a folder that was restored from another node, a file that was edited - is none; what
//! was done (the logs of restarts and reissues, the rollbacks) is kept, for limits must not be lost with it.

use std::net::IpAddr;

use crate::decide::state::State;
use crate::facts::Observed;
use crate::facts::certificate::Leaf;
use crate::facts::san::San;

/// Forgets what another host's state says.
pub(crate) fn about_this_host(state: State, observed: &Observed) -> State {
    let Some((leaf, names_follow)) = names(observed) else { return state };
    // A template that freezes the names keeps the node's own out of the certificate: then it says nothing about them.
    if !names_follow {
        return state;
    }
    let here =
        |address: IpAddr| observed.network.copies(address).next().is_some() || leaf.sans.contains(&San::ip(address));
    let mut remembered = state.accepted.iter().map(|a| a.address).chain(state.lost.iter().map(|l| l.address));
    // Boot ids are random: one that was written in this boot was written here, and says what happened since.
    let written_here = !state.boot_id.is_empty() && state.boot_id == observed.boot_id;
    if state.is_known() && !written_here && !remembered.any(here) {
        return State {
            accepted: Vec::new(),
            lost: Vec::new(),
            candidates: Vec::new(),
            promoted: Vec::new(),
            node_address: std::collections::BTreeMap::new(),
            advertised: None,
            choices: Vec::new(),
            word: None,
            restarted_for: None,
            ..state
        };
    }
    let known = |address: IpAddr| {
        state.accepted.iter().any(|a| a.address == address)
            || state.lost.iter().any(|l| l.address == address)
            || state.choices.iter().any(|choice| choice.address == Some(address))
            // The API server of this boot said so itself.
            || state.word.as_ref().is_some_and(|w| w.boot_id == observed.boot_id && w.gone == Some(address))
    };
    let advertised = state.advertised.as_ref().and_then(|advertised| advertised.address);
    if advertised.is_some_and(|address| !here(address) && !known(address)) {
        return State { advertised: None, ..state };
    }
    state
}

/// The server certificate, and whether its names follow the host's addresses.
fn names(observed: &Observed) -> Option<(&Leaf, bool)> {
    let cluster = observed.cluster.as_ref()?;
    let leaf = cluster.certificates.first()?.leaf.as_ref().ok()?;
    let marker = cluster.template.as_ref().is_none_or(|template| template.as_ref().is_ok_and(|t| t.marker));
    Some((leaf, marker))
}
