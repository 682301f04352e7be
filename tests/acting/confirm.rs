//! Issuing, then waiting for the port to serve the new leaf.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ipguard::act::execution::{Execution, Finished, Host, Pace, Progress};
use ipguard::act::services::Manager;
use ipguard::config::AuthorityKeyId;
use ipguard::decide::outcome::StepResult;
use ipguard::decide::plan::{IssueOrder, ReasonCode, Step, Subject};
use ipguard::facts::certificate::{Fingerprint, Purpose};
use ipguard::facts::time::Timestamp;
use rustls::version::{TLS12, TLS13};

use crate::stand_in::Root;
use crate::tls::{Pair, Served, accept, answer_with, closed_port, config, open_port, serve, speak};

fn confirm(address: SocketAddr, within: Duration) -> Step {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let now = Timestamp::from_millis(i64::try_from(now.as_millis()).expect("before the year 292 million"));
    Step::ConfirmServed {
        shown_by_kubelet: false,
        certificate: "server".to_owned(),
        port: address.port(),
        host: address.ip(),
        deadline: now + within,
    }
}

fn issue(certificate: &str) -> Step {
    Step::Issue(IssueOrder {
        certificate: certificate.to_owned(),
        purpose: Purpose::Server,
        sans: ["192.0.2.10".parse().expect("a SAN")].into(),
        added: ["192.0.2.10".parse().expect("a SAN")].into(),
        dropped: [].into(),
        subject: Subject::Attributes(Vec::new()),
        not_before: Timestamp::default(),
        not_after: Timestamp::default(),
        new_key: false,
        authority_key_id: AuthorityKeyId::KeyId,
        request: None,
        address_caused: true,
        served: true,
        shown_by_kubelet: false,
    })
}

fn restart(service: &str) -> Step {
    Step::Restart { service: service.to_owned(), reason: ReasonCode::NodeAddressReplaced }
}

/// A host on which this leaf is on disk.
fn host(root: &Root, on_disk: Fingerprint) -> Host {
    let mut host = root.host(Manager::Host);
    host.certificates.insert("server".to_owned(), on_disk);
    host
}

fn results(finished: &Finished) -> Vec<&StepResult> {
    finished.outcomes.iter().map(|outcome| &outcome.result).collect()
}

fn served(pair: &Pair) -> (Arc<Served>, SocketAddr) {
    let served = Served::new(pair);
    let address = serve(config(Arc::clone(&served), &[&TLS12, &TLS13], None));
    (served, address)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn the_leaf_on_disk_is_confirmed_at_once() {
    let (root, pair) = (Root::new(), Pair::new());
    let (_, address) = served(&pair);
    let began = Instant::now();
    let execution = Execution::carry_out(vec![confirm(address, 70 * SECOND)], host(&root, pair.fingerprint()));
    assert_eq!(results(&execution.run_to_end()), [&StepResult::Confirmed]);
    assert!(began.elapsed() < SECOND, "took {:?}", began.elapsed());
}

#[test]
fn the_leaf_that_was_issued_is_the_one_to_wait_for() {
    let (root, old, new) = (Root::new(), Pair::new(), Pair::new());
    let (served, address) = served(&old);
    let mut host = host(&root, old.fingerprint());
    let fingerprint = new.fingerprint();
    // The server reloads a second later, as one that looks at its files now and then.
    host.issue = Box::new(move |order| {
        assert_eq!(order.certificate, "server");
        let (served, new) = (Arc::clone(&served), new.with_key_of(&new));
        std::thread::spawn(move || {
            std::thread::sleep(SECOND);
            served.replace(&new);
        });
        Ok(fingerprint)
    });
    let finished = Execution::carry_out(vec![issue("server"), confirm(address, 70 * SECOND)], host).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Issued { fingerprint }, &StepResult::Confirmed]);
    let took = finished.outcomes[1].took;
    assert!((1000..4500).contains(&took.as_millis()), "took {took:?}");
    assert!(finished.outcomes[1].began >= finished.outcomes[0].began);
}

#[test]
fn another_leaf_at_the_deadline_is_stale() {
    let (root, old, new) = (Root::new(), Pair::new(), Pair::new());
    let (_, address) = served(&old);
    let host = host(&root, new.fingerprint());
    // The second pause would end after two seconds; the last look is taken at the deadline all the same.
    let host = Host { pace: Pace { probe_first: SECOND * 2 / 3, ..host.pace }, ..host };
    let began = Instant::now();
    let finished = Execution::carry_out(vec![confirm(address, SECOND)], host).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Stale { served: old.fingerprint() }]);
    assert!((900..1900).contains(&began.elapsed().as_millis()), "took {:?}", began.elapsed());
}

#[test]
fn a_deadline_that_has_passed_still_allows_one_look() {
    let (root, old, new) = (Root::new(), Pair::new(), Pair::new());
    let (_, address) = served(&old);
    let confirm = |on_disk: &Pair| {
        let steps = vec![confirm(address, Duration::ZERO)];
        Execution::carry_out(steps, host(&root, on_disk.fingerprint())).run_to_end()
    };
    assert_eq!(results(&confirm(&old)), [&StepResult::Confirmed]);
    assert_eq!(results(&confirm(&new)), [&StepResult::Stale { served: old.fingerprint() }]);
}

#[test]
fn a_closed_port_is_given_up_early() {
    let (root, (_port, address)) = (Root::new(), closed_port());
    let began = Instant::now();
    let on_disk = Pair::new().fingerprint();
    let finished = Execution::carry_out(vec![confirm(address, 70 * SECOND)], host(&root, on_disk)).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Unanswered(format!("{address}: connection refused"))]);
    assert!((2000..4500).contains(&began.elapsed().as_millis()), "took {:?}", began.elapsed());
}

#[test]
fn what_is_not_tls_is_unanswered_and_not_stale() {
    let root = Root::new();
    let address = answer_with(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    let on_disk = Pair::new().fingerprint();
    let finished = Execution::carry_out(vec![confirm(address, SECOND)], host(&root, on_disk)).run_to_end();
    assert!(matches!(results(&finished)[..], [StepResult::Unanswered(_)]), "{finished:?}");
    assert!(!finished.outcomes[0].result.is_failure());
    assert!(finished.outcomes[0].took >= Duration::from_millis(900), "no refusal, so it waits for the deadline");
}

/// A fatal alert (RFC 8446, section 6), by its number.
const fn alert(description: u8) -> [u8; 7] {
    [0x15, 3, 3, 0, 2, 2, description]
}

#[test]
fn a_server_that_cannot_use_its_certificate_is_told_from_one_that_does_not_answer() {
    let (root, pair) = (Root::new(), Pair::new());
    let look = |address| {
        let steps = vec![confirm(address, SECOND)];
        Execution::carry_out(steps, quick(host(&root, pair.fingerprint()))).run_to_end()
    };
    const ALERTS: [(u8, bool); 8] = [
        // internal_error, handshake_failure, unrecognized_name, access_denied: about the server's own certificate.
        (80, true),
        (40, true),
        (112, true),
        (49, true),
        // protocol_version, certificate_required, bad_certificate, unexpected_message: about the client.
        (70, false),
        (116, false),
        (42, false),
        (10, false),
    ];
    static BYTES: [[u8; 7]; 8] =
        [alert(80), alert(40), alert(112), alert(49), alert(70), alert(116), alert(42), alert(10)];
    std::thread::scope(|scope| {
        for ((description, unusable), bytes) in ALERTS.iter().zip(&BYTES) {
            scope.spawn(move || {
                let finished = look(answer_with(bytes));
                let result = &finished.outcomes[0].result;
                let expected = if *unusable {
                    matches!(result, StepResult::Unusable(why) if why.contains("alert"))
                } else {
                    matches!(result, StepResult::Unanswered(_))
                };
                assert!(expected && result.is_failure() == *unusable, "alert {description}: {result}");
            });
        }
    });
    // A certificate shown with somebody else's key: a server that loaded a pair that is none.
    let mixed = pair.with_key_of(&Pair::new());
    for version in [&TLS12, &TLS13] {
        let address = serve(config(Served::new(&mixed), &[version], None));
        let finished = look(address);
        assert!(matches!(finished.outcomes[0].result, StepResult::Unusable(_)), "{version:?}: {finished:?}");
    }
}

#[test]
fn that_it_cannot_use_its_certificate_is_believed_after_a_while_and_forgotten_when_it_can() {
    let (root, pair) = (Root::new(), Pair::new());
    static ALERT: [u8; 7] = alert(80);
    let slow = |unusable| {
        let host = quick(host(&root, pair.fingerprint()));
        Host { pace: Pace { unusable, ..host.pace }, ..host }
    };
    // Long before the deadline.
    let finished = Execution::carry_out(vec![confirm(answer_with(&ALERT), 70 * SECOND)], slow(SECOND)).run_to_end();
    assert!(matches!(finished.outcomes[0].result, StepResult::Unusable(_)), "{finished:?}");
    let took = finished.outcomes[0].took;
    assert!(took >= SECOND && took < 30 * SECOND, "took {took:?}");
    // A server that needs a moment is waited for.
    let began = Instant::now();
    let usable = Arc::new(config(Served::new(&pair), &[&TLS13], None));
    let address = crate::tls::listen_with(move |mut stream| {
        if began.elapsed() > SECOND {
            drop(speak(&usable, stream));
        } else {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = std::io::Write::write_all(&mut stream, &ALERT);
        }
    });
    let finished = Execution::carry_out(vec![confirm(address, 70 * SECOND)], slow(30 * SECOND)).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Confirmed]);
}

#[test]
fn a_certificate_is_put_back_by_name_and_one_that_cannot_be_is_a_failure() {
    let (root, old) = (Root::new(), Pair::new());
    let (_, address) = served(&old);
    let step =
        Step::PutBack { certificate: "server".to_owned(), leaf: old.fingerprint().to_hex(), cause: "alert".to_owned() };
    let fingerprint = old.fingerprint();
    let mut willing = host(&root, Pair::new().fingerprint());
    willing.put_back = Box::new(move |certificate, leaf, cause| {
        assert_eq!((certificate, leaf, cause), ("server", fingerprint.to_hex().as_str(), "alert"));
        Ok(fingerprint)
    });
    let finished = Execution::carry_out(vec![step.clone(), confirm(address, SECOND)], willing).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Issued { fingerprint }, &StepResult::Confirmed]);
    let finished = Execution::carry_out(vec![step], host(&root, Pair::new().fingerprint())).run_to_end();
    assert!(matches!(results(&finished)[..], [StepResult::Failed(why)] if why.contains("is not kept")), "{finished:?}");
}

#[test]
fn a_port_that_answered_before_it_closed_is_waited_for() {
    let (root, old, new) = (Root::new(), Pair::new(), Pair::new());
    let config = Arc::new(config(Served::new(&old), &[&TLS13], None));
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback is there");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || listener.accept().map(|(stream, _)| speak(&config, stream)));
    let host = quick(host(&root, new.fingerprint()));
    let finished = Execution::carry_out(vec![confirm(address, 2 * SECOND)], host).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Unanswered(format!("{address}: connection refused"))]);
    assert!(finished.outcomes[0].took >= Duration::from_millis(1900), "took {:?}", finished.outcomes[0].took);
}

/// Gives a port that only refuses up after three looks in 150 ms.
fn quick(host: Host) -> Host {
    let (probe_first, refusals) = (Duration::from_millis(50), Duration::from_millis(100));
    Host { pace: Pace { probe_first, refusals, ..host.pace }, ..host }
}

/// Opens the port after a while and serves the pair there.
fn open_later(port: OwnedFd, after: Duration, pair: &Pair) {
    let config = Arc::new(config(Served::new(pair), &[&TLS13], None));
    std::thread::spawn(move || {
        std::thread::sleep(after);
        accept(open_port(port), move |stream| drop(speak(&config, stream)));
    });
}

#[test]
fn after_a_restart_of_the_api_server_a_closed_port_is_waited_for() {
    let (root, pair) = (Root::new(), Pair::new());
    root.systemctl();
    root.command("snap", "");
    let (port, address) = closed_port();
    open_later(port, SECOND, &pair);
    let steps = vec![restart("kubelite"), confirm(address, 5 * SECOND)];
    let finished = Execution::carry_out(steps, quick(host(&root, pair.fingerprint()))).run_to_end();
    assert_eq!(results(&finished), [&StepResult::Restarted, &StepResult::Confirmed]);

    // Not after the restart of another service, nor after one that was not done.
    let (_port, address) = closed_port();
    for (service, state) in [("cluster-agent", "active"), ("kubelite", "inactive")] {
        root.write("state", state);
        let steps = vec![restart(service), confirm(address, 60 * SECOND)];
        let finished = Execution::carry_out(steps, quick(host(&root, pair.fingerprint()))).run_to_end();
        assert!(matches!(results(&finished)[1], StepResult::Unanswered(_)), "{finished:?}");
        assert!(finished.outcomes[1].took < SECOND);
    }
}

#[test]
fn a_failed_issue_ends_the_plan() {
    let root = Root::new();
    root.systemctl();
    root.command("snap", "");
    let mut host = host(&root, Pair::new().fingerprint());
    let (_port, address) = closed_port();
    let mut calls = 0;
    host.issue = Box::new(move |_| {
        calls += 1;
        assert_eq!(calls, 1, "a later one was tried");
        Err("certs/server.crt: No space left on device".to_owned().into())
    });
    let steps = vec![issue("server"), issue("kubelet"), confirm(address, SECOND), restart("cluster-agent")];
    let finished = Execution::carry_out(steps.clone(), host).run_to_end();
    let failed = StepResult::Failed("certs/server.crt: No space left on device".to_owned());
    let skipped = StepResult::NotTried("an earlier step was not done".to_owned());
    assert_eq!(results(&finished), [&failed, &skipped, &skipped, &skipped]);
    assert_eq!(finished.outcomes.into_iter().map(|o| o.step).collect::<Vec<_>>(), steps);
    assert_eq!(root.calls(), [""; 0]);
}

#[test]
fn without_a_leaf_on_disk_there_is_nothing_to_confirm() {
    let (root, pair) = (Root::new(), Pair::new());
    let (_, address) = served(&pair);
    let finished = Execution::carry_out(vec![confirm(address, SECOND)], root.host(Manager::Host)).run_to_end();
    assert!(matches!(results(&finished)[..], [StepResult::Failed(_)]), "{finished:?}");
}

#[test]
fn waiting_for_the_port_can_be_interrupted() {
    let (root, old, new) = (Root::new(), Pair::new(), Pair::new());
    let (_, address) = served(&old);
    let mut host = host(&root, old.fingerprint());
    let fingerprint = new.fingerprint();
    host.issue = Box::new(move |_| Ok(fingerprint));
    let mut execution = Execution::carry_out(vec![issue("server"), confirm(address, 70 * SECOND)], host);
    assert!(!execution.interruptible());
    assert!(execution.deadline().is_some_and(|at| at <= Instant::now()));
    let began = Instant::now();
    while began.elapsed() < SECOND {
        assert!(matches!(execution.advance(), Progress::Working));
        let left = execution.deadline().expect("it works").saturating_duration_since(Instant::now());
        nix::poll::poll(&mut execution.poll_fds(), u16::try_from(left.as_millis() + 1).expect("short")).expect("poll");
    }
    assert!(execution.interruptible());
    assert_eq!(results(&execution.abandon()), [&StepResult::Issued { fingerprint }]);
}
