//! The hook, and what is bounded: reissues, restarts, names.

use super::*;

/// The hook's caller restarts kubelite, and only when it must; nothing is waited for.
#[test]
fn hook_mode_tells_its_caller() {
    type Case = (&'static str, fn() -> Host, bool, &'static [&'static str]);
    let cases: [Case; 5] = [
        ("in step", || changed(|_| {}), false, NONE),
        ("another address", || changed(|h| h.add("eth0", "198.51.100.9/24").label = None), false, &RELOAD_IN_HOOK),
        ("node address replaced", || renumbered(|_| {}), true, &RELOAD_IN_HOOK),
        (
            "no usable certificate",
            || changed(|h| h.cluster.certificates[0].leaf = Err(broken("server.crt"))),
            true,
            &RELOAD_IN_HOOK,
        ),
        (
            "no usable certificate and no CA",
            || {
                changed(|h| {
                    h.cluster.certificates[0].leaf = Err(broken("server.crt"));
                    h.cluster.certificates[0].authority = Err(broken("ca.crt"));
                })
            },
            false,
            NONE,
        ),
    ];
    for (title, host, restarts, expected) in cases {
        let mut host = host();
        host.mode = Mode::Hook;
        let plan = host.plan();
        assert_eq!((plan.caller_restarts, &steps(&plan)[..]), (restarts, &strings(expected)[..]), "{title}");
    }
}

const RELOAD_IN_HOOK: [&str; 2] = ["issue server", "restart cluster-agent"];

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// Six reissues for addresses in an hour, and renewal goes on; three restarts.
/// Which of two services runs the API server: the lock of newer nodes says so, and what runs where it is missing.
#[test]
fn the_service_that_runs_the_api_server_is_restarted() {
    let state = |active| ipguard::facts::cluster::ServiceState {
        active,
        started: Some(Duration::from_secs(60)),
        main_process: None,
        standing: Default::default(),
        detail: "told by the test".to_owned(),
    };
    let mut services = hosts::profile();
    services.push(ipguard::facts::cluster::Service {
        name: "apiserver".to_owned(),
        role: ipguard::facts::cluster::Role::FormerApiServer,
        unit: "snap.microk8s.daemon-apiserver.service".to_owned(),
        snap: Some("microk8s.daemon-apiserver".to_owned()),
        ready: None,
    });
    // (lite.lock, kubelite, the former one) -> restarted
    for (lite, kubelite, former, restarted) in [
        (true, Some(true), Some(false), Some("kubelite")),
        (true, Some(false), Some(true), None),
        (false, Some(false), Some(true), Some("apiserver")),
        (false, Some(true), Some(true), Some("apiserver")),
        (false, Some(true), Some(false), Some("kubelite")),
        (false, Some(true), None, Some("kubelite")),
        (false, Some(false), Some(false), None),
    ] {
        let mut host = renumbered(|h| h.certificate(&["192.0.2.20"]));
        host.cluster.locks.clear();
        if lite {
            lock(&mut host, "lite.lock", DAY);
        }
        host.services.insert("kubelite".to_owned(), state(kubelite));
        host.services.insert("apiserver".to_owned(), state(former));
        let plan = ipguard::decide::plan(&host.observed(), &services, &host.config, &host.state, host.now, host.mode);
        let found = plan.steps.iter().find_map(|step| match step {
            Step::Restart { service, .. } if service != "cluster-agent" => Some(service.as_str()),
            _ => None,
        });
        assert_eq!(
            found,
            restarted,
            "lite.lock {lite}, kubelite {kubelite:?}, apiserver {former:?}: {:?}",
            holds(&plan)
        );
    }
}

/// A restart that somebody has handed over and nobody has seen the end of.
#[test]
fn a_restart_that_is_under_way_is_not_repeated() {
    let begun = |age: Duration| {
        renumbered(|h| {
            h.certificate(&["192.0.2.20"]);
            let at = h.now.wall - age;
            let (service, reason) = ("kubelite".to_owned(), "node-address-replaced".to_owned());
            h.state.restarts.push(Restart { at, service, reason, open: true });
        })
    };
    let host = begun(MINUTE);
    let plan = host.plan();
    assert_eq!((holds(&plan), steps(&plan)), (vec!["restart-under-way".to_owned()], vec![]));
    assert_eq!(plan.look_again, Some(host.now.wall + MINUTE * 2));
    let hook = Host { mode: Mode::Hook, ..host.clone() }.plan();
    assert!(!hook.caller_restarts, "{:?}", holds(&hook));
    // It never came to its end: three minutes are enough.
    assert!(steps(&begun(MINUTE * 3).plan()).contains(&"restart kubelite".to_owned()));
    // Nobody claims it a second time meanwhile.
    let mut state = begun(MINUTE).state;
    let reason = ipguard::decide::plan::ReasonCode::NodeAddressReplaced;
    assert!(!state.claim_restart("kubelite", reason, host.now.wall));
    assert!(state.claim_restart("kubelite", reason, host.now.wall + MINUTE * 2));
    assert_eq!(state.restarts.len(), 2);
    // One that was claimed and not done is forgotten, one whose end is known is closed.
    for (result, left, open) in [
        (StepResult::Skipped("not running".to_owned()), 0, false),
        (StepResult::NotTried("told to end before it was handed over".to_owned()), 0, false),
        (StepResult::Restarted, 1, false),
        (StepResult::Begun, 1, true),
    ] {
        let mut host = changed(served_stale);
        let plan = host.plan();
        let step = plan.steps.iter().find(|step| matches!(step, Step::Restart { .. })).expect("a restart");
        assert!(host.state.claim_restart("kubelite", ipguard::decide::plan::ReasonCode::ServedStale, host.now.wall));
        let outcome = outcome(step, result.clone(), &host);
        host.state.record(&plan, &[outcome]);
        let restarts = &host.state.restarts;
        assert_eq!((restarts.len(), restarts.iter().any(|r| r.open)), (left, open), "{result}");
    }
}

#[test]
fn limits() {
    let mut host = changed(|_| {});
    for n in 1..=8 {
        host.add("eth0", &format!("10.{n}.0.4/24"));
        let plan = carry_out(&mut host, &[]);
        assert_eq!(steps(&plan), if n <= 6 { strings(RELOAD) } else { vec![] }, "address {n}");
        host.pass_time(MINUTE);
    }
    assert_eq!(holds(&host.settle()), ["reissue-limit"]);
    let mut expiring = host.clone();
    near_expiry(&mut expiring);
    let plan = carry_out(&mut expiring, &[]);
    assert_eq!(steps(&plan), RELOAD);
    assert!(expiring.plan().san.missing.is_empty(), "what is made anyway has them all");
    let until = host.settle().look_again.expect("it ends");
    host.pass_time(until.since(host.now.wall));
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD, "and the rest comes in one");

    let mut host = changed(|_| {});
    for n in 1..=5 {
        let old = host.planned_primary().join(" ");
        host.remove(&old);
        host.add("eth0", &format!("192.0.2.{}/24", 50 + n));
        carry_out(&mut host, &[]);
        host.pass_time(MINUTE);
        let plan = carry_out(&mut host, &[]);
        host.service_since(host.now.uptime);
        host.pass_time(MINUTE);
        assert_eq!(plan.restarts_api_server(), n <= 3, "restart {n}: {:?}", plan.holds);
        if n > 3 {
            assert_eq!(holds(&plan), ["restart-limit"]);
            break;
        }
    }
}

/// Above 256 names the newest addresses are left out, never configured ones, the node's, or what is there.
#[test]
fn a_certificate_has_an_end() {
    let mut host = changed(|h| h.config.addresses.secondary = SecondaryPolicy::Include);
    for n in 0..200 {
        host.add("eth0", &format!("10.{n}.0.4/24"));
    }
    carry_out(&mut host, &[]);
    for n in 0..200 {
        host.add("eth0", &format!("10.{n}.1.4/24"));
        host.add("eth0", &format!("10.{n}.0.100/24"));
    }
    host.config.certificate.extra_sans = sans(&["late.example.com"]).into_iter().collect();
    host.pass_time(MINUTE);
    let plan = carry_out(&mut host, &[]);
    assert_eq!(steps(&plan), RELOAD);
    let Step::Issue(order) = &plan.steps[0] else { panic!("{:?}", plan.steps) };
    assert_eq!(order.sans.len(), 256);
    assert!(order.sans.is_superset(&sans(&["late.example.com", "192.0.2.10", "10.199.0.4", "kubernetes"])));
    assert!(!plan.san.left_out.is_empty() && !plan.notices.is_empty());
    host.pass_time(DAY);
    assert_eq!((reasons(&host.settle()), steps(&host.settle())), (vec![], vec![]), "and it is in step");
}
