//! Join tokens: what waits for nodes that may still join, what does not, and for how long.

use ipguard::facts::cluster::JoinTokens;
use ipguard::facts::time::Timestamp;

use super::*;

/// What happens to a host.
type Change = fn(&mut Host);

/// A second NIC: a name that nobody needs today.
fn with_a_second_nic(h: &mut Host) {
    h.link("eth1", None);
    h.add("eth1", "10.7.0.4/24");
}

fn with_tokens(h: &mut Host, lasting: usize, ends: &[Duration]) {
    let ends = ends.iter().map(|end| h.now.wall + *end).collect();
    h.cluster.join_tokens = JoinTokens { lasting, ends, unreadable: None };
}

fn expires_in(h: &mut Host, left: Duration) {
    let not_after = h.now.wall + left;
    let leaf = h.cluster.certificates[0].leaf.as_mut().expect("readable");
    (leaf.not_before, leaf.not_after) = (not_after - DAY * 365, not_after);
}

fn configured(h: &mut Host, name: &str) {
    h.config.certificate.extra_sans = sans(&[name]).into_iter().collect();
}

#[test]
fn what_nobody_needs_today_waits_a_day_and_no_longer() {
    for (what, change) in [
        ("a second NIC", with_a_second_nic as Change),
        ("a configured name", |h| configured(h, "k8s.example.org")),
        ("30 days left", |h| expires_in(h, DAY * 40)),
    ] {
        let mut host = changed(|h| with_tokens(h, 1, &[]));
        change(&mut host);
        let first = host.settle();
        assert_eq!(holds(&first), ["join-tokens"], "{what}");
        assert!(!first.reasons.is_empty() && first.steps.is_empty(), "{what}");
        assert_eq!(first.holds[0].until, Some(host.now.wall + DAY), "{what}");
        assert!(first.look_again <= Some(host.now.wall + DAY), "{what}");
        assert!(first.holds[0].detail.starts_with("a join token is outstanding"), "{}", first.holds[0].detail);
        let until = first.holds[0].until;
        host.pass_time(HOUR * 23);
        // The day counts from the first reason; another one that comes meanwhile waits with it.
        configured(&mut host, "late.example.org");
        let later = host.settle();
        assert_eq!((holds(&later), later.holds[0].until), (vec!["join-tokens".to_owned()], until), "{what}");
        host.pass_time(HOUR);
        assert_eq!(steps(&host.plan()), RELOAD, "{what}");
    }
}

#[test]
fn what_somebody_needs_never_waits() {
    let urgent: [(&str, Change); 10] = [
        ("the node address", |h| h.certificate(&[])),
        ("a pinned address", |h| h.config.addresses.pin = vec![ip("203.0.113.9")]),
        ("an address of --node-ip", |h| h.cluster.arguments.node_ips = vec![ip("203.0.113.9")]),
        ("another CA", |h| h.cluster.certificates[0].issued_by_authority = Some(false)),
        ("less than 30 days", |h| expires_in(h, DAY * 30 - MINUTE)),
        ("expired", |h| expires_in(h, Duration::ZERO)),
        ("no certificate", |h| {
            let path = h.cluster.certificates[0].path.clone();
            h.cluster.certificates[0].leaf = Err(ReadError { path, problem: Problem::Empty });
        }),
        ("another key", |h| h.cluster.certificates[0].key = Ok(PublicKey(vec![9]))),
        ("refused by clients", |h| {
            h.cluster.certificates[0].leaf.as_mut().expect("readable").usage.server_auth = false;
        }),
        ("somebody asked", |h| _ = h.forced.insert("server".to_owned())),
    ];
    for (what, change) in urgent {
        let mut host = changed(|h| with_tokens(h, 3, &[HOUR]));
        // Beside something that would wait: one certificate serves both.
        with_a_second_nic(&mut host);
        change(&mut host);
        let plan = host.settle();
        assert!(!holds(&plan).contains(&"join-tokens".to_owned()), "{what}: {:?}", plan.holds);
        assert_eq!(steps(&plan)[0], "issue server", "{what}");
        assert_eq!(plan.state.waiting_for_joins, None, "{what}");
    }
    assert!(!holds(&renumbered(|h| with_tokens(h, 1, &[])).plan()).contains(&"join-tokens".to_owned()));
}

#[test]
fn the_wait_ends_with_the_last_token() {
    let mut host = changed(|h| with_tokens(h, 0, &[HOUR, HOUR * 3]));
    with_a_second_nic(&mut host);
    let plan = host.settle();
    assert_eq!(plan.holds[0].until, Some(host.now.wall + HOUR * 3));
    assert!(plan.holds[0].detail.starts_with("2 join tokens are outstanding"), "{}", plan.holds[0].detail);
    host.pass_time(HOUR * 2);
    let plan = host.settle();
    assert!(plan.holds[0].detail.starts_with("a join token is outstanding"), "{}", plan.holds[0].detail);
    host.pass_time(HOUR);
    assert_eq!(steps(&host.plan()), RELOAD, "it ends at that moment, as for the cluster-agent");
    // Used up: the file is empty.
    let mut host = changed(|h| with_tokens(h, 1, &[]));
    with_a_second_nic(&mut host);
    host.settle();
    with_tokens(&mut host, 0, &[]);
    assert_eq!(steps(&host.plan()), RELOAD);
    // Those that ended long ago are none.
    let mut host = changed(|h| h.cluster.join_tokens.ends = vec![Timestamp::from_seconds(1)]);
    with_a_second_nic(&mut host);
    assert_eq!(steps(&host.plan()), RELOAD);
    // One that lasts, beside one that ends: a day.
    let mut host = changed(|h| with_tokens(h, 1, &[HOUR]));
    with_a_second_nic(&mut host);
    assert_eq!(host.plan().holds[0].until, Some(host.now.wall + DAY));
}

#[test]
fn a_file_that_cannot_be_read_counts_as_full() {
    let mut host = changed(|h| {
        h.cluster.join_tokens.unreadable =
            Some(ReadError::malformed("cluster-tokens.txt".as_ref(), "not a regular file"));
    });
    with_a_second_nic(&mut host);
    let plan = host.settle();
    assert_eq!(holds(&plan), ["join-tokens"]);
    assert!(plan.holds[0].detail.starts_with("cluster-tokens.txt: not a regular file: nodes may"), "{:?}", plan.holds);
    host.pass_time(DAY);
    assert_eq!(steps(&host.plan()), RELOAD);
}

#[test]
fn the_day_starts_anew_with_the_next_reason_and_survives_a_clock_that_is_set() {
    let mut host = changed(|h| with_tokens(h, 1, &[]));
    assert_eq!(host.settle().state.waiting_for_joins, None, "in step, nothing waits");
    with_a_second_nic(&mut host);
    host.settle();
    host.pass_time(HOUR * 5);
    host.remove("10.7.0.4");
    assert_eq!(host.settle().state.waiting_for_joins, None);
    host.add("eth1", "10.7.0.4/24");
    assert_eq!(host.settle().holds[0].until, Some(host.now.wall + DAY));
    // A year ahead by a clock that was set: the day does not end by that.
    host.pass_time(HOUR);
    let left = |plan: &Plan, host: &Host| plan.holds[0].until.expect("a day").since(host.now.wall);
    host.now.wall = host.now.wall + DAY * 100;
    let plan = host.settle();
    assert_eq!(holds(&plan), ["join-tokens"]);
    assert_eq!(left(&plan, &host), HOUR * 23);
}

/// The life that is left reaches thirty days before the day is over.
#[test]
fn the_wait_ends_when_expiry_waits_for_nobody() {
    let mut host = changed(|h| with_tokens(h, 1, &[]));
    expires_in(&mut host, DAY * 30 + HOUR);
    let plan = host.settle();
    assert_eq!((holds(&plan), plan.holds[0].until), (vec!["join-tokens".to_owned()], Some(host.now.wall + HOUR)));
    host.pass_time(HOUR + MINUTE);
    assert_eq!(steps(&host.plan()), RELOAD);
}

/// Only the server certificate's fingerprint is in the string.
#[test]
fn other_certificates_and_restarts_do_not_wait() {
    let mut host = changed(|h| with_tokens(h, 1, &[]));
    let mut facts = host.cluster.certificates[0].clone();
    facts.name = "front-proxy-client".to_owned();
    facts.role = CertificateRole::ProxyClient;
    facts.subject = vec![("CN".to_owned(), "front-proxy-client".to_owned())];
    facts.leaf.as_mut().expect("readable").not_after = host.now.wall + HOUR;
    host.cluster.certificates.push(facts);
    assert_eq!(steps(&host.plan())[0], "issue front-proxy-client");
    with_a_second_nic(&mut host);
    let plan = host.settle();
    assert_eq!(holds(&plan), ["join-tokens"]);
    assert_eq!(steps(&plan)[0], "issue front-proxy-client");
}
