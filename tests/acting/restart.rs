//! Asking for and restarting services through the commands of the service manager.

use std::time::{Duration, Instant};

use ipguard::act::execution::{Execution, Finished, Host, Pace, Progress};
use ipguard::act::services::Manager;
use ipguard::decide::outcome::StepResult;
use ipguard::decide::plan::{ReasonCode, Step};

use crate::stand_in::{Root, services};

fn restart(service: &str) -> Step {
    Step::Restart { service: service.to_owned(), reason: ReasonCode::LoadedOnce }
}

fn results(finished: &Finished) -> Vec<&StepResult> {
    finished.outcomes.iter().map(|outcome| &outcome.result).collect()
}

fn failure(finished: &Finished) -> &str {
    match results(finished)[..] {
        [StepResult::Failed(text)] => text,
        ref other => panic!("not one failure: {other:?}"),
    }
}

/// Pauses that a test can wait for.
fn brisk(host: Host) -> Host {
    let pace = Pace { retry_first: Duration::from_millis(50), retry_longest: Duration::from_millis(100), ..host.pace };
    Host { pace, ..host }
}

#[test]
fn one_command_asks_for_all() {
    let root = Root::new();
    root.systemctl();
    let finished = Execution::ask(services(), None, &root.host(Manager::Host)).run_to_end();
    assert_eq!(
        root.calls(),
        ["systemctl show --property=Id,ActiveState,SubState,Result,MainPID,ExecMainStartTimestampMonotonic \
          snap.microk8s.daemon-kubelite.service snap.microk8s.daemon-cluster-agent.service k3s.service"]
    );
    assert_eq!(finished.services.len(), 3);
    assert!(finished.services.values().all(|s| s.active == Some(true) && s.started == Some(Duration::from_secs(7))));
    assert!(finished.outcomes.is_empty());
}

#[test]
fn not_knowing_is_an_answer() {
    let root = Root::new();
    let finished = Execution::ask(services(), None, &root.host(Manager::Host)).run_to_end();
    let kubelite = &finished.services["kubelite"];
    assert_eq!(kubelite.active, None);
    assert!(kubelite.detail.ends_with("No such file or directory (os error 2)"), "{}", kubelite.detail);

    // One unit is answered for, then it fails.
    root.command("systemctl", "printf 'Id=k3s.service\\nActiveState=active\\n'; echo 'Bus error' >&2; exit 1");
    let finished = Execution::ask(services(), None, &root.host(Manager::Host)).run_to_end();
    assert_eq!(finished.services["k3s"].active, Some(true));
    assert_eq!(finished.services["kubelite"].active, None);
    assert!(finished.services["kubelite"].detail.ends_with("exit status: 1: Bus error"));

    // It never ends by itself, so whatever comes back was not waited for.
    root.command("systemctl", "while :; do sleep 300; done");
    let host = root.host(Manager::Host);
    let host = Host { pace: Pace { ask: Duration::from_millis(200), ..host.pace }, ..host };
    let finished = Execution::ask(services(), None, &host).run_to_end();
    assert!(finished.services["k3s"].detail.contains("had not ended after 0.2 s"), "{:?}", finished.services["k3s"]);

    let finished = Execution::ask(Vec::new(), None, &root.host(Manager::Host)).run_to_end();
    assert_eq!(finished, Finished::default());
}

#[test]
fn services_of_a_snap_go_through_snapd_and_units_through_systemd() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "");
    let steps = ["cluster-agent", "k3s"].map(restart).to_vec();
    let finished = Execution::carry_out(steps, root.host(Manager::Host)).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted, &StepResult::Restarted]);
    assert_eq!(root.changes(), ["snap restart microk8s.daemon-cluster-agent", "systemctl try-restart k3s.service"]);
    assert_eq!(root.calls().len(), 6, "a question right before each, and right behind: {:?}", root.calls());
    assert_eq!(finished.services["k3s"].active, Some(true));
    assert!(finished.outcomes[0].took > Duration::ZERO);
}

#[test]
fn inside_the_snap_only_snapctl_is_used() {
    let root = Root::new();
    root.command(
        "snapctl",
        "[ $1 = services ] || exit 0
        echo 'Service Startup Current Notes'
        echo \"$2 enabled active -\"",
    );
    let steps = ["kubelite", "k3s"].map(restart).to_vec();
    let finished = Execution::carry_out(steps, root.host(Manager::InsideSnap)).run_to_end();
    let (ask, restart) = ("snapctl services microk8s.daemon-kubelite", "snapctl restart microk8s.daemon-kubelite");
    assert_eq!(root.calls(), [ask, restart, ask]);
    assert_eq!(results(&finished)[0], &StepResult::Restarted);
    assert!(matches!(results(&finished)[1], StepResult::Failed(text) if text.contains("no service of this snap")));
}

#[test]
fn a_service_that_does_not_run_is_never_restarted() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "");
    for state in ["inactive", "failed", "activating", "deactivating"] {
        root.write("state", state);
        let finished = Execution::carry_out(vec![restart("kubelite")], root.host(Manager::Host)).run_to_end();
        let expected = format!("kubelite is not running: {state} (x)");
        assert_eq!(results(&finished), [&StepResult::Skipped(expected)]);
        assert_eq!(finished.services["kubelite"].active, Some(false));
    }
    root.command("systemctl", "exit 1");
    let finished = Execution::carry_out(vec![restart("kubelite")], root.host(Manager::Host)).run_to_end();
    assert!(failure(&finished).contains("state of kubelite is unknown"));
    root.command(
        "snapctl",
        "echo Service Startup Current Notes; echo microk8s.daemon-kubelite enabled inactive active",
    );
    let finished = Execution::carry_out(vec![restart("kubelite")], root.host(Manager::InsideSnap)).run_to_end();
    assert!(matches!(results(&finished)[..], [StepResult::Skipped(_)]));
    assert_eq!(root.changes(), [""; 0]);
}

#[test]
fn a_change_in_progress_is_waited_for() {
    let root = Root::new();
    root.systemctl();
    root.command(
        "snap",
        r#"[ "$(grep -c '^snap ' "$R/calls")" -le 2 ] || exit 0
        echo 'error: snap "microk8s" has "service-control" change in progress' >&2
        exit 10"#,
    );
    let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted]);
    assert_eq!(root.changes().len(), 3);
    assert_eq!(root.calls().len(), 7, "the state is asked for before each try, and in the end: {:?}", root.calls());
}

#[test]
fn a_service_stopped_by_the_change_in_progress_stays_stopped() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "echo inactive >\"$R/state\"; echo 'has changes in progress' >&2; exit 1");
    let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
    assert!(matches!(results(&finished)[..], [StepResult::Skipped(_)]), "{finished:?}");
    assert_eq!(root.changes().len(), 1);
}

#[test]
fn a_change_that_never_ends_fails_at_the_deadline() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "echo 'snap \"microk8s\" has changes in progress' >&2; exit 1");
    let host = brisk(root.host(Manager::Host));
    let host = Host { pace: Pace { retries: Duration::from_secs(1), ..host.pace }, ..host };
    let mut execution = Execution::carry_out(vec![restart("kubelite")], host);
    assert!(matches!(execution.advance(), Progress::Working));
    // The time for tries has begun by now.
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut tried = None;
    let finished = loop {
        if tried.is_none() && Instant::now() > deadline {
            tried = Some(root.changes().len());
        }
        // Behind it, what is under way ends; nothing is tried anew, however slow the machine is.
        let begun = root.changes().len();
        assert!(tried.is_none_or(|tried| begun <= tried + 1), "{begun} tries, {tried:?} of them in time");
        match execution.advance() {
            Progress::Done(finished) => break finished,
            Progress::Working => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let text = failure(&finished);
    assert!(text.starts_with("given up after 1 s: ") && text.ends_with("has changes in progress"), "{text}");
    assert!(root.changes().len() > 2, "{:?}", root.changes());
}

#[test]
fn a_failure_is_told_in_the_managers_words() {
    let root = Root::new();
    root.systemctl();
    root.command(
        "snap",
        "echo 'Job for snap.microk8s.daemon-kubelite.service failed because start of the service was attempted too often.' >&2
        exit 1",
    );
    let finished = Execution::carry_out(vec![restart("kubelite")], root.host(Manager::Host)).run_to_end();
    let text = failure(&finished);
    assert!(text.contains("usr/bin/snap restart microk8s.daemon-kubelite: exit status: 1: Job for"), "{text}");
    assert!(text.contains("start-limit-hit"), "{text}");
    let finished = Execution::carry_out(vec![restart("calico")], root.host(Manager::Host)).run_to_end();
    assert_eq!(failure(&finished), "there is no service calico in the profile");
}

#[test]
fn the_loop_has_its_turns_while_a_restart_is_under_way() {
    let root = Root::new();
    root.systemctl();
    // It ends when the turns are over, and not before: a turn that waited for it would wait until its deadline, and the
    // restart would be a failure.
    root.command("snap", "until [ -e \"$R/gate\" ]; do sleep 0.05; done");
    let host = root.host(Manager::Host);
    let host = Host { pace: Pace { restart: Duration::from_secs(60), ..host.pace }, ..host };
    let mut execution = Execution::carry_out(vec![restart("kubelite")], host);
    while root.changes().is_empty() {
        assert!(matches!(execution.advance(), Progress::Working));
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..100 {
        assert!(matches!(execution.advance(), Progress::Working));
        assert!(!execution.interruptible());
    }
    root.write("gate", "");
    assert_eq!(results(&execution.run_to_end()), [&StepResult::Restarted]);
}

#[test]
fn a_restart_that_hangs_is_ended() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "trap '' TERM; while :; do sleep 300; done");
    let host = root.host(Manager::Host);
    let host = Host { pace: Pace { restart: Duration::from_secs(1), ..host.pace }, ..host };
    let mut execution = Execution::carry_out(vec![restart("kubelite")], host);
    let began = Instant::now();
    let finished = loop {
        match execution.advance() {
            Progress::Done(finished) => break finished,
            Progress::Working => assert!(!execution.interruptible()),
        }
        // A daemon looks at other things meanwhile, and may come back at any time.
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(began.elapsed() >= Duration::from_secs(1), "took {:?}", began.elapsed());
    assert!(failure(&finished).contains("killed"), "{}", failure(&finished));
    assert_eq!(execution.deadline(), None);
}

#[test]
fn abandoning_keeps_what_is_done() {
    let root = Root::new();
    root.systemctl();
    // It never ends by itself, so that waiting for it would end in a failure.
    root.command("snap", "while :; do sleep 300; done");
    let mut execution = Execution::carry_out(vec![restart("k3s"), restart("kubelite")], root.host(Manager::Host));
    while root.changes().len() < 2 {
        assert!(matches!(execution.advance(), Progress::Working));
        std::thread::sleep(Duration::from_millis(5));
    }
    let finished = execution.abandon();
    // snapd completes what was handed over: it must count, although nobody knows how it ends.
    assert_eq!(results(&finished), [&StepResult::Restarted, &StepResult::Begun]);
}

/// `snap` says that all is well, and leaves the service in this state; each further question finds the next one.
fn comes_up_as(root: &Root, states: &[&str]) {
    root.write("states", &(states.join("\n") + "\n"));
    root.command(
        "systemctl",
        r#"[ "$1" = show ] || exit 0
        state=active
        if grep -q '^snap restart' "$R/calls"; then
            state=$(head -n 1 "$R/states")
            [ "$(wc -l <"$R/states")" -le 1 ] || sed -i 1d "$R/states"
        fi
        printf 'Id=%s\nActiveState=%s\nSubState=x\nResult=%s\n' "$3" "${state%:*}" "${state#*:}""#,
    );
}

#[test]
fn a_restart_is_done_when_the_service_is_active() {
    let root = Root::new();
    comes_up_as(&root, &["deactivating:success", "activating:success", "active:success"]);
    root.command("snap", "");
    let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted]);
    assert_eq!((root.changes().len(), root.calls().len()), (1, 5), "{:?}", root.calls());
    assert_eq!(finished.services["kubelite"].active, Some(true), "as it was seen last");

    // Whatever the command said.
    for (states, said) in [
        (&["failed:exit-code"][..], "kubelite did not come back: failed (x), exit-code"),
        (&["inactive:success"], "kubelite did not come back: inactive (x)"),
    ] {
        let root = Root::new();
        comes_up_as(&root, states);
        root.command("snap", "");
        let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
        assert_eq!(failure(&finished), said);
        assert_eq!(root.changes().len(), 1, "nothing is started that is left to others");
    }

    // It never gets there: that has an end.
    let root = Root::new();
    comes_up_as(&root, &["activating:success"]);
    root.command("snap", "");
    let host = brisk(root.host(Manager::Host));
    let host = Host { pace: Pace { restart: Duration::from_secs(1), ..host.pace }, ..host };
    let finished = Execution::carry_out(vec![restart("kubelite")], host).run_to_end();
    assert_eq!(failure(&finished), "kubelite did not come back: activating (x)");

    // The manager does not answer behind it: its command's word counts.
    let root = Root::new();
    comes_up_as(&root, &[":"]);
    root.command("snap", "printf 'exit 1' >\"$R/usr/bin/systemctl\"");
    let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted]);
}

/// systemd refuses the start behind our stop: the service is down by us, and tried again although it is not active.
#[test]
fn the_start_limit_is_waited_for() {
    let root = Root::new();
    comes_up_as(&root, &["failed:start-limit-hit", "failed:start-limit-hit", "active:success"]);
    root.command(
        "snap",
        "[ \"$(grep -c '^snap ' \"$R/calls\")\" -ge 2 ] || { echo 'attempted too often' >&2; exit 1; }",
    );
    let finished = Execution::carry_out(vec![restart("kubelite")], brisk(root.host(Manager::Host))).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted]);
    assert_eq!(root.changes().len(), 2, "{:?}", root.calls());

    // It never passes.
    let root = Root::new();
    comes_up_as(&root, &["failed:start-limit-hit"]);
    let host = brisk(root.host(Manager::Host));
    let host = Host { pace: Pace { retries: Duration::from_secs(1), ..host.pace }, ..host };
    root.command("snap", "");
    let finished = Execution::carry_out(vec![restart("kubelite")], host).run_to_end();
    let text = failure(&finished);
    assert!(
        text.starts_with("given up after ") && text.ends_with("did not come back: failed (x), start-limit-hit"),
        "{text}"
    );
    assert!(root.changes().len() > 2, "{:?}", root.changes());
}

/// One that failed is restarted where it is known to be our doing, and nowhere else; one that somebody stopped never.
#[test]
fn a_service_that_failed_behind_our_restart_is_restarted() {
    for (state, reason, done) in [
        ("failed", ReasonCode::ServiceDown, true),
        ("failed", ReasonCode::NodeAddressReplaced, false),
        ("inactive", ReasonCode::ServiceDown, false),
        ("activating", ReasonCode::ServiceDown, false),
    ] {
        let root = Root::new();
        root.systemctl();
        root.write("state", state);
        root.command("snap", "echo active >\"$R/state\"");
        let step = |service: &str| Step::Restart { service: service.to_owned(), reason };
        let finished = Execution::carry_out(vec![step("kubelite")], root.host(Manager::Host)).run_to_end();
        assert_eq!(matches!(results(&finished)[..], [StepResult::Restarted]), done, "{state} {reason}: {finished:?}");
        assert_eq!(root.changes().len(), usize::from(done), "{state} {reason}");
        // A plain unit: `try-restart` would leave it alone.
        root.write("state", state);
        Execution::carry_out(vec![step("k3s")], brisk(root.host(Manager::Host))).run_to_end();
        let expected: &[&str] = if done { &["systemctl restart k3s.service"] } else { &[] };
        assert_eq!(root.changes()[usize::from(done)..].first().into_iter().collect::<Vec<_>>(), expected, "{state}");
    }
}
