//! A certificate that was put back: what it holds, what it does not, and what ends it. And one asked for anew.

use std::collections::BTreeSet;

use ipguard::decide::rollback::RolledBack;
use ipguard::facts::Observed;

use super::*;

/// The configuration when the certificate was put back.
const THEN: &str = "c0ffee";

fn rolled_back(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = changed(|h| {
        let fingerprint = h.cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint.to_hex();
        h.state.rolled_back = vec![RolledBack {
            at: h.now.wall,
            certificate: "server".to_owned(),
            fingerprint,
            configuration: THEN.to_owned(),
        }];
    });
    change(&mut host);
    host
}

fn plan_of(host: &Host, change: impl FnOnce(&mut Observed)) -> Plan {
    let mut observed = host.observed();
    change(&mut observed);
    ipguard::decide::plan(&observed, &hosts::profile(), &host.config, &host.state, host.now, host.mode)
}

fn configured(configuration: &'static str) -> impl FnOnce(&mut Observed) {
    move |observed| observed.configuration = Some(configuration.to_owned())
}

fn forced(exact: bool) -> impl FnOnce(&mut Observed) {
    move |observed| {
        observed.forced = BTreeSet::from(["server".to_owned()]);
        observed.exact = exact;
    }
}

fn names(plan: &Plan) -> Vec<String> {
    let orders = plan.steps.iter().filter_map(|step| if let Step::Issue(order) = step { Some(order) } else { None });
    orders.flat_map(|order| &order.sans).map(ToString::to_string).collect()
}

#[test]
fn names_wait_and_everything_else_does_not() {
    let address: fn(&mut Host) = |h| _ = h.add("eth0", "198.51.100.9/24");
    let name: fn(&mut Host) = |h| template_names(h, &["api.example.com"]);
    for change in [address, name] {
        let host = rolled_back(change);
        for mode in [Mode::Daemon, Mode::OneShot, Mode::Hook] {
            let plan = plan_of(&Host { mode, ..host.clone() }, configured(THEN));
            assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["rolled-back".to_owned()]));
            assert!(!plan.caller_restarts);
        }
    }
    let host = rolled_back(|_| {});
    assert!(plan_of(&host, configured(THEN)).holds.is_empty(), "nothing is held, so nothing is said");
    let expiry: fn(&mut Host) = near_expiry;
    let authority: fn(&mut Host) = |h| h.cluster.certificates[0].issued_by_authority = Some(false);
    let key: fn(&mut Host) = |h| h.cluster.certificates[0].key = Ok(PublicKey(vec![9]));
    let gone: fn(&mut Host) = |h| h.cluster.certificates[0].leaf = Err(broken("server.crt"));
    for change in [expiry, authority, key, gone] {
        let host = rolled_back(|h| {
            h.add("eth0", "198.51.100.9/24");
            change(h);
        });
        let plan = plan_of(&host, configured(THEN));
        assert_eq!(steps(&plan), RELOAD, "{:?}", reasons(&plan));
    }
}

#[test]
fn another_configuration_ends_it_and_an_unreadable_one_does_not() {
    let host = rolled_back(|h| _ = h.add("eth0", "198.51.100.9/24"));
    let plan = plan_of(&host, |_| {});
    assert_eq!((steps(&plan), plan.state.rolled_back.len()), (vec![], 1));
    let plan = plan_of(&host, configured("decaf"));
    assert_eq!((steps(&plan), plan.state.rolled_back.len()), (RELOAD.iter().map(ToString::to_string).collect(), 0));
    // Put back while nobody knew the template: the first that is read is the one that counts.
    let mut host = host;
    host.state.rolled_back[0].configuration.clear();
    let plan = plan_of(&host, configured("decaf"));
    assert_eq!((steps(&plan), plan.state.rolled_back[0].configuration.as_str()), (vec![], "decaf"));
}

#[test]
fn one_that_is_asked_for_is_made_whatever_it_is_like() {
    let host = changed(|h| h.certificate(&["192.0.2.10", "old.example.com"]));
    let plan = plan_of(&host, forced(false));
    assert_eq!(
        (steps(&plan), reasons(&plan).contains(&"forced".to_owned())),
        (RELOAD.iter().map(ToString::to_string).collect(), true)
    );
    assert!(names(&plan).contains(&"old.example.com".to_owned()), "kept");
    let exact = plan_of(&host, forced(true));
    assert!(!names(&exact).contains(&"old.example.com".to_owned()), "left out");
    assert_eq!(exact.san.dropped, exact.san.extra);
    // Nobody knows whether the template asks for it.
    let host = changed(|h| {
        h.certificate(&["192.0.2.10", "old.example.com"]);
        h.cluster.template = Some(Err(broken("csr.conf.template")));
    });
    let exact = plan_of(&host, forced(true));
    assert!(names(&exact).contains(&"old.example.com".to_owned()), "kept");
    assert!(exact.notices.iter().any(|notice| notice.contains("none is dropped")), "{:?}", exact.notices);
    // A rollback and the limits on addresses do not hold it; what it cannot be made without does.
    let host = rolled_back(|h| _ = h.add("eth0", "198.51.100.9/24"));
    assert_eq!(steps(&plan_of(&host, forced(false))), RELOAD);
    let host = changed(|h| h.cluster.certificates[0].authority = Err(broken("ca.crt")));
    let plan = plan_of(&host, forced(false));
    assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["ca-missing".to_owned()]));
}

/// Nothing is rolled back by itself: a server that serves another certificate, or none, behind a restart is reported.
#[test]
fn nothing_is_rolled_back_by_itself() {
    let after_restart = |change: fn(&mut Unconfirmed)| {
        changed(|h| {
            served_stale(h);
            let unconfirmed = h.state.unconfirmed.as_mut().expect("just put there");
            unconfirmed.restarted = true;
            change(unconfirmed);
        })
    };
    let told = |host: &Host, words: &str| host.plan().notices.iter().any(|notice| notice.contains(words));
    let stale = after_restart(|_| {});
    assert!(told(&stale, "another certificate even after a restart") && !told(&stale, "ipguard rollback"));
    let silent = after_restart(|u| (u.stale, u.unanswered) = (false, 1));
    assert!(told(&silent, "ipguard rollback"));
    let not_asked = after_restart(|u| (u.stale, u.unanswered, u.asked) = (false, 1, None));
    assert!(!told(&not_asked, "ipguard rollback"));
    for host in [&stale, &silent] {
        assert!(steps(&host.plan()).iter().all(|step| step == "confirm"), "{:?}", steps(&host.plan()));
    }
}
