//! TLS servers, good and bad, each in a thread that ends with the test process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ipguard::facts::certificate::Fingerprint;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, getsockname, listen, socket};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A self-signed certificate with its key.
pub(crate) struct Pair {
    pub(crate) certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["kubernetes".to_owned()]).expect("rcgen makes certificates");
        Self { certificate: made.cert.der().clone(), key: made.signing_key.serialize_der() }
    }

    /// A certificate by this CA for these names, with a key of its own.
    pub(crate) fn by(authority: &Authority, names: &[&str]) -> Self {
        let key = KeyPair::generate().expect("rcgen makes keys");
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut parameters = CertificateParams::new(names).expect("they are names");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let made = parameters.signed_by(&key, &authority.issuer).expect("rcgen makes certificates");
        Self { certificate: made.der().clone(), key: key.serialize_der() }
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.certificate);
        Fingerprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// The certificate of this pair with the key of another: what somebody who only saw the certificate can offer.
    pub(crate) fn with_key_of(&self, other: &Self) -> Self {
        Self { certificate: self.certificate.clone(), key: other.key.clone() }
    }

    pub(crate) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone().into())
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        let key =
            rustls::crypto::ring::sign::any_supported_type(&self.private_key()).expect("rcgen's keys are supported");
        Arc::new(CertifiedKey::new(vec![self.certificate.clone()], key))
    }
}

/// A CA.
pub(crate) struct Authority {
    pub(crate) certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("rcgen makes keys");
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = parameters.self_signed(&key).expect("rcgen makes certificates").der().clone();
        Self { certificate, issuer: Issuer::new(parameters, key) }
    }
}

/// Hands out whatever pair is in place, as an API server that reloads does.
#[derive(Debug)]
pub(crate) struct Served(Mutex<Arc<CertifiedKey>>);

impl Served {
    pub(crate) fn new(pair: &Pair) -> Arc<Self> {
        Arc::new(Self(Mutex::new(pair.certified())))
    }

    pub(crate) fn replace(&self, pair: &Pair) {
        *self.0.lock().expect("no thread panics with it") = pair.certified();
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.lock().expect("no thread panics with it")))
    }
}

pub(crate) fn config(
    served: Arc<Served>,
    versions: &[&'static SupportedProtocolVersion],
    client_ca: Option<&CertificateDer<'static>>,
) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("ring knows these versions");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).expect("a certificate");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("there is a root"))
        }
    };
    builder.with_cert_resolver(served)
}

/// A server for each connection of which `config` speaks TLS until the client says goodbye.
pub(crate) fn serve(config: ServerConfig) -> SocketAddr {
    let config = Arc::new(config);
    listen_with(move |stream| drop(speak(&config, stream)))
}

/// How the conversation ended; `Ok` when the client closed it properly.
pub(crate) fn speak(config: &Arc<ServerConfig>, mut stream: TcpStream) -> std::io::Result<usize> {
    let mut tls = ServerConnection::new(Arc::clone(config)).expect("the configuration is complete");
    while tls.is_handshaking() {
        tls.complete_io(&mut stream)?;
    }
    rustls::Stream::new(&mut tls, &mut stream).read(&mut [0; 16])
}

/// A server that does with each connection what `conversation` says.
pub(crate) fn listen_with(conversation: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback is there");
    let address = listener.local_addr().expect("it is bound");
    accept(listener, conversation);
    address
}

pub(crate) fn accept(listener: TcpListener, conversation: impl Fn(TcpStream) + Send + Sync + 'static) {
    let conversation = Arc::new(conversation);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("not zero");
            let conversation = Arc::clone(&conversation);
            std::thread::spawn(move || conversation(stream));
        }
    });
}

/// A port that refuses: bound, so that nobody else gets it, and not listening.
pub(crate) fn closed_port() -> (OwnedFd, SocketAddr) {
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(fd.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("the loopback is there");
    let name: SockaddrIn = getsockname(fd.as_raw_fd()).expect("it is bound");
    (fd, SocketAddr::from((Ipv4Addr::LOCALHOST, name.port())))
}

pub(crate) fn open_port(fd: OwnedFd) -> TcpListener {
    listen(&fd, Backlog::new(16).expect("small enough")).expect("it is bound");
    TcpListener::from(fd)
}

/// Reads what has come of the client's greeting and answers with these bytes.
pub(crate) fn answer_with(bytes: &'static [u8]) -> SocketAddr {
    listen_with(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(bytes);
        let _ = stream.read(&mut [0; 4096]);
    })
}
