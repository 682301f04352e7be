//! What triggers what: the table of reasons, holds and steps, row by row, and in every mode.

#[path = "plan/certificates.rs"]
mod certificates;
#[path = "plan/clock.rs"]
mod clock;
#[path = "plan/damaged_state.rs"]
mod damaged_state;
#[path = "plan/down.rs"]
mod down;
#[path = "plan/history.rs"]
mod history;
mod hosts;
#[path = "plan/join_tokens.rs"]
mod join_tokens;
#[path = "plan/kubelet.rs"]
mod kubelet;
#[path = "plan/modes.rs"]
mod modes;
#[path = "plan/names.rs"]
mod names;
#[path = "plan/purposes.rs"]
mod purposes;
#[path = "plan/ready.rs"]
mod ready;
#[path = "plan/rollback.rs"]
mod rollback;
#[path = "plan/table.rs"]
mod table;
#[path = "plan/takeover.rs"]
mod takeover;
#[path = "plan/template.rs"]
mod template;
#[path = "plan/word.rs"]
mod word;

use std::time::Duration;

use hosts::{Host, ip, sans};
use ipguard::config::{RestartPolicy, SecondaryPolicy};
use ipguard::decide::Mode;
use ipguard::decide::outcome::{StepOutcome, StepResult};
use ipguard::decide::plan::{Plan, Step};
use ipguard::decide::state::{Added, Restart, Unconfirmed};
use ipguard::facts::certificate::{CertificateRole, Fingerprint, PublicKey};
use ipguard::facts::cluster::FlagAddress;
use ipguard::facts::time::Now;
use ipguard::facts::{Problem, ReadError};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

const NONE: &[&str] = &[];
const RELOAD: &[&str] = &["issue server", "confirm", "restart cluster-agent"];
const REISSUE_AND_RESTART: &[&str] = &["issue server", "restart cluster-agent", "restart kubelite", "confirm", "ready"];

/// A host in step, changed afterwards.
fn changed(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::usual();
    host.settle();
    host.pass_time(MINUTE);
    change(&mut host);
    host
}

/// The node address was replaced and every wait is over.
fn renumbered(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = changed(|h| {
        h.remove("192.0.2.10");
        h.add("eth0", "192.0.2.20/24");
        h.settle();
        h.pass_time(MINUTE);
    });
    change(&mut host);
    host
}

fn broken(path: &str) -> ReadError {
    ReadError { path: path.into(), problem: Problem::Empty }
}

fn lock(host: &mut Host, name: &str, age: Duration) {
    host.cluster.locks.insert(name.to_owned(), host.now.wall - age);
}

fn near_expiry(host: &mut Host) {
    let leaf = host.cluster.certificates[0].leaf.as_mut().expect("readable");
    (leaf.not_before, leaf.not_after) = (host.now.wall - DAY * 355, host.now.wall + DAY * 10);
}

/// The port still serves the certificate before the one in place.
fn served_stale(host: &mut Host) {
    let fingerprint = host.cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint.to_hex();
    host.state.unconfirmed = Some(Unconfirmed {
        fingerprint,
        since: host.now.wall - MINUTE,
        stale: true,
        restarted: false,
        unanswered: 0,
        asked: Some(host.now.wall),
        replaced: Vec::new(),
        unusable: None,
    });
}

fn template_names(host: &mut Host, names: &[&str]) {
    let template = host.cluster.template.as_mut().expect("there").as_mut().expect("readable");
    template.sans.extend(sans(names));
}

fn steps(plan: &Plan) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::Issue(order) => format!("issue {}", order.certificate),
        Step::ConfirmServed { shown_by_kubelet: true, .. } => "confirm kubelet".to_owned(),
        Step::PutBack { certificate, .. } => format!("put back {certificate}"),
        Step::ConfirmServed { .. } => "confirm".to_owned(),
        Step::ConfirmReady { .. } => "ready".to_owned(),
        Step::Restart { service, .. } => format!("restart {service}"),
        Step::Disable { service, .. } => format!("disable {service}"),
    };
    plan.steps.iter().map(name).collect()
}

fn reasons(plan: &Plan) -> Vec<String> {
    plan.reasons.iter().map(|r| r.code.to_string()).collect()
}

fn holds(plan: &Plan) -> Vec<String> {
    plan.holds.iter().map(|h| h.code.to_string()).collect()
}

fn outcome(step: &Step, result: StepResult, host: &Host) -> StepOutcome {
    StepOutcome { step: step.clone(), result, began: host.now.wall, took: Duration::from_secs(1) }
}

/// Carries a plan out: every step named here fails, those after a failed issue are skipped, the others succeed.
fn carry_out(host: &mut Host, failing: &[&str]) -> Plan {
    let plan = host.settle();
    let mut outcomes = Vec::new();
    let mut issue_failed = false;
    for (step, name) in plan.steps.iter().zip(steps(&plan)) {
        let result = if issue_failed {
            StepResult::NotTried("an earlier step failed".to_owned())
        } else if failing.contains(&name.as_str()) {
            issue_failed |= matches!(step, Step::Issue(order) if order.served);
            StepResult::Failed("no luck".to_owned())
        } else {
            match step {
                Step::Issue(order) => {
                    // No two certificates are the same.
                    let count = u8::try_from(host.state.reissues.len()).expect("the log is short");
                    let fingerprint = Fingerprint([42 + count; 32]);
                    let leaf = host.cluster.certificates[0].leaf.as_mut().expect("readable");
                    leaf.sans = order.sans.clone();
                    leaf.fingerprint = fingerprint;
                    StepResult::Issued { fingerprint }
                }
                Step::PutBack { .. } => unreachable!("no server here says that it cannot use its certificate"),
                Step::ConfirmServed { .. } => StepResult::Confirmed,
                Step::ConfirmReady { .. } => StepResult::Ready,
                Step::Restart { .. } => StepResult::Restarted,
                Step::Disable { .. } => StepResult::Disabled,
            }
        };
        outcomes.push(outcome(step, result, host));
    }
    host.state.record(&plan, &outcomes);
    plan
}
