//! Building a leaf, in memory.
//!
//! In: an order, the CA as it is on disk now, the leaf's key. Out: a certificate that [`crate::act::self_check`] has
//! verified as a client would. The rule of this file: it touches no file but the CA's, and nothing that is not verified
//! leaves it.

use std::fmt;

use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData, SanType,
    SerialNumber, SignatureAlgorithm, SubjectPublicKeyInfo,
};
use ring::rand::SecureRandom as _;
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::x509::X509Version;
use zeroize::Zeroizing;

use crate::act::distinguished_name::{self, NameError};
use crate::act::self_check::{self, Flaw};
use crate::decide::plan::IssueOrder;
use crate::facts::ReadError;
use crate::facts::certificate::{Fingerprint, PublicKey};
use crate::facts::cluster::CertificatePaths;
use crate::facts::san::San;
use crate::facts::time::Timestamp;
use crate::observe::certificate;
use crate::observe::pem;
use crate::observe::private_key::{Kind, LoadError, PrivateKey, Signer};

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
    #[error("the CA's key belongs to no certificate of the CA file")]
    ForeignAuthorityKey,
    /// A verifier would refuse what this CA signs.
    #[error("the CA certificate cannot sign: {0}")]
    CannotSign(&'static str),
    /// The CA is expired or not yet valid.
    #[error("the CA is valid from {not_before} to {not_after}, not now")]
    AuthorityNotValid {
        /// Start of its validity.
        not_before: Timestamp,
        /// End of its validity.
        not_after: Timestamp,
    },
    /// The order's dates reach beyond the CA's.
    #[error("the ordered validity reaches beyond the CA's")]
    BeyondAuthority,
    /// The subject cannot be written.
    #[error("the subject cannot be written as ordered")]
    Subject(#[source] NameError),
    /// The CA's name cannot be written byte for byte.
    #[error("the CA's subject cannot be repeated byte for byte as the issuer")]
    Issuer(#[source] NameError),
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
    /// The finished leaf is not what was ordered.
    #[error("the new certificate did not pass its own verification, nothing was written")]
    SelfCheck(#[source] Flaw),
}

impl Authority {
    /// Reads the CA and its key.
    ///
    /// # Errors
    /// One of them cannot be used, or they do not belong together.
    pub fn load(paths: &CertificatePaths) -> Result<Self, LeafError> {
        let bundle = certificate::bundle(&paths.authority).map_err(LeafError::Authority)?;
        let key = PrivateKey::load(&paths.authority_key).map_err(LeafError::AuthorityKey)?;
        let authority = certificate::authority(&bundle, Some(key.public()))
            .map_err(|why| LeafError::Authority(ReadError::malformed(&paths.authority, why)))?;
        let signer = authority.signer.ok_or(LeafError::ForeignAuthorityKey)?;
        Ok(Self { bundle, signer, key })
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
            next = self.bundle.iter().map(Vec::as_slice).find(|above| {
                certificate::parse(above).is_ok_and(|above| {
                    above.subject().as_raw() == issuer && certificate.verify_signature(Some(above.public_key())).is_ok()
                })
            });
        }
        chain
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
    let made = match order.new_key {
        true => Some(PrivateKey::generate().map_err(|_| LeafError::Random)?),
        false => None,
    };
    let public = made.as_ref().or(leaf_key).map(PrivateKey::public).ok_or(LeafError::NoKey)?;
    let signer_certificate =
        certificate::parse(authority.certificate()).map_err(|_| LeafError::CannotSign("it is no X.509 certificate"))?;
    may_sign(&signer_certificate)?;
    dates_fit(&signer_certificate, order, now)?;

    let (mut leaf, subject_key) = parameters(order, public)?;
    let issuer = issuer_parameters(&signer_certificate)?;
    leaf.use_authority_key_identifier_extension = matches!(issuer.key_identifier_method, KeyIdMethod::PreSpecified(_));
    let signing = Signing::new(&authority.key)?;
    let der = leaf.signed_by(&subject_key, &Issuer::new(issuer, signing)).map_err(LeafError::Build)?.der().to_vec();
    self_check::check(&der, order, authority, public, now).map_err(LeafError::SelfCheck)?;

    let mut text = pem::encode("CERTIFICATE", &der).to_string();
    for above in authority.chain() {
        text.push_str(&pem::encode("CERTIFICATE", above));
    }
    let fingerprint = certificate::fingerprint(&der);
    Ok(Built { pem: text, der, key_pem: made.as_ref().map(PrivateKey::to_pem), fingerprint })
}

/// rustls-webpki never looks at these on a trust anchor, and OpenSSL's `x509 -req` signs with anything; Go and OpenSSL
/// then refuse the leaf (RFC 5280 sections 4.2.1.3 and 4.2.1.9).
fn may_sign(certificate: &X509Certificate<'_>) -> Result<(), LeafError> {
    let constraints = certificate.basic_constraints();
    match constraints {
        Err(_) => return Err(LeafError::CannotSign("its extensions cannot be parsed")),
        Ok(Some(constraints)) if !constraints.value.ca => {
            return Err(LeafError::CannotSign("its basicConstraints say that it is no CA"));
        }
        // Before version 3 there were no extensions, and such a root is accepted everywhere.
        Ok(None) if certificate.version() == X509Version::V3 => {
            return Err(LeafError::CannotSign("it has no basicConstraints"));
        }
        Ok(_) => {}
    }
    match certificate.key_usage() {
        Err(_) => Err(LeafError::CannotSign("its extensions cannot be parsed")),
        Ok(Some(usage)) if !usage.value.key_cert_sign() => {
            Err(LeafError::CannotSign("its keyUsage does not allow signing certificates"))
        }
        Ok(_) => Ok(()),
    }
}

/// The dates of an anchor are not looked at by rustls-webpki either.
fn dates_fit(certificate: &X509Certificate<'_>, order: &IssueOrder, now: Timestamp) -> Result<(), LeafError> {
    let not_before = Timestamp::from_seconds(certificate.validity().not_before.timestamp());
    let not_after = Timestamp::from_seconds(certificate.validity().not_after.timestamp());
    if now < not_before || now >= not_after {
        return Err(LeafError::AuthorityNotValid { not_before, not_after });
    }
    // In whole seconds, as certificates have them: an order in milliseconds may start within the CA's first second.
    if order.not_before.seconds() < not_before.seconds() || order.not_after.seconds() > not_after.seconds() {
        return Err(LeafError::BeyondAuthority);
    }
    Ok(())
}

fn parameters(order: &IssueOrder, public: &PublicKey) -> Result<(CertificateParams, SubjectPublicKeyInfo), LeafError> {
    let subject_key = SubjectPublicKeyInfo::from_der(&public.0).map_err(LeafError::Build)?;
    let mut leaf = CertificateParams::default();
    leaf.distinguished_name = distinguished_name::from_subject(&order.subject).map_err(LeafError::Subject)?;
    leaf.not_before = date(order.not_before)?;
    leaf.not_after = date(order.not_after)?;
    leaf.serial_number = Some(serial()?);
    leaf.subject_alt_names = order
        .sans
        .iter()
        .map(|san| match san {
            San::Ip(value) => Ok(SanType::IpAddress(*value)),
            San::Dns(name) => name.as_str().try_into().map(SanType::DnsName),
        })
        .collect::<Result<_, _>>()
        .map_err(LeafError::Build)?;
    // The usages of MicroK8s' request template; cluster components use the server's certificate as a client's too.
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DataEncipherment];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    // RFC 5280 section 4.2.1.2 method 1, as OpenSSL does it: the identifier of a kept key does not change. It names a
    // key and protects nothing, so SHA-1 is no weakness.
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, subject_key.der_bytes());
    leaf.key_identifier_method = KeyIdMethod::PreSpecified(hash.as_ref().to_vec());
    Ok((leaf, subject_key))
}

/// Name and key identifier of the CA. Without a key identifier in the CA's certificate the method stays a hash: there is
/// nothing the leaf could point to, and an invented identifier would match nothing.
fn issuer_parameters(certificate: &X509Certificate<'_>) -> Result<CertificateParams, LeafError> {
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name =
        distinguished_name::from_der(certificate.subject().as_raw()).map_err(LeafError::Issuer)?;
    let identifier = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0.to_vec()),
        _ => None,
    });
    issuer.key_identifier_method = identifier.map_or(KeyIdMethod::Sha256, KeyIdMethod::PreSpecified);
    Ok(issuer)
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

/// The CA's key in the form rcgen signs with; its own key type reads PKCS#8 only, and keeps an unwiped copy.
struct Signing {
    signer: Signer,
    algorithm: &'static SignatureAlgorithm,
}

impl Signing {
    fn new(key: &PrivateKey) -> Result<Self, LeafError> {
        let algorithm = match key.kind() {
            Kind::Rsa => &rcgen::PKCS_RSA_SHA256,
            Kind::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            Kind::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            Kind::Ed25519 => &rcgen::PKCS_ED25519,
        };
        Ok(Self { signer: key.signer().map_err(|_| LeafError::Random)?, algorithm })
    }
}

impl PublicKeyData for Signing {
    fn der_bytes(&self) -> &[u8] {
        self.signer.public_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl rcgen::SigningKey for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signer.sign(message).map_err(|_| rcgen::Error::RingUnspecified)
    }
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
