//! What speaks for waiting: locks, flags, and the things a certificate cannot be made without.
//!
//! In: the cluster's facts, the names, the limits' logs. Out: holds, each with what ends it. The rule of this file: a hold
//! stops what its reason covers and nothing more - renewal of an expiring certificate goes on under every hold about
//! addresses.

use std::time::Duration;

use crate::config::{Config, RuleClass};
use crate::decide::limits::exhausted;
use crate::decide::plan::{Hold, HoldCode};
use crate::decide::rollback::RolledBack;
use crate::decide::state::State;
use crate::decide::{names, self_made};
use crate::facts::Observed;
use crate::facts::certificate::{CertificateFacts, CertificateRole, Leaf};
use crate::facts::cluster::{Arguments, Cluster, FlagAddress, Role, Service};
use crate::facts::time::{Now, Timestamp};

/// How old `join-in-progress` may be before it counts as left behind: join.py has many exits that do not remove it.
const JOIN_STALE: Duration = Duration::from_secs(15 * 60);
/// How often a join that takes longer is looked at.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// A clock this far behind what the state file has seen is not trusted to date a certificate.
const CLOCK_SLACK: Duration = Duration::from_secs(60 * 60);

/// So much a clock that runs by itself may be off.
const CLOCK_DRIFT: Duration = Duration::from_secs(60);

/// How long after the start a clock that is behind may still be set; later it is what the operator wants.
const CLOCK_GRACE: Duration = Duration::from_secs(60 * 60);

fn hold(code: HoldCode, detail: impl Into<String>) -> Hold {
    Hold { code, detail: detail.into(), until: None }
}

/// Holds under which nothing at all is done.
pub(crate) fn on_everything(cluster: &Cluster, config: &Config, now: Now) -> Vec<Hold> {
    let mut holds = Vec::new();
    let lock = |name: &str| cluster.locks.get(name).copied();
    if let Some(error) = &cluster.locks_unreadable {
        let detail =
            format!("{error}; what the lock files forbid is not known, so everything waits until they can be read");
        holds.push(hold(HoldCode::LocksUnreadable, detail));
    }
    if lock("clustered.lock").is_some() {
        holds
            .push(hold(HoldCode::Worker, "clustered.lock: a worker node has no API server; ends when the node leaves"));
    }
    if lock("low-memory-guard.lock").is_some() {
        holds.push(hold(HoldCode::LowMemoryGuard, "low-memory-guard.lock: the control plane must not start here"));
    }
    if let Some(since) = lock("join-in-progress")
        // A lock that lies ahead by more than that is as old as one can be: the clock was set back.
        && (cluster.joining == Some(true) || now.wall.since(since).max(since.since(now.wall)) < JOIN_STALE)
    {
        // Its process may end without removing the lock, and nothing tells of that.
        let until = Some((since + JOIN_STALE).max(now.wall + LOOK_AGAIN).min(now.wall + JOIN_STALE));
        let detail = "join-in-progress: a node joins; everything waits until the lock is removed";
        holds.push(Hold { code: HoldCode::JoinInProgress, detail: detail.to_owned(), until });
    }
    if let Some(flag) = cluster.certificates.first().and_then(|server| server.elsewhere.as_ref()) {
        // The argument files are writable by a group: what root writes must not follow them out of its folder.
        let detail = format!("{flag}: no file of the certificate folder that may be replaced; left alone");
        holds.push(hold(HoldCode::CertificateElsewhere, detail));
    }
    if let Some(conflict) = conflict(&cluster.arguments, config) {
        holds.push(conflict);
    }
    holds
}

/// Another guard runs, and it is neither us nor what started us. `until` is when a takeover turns it off, where that waits.
pub(crate) fn another_guard(services: &[Service], observed: &Observed, until: Option<Timestamp>) -> Option<Hold> {
    let (guard, state) = services
        .iter()
        .filter(|service| service.role == Role::OtherGuard)
        .filter_map(|service| Some((service, observed.services.get(&service.name)?)))
        .find(|(_, state)| state.active == Some(true))?;
    let is_us = state.main_process.is_some_and(|process| observed.lineage.contains(&process));
    (!is_us).then(|| {
        let ends = match (&observed.takeover, until) {
            (Some(Ok(_)), None) => "it is turned off, as `ipguard takeover` ordered",
            (Some(Ok(_)), Some(_)) => "it was turned off too often, and is again at the time given",
            _ => "`ipguard takeover` turns it off",
        };
        let detail = format!("{} runs and would undo what is done here: {ends}", guard.unit);
        Hold { code: HoldCode::AnotherGuardActive, detail, until }
    })
}

/// A lock that no longer holds anything.
pub(crate) fn left_behind(cluster: &Cluster, now: Now) -> Option<String> {
    let since = cluster.locks.get("join-in-progress")?;
    let stale = cluster.joining != Some(true) && now.wall.since(*since) >= JOIN_STALE;
    stale.then(|| format!("join-in-progress was left behind at {since} and is ignored: remove it"))
}

/// A pin and an exclude on the same value. A rule about a whole network or link is no contradiction: the pin is the
/// exception to it.
fn conflict(arguments: &Arguments, config: &Config) -> Option<Hold> {
    let (pin, who) = names::pins(arguments, config).find(|(pin, _)| {
        config.addresses.rules.iter().any(|rule| {
            let exactly = rule.address == Some(*pin)
                || rule.cidr.is_some_and(|net| net.prefix_len() == net.max_prefix_len() && net.contains(pin));
            exactly && rule.class != RuleClass::Primary
        })
    })?;
    let detail = format!("{pin} is pinned by {who} and excluded by an [[addresses.rule]]: remove one of the two");
    Some(hold(HoldCode::ConfigurationConflict, detail))
}

/// Holds on following addresses: on reissues and restarts that only the host's addresses ask for.
pub(crate) fn on_addresses(cluster: &Cluster, state: &State, config: &Config, now: Now) -> Vec<Hold> {
    let mut holds = Vec::new();
    let given = |flag: &FlagAddress, name: &str| match flag {
        FlagAddress::Absent => None,
        FlagAddress::Wildcard => Some(name.to_owned()),
        FlagAddress::Address(value) => Some(format!("{name}={value}")),
        FlagAddress::Unparsable(text) => Some(format!("{name}={text}")),
    };
    let flags: Vec<String> =
        [given(&cluster.arguments.advertise, "--advertise-address"), given(&cluster.arguments.bind, "--bind-address")]
            .into_iter()
            .flatten()
            .collect();
    if !flags.is_empty() {
        let detail = format!("{} is given: addresses are not followed until it is removed", flags.join(" and "));
        holds.push(hold(HoldCode::PinnedArgs, detail));
    }
    if !cluster.arguments.switches_known {
        let detail = "the API server's arguments cannot be read: addresses are not followed until they can";
        holds.push(hold(HoldCode::ArgsUnreadable, detail));
    }
    if cluster.locks.contains_key("no-cert-reissue") {
        let detail = "no-cert-reissue: addresses are not followed until the lock is removed";
        holds.push(hold(HoldCode::ReissueDisabled, detail));
    }
    if let Some(until) = exhausted(
        state.reissues.iter().filter(|r| r.address_caused).map(|r| r.at),
        config.certificate.reissue_limit,
        Duration::from_secs(60 * 60),
        now.wall,
    ) {
        let detail = format!("{} reissues for addresses within an hour", config.certificate.reissue_limit);
        holds.push(Hold { code: HoldCode::ReissueLimit, detail, until: Some(until) });
    }
    holds
}

/// Holds on making a certificate: what is missing to sign it. `clock` is what is known about it.
pub(crate) fn on_issuing(facts: &CertificateFacts, state: &State, now: Now, clock: Clock) -> Vec<Hold> {
    let mut holds = Vec::new();
    match &facts.authority {
        Err(error) => holds.push(hold(HoldCode::CaMissing, format!("{error}; a CA is never made here"))),
        Ok(authority) => match authority.signer.and_then(|i| authority.certificates.get(i)) {
            None => {
                let why = facts.authority_key.as_ref().err().map_or_else(
                    || "the CA key belongs to none of the CA certificates".to_owned(),
                    ToString::to_string,
                );
                holds.push(hold(HoldCode::CaKeyMissing, format!("{why}; a CA key is never made here")));
            }
            Some(signer) if signer.cannot_sign.is_some() => {
                let why = signer.cannot_sign.unwrap_or_default();
                holds.push(hold(HoldCode::CaCannotSign, format!("the CA certificate cannot sign: {why}")));
            }
            Some(signer) if now.wall >= signer.not_after => {
                holds.push(hold(HoldCode::CaNotValid, format!("the CA expired at {}", signer.not_after)));
            }
            // A clock that nobody has set is more likely to be wrong than the CA.
            Some(signer) if now.wall < signer.not_before && clock != Clock::Behind => {
                let detail = format!("the CA is not valid before {}; is the clock right?", signer.not_before);
                holds.push(Hold { code: HoldCode::CaNotValid, detail, until: Some(signer.not_before) });
            }
            Some(_) => {}
        },
    }
    if clock == Clock::Unknown && clock_is_behind(state, now, None) {
        let detail = format!("the clock is behind {}, which this host has already seen", state.written);
        let until = Some(now.wall + CLOCK_GRACE.saturating_sub(now.uptime));
        holds.push(Hold { code: HoldCode::ClockUnsynchronised, detail, until });
    }
    holds
}

/// Whether the host started with a clock that is behind what it has already seen, and may yet be set. A clock that the
/// kernel calls synchronised is right; one that it calls unsynchronised is not given the benefit of an hour.
pub(crate) fn clock_is_behind(state: &State, now: Now, synchronised: Option<bool>) -> bool {
    let slack = match synchronised {
        Some(true) => return false,
        Some(false) => CLOCK_DRIFT,
        None => CLOCK_SLACK,
    };
    now.wall + slack < state.written && now.uptime < CLOCK_GRACE
}

/// What is known about the clock when a certificate is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The kernel says that it is synchronised, or that it is not and nothing speaks against its time.
    Plausible,
    /// The kernel says that nobody has set it, and it is before something that has already happened.
    Behind,
    /// The kernel does not say.
    Unknown,
}

impl Clock {
    /// Judges it by the CA's start and by what this host has seen.
    pub(crate) fn judge(facts: &CertificateFacts, state: &State, now: Now, synchronised: Option<bool>) -> Self {
        let before_authority = facts.signer().is_some_and(|signer| now.wall < signer.not_before);
        // By this clock the certificate in place is good: then the clock is, and the CA is one that was put there early.
        let good = |leaf: &Leaf| (leaf.not_before..leaf.not_after).contains(&now.wall);
        let before_authority = before_authority && !facts.leaf.as_ref().is_ok_and(good);
        match synchronised {
            None => Self::Unknown,
            Some(false) if before_authority || clock_is_behind(state, now, synchronised) => Self::Behind,
            Some(_) => Self::Plausible,
        }
    }
}

/// Holds on what only the dates ask for, while the clock says little about them.
pub(crate) fn on_dates(facts: &CertificateFacts, state: &State, now: Now, clock: Clock) -> Option<Hold> {
    if clock != Clock::Behind {
        return None;
    }
    let authority = facts.signer().map(|signer| signer.not_before).filter(|at| now.wall < *at);
    let detail = match authority {
        Some(at) => format!("the clock is not synchronised and before {at}, when the CA begins; expiry waits"),
        None => format!(
            "the clock is not synchronised and behind {}, which this host has already seen; expiry waits",
            state.written
        ),
    };
    Some(hold(HoldCode::ClockUnsynchronised, detail))
}

/// An earlier certificate was put back, and a pass that goes by its names would undo that.
pub(crate) fn rolled_back(rollback: &RolledBack) -> Hold {
    let (leaf, at) = (rollback.fingerprint.get(..16).unwrap_or(&rollback.fingerprint), rollback.at);
    let cause = rollback.cause.as_ref().map_or_else(String::new, |cause| {
        format!(", because the API server could not use the one behind it ({cause})")
    });
    let detail = format!(
        "{} was rolled back to {leaf} at {at}{cause}: no reissue for names until `ipguard renew` or a changed \
         configuration",
        rollback.certificate
    );
    hold(HoldCode::RolledBack, detail)
}

/// The certificate is by somebody else's CA and not shaped like the distribution's: the operator's own, left alone.
pub(crate) fn foreign_issuer(cluster: &Cluster, facts: &CertificateFacts, now: Now) -> Option<Hold> {
    let (leaf, authority) = (facts.leaf.as_ref().ok()?, facts.authority.as_ref().ok()?);
    let subject = if facts.role == CertificateRole::ApiServer {
        &cluster.template.as_ref()?.as_ref().ok()?.subject
    } else {
        &facts.subject
    };
    let ours = facts.issued_by_authority != Some(false)
        || authority.certificates.iter().any(|ca| ca.subject == leaf.issuer)
        || self_made::by_kubelet(facts)
        || resembles(&leaf.subject, subject.iter().map(|(_, value)| value.as_str()));
    // One that is over verifies against no bundle, and serves nobody: it is not what somebody wants to keep.
    if now.wall >= leaf.not_after {
        return None;
    }
    let why = if facts.issued_by_foreign && facts.issued_by_authority == Some(false) {
        "issued by another CA, which foreign_bundle names or may name"
    } else if !ours {
        "issued by another CA with a subject of its own"
    } else {
        return None;
    };
    Some(hold(HoldCode::ForeignIssuer, format!("{}: {why}; left alone", facts.path.display())))
}

/// Whether all values appear in the DER of a name, in order. Enough to recognise what the distribution's template makes
/// without decoding string types.
fn resembles<'a>(der: &[u8], values: impl Iterator<Item = &'a str>) -> bool {
    let mut rest = der;
    for value in values {
        let Some(at) = rest.windows(value.len().max(1)).position(|window| window == value.as_bytes()) else {
            return false;
        };
        rest = &rest[at + value.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_recognised_by_its_values_in_order() {
        let der = b"0\x0bGB..Canonical..Canonical..127.0.0.1";
        assert!(resembles(der, ["GB", "Canonical", "Canonical", "127.0.0.1"].into_iter()));
        assert!(!resembles(der, ["GB", "Canonical", "Canonical", "Canonical"].into_iter()));
        assert!(!resembles(der, ["127.0.0.1", "GB"].into_iter()));
    }
}
