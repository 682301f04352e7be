//! What a certificate, its key and its CA say. Public parts only: no private key is ever a fact.

use std::fmt;
use std::path::PathBuf;

use crate::facts::Read;
use crate::facts::san::SanSet;
use crate::facts::time::Timestamp;

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
}

/// A leaf certificate, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// DNS and IP names in canonical form.
    pub sans: SanSet,
    /// SAN entries a Go server would refuse the certificate for (IPv4-mapped IPv6, addresses of odd length, non-ASCII
    /// names), as text. Any of them is a reason to reissue.
    pub refused_sans: Vec<String>,
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
    /// SHA-256 of the certificate's DER.
    pub fingerprint: Fingerprint,
}

/// The certificates of a CA file, in file order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// Never empty.
    pub certificates: Vec<AuthorityCertificate>,
    /// Index of the one whose public key equals the CA key's: the one that signs. `None` when the key is missing,
    /// unreadable or belongs to none of them.
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
    /// Nobody listens, the way is blocked, or it is not TLS; the text says which. Not a failed reload.
    Unknown(String),
}

impl CertificateFacts {
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
