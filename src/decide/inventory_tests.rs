//! What is listed, and what is said to be wrong with it.

use std::collections::BTreeMap;

use super::*;
use crate::facts::ReadError;
use crate::facts::certificate::{CertificateRole, Fingerprint, Leaf, PublicKey, Usage};
use crate::facts::cluster::{Arguments, JoinTokens};
use crate::facts::kubeconfig::Content;
use crate::facts::san::SanSet;
use crate::facts::{Problem, Read};

const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);

fn ca(name: &str, key: u8) -> AuthorityCertificate {
    AuthorityCertificate {
        subject: name.as_bytes().to_vec(),
        public_key: PublicKey(vec![key]),
        not_before: NOW,
        not_after: NOW,
        self_signed: true,
        key_id: None,
        serial: vec![key],
        cannot_sign: None,
    }
}

fn leaf() -> Leaf {
    Leaf {
        sans: SanSet::from(["192.0.2.10".parse().expect("an address")]),
        refused_sans: Vec::new(),
        other_names: Vec::new(),
        subject: Vec::new(),
        issuer: Vec::new(),
        public_key: PublicKey(vec![9]),
        not_before: NOW,
        not_after: NOW + Duration::from_secs(100 * DAY),
        usage: Usage { server_auth: true, client_auth: true, digital_signature: true, is_ca: false },
        refused_signature: None,
        authority_key_id: None,
        authority_serial: None,
        fingerprint: Fingerprint([0; 32]),
    }
}

fn missing() -> ReadError {
    ReadError { path: "/certs/x.crt".into(), problem: Problem::Missing }
}

fn certificate(name: &str, leaf: Read<Leaf>, authority: Authority) -> CertificateFacts {
    CertificateFacts {
        name: name.to_owned(),
        path: format!("/certs/{name}.crt").into(),
        leaf,
        key: Err(missing()),
        authority: Ok(authority),
        authority_key: Err(missing()),
        issued_by_authority: Some(true),
        issued_by_foreign: false,
        role: CertificateRole::ApiServer,
        elsewhere: None,
        subject: Vec::new(),
    }
}

fn cluster(certificates: Vec<CertificateFacts>) -> Cluster {
    Cluster {
        profile: "microk8s".to_owned(),
        hostname: "node".to_owned(),
        arguments: Arguments::default(),
        locks: BTreeMap::new(),
        locks_unreadable: None,
        joining: None,
        template: None,
        host_access: None,
        request: None,
        certificates,
        join_tokens: JoinTokens::default(),
        foreign_unreadable: None,
    }
}

fn content(authority: Option<Read<Authority>>) -> Content {
    Content {
        user: "admin".to_owned(),
        client: Client::Certificate(Box::new(Ok(leaf()))),
        issued_by_authority: Some(true),
        authority,
        insecure: false,
        names_files: false,
    }
}

fn kubeconfig(content: Read<Content>) -> Item {
    let current = Authority { certificates: vec![ca("kubernetes", 1), ca("kubernetes", 2)], signer: Some(1) };
    let facts = KubeconfigFacts { path: "/credentials/client.config".into(), content };
    list(&cluster(vec![certificate("server", Ok(leaf()), current)]), &[facts]).pop().expect("it is listed")
}

fn trusting(certificates: Vec<AuthorityCertificate>) -> Option<Read<Authority>> {
    Some(Ok(Authority { certificates, signer: None }))
}

#[test]
fn the_server_is_listed_even_when_it_is_missing_and_others_when_they_are_there() {
    let authority = || Authority { certificates: vec![ca("kubernetes", 1)], signer: Some(0) };
    let all = cluster(vec![
        certificate("server", Err(missing()), authority()),
        certificate("front-proxy-client", Err(missing()), authority()),
        CertificateFacts { issued_by_authority: Some(false), ..certificate("kubelet", Ok(leaf()), authority()) },
    ]);
    let listed = list(&all, &[]);
    let names: Vec<&str> = listed.iter().map(|listed| listed.name.as_str()).collect();
    assert_eq!(names, ["server", "kubelet"]);
    assert_eq!((listed[0].not_after, listed[0].issuer_ok), (None, None), "what is not there has no issuer");
    assert_eq!(listed[0].remark.as_deref(), Some("no such file"));
    assert_eq!((listed[1].issuer_ok, listed[1].san.as_slice()), (Some(false), &["192.0.2.10".to_owned()][..]));
}

#[test]
fn a_kubeconfig_knows_the_server_by_the_ca_that_signs_now() {
    let knows = |certificates| kubeconfig(Ok(content(trusting(certificates)))).authority_ok;
    assert_eq!(knows(vec![ca("kubernetes", 2)]), Some(true));
    assert_eq!(knows(vec![ca("other", 7), ca("kubernetes", 2)]), Some(true));
    assert_eq!(knows(vec![ca("kubernetes", 1)]), Some(false), "it is of the bundle and does not sign any more");
    assert_eq!(knows(vec![ca("other", 2)]), Some(false));
    // Renewed with its key: another serial and other dates, the same to everybody.
    assert_eq!(knows(vec![AuthorityCertificate { serial: vec![77], ..ca("kubernetes", 2) }]), Some(true));
    assert_eq!(kubeconfig(Ok(content(None))).authority_ok, None);
    // While nobody knows which one signs, each of the bundle may.
    let bundle = Authority { certificates: vec![ca("kubernetes", 1), ca("kubernetes", 2)], signer: None };
    assert!(knows_one(&bundle, 1) && knows_one(&bundle, 2) && !knows_one(&bundle, 3));
}

fn knows_one(current: &Authority, key: u8) -> bool {
    super::knows(&Authority { certificates: vec![ca("kubernetes", key)], signer: None }, current)
}

#[test]
fn what_is_no_certificate_is_said() {
    let remark = |change: fn(&mut Content)| {
        let mut content = content(trusting(vec![ca("kubernetes", 2)]));
        change(&mut content);
        let listed = kubeconfig(Ok(content));
        (listed.not_after.is_some(), listed.remark.unwrap_or_default())
    };
    assert_eq!(remark(|_| ()), (true, String::new()));
    assert_eq!(remark(|content| content.client = Client::Token), (false, "a token, no certificate".to_owned()));
    assert_eq!(remark(|content| content.client = Client::Refused("exec".to_owned())), (false, "exec".to_owned()));
    assert!(remark(|content| content.client = Client::Nobody).1.contains("neither"));
    assert!(remark(|content| content.insecure = true).1.contains("insecure-skip-tls-verify"));
    assert!(remark(|content| content.authority = None).1.contains("no CA"));
    let broken = |content: &mut Content| content.client = Client::Certificate(Box::new(Err(missing())));
    assert_eq!(remark(broken), (false, "no such file".to_owned()));
    let unreadable = kubeconfig(Err(ReadError::malformed(std::path::Path::new("/x"), "line 3: an alias")));
    assert_eq!((unreadable.issuer_ok, unreadable.remark.as_deref()), (None, Some("line 3: an alias")));
    assert_eq!(unreadable.name, "client.config");
}

#[test]
fn days_are_whole_and_count_down_through_zero() {
    let after = |seconds: u64| NOW + Duration::from_secs(seconds);
    for (end, days, how) in [
        (after(31 * DAY), 31, Left::Enough),
        (after(30 * DAY), 30, Left::Enough),
        (after(30 * DAY - 1), 29, Left::Little),
        (after(DAY), 1, Left::Little),
        (after(DAY - 1), 0, Left::Little),
        (NOW, 0, Left::Little),
        (NOW - Duration::from_secs(1), -1, Left::Over),
        (NOW - Duration::from_secs(DAY), -1, Left::Over),
        (NOW - Duration::from_secs(DAY + 1), -2, Left::Over),
    ] {
        assert_eq!((days_left(end, NOW), left(end, NOW)), (days, how), "{end}");
    }
    assert!(days_left(Timestamp::from_millis(i64::MIN), NOW) < 0);
    assert!(days_left(Timestamp::from_millis(i64::MAX), Timestamp::from_millis(i64::MIN)) > 0);
}

#[test]
fn restarts_leave_the_window() {
    let at = |minutes: u64| NOW + Duration::from_secs(minutes * 60);
    let hour = Duration::from_secs(3600);
    let log = [at(0), at(30), at(59)];
    assert_eq!(within(&log, hour, at(59)), 3);
    assert_eq!(within(&log, hour, at(60)), 2);
    assert_eq!(within(&log, hour, at(200)), 0);
    assert_eq!(within(&log, hour, NOW - hour), 3, "the clock was set back");
}
