//! A state that was lost, or that is a document and says nonsense, causes no reissue and no restart by itself.
//!
//! The layout is the one in which a wrong memory does harm: a service address stands first on the uplink, and the node's
//! own carries the kernel's flag of a second address.

use serde_json::{Map, Value, json};

use super::*;
use ipguard::decide::state::State;

/// The node's own address is named by the certificate; the API server has been running for an hour.
fn layout() -> Host {
    let mut host = Host::new();
    host.link("eth0", None);
    host.add("eth0", "192.0.2.100/24");
    let own = host.add("eth0", "192.0.2.10/24");
    assert!(own.flags.secondary(), "the layout is not what it should be");
    host.default_via("eth0", Some("192.0.2.1"));
    host.certificate(&["192.0.2.10"]);
    host
}

/// The state that such a host has after a while, with something in every list that a quiet host can fill.
fn whole() -> Map<String, Value> {
    let mut host = layout();
    host.add("eth0", "198.51.100.9/24");
    host.certificate(&["192.0.2.10", "198.51.100.9"]);
    host.settle();
    host.remove("198.51.100.9");
    host.certificate(&["192.0.2.10"]);
    let (san, at) = ("192.0.2.10".parse().expect("a name"), host.now.wall);
    host.state.added.push(Added { san, at, unneeded_since: None });
    host.state.restarts.push(Restart {
        at: at - HOUR,
        service: "kubelite".into(),
        reason: "served-stale".into(),
        open: false,
    });
    host.pass_time(MINUTE);
    host.settle();
    let state = serde_json::to_value(&host.state).expect("it is data");
    let Value::Object(state) = state else { panic!("{state}") };
    for field in ["accepted", "lost", "candidates", "node_address", "choices", "added", "restarts"] {
        let empty = state[field].as_array().map_or_else(|| state[field] == json!({}), Vec::is_empty);
        assert!(!empty, "{field} is empty");
    }
    state
}

/// Names of fields that are moments.
const TIMES: [&str; 9] = ["written", "booted", "since", "at", "gone_since", "last_true", "after", "seen", "asked"];

/// Every moment becomes this one.
fn moved(value: &Value, to: i64) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| {
                let time = TIMES.contains(&name.as_str()) && value.is_number();
                (name.clone(), if time { json!(to) } else { moved(value, to) })
            })
            .collect::<Map<_, _>>()
            .into(),
        Value::Array(list) => list.iter().map(|value| moved(value, to)).collect::<Vec<_>>().into(),
        value => value.clone(),
    }
}

/// Every state that is tried, with a word for each.
fn states() -> Vec<(String, Value)> {
    let whole = whole();
    let text = Value::from(whole.clone()).to_string();
    let elsewhere = |text: &str| {
        text.replace("192.0.2.", "203.0.113.").replace("eth0", "ens9").replace("this-boot", "another-boot")
    };
    let other_host: Value = serde_json::from_str(&elsewhere(&text)).expect("still a document");
    let mut all = vec![
        ("nothing at all".to_owned(), json!({})),
        ("a version alone".to_owned(), json!({ "version": 1 })),
        ("a version of tomorrow alone".to_owned(), json!({ "version": 4_000_000_000_u32 })),
        ("the whole state".to_owned(), whole.clone().into()),
        ("addresses of another host".to_owned(), other_host.clone()),
    ];
    for (word, to) in [
        ("zero", 0),
        ("far ahead", 7_258_118_400_000),
        ("at the end of time", i64::MAX),
        ("before the beginning", i64::MIN),
        ("an hour ahead", layout().now.wall.millis() + 3_600_000),
    ] {
        all.push((format!("all times {word}"), moved(&whole.clone().into(), to)));
        all.push((format!("addresses of another host, all times {word}"), moved(&other_host, to)));
    }
    for name in whole.keys() {
        let empty = match &whole[name] {
            Value::Array(_) => json!([]),
            Value::Object(_) if name == "node_address" => json!({}),
            Value::String(_) => json!(""),
            Value::Number(_) if name == "written" => json!(0),
            Value::Number(_) => continue,
            _ => Value::Null,
        };
        let emptied: Map<_, _> = whole.clone().into_iter().chain([(name.clone(), empty)]).collect();
        all.push((format!("{name} emptied"), emptied.into()));
        let mut without = whole.clone();
        without.remove(name);
        all.push((format!("without {name}"), without.into()));
        if let Some(value) = other_host.get(name) {
            let exchanged: Map<_, _> = whole.clone().into_iter().chain([(name.clone(), value.clone())]).collect();
            all.push((format!("{name} of another host"), exchanged.into()));
            let alone = json!({ "version": 1, name.as_str(): value });
            all.push((format!("{name} of another host alone"), alone));
        }
        all.push((format!("{name} alone"), json!({ "version": 1, name.as_str(): whole[name] })));
    }
    all.push(("the version before any pass".to_owned(), {
        let unknown: Map<_, _> = whole.into_iter().chain([("version".to_owned(), json!(0))]).collect();
        unknown.into()
    }));
    all
}

/// The first step that comes of a state, in this mode, within a day of passes.
fn harm(state: &Value, mode: Mode) -> Option<String> {
    let mut host = layout();
    host.mode = mode;
    host.pass_time(MINUTE);
    host.state = match serde_json::from_value::<State>(state.clone()) {
        Ok(state) => state,
        Err(error) => return Some(format!("it is not read: {error}")),
    };
    for wait in [Duration::ZERO, Duration::from_secs(30), MINUTE * 5, HOUR, DAY] {
        host.pass_time(wait);
        let plan = host.settle();
        if !plan.steps.is_empty() || !plan.reasons.is_empty() {
            return Some(format!("after {wait:?}: {:?} {:?} {:?}", steps(&plan), plan.reasons, plan.node_address));
        }
    }
    None
}

#[test]
fn a_state_that_says_nonsense_causes_nothing() {
    let states = states();
    assert!(states.len() > 80, "{} states", states.len());
    let harms: Vec<String> = states
        .iter()
        .flat_map(|(word, state)| {
            let modes = [Mode::Daemon, Mode::OneShot, Mode::Hook];
            modes.map(|mode| harm(state, mode).map(|harm| format!("{word}, {mode:?}: {harm}")))
        })
        .flatten()
        .collect();
    assert!(harms.is_empty(), "{} faults of {} states:\n{}", harms.len(), states.len(), harms.join("\n"));
}

/// What was remembered is forgotten only where it cannot be about this host.
#[test]
fn a_node_that_was_renumbered_is_no_other_host() {
    let renumbered = |change: fn(&mut Host)| {
        let mut host = layout();
        host.pass_time(HOUR);
        host.settle();
        host.remove("192.0.2.10");
        host.remove("192.0.2.100");
        host.add("eth0", "198.51.100.20/24");
        host.default_via("eth0", Some("198.51.100.1"));
        host.boot_id = "another-boot".to_owned();
        change(&mut host);
        host.plan().state.lost.iter().map(|lost| lost.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(renumbered(|_| {}), ["192.0.2.10"], "the certificate still names the address that left");
    assert_eq!(renumbered(|h| h.certificate(&["198.51.100.20"])), NONE, "nothing here has ever been that node");
    // Written in this boot; names that are frozen; a certificate that cannot be read.
    let keeps: [fn(&mut Host); 3] = [
        |h| h.boot_id.clone_from(&h.state.boot_id),
        |h| h.cluster.template.as_mut().expect("there").as_mut().expect("readable").marker = false,
        |h| h.cluster.certificates[0].leaf = Err(broken("server.crt")),
    ];
    for (number, keep) in keeps.into_iter().enumerate() {
        let mut host = layout();
        host.pass_time(HOUR);
        host.settle();
        host.remove("192.0.2.10");
        host.remove("192.0.2.100");
        host.add("eth0", "198.51.100.20/24");
        host.certificate(&["198.51.100.20"]);
        host.boot_id = "another-boot".to_owned();
        keep(&mut host);
        assert_eq!(host.plan().state.lost.len(), 1, "case {number}");
    }
}
