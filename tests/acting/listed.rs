//! Asking an API server which addresses it lists, over real TLS, with the credentials of a kubeconfig.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ipguard::act::execution::{Execution, Finished, Host, Pace};
use ipguard::act::services::Manager;
use ipguard::decide::plan::Question;
use ipguard::facts::certificate::Fingerprint;
use ipguard::observe::kubeconfig;
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::CertificateDer;

use crate::http::{Server, http, server};
use crate::stand_in::{Root, services};
use crate::tls::{Authority, Pair, Served, closed_port, config, listen_with};

const ENDPOINTS: &str = r#"{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"kubernetes"},
    "subsets":[{"addresses":[{"ip":"192.0.2.10"},{"ip":"192.0.2.11"}],"ports":[{"name":"https","port":16443}]}]}"#;
const TOKEN: &str = "c2VjcmV0IHRva2Vu";

fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits: String = der
        .chunks(3)
        .flat_map(|three| {
            let bits =
                three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
            (0..4).map(move |at| if at <= three.len() { DIGITS[bits >> (18 - 6 * at) & 63].into() } else { '=' })
        })
        .collect();
    let lines: Vec<&str> = digits.as_bytes().chunks(64).map(|line| str::from_utf8(line).expect("ASCII")).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// A kubeconfig below the root, as a host reads it; `user` are the lines of its user.
fn host(root: &Root, authority: &CertificateDer<'_>, user: &str, in_place: Option<Fingerprint>) -> Host {
    root.systemctl();
    root.write("ca.crt", &pem("CERTIFICATE", authority));
    root.write(
        "client.config",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters:\n- name: k\n  cluster:\n    certificate-authority: ca.crt\n    server: https://192.0.2.99:1\n\
             contexts:\n- name: c\n  context:\n    cluster: k\n    user: u\nusers:\n- name: u\n  user:\n{user}"
        ),
    );
    let mut host = root.host(Manager::Host);
    host.certificates.extend(in_place.map(|leaf| ("server".to_owned(), leaf)));
    let folder = root.path().to_owned();
    host.credentials = Arc::new(move || {
        kubeconfig::credentials(&folder.join("client.config"), &folder).map_err(|error| error.to_string())
    });
    Host { pace: Pace { probe: Duration::from_secs(2), ..host.pace }, ..host }
}

fn with_token() -> String {
    format!("    token: {TOKEN}\n")
}

fn with_certificate(root: &Root, client: &Pair) -> String {
    root.write("client.crt", &pem("CERTIFICATE", &client.certificate));
    root.write("client.key", &pem("PRIVATE KEY", client.private_key().secret_der()));
    "    client-certificate: client.crt\n    client-key: client.key\n".to_owned()
}

/// First it is asked whether it is ready.
fn ready_and_lists(number: usize) -> Vec<Vec<u8>> {
    if number == 0 { http("200 OK", "ok") } else { http("200 OK", ENDPOINTS) }
}

fn ask(host: &Host, address: SocketAddr) -> Finished {
    let question = Question { certificate: "server".to_owned(), host: address.ip(), port: address.port() };
    Execution::ask(services(), Some(&question), host).run_to_end()
}

fn listed(finished: Finished) -> Result<BTreeSet<IpAddr>, String> {
    // Whatever becomes of the question, the services' states are there.
    assert!(finished.services.values().all(|state| state.active == Some(true)), "{finished:?}");
    finished.listed.expect("it was asked")
}

fn both() -> BTreeSet<IpAddr> {
    ["192.0.2.10", "192.0.2.11"].map(|text| text.parse().expect("an address")).into()
}

fn heard(server: &Server) -> Vec<(String, bool)> {
    server.heard.lock().expect("no panic").clone()
}

#[test]
fn a_certificate_or_a_token_says_who_asks_and_the_api_server_of_this_node_answers() {
    let (root, authority) = (Root::new(), Authority::new());
    let (pair, client) = (Pair::by(&authority, &["127.0.0.1"]), Pair::by(&authority, &["admin"]));
    for version in [&TLS12, &TLS13] {
        let ours = config(Served::new(&pair), &[version], Some(&authority.certificate));
        let server = server(ours, ready_and_lists);
        let user = with_certificate(&root, &client);
        let host = host(&root, &authority.certificate, &user, None);
        // The kubeconfig's own server is another one, which nobody asks.
        assert_eq!(listed(ask(&host, server.address)), Ok(both()), "{version:?}");
        let request =
            |path: &str| format!("GET {path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n\r\n", server.address);
        let list = request("/api/v1/namespaces/default/endpoints/kubernetes");
        assert_eq!(heard(&server), [(request("/readyz"), true), (list, true)]);
    }
    let server = server(config(Served::new(&pair), &[&TLS13], None), ready_and_lists);
    let host = host(&root, &authority.certificate, &with_token(), None);
    assert_eq!(listed(ask(&host, server.address)), Ok(both()));
    for (request, certificate) in heard(&server) {
        assert!(request.contains(&format!("\r\nAuthorization: Bearer {TOKEN}\r\n")) && !certificate, "{request}");
    }
}

#[test]
fn the_one_with_the_certificate_in_place_is_known_whoever_signed_it() {
    let (root, authority, own) = (Root::new(), Authority::new(), Pair::new());
    let server = server(config(Served::new(&own), &[&TLS13], None), ready_and_lists);
    let host = host(&root, &authority.certificate, &with_token(), Some(own.fingerprint()));
    assert_eq!(listed(ask(&host, server.address)), Ok(both()));
}

#[test]
fn nobody_else_hears_a_token() {
    let (root, authority) = (Root::new(), Authority::new());
    let right = Pair::by(&authority, &["127.0.0.1"]);
    for (who, pair) in [
        ("another CA's", Pair::by(&Authority::new(), &["127.0.0.1"])),
        ("its own", Pair::new()),
        ("another host's of this cluster", Pair::by(&authority, &["192.0.2.99"])),
        ("somebody's who has only seen the certificate", right.with_key_of(&Pair::new())),
    ] {
        let server = server(config(Served::new(&pair), &[&TLS13], None), ready_and_lists);
        let host = host(&root, &authority.certificate, &with_token(), Some(right.fingerprint()));
        let why = listed(ask(&host, server.address)).expect_err(who);
        assert!(why.contains("no TLS handshake") && !why.contains(TOKEN), "{who}: {why}");
        assert!(heard(&server).iter().all(|(said, _)| said.is_empty()), "{who}: {:?}", heard(&server));
    }
}

#[test]
fn an_answer_that_is_none_says_why_in_time() {
    let (root, authority) = (Root::new(), Authority::new());
    let pair = Pair::by(&authority, &["127.0.0.1"]);
    let host = host(&root, &authority.certificate, &with_token(), None);
    type Answer = fn(usize) -> Vec<Vec<u8>>;
    let answers: [(&str, Answer, &str); 7] = [
        // One that is not ready is not on its own list.
        (
            "not ready",
            |_| http("500 Internal Server Error", "[-]etcd failed: x\nreadyz check failed"),
            "status 500: etcd failed",
        ),
        ("403", |_| http("403 Forbidden", "{}"), "status 403: it does not let us ask"),
        ("404", |_| http("404 Not Found", "{\"kind\":\"Status\"}"), "status 404"),
        ("no HTTP", |_| vec![b"SSH-2.0-OpenSSH_9.6\r\n".to_vec()], "no answer of HTTP"),
        ("other JSON", |_| http("200 OK", "{\"kind\":\"EndpointsList\"}"), "no Endpoints object"),
        ("half of it", |_| vec![b"HTTP/1.0 200 OK\r\n\r\n{\"kind\":\"Endpoints\",".to_vec()], "no Endpoints object"),
        ("without end", |_| vec![vec![b'x'; 4096]; 64], "no answer of HTTP"),
    ];
    for (name, answer, expected) in answers {
        let server = server(config(Served::new(&pair), &[&TLS13], None), move |number| {
            if number == 0 && name != "not ready" { http("200 OK", "ok") } else { answer(number) }
        });
        let why = listed(ask(&host, server.address)).expect_err(name);
        assert!(why.contains(expected) && !why.contains(TOKEN), "{name}: {why}");
    }
    // Before 1.16 there is no such path.
    let old = server(config(Served::new(&pair), &[&TLS13], None), |number| {
        if number == 0 { http("404 Not Found", "404 page not found") } else { http("200 OK", ENDPOINTS) }
    });
    assert_eq!(listed(ask(&host, old.address)), Ok(both()));
    let (_port, address) = closed_port();
    assert_eq!(listed(ask(&host, address)), Err(format!("{address}: connection refused")));
    let silent = listen_with(|stream| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let began = Instant::now();
    let why = listed(ask(&host, silent)).expect_err("it is silent");
    assert!(why.contains("no certificate within 2.0 s") && began.elapsed() < Duration::from_secs(10), "{why}");
}

#[test]
fn a_kubeconfig_that_runs_a_program_is_refused_and_nobody_is_asked() {
    let (root, authority) = (Root::new(), Authority::new());
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = listen_with(move |_| _ = counted.fetch_add(1, Ordering::Relaxed));
    let program = root.path().join("usr/bin/login");
    root.command("login", "exit 0");
    let exec = format!(
        "    exec:\n      apiVersion: client.authentication.k8s.io/v1beta1\n      command: {}\n",
        program.display()
    );
    let host = host(&root, &authority.certificate, &exec, None);
    let why = listed(ask(&host, address)).expect_err("it is refused");
    assert!(why.contains("user u: exec is not used: it names a program to run"), "{why}");
    assert!(root.calls().iter().all(|call| !call.starts_with("login")), "{:?}", root.calls());
    assert_eq!(connections.load(Ordering::Relaxed), 0);
}
