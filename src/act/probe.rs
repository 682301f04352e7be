//! Reads the certificate that a port serves: one TLS handshake, driven by poll(2).
//!
//! In: an address and a deadline. Out: the SHA-256 of the leaf, or why there is none. The rule of this file: nothing is
//! trusted and nothing is sent but a handshake. Any chain is taken, since the question is which one it is; the
//! handshake's signature is checked, so that the answer is by somebody who holds the key.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use crate::chain::chain;
use crate::facts::certificate::{Fingerprint, Served};

/// Reads or writes per turn: a peer that sends without end must not keep the caller from its other work.
const TURNS: usize = 16;

/// One attempt to see what a port serves.
#[derive(Debug)]
pub struct Probe {
    address: SocketAddr,
    began: Instant,
    deadline: Instant,
    leaf: Arc<OnceLock<Fingerprint>>,
    stage: Stage,
}

/// Why a port did not show a certificate. None of these means that it serves a wrong one.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Nobody listens.
    #[error("{address}: connection refused")]
    Refused {
        /// The port.
        address: SocketAddr,
    },
    /// The connection could not be made, or broke.
    #[error("{address}: no connection")]
    Connection {
        /// The port.
        address: SocketAddr,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The peer closed the connection before it showed a certificate.
    #[error("{address}: closed by the peer before it showed a certificate")]
    Closed {
        /// The port.
        address: SocketAddr,
    },
    /// What came is not TLS 1.2 or 1.3 as a client would accept it.
    #[error("{address}: no TLS handshake")]
    Tls {
        /// The port.
        address: SocketAddr,
        /// What is wrong with it.
        #[source]
        source: rustls::Error,
    },
    /// No certificate before the deadline.
    #[error("{address}: no certificate within {:.1} s", after.as_secs_f32())]
    TimedOut {
        /// The port.
        address: SocketAddr,
        /// The time it had.
        after: Duration,
    },
}

#[derive(Debug)]
enum Stage {
    /// The connection could not even be tried; reported by the first `advance`.
    Failed(Option<ProbeError>),
    Connecting(TcpStream, Box<ClientConnection>),
    Handshake(TcpStream, Box<ClientConnection>),
}

impl Probe {
    /// Starts a connection.
    pub fn new(address: SocketAddr, deadline: Instant) -> Self {
        let leaf = Arc::new(OnceLock::new());
        let begin = || {
            let tls = client(address, Arc::clone(&leaf), None).map_err(|source| ProbeError::Tls { address, source })?;
            Ok(Stage::Connecting(start_connection(address).map_err(|e| connection_error(address, e))?, Box::new(tls)))
        };
        let stage = begin().unwrap_or_else(|error| Stage::Failed(Some(error)));
        Self { address, began: Instant::now(), deadline, leaf, stage }
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.stage {
            Stage::Failed(_) => Vec::new(),
            Stage::Connecting(stream, _) => vec![PollFd::new(stream.as_fd(), PollFlags::POLLOUT)],
            Stage::Handshake(stream, tls) => {
                let mut events = PollFlags::empty();
                events.set(PollFlags::POLLIN, tls.wants_read());
                events.set(PollFlags::POLLOUT, tls.wants_write());
                vec![PollFd::new(stream.as_fd(), events)]
            }
        }
    }

    /// When to look even if the descriptor is not ready.
    pub fn deadline(&self) -> Instant {
        if matches!(self.stage, Stage::Failed(_)) { self.began } else { self.deadline }
    }

    /// Takes what there is; never waits. `Some` once, when it is over.
    pub fn advance(&mut self) -> Option<Result<Fingerprint, ProbeError>> {
        let result = match &mut self.stage {
            Stage::Failed(error) => return error.take().map(Err),
            Stage::Connecting(..) => self.connected(),
            Stage::Handshake(..) => self.handshake(),
        };
        let result = match result {
            None if Instant::now() >= self.deadline => {
                Err(ProbeError::TimedOut { address: self.address, after: self.deadline - self.began })
            }
            None => return None,
            Some(result) => result,
        };
        // A leaf that was proven counts, whatever happened afterwards: a server that wants a client certificate shows
        // its own first and ends the handshake then.
        Some(match self.leaf.get() {
            Some(leaf) => Ok(*leaf),
            None => result.and(Err(ProbeError::Closed { address: self.address })),
        })
    }

    /// Looks whether the connection is made.
    fn connected(&mut self) -> Option<Result<(), ProbeError>> {
        let Stage::Connecting(stream, _) = &self.stage else { return None };
        match stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Some(Err(connection_error(self.address, error))),
        }
        match stream.peer_addr() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotConnected => return None,
            Err(error) => return Some(Err(connection_error(self.address, error))),
        }
        if let Stage::Connecting(stream, tls) = std::mem::replace(&mut self.stage, Stage::Failed(None)) {
            self.stage = Stage::Handshake(stream, tls);
        }
        self.handshake()
    }

    /// Moves the handshake on. `Some` when there is no more to come from it.
    fn handshake(&mut self) -> Option<Result<(), ProbeError>> {
        let address = self.address;
        let Stage::Handshake(stream, tls) = &mut self.stage else { return None };
        for _ in 0..TURNS {
            // Checked before each read: a read timeout would begin anew with each byte of a peer that drips.
            if Instant::now() >= self.deadline {
                return None;
            }
            let moved = if tls.wants_write() {
                tls.write_tls(stream)
            } else if !tls.is_handshaking() {
                // Says goodbye, or the server logs a broken connection for each of our looks.
                tls.send_close_notify();
                let _ = tls.write_tls(stream);
                return Some(Ok(()));
            } else {
                tls.read_tls(stream)
            };
            match moved {
                Ok(0) => return Some(Err(ProbeError::Closed { address })),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Some(Err(connection_error(address, error))),
            }
            if let Err(source) = tls.process_new_packets() {
                // The alert that tells the peer why.
                let _ = tls.write_tls(stream);
                return Some(Err(ProbeError::Tls { address, source }));
            }
        }
        None
    }
}

impl ProbeError {
    /// Whether the port is closed: the one answer that comes at once and is certain.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Whether a TLS server is there that cannot use its own certificate. Go's crypto/tls answers `internal_error` when it
    /// has none, `handshake_failure` when its key can make no signature that the client takes, `unrecognized_name` when it
    /// has none for the name; OpenSSL and rustls use the first two and `access_denied`. What an alert says about the
    /// client's own side (a version, a certificate it did not send) is no word about theirs.
    pub const fn is_unusable(&self) -> bool {
        let Self::Tls { source, .. } = self else { return false };
        matches!(
            source,
            rustls::Error::AlertReceived(
                AlertDescription::HandshakeFailure
                    | AlertDescription::InternalError
                    | AlertDescription::UnrecognisedName
                    | AlertDescription::AccessDenied
            ) | rustls::Error::InvalidCertificate(CertificateError::BadSignature)
        )
    }
}

impl From<Result<Fingerprint, ProbeError>> for Served {
    fn from(result: Result<Fingerprint, ProbeError>) -> Self {
        match result {
            Ok(leaf) => Self::Leaf(leaf),
            Err(error) if error.is_unusable() => Self::Unusable(chain(&error)),
            Err(error) => Self::Unknown(chain(&error)),
        }
    }
}

pub(super) fn connection_error(address: SocketAddr, source: io::Error) -> ProbeError {
    match source.kind() {
        io::ErrorKind::ConnectionRefused => ProbeError::Refused { address },
        _ => ProbeError::Connection { address, source },
    }
}

/// The standard library's connect waits; this one does not.
pub(super) fn start_connection(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(address)) {
        // A signal does not undo it: it goes on as if it had been in progress (POSIX, connect).
        Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn client(
    address: SocketAddr,
    leaf: Arc<OnceLock<Fingerprint>>,
    identity: Option<Identity>,
) -> Result<ClientConnection, rustls::Error> {
    connect_as(address, Witness::new(leaf, None)?, identity)
}

/// As [`client`], for somebody who has more to say than a greeting: the handshake fails with anybody else.
pub(super) fn client_that_trusts(
    address: SocketAddr,
    leaf: Arc<OnceLock<Fingerprint>>,
    trust: Trust,
    identity: Option<Identity>,
) -> Result<ClientConnection, rustls::Error> {
    connect_as(address, Witness::new(leaf, Some(trust))?, identity)
}

fn connect_as(
    address: SocketAddr,
    witness: Witness,
    identity: Option<Identity>,
) -> Result<ClientConnection, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(&witness.provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(witness));
    let mut config = match identity {
        Some(Identity { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.resumption = rustls::client::Resumption::disabled();
    // An address is no server name (RFC 6066 section 3), so none is sent.
    ClientConnection::new(Arc::new(config), ServerName::IpAddress(address.ip().into()))
}

/// Which servers are the right one: those with the certificate in place, and those that a client with these CAs would take
/// at the address that is asked.
#[derive(Debug)]
pub(super) struct Trust {
    /// CAs, DER.
    pub(super) authority: Vec<CertificateDer<'static>>,
    /// The leaf on disk.
    pub(super) in_place: Option<Fingerprint>,
}

/// Who the client is, for a server that asks.
#[derive(Debug)]
pub struct Identity {
    /// The certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key. It is in memory for as long as the connection is; the program's allocator wipes it.
    pub key: PrivateKeyDer<'static>,
}

/// Notes the leaf once the handshake's signature proves that the peer holds the leaf's key. Takes any chain, or those that
/// are to be trusted.
#[derive(Debug)]
struct Witness {
    provider: Arc<CryptoProvider>,
    leaf: Arc<OnceLock<Fingerprint>>,
    trusts: Option<(Option<Fingerprint>, Arc<WebPkiServerVerifier>)>,
}

impl Witness {
    fn new(leaf: Arc<OnceLock<Fingerprint>>, trust: Option<Trust>) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusts = trust
            .map(|trust| {
                let mut roots = RootCertStore::empty();
                for authority in trust.authority {
                    roots.add(authority)?;
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
                let verifier = verifier.map_err(|error| rustls::Error::General(error.to_string()))?;
                Ok::<_, rustls::Error>((trust.in_place, verifier))
            })
            .transpose()?;
        Ok(Self { provider, leaf, trusts })
    }

    fn note(&self, leaf: &CertificateDer<'_>) {
        self.leaf.get_or_init(|| fingerprint(leaf));
    }
}

fn fingerprint(leaf: &CertificateDer<'_>) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, leaf);
    Fingerprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

impl ServerCertVerifier for Witness {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.trusts {
            Some((in_place, verifier)) if *in_place != Some(fingerprint(leaf)) => {
                verifier.verify_server_cert(leaf, chain, name, ocsp, now)
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, leaf, signature, algorithms).inspect(|_| self.note(leaf))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signature, algorithms).inspect(|_| self.note(leaf))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
