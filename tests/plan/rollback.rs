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
            cause: None,
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

/// The API server was restarted with a new certificate in place, and this is what came of it.
fn after_restart(change: fn(&mut Unconfirmed)) -> Host {
    changed(|h| {
        served_stale(h);
        let unconfirmed = h.state.unconfirmed.as_mut().expect("just put there");
        unconfirmed.restarted = true;
        change(unconfirmed);
    })
}

/// It came up and cannot use the certificate; before, it was seen to serve `shown`.
fn unusable(shown: Option<&str>) -> Host {
    let mut host = after_restart(|u| {
        (u.stale, u.unanswered) = (false, 1);
        u.unusable = Some("received fatal alert: InternalError".to_owned());
    });
    host.state.shown = shown.map(str::to_owned);
    host
}

const BEFORE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn what_the_port_was_seen_to_show_is_put_back_when_the_server_cannot_use_the_new_one() {
    let host = unusable(Some(BEFORE));
    let plan = host.plan();
    assert_eq!(
        (steps(&plan), reasons(&plan)),
        (vec!["put back server".to_owned()], vec!["served-unusable".to_owned()])
    );
    let [Step::PutBack { leaf, cause, .. }] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert!(leaf == BEFORE && cause.contains("InternalError"));
    assert_eq!(plan.summary.to_string(), "reissue");
    // A hook's caller waits for nothing, so nobody has asked the port for it.
    assert!(steps(&Host { mode: Mode::Hook, ..host.clone() }.plan()).is_empty());
    // It failed: it waits as everything that failed, and is tried again.
    let mut failed = host.clone();
    let outcome = outcome(&plan.steps[0], StepResult::Failed("not kept".to_owned()), &failed);
    failed.state.record(&plan, &[outcome]);
    let waits = failed.plan();
    assert!(!steps(&waits).contains(&"put back server".to_owned()), "{:?}", steps(&waits));
    assert_eq!(holds(&waits), ["failed-before"]);
    failed.now.wall = failed.now.wall + MINUTE;
    failed.now.uptime += MINUTE;
    assert_eq!(steps(&failed.plan()), ["put back server"]);
}

/// The layouts that break the rule: each of them would put a certificate back that helps nobody, or for ever.
#[test]
fn nothing_else_is_put_back_by_itself() {
    let never = |what: &str, host: &Host| {
        let plan = host.plan();
        assert!(!steps(&plan).contains(&"put back server".to_owned()), "{what}: {:?}", steps(&plan));
    };
    // A port that never showed us a certificate does not understand us.
    let host = unusable(None);
    never("never seen", &host);
    assert!(host.plan().notices.iter().any(|notice| notice.contains("ipguard rollback")), "{:?}", host.plan().notices);
    // It shows the very one in place now and then.
    let in_place = unusable(None).cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint.to_hex();
    never("the one in place", &unusable(Some(&in_place)));
    // Nobody restarted it: it is still busy with the files.
    let mut host = unusable(Some(BEFORE));
    host.state.unconfirmed.as_mut().expect("there").restarted = false;
    never("not restarted", &host);
    // Somebody else has replaced the file.
    let mut host = unusable(Some(BEFORE));
    host.state.unconfirmed.as_mut().expect("there").fingerprint = "another".to_owned();
    never("another file", &host);
    // The one in place was put back itself: there would be no end.
    let mut host = unusable(Some(BEFORE));
    host.state.note_rollback(&RolledBack {
        at: host.now.wall,
        certificate: "server".to_owned(),
        fingerprint: in_place,
        configuration: THEN.to_owned(),
        cause: Some("alert".to_owned()),
    });
    never("put back", &host);
    // It is made anew anyway.
    let mut host = unusable(Some(BEFORE));
    near_expiry(&mut host);
    never("renewed", &host);
    // The node is stopped for a join.
    let mut host = unusable(Some(BEFORE));
    lock(&mut host, "join-in-progress", MINUTE);
    never("a join", &host);
}

/// What the port said is remembered as it is: alerts count behind a restart only, and a leaf that is shown ends them.
#[test]
fn what_the_port_says_is_remembered() {
    let alert = || StepResult::Unusable("received fatal alert: InternalError".to_owned());
    let asked = |host: &mut Host, result: StepResult| {
        // The longest pause between two questions.
        host.now.wall = host.now.wall + HOUR;
        host.now.uptime += HOUR;
        let plan = host.plan();
        let step = plan.steps.iter().find(|step| matches!(step, Step::ConfirmServed { .. })).cloned();
        let step = step.unwrap_or_else(|| panic!("the port is not asked: {:?}", plan.steps));
        let outcome = outcome(&step, result, host);
        host.state.record(&plan, &[outcome]);
    };
    let unusable = |host: &Host| host.state.unconfirmed.as_ref().and_then(|u| u.unusable.clone());
    let mut host = after_restart(|u| (u.stale, u.restarted) = (false, false));
    asked(&mut host, alert());
    assert_eq!((unusable(&host), host.state.unconfirmed.as_ref().map(|u| u.unanswered)), (None, Some(1)));
    let mut host = after_restart(|u| u.stale = false);
    asked(&mut host, alert());
    assert!(unusable(&host).is_some());
    asked(&mut host, StepResult::Unanswered("connection refused".to_owned()));
    assert_eq!(unusable(&host), None, "it came up no more");
    asked(&mut host, alert());
    let fingerprint = host.state.unconfirmed.as_ref().expect("there").fingerprint.clone();
    asked(&mut host, StepResult::Confirmed);
    assert_eq!((&host.state.unconfirmed, host.state.shown.as_deref()), (&None, Some(fingerprint.as_str())));
    let mut host = after_restart(|u| (u.stale, u.restarted) = (false, false));
    asked(&mut host, StepResult::Stale { served: Fingerprint([3; 32]) });
    assert_eq!(host.state.shown, Some(Fingerprint([3; 32]).to_hex()));
}

/// A server that serves another certificate, or none, behind a restart is reported, and nothing is put back.
#[test]
fn another_certificate_or_silence_behind_a_restart_is_reported() {
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
