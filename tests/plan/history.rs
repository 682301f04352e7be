//! What follows from what was done before: failures, restarts by others, names that come and go.

use super::*;

/// Somebody else restarted the API server while another address came first: it advertises that one, whatever was
/// believed before.
#[test]
fn what_an_api_server_restarted_by_others_picked() {
    let second_first = |h: &mut Host| {
        let second = h.add("eth0", "198.51.100.9/24").clone();
        h.network.addresses.pop();
        h.network.addresses.insert(0, second);
        h.certificate(&["192.0.2.10", "198.51.100.9"]);
        h.settle();
        h.pass_time(HOUR);
        h.service_since(h.now.uptime);
        h.pass_time(HOUR);
        h.settle();
        h.pass_time(HOUR);
    };
    // The believed one leaves: no restart, the other is still there.
    let mut host = changed(second_first);
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(HOUR);
    assert_eq!(steps(&host.settle()), NONE);
    // The other one leaves: nobody advertises an address that is there.
    let mut host = changed(second_first);
    host.remove("198.51.100.9");
    host.settle();
    host.pass_time(HOUR);
    assert_eq!(steps(&host.settle()), ["restart kubelite", "confirm", "ready"]);
}

/// Nobody looked while the node moved and the API server was restarted for it: the record ends before both, and what it
/// says last is not what that process has picked.
#[test]
fn a_move_and_a_restart_that_nobody_saw_are_over() {
    let moved = |restarted: bool| {
        let mut host = changed(|h| h.mode = Mode::OneShot);
        host.settle();
        host.pass_time(HOUR);
        host.remove("192.0.2.10");
        host.add("eth0", "192.0.2.57/24");
        host.pass_time(HOUR);
        if restarted {
            host.service_since(host.now.uptime);
        }
        host.pass_time(HOUR);
        steps(&host.plan())
    };
    assert_eq!(moved(true), RELOAD);
    assert!(moved(false).contains(&"restart kubelite".to_owned()), "{:?}", moved(false));
}

#[test]
fn an_owed_restart_survives_a_reissue_that_failed() {
    let mut host = changed(|h| h.state.owed_restarts = vec!["cluster-agent".to_owned()]);
    host.add("eth0", "198.51.100.9/24");
    assert_eq!(steps(&carry_out(&mut host, &["issue server"])), RELOAD);
    assert_eq!(host.state.owed_restarts, ["cluster-agent"]);
}

/// A step that fails is tried again after a while that grows; what is asked for meanwhile does not wait for it.
#[test]
fn a_service_that_cannot_be_restarted_holds_up_nothing_else() {
    let mut host = changed(|h| {
        h.add("eth0", "198.51.100.9/24");
    });
    assert_eq!(steps(&carry_out(&mut host, &["restart cluster-agent"])), RELOAD);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let plan = host.settle();
        assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["failed-before".to_owned()]));
        let until = plan.look_again.expect("it is tried again");
        waits.push(until.since(host.now.wall).as_secs());
        host.pass_time(until.since(host.now.wall));
        assert_eq!(steps(&carry_out(&mut host, &["restart cluster-agent"])), ["restart cluster-agent"]);
    }
    assert!(waits.is_sorted() && waits[0] >= 10 && waits[3] >= 80, "{waits:?}");
    // A new address comes while it waits.
    host.add("eth0", "203.0.113.9/24");
    let plan = carry_out(&mut host, &["restart cluster-agent"]);
    assert_eq!(steps(&plan)[..2], ["issue server", "confirm"]);
    // And once the service can be restarted, it is.
    host.pass_time(HOUR);
    assert_eq!(steps(&carry_out(&mut host, &[])), ["restart cluster-agent"]);
    assert!(host.plan().steps.is_empty() && host.plan().holds.is_empty());
}

#[test]
fn a_reissue_that_fails_is_tried_again_after_a_while() {
    let mut host = changed(|h| {
        h.add("eth0", "198.51.100.9/24");
    });
    carry_out(&mut host, &["issue server"]);
    let plan = host.settle();
    assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["failed-before".to_owned()]));
    host.pass_time(plan.look_again.expect("it is tried again").since(host.now.wall));
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD);
    assert!(host.plan().steps.is_empty() && host.plan().holds.is_empty());
}

/// Nothing tells when a service manager answers again, or when a join ends without removing its lock.
#[test]
fn what_ends_without_an_event_is_looked_at_again() {
    let mut host = renumbered(|h| h.services.get_mut("kubelite").expect("asked").active = None);
    host.certificate(&["192.0.2.20"]);
    let wait = host.settle().look_again.expect("the manager is asked again").since(host.now.wall);
    assert!(wait > Duration::from_secs(10) && wait <= MINUTE * 5, "{wait:?}");

    for age in [MINUTE, HOUR] {
        let mut host = renumbered(|h| lock(h, "join-in-progress", age));
        host.cluster.joining = Some(true);
        let wait = host.settle().look_again.expect("the join is looked at again").since(host.now.wall);
        assert!(wait > Duration::from_secs(10) && wait <= MINUTE * 15, "{wait:?}");
    }
}

#[test]
fn bound_to_the_loopback_the_node_address_is_still_the_nodes() {
    let mut host = changed(|h| h.cluster.arguments.bind = FlagAddress::Address(ip("127.0.0.1")));
    assert_eq!(host.settle().node_address.values().next(), Some(&ip("192.0.2.10")));
}

/// An address that ipguard added, that fell back to secondary long ago and left a moment ago, is kept for `retain` after
/// it left.
#[test]
fn what_has_just_left_is_kept_however_long_it_was_not_needed() {
    let mut host = changed(|h| {
        h.add("eth0", "192.0.2.100/24");
        h.certificate(&["192.0.2.10", "192.0.2.100"]);
        let (san, at) = ("192.0.2.100".parse().expect("a name"), h.now.wall);
        h.state.added.push(Added { san, at, unneeded_since: None });
    });
    host.settle();
    host.pass_time(DAY * 3);
    host.settle();
    host.remove("192.0.2.100");
    host.settle();
    host.pass_time(MINUTE);
    host.add("eth0", "198.51.100.9/24");
    let plan = host.settle();
    assert!(plan.san.dropped.is_empty(), "{:?}", plan.san.dropped);
    host.pass_time(DAY * 2);
    assert_eq!(host.settle().san.dropped, sans(&["192.0.2.100"]));
}

/// What the certificate named is not known any more, but the state knows some of it.
#[test]
fn a_certificate_that_cannot_be_read_is_made_with_what_is_remembered() {
    let mut host = changed(|h| {
        let (san, at) = ("198.51.100.9".parse().expect("a name"), h.now.wall);
        h.state.added.push(Added { san, at, unneeded_since: None });
    });
    host.settle();
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(MINUTE * 5);
    host.cluster.certificates[0].leaf = Err(broken("server.crt"));
    let names = |plan: &Plan| match &plan.steps[..] {
        [Step::Issue(order), ..] => order.sans.clone(),
        other => panic!("{other:?}"),
    };
    let plan = host.settle();
    assert!(names(&plan).is_superset(&sans(&["192.0.2.10", "198.51.100.9"])), "{:?}", names(&plan));
    // Not for ever, and never against a template that says exactly what.
    host.pass_time(DAY * 2);
    assert!(names(&host.settle()).is_disjoint(&sans(&["192.0.2.10", "198.51.100.9"])));
    let template = host.cluster.template.as_mut().expect("there").as_mut().expect("readable");
    template.marker = false;
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(names(&host.settle()), sans(hosts::CONFIGURED));
}

/// A certificate beside the server's has names of its own, and nobody asks the port for it.
#[test]
fn another_certificate_of_the_profile() {
    let second = |h: &mut Host| {
        let mut facts = h.cluster.certificates[0].clone();
        facts.name = "front-proxy-client".to_owned();
        facts.path = "certs/front-proxy-client.crt".into();
        facts.role = CertificateRole::ProxyClient;
        let leaf = facts.leaf.as_mut().expect("readable");
        leaf.sans = sans(&["front-proxy-client"]);
        leaf.fingerprint = Fingerprint([8; 32]);
        h.cluster.certificates.push(facts);
    };
    let mut host = changed(second);
    assert_eq!(reasons(&host.settle()), NONE);
    // A new address is the server certificate's business.
    host.add("eth0", "198.51.100.9/24");
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD);
    // The other one expires.
    let mut host = changed(second);
    let (begun, soon) = (host.now.wall - DAY * 300, host.now.wall + DAY);
    let leaf = host.cluster.certificates[1].leaf.as_mut().expect("readable");
    (leaf.not_before, leaf.not_after) = (begun, soon);
    let plan = host.settle();
    assert_eq!(steps(&plan), ["issue front-proxy-client"]);
    let Step::Issue(order) = &plan.steps[0] else { panic!("{:?}", plan.steps) };
    assert_eq!((&order.sans, &order.request), (&sans(&["front-proxy-client"]), &None));
    let issued = outcome(&plan.steps[0], StepResult::Issued { fingerprint: Fingerprint([9; 32]) }, &host);
    host.state.record(&plan, &[issued]);
    assert_eq!((&host.state.unconfirmed, host.state.owed_restarts.len()), (&None, 0));
}
