//! Certificates in every state on a whole host: what `check` tells a person, and the two beside the server's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{DnType, KeyPair};

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::authority::{self, Authority};
use crate::stage::port::{KUBELET, Port};
use crate::stage::timeline::Timeline;
use crate::stage::tree::CertificateState;

pub(crate) const CASES: &[Case] = &[
    Case { name: "certificates::what-check-tells", play: snapshots, patience: 90 },
    Case { name: "certificates::the-two-beside-the-server", play: beside, patience: 90 },
    Case { name: "certificates::beside-one-that-cannot-be-made", play: beside_failing, patience: 60 },
    Case { name: "certificates::a-kubelet-that-loads-it-at-its-start", play: old_kubelet, patience: 60 },
    Case { name: "certificates::a-kubelet-that-loads-it-by-itself", play: new_kubelet, patience: 60 },
    Case { name: "certificates::a-kubelet-with-a-certificate-of-its-own", play: own_kubelet, patience: 60 },
    Case { name: "certificates::renewal-by-time-alone", play: renewal, patience: 60 },
    Case { name: "certificates::a-tree-without-them", play: without, patience: 40 },
];

/// All three certificates, in step.
fn complete() -> Setup {
    let mut setup = Setup::default();
    setup.spec.beside = Some(NODE.to_owned());
    setup
}

/// Compares with `fixtures/check`; `BLESS=1` writes there.
fn compare(host: &Host, name: &str, status: i32) -> Result<()> {
    let printed = host.once(&["check"])?;
    same(&format!("exit status of {name}"), &printed.status.code(), &Some(status))?;
    let root = host.tree.root().display().to_string();
    // Times of the day the test runs are no promise; that there are some is.
    let word = |word: &str| {
        let bare = word.trim_matches(['(', ')', ',', ';', ':']);
        let is_time = bare.len() == 20 && bare.ends_with('Z') && bare.as_bytes().get(10) == Some(&b'T');
        if is_time { word.replace(bare, "TIME") } else { word.to_owned() }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    let text = printed.stdout.replace(&root, "").lines().map(line).collect::<Vec<_>>().join("\n") + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/check").join(name).with_extension("txt");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &text)?;
    }
    let expected = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if text == expected { Ok(()) } else { Err(format!("{name}\n--- expected\n{expected}--- printed\n{text}").into()) }
}

fn key(host: &Host, name: &str) -> Result<KeyPair> {
    Ok(KeyPair::from_pem(&fs::read_to_string(host.tree.data("certs").join(name))?)?)
}

fn snapshots(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&complete(), timeline)?;
    let read = |name: &str| fs::read_to_string(host.tree.data("certs").join(name));
    let (good, ca) = (read("server.crt")?, read("ca.crt")?);
    compare(&host, "exact", 0)?;
    host.tree.write("server.crt", "")?;
    compare(&host, "damaged", 2)?;
    host.tree.write("server.crt", &good[..good.len() / 2])?;
    compare(&host, "cut", 2)?;
    fs::remove_file(host.tree.server_certificate())?;
    compare(&host, "missing", 2)?;
    host.tree.write("ca.crt", "")?;
    compare(&host, "missing-without-ca", 0)?;
    host.tree.write("ca.crt", &ca)?;

    // Ours, from here on made by a CA whose key is at hand.
    let authority = Authority::new()?;
    host.tree.write("ca.crt", &authority.certificate_pem)?;
    host.tree.write("ca.key", &authority.key_pem)?;
    let server = key(&host, "server.key")?;
    let mut names = Setup::default().spec.sans;
    let company = [(DnType::OrganizationName, "Example"), (DnType::CommonName, "api.example.com")];
    let other = Authority::named("Example CA")?;
    host.tree.write("server.crt", &other.sign_for(&company, &server, &names, (-10, 355))?)?;
    // The kubelet's is by the CA before: it is told beside the other.
    compare(&host, "foreign", 2)?;
    host.tree.write(
        "kubelet.crt",
        &authority.sign_for(
            &[(DnType::CommonName, "system:node:node-1")],
            &key(&host, "kubelet.key")?,
            &["DNS:node-1".to_owned(), NODE.to_owned()],
            (-10, 355),
        )?,
    )?;
    let microk8s = [(DnType::CommonName, "127.0.0.1")];
    host.tree.write("server.crt", &authority.sign_for(&microk8s, &server, &names, (-40, -10))?)?;
    compare(&host, "expired", 2)?;
    host.tree.write("server.crt", &authority.sign_for(&microk8s, &server, &names, (-300, 65))?)?;
    compare(&host, "near-expiry", 2)?;
    // The same subject, from a CA that the operator names.
    host.tree.write("server.crt", &other.sign(&server, &names)?)?;
    compare(&host, "foreign-of-no-bundle", 2)?;
    fs::write(host.tree.path("etc/ipguard/company-ca.pem"), &other.certificate_pem)?;
    let named = "[certificate]\nforeign_bundle = \"/etc/ipguard/company-ca.pem\"";
    fs::write(host.guard.config(), CONFIG.replacen("[certificate]", named, 1))?;
    compare(&host, "foreign-of-the-bundle", 0)?;
    fs::write(host.tree.path("etc/ipguard/company-ca.pem"), "nothing")?;
    compare(&host, "foreign-of-a-broken-bundle", 0)?;
    fs::write(host.guard.config(), CONFIG)?;
    names.extend(["DNS:extra.example.com".to_owned(), "203.0.113.77".to_owned()]);
    host.tree.write("server.crt", &authority.sign(&server, &names)?)?;
    compare(&host, "superset", 0)
}

/// A certificate comes near its end while nothing else happens: it is renewed, loaded without a restart, and seen on the
/// port.
fn renewal(timeline: &Timeline) -> Result<()> {
    let soon = "[certificate]\nrenew_before = \"29d23h59m53s\"";
    let setup = Setup { config: CONFIG.replacen("[certificate]", soon, 1), ..Setup::default() };
    let mut host = Host::with(&setup, timeline)?;
    let authority = Authority::new()?;
    host.tree.write("ca.crt", &authority.certificate_pem)?;
    host.tree.write("ca.key", &authority.key_pem)?;
    let microk8s = [(DnType::CommonName, "127.0.0.1")];
    let ending = authority.sign_for(&microk8s, &key(&host, "server.key")?, &setup.spec.sans, (-10, 30))?;
    host.tree.write("server.crt", &ending)?;
    host.restart_watchers()?;
    let daemon = host.daemon()?;
    let before = named(&host.tree.server_certificate())?;
    same("it is in step at first", &host.reissues(), &0)?;
    until("renewal", SOON, || named(&host.tree.server_certificate()).is_ok_and(|(serial, _)| serial != before.0))?;
    same("names", &named(&host.tree.server_certificate())?.1, &before.1)?;
    host.await_said("serves the server certificate: served")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "the daemon ends well")
}

/// The serial number and the names of a certificate on disk.
fn named(path: &Path) -> Result<(Vec<u8>, BTreeSet<String>)> {
    let text = fs::read(path)?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&text)?;
    let serial = pem.parse_x509()?.raw_serial().to_vec();
    Ok((serial, authority::names_of(&text)?))
}

fn beside(timeline: &Timeline) -> Result<()> {
    let mut host = Host::with(&complete(), timeline)?;
    let path = |name: &str| host.tree.data("certs").join(name);
    let (client, kubelet) = (path("front-proxy-client.crt"), path("kubelet.crt"));
    let before = (named(&client)?, named(&kubelet)?);
    let keys = || Result::Ok((fs::read(path("front-proxy-client.key"))?, fs::read(path("kubelet.key"))?));
    let keys_before = keys()?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    same("nothing to do", &(named(&client)?, named(&kubelet)?), &before)?;
    // The node moves: the kubelet's certificate follows, the proxy's has no names to follow with.
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    until("kubelet.crt follows", SOON, || named(&kubelet).is_ok_and(|(_, names)| names.contains("192.0.2.11")))?;
    expect(named(&kubelet)?.1.contains(NODE) && named(&kubelet)?.1.contains("DNS:node-1"), "names are kept")?;
    same("front-proxy-client.crt", &named(&client)?, &before.0)?;
    host.await_restarts((1, 1))?;
    // The host-access addon.
    fs::write(host.tree.data("var/lock/host-access-enabled"), "10.0.1.1\n")?;
    until("host access", SOON, || named(&kubelet).is_ok_and(|(_, names)| names.contains("10.0.1.1")))?;
    // The proxy's certificate is lost and made again, with the key it had.
    fs::remove_file(&client)?;
    until("front-proxy-client.crt is back", SOON, || named(&client).is_ok())?;
    let text = fs::read_to_string(&client)?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(text.as_bytes())?;
    let made = pem.parse_x509()?;
    same("subject", &made.subject().to_string(), &"CN=front-proxy-client".to_owned())?;
    let (_, root) =
        x509_parser::pem::parse_x509_pem(&fs::read(path("front-proxy-ca.crt"))?).map_err(|error| error.to_string())?;
    expect(made.verify_signature(Some(root.parse_x509()?.public_key())).is_ok(), "it is by its own CA")?;
    let usage = made.extended_key_usage()?.ok_or("no extendedKeyUsage")?;
    expect(usage.value.client_auth && usage.value.server_auth, "for clients, as MicroK8s makes it")?;
    host.await_said("no port shows it: that it is loaded is not verified")?;
    host.nothing_happens(A_WHILE)?;
    same("keys", &keys()?, &keys_before)?;
    // None of that restarted anything, and the request file is the server's.
    same("restarts", &host.restarts()?, &(1, 1))?;
    expect(!fs::read_to_string(path("csr.conf"))?.contains("10.0.1.1"), "csr.conf is the server's")?;
    // The kubelet's is not missed.
    fs::remove_file(&kubelet)?;
    host.nothing_happens(A_WHILE)?;
    expect(!kubelet.exists(), "kubelet.crt is not made")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    host.run_through("exec \"$guard\" \"$@\"")?;
    same("then in step", &host.once(&["check"])?.status.code(), &Some(0))
}

/// The kubelet's certificate is made anew for the host-access addon; nothing else on the host changes.
fn with_kubelet(reloading: Reloading, timeline: &Timeline) -> Result<(Host, Port)> {
    let host = Host::with(&complete(), timeline)?;
    let kubelet = Port::open(KUBELET, host.tree.root(), host.tree.data("certs"), "kubelet", reloading, timeline)?;
    Ok((host, kubelet))
}

fn enable_host_access(host: &Host) -> Result<()> {
    fs::write(host.tree.data("var/lock/host-access-enabled"), "10.0.1.1\n")?;
    let kubelet = host.tree.data("certs/kubelet.crt");
    until("host access", SOON, || named(&kubelet).is_ok_and(|(_, names)| names.contains("10.0.1.1")))
}

/// One before 1.31: its port is found to show the old one, kubelite is restarted once, and the port is asked again.
fn old_kubelet(timeline: &Timeline) -> Result<()> {
    let (host, _kubelet) = with_kubelet(Reloading::AtRestart, timeline)?;
    let daemon = host.daemon()?;
    enable_host_access(&host)?;
    host.await_said("confirm that 127.0.0.1:10250 serves the kubelet certificate: still serves another")?;
    host.await_said("restart kubelite (served-stale): restarted")?;
    host.await_said("confirm that 127.0.0.1:10250 serves the kubelet certificate: served")?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(1, 0))?;
    same("reissues of the server's", &host.reissues(), &0)?;
    same("nothing is left to confirm", &host.state()["unconfirmed_kubelet"], &serde_json::Value::Null)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn new_kubelet(timeline: &Timeline) -> Result<()> {
    let (host, _kubelet) = with_kubelet(Reloading::OnChange, timeline)?;
    let daemon = host.daemon()?;
    enable_host_access(&host)?;
    host.await_said("confirm that 127.0.0.1:10250 serves the kubelet certificate: served")?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// What its port shows is neither the old nor the new one: no restart would change that.
fn own_kubelet(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&complete(), timeline)?;
    let own = host.tree.path("srv");
    fs::create_dir(&own)?;
    for name in ["ca.crt", "kubelet.key"] {
        fs::copy(host.tree.data("certs").join(name), own.join(name))?;
    }
    let subject = [(DnType::CommonName, "theirs")];
    let theirs = Authority::named("theirs")?.sign_for(&subject, &key(&host, "kubelet.key")?, &[], (-10, 355))?;
    fs::write(own.join("kubelet.crt"), theirs)?;
    let _kubelet = Port::open(KUBELET, host.tree.root(), own, "kubelet", Reloading::AtRestart, timeline)?;
    let daemon = host.daemon()?;
    enable_host_access(&host)?;
    host.await_said("serves the kubelet certificate: still serves another")?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A folder in the place of the kubelet's certificate: that one fails, the server's does not wait for it.
fn beside_failing(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&complete(), timeline)?;
    let kubelet = host.tree.data("certs/kubelet.crt");
    fs::remove_file(&kubelet)?;
    fs::create_dir(&kubelet)?;
    let daemon = host.daemon()?;
    host.await_said("reason: ")?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.add("198.51.101.7")?;
    host.await_covered("198.51.101.7")?;
    host.await_restarts((0, 2))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn without(timeline: &Timeline) -> Result<()> {
    let mut setup = Setup::default();
    setup.spec.certificate = CertificateState::Missing;
    let host = Host::with(&setup, timeline)?;
    let printed = host.once(&["check"])?;
    expect(!printed.stdout.contains("kubelet") && !printed.stdout.contains("front-proxy"), printed.stdout)?;
    same("exit status", &host.once(&["check", "--apply"])?.status.code(), &Some(0))?;
    for name in ["kubelet.crt", "kubelet.key", "front-proxy-client.crt", "front-proxy-client.key"] {
        expect(!host.tree.data("certs").join(name).exists(), format!("{name} is not made"))?;
    }
    Ok(())
}
