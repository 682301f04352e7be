//! An API server that was restarted says whether it is ready; one that is not is reported, and never restarted for it.

use ipguard::decide::ready::AwaitedReady;

use super::*;

/// It was restarted this long ago by us, and has been asked so often, the last time just now.
fn restarted(ago: Duration, asked: u32) -> Host {
    changed(|h| {
        h.state.awaited_ready = Some(AwaitedReady {
            since: h.now.wall - ago,
            asked,
            last: (asked > 0).then_some(h.now.wall),
            said: "status 500: etcd failed".to_owned(),
        });
    })
}

fn patience(plan: &Plan, host: &Host) -> Option<u64> {
    plan.steps.iter().find_map(|step| match step {
        Step::ConfirmReady { deadline, path, port, .. } => {
            assert_eq!((path.as_str(), *port), ("/readyz", 16443));
            Some(deadline.since(host.now.wall).as_secs())
        }
        _ => None,
    })
}

#[test]
fn it_is_asked_until_it_says_yes_at_growing_intervals() {
    let host = restarted(MINUTE, 0);
    assert_eq!(patience(&host.plan(), &host), Some(120), "the rest of the three minutes that a start may take");
    let host = Host { mode: Mode::OneShot, ..host };
    assert_eq!(patience(&host.plan(), &host), Some(5), "somebody waits for the answer");
    let mut host = restarted(HOUR, 0);
    assert_eq!(patience(&host.plan(), &host), Some(5));
    let mut waits = Vec::new();
    for round in 0..6 {
        let plan = host.plan();
        assert_eq!(steps(&plan), ["ready"], "round {round}");
        let outcome = outcome(&plan.steps[0], StepResult::NotReady("status 500: etcd failed".to_owned()), &host);
        host.state.record(&plan, &[outcome]);
        // So long the step took.
        host.pass_time(Duration::from_secs(1));
        let plan = host.plan();
        assert_eq!(steps(&plan), NONE);
        let until = plan.look_again.expect("it is asked again");
        waits.push(until.since(host.now.wall).as_secs());
        host.pass_time(until.since(host.now.wall));
    }
    assert!(waits[0] >= 30 && waits[5] >= 900 && waits.is_sorted(), "{waits:?}");
    let plan = host.plan();
    let outcome = outcome(&plan.steps[0], StepResult::Ready, &host);
    host.state.record(&plan, &[outcome]);
    host.pass_time(DAY);
    assert_eq!((steps(&host.plan()), host.plan().notices.len()), (vec![], 0));
}

/// However long it lasts and whatever it says: no restart, no reissue, no hold, and the verdict stays.
#[test]
fn it_is_reported_and_never_restarted_for_it() {
    let plan = restarted(DAY, 9).plan();
    assert_eq!((steps(&plan), holds(&plan), plan.summary.to_string()), (vec![], vec![], "in-step".to_owned()));
    assert!(plan.notices.iter().any(|n| n.contains("is not ready: status 500: etcd failed")), "{:?}", plan.notices);
    // Nobody has asked yet: there is nothing to report.
    assert!(restarted(MINUTE, 0).plan().notices.is_empty());
}

#[test]
fn nobody_else_is_asked() {
    // Whether it runs is asked first.
    let mut unknown = restarted(MINUTE, 0);
    unknown.services.clear();
    assert!(unknown.plan().needs_services);
    // Not by a hook, which must not wait; not of a service that does not run; not where the profile knows no way.
    let host = restarted(MINUTE, 0);
    assert_eq!(steps(&Host { mode: Mode::Hook, ..host.clone() }.plan()), NONE);
    let mut stopped = restarted(MINUTE, 0);
    stopped.services.get_mut("kubelite").expect("asked").active = Some(false);
    assert_eq!(steps(&stopped.plan()), NONE);
    let mut services = hosts::profile();
    services.iter_mut().for_each(|service| service.ready = None);
    let plan = ipguard::decide::plan(&host.observed(), &services, &host.config, &host.state, host.now, host.mode);
    assert_eq!(steps(&plan), NONE);
    // Nobody was restarted.
    assert_eq!(steps(&changed(|_| {}).plan()), NONE);
    // While a node joins everything waits.
    let mut joining = restarted(MINUTE, 0);
    lock(&mut joining, "join-in-progress", MINUTE);
    assert_eq!(steps(&joining.plan()), NONE);
}

/// A restart that was handed over and not waited for counts too; one that nobody did does not.
#[test]
fn what_was_restarted_is_asked() {
    for (result, awaited) in [
        (StepResult::Restarted, true),
        (StepResult::Begun, true),
        (StepResult::Failed("killed".to_owned()), true),
        (StepResult::Skipped("not running".to_owned()), false),
    ] {
        let mut host = changed(served_stale);
        let plan = host.plan();
        let step = plan.steps.iter().find(|step| matches!(step, Step::Restart { .. })).expect("a restart");
        let outcome = outcome(step, result.clone(), &host);
        host.state.record(&plan, &[outcome]);
        assert_eq!(host.state.awaited_ready.is_some(), awaited, "{result}");
    }
}
