//! Private keys: what they are, and their public half.
//!
//! In: a key file. Out: a [`PublicKey`] for facts, or a [`PrivateKey`] for `act/`, which signs with it. The rule of
//! this file: the private bytes are wiped when they are dropped, never printed, and read only when the file changed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _};
use rustls_pki_types::PrivateKeyDer;
use zeroize::Zeroizing;

use crate::facts::certificate::PublicKey;
use crate::facts::{Read, ReadError};
use crate::observe::der::{BIT_STRING, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, element, tlv, wiped};
use crate::observe::pem;
use crate::observe::rsa::RsaKey;

/// A private key that can sign.
pub struct PrivateKey {
    /// PKCS#1 for RSA, PKCS#8 (RFC 5958) for the others.
    der: Zeroizing<Vec<u8>>,
    kind: Kind,
    public: PublicKey,
}

/// Kinds of keys that can sign here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// RSA of 2048 to 4096 bits.
    Rsa,
    /// ECDSA on NIST P-256.
    P256,
    /// ECDSA on NIST P-384.
    P384,
    /// Ed25519.
    Ed25519,
}

/// A key ready to sign. It is made only to sign or to compute the public half, and dropped at once. ring does not wipe
/// its own copy of a secret; the program's allocator does (`main.rs`).
enum Signer {
    Rsa(Box<RsaKey>),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// Why a file gave no key.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read, or is empty.
    #[error(transparent)]
    File(ReadError),
    /// It was read.
    #[error("{path}: {why}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with the content.
        why: Unusable,
    },
}

/// Why the content of a key file cannot be used, and what helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// No block of the file is a private key.
    #[error("there is no PEM block with a private key in it")]
    NoKey,
    /// It says that it is a key and is not.
    #[error("the private key is damaged: {0}")]
    Damaged(&'static str),
    /// A passphrase is needed.
    #[error(
        "the private key is encrypted, and nobody is here to type a passphrase: decrypt it with `openssl pkey -in FILE -out NEW`"
    )]
    Encrypted,
    /// A key of a kind that cannot be used here.
    #[error(
        "{0} cannot be used here, but RSA of 2048 to 4096 bits, P-256, P-384 and Ed25519 can: replace it with one of those, a CA's key together with its certificate"
    )]
    Unsupported(String),
    /// A key in another packaging.
    #[error("the private key is {form}: rewrite it with `{command}`")]
    Packaging {
        /// What it is.
        form: &'static str,
        /// What makes it usable.
        command: &'static str,
    },
    /// An EC key without its public half, which cannot be computed here, and no certificate has it.
    #[error("the EC private key has no public key beside it: add it with `openssl ec -in FILE -out NEW`")]
    NoPublicHalf,
    /// Go's decoder does not find it, so a server written in Go has no key at all.
    #[error(
        "text or a byte order mark stands before BEGIN on its line, where a Go server does not look: remove it, so that the line starts with -----BEGIN"
    )]
    NotAtLineStart,
    /// A server written in Go takes the first key and then fails, since it is not the certificate's.
    #[error(
        "the key that belongs to the certificate is number {0} of the file, and a Go server reads the first alone: put it first or remove the others"
    )]
    NotFirst(usize),
}

/// Whose key a file should hold, when it holds several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// A CA whose certificates have these keys. It is only signed with here, so any key of the file will do.
    Authority(Vec<PublicKey>),
    /// A server whose certificate has this key, if there is a certificate.
    Server(Option<PublicKey>),
}

impl Unusable {
    /// Whether somebody's key is in the file all the same: then it must not be replaced by a new one.
    pub const fn holds_a_key(&self) -> bool {
        !matches!(self, Self::NoKey | Self::Damaged(_))
    }
}

impl PrivateKey {
    /// Loads the key of a file.
    ///
    /// # Errors
    /// The file cannot be read, or its key not used.
    pub fn load(path: &Path, owner: &Owner) -> Result<Self, LoadError> {
        let (bytes, _) = pem::read_file(path).map_err(LoadError::File)?;
        Self::from_pem(&bytes, owner).map_err(|why| LoadError::Unusable { path: path.to_owned(), why })
    }

    /// The owner's private key in a PEM file.
    ///
    /// # Errors
    /// Says what is wrong and what helps.
    pub fn from_pem(file: &[u8], owner: &Owner) -> Result<Self, Unusable> {
        let is_key = |block: &pem::Block| block.label == "PRIVATE KEY" || block.label.ends_with(" PRIVATE KEY");
        let blocks: Vec<pem::Block> = pem::blocks(file).into_iter().filter(is_key).collect();
        if blocks.is_empty() {
            return Err(match PrivateKeyDer::try_from(file) {
                Ok(_) => Unusable::Packaging {
                    form: "in DER, without PEM around it",
                    command: "openssl pkey -inform DER -in FILE -out NEW",
                },
                Err(_) => Unusable::NoKey,
            });
        }
        match owner {
            Owner::Authority(wanted) => Self::of_authority(blocks, wanted),
            Owner::Server(wanted) => Self::of_server(blocks, wanted.as_slice()),
        }
    }

    fn of_authority(blocks: Vec<pem::Block>, wanted: &[PublicKey]) -> Result<Self, Unusable> {
        let mut first = Err(Unusable::NoKey);
        for (index, block) in blocks.into_iter().enumerate() {
            let key = Self::from_block(block, wanted);
            if key.as_ref().is_ok_and(|key| wanted.contains(&key.public)) {
                return key;
            }
            if index == 0 {
                first = key;
            }
        }
        first
    }

    /// What Go's `tls.X509KeyPair` would take, or why it could not work with that.
    fn of_server(blocks: Vec<pem::Block>, wanted: &[PublicKey]) -> Result<Self, Unusable> {
        let mut seen = blocks.into_iter().filter(|block| block.at_line_start);
        let first = Self::from_block(seen.next().ok_or(Unusable::NotAtLineStart)?, wanted);
        let fits = |key: &Result<Self, Unusable>| key.as_ref().is_ok_and(|key| wanted.contains(&key.public));
        if !fits(&first)
            && let Some(index) = seen.map(|block| Self::from_block(block, wanted)).position(|key| fits(&key))
        {
            return Err(Unusable::NotFirst(index + 2));
        }
        first
    }

    /// `certified` are the public keys that certificates have: an EC key may come without its public half.
    fn from_block(block: pem::Block, certified: &[PublicKey]) -> Result<Self, Unusable> {
        if block.encrypted {
            return Err(Unusable::Encrypted);
        }
        match block.label.as_str() {
            "OPENSSH PRIVATE KEY" => {
                Err(Unusable::Packaging { form: "in OpenSSH's own format", command: "ssh-keygen -p -m PEM -f FILE" })
            }
            // Its structure is too much like an RSA key's to be told apart by it.
            "DSA PRIVATE KEY" => Err(Unusable::Unsupported("a key of the kind DSA".to_owned())),
            _ => Self::certified(&block.der.map_err(Unusable::Damaged)?, certified),
        }
    }

    /// A key in PKCS#8, PKCS#1 (RFC 8017) or SEC1 (RFC 5915), told apart by structure: labels are often wrong.
    ///
    /// # Errors
    /// Says what is wrong and what helps.
    pub fn from_der(der: &[u8]) -> Result<Self, Unusable> {
        Self::certified(der, &[])
    }

    fn certified(der: &[u8], certified: &[PublicKey]) -> Result<Self, Unusable> {
        match PrivateKeyDer::try_from(der).map_err(|_| Unusable::Damaged("it has no structure known for keys"))? {
            PrivateKeyDer::Pkcs1(key) => Self::rsa(key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => Self::sec1(key.secret_sec1_der(), None, certified),
            PrivateKeyDer::Pkcs8(key) => Self::pkcs8(key.secret_pkcs8_der(), certified),
            _ => Err(Unusable::NoKey),
        }
    }

    /// A new P-256 key. ring makes no RSA keys; every supported API server takes ECDSA.
    ///
    /// # Errors
    /// The system gave no random bytes.
    pub fn generate() -> Result<Self, ring::error::Unspecified> {
        let random = ring::rand::SystemRandom::new();
        // ring gives no way to wipe this copy: it is on the stack, where the next call is.
        let document = EcdsaKeyPair::generate_pkcs8(&signature::ECDSA_P256_SHA256_ASN1_SIGNING, &random)?;
        Self::from_der(document.as_ref()).map_err(|_| ring::error::Unspecified)
    }

    /// Its public half.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Its kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// For a TLS client that has to say who it is.
    pub fn to_tls(&self) -> PrivateKeyDer<'static> {
        match self.kind {
            Kind::Rsa => PrivateKeyDer::Pkcs1(self.der.to_vec().into()),
            _ => PrivateKeyDer::Pkcs8(self.der.to_vec().into()),
        }
    }

    /// As PKCS#8 in PEM. Only a key that [`PrivateKey::generate`] made is ever written.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let label = if self.kind == Kind::Rsa { "RSA PRIVATE KEY" } else { "PRIVATE KEY" };
        pem::encode(label, &self.der)
    }

    /// Signs: SHA-256 with RSA and P-256, SHA-384 with P-384.
    ///
    /// # Errors
    /// The system gave no random bytes; the key itself was accepted when it was loaded.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        Signer::new(self.kind, &self.der).map_err(|_| ring::error::Unspecified)?.sign(message)
    }

    /// `refused` says what is wrong where the library says only that something is.
    fn new(kind: Kind, der: Zeroizing<Vec<u8>>, refused: impl FnOnce(Unusable) -> Unusable) -> Result<Self, Unusable> {
        let signer = Signer::new(kind, &der).map_err(refused)?;
        let public = PublicKey(subject_public_key_info(kind, signer.public_bytes()).to_vec());
        Ok(Self { der, kind, public })
    }

    fn rsa(der: &[u8]) -> Result<Self, Unusable> {
        Self::new(Kind::Rsa, Zeroizing::new(der.to_vec()), |refused| refused)
    }

    /// `curve` is what the PKCS#8 envelope says; within it the key itself need not repeat it.
    fn sec1(der: &[u8], curve: Option<&[u8]>, certified: &[PublicKey]) -> Result<Self, Unusable> {
        const DAMAGED: Unusable = Unusable::Damaged("it is no EC key inside");
        let (_, content, _) = element(der).filter(|(tag, ..)| *tag == SEQUENCE).ok_or(DAMAGED)?;
        let (_, _, rest) = element(content).ok_or(DAMAGED)?;
        let (_, secret, mut rest) = element(rest).filter(|(tag, ..)| *tag == OCTET_STRING).ok_or(DAMAGED)?;
        let (mut parameters, mut public) = (curve, None);
        while let Some((tag, value, after)) = element(rest) {
            match tag {
                0xa0 => parameters = parameters.or(Some(value)),
                0xa1 => public = Some(value),
                _ => {}
            }
            rest = after;
        }
        let kind = match (parameters, secret.len()) {
            (Some(oid), _) if oid == P256_OID => Kind::P256,
            (Some(oid), _) if oid == P384_OID => Kind::P384,
            (Some(oid), _) => return Err(Unusable::Unsupported(format!("an EC key on {}", curve_name(oid)))),
            (None, 32) => Kind::P256,
            (None, 48) => Kind::P384,
            (None, length) => return Err(Unusable::Unsupported(format!("an EC key of {} bits", 8 * length))),
        };
        // Written anew, because ring insists on one of the several legal forms: no attributes, a key of full length.
        let width: usize = if kind == Kind::P256 { 32 } else { 48 };
        let padding = width.checked_sub(secret.len()).ok_or(DAMAGED)?;
        let secret = wiped(&[&[0; 48][..padding], secret]);
        let whole = |public: &[u8]| {
            let inner = tlv(SEQUENCE, &[&[2, 1, 1], &tlv(OCTET_STRING, &[&secret]), &tlv(0xa1, &[public])]);
            let envelope = tlv(SEQUENCE, &[&[2, 1, 0], &algorithm(kind), &tlv(OCTET_STRING, &[&inner])]);
            Self::new(kind, envelope, |_| Unusable::Damaged("its private and public half do not fit together"))
        };
        match public {
            Some(public) => whole(public),
            // Go computes it; here it is the one of a certificate, if it fits. It is the last element of its key's DER.
            None => {
                let point = tlv(BIT_STRING, &[&vec![0; 2 + 2 * width]]).len();
                let keys = certified.iter().filter_map(|key| key.0.get(key.0.len().checked_sub(point)?..));
                keys.filter_map(|public| whole(public).ok())
                    .find(|key| certified.contains(&key.public))
                    .ok_or(Unusable::NoPublicHalf)
            }
        }
    }

    fn pkcs8(der: &[u8], certified: &[PublicKey]) -> Result<Self, Unusable> {
        const DAMAGED: Unusable = Unusable::Damaged("it is no PKCS#8 inside");
        let (_, content, _) = element(der).ok_or(DAMAGED)?;
        let (_, _, rest) = element(content).ok_or(DAMAGED)?;
        let (_, identifier, rest) = element(rest).ok_or(DAMAGED)?;
        let (_, oid, parameters) = element(identifier).ok_or(DAMAGED)?;
        let (_, secret, _) = element(rest).filter(|(tag, ..)| *tag == OCTET_STRING).ok_or(DAMAGED)?;
        match oid {
            RSA => Self::rsa(secret),
            EC => Self::sec1(secret, Some(parameters), certified),
            ED25519 => Self::new(Kind::Ed25519, Zeroizing::new(der.to_vec()), |_| {
                Unusable::Damaged("it is no Ed25519 key inside")
            }),
            other => Err(Unusable::Unsupported(format!("a key of the kind {}", key_name(other)))),
        }
    }
}

/// The secret is never printed.
impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({:?})", self.kind)
    }
}

impl Signer {
    fn new(kind: Kind, der: &[u8]) -> Result<Self, Unusable> {
        let random = ring::rand::SystemRandom::new();
        let ecdsa = |algorithm| EcdsaKeyPair::from_pkcs8(algorithm, der, &random).map(Self::Ecdsa);
        let pair = match kind {
            Kind::Rsa => return RsaKey::from_pkcs1(der).map(|key| Self::Rsa(Box::new(key))),
            Kind::P256 => ecdsa(&signature::ECDSA_P256_SHA256_ASN1_SIGNING),
            Kind::P384 => ecdsa(&signature::ECDSA_P384_SHA384_ASN1_SIGNING),
            // OpenSSL writes Ed25519 keys without the public half, which ring's stricter constructor wants.
            Kind::Ed25519 => Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map(Self::Ed25519),
        };
        pair.map_err(|_| Unusable::Damaged("its numbers do not fit together"))
    }

    /// What the BIT STRING of a SubjectPublicKeyInfo holds.
    fn public_bytes(&self) -> &[u8] {
        match self {
            Self::Rsa(key) => key.public_bytes(),
            Self::Ecdsa(pair) => pair.public_key().as_ref(),
            Self::Ed25519(pair) => pair.public_key().as_ref(),
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = ring::rand::SystemRandom::new();
        Ok(match self {
            Self::Rsa(key) => key.sign(message).map_err(|_| ring::error::Unspecified)?,
            Self::Ecdsa(pair) => pair.sign(&random, message)?.as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        })
    }
}

/// Public halves of key files that have not changed since they were read.
#[derive(Debug, Default)]
pub struct KeyCache {
    entries: HashMap<PathBuf, Known>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    owner: Owner,
    public: Read<PublicKey>,
}

/// What changes when a file is replaced, written or touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
    modified: (i64, i64),
    size: u64,
}

impl Identity {
    pub(crate) fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            size: metadata.size(),
        }
    }

    /// Whether a write after this moment is sure to give another identity. Kernel time stamps have the grain of a clock
    /// tick, or of two seconds on some file systems: a file written just now can be written again unseen.
    pub(crate) fn has_aged(self) -> bool {
        const GRAIN: i64 = 2;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        i64::try_from(now).is_ok_and(|now| self.changed.0.max(self.modified.0).saturating_add(GRAIN) < now)
    }
}

impl KeyCache {
    /// The public half of the owner's key in a file, read only if the file or the owner changed.
    ///
    /// # Errors
    /// The file cannot be read, or its key not used.
    pub fn public(&mut self, path: &Path, owner: &Owner) -> Read<PublicKey> {
        if let Ok(metadata) = std::fs::symlink_metadata(path)
            && let Some(known) = self.entries.get(path)
            && (known.identity, &known.owner) == (Identity::of(&metadata), owner)
        {
            return known.public.clone();
        }
        self.entries.remove(path);
        let (bytes, metadata) = pem::read_file(path)?;
        let public = match PrivateKey::from_pem(&bytes, owner) {
            Ok(key) => Ok(key.public),
            Err(why) => Err(ReadError::malformed(path, why.to_string())),
        };
        let identity = Identity::of(&metadata);
        if identity.has_aged() {
            self.entries.insert(path.to_owned(), Known { identity, owner: owner.clone(), public: public.clone() });
        }
        public
    }
}

// Object identifiers: contents for those that are compared, whole elements where they are compared with parameters.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
const P256_OID: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384_OID: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x22];

fn curve_name(parameters: &[u8]) -> &'static str {
    match parameters {
        [6, 5, 0x2b, 0x81, 4, 0, 0x23] => "P-521",
        [6, 5, 0x2b, 0x81, 4, 0, 0x0a] => "secp256k1",
        [SEQUENCE, ..] => "a curve with explicit parameters",
        _ => "an unknown curve",
    }
}

fn key_name(oid: &[u8]) -> &'static str {
    match oid {
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10] => "RSA-PSS",
        [0x2b, 0x65, 0x71] => "Ed448",
        [0x2b, 0x65, 0x6e] => "X25519",
        [0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1] => "DSA",
        _ => "nobody here knows",
    }
}

/// The AlgorithmIdentifier of a public key (RFC 3279 section 2.3, RFC 5480, RFC 8410).
fn algorithm(kind: Kind) -> Zeroizing<Vec<u8>> {
    match kind {
        Kind::Rsa => tlv(SEQUENCE, &[&tlv(OBJECT_IDENTIFIER, &[RSA]), &[5, 0]]),
        Kind::P256 => tlv(SEQUENCE, &[&tlv(OBJECT_IDENTIFIER, &[EC]), P256_OID]),
        Kind::P384 => tlv(SEQUENCE, &[&tlv(OBJECT_IDENTIFIER, &[EC]), P384_OID]),
        Kind::Ed25519 => tlv(SEQUENCE, &[&tlv(OBJECT_IDENTIFIER, &[ED25519])]),
    }
}

fn subject_public_key_info(kind: Kind, public: &[u8]) -> Zeroizing<Vec<u8>> {
    tlv(SEQUENCE, &[&algorithm(kind), &tlv(BIT_STRING, &[&[0], public])])
}

#[cfg(test)]
#[path = "private_key_tests.rs"]
mod tests;
