//! When an address that was passed over takes the place of a primary that its link has lost.
//!
//! In: a copy that every other rule leaves standing and that was secondary or a load balancer's until now. Out: a
//! judgement. The rule of this file: only after `promotion_hold`, only on a link with the default route, and never with
//! load-balancer evidence, unless a default route's preferred source names it. Other links' primaries neither help nor
//! hinder. A VIP that stays while the node's address flaps must not become the node.

use std::net::IpAddr;
use std::time::Duration;

use crate::decide::case::Case;
use crate::decide::rules::newcomer;
use crate::decide::verdict::{Class, Classification, Judgement};
use crate::facts::network::Address;
use crate::facts::time::Timestamp;

/// Whether the value was secondary or a load balancer's in the last settled pass, or only stood in for a primary that
/// has returned.
pub(crate) fn was_passed_over(case: &Case<'_>, value: IpAddr) -> bool {
    let before = case.grounds.state.candidate(value);
    before.is_some_and(|c| matches!(c.class, Class::Secondary | Class::LbOwned))
        || case.memory.fallen_back.contains(&value)
}

/// Judges a copy that was passed over until now. `held`: its link and family have a primary.
pub(crate) fn judge(case: &Case<'_>, address: &Address, held: bool, result: &mut Classification) -> Judgement {
    let back = |evidence: String| Judgement { class: Class::Secondary, rule: "held-back", evidence };
    let by_itself = newcomer(case, address);
    if by_itself.class != Class::Primary {
        return by_itself;
    }
    if held {
        return back("was not the node's own, and its link still has a primary address".to_owned());
    }
    let named = case.grounds.network.is_preferred_source(address.value);
    if !named && !case.is_uplink(address.link) {
        return back("was not the node's own, and its link carries no default route".to_owned());
    }
    if !named && let Some(mark) = load_balancer_mark(case, address) {
        let link = case.grounds.network.link_name(address.link);
        result.notices.push(format!(
            "{} is the only address left on {link}, but {mark}: it does not become the node's own; pin it if it is",
            address.value
        ));
        return back(format!("a load balancer's: {mark}"));
    }
    let due = vacant_since(case, address) + case.grounds.config.settle.promotion_hold;
    if case.grounds.now.wall < due {
        result.promotion_due = Some(result.promotion_due.map_or(due, |other| other.min(due)));
        return back(format!("its link has lost its primary address; takes its place at {due}"));
    }
    result.promoted.insert(address.value);
    let evidence = "its link has lost its primary address for longer than promotion_hold".to_owned();
    Judgement { class: Class::Primary, rule: "promoted", evidence }
}

/// Since when the link and family of an address have had no primary: since the last loss there; without one on record,
/// since the address itself was first seen.
fn vacant_since(case: &Case<'_>, address: &Address) -> Timestamp {
    let link = case.grounds.network.link_name(address.link);
    let last_loss = case
        .memory
        .lost
        .iter()
        .filter(|l| l.link == link && crate::facts::network::Family::of(l.address) == address.family())
        .map(|l| l.since)
        .max();
    let seen = case.grounds.state.candidate(address.value).map(|c| c.since);
    last_loss.or(seen).unwrap_or(case.grounds.now.wall)
}

/// What marks an address as a load balancer's. (Protocol, deprecation and known links have their own rules before this
/// one; the class it had then is remembered, for a replace may have erased the mark.)
fn load_balancer_mark(case: &Case<'_>, address: &Address) -> Option<String> {
    let before = case.grounds.state.candidate(address.value);
    if before.is_some_and(|c| c.class == Class::LbOwned) {
        return Some("it was a load balancer's until now".to_owned());
    }
    let granted = address.granted(case.grounds.now)?;
    (granted <= SELF_RENEWED).then(|| format!("its lifetime of {} s is renewed over and over", granted.as_secs()))
}

/// Lifetimes up to this long that are renewed over and over are a load balancer's (PureLB: 300 s), not a lease's.
const SELF_RENEWED: Duration = Duration::from_secs(600);
