//! Asking an API server whether it is ready, over real TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use ipguard::act::execution::{Execution, Finished, Host, Pace};
use ipguard::act::probe::Identity;
use ipguard::act::services::Manager;
use ipguard::decide::outcome::StepResult;
use ipguard::decide::plan::Step;
use ipguard::facts::certificate::Fingerprint;
use ipguard::facts::time::Timestamp;
use rustls::version::{TLS12, TLS13};

use crate::http::{Server, http, server};
use crate::stand_in::Root;
use crate::tls::{Pair, Served, closed_port, config, listen_with};

const SECOND: Duration = Duration::from_secs(1);

fn ready(address: SocketAddr, within: Duration) -> Step {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let now = Timestamp::from_millis(i64::try_from(now.as_millis()).expect("before the year 292 million"));
    Step::ConfirmReady {
        certificate: "server".to_owned(),
        port: address.port(),
        host: address.ip(),
        path: "/readyz".to_owned(),
        deadline: now + within,
    }
}

fn host(root: &Root, on_disk: Fingerprint) -> Host {
    let mut host = root.host(Manager::Host);
    host.certificates.insert("server".to_owned(), on_disk);
    let (probe, probe_first) = (SECOND, Duration::from_millis(50));
    Host { pace: Pace { probe, probe_first, probe_longest: probe_first, ..host.pace }, ..host }
}

fn ask(host: Host, address: SocketAddr, within: Duration) -> Finished {
    Execution::carry_out(vec![ready(address, within)], host).run_to_end()
}

fn result(finished: &Finished) -> &StepResult {
    &finished.outcomes[0].result
}

#[test]
fn a_yes_is_a_yes_in_both_versions_of_tls() {
    let (root, pair) = (Root::new(), Pair::new());
    for version in [&TLS12, &TLS13] {
        let server = server(config(Served::new(&pair), &[version], None), |_| http("200 OK", "ok"));
        let finished = ask(host(&root, pair.fingerprint()), server.address, 30 * SECOND);
        assert_eq!(result(&finished), &StepResult::Ready, "{version:?}");
        let heard = server.heard.lock().expect("no panic").clone();
        let request = format!("GET /readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address);
        assert_eq!(heard, [(request, false)]);
    }
}

#[test]
fn who_we_are_is_shown_to_a_server_that_asks() {
    let (root, pair) = (Root::new(), Pair::new());
    // The client's certificate is the server's own, as in MicroK8s; here it is its own CA too.
    let server = server(config(Served::new(&pair), &[&TLS13], Some(&pair.certificate)), |_| http("200 OK", "ok"));
    let mut host = host(&root, pair.fingerprint());
    let read = Arc::new(AtomicUsize::new(0));
    let (times, identity) = (Arc::clone(&read), pair.with_key_of(&pair));
    host.identify = Arc::new(move |name| {
        assert_eq!(name, "server");
        times.fetch_add(1, Ordering::Relaxed);
        Some(Identity { chain: vec![identity.certificate.clone()], key: identity.private_key() })
    });
    assert_eq!(result(&ask(host, server.address, 30 * SECOND)), &StepResult::Ready);
    assert!(server.heard.lock().expect("no panic")[0].1, "it knows who asked");
    assert_eq!(read.load(Ordering::Relaxed), 1, "read once for one connection");
}

#[test]
fn a_no_is_asked_again_until_the_deadline_and_says_why() {
    let (root, pair) = (Root::new(), Pair::new());
    let no = || http("500 Internal Server Error", "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n");
    let server = server(config(Served::new(&pair), &[&TLS13], None), move |_| no());
    let finished = ask(host(&root, pair.fingerprint()), server.address, 2 * SECOND);
    assert_eq!(result(&finished), &StepResult::NotReady("status 500: etcd failed: reason withheld".to_owned()));
    assert!(result(&finished).is_failure());
    let asked = server.heard.lock().expect("no panic").len();
    assert!((2..60).contains(&asked), "asked {asked} times");
    // And one that becomes ready is.
    let server = crate::http::server(config(Served::new(&pair), &[&TLS13], None), move |number| {
        if number < 3 { http("500 Internal Server Error", "[-]etcd failed") } else { http("200 OK", "ok") }
    });
    assert_eq!(result(&ask(host(&root, pair.fingerprint()), server.address, 30 * SECOND)), &StepResult::Ready);
}

#[test]
fn nothing_is_said_to_anybody_else() {
    let (root, pair, other) = (Root::new(), Pair::new(), Pair::new());
    let answer = |_| http("200 OK", "ok");
    let server = server(config(Served::new(&other), &[&TLS13], None), answer);
    let finished = ask(host(&root, pair.fingerprint()), server.address, Duration::ZERO);
    assert!(matches!(result(&finished), StepResult::Unanswered(why) if why.contains("another certificate")));
    // Somebody who has only seen the certificate.
    let mixed = crate::http::server(config(Served::new(&pair.with_key_of(&other)), &[&TLS13], None), answer);
    let finished = ask(host(&root, pair.fingerprint()), mixed.address, Duration::ZERO);
    assert!(matches!(result(&finished), StepResult::Unanswered(_)), "{finished:?}");
    let heard =
        |server: &Server| server.heard.lock().expect("no panic").iter().map(|(said, _)| said.len()).sum::<usize>();
    assert_eq!((heard(&server), heard(&mixed)), (0, 0));
}

#[test]
fn answers_that_are_none_end_in_time_and_harm_nobody() {
    let (root, pair) = (Root::new(), Pair::new());
    type Answer = fn(usize) -> Vec<Vec<u8>>;
    let answers: [(&str, Answer); 5] = [
        ("nothing", |_| Vec::new()),
        ("no HTTP", |_| vec![b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()]),
        ("without end", |_| vec![vec![b'x'; 4096]; 64]),
        ("half a head", |_| vec![b"HTTP/1.1 2".to_vec()]),
        ("a length that is never reached", |_| vec![b"HTTP/1.1 204 No\r\nContent-Length: 9999\r\n\r\n".to_vec()]),
    ];
    for (name, answer) in answers {
        let server = server(config(Served::new(&pair), &[&TLS13], None), answer);
        let finished = ask(host(&root, pair.fingerprint()), server.address, Duration::ZERO);
        let result = result(&finished);
        assert!(matches!(result, StepResult::Unanswered(_) | StepResult::NotReady(_)), "{name}: {result}");
    }
    let (_port, address) = closed_port();
    let finished = ask(host(&root, pair.fingerprint()), address, Duration::ZERO);
    assert_eq!(result(&finished), &StepResult::Unanswered(format!("{address}: connection refused")));
    // A server that accepts and never says a word.
    let silent = listen_with(|stream| {
        std::thread::sleep(20 * SECOND);
        drop(stream);
    });
    let finished = ask(host(&root, pair.fingerprint()), silent, Duration::ZERO);
    assert!(matches!(result(&finished), StepResult::Unanswered(why) if why.contains("within")), "{finished:?}");
}

#[test]
fn a_port_that_does_not_serve_the_certificate_is_not_asked() {
    let (root, pair) = (Root::new(), Pair::new());
    let (_port, address) = closed_port();
    let confirm = match ready(address, SECOND) {
        Step::ConfirmReady { certificate, port, host, deadline, .. } => {
            Step::ConfirmServed { certificate, shown_by_kubelet: false, port, host, deadline }
        }
        other => other,
    };
    let steps = vec![confirm, ready(address, 30 * SECOND)];
    let finished = Execution::carry_out(steps, host(&root, pair.fingerprint())).run_to_end();
    assert!(matches!(finished.outcomes[1].result, StepResult::NotTried(_)), "{finished:?}");
}
