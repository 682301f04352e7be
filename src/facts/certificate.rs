//! What a certificate, its key and its CA say. Public parts only: no private key is ever a fact.

use std::fmt;
use std::path::PathBuf;

use crate::facts::san::SanSet;
use crate::facts::time::Timestamp;
use crate::facts::{Problem, Read};

/// One certificate the profile names, with what it is made from.
#[derive(Debug, Clone)]
pub struct CertificateFacts {
    /// Its name in the profile: `server`.
    pub name: String,
    /// The certificate file.
    pub path: PathBuf,
    /// The leaf: the first certificate of the file.
    pub leaf: Read<Leaf>,
    /// Public half of its private key.
    pub key: Read<PublicKey>,
    /// The CA file.
    pub authority: Read<Authority>,
    /// Public half of the CA's private key.
    pub authority_key: Read<PublicKey>,
    /// Whether the signature on the leaf is by a certificate of the CA file; `None` when either could not be read.
    pub issued_by_authority: Option<bool>,
    /// Whether it is by a CA of the operator's bundle of other CAs, or may be, since that cannot be read.
    pub issued_by_foreign: bool,
    /// What it is for.
    pub role: CertificateRole,
    /// The flag that makes its component use another file, one that is left alone; nobody uses this one then.
    pub elsewhere: Option<String>,
    /// Subject of one that has no readable certificate before it; empty where the template says it.
    pub subject: Vec<(String, String)>,
}

/// What a certificate is for: which names it needs, and whether it is made where there is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateRole {
    /// The API server's own, shown on its port.
    #[default]
    ApiServer,
    /// The API server's towards extension API servers. It names nobody, and no port shows it.
    ProxyClient,
    /// The kubelet's: `kubectl logs` and `exec` go to it by the node's name and address.
    Kubelet,
}

impl CertificateRole {
    /// What its peers verify it for. The server is a client's certificate too, which nothing depends on.
    pub fn purpose(self) -> Purpose {
        match self {
            Self::ApiServer | Self::Kubelet => Purpose::Server,
            Self::ProxyClient => Purpose::Client,
        }
    }
}

/// What a certificate must be good for, and its CA with it: one end of a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Clients verify it: serverAuth.
    Server,
    /// Servers verify it: clientAuth.
    Client,
}

impl Purpose {
    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// Its name in extendedKeyUsage.
impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "serverAuth",
            Self::Client => "clientAuth",
        })
    }
}

/// A leaf certificate, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// DNS and IP names in canonical form.
    pub sans: SanSet,
    /// SAN entries a Go server would refuse the certificate for (IPv4-mapped IPv6, addresses of odd length, non-ASCII
    /// names), as text. Any of them is a reason to reissue.
    pub refused_sans: Vec<String>,
    /// Names that no client looks for and no new certificate keeps: URIs, email addresses, DNS names that match nothing.
    pub other_names: Vec<String>,
    /// Subject, DER.
    pub subject: Vec<u8>,
    /// Issuer, DER.
    pub issuer: Vec<u8>,
    /// SubjectPublicKeyInfo, DER.
    pub public_key: PublicKey,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// What it may be used for.
    pub usage: Usage,
    /// Its signature algorithm, where a Go peer refuses it: `SHA-1 with RSA`.
    pub refused_signature: Option<String>,
    /// Key identifier of its CA as it says it (RFC 5280 section 4.2.1.1).
    pub authority_key_id: Option<Vec<u8>>,
    /// Serial of its CA's certificate, where it says that too.
    pub authority_serial: Option<Vec<u8>>,
    /// SHA-256 of the certificate's DER.
    pub fingerprint: Fingerprint,
}

/// What a certificate may be used for. An extension that is not there allows everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// extendedKeyUsage allows serverAuth.
    pub server_auth: bool,
    /// extendedKeyUsage allows clientAuth.
    pub client_auth: bool,
    /// keyUsage allows digitalSignature, without which there is no TLS 1.3.
    pub digital_signature: bool,
    /// basicConstraints say that it is a CA.
    pub is_ca: bool,
}

/// The certificates of a CA file, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Never empty.
    pub certificates: Vec<AuthorityCertificate>,
    /// Index of the one that signs now: its public key equals the CA key's. `None` when the key is missing, unreadable or
    /// belongs to none of them.
    pub signer: Option<usize>,
}

/// A CA certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityCertificate {
    /// Subject, DER: the bytes the leaf's issuer must equal.
    pub subject: Vec<u8>,
    /// SubjectPublicKeyInfo, DER.
    pub public_key: PublicKey,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// Issuer equals subject.
    pub self_signed: bool,
    /// Its subjectKeyIdentifier.
    pub key_id: Option<Vec<u8>>,
    /// Its serial, the bytes of the INTEGER.
    pub serial: Vec<u8>,
    /// Why a verifier refuses what it signs for the certificate's purpose; `None` when it may sign.
    pub cannot_sign: Option<&'static str>,
}

/// A SubjectPublicKeyInfo in DER (RFC 5280 section 4.1.2.7).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PublicKey(pub Vec<u8>);

/// SHA-256 of a certificate's DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

/// What a port serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Served {
    /// A TLS handshake showed this leaf.
    Leaf(Fingerprint),
    /// A TLS server is there and cannot prove a certificate: it says so by an alert, or its signature is not by the key
    /// of the certificate that it shows.
    Unusable(String),
    /// Nobody listens, the way is blocked, or it is not TLS; the text says which. Not a failed reload.
    Unknown(String),
}

impl CertificateFacts {
    /// There is no certificate file at all.
    pub fn is_absent(&self) -> bool {
        matches!(&self.leaf, Err(error) if error.problem == Problem::Missing)
    }

    /// The CA certificate that can sign: readable, and its key is there and belongs to it.
    pub fn signer(&self) -> Option<&AuthorityCertificate> {
        let authority = self.authority.as_ref().ok()?;
        authority.certificates.get(authority.signer?)
    }
}

/// The first eight bytes in hex are enough to tell two certificates apart in a log line.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Fingerprint {
    /// All 32 bytes in lower-case hex, for files.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({} bytes)", self.0.len())
    }
}
