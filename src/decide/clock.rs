//! The remembered moments on the clock of now.
//!
//! In: the state, both clocks. Out: the state with its times moved. The rule of this file: a clock that is set while the
//! host runs makes nothing older or younger, and nothing that was remembered lies ahead - a wait of seconds must not
//! become one of years, nor end at once.

use std::time::Duration;

use crate::decide::state::State;
use crate::facts::time::{Now, Timestamp};

/// Less than this is drift, not a clock that was set.
const STEP: Duration = Duration::from_secs(60);

/// When the host was started, on the wall clock of now.
fn booted(now: Now) -> Timestamp {
    now.wall - now.uptime
}

/// Moves the remembered moments onto the clock of now. `written` stays: it tells of a clock that is behind.
pub(crate) fn adjusted(state: &State, boot_id: &str, now: Now) -> State {
    let mut state = state.clone();
    let before = state.booted.filter(|_| state.boot_id == boot_id).unwrap_or_else(|| booted(now));
    let (ahead, behind) = (booted(now).since(before), before.since(booted(now)));
    let stepped = ahead.max(behind) >= STEP;
    let adjust = |moment: &mut Timestamp| {
        if stepped {
            *moment = *moment + ahead - behind;
        }
        *moment = (*moment).min(now.wall);
    };
    state.accepted.iter_mut().for_each(|a| adjust(&mut a.since));
    state.lost.iter_mut().for_each(|l| adjust(&mut l.since));
    state.candidates.iter_mut().for_each(|c| adjust(&mut c.since));
    state.choices.iter_mut().flat_map(|c| [&mut c.since, &mut c.after, &mut c.seen]).for_each(adjust);
    state.added.iter_mut().flat_map(|a| [Some(&mut a.at), a.unneeded_since.as_mut()]).flatten().for_each(adjust);
    state.restarts.iter_mut().map(|r| &mut r.at).chain(&mut state.restarts_lost).for_each(adjust);
    state.reissues.iter_mut().for_each(|r| adjust(&mut r.at));
    if let Some(advertised) = &mut state.advertised {
        [&mut advertised.gone_since, &mut advertised.last_true].into_iter().flatten().for_each(adjust);
    }
    for unconfirmed in state.unconfirmed.iter_mut().chain(&mut state.unconfirmed_kubelet) {
        [Some(&mut unconfirmed.since), unconfirmed.asked.as_mut()].into_iter().flatten().for_each(adjust);
    }
    state.waiting_for_joins.iter_mut().for_each(adjust);
    if let Some(awaited) = &mut state.awaited_ready {
        [Some(&mut awaited.since), awaited.last.as_mut()].into_iter().flatten().for_each(adjust);
    }
    if let Some(word) = &mut state.word {
        [Some(&mut word.at), word.unlisted_since.as_mut()].into_iter().flatten().for_each(adjust);
    }
    if let Some(failures) = &mut state.failures {
        adjust(&mut failures.at);
    }
    if stepped || state.booted.is_none() || state.boot_id != boot_id {
        state.booted = Some(booted(now));
    }
    state
}
