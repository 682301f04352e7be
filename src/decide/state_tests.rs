//! Back-off, and what a state file of another version means.

use super::*;

#[test]
fn back_off_doubles_up_to_an_hour() {
    let first = Duration::from_secs(10);
    let steps: Vec<u64> = (1..=12).map(|n| back_off(first, n).as_secs()).collect();
    assert_eq!(steps, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
    assert_eq!(back_off(first, u32::MAX), Duration::from_secs(3600));
}

#[test]
fn the_moment_of_writing_is_no_news() {
    let before = State { version: 1, ..State::default() };
    let after = State { written: Timestamp::from_seconds(9), ..before.clone() };
    assert!(before.says_the_same(&after));
    assert!(!before.says_the_same(&State { boot_id: "other".into(), ..before.clone() }));
}

#[test]
fn an_older_or_newer_file_is_read() {
    let older = r#"{"version":1,"accepted":[{"address":"192.0.2.10","link":"eth0","since":0}]}"#;
    let older: State = serde_json::from_str(older).expect("fields have defaults");
    assert!(older.is_known());
    let emptied: State = serde_json::from_str(r#"{"version":1}"#).expect("fields have defaults");
    assert!(!emptied.is_known(), "it says nothing of what was the node's own");
    let newer = r#"{"version":7,"a_field_of_tomorrow":[1,2],"node_address":{"ipv4":"192.0.2.10"}}"#;
    let newer: State = serde_json::from_str(newer).expect("unknown fields are ignored");
    assert_eq!(newer.node_address[&Family::Ipv4].to_string(), "192.0.2.10");
}

#[test]
fn a_service_has_the_certificate_when_it_started_later_or_in_a_later_boot() {
    let reissue = Reissue {
        at: Timestamp::default(),
        address_caused: true,
        fingerprint: "aa".into(),
        boot_id: "this".into(),
        uptime_ms: Some(1500),
    };
    let state = State { reissues: vec![reissue.clone()], ..State::default() };
    assert_eq!(state.in_place_since("this"), Some(Duration::from_millis(1500)));
    assert_eq!(state.in_place_since("next"), Some(Duration::ZERO));
    let unknown = State { reissues: vec![Reissue { uptime_ms: None, ..reissue }], ..State::default() };
    assert_eq!(unknown.in_place_since("next"), None, "an older file does not say when");
}

#[test]
fn an_issue_that_was_interrupted_is_settled_by_what_is_in_place() {
    let issuing = Issuing {
        certificate: "server".into(),
        before: "aa".into(),
        at: Timestamp::from_seconds(7),
        added: vec!["192.0.2.11".parse().expect("a name")],
        address_caused: true,
        services: vec!["cluster-agent".into()],
        served: true,
        shown_by_kubelet: false,
        rolled_back: None,
    };
    let state = State { version: 1, issuing: Some(issuing.clone()), ..State::default() };
    // No certificate there: it was never put in place.
    assert_eq!(state.resumed(&[]), State { version: 1, ..State::default() });
    let mut issued = state;
    let leaf = Fingerprint([7; 32]);
    issued.issued(&issuing, leaf, &issuing.added.iter().cloned().collect(), InPlace::default());
    assert_eq!(issued.owed_restarts, ["cluster-agent"]);
    assert_eq!((issued.added.len(), issued.reissues.len(), issued.issuing.clone()), (1, 1, None));
    // The restart was made; hearing of the same leaf once more makes none of it due again.
    issued.owed_restarts.clear();
    let before = issued.clone();
    issued.issued(&issuing, leaf, &SanSet::new(), InPlace::default());
    assert_eq!(issued, before);
}

/// Nobody is asked or restarted for a certificate that no port shows, and it says nothing about the server's names.
#[test]
fn what_is_put_back_beside_the_servers_touches_nothing_of_it() {
    let rolled_back = RolledBack {
        at: Timestamp::from_seconds(7),
        certificate: "kubelet".into(),
        fingerprint: Fingerprint([7; 32]).to_hex(),
        configuration: String::new(),
        cause: None,
    };
    let issuing = Issuing {
        certificate: "kubelet".into(),
        before: "aa".into(),
        at: Timestamp::from_seconds(7),
        added: Vec::new(),
        address_caused: false,
        services: Vec::new(),
        served: false,
        shown_by_kubelet: false,
        rolled_back: Some(rolled_back.clone()),
    };
    let name: San = "192.0.2.11".parse().expect("a name");
    let before = State {
        added: vec![Added { san: name, at: Timestamp::default(), unneeded_since: None }],
        owed_restarts: vec!["cluster-agent".into()],
        issuing: Some(issuing.clone()),
        ..State::default()
    };
    let mut after = before.clone();
    after.issued(&issuing, Fingerprint([7; 32]), &SanSet::new(), InPlace::default());
    assert_eq!(after, State { issuing: None, rolled_back: vec![rolled_back], ..before });
}
