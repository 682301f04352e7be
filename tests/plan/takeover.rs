//! A guard that was taken over from and turned on again: turned off, not in a loop, and never without an order.

use ipguard::decide;
use ipguard::decide::plan::{HoldCode, Summary};
use ipguard::facts::cluster::{Role, Service, ServiceState};
use ipguard::facts::takeover::Takeover;
use ipguard::facts::time::Timestamp;

use super::*;

const KICKER: &str = "apiserver-kicker";

/// A host, its kicker, and the order about it.
struct Node {
    host: Host,
    ordered: bool,
    enabled: bool,
    /// `None` where nobody knows.
    runs: Option<bool>,
    asked: Option<Timestamp>,
}

impl Node {
    /// In step, taken over from a kicker that is off; it was asked for a minute ago.
    fn new() -> Self {
        let host = changed(|_| {});
        let asked = Some(host.now.wall - MINUTE);
        Self { host, ordered: true, enabled: false, runs: Some(false), asked }
    }

    fn services() -> Vec<Service> {
        let mut services = hosts::profile();
        services.push(Service {
            name: KICKER.to_owned(),
            role: Role::OtherGuard,
            unit: format!("snap.microk8s.daemon-{KICKER}.service"),
            snap: Some(format!("microk8s.daemon-{KICKER}")),
            ready: None,
        });
        services
    }

    fn plan(&self, answered: bool) -> Plan {
        let mut observed = self.host.observed();
        if answered {
            let detail = "told by the test".to_owned();
            let state = ServiceState {
                active: self.runs,
                started: None,
                main_process: Some(99),
                standing: Default::default(),
                detail,
            };
            observed.services.insert(KICKER.to_owned(), state);
        } else {
            observed.services.clear();
        }
        let enabled = self.enabled.then(|| KICKER.to_owned());
        let since = self.host.now.wall - HOUR;
        observed.takeover = self.ordered.then(|| Ok(Takeover { since, enabled_guards: enabled.into_iter().collect() }));
        observed.services_asked = self.asked;
        let host = &self.host;
        decide::plan(&observed, &Self::services(), &host.config, &host.state, host.now, host.mode)
    }

    /// What the daemon does in one pass: it asks where the plan says so. True when it asked.
    fn pass(&mut self) -> (Plan, bool) {
        let first = self.plan(false);
        if !first.needs_services {
            self.host.state = first.state.clone();
            return (first, false);
        }
        self.asked = Some(self.host.now.wall);
        let plan = self.plan(true);
        self.host.state = plan.state.clone();
        (plan, true)
    }

    /// As [`Node::pass`], with its steps carried out.
    fn act(&mut self, result: StepResult) -> Plan {
        let (plan, _) = self.pass();
        let outcomes: Vec<StepOutcome> =
            plan.steps.iter().map(|step| outcome(step, result.clone(), &self.host)).collect();
        self.host.state.record(&plan, &outcomes);
        if result == StepResult::Disabled && !plan.steps.is_empty() {
            (self.enabled, self.runs) = (false, Some(false));
        }
        plan
    }
}

fn disables() -> Vec<String> {
    vec![format!("disable {KICKER}")]
}

#[test]
fn without_an_order_the_guard_is_never_touched() {
    for (enabled, runs) in [(true, Some(true)), (true, Some(false)), (false, Some(true)), (true, None)] {
        let mut node = Node::new();
        (node.ordered, node.enabled, node.runs, node.asked) = (false, enabled, runs, None);
        let (plan, asked) = node.pass();
        assert!(!asked, "nothing is asked for its sake");
        assert!(steps(&plan).is_empty(), "{enabled} {runs:?}");
        node.host.add("eth0", "198.51.100.9/24").label = None;
        let plan = node.plan(true);
        assert!(!steps(&plan).contains(&disables()[0]), "{enabled} {runs:?}");
        assert_eq!(holds(&plan).contains(&"another-guard-active".to_owned()), runs == Some(true));
    }
}

#[test]
fn what_is_on_is_turned_off_first_and_the_rest_waits_for_a_running_one_only() {
    let rows: [(bool, Option<bool>, &[&str]); 4] = [
        (true, Some(true), &[]),
        (false, Some(true), &[]),
        (true, Some(false), RELOAD),
        // Nobody knows whether it runs, but the next boot would start it.
        (true, None, RELOAD),
    ];
    for (enabled, runs, behind) in rows {
        let mut node = Node::new();
        (node.enabled, node.runs) = (enabled, runs);
        node.host.add("eth0", "198.51.100.9/24").label = None;
        let plan = node.plan(true);
        let expected: Vec<String> =
            disables().into_iter().chain(behind.iter().map(|step| (*step).to_owned())).collect();
        assert_eq!(steps(&plan), expected, "{enabled} {runs:?}");
        assert!(reasons(&plan).contains(&"guard-enabled".to_owned()));
        let held = plan.holds.iter().find(|hold| hold.code == HoldCode::AnotherGuardActive);
        assert_eq!(held.is_some(), runs == Some(true), "{enabled} {runs:?}");
        if let Some(held) = held {
            assert!(held.detail.ends_with("it is turned off, as `ipguard takeover` ordered"), "{}", held.detail);
        }
    }
}

#[test]
fn one_that_is_off_is_left_alone() {
    let mut node = Node::new();
    let (plan, asked) = node.pass();
    assert!(!asked, "it was asked for a minute ago, and is not enabled");
    assert_eq!((plan.summary, steps(&plan).len()), (Summary::InStep, 0));
    assert_eq!(steps(&node.plan(true)), NONE);
}

#[test]
fn its_state_is_asked_for_when_it_is_enabled_and_every_five_minutes() {
    let mut node = Node::new();
    let (plan, _) = node.pass();
    let due = node.asked.expect("asked") + MINUTE * 5;
    assert!(plan.look_again.is_some_and(|at| at <= due), "{:?}", plan.look_again);
    node.enabled = true;
    assert!(node.plan(false).needs_services);
    node.enabled = false;
    node.host.pass_time(MINUTE * 4);
    assert!(node.pass().1, "five minutes are over");
    // A daemon that starts has never asked, and one whose clock was set back cannot tell how long ago it was.
    for asked in [None, Some(node.host.now.wall + HOUR)] {
        node.asked = asked;
        assert!(node.plan(false).needs_services, "{asked:?}");
    }
    // One that was started without being enabled is found then.
    node.runs = Some(true);
    assert_eq!(steps(&node.act(StepResult::Disabled)), disables());
}

#[test]
fn only_the_daemon_turns_it_off() {
    for mode in [Mode::OneShot, Mode::Hook] {
        let mut node = Node::new();
        (node.enabled, node.runs, node.host.mode) = (true, Some(true), mode);
        assert_eq!(steps(&node.plan(true)), NONE);
        assert!(!node.plan(false).needs_services);
    }
}

#[test]
fn what_runs_under_the_guards_name_and_is_us_stays() {
    let mut node = Node::new();
    node.enabled = true;
    let mut observed = node.host.observed();
    observed.takeover = Some(Ok(Takeover { enabled_guards: [KICKER.to_owned()].into(), ..Takeover::default() }));
    let state = |process| ServiceState {
        active: Some(true),
        started: None,
        main_process: Some(process),
        standing: Default::default(),
        detail: "told by the test".to_owned(),
    };
    for (process, expected) in [(4242, Vec::new()), (1, Vec::new()), (99, disables())] {
        observed.services.insert(KICKER.to_owned(), state(process));
        let host = &node.host;
        let plan = decide::plan(&observed, &Node::services(), &host.config, &host.state, host.now, host.mode);
        assert_eq!(steps(&plan), expected, "{process}");
    }
}

#[test]
fn a_join_is_not_disturbed() {
    let mut node = Node::new();
    (node.enabled, node.runs) = (true, Some(true));
    lock(&mut node.host, "join-in-progress", MINUTE);
    assert_eq!(steps(&node.plan(true)), NONE);
    assert!(!node.plan(false).needs_services);
    // Every other lock is about certificates.
    for name in ["stopped.lock", "no-cert-reissue", "low-memory-guard.lock", "clustered.lock"] {
        let mut node = Node::new();
        (node.enabled, node.runs) = (true, Some(true));
        lock(&mut node.host, name, MINUTE);
        assert_eq!(steps(&node.plan(true)), disables(), "{name}");
    }
}

#[test]
fn an_order_that_cannot_be_read_touches_nothing_and_is_said() {
    for mode in [Mode::Daemon, Mode::OneShot] {
        let mut node = Node::new();
        (node.enabled, node.runs, node.host.mode) = (true, Some(true), mode);
        let mut observed = node.host.observed();
        observed.takeover = Some(Err(broken("takeover.json")));
        let host = &node.host;
        let plan = decide::plan(&observed, &Node::services(), &host.config, &host.state, host.now, host.mode);
        assert_eq!(steps(&plan), NONE);
        assert!(plan.notices.iter().any(|notice| notice.contains("takeover.json")), "{:?}", plan.notices);
    }
}

/// Something turns it on again the moment it is off, for a day.
#[test]
fn whoever_turns_it_on_again_and_again_is_answered_less_and_less_often() {
    let mut node = Node::new();
    let (mut disabled, mut asked, mut first_minute) = (0, 0, 0);
    for second in (5..=24 * 3_600).step_by(5) {
        (node.enabled, node.runs) = (true, Some(true));
        node.host.pass_time(Duration::from_secs(5));
        let before = node.asked;
        let plan = node.act(StepResult::Disabled);
        asked += usize::from(node.asked != before);
        disabled += steps(&plan).len();
        if steps(&plan).is_empty() {
            let until = plan.look_again.expect("time ends it");
            assert!(until > node.host.now.wall, "a pass that is due at once would be a loop");
            assert!(plan.notices.iter().any(|notice| notice.contains("again and again")), "{:?}", plan.notices);
        }
        if second == 60 {
            first_minute = disabled;
        }
    }
    assert_eq!(first_minute, 6, "six at once, ten seconds apart");
    assert!((24..=40).contains(&disabled), "{disabled} in a day, in the end one an hour");
    assert!(asked < 400, "{asked} questions in a day");
}

/// The hold says until when a running one stays.
#[test]
fn a_running_guard_holds_until_it_may_be_turned_off() {
    let mut node = Node::new();
    (node.enabled, node.runs) = (true, Some(true));
    node.act(StepResult::Disabled);
    (node.enabled, node.runs) = (true, Some(true));
    node.host.add("eth0", "198.51.100.9/24").label = None;
    node.host.pass_time(Duration::from_secs(2));
    let plan = node.plan(true);
    assert_eq!((steps(&plan), holds(&plan)), (Vec::new(), vec!["another-guard-active".to_owned()]));
    assert_eq!(plan.holds[0].until, Some(node.host.now.wall + Duration::from_secs(8)));
    node.host.pass_time(Duration::from_secs(8));
    assert_eq!(steps(&node.plan(true)), disables());
}

#[test]
fn a_failure_backs_off_and_counts_and_holds_nothing_else() {
    let mut node = Node::new();
    node.enabled = true;
    assert_eq!(steps(&node.act(StepResult::Failed("no luck".to_owned()))), disables());
    node.host.pass_time(Duration::from_secs(5));
    node.host.add("eth0", "198.51.100.9/24").label = None;
    assert_eq!(steps(&node.plan(true)), RELOAD, "what is not about it goes on");
    node.host.pass_time(Duration::from_secs(30));
    assert_eq!(steps(&node.plan(true)).first(), disables().first());
    assert_eq!(node.host.state.disablings.len(), 1);
}
