//! Join tokens: which reasons for a new server certificate wait while nodes may still join.
//!
//! In: the reasons, the missing names, the tokens, since when they have waited. Out: a hold, or nothing. The rule of this
//! file: what `microk8s add-node` prints carries the fingerprint of the server certificate, so every new certificate makes
//! it worthless. What costs nobody anything for a day waits for one, and no longer; what somebody needs now does not.
//!
//! A token file that cannot be read counts as full. Too much waiting is told, and over after a day; too little is noticed
//! by whoever stands before a node that does not join, with a string that was good when it was printed.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::decide::plan::{Hold, HoldCode, Reason, ReasonCode};
use crate::facts::certificate::Leaf;
use crate::facts::cluster::JoinTokens;
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;

/// The longest wait.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// With less than this left, expiry waits for nobody.
const LIFE_THAT_WAITS: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What the decision rests on.
pub(crate) struct Input<'a> {
    pub(crate) tokens: &'a JoinTokens,
    /// Why the server certificate would be made anew.
    pub(crate) reasons: &'a [Reason],
    pub(crate) leaf: Option<&'a Leaf>,
    pub(crate) missing: &'a SanSet,
    /// Node addresses, and those that somebody pinned.
    pub(crate) urgent: &'a BTreeSet<IpAddr>,
    /// Since when it waits already.
    pub(crate) waiting_since: Option<Timestamp>,
    pub(crate) now: Timestamp,
}

/// What follows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// Since when all reasons are such that may wait, and tokens are outstanding.
    pub(crate) since: Option<Timestamp>,
    /// While the day is not over.
    pub(crate) hold: Option<Hold>,
}

/// Whether the certificate waits for those who may still join.
pub(crate) fn wait(input: &Input<'_>) -> Wait {
    let tokens = input.tokens;
    let ends: Vec<Timestamp> = tokens.ends.iter().copied().filter(|end| *end > input.now).collect();
    let count = tokens.lasting + ends.len();
    let outstanding = count > 0 || tokens.unreadable.is_some();
    if !outstanding || input.reasons.is_empty() || !input.reasons.iter().all(|reason| may_wait(reason, input)) {
        return Wait::default();
    }
    let since = input.waiting_since.unwrap_or(input.now).min(input.now);
    let day_is_over = since + A_DAY;
    if input.now >= day_is_over {
        return Wait { since: Some(since), hold: None };
    }
    // Those that end by themselves may all end sooner.
    let all_end = tokens.lasting == 0 && tokens.unreadable.is_none();
    let last_end = ends.into_iter().max().filter(|_| all_end);
    let expires = input.reasons.iter().any(|reason| reason.code == ReasonCode::NearExpiry);
    let too_near = input.leaf.filter(|_| expires).map(|leaf| leaf.not_after - LIFE_THAT_WAITS);
    let until = [Some(day_is_over), last_end, too_near].into_iter().flatten().min();
    let who = match (&tokens.unreadable, count) {
        (Some(error), _) => format!("{error}: nodes may be joining"),
        (None, 1) => "a join token is outstanding".to_owned(),
        (None, count) => format!("{count} join tokens are outstanding"),
    };
    let detail = format!(
        "{who}, and a new server certificate would make what `microk8s add-node` printed worthless; \
         `ipguard renew server` does not wait"
    );
    Wait { since: Some(since), hold: Some(Hold { code: HoldCode::JoinTokens, detail, until }) }
}

/// Whether nobody loses anything by a day more without it.
fn may_wait(reason: &Reason, input: &Input<'_>) -> bool {
    match reason.code {
        ReasonCode::AddressMissing | ReasonCode::ConfiguredSanMissing => {
            !input.missing.iter().filter_map(San::as_ip).any(|address| input.urgent.contains(&address))
        }
        ReasonCode::NearExpiry => input.leaf.is_some_and(|leaf| leaf.not_after.since(input.now) >= LIFE_THAT_WAITS),
        // What clients or the server itself refuse serves nobody, those who would join included.
        _ => false,
    }
}
