//! Building a leaf, in memory.
//!
//! In: an order, the CA as it is on disk now, the leaf's key. Out: a certificate that [`crate::act::self_check`] has
//! verified as its peers would. The rule of this file: it touches no file but the CA's, and nothing that is not verified
//! leaves it.

use std::fmt;
use std::path::{Path, PathBuf};

use rcgen::{
    CertificateParams, DistinguishedName, Issuer, PublicKeyData, SerialNumber, SignatureAlgorithm, SubjectPublicKeyInfo,
};
use ring::rand::SecureRandom as _;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use zeroize::Zeroizing;

use crate::act::distinguished_name::{self, NameError};
use crate::act::extensions;
use crate::act::self_check::{self, Flaw};
use crate::decide::plan::IssueOrder;
use crate::facts::ReadError;
use crate::facts::certificate::{Fingerprint, PublicKey, Purpose};
use crate::facts::cluster::CertificatePaths;
use crate::facts::time::Timestamp;
use crate::observe::certificate;
use crate::observe::der::{self, BIT_STRING, SEQUENCE, tlv};
use crate::observe::pem;
use crate::observe::private_key::{Kind, LoadError, PrivateKey};
use crate::observe::usage;

/// A verified leaf, not yet written.
pub struct Built {
    /// The certificate file: the leaf, and the chain when an intermediate CA signed it.
    pub pem: String,
    /// The leaf alone.
    pub der: Vec<u8>,
    /// The key file, when a key was made for it.
    pub key_pem: Option<Zeroizing<String>>,
    /// Of the leaf.
    pub fingerprint: Fingerprint,
}

/// A new key is never printed.
impl fmt::Debug for Built {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Built({}, {} key)", self.fingerprint, if self.key_pem.is_some() { "new" } else { "same" })
    }
}

/// A CA bundle with the key of one of its certificates.
#[derive(Debug)]
pub struct Authority {
    path: PathBuf,
    /// All certificates of the bundle, DER.
    bundle: Vec<Vec<u8>>,
    /// Which of them the key belongs to.
    signer: usize,
    key: PrivateKey,
}

/// Why no leaf was built.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The CA bundle cannot be read.
    #[error("the CA cannot be used")]
    Authority(#[source] ReadError),
    /// The CA's key cannot be loaded.
    #[error("the CA's key cannot be used")]
    AuthorityKey(#[source] LoadError),
    /// The CA's key belongs to another CA.
    #[error(
        "{key}: it belongs to no certificate of {authority}: restore the two of them together",
        key = key.display(),
        authority = authority.display()
    )]
    ForeignAuthorityKey {
        /// The key file.
        key: PathBuf,
        /// The CA file.
        authority: PathBuf,
    },
    /// A verifier would refuse what this CA signs.
    #[error("{path}: the CA certificate cannot sign: {why}", path = path.display())]
    CannotSign {
        /// The CA file.
        path: PathBuf,
        /// What a verifier would say.
        why: &'static str,
    },
    /// The CA is expired or not yet valid.
    #[error("{path}: the CA is valid from {not_before} to {not_after}, not now", path = path.display())]
    AuthorityNotValid {
        /// The CA file.
        path: PathBuf,
        /// Start of its validity.
        not_before: Timestamp,
        /// End of its validity.
        not_after: Timestamp,
    },
    /// The order's dates reach beyond the CA's.
    #[error("the ordered validity reaches beyond the CA's")]
    BeyondAuthority,
    /// A certificate without a name serves nobody, and no verifier misses the names.
    #[error("no name is ordered: what the certificate has to serve is not known")]
    Nameless,
    /// Nobody would accept the leaf now.
    #[error("the ordered validity is from {not_before} to {not_after}, not now")]
    NotNow {
        /// Start of the ordered validity.
        not_before: Timestamp,
        /// End of the ordered validity.
        not_after: Timestamp,
    },
    /// The subject cannot be written.
    #[error("the subject cannot be written as ordered")]
    Subject(#[source] NameError),
    /// The order keeps the key, and there is none.
    #[error("there is no key to keep, and the order makes no new one")]
    NoKey,
    /// The kernel gave no random bytes.
    #[error("the system gave no random bytes")]
    Random,
    /// A date X.509 cannot hold.
    #[error("{0} is no date a certificate can hold")]
    Date(Timestamp),
    /// The builder refused.
    #[error("the certificate could not be built")]
    Build(#[source] rcgen::Error),
    /// The builder's certificate has other parts than RFC 5280 says.
    #[error("the names could not be put into the certificate that was built")]
    Names,
    /// The finished leaf is not what was ordered.
    #[error("the new certificate did not pass its own verification, nothing was written")]
    SelfCheck(#[source] Flaw),
}

impl Authority {
    /// Reads the CA and its key, for a certificate of this purpose that is made at this moment.
    ///
    /// # Errors
    /// One of them cannot be used, or they do not belong together.
    pub fn load(paths: &CertificatePaths, purpose: Purpose, now: Timestamp) -> Result<Self, LeafError> {
        let bundle = certificate::bundle(&paths.authority).map_err(LeafError::Authority)?;
        let owner = certificate::authority_owner(&bundle);
        let key = PrivateKey::load(&paths.authority_key, &owner).map_err(LeafError::AuthorityKey)?;
        let facts = certificate::authority(&bundle, Some(key.public()), purpose, now)
            .map_err(|why| LeafError::Authority(ReadError::malformed(&paths.authority, why)))?;
        let signer = facts.signer.ok_or_else(|| {
            let (key, authority) = (paths.authority_key.clone(), paths.authority.clone());
            LeafError::ForeignAuthorityKey { key, authority }
        })?;
        Ok(Self { path: paths.authority.clone(), bundle, signer, key })
    }

    /// The certificate that signs, DER.
    pub fn certificate(&self) -> &[u8] {
        &self.bundle[self.signer]
    }

    /// What a server has to send besides its leaf: the signing certificate and those above it, up to the root, which
    /// every client has. Empty when a root signs.
    pub fn chain(&self) -> Vec<&[u8]> {
        let mut chain: Vec<&[u8]> = Vec::new();
        let mut next = Some(self.certificate());
        while let Some(der) = next {
            let Ok(certificate) = certificate::parse(der) else { break };
            let (subject, issuer) = (certificate.subject().as_raw(), certificate.issuer().as_raw());
            // Two CAs that certify each other must not be followed round and round.
            if subject == issuer || chain.contains(&der) {
                break;
            }
            chain.push(der);
            next = self.above(&certificate);
        }
        chain
    }

    /// The certificate of the bundle that issued another. Where its signature is of a kind that cannot be checked here
    /// (P-521, RSA-PSS), the issuer's name and the key identifier speak for it: Go and OpenSSL can check it, and a server
    /// that left it out would serve a chain that ends nowhere.
    fn above(&self, certificate: &X509Certificate<'_>) -> Option<&[u8]> {
        let named = || {
            self.bundle
                .iter()
                .filter_map(|der| Some((der.as_slice(), certificate::parse(der).ok()?)))
                .filter(|(_, above)| above.subject().as_raw() == certificate.issuer().as_raw())
        };
        let pointer = usage::authority_key_identifier(certificate).key_id;
        let unchecked = |above: &X509Certificate<'_>| {
            let signature = certificate.verify_signature(Some(above.public_key()));
            let points = usage::subject_key_identifier(above).zip(pointer.as_deref()).is_none_or(|(id, to)| id == to);
            signature == Err(X509Error::SignatureUnsupportedAlgorithm) && points
        };
        named()
            .find(|(_, above)| certificate.verify_signature(Some(above.public_key())).is_ok())
            .or_else(|| named().find(|(_, above)| unchecked(above)))
            .map(|(der, _)| der)
    }

    /// All certificates of the bundle, DER.
    pub fn bundle(&self) -> impl Iterator<Item = &[u8]> {
        self.bundle.iter().map(Vec::as_slice)
    }
}

/// Builds and verifies the leaf of an order. `leaf_key` is the key to keep; it is not needed when the order makes a new
/// one.
///
/// # Errors
/// Whatever would make the leaf other than ordered, or unusable for a client.
pub fn build(
    order: &IssueOrder,
    authority: &Authority,
    leaf_key: Option<&PrivateKey>,
    now: Timestamp,
) -> Result<Built, LeafError> {
    // The proxy's certificate may have none: nobody connects to it.
    if order.served && order.sans.is_empty() {
        return Err(LeafError::Nameless);
    }
    let made = match order.new_key {
        true => Some(PrivateKey::generate().map_err(|_| LeafError::Random)?),
        false => None,
    };
    let public = made.as_ref().or(leaf_key).map(PrivateKey::public).ok_or(LeafError::NoKey)?;
    let cannot_sign = |why| LeafError::CannotSign { path: authority.path.clone(), why };
    let signer_certificate =
        certificate::parse(authority.certificate()).map_err(|_| cannot_sign("it is no X.509 certificate"))?;
    usage::may_sign(&signer_certificate, order.purpose).map_err(cannot_sign)?;
    dates_fit(&authority.path, &signer_certificate, order, now)?;
    let der = signed(order, public, &signer_certificate, &authority.key)?;
    self_check::check(&der, order, authority, public, now).map_err(LeafError::SelfCheck)?;

    let mut text = pem::encode("CERTIFICATE", &der).to_string();
    for above in authority.chain() {
        text.push_str(&pem::encode("CERTIFICATE", above));
    }
    let fingerprint = certificate::fingerprint(&der);
    Ok(Built { pem: text, der, key_pem: made.as_ref().map(PrivateKey::to_pem), fingerprint })
}

/// The dates of an anchor are not looked at by rustls-webpki either.
fn dates_fit(
    path: &Path,
    certificate: &X509Certificate<'_>,
    order: &IssueOrder,
    now: Timestamp,
) -> Result<(), LeafError> {
    let not_before = Timestamp::from_seconds(certificate.validity().not_before.timestamp());
    let not_after = Timestamp::from_seconds(certificate.validity().not_after.timestamp());
    if now < not_before || now >= not_after {
        return Err(LeafError::AuthorityNotValid { path: path.to_owned(), not_before, not_after });
    }
    // In whole seconds, as certificates have them: an order in milliseconds may start within the CA's first second.
    if order.not_before.seconds() < not_before.seconds() || order.not_after.seconds() > not_after.seconds() {
        return Err(LeafError::BeyondAuthority);
    }
    if now.seconds() < order.not_before.seconds() || now.seconds() > order.not_after.seconds() {
        return Err(LeafError::NotNow { not_before: order.not_before, not_after: order.not_after });
    }
    Ok(())
}

/// rcgen builds the leaf with empty names and without a signature; then the names are put in and it is signed. Its own
/// form of a name keeps one value for each attribute type and encodes it anew, so a CA with two DCs or a string of a rare
/// type would give a leaf that no verifier accepts. All CAs go the same way.
fn signed(
    order: &IssueOrder,
    public: &PublicKey,
    authority: &X509Certificate<'_>,
    key: &PrivateKey,
) -> Result<Vec<u8>, LeafError> {
    let subject = distinguished_name::encode(&order.subject).map_err(LeafError::Subject)?;
    let subject_key = SubjectPublicKeyInfo::from_der(&public.0).map_err(LeafError::Build)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = DistinguishedName::new();
    leaf.not_before = date(order.not_before)?;
    leaf.not_after = date(order.not_after)?;
    leaf.serial_number = Some(serial()?);
    leaf.custom_extensions = extensions::all(&extensions::Content {
        sans: &order.sans,
        nameless: der::only(SEQUENCE, &subject).is_some_and(<[u8]>::is_empty),
        public: subject_key.der_bytes(),
        authority,
        authority_key_id: order.authority_key_id,
    });
    let mut nobody = CertificateParams::default();
    nobody.distinguished_name = DistinguishedName::new();
    let unsigned = leaf.signed_by(&subject_key, &Issuer::new(nobody, Unsigned::new(key))).map_err(LeafError::Build)?;

    // Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { version, serialNumber, signature, issuer, validity, subject,
    // subjectPublicKeyInfo, extensions }, signatureAlgorithm, signatureValue } (RFC 5280 section 4.1).
    let certificate = der::only(SEQUENCE, unsigned.der()).and_then(der::parts);
    let Some([content, algorithm, _]) = certificate.as_deref() else { return Err(LeafError::Names) };
    let content = der::only(SEQUENCE, content).and_then(der::parts);
    let Some([version, serial, signature, _, validity, _, subject_key, extensions]) = content.as_deref() else {
        return Err(LeafError::Names);
    };
    let issuer = authority.subject().as_raw();
    let content = tlv(SEQUENCE, &[version, serial, signature, issuer, validity, &subject, subject_key, extensions]);
    let signature = key.sign(&content).map_err(|_| LeafError::Random)?;
    Ok(tlv(SEQUENCE, &[&content, algorithm, &tlv(BIT_STRING, &[&[0], &signature])]).to_vec())
}

/// 16 random bytes, positive and never shorter (RFC 5280 section 4.1.2.2 allows 20). Without one of our own rcgen would
/// give every certificate of a key the same serial.
fn serial() -> Result<SerialNumber, LeafError> {
    let mut bytes = [0; 16];
    ring::rand::SystemRandom::new().fill(&mut bytes).map_err(|_| LeafError::Random)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// RFC 5280 section 4.1.2.5: dates up to the year 9999, whole seconds.
fn date(at: Timestamp) -> Result<OffsetDateTime, LeafError> {
    let date = OffsetDateTime::from_unix_timestamp(at.seconds()).map_err(|_| LeafError::Date(at))?;
    if (0..=9999).contains(&date.year()) { Ok(date) } else { Err(LeafError::Date(at)) }
}

/// Names the signature algorithm to rcgen, and signs nothing: what it has built then is not yet the leaf.
struct Unsigned(&'static SignatureAlgorithm);

impl Unsigned {
    fn new(key: &PrivateKey) -> Self {
        Self(match key.kind() {
            Kind::Rsa => &rcgen::PKCS_RSA_SHA256,
            Kind::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Kind::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Kind::Ed25519 => &rcgen::PKCS_ED25519,
        })
    }
}

impl PublicKeyData for Unsigned {
    fn der_bytes(&self) -> &[u8] {
        &[]
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.0
    }
}

impl rcgen::SigningKey for Unsigned {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
