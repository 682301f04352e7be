//! A stand-in for the API server's port: TLS on 16443, which picks up a new certificate from disk as kube-apiserver
//! does, and a service that runs only while there is a usable pair.
//!
//! In: `certs/server.crt`, `certs/server.key`, restarts written down by the stand-in of `snap`. Out: handshakes, and
//! the services' states.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::timeline::{Timeline, monotonic};
use super::{Result, services};

/// The port MicroK8s serves on.
const PORT: u16 = 16443;
/// How often files, restarts and the listener are looked at.
const TICK: Duration = Duration::from_millis(20);
/// From a usable pair or a restart to the open port. Long enough that nobody can mistake a start for a reload.
const START_UP: Duration = Duration::from_millis(400);
/// A client that says nothing is dropped.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the server treats new certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reloading {
    /// Serves a new pair as soon as it is on disk: kube-apiserver since 1.23.
    #[default]
    OnChange,
    /// Serves a new pair after a restart only.
    AtRestart,
    /// Serves a new pair after a restart only - and can use none but its first one: behind a restart with another it
    /// listens and answers every client with an alert.
    OnlyTheFirst,
    /// Runs, and nothing listens.
    Closed,
}

/// What a server shows: how, and the leaf.
pub(crate) type Pair = (Arc<ServerConfig>, CertificateDer<'static>);

/// The server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    handshakes: AtomicU64,
    serving: Mutex<Option<CertificateDer<'static>>>,
}

impl ApiServer {
    /// `started` is what the services say about their start, when a usable pair is there from the beginning.
    pub(crate) fn start(
        root: &Path,
        certificates: PathBuf,
        reloading: Reloading,
        started: Duration,
        timeline: &Timeline,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut server = Server {
            root: root.to_owned(),
            certificates,
            reloading,
            shared: Arc::clone(&shared),
            timeline: timeline.clone(),
            seen: None,
            pair: None,
            listener: None,
            restarts: services::restarts(root),
            first: None,
            unusable: false,
        };
        services::set_stopped(root, server.restarts)?;
        // The first pair is served from the beginning: the host has been running for a while.
        if server.load_if_changed() {
            server.first = server.pair.as_ref().map(|(_, leaf)| leaf.clone());
            server.open()?;
            services::set_active(root, Some(started))?;
        }
        let thread = thread::spawn(move || server.serve());
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The leaf that is served now; `None` while nothing listens.
    pub(crate) fn serving(&self) -> Option<CertificateDer<'static>> {
        self.shared.serving.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Handshakes completed so far.
    pub(crate) fn handshakes(&self) -> u64 {
        self.shared.handshakes.load(Ordering::Relaxed)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

struct Server {
    root: PathBuf,
    certificates: PathBuf,
    reloading: Reloading,
    shared: Arc<Shared>,
    timeline: Timeline,
    seen: Option<[(SystemTime, u64); 2]>,
    pair: Option<Pair>,
    listener: Option<TcpListener>,
    restarts: u64,
    first: Option<CertificateDer<'static>>,
    unusable: bool,
}

impl Server {
    fn serve(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.turn() {
                self.timeline.note("server", format!("{error}"));
            }
            thread::sleep(TICK);
        }
    }

    fn turn(&mut self) -> Result<()> {
        let restarts = services::restarts(&self.root);
        if restarts != self.restarts {
            self.restarts = restarts;
            self.close();
            services::set_stopped(&self.root, restarts)?;
            (self.pair, self.seen) = (None, None);
            thread::sleep(START_UP);
            self.load_if_changed();
            self.unusable = self.reloading == Reloading::OnlyTheFirst && !self.has_the_first();
            let how = if self.unusable { "restarted, and cannot use the pair" } else { "restarted" };
            self.timeline.note("server", how);
        } else if self.pair.is_none() {
            if self.load_if_changed() {
                // The service manager's next attempt finds a usable pair.
                thread::sleep(START_UP);
                services::set_active(&self.root, Some(monotonic()))?;
                self.timeline.note("server", "started: there is a usable pair now");
            }
        } else if self.reloading == Reloading::OnChange && self.load_if_changed() {
            self.timeline.note("server", "reloaded the pair");
        } else if self.unusable && self.load_if_changed() && self.has_the_first() {
            self.unusable = false;
            self.publish();
            self.timeline.note("server", "reloaded the pair that it can use");
        }
        if self.pair.is_some() {
            self.open()?;
        }
        self.accept();
        Ok(())
    }

    fn has_the_first(&self) -> bool {
        self.pair.as_ref().map(|(_, leaf)| leaf) == self.first.as_ref()
    }

    /// Takes the pair on disk if it is another one and usable; else the one in use stays, as in kube-apiserver.
    fn load_if_changed(&mut self) -> bool {
        let Some(now) = stamps(&self.certificates) else { return false };
        if self.seen == Some(now) {
            return false;
        }
        self.seen = Some(now);
        match load(&self.certificates, "server") {
            Ok(pair) => {
                let changed = self.pair.as_ref().is_none_or(|(_, leaf)| *leaf != pair.1);
                self.pair = Some(pair);
                if self.listener.is_some() {
                    self.publish();
                }
                changed
            }
            Err(error) => {
                self.timeline.note("server", format!("the pair on disk is not usable: {error}"));
                false
            }
        }
    }

    fn open(&mut self) -> Result<()> {
        if self.listener.is_none() && self.reloading != Reloading::Closed {
            let listener = TcpListener::bind(("::", PORT))?;
            listener.set_nonblocking(true)?;
            self.listener = Some(listener);
            self.publish();
        }
        Ok(())
    }

    fn close(&mut self) {
        self.listener = None;
        *self.shared.serving.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn publish(&self) {
        let leaf = self.pair.as_ref().filter(|_| !self.unusable).map(|(_, leaf)| leaf.clone());
        *self.shared.serving.lock().unwrap_or_else(PoisonError::into_inner) = leaf;
    }

    fn accept(&self) {
        let (Some(listener), Some((config, _))) = (&self.listener, &self.pair) else { return };
        while let Ok((stream, _)) = listener.accept() {
            if self.unusable {
                thread::spawn(move || complain(stream));
                continue;
            }
            let (config, shared) = (Arc::clone(config), Arc::clone(&self.shared));
            let root = self.root.clone();
            thread::spawn(move || {
                if shake_hands(stream, config, &root).is_ok() {
                    shared.handshakes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
}

/// One client: the handshake, then whatever it sends until it goes.
pub(crate) fn shake_hands(mut stream: TcpStream, config: Arc<ServerConfig>, root: &Path) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut connection = ServerConnection::new(config)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    let known = connection.peer_certificates().is_some_and(|chain| !chain.is_empty());
    let mut client = rustls::Stream::new(&mut connection, &mut stream);
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    // The client may close as it likes.
    while let Ok(length @ 1..) = client.read(&mut piece) {
        request.extend_from_slice(&piece[..length]);
        if request.ends_with(b"\r\n\r\n") {
            client.write_all(answer(&request, known, root).as_bytes())?;
            break;
        }
    }
    connection.send_close_notify();
    // Mostly the client has gone.
    let _ = connection.complete_io(&mut stream);
    Ok(())
}

/// As kube-apiserver with `--anonymous-auth=false`, which MicroK8s sets: it answers whom it knows. `state/not-ready` says
/// what it is waiting for, `state/endpoints` what the `kubernetes` Service lists.
fn answer(request: &[u8], known: bool, root: &Path) -> String {
    let waiting = std::fs::read_to_string(root.join("state/not-ready")).ok();
    let (status, body) = match waiting {
        _ if !known => ("401 Unauthorized", "{\"kind\":\"Status\",\"code\":401}".to_owned()),
        _ if request.starts_with(b"GET /api/v1/namespaces/default/endpoints/kubernetes ") => endpoints(root),
        _ if !request.starts_with(b"GET /readyz ") => ("404 Not Found", "404 page not found".to_owned()),
        Some(what) => {
            let body = format!("[+]ping ok\n[-]{} failed: reason withheld\nreadyz check failed\n", what.trim());
            ("500 Internal Server Error", body)
        }
        None => ("200 OK", "ok".to_owned()),
    };
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

/// The endpoints of the `kubernetes` Service. Each question is noted.
fn endpoints(root: &Path) -> (&'static str, String) {
    let asked = root.join("state/endpoints-asked");
    let noted =
        std::fs::OpenOptions::new().create(true).append(true).open(asked).and_then(|mut file| file.write_all(b"q"));
    match (noted, std::fs::read_to_string(root.join("state/endpoints"))) {
        (Ok(()), Ok(addresses)) => {
            let addresses: Vec<String> = addresses.lines().map(|address| format!("{{\"ip\":\"{address}\"}}")).collect();
            let subsets = format!("[{{\"addresses\":[{}],\"ports\":[{{\"port\":16443}}]}}]", addresses.join(","));
            ("200 OK", format!("{{\"kind\":\"Endpoints\",\"apiVersion\":\"v1\",\"subsets\":{subsets}}}"))
        }
        _ => ("404 Not Found", "{\"kind\":\"Status\",\"code\":404}".to_owned()),
    }
}

/// What Go's crypto/tls says when it has no certificate to use: a fatal `internal_error` (RFC 8446, section 6).
fn complain(mut stream: TcpStream) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The greeting is read first: a close with unread bytes would reset the connection before the alert arrives.
    let _ = stream.read(&mut [0; 4096])?;
    Ok(stream.write_all(&[0x15, 3, 3, 0, 2, 2, 80])?)
}

/// The pair, with the client verification of kube-apiserver: certificates are asked for and not required.
pub(crate) fn load(certificates: &Path, name: &str) -> Result<Pair> {
    let file = certificates.join(name).with_extension("crt");
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(file)?.collect::<std::result::Result<_, _>>()?;
    let leaf = chain.first().cloned().ok_or("no certificate")?;
    let key = PrivateKeyDer::from_pem_file(certificates.join(name).with_extension("key"))?;
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(certificates.join("ca.crt"))? {
        roots.add(authority?)?;
    }
    let clients = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build()?;
    let config = ServerConfig::builder().with_client_cert_verifier(clients).with_single_cert(chain, key)?;
    Ok((Arc::new(config), leaf))
}

fn stamps(certificates: &Path) -> Option<[(SystemTime, u64); 2]> {
    let stamp = |name: &str| {
        let file = std::fs::metadata(certificates.join(name)).ok()?;
        Some((file.modified().ok()?, std::os::unix::fs::MetadataExt::ino(&file)))
    };
    Some([stamp("server.crt")?, stamp("server.key")?])
}
