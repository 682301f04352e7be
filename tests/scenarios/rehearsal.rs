//! The stand-in of the API server by itself: what it serves, when, and to whom, as a client sees it.

use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};

use crate::stage::api_server::{ApiServer, Reloading};
use crate::stage::authority::Authority;
use crate::stage::timeline::{Timeline, monotonic};
use crate::stage::tree::{Tree, TreeSpec};
use crate::stage::{Result, services};

/// Long against the server's tick.
const SOON: Duration = Duration::from_millis(500);
/// On a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves what is on disk, takes a new pair at once, keeps the old one when certificate and key do not match, and has
/// its port closed while it restarts.
pub(crate) fn api_server() -> Result<()> {
    let timeline = Timeline::start();
    let spec = TreeSpec { sans: vec!["127.0.0.1".to_owned()], ..TreeSpec::default() };
    let tree = Tree::create(&spec, false)?;
    services::install(tree.root())?;
    let server = ApiServer::start(tree.root(), tree.data("certs"), Reloading::OnChange, monotonic(), &timeline)?;
    expect("serves the first pair", served(&tree)? == on_disk(&tree)?)?;

    let first = on_disk(&tree)?;
    let key = rcgen::KeyPair::generate()?;
    let authority = Authority::new()?;
    replace(&tree, "server.crt", &authority.sign(&key, &spec.sans)?)?;
    sleep(SOON);
    expect("keeps the pair it has while the key does not match", served(&tree)? == first)?;

    replace(&tree, "ca.crt", &authority.certificate_pem)?;
    replace(&tree, "server.key", &key.serialize_pem())?;
    let second = on_disk(&tree)?;
    expect("has a second pair to serve", second != first)?;
    let began = Instant::now();
    while served(&tree)? != second {
        expect("serves the second pair", began.elapsed() < PATIENCE)?;
    }

    let began = Instant::now();
    let status = Command::new(tree.path("usr/bin/snap")).args(["restart", "microk8s.daemon-kubelite"]).status()?;
    expect("restarts", status.success())?;
    // On a busy machine the look may come when it is up again already.
    let down = TcpStream::connect("127.0.0.1:16443").is_err();
    expect("is down while it restarts", down || began.elapsed() > Duration::from_millis(300))?;
    while server.serving().is_none() {
        expect("comes back", began.elapsed() < PATIENCE)?;
        sleep(Duration::from_millis(20));
    }
    expect("serves the second pair after its restart", served(&tree)? == second)?;
    let began = Instant::now();
    while server.handshakes() < 4 {
        expect("counts handshakes", began.elapsed() < PATIENCE)?;
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn expect(what: &str, holds: bool) -> Result<()> {
    if holds { Ok(()) } else { Err(format!("the stand-in of the API server does not do it: {what}").into()) }
}

/// As careful writers do, and as the API server's file watch expects it.
fn replace(tree: &Tree, name: &str, text: &str) -> Result<()> {
    let path = tree.data("certs").join(name);
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, path)?)
}

fn on_disk(tree: &Tree) -> Result<CertificateDer<'static>> {
    Ok(CertificateDer::from_pem_file(tree.server_certificate())?)
}

/// The leaf on the port. The chain is not the question, so the client trusts what the leaf was signed with: the CA of
/// the moment, and the one before from the copy made here.
fn served(tree: &Tree) -> Result<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    for file in [tree.data("certs/ca.crt"), tree.path("state/ca-before.crt")] {
        if Path::exists(&file) {
            roots.add(CertificateDer::from_pem_file(&file)?)?;
        }
    }
    std::fs::copy(tree.data("certs/ca.crt"), tree.path("state/ca-before.crt"))?;
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), ServerName::try_from("127.0.0.1")?)?;
    let mut stream = TcpStream::connect("127.0.0.1:16443")?;
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    // The first byte completes the handshake.
    tls.write_all(b"\n")?;
    tls.conn.send_close_notify();
    tls.flush()?;
    // The server counts a handshake when its own side is done.
    sleep(Duration::from_millis(30));
    let leaf = connection.peer_certificates().and_then(|chain| chain.first()).ok_or("no certificate")?;
    Ok(leaf.clone().into_owned())
}
