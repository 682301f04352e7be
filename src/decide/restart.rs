//! Must the API server be restarted, and may it be now?
//!
//! In: what it is believed to advertise, the node address, when it started, the limits. Out: what is wanted, what holds
//! it, and the belief as it is now. The rule of this file: a restart is the last resort, for two causes only - the
//! address it advertises is no longer the node's, or it does not serve a certificate that has been in place for long.

use std::net::IpAddr;
use std::time::Duration;

use crate::config::{Config, RestartPolicy};
use crate::decide::node_address::{NodeAddresses, api_server_choice, told, was_there};
use crate::decide::plan::{Hold, HoldCode, Question, Reason, ReasonCode};
use crate::decide::state::{Advertised, Choice, State};
use crate::decide::verdict::Classification;
use crate::decide::word::{self, Told, Word, is_own};
use crate::decide::{down, limits};
use crate::facts::Observed;
use crate::facts::certificate::{CertificateRole, Leaf};
use crate::facts::cluster::{Cluster, Service, ServiceState};
use crate::facts::network::{Family, Network};
use crate::facts::time::{Now, Timestamp};

use crate::decide::plan::Mode;

/// When a service manager that gave no answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// So long a restart is given to end: kubelite takes up to 90 s to stop, and as long to start on a small machine.
pub(crate) const RESTART_TAKES: Duration = Duration::from_secs(180);

/// What the decision rests on.
pub(crate) struct Input<'a> {
    pub(crate) observed: &'a Observed,
    pub(crate) cluster: &'a Cluster,
    pub(crate) config: &'a Config,
    pub(crate) state: &'a State,
    pub(crate) classes: &'a Classification,
    pub(crate) node: &'a NodeAddresses,
    /// The server certificate as it is, before this plan's reissue.
    pub(crate) leaf: Option<&'a Leaf>,
    /// Its IP SANs that configuration does not ask for.
    pub(crate) certificate_ips: &'a std::collections::BTreeSet<IpAddr>,
    /// Holds on following addresses.
    pub(crate) address_holds: &'a [Hold],
    /// State of the API server's service, once asked.
    pub(crate) service: Option<&'a ServiceState>,
    pub(crate) now: Now,
    pub(crate) mode: Mode,
}

/// The decision.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// Why a restart is wanted.
    pub(crate) wanted: Vec<Reason>,
    /// What keeps it from being done now.
    pub(crate) holds: Vec<Hold>,
    /// What the API server is believed to advertise.
    pub(crate) advertised: Option<Advertised>,
    /// It cannot be decided without the service's state.
    pub(crate) needs_service: bool,
    /// It cannot be decided without the API server's own word.
    pub(crate) needs_word: Option<Question>,
    /// What is kept of that word.
    pub(crate) word: Option<Word>,
}

/// Decides about the API server.
pub(crate) fn decide(input: &Input<'_>) -> Decision {
    let mut decision = Decision::default();
    let replaced = advertises_what_is_gone(input, &mut decision);
    let server = input.cluster.certificates.first().map(|server| server.name.clone()).unwrap_or_default();
    let mut want = |code, certificate: &str, (since, detail): (Timestamp, String)| {
        decision.wanted.push(Reason { code, certificate: certificate.to_owned(), detail });
        since
    };
    let due = [
        replaced.map(|why| want(ReasonCode::NodeAddressReplaced, &server, why)),
        stale(input).map(|why| want(ReasonCode::ServedStale, &server, why)),
        stale_kubelet(input).map(|(name, why)| want(ReasonCode::ServedStale, &name, why)),
    ];
    let due = due.into_iter().flatten().min();
    // One that never got ready behind our restart may have failed since.
    let awaited = input.state.awaited_ready.is_some() && input.mode != Mode::Hook;
    let Some(service) = input.service else {
        decision.needs_service |= due.is_some() || awaited;
        return decision;
    };
    if service.active == Some(false) {
        // It starts with the address and the certificate that are there then.
        decision.wanted.clear();
        if let Some(down) = down::behind_our_restart(input.state, Some(service)).filter(|_| awaited) {
            decision.wanted = vec![down.reason(&server)];
            // What it would advertise is no question: it serves nobody as it is.
            let gates = gates(input, down.since).into_iter();
            decision.holds.extend(gates.filter(|hold| hold.code != HoldCode::WouldAdvertiseOther));
        }
        return decision;
    }
    let Some(due) = due else { return decision };
    match service.active {
        Some(_) => {}
        None => {
            let detail = format!("the API server's state is not known ({}): no restart", service.detail);
            // Nothing tells when it can be asked again.
            let until = Some(input.now.wall + ASK_AGAIN);
            decision.holds.push(Hold { code: HoldCode::ServiceInactive, detail, until });
        }
    }
    if decision.wanted.iter().all(|reason| reason.code.is_address_caused()) {
        let following_off = input.address_holds.iter().filter(|h| h.code != HoldCode::ReissueLimit);
        decision.holds.extend(following_off.cloned());
    }
    decision.holds.extend(under_way(input, service));
    decision.holds.extend(gates(input, due));
    decision
}

/// Whether the API server advertises an address that is no longer the node's, since when a restart for it is due, and
/// the evidence. Updates the belief.
fn advertises_what_is_gone(input: &Input<'_>, decision: &mut Decision) -> Option<(Timestamp, String)> {
    if let Some(told) = told(&input.cluster.arguments) {
        // It advertises what it was told, and the operator who changes that restarts it.
        decision.advertised = Some(Advertised::now(told));
        return None;
    }
    let node = input.node.advertised();
    let belief = input.state.advertised.clone().or_else(|| first_belief(input, node?));
    let (Some(node), Some(belief)) = (node, belief) else {
        decision.advertised.clone_from(&input.state.advertised);
        return None;
    };
    let now = input.now.wall;
    let settled = |address| Some(Advertised::now(address));
    // It still is one of the node's own: nobody loses the API by it.
    let still_primary = |address: IpAddr| is_own(input, address);
    let mut belief = belief;
    let (said, word) = word::listen(input, &belief, node);
    decision.word = word;
    match said {
        Told::Advertises(address) => {
            decision.advertised = settled(address);
            return None;
        }
        Told::Gone(address, since) if belief.address != Some(address) => {
            belief = Advertised { address: Some(address), gone_since: Some(since), last_true: None };
        }
        Told::Gone(..) => {}
        Told::Nothing => {
            if let Some(address) = belief.address.filter(|a| *a == node || still_primary(*a)) {
                decision.advertised = settled(address);
                if word::is_due(input, node) {
                    decision.needs_word = word::question(input);
                }
                // Unless it was restarted by somebody else, picked another address, and that one has left since.
                belief = picked_and_gone(input, address, decision)?;
            }
        }
    }
    let gone_since = belief.gone_since.unwrap_or_else(|| gone_since(input, belief.address, node));
    let last_true = belief.last_true.unwrap_or_else(|| last_true(input.observed, input.config, input.state, input.now));
    let belief = Advertised { address: belief.address, gone_since: Some(gone_since), last_true: Some(last_true) };
    decision.advertised = Some(belief.clone());

    let here_since = present_since(input, node).unwrap_or(now);
    let due = gone_since.max(here_since) + input.config.settle.promotion_hold;
    if now < due {
        let detail =
            format!("{node} replaces {} as node address; the API server is restarted for it at {due}", text(&belief));
        decision.holds.push(Hold { code: HoldCode::Settling, detail, until: Some(due) });
        return None;
    }
    let Some(service) = input.service else {
        decision.needs_service = true;
        if word::may_ask(input) {
            decision.needs_word = word::question(input);
        }
        return None;
    };
    let reason = Some((due, format!("the API server advertises {}, the node address is {node}", text(&belief))));
    if matches!(said, Told::Gone(..)) {
        return reason;
    }
    // A process that is younger than the belief may have picked another address. The record knows best; where it says
    // nothing certain, or the process is younger than what it knows - this pass is not in it yet - what is there now and
    // was there then.
    let (recorded, certain) = recorded_choices(input, service);
    if recorded.iter().filter_map(|choice| choice.address).any(still_primary) {
        if let [Choice { address: Some(picked), .. }] = recorded
            && certain
        {
            decision.advertised = settled(*picked);
        }
        return None;
    }
    if started_after(input, service, last_true)
        && let Some(picked) = picked_at_start(input, service, node).filter(|a| still_primary(*a))
    {
        decision.advertised = settled(picked);
        return None;
    }
    reason
}

fn text(belief: &Advertised) -> String {
    belief.address.map_or_else(|| "an address that is gone".to_owned(), |address| address.to_string())
}

/// The belief without a state: the certificate was made for the addresses of its time. It says that the node address was
/// replaced when it names an address of that family that is gone and lacks the node's.
fn first_belief(input: &Input<'_>, node: IpAddr) -> Option<Advertised> {
    let current = Advertised::now(node);
    let Some(leaf) = input.leaf else { return Some(current) };
    let named = leaf.sans.iter().filter_map(crate::facts::san::San::as_ip).any(|ip| ip == node);
    let gone: Vec<IpAddr> = input
        .certificate_ips
        .iter()
        .copied()
        .filter(|ip| Family::of(*ip) == Family::of(node) && input.classes.verdict(*ip).is_none())
        .collect();
    if named || gone.is_empty() {
        return Some(current);
    }
    let address = (gone.len() == 1).then(|| gone[0]);
    // The kernel's stamp on the newcomer is all that dates the loss.
    let gone_since = Some(present_since(input, node).unwrap_or(input.now.wall));
    Some(Advertised { address, gone_since, last_true: None })
}

/// When the belief was last known to be true, for a pass that finds it is not: when the state was written - or, under a
/// daemon that has followed every change, a moment ago.
pub(crate) fn last_true(observed: &Observed, config: &Config, state: &State, now: Now) -> Timestamp {
    let settling = now.wall - config.settle.max;
    let written = state.written.min(now.wall);
    match observed.watched_since {
        // Every process of this boot started after that, even if the clock says otherwise.
        _ if state.boot_id != observed.boot_id => written.min(now.wall - now.uptime),
        Some(since) if since < settling => written.max(settling),
        _ => written,
    }
}

/// Whether the service started after that moment: then the belief is about the process before. A process of another boot
/// than the state's started after it in any case, which the wall clock shows.
fn started_after(input: &Input<'_>, service: &ServiceState, moment: Timestamp) -> bool {
    service.started.is_some_and(|started| started_at(input, started) > moment)
}

/// A start time on the wall clock.
pub(crate) fn started_at(input: &Input<'_>, started: Duration) -> Timestamp {
    input.now.wall - input.now.uptime.saturating_sub(started)
}

/// When a service was started, once asked.
pub(crate) fn started(service: Option<&Service>, observed: &Observed, now: Now) -> Option<Timestamp> {
    let started = observed.services.get(&service?.name)?.started?;
    Some(now.wall - now.uptime.saturating_sub(started))
}

/// What the running process may have picked when it started, by the record of what it would have.
fn recorded_choices<'a>(input: &Input<'a>, service: &ServiceState) -> (&'a [Choice], bool) {
    let started = service.started.map(|started| started_at(input, started));
    started.map_or((&[], false), |started| input.state.choices_at(started))
}

/// An address that is not `believed` to be advertised, is gone, and was what the running process picked at its start.
fn picked_and_gone(input: &Input<'_>, believed: IpAddr, decision: &mut Decision) -> Option<Advertised> {
    let gone = |address: IpAddr| address != believed && input.classes.verdict(address).is_none();
    if !input.state.choices.iter().filter_map(|choice| choice.address).any(gone) {
        return None;
    }
    let Some(service) = input.service else {
        decision.needs_service = true;
        return None;
    };
    match recorded_choices(input, service) {
        ([Choice { address: Some(picked), .. }], true) if gone(*picked) => {
            Some(Advertised { address: Some(*picked), gone_since: None, last_true: None })
        }
        _ => None,
    }
}

/// When the advertised address left, for a pass that notices it first.
fn gone_since(input: &Input<'_>, address: Option<IpAddr>, node: IpAddr) -> Timestamp {
    let now = input.now.wall;
    let lost = input.classes.memory.lost.iter().find(|l| Some(l.address) == address).map_or(now, |l| l.since);
    // The daemon was there all the time. A one-shot only knows when somebody last looked: a newcomer that arrived since
    // then dates the loss by the kernel's stamp.
    match present_since(input, node) {
        Some(arrived) if input.mode != Mode::Daemon && arrived > input.state.written => lost.min(arrived),
        _ => lost,
    }
}

/// Since when an address is on the host: by the kernel's stamp, else by the state.
fn present_since(input: &Input<'_>, address: IpAddr) -> Option<Timestamp> {
    let kernel = input.observed.network.copies(address).filter_map(|copy| copy.age(input.now)).max();
    kernel.map(|age| input.now.wall - age).or_else(|| {
        let accepted = input.state.accepted.iter().find(|a| a.address == address).map(|a| a.since);
        accepted.or_else(|| input.state.candidate(address).map(|c| c.since))
    })
}

/// What a service that started after the node address was there must have picked; `None` when it started before, or when
/// that cannot be told.
fn picked_at_start(input: &Input<'_>, service: &ServiceState, node: IpAddr) -> Option<IpAddr> {
    let network: &Network = &input.observed.network;
    let started = service.started?;
    let dated = |copy: &&crate::facts::network::Address| copy.created.is_some();
    if network.copies(node).any(|copy| dated(&copy)) {
        let there = network.copies(node).filter(dated).any(|copy| was_there(copy, started, input.now));
        return if there { api_server_choice(network, input.now, Some(started)) } else { None };
    }
    // No kernel stamps (polling): the state's own record must do.
    let started_at = started_at(input, started);
    let since = input.state.accepted.iter().find(|a| a.address == node).map(|a| a.since)?;
    (since <= started_at).then_some(node)
}

/// Whether the API server still serves another certificate than the one in place, and since when that is late.
fn stale(input: &Input<'_>) -> Option<(Timestamp, String)> {
    let unconfirmed = input.state.unconfirmed.as_ref()?;
    // Somebody else has replaced the file since: what is served then is not ours to judge.
    let ours = input.leaf.is_some_and(|leaf| leaf.fingerprint.to_hex() == unconfirmed.fingerprint);
    if !unconfirmed.stale || unconfirmed.restarted || !ours {
        return None;
    }
    let since = unconfirmed.asked.unwrap_or(unconfirmed.since);
    Some((
        since,
        format!("the port still serves another certificate than the one in place since {}", unconfirmed.since),
    ))
}

/// The same about the kubelet, which loads its certificate by itself from Kubernetes 1.31 on, and before that at its start.
fn stale_kubelet(input: &Input<'_>) -> Option<(String, (Timestamp, String))> {
    let unconfirmed = input.state.unconfirmed_kubelet.as_ref().filter(|u| u.stale && !u.restarted)?;
    let facts = input.cluster.certificates.iter().find(|facts| facts.role == CertificateRole::Kubelet)?;
    let ours = facts.leaf.as_ref().is_ok_and(|leaf| leaf.fingerprint.to_hex() == unconfirmed.fingerprint);
    let since = unconfirmed.asked.unwrap_or(unconfirmed.since);
    let detail =
        format!("the kubelet still serves the certificate before the one in place since {}", unconfirmed.since);
    ours.then(|| (facts.name.clone(), (since, detail)))
}

/// Somebody's restart that was handed over and has not started the service yet: the daemon's while a one-shot looks, or
/// that of a process that was killed. A second one behind it would be for nothing.
fn under_way(input: &Input<'_>, service: &ServiceState) -> Option<Hold> {
    let begun = input.state.restarts.last().filter(|restart| restart.open)?.at;
    let until = begun + RESTART_TAKES;
    if input.now.wall >= until || started_after(input, service, begun) {
        return None;
    }
    let detail = format!("a restart of the API server was begun at {begun}; how it ends is not known yet");
    Some(Hold { code: HoldCode::RestartUnderWay, detail, until: Some(until) })
}

/// What keeps a wanted restart from being done now.
fn gates(input: &Input<'_>, due: Timestamp) -> Vec<Hold> {
    let mut holds = Vec::new();
    let now = input.now.wall;
    let restart = &input.config.restart;
    if restart.policy == RestartPolicy::Never {
        let detail = "[restart] policy = \"never\": restart the API server yourself".to_owned();
        holds.push(Hold { code: HoldCode::RestartDisabled, detail, until: None });
    }
    if input.cluster.locks.contains_key("stopped.lock") {
        let detail = "stopped.lock: the operator stopped the node, nothing is started".to_owned();
        holds.push(Hold { code: HoldCode::Stopped, detail, until: None });
    }
    if let (Some(would), Some(node)) =
        (api_server_choice(&input.observed.network, input.now, None), input.node.advertised())
        && would != node
        && told(&input.cluster.arguments).is_none()
    {
        let detail = format!(
            "a restarted API server would advertise {would}, not the node address {node}: set --advertise-address={node}"
        );
        holds.push(Hold { code: HoldCode::WouldAdvertiseOther, detail, until: None });
    }
    if let Some(until) = limits::of_restarts(input.state, restart, now) {
        let detail = match input.state.restarts_lost {
            Some(lost) if input.state.restarts.iter().all(|r| r.at <= lost) => format!(
                "how often it was restarted was lost with a damaged state file at {lost}: {} restarts within {} s are \
                 taken for used up",
                restart.limit,
                restart.window.as_secs()
            ),
            _ => format!(
                "{} restarts within {} s were used up; pauses grow up to an hour",
                restart.limit,
                restart.window.as_secs()
            ),
        };
        holds.push(Hold { code: HoldCode::RestartLimit, detail, until: Some(until) });
    }
    // Only the daemon acts on its own; whoever runs a one-shot asked for it now.
    let turn = due + jitter(&input.cluster.hostname, restart.jitter);
    if input.mode == Mode::Daemon && now < turn {
        let detail = "control planes that share one change take turns".to_owned();
        holds.push(Hold { code: HoldCode::RestartJitter, detail, until: Some(turn) });
    }
    holds
}

/// A stable delay below `most`, from the node's name (FNV-1a: spread is all that is asked of it).
fn jitter(hostname: &str, most: Duration) -> Duration {
    let hash = hostname
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let most = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(hash.checked_rem(most).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_stable_bounded_and_spread() {
        let most = Duration::from_secs(20);
        let delays: Vec<Duration> = (0..100).map(|n| jitter(&format!("node-{n}"), most)).collect();
        assert!(delays.iter().all(|d| *d < most));
        assert_eq!(jitter("node-7", most), delays[7]);
        let early = delays.iter().filter(|d| **d < most / 2).count();
        assert!((30..=70).contains(&early), "{early} of 100 in the first half");
        assert_eq!(jitter("node", Duration::ZERO), Duration::ZERO);
    }
}
