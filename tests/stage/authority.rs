//! The cluster's CA and the certificates it signs, made the way MicroK8s makes them, and the reading of what ipguard
//! leaves on disk.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use super::Result;

/// A CA with its key.
#[derive(Debug)]
pub(crate) struct Authority {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Every MicroK8s CA has the same subject, so a certificate from another cluster's CA differs in the key only.
    pub(crate) fn new() -> Result<Self> {
        Self::named("10.152.183.1")
    }

    /// With this common name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Self::made(name, (-30, 3620))
    }

    /// Valid from a day on, counted from today.
    #[allow(dead_code, reason = "not every test that shares this file plays with the clock")]
    pub(crate) fn valid_from(day: i64) -> Result<Self> {
        Self::made("10.152.183.1", (day, 3620))
    }

    /// Valid between two days, counted from today.
    #[allow(dead_code, reason = "not every test that shares this file needs another CA than the usual")]
    pub(crate) fn between(from: i64, to: i64) -> Result<Self> {
        Self::made("10.152.183.1", (from, to))
    }

    fn made(name: &str, (from, to): (i64, i64)) -> Result<Self> {
        let key = KeyPair::generate()?;
        let parameters = authority_parameters(name, (from, to));
        let certificate_pem = parameters.self_signed(&key)?.pem();
        let key_pem = key.serialize_pem();
        Ok(Self { certificate_pem, key_pem, issuer: Issuer::new(parameters, key) })
    }

    /// One that this one signs. Its file has both, its own first.
    pub(crate) fn beneath(&self, name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let parameters = authority_parameters(name, (-30, 3620));
        let own = parameters.signed_by(&key, &self.issuer)?.pem();
        let key_pem = key.serialize_pem();
        let certificate_pem = own + &self.certificate_pem;
        Ok(Self { certificate_pem, key_pem, issuer: Issuer::new(parameters, key) })
    }

    /// A server certificate with exactly these names, written `DNS:name` or as a plain address.
    pub(crate) fn sign(&self, key: &KeyPair, sans: &[String]) -> Result<String> {
        let subject = [
            (DnType::CountryName, "GB"),
            (DnType::StateOrProvinceName, "Canonical"),
            (DnType::LocalityName, "Canonical"),
            (DnType::OrganizationName, "Canonical"),
            (DnType::OrganizationalUnitName, "Canonical"),
            (DnType::CommonName, "127.0.0.1"),
        ];
        self.sign_for(&subject, key, sans, (-10, 355))
    }

    /// A certificate for anybody, valid between two days counted from today.
    pub(crate) fn sign_for(
        &self,
        subject: &[(DnType, &str)],
        key: &KeyPair,
        sans: &[String],
        (from, to): (i64, i64),
    ) -> Result<String> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            parameters.distinguished_name.push(kind.clone(), *value);
        }
        for san in sans {
            parameters.subject_alt_names.push(match san.strip_prefix("DNS:") {
                Some(name) => SanType::DnsName(name.try_into()?),
                None => SanType::IpAddress(san.parse()?),
            });
        }
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        parameters.use_authority_key_identifier_extension = true;
        (parameters.not_before, parameters.not_after) = days(from, to);
        Ok(parameters.signed_by(key, &self.issuer)?.pem())
    }
}

fn authority_parameters(name: &str, (from, to): (i64, i64)) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters.use_authority_key_identifier_extension = true;
    (parameters.not_before, parameters.not_after) = days(from, to);
    parameters
}

/// Names of the first certificate in a PEM file, in [`canonical`] form; an error where it is no usable certificate.
pub(crate) fn names(path: &Path) -> Result<BTreeSet<String>> {
    names_of(&std::fs::read(path)?).map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The same from its bytes.
pub(crate) fn names_of(pem: &[u8]) -> Result<BTreeSet<String>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem)?;
    let (_, certificate) = X509Certificate::from_der(&pem.contents)?;
    let mut names = BTreeSet::new();
    for extension in certificate.extensions() {
        let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() else { continue };
        for name in &san.general_names {
            names.insert(match name {
                GeneralName::DNSName(name) => canonical(&format!("DNS:{name}")),
                GeneralName::IPAddress(bytes) => canonical(&address(bytes)?.to_string()),
                other => format!("other:{other:?}"),
            });
        }
    }
    Ok(names)
}

/// One text for all texts of a name: addresses by value, an IPv4-mapped one as the IPv4 address it is.
pub(crate) fn canonical(name: &str) -> String {
    match (name.strip_prefix("DNS:"), name.parse::<IpAddr>()) {
        (Some(dns), _) => format!("DNS:{}", dns.to_ascii_lowercase()),
        (None, Ok(address)) => address.to_canonical().to_string(),
        (None, Err(_)) => name.to_owned(),
    }
}

fn address(bytes: &[u8]) -> Result<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Ok(four.into());
    }
    let sixteen = <[u8; 16]>::try_from(bytes).map_err(|_| format!("an address of {} bytes", bytes.len()))?;
    Ok(sixteen.into())
}

fn days(before: i64, after: i64) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now + Duration::days(before), now + Duration::days(after))
}
