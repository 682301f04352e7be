//! The judge. In: what a scenario expects and what was seen. Out: [`Judgement`]. Pure, so that it can be tested
//! without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use crate::scenario::{CertState, Scenario};
use crate::stage::authority::canonical;
use crate::stage::services::{CLUSTER_AGENT, Call, KUBELITE};

/// What was seen of one run.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// `explain --format json` at the end.
    pub(crate) explain: Value,
    /// Names of the certificate on disk at the end; `None` where it is no certificate.
    pub(crate) sans: Option<BTreeSet<String>>,
    /// How often server.crt was replaced.
    pub(crate) reissues: usize,
    /// What was wrong with it in between.
    pub(crate) broken: Vec<String>,
    /// Calls of the service stand-ins.
    pub(crate) calls: Vec<Call>,
    /// Whether the port serves the leaf on disk; `None` while nothing listens.
    pub(crate) served: Option<bool>,
    /// Verdicts of the one-shots that were played, in order.
    pub(crate) verdicts: Vec<String>,
    /// Kernel-made privacy addresses at the end.
    pub(crate) temporary: Vec<IpAddr>,
}

/// The judgement.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judgement {
    /// What is wrong.
    pub(crate) failures: Vec<String>,
    /// What could be better.
    pub(crate) blemishes: Vec<String>,
}

/// Compares.
pub(crate) fn judge(scenario: &Scenario, seen: &Seen) -> Judgement {
    let mut judgement = Judgement::default();
    classes(scenario, seen, &mut judgement);
    names(scenario, seen, &mut judgement);
    reissues(scenario, seen, &mut judgement);
    restarts(scenario, seen, &mut judgement);
    forbidden_calls(seen, &mut judgement);
    judgement.failures.extend(seen.broken.iter().cloned());
    if seen.served == Some(false) {
        judgement.failures.push("the port serves another certificate than the one on disk".to_owned());
    }
    judgement
}

/// Class names of `explain`, best first: an address on several links counts under the best.
const CLASSES: [&str; 5] = ["primary", "secondary", "lb-owned", "ignored", "unsettled"];

fn classes(scenario: &Scenario, seen: &Seen, judgement: &mut Judgement) {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let Some(addresses) = seen.explain["addresses"].as_array() else {
        judgement.failures.push("explain lists no addresses".to_owned());
        return;
    };
    for entry in addresses {
        // A pinned address that is absent from the host is primary and says nothing about the host.
        if entry["interface"].as_str().is_none_or(str::is_empty) {
            continue;
        }
        let (address, class) = (entry["address"].as_str().unwrap_or_default(), entry["class"].as_str());
        let Some(rank) = class.and_then(|class| CLASSES.iter().position(|known| *known == class)) else {
            judgement.failures.push(format!("explain says of {address}: class {}", entry["class"]));
            continue;
        };
        let best = found.entry(canonical(address)).or_insert(rank);
        *best = rank.min(*best);
    }

    let expect = &scenario.expect;
    let mut expected: BTreeMap<String, usize> = BTreeMap::new();
    for (rank, listed) in [&expect.primary, &expect.secondary, &expect.lb_owned, &expect.ignored].iter().enumerate() {
        for name in *listed {
            if let Some(prefix) = name.strip_prefix("temporary:") {
                let inside: Vec<_> = seen.temporary.iter().filter(|address| within(prefix, **address)).collect();
                if inside.is_empty() {
                    judgement.failures.push(format!("the kernel made no privacy address in {prefix}"));
                }
                expected.extend(inside.iter().map(|address| (address.to_string(), rank)));
            } else {
                expected.insert(canonical(name), rank);
            }
        }
    }

    for (address, rank) in &expected {
        let wanted = CLASSES[*rank];
        match found.get(address).map(|rank| CLASSES[*rank]) {
            None => judgement.failures.push(format!("{address} should be {wanted}, explain does not list it")),
            Some(class) if class == wanted => {}
            Some(class) if class != "primary" && class != "unsettled" && wanted != "primary" => {
                judgement.blemishes.push(format!("{address} should be {wanted}, is {class}"));
            }
            Some(class) => judgement.failures.push(format!("{address} should be {wanted}, is {class}")),
        }
    }
    for (address, rank) in found {
        if expected.contains_key(&address) {
            continue;
        }
        if let class @ ("primary" | "unsettled") = CLASSES[rank] {
            judgement.failures.push(format!("{address} should not be {class}"));
        }
    }
}

fn names(scenario: &Scenario, seen: &Seen, judgement: &mut Judgement) {
    let expect = &scenario.expect;
    let Some(sans) = &seen.sans else {
        judgement.failures.push("no usable certificate at the end".to_owned());
        return;
    };
    let set = |names: &[String]| names.iter().map(|name| canonical(name)).collect::<BTreeSet<_>>();
    let after = set(&expect.sans_after);
    let mut allowed = after.clone();
    if seen.reissues > 0 {
        // Names that ipguard did not put there are kept.
        allowed.extend(set(&scenario.cert_sans));
    }
    complain(
        judgement,
        "missing in the certificate",
        after.union(&set(&expect.must_include)).filter(|name| !sans.contains(*name)),
    );
    complain(judgement, "too much in the certificate", sans.difference(&allowed));
    let mut excluded = set(&expect.must_exclude);
    for prefix in expect.must_exclude.iter().filter_map(|name| name.strip_prefix("temporary:")) {
        let inside = seen.temporary.iter().filter(|address| within(prefix, **address));
        excluded.extend(inside.map(ToString::to_string));
    }
    complain(judgement, "must not be in the certificate", sans.intersection(&excluded));
}

fn complain<'a>(judgement: &mut Judgement, what: &str, names: impl Iterator<Item = &'a String>) {
    let names: Vec<&str> = names.map(String::as_str).collect();
    if !names.is_empty() {
        judgement.failures.push(format!("{what}: {}", names.join(", ")));
    }
}

fn reissues(scenario: &Scenario, seen: &Seen, judgement: &mut Judgement) {
    let expect = &scenario.expect;
    if expect.reissue != (seen.reissues > 0) {
        judgement.failures.push(format!(
            "reissue should be {}, the certificate was replaced {} times",
            expect.reissue, seen.reissues
        ));
    } else if seen.reissues > expect.max_reissues {
        judgement.failures.push(format!("{} reissues, at most {}", seen.reissues, expect.max_reissues));
    }
}

fn restarts(scenario: &Scenario, seen: &Seen, judgement: &mut Judgement) {
    let expect = &scenario.expect;
    let of = |unit| seen.calls.iter().filter(|call| call.restarted() == Some(unit)).count();
    let api_server = of(KUBELITE);
    // A one-shot that says restart has to carry it out itself.
    let said = seen.verdicts.iter().filter(|verdict| verdict.contains("restart")).count();
    if said > api_server {
        judgement.failures.push(format!("verdicts say {said} restarts, {api_server} were carried out"));
    }
    if let Some(restart) = expect.restart
        && restart != (api_server > 0)
    {
        judgement
            .failures
            .push(format!("restart should be {restart}, the API server was restarted {api_server} times"));
    }
    if api_server > expect.max_restarts {
        judgement.failures.push(format!("{api_server} restarts, at most {}", expect.max_restarts));
    }
    let cluster_agent = of(CLUSTER_AGENT);
    let active_before = matches!(scenario.cert_state, CertState::Valid | CertState::SignedByOtherCa);
    if seen.reissues > 0 && cluster_agent == 0 && active_before {
        judgement.failures.push("the cluster-agent still has the certificate before".to_owned());
    }
    if cluster_agent > seen.reissues + api_server {
        judgement
            .failures
            .push(format!("{cluster_agent} restarts of the cluster-agent for {} reissues", seen.reissues));
    }
}

/// Whatever happens: nothing but questions and restarts of the two services.
fn forbidden_calls(seen: &Seen, judgement: &mut Judgement) {
    for call in &seen.calls {
        if !call.only_asks() && call.restarted().is_none() {
            judgement.failures.push(format!("must never be called: {} {}", call.program, call.arguments.join(" ")));
        }
    }
}

fn within(prefix: &str, address: IpAddr) -> bool {
    prefix.parse::<ipnet::IpNet>().is_ok_and(|net| net.contains(&address))
}
