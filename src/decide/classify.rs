//! What every address on the host is: primary, secondary, a load balancer's, or not to be looked at.
//!
//! In: [`Grounds`] - one settled snapshot, what the operator and the cluster say, what the last pass accepted, `now`.
//! Out: one [`Verdict`] per address value, with the rule that decided and what it saw. The rule of this file: the first of
//! the [`crate::decide::rules`] with an opinion decides, and an address that none describes is never primary.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::decide::case::{Case, Grounds};
use crate::decide::incumbents::Memory;
use crate::decide::promotion;
use crate::decide::rules::{ALONE, COMPANY, NEWCOMER, Rule, UNANNOUNCED, newcomer};
use crate::decide::verdict::{Class, Classification, Judgement, Verdict};
use crate::facts::network::{Address, Family};

/// All labels a verdict may carry, in the order they are asked.
pub const LABELS: &[&str] = &[
    "unsettled",
    "pinned",
    "operator-rule",
    "by-value",
    "cluster-network",
    "dad-failed",
    "protocol",
    "known-link",
    UNANNOUNCED,
    "temporary",
    "incumbent",
    "link-kind",
    "deprecated",
    "beside-holder",
    "host-prefix",
    "second-of-subnet",
    "dynamic-ipv6",
    "held-back",
    "promoted",
    "primary",
    "last-resort",
    "unclassified",
];

/// Classifies every address of the snapshot.
pub fn classify(grounds: &Grounds<'_>) -> Classification {
    let network = grounds.network;
    let mut case = Case { grounds, memory: Memory::default(), standing: Vec::new() };
    // Rule 4 asks for the incumbents already, and which addresses they are depends on the rules about a single copy:
    // until that is known, each that may be one counts.
    case.memory.incumbents = if grounds.state.is_known() {
        let state = grounds.state;
        state.accepted.iter().map(|a| a.address).chain(state.lost.iter().map(|l| l.address)).collect()
    } else {
        grounds.certificate_ips.clone()
    };
    case.memory = Memory::recall(&case);

    let mut judged: Vec<Option<Judgement>> =
        network.addresses.iter().map(|a| first(&case, ALONE, a).or_else(|| first(&case, NEWCOMER, a))).collect();
    case.standing = network
        .addresses
        .iter()
        .zip(&judged)
        .filter(|(a, j)| j.as_ref().is_none_or(|j| j.class == Class::Primary || holds_its_place(&case, a)))
        .map(|(a, _)| a)
        .collect();
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() {
            *verdict = first(&case, COMPANY, address);
        }
    }
    // Who was secondary until now competes only for a link that nobody else holds: decide the others first.
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() && !promotion::was_passed_over(&case, address.value) {
            *verdict = Some(newcomer(&case, address));
        }
    }
    let held: BTreeSet<(u32, Family)> = network
        .addresses
        .iter()
        .zip(&judged)
        .filter(|(a, j)| j.as_ref().is_some_and(|j| j.class == Class::Primary || holds_its_place(&case, a)))
        .map(|(a, _)| (a.link, a.family()))
        .collect();
    let mut result = Classification::default();
    for (address, verdict) in network.addresses.iter().zip(&mut judged) {
        if verdict.is_none() {
            let held = held.contains(&(address.link, address.family()));
            *verdict = Some(promotion::judge(&case, address, held, &mut result));
        }
    }
    last_resort(&case, &mut judged);
    result.dad_failed = network
        .addresses
        .iter()
        .filter(|a| a.flags.dad_failed() && case.memory.incumbents.contains(&a.value))
        .map(|a| a.value)
        .collect();
    result.verdicts = best_of_each_value(&case, judged);
    result.memory = case.memory;
    result
}

/// The first row with an opinion.
pub(crate) fn first(case: &Case<'_>, rules: &[Rule], address: &Address) -> Option<Judgement> {
    rules.iter().find_map(|rule| {
        (rule.judge)(case, address).map(|(class, evidence)| Judgement { class, rule: rule.label, evidence })
    })
}

/// Whether the rules about a single copy leave it standing.
pub(crate) fn stands_alone(case: &Case<'_>, address: &Address) -> bool {
    first(case, ALONE, address).is_none_or(|j| j.class == Class::Primary)
}

/// Whether a copy keeps the place of an address that was accepted: one that stands, or is only unusable for a moment.
/// A copy on a service link (kube-ipvs0) does not.
pub(crate) fn keeps_place(case: &Case<'_>, address: &Address) -> bool {
    first(case, ALONE, address).is_none_or(|j| {
        matches!(j.class, Class::Primary | Class::Unsettled) || j.rule == UNANNOUNCED || j.rule == "dad-failed"
    })
}

/// An incumbent, even one that is unusable for a moment: nothing beside it takes its place meanwhile.
fn holds_its_place(case: &Case<'_>, address: &Address) -> bool {
    case.memory.incumbents.contains(&address.value) && keeps_place(case, address)
}

fn best_of_each_value(case: &Case<'_>, judged: Vec<Option<Judgement>>) -> Vec<Verdict> {
    let network = case.grounds.network;
    let mut best: Vec<(Verdict, u32)> = Vec::with_capacity(judged.len());
    let mut at: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for (address, judgement) in network.addresses.iter().zip(judged) {
        let Some(judgement) = judgement else { continue };
        let link = network.links.get(&address.link);
        let verdict = Verdict {
            address: address.value,
            prefix_len: address.prefix_len,
            interface: network.link_name(address.link),
            link_kind: link.and_then(|l| l.kind.clone()),
            class: judgement.class,
            rule: judgement.rule,
            evidence: judgement.evidence,
        };
        match at.get(&address.value) {
            Some(&index) => {
                // Two copies of one class: the earlier rule and the older link speak, not the order of the dump.
                let rank = |(v, link): &(Verdict, u32)| {
                    (v.class, LABELS.iter().position(|l| *l == v.rule), *link, v.prefix_len)
                };
                let candidate = (verdict, address.link);
                if rank(&candidate) < rank(&best[index]) {
                    best[index] = candidate;
                }
            }
            None => {
                at.insert(address.value, best.len());
                best.push((verdict, address.link));
            }
        }
    }
    let mut best: Vec<Verdict> = best.into_iter().map(|(verdict, _)| verdict).collect();
    for (&address, who) in case.grounds.pins {
        if !at.contains_key(&address) {
            best.push(Verdict {
                address,
                prefix_len: Family::of(address).bits(),
                interface: String::new(),
                link_kind: None,
                class: Class::Primary,
                rule: "pinned",
                evidence: format!("pinned by {who}; not on the host"),
            });
        }
    }
    best
}

/// 11, last resort: a first certificate without any node address serves nobody, and an ageing address is still one.
fn last_resort(case: &Case<'_>, judged: &mut [Option<Judgement>]) {
    let any_primary = judged.iter().flatten().any(|j| j.class == Class::Primary) || !case.grounds.pins.is_empty();
    if any_primary {
        return;
    }
    for (address, judgement) in case.grounds.network.addresses.iter().zip(judged) {
        let Some(judgement) = judgement else { continue };
        let ageing = judgement.rule == "deprecated" && judgement.class == Class::Secondary;
        if ageing && case.carries_any_default(address.link) {
            judgement.class = Class::Primary;
            judgement.rule = "last-resort";
            "deprecated, but nothing else is primary and its link carries a default route"
                .clone_into(&mut judgement.evidence);
        }
    }
}
