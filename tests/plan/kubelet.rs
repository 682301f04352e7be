//! The kubelet's certificate on its port: what is asked, when it is a reason to restart, and when it is none.

use super::certificates::complete;
use super::*;
use ipguard::decide::plan::{IssueOrder, ReasonCode, Subject};
use ipguard::decide::state::{InPlace, Issuing};
use ipguard::facts::certificate::CertificateFacts;

const OLD: Fingerprint = Fingerprint([7; 32]);
const NEW: Fingerprint = Fingerprint([99; 32]);

fn kubelet(host: &mut Host) -> &mut CertificateFacts {
    host.cluster.certificates.iter_mut().find(|facts| facts.role == CertificateRole::Kubelet).expect("it has one")
}

fn order_of(plan: &Plan) -> IssueOrder {
    let order = plan.steps.iter().find_map(|step| match step {
        Step::Issue(order) if order.shown_by_kubelet => Some(order.clone()),
        _ => None,
    });
    order.expect("the kubelet's certificate is made")
}

/// A host whose kubelet certificate was made anew a moment ago, in place of `OLD`.
fn reissued() -> Host {
    let mut host = complete(|h| _ = h.forced.insert("kubelet".to_owned()));
    let order = order_of(&host.settle());
    host.forced.clear();
    put_in_place(&mut host, &order, OLD, NEW);
    host
}

fn put_in_place(host: &mut Host, order: &IssueOrder, before: Fingerprint, after: Fingerprint) {
    let issuing = Issuing::new(order, Some(before), &[], host.now.wall);
    host.state.issued(&issuing, after, &order.sans, InPlace::default());
    let leaf = kubelet(host).leaf.as_mut().expect("readable");
    leaf.fingerprint = after;
    leaf.sans = order.sans.clone();
}

/// The port is asked and answers this.
fn answer(host: &mut Host, result: StepResult) -> Plan {
    let plan = host.settle();
    let step = plan.steps.iter().find(|step| matches!(step, Step::ConfirmServed { shown_by_kubelet: true, .. }));
    let step = step.unwrap_or_else(|| panic!("the port is asked: {:?}", steps(&plan)));
    let outcome = outcome(step, result, host);
    host.state.record(&plan, &[outcome]);
    plan
}

#[test]
fn its_own_port_is_asked_and_the_api_servers_is_not() {
    let mut host = reissued();
    host.cluster.arguments.kubelet_port = 10260;
    host.cluster.arguments.kubelet_address = FlagAddress::Address(ip("192.0.2.10"));
    let plan = answer(&mut host, StepResult::Confirmed);
    assert_eq!(steps(&plan), ["confirm kubelet"]);
    assert!(
        plan.steps[0].to_string().starts_with("confirm that 192.0.2.10:10260 serves the kubelet"),
        "{}",
        plan.steps[0]
    );
    assert_eq!((&host.state.unconfirmed_kubelet, &host.state.unconfirmed), (&None, &None));
    assert_eq!(steps(&host.plan()), NONE);
}

#[test]
fn the_certificate_before_on_the_port_is_one_restart() {
    let mut host = reissued();
    answer(&mut host, StepResult::Stale { served: OLD });
    let plan = host.settle();
    assert_eq!(steps(&plan), ["restart kubelite", "confirm", "ready", "confirm kubelet"]);
    assert_eq!((plan.reasons[0].code, plan.reasons[0].certificate.as_str()), (ReasonCode::ServedStale, "kubelet"));
    let restarted = outcome(&plan.steps[0], StepResult::Restarted, &host);
    let still = outcome(&plan.steps[3], StepResult::Stale { served: OLD }, &host);
    let ready = outcome(&plan.steps[2], StepResult::Ready, &host);
    host.state.record(&plan, &[restarted, ready, still]);
    let plan = host.settle();
    assert_eq!(steps(&plan), NONE, "a second one would not help");
    assert!(plan.notices.iter().any(|notice| notice.contains("even after a restart")), "{:?}", plan.notices);
    assert_eq!(host.state.restarts.len(), 1);
}

/// Whatever holds a restart holds this one, and it counts against the limit.
#[test]
fn the_restart_is_limited_and_held_like_the_api_servers() {
    let mut host = reissued();
    answer(&mut host, StepResult::Stale { served: OLD });
    for (change, held) in [
        ((|h: &mut Host| lock(h, "stopped.lock", HOUR)) as fn(&mut Host), "stopped"),
        (|h| h.config.restart.policy = RestartPolicy::Never, "restart-disabled"),
        (
            |h| {
                let at = h.now.wall;
                let restart = Restart { at, service: "kubelite".to_owned(), reason: "test".to_owned(), open: false };
                h.state.restarts = vec![restart; 3];
            },
            "restart-limit",
        ),
    ] {
        let mut host = host.clone();
        change(&mut host);
        let plan = host.plan();
        assert_eq!((holds(&plan), steps(&plan)), (vec![held.to_owned()], vec![]), "{held}");
    }
    host.services.get_mut("kubelite").expect("there").active = Some(false);
    assert_eq!(steps(&host.plan()), NONE, "a stopped one is never started, and reads it when it is");
    host.services.clear();
    assert!(host.plan().needs_services);
}

/// One restart serves both: for a replaced node address the process is restarted anyway.
#[test]
fn a_restart_for_another_reason_serves_the_kubelet_too() {
    let mut host = reissued();
    answer(&mut host, StepResult::Stale { served: OLD });
    served_stale(&mut host);
    let plan = host.settle();
    assert_eq!(steps(&plan), ["restart kubelite", "confirm", "ready", "confirm kubelet"]);
    assert_eq!(plan.reasons.iter().map(|r| r.certificate.as_str()).collect::<Vec<_>>(), ["server", "kubelet"]);
    host.state.record(&plan, &[outcome(&plan.steps[0], StepResult::Restarted, &host)]);
    assert_eq!(steps(&host.plan()), ["confirm", "ready", "confirm kubelet"]);
}

/// The kubelet may have a certificate of its own from a file of its configuration, or the port may be somebody else's.
#[test]
fn another_certificate_on_the_port_is_no_reason() {
    let mut host = reissued();
    answer(&mut host, StepResult::Stale { served: Fingerprint([1; 32]) });
    assert_eq!(steps(&host.plan()), NONE);
    // One that has loaded neither of the last two still shows what the first of them replaced.
    let mut host = reissued();
    let order = {
        host.forced.insert("kubelet".to_owned());
        let order = order_of(&host.settle());
        host.forced.clear();
        order
    };
    put_in_place(&mut host, &order, NEW, Fingerprint([3; 32]));
    answer(&mut host, StepResult::Stale { served: OLD });
    assert_eq!(steps(&host.plan())[0], "restart kubelite");
}

#[test]
fn no_answer_is_asked_for_again_and_is_no_reason() {
    let mut host = reissued();
    answer(&mut host, StepResult::Unanswered("closed".to_owned()));
    let plan = host.settle();
    assert_eq!(steps(&plan), NONE);
    let at = plan.look_again.expect("it is asked again");
    assert!(at <= host.now.wall + MINUTE, "{at}");
    host.pass_time(MINUTE);
    assert_eq!(steps(&host.plan()), ["confirm kubelet"]);
    // Told once more that it was put in place - by the daemon, behind the one that did - it forgets nothing.
    let asked = host.state.unconfirmed_kubelet.clone();
    let mut order = order_of(&complete(|h| _ = h.forced.insert("kubelet".to_owned())).plan());
    order.sans = sans(&["node-1"]);
    host.state.issued(&Issuing::new(&order, None, &[], host.now.wall), NEW, &order.sans, InPlace::default());
    assert_eq!(host.state.unconfirmed_kubelet, asked);
    // Nobody waits for a port in a hook.
    host.mode = Mode::Hook;
    assert_eq!(steps(&host.plan()), NONE);
}

/// Killed between the file and the note of it: the next pass knows that the port has to be asked.
#[test]
fn a_writer_that_was_killed_leaves_the_question() {
    let mut host = complete(|h| _ = h.forced.insert("kubelet".to_owned()));
    let order = order_of(&host.settle());
    host.forced.clear();
    host.state.issuing = Some(Issuing::new(&order, Some(OLD), &[], host.now.wall));
    kubelet(&mut host).leaf.as_mut().expect("readable").fingerprint = NEW;
    let plan = host.settle();
    assert_eq!(steps(&plan), ["confirm kubelet"]);
    assert_eq!(host.state.unconfirmed_kubelet.as_ref().map(|u| u.replaced.clone()), Some(vec![OLD.to_hex()]));
}

/// As `GenerateSelfSignedCertKey` of Kubernetes names them.
fn made_for_itself(host: &mut Host) {
    let facts = kubelet(host);
    facts.issued_by_authority = Some(false);
    let leaf = facts.leaf.as_mut().expect("readable");
    leaf.issuer = b"0\x1b1\x190\x17\x06\x03U\x04\x03\x0c\x10node-1-ca@1700000000".to_vec();
    leaf.subject = b"0\x181\x160\x14\x06\x03U\x04\x03\x0c\x0dnode-1@1700000000".to_vec();
}

/// Without one of the cluster's it makes one for itself at its start; where nobody verifies it, nothing is wrong.
#[test]
fn one_that_it_made_for_itself_is_left_alone_where_nobody_asks() {
    let host = complete(made_for_itself);
    let plan = host.plan();
    assert_eq!((holds(&plan), steps(&plan)), (vec![], vec![]));
    assert_eq!(plan.reasons.len(), 0, "{:?}", plan.reasons);
    assert!(plan.notices.iter().any(|notice| notice.contains("made it for itself")), "{:?}", plan.notices);
}

/// Where the API server verifies kubelets, `kubectl logs` fails as long as it is there, and nobody wants to keep it.
#[test]
fn one_that_it_made_for_itself_is_replaced_where_the_api_server_verifies() {
    let mut host = complete(made_for_itself);
    host.cluster.arguments.verifies_kubelets = true;
    let plan = host.settle();
    assert_eq!((holds(&plan), steps(&plan)), (vec![], vec!["issue kubelet".to_owned(), "confirm kubelet".to_owned()]));
    let order = order_of(&plan);
    assert!(matches!(&order.subject, Subject::Attributes(subject) if !subject.is_empty()), "{:?}", order.subject);
}

/// Somebody's own certificate looks different, and so does the API server's.
#[test]
fn only_the_kubelets_own_handwriting_is_recognised() {
    type Change = fn(&mut Host);
    let own: [Change; 4] = [
        |h| kubelet(h).leaf.as_mut().expect("readable").issuer = b"A company ca@1700000000".to_vec(),
        |h| kubelet(h).leaf.as_mut().expect("readable").issuer = b"node-1-ca@17".to_vec(),
        |h| kubelet(h).leaf.as_mut().expect("readable").subject = b"admin@example.com".to_vec(),
        |h| kubelet(h).leaf.as_mut().expect("readable").subject = b"1700000000".to_vec(),
    ];
    for (index, change) in own.into_iter().enumerate() {
        let mut host = complete(made_for_itself);
        change(&mut host);
        assert_eq!((holds(&host.plan()), steps(&host.plan())), (vec!["foreign-issuer".to_owned()], vec![]), "{index}");
    }
    let host = complete(|h| {
        made_for_itself(h);
        let leaf = kubelet(h).leaf.clone();
        h.cluster.certificates[0].leaf = leaf;
        h.cluster.certificates[0].issued_by_authority = Some(false);
    });
    assert!(holds(&host.plan()).contains(&"foreign-issuer".to_owned()), "{:?}", holds(&host.plan()));
}
