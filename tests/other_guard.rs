//! Two guards on one host undo each other's work: while the other one runs, the daemon waits.

mod hosts;

use hosts::{Host, profile};
use ipguard::decide::plan::Summary;
use ipguard::decide::{self, Mode};
use ipguard::facts::cluster::{Role, Service, ServiceState};

/// A host whose certificate lacks an address, with the kicker in a given state.
fn verdict(mode: Mode, active: Option<bool>, main_process: Option<u32>) -> (Summary, Vec<String>) {
    let mut host = Host::usual();
    host.link("eth1", None);
    host.add("eth1", "10.7.0.4/24");
    let mut services = profile();
    services.push(Service {
        name: "kicker".to_owned(),
        role: Role::OtherGuard,
        unit: "snap.microk8s.daemon-apiserver-kicker.service".to_owned(),
        snap: None,
        ready: None,
    });
    let state = ServiceState {
        active,
        started: None,
        main_process,
        standing: Default::default(),
        detail: "told by the test".to_owned(),
    };
    host.services.insert("kicker".to_owned(), state);
    let plan = decide::plan(&host.observed(), &services, &host.config, &host.state, host.now, mode);
    (plan.summary, plan.holds.iter().map(|hold| hold.code.to_string()).collect())
}

#[test]
fn the_daemon_waits_for_a_running_kicker() {
    assert_eq!(verdict(Mode::Daemon, Some(true), Some(99)), (Summary::Hold, vec!["another-guard-active".to_owned()]));
    assert_eq!(verdict(Mode::Daemon, Some(true), None).0, Summary::Hold);
}

#[test]
fn a_stopped_kicker_or_ourselves_under_its_name_is_none() {
    assert_eq!(verdict(Mode::Daemon, Some(false), None), (Summary::Reissue, vec![]));
    assert_eq!(verdict(Mode::Daemon, None, None).0, Summary::Reissue);
    // 4242 is this process, 1 an ancestor of it.
    assert_eq!(verdict(Mode::Daemon, Some(true), Some(4242)).0, Summary::Reissue);
    assert_eq!(verdict(Mode::Daemon, Some(true), Some(1)).0, Summary::Reissue);
}

#[test]
fn produce_certs_runs_inside_the_kicker_itself() {
    assert_eq!(verdict(Mode::Hook, Some(true), Some(99)).0, Summary::Reissue);
}
