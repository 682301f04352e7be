//! An API server that systemd gave up behind our own restart: brought up again, with the certificate before where that may
//! be the cause, within the limit, and said for as long as it lasts. Nobody else's stop is undone.

use ipguard::decide::ready::AwaitedReady;
use ipguard::decide::rollback::RolledBack;
use ipguard::facts::cluster::Standing;

use super::*;

const BEFORE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn is(host: &mut Host, standing: Standing) {
    let kubelite = host.services.get_mut("kubelite").expect("asked");
    kubelite.detail = match &standing {
        Standing::Failed(result) => format!("failed (failed), {result}"),
        other => format!("{other:?}").to_lowercase(),
    };
    (kubelite.active, kubelite.standing) = (Some(false), standing);
}

fn failed() -> Standing {
    Standing::Failed("start-limit-hit".to_owned())
}

/// Restarted by us a minute ago, never ready since, and failed.
fn down() -> Host {
    changed(|h| {
        let at = h.now.wall - MINUTE;
        h.state.awaited_ready = Some(AwaitedReady::since(at));
        h.state.restarts.push(Restart {
            at,
            service: "kubelite".into(),
            reason: "node-address-replaced".into(),
            open: false,
        });
        is(h, failed());
    })
}

/// The same, with a certificate in place that no port has shown; the one before was shown.
fn down_with_a_new_certificate() -> Host {
    let mut host = down();
    let mut stale = changed(served_stale);
    let unconfirmed = stale.state.unconfirmed.as_mut().expect("just put there");
    (unconfirmed.stale, unconfirmed.restarted, unconfirmed.unanswered) = (false, true, 1);
    host.state.unconfirmed = stale.state.unconfirmed;
    host.state.shown = Some(BEFORE.to_owned());
    host
}

const UP_AGAIN: [&str; 3] = ["restart kubelite", "confirm", "ready"];

#[test]
fn it_is_restarted_once_more_and_verified() {
    let plan = down().plan();
    assert_eq!(
        (steps(&plan), reasons(&plan)),
        (
            vec!["restart kubelite".to_owned(), "confirm".to_owned(), "ready".to_owned()],
            vec!["service-down".to_owned()]
        )
    );
    let said = "kubelite did not come back behind the restart at ";
    let notice = plan.notices.iter().find(|notice| notice.starts_with(said)).expect("it is said");
    assert!(notice.contains("failed (failed), start-limit-hit"), "{notice}");
    assert!(notice.contains("journalctl -u snap.microk8s.daemon-kubelite.service"), "{notice}");
    // Whether it failed is asked first.
    let mut unknown = down();
    unknown.services.clear();
    assert!(unknown.plan().needs_services);
    // It is up: nothing is to be done but to ask it.
    let mut up = down();
    up.service_since(up.now.uptime);
    assert_eq!((steps(&up.plan()), up.plan().notices), (vec!["ready".to_owned()], Vec::<String>::new()));
}

/// Somebody else's business: nothing is started.
#[test]
fn what_others_stopped_stays_stopped() {
    let never = |what: &str, host: &Host| {
        let plan = host.plan();
        assert!(!steps(&plan).iter().any(|step| step.starts_with("restart")), "{what}: {:?}", steps(&plan));
    };
    for standing in [Standing::Stopped, Standing::Changing] {
        let mut host = down();
        is(&mut host, standing.clone());
        never(&format!("{standing:?}"), &host);
        assert!(host.plan().notices.is_empty(), "{standing:?}");
    }
    let mut host = down();
    host.state.awaited_ready = None;
    never("it was ready since, or was never restarted by us", &host);
    assert!(host.plan().notices.is_empty());
    let mut host = down();
    lock(&mut host, "stopped.lock", MINUTE);
    never("microk8s stop", &host);
    assert_eq!(holds(&host.plan()), ["stopped"]);
    let mut host = down();
    host.config.restart.policy = ipguard::config::RestartPolicy::Never;
    never("policy", &host);
    let mut host = down();
    lock(&mut host, "join-in-progress", MINUTE);
    never("a join", &host);
    never("a hook, whose caller starts it", &Host { mode: Mode::Hook, ..down() });
}

/// No loop: the limit of all restarts counts, then pauses, and all that time it is said.
#[test]
fn it_is_limited_and_lasting() {
    let mut host = down();
    let mut tries = Vec::new();
    let began = host.now.wall;
    while host.now.wall.since(began) < DAY {
        let plan = carry_out(&mut host, &UP_AGAIN);
        assert!(plan.notices.iter().any(|notice| notice.contains("did not come back")), "{:?}", plan.notices);
        if steps(&plan).contains(&"restart kubelite".to_owned()) {
            tries.push(host.now.wall.since(began).as_secs() / 60);
        } else {
            let held = holds(&plan);
            assert!(held.iter().any(|hold| hold == "failed-before" || hold == "restart-limit"), "{held:?}");
        }
        host.pass_time(MINUTE);
    }
    assert!((20..=27).contains(&tries.len()), "{} tries in a day: {tries:?}", tries.len());
    let in_an_hour = |from: u64| tries.iter().filter(|at| (from..from + 60).contains(*at)).count();
    assert!((0..24 * 60).all(|from| in_an_hour(from) <= 3), "{tries:?}");
}

#[test]
fn the_certificate_before_is_put_back_first_and_once() {
    let mut host = down_with_a_new_certificate();
    let plan = host.plan();
    assert_eq!(
        (steps(&plan), reasons(&plan)),
        (vec!["put back server".to_owned()], vec!["service-down".to_owned(), "served-unusable".to_owned()])
    );
    let [Step::PutBack { leaf, cause, .. }] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    assert_eq!((leaf.as_str(), cause.as_str()), (BEFORE, "it is failed (failed), start-limit-hit"));
    // It is back, and in its turn put in place and not shown: now it is restarted, and nothing is put back any further.
    let fingerprint = host.cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint.to_hex();
    host.state.note_rollback(&RolledBack {
        at: host.now.wall,
        certificate: "server".to_owned(),
        fingerprint,
        configuration: String::new(),
        cause: Some(cause.clone()),
    });
    assert_eq!(steps(&host.plan()), UP_AGAIN);
}

/// Certificates that cannot be the cause stay where they are.
#[test]
fn no_other_certificate_is_put_back() {
    let only_up_again = |what: &str, change: fn(&mut Host)| {
        let mut host = down_with_a_new_certificate();
        change(&mut host);
        assert_eq!(steps(&host.plan()), UP_AGAIN, "{what}");
    };
    only_up_again("the port has shown the one in place", |h| h.state.unconfirmed = None);
    only_up_again("nobody knows what it showed before", |h| h.state.shown = None);
    only_up_again("it was made behind the restart", |h| {
        h.state.unconfirmed.as_mut().expect("there").since = h.now.wall;
    });
    only_up_again("somebody else has replaced it", |h| {
        "another".clone_into(&mut h.state.unconfirmed.as_mut().expect("there").fingerprint);
    });
}
