//! The judge: what is expected passes, and every violation is found.

use std::time::Duration;

use serde_json::{Value, json};

use crate::expect::{Judgement, Seen, judge};
use crate::scenario::Scenario;
use crate::stage::services::Call;

fn scenario() -> Scenario {
    serde_json::from_value(json!({
        "id": "x", "title": "x", "mode": "watch", "links": [], "steps": [],
        "cert_sans": ["127.0.0.1", "192.0.2.10"],
        "expect": {
            "primary": ["192.0.2.57"], "secondary": ["192.0.2.100"],
            "sans_after": ["127.0.0.1", "192.0.2.57"], "must_exclude": ["192.0.2.100"],
            "reissue": true, "restart": true, "max_restarts": 1
        }
    }))
    .expect("a valid scenario")
}

fn explained(list: &[(&str, &str)]) -> Value {
    let list: Vec<Value> = list
        .iter()
        .map(|(address, class)| json!({ "address": address, "class": class, "interface": "eth0" }))
        .collect();
    json!({ "version": 1, "addresses": list })
}

fn call(line: &str) -> Call {
    let mut words = line.split(' ').map(str::to_owned);
    Call { at: Duration::ZERO, program: words.next().unwrap_or_default(), arguments: words.collect() }
}

fn good() -> Seen {
    Seen {
        explain: explained(&[("192.0.2.57", "primary"), ("192.0.2.100", "secondary"), ("127.0.0.1", "ignored")]),
        sans: Some(["127.0.0.1", "192.0.2.57"].map(str::to_owned).into()),
        reissues: 1,
        calls: vec![
            call("systemctl show --property=Id a.service"),
            call("snap restart microk8s.daemon-cluster-agent"),
            call("snap restart microk8s.daemon-kubelite"),
        ],
        served: Some(true),
        ..Seen::default()
    }
}

fn failures(change: impl FnOnce(&mut Seen)) -> Vec<String> {
    let mut seen = good();
    change(&mut seen);
    judge(&scenario(), &seen).failures
}

#[test]
fn what_is_expected_passes() {
    assert_eq!(judge(&scenario(), &good()), Judgement::default());
    // Names from before may stay when a certificate is made anyway.
    assert_eq!(failures(|seen| _ = seen.sans.as_mut().map(|sans| sans.insert("192.0.2.10".to_owned()))), [""; 0]);
}

#[test]
fn mixing_classes_that_are_no_san_is_a_blemish() {
    let mut seen = good();
    seen.explain = explained(&[("192.0.2.57", "primary"), ("192.0.2.100", "lb-owned")]);
    let judgement = judge(&scenario(), &seen);
    assert_eq!((judgement.failures.len(), judgement.blemishes.len()), (0, 1));
}

#[test]
fn every_violation_is_found() {
    type Change = fn(&mut Seen);
    let cases: [(&str, Change); 14] = [
        ("should be secondary, is primary", |seen| {
            seen.explain = explained(&[("192.0.2.57", "primary"), ("192.0.2.100", "primary")]);
        }),
        ("should be primary, is secondary", |seen| {
            seen.explain = explained(&[("192.0.2.57", "secondary"), ("192.0.2.100", "secondary")]);
        }),
        ("explain does not list it", |seen| seen.explain = explained(&[("192.0.2.57", "primary")])),
        ("should not be unsettled", |seen| {
            seen.explain =
                explained(&[("192.0.2.57", "primary"), ("192.0.2.100", "secondary"), ("192.0.2.58", "unsettled")]);
        }),
        ("missing in the certificate", |seen| seen.sans = Some(["127.0.0.1"].map(str::to_owned).into())),
        ("must not be in", |seen| _ = seen.sans.as_mut().map(|sans| sans.insert("192.0.2.100".to_owned()))),
        ("too much in", |seen| _ = seen.sans.as_mut().map(|sans| sans.insert("192.0.2.99".to_owned()))),
        ("reissue should be true", |seen| seen.reissues = 0),
        ("2 reissues, at most 1", |seen| seen.reissues = 2),
        ("restart should be true", |seen| seen.calls.truncate(2)),
        ("2 restarts, at most 1", |seen| seen.calls.push(call("snap restart microk8s.daemon-kubelite"))),
        ("must never be called", |seen| seen.calls.push(call("snap stop microk8s.daemon-kubelite"))),
        ("must never be called", |seen| seen.calls.push(call("snap restart microk8s"))),
        ("serves another certificate", |seen| seen.served = Some(false)),
    ];
    for (expected, change) in cases {
        let found = failures(change);
        assert!(found.iter().any(|failure| failure.contains(expected)), "{expected}: {found:?}");
    }
}

#[test]
fn a_verdict_of_restart_that_is_not_carried_out_is_a_failure() {
    let found = failures(|seen| seen.verdicts = vec!["reissue-and-restart".to_owned(), "restart".to_owned()]);
    assert_eq!(found, ["verdicts say 2 restarts, 1 were carried out"]);
}
