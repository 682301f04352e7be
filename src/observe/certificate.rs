//! Certificates on disk: the leaf, its key, and the CA that signs it.
//!
//! In: the paths of one certificate. Out: [`CertificateFacts`]. The rule of this file: whatever the files hold, they give
//! a value: bytes that mean nothing are a [`ReadError`], and a name no Go server would load is told apart from the rest.

use std::net::IpAddr;
use std::path::Path;

use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::facts::certificate::{
    Authority, AuthorityCertificate, CertificateFacts, CertificateRole, Fingerprint, Leaf, PublicKey, Purpose,
};
use crate::facts::cluster::CertificatePaths;
use crate::facts::san::{DnsName, San, SanSet};
use crate::facts::time::Timestamp;
use crate::facts::{Read, ReadError};
use crate::observe::pem;
use crate::observe::private_key::{KeyCache, Owner};
use crate::observe::usage;

/// Reads everything one certificate is made from, as it is at this moment.
pub fn read(
    name: &str,
    role: CertificateRole,
    paths: &CertificatePaths,
    keys: &mut KeyCache,
    now: Timestamp,
) -> CertificateFacts {
    let leaf_der = first_certificate(&paths.certificate);
    let authority_ders = bundle(&paths.authority);
    let leaf = leaf_der.clone().and_then(|der| at(&paths.certificate, leaf(&der)));
    let key = keys.public(&paths.key, &Owner::Server(leaf.as_ref().ok().map(|leaf| leaf.public_key.clone())));
    let authority_key =
        keys.public(&paths.authority_key, &authority_owner(authority_ders.as_deref().unwrap_or_default()));
    let issued_by_authority = match (&leaf_der, &authority_ders) {
        (Ok(leaf), Ok(authority)) => is_issued_by(leaf, authority),
        _ => None,
    };
    CertificateFacts {
        name: name.to_owned(),
        path: paths.certificate.clone(),
        leaf,
        key,
        authority: authority_ders
            .and_then(|ders| at(&paths.authority, authority(&ders, authority_key.as_ref().ok(), role.purpose(), now))),
        authority_key,
        issued_by_authority,
        issued_by_foreign: false,
        elsewhere: None,
        role,
        subject: Vec::new(),
    }
}

/// The owner of the key beside a CA file.
pub fn authority_owner(bundle: &[Vec<u8>]) -> Owner {
    Owner::Authority(
        bundle.iter().filter_map(|der| parse(der).ok().map(|certificate| public_key(&certificate))).collect(),
    )
}

/// The owner of the key beside a server's certificate file.
pub fn server_owner(path: &Path) -> Owner {
    let leaf = first_certificate(path).ok();
    Owner::Server(leaf.and_then(|der| parse(&der).ok().map(|certificate| public_key(&certificate))))
}

/// The first certificate of a file, DER: what a server presents as its own.
///
/// # Errors
/// The file cannot be read, or has no certificate that a Go server would find.
pub fn first_certificate(path: &Path) -> Read<Vec<u8>> {
    let (bytes, _) = pem::read_file(path)?;
    at(path, first_in(&bytes))
}

/// The first certificate of PEM text, DER.
///
/// # Errors
/// It has none that a Go program would find.
pub(crate) fn first_in(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut blocks = pem::blocks(text).into_iter().filter(|block| block.label == "CERTIFICATE");
    let first = blocks.next().ok_or("there is no CERTIFICATE block in it")?;
    if !first.at_line_start {
        let why = "text or a byte order mark stands before BEGIN on its line, where a Go server does not look";
        return Err(why.to_owned());
    }
    Ok(first.der.map(|der| der.to_vec())?)
}

/// All certificates of a CA file in file order, DER. One broken block spoils the file, as it does for the API server.
///
/// # Errors
/// The file cannot be read, or one of its certificates.
pub fn bundle(path: &Path) -> Read<Vec<Vec<u8>>> {
    let (bytes, _) = pem::read_file(path)?;
    at(path, bundle_in(&bytes))
}

/// All certificates of PEM text, DER.
///
/// # Errors
/// There is none, or one is broken.
pub(crate) fn bundle_in(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut ders = Vec::new();
    for block in pem::blocks(text).into_iter().filter(|block| block.label == "CERTIFICATE") {
        let number = ders.len() + 1;
        let der = block.der.map_err(|why| format!("certificate {number}: {why}"))?;
        parse(&der).map_err(|why| format!("certificate {number}: {why}"))?;
        ders.push(der.to_vec());
    }
    if ders.is_empty() {
        return Err("there is no CERTIFICATE block in it".to_owned());
    }
    Ok(ders)
}

/// Parses one certificate.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    match x509_parser::parse_x509_certificate(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err("bytes follow the certificate inside its block".to_owned()),
        Err(error) => Err(format!("it is no X.509 certificate: {}", reason(error))),
    }
}

/// What a leaf says.
///
/// # Errors
/// Says what is wrong with it.
pub fn leaf(der: &[u8]) -> Result<Leaf, String> {
    let certificate = parse(der)?;
    let Names { sans, refused: refused_sans, others: other_names } = names(&certificate);
    let pointer = usage::authority_key_identifier(&certificate);
    Ok(Leaf {
        sans,
        refused_sans,
        other_names,
        subject: certificate.subject().as_raw().to_vec(),
        issuer: certificate.issuer().as_raw().to_vec(),
        public_key: public_key(&certificate),
        not_before: Timestamp::from_seconds(certificate.validity().not_before.timestamp()),
        not_after: Timestamp::from_seconds(certificate.validity().not_after.timestamp()),
        usage: usage::of(&certificate),
        refused_signature: usage::refused_signature(&certificate),
        authority_key_id: pointer.key_id,
        authority_serial: pointer.serial,
        fingerprint: fingerprint(der),
    })
}

/// SHA-256 of a certificate.
pub fn fingerprint(der: &[u8]) -> Fingerprint {
    let digest = ring::digest::digest(&ring::digest::SHA256, der);
    Fingerprint(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// The certificates of a CA file, which of them signs at this moment, and whether they may sign for the purpose.
///
/// # Errors
/// Says which certificate is wrong and how.
pub fn authority(
    ders: &[Vec<u8>],
    key: Option<&PublicKey>,
    purpose: Purpose,
    now: Timestamp,
) -> Result<Authority, String> {
    let certificates = ders
        .iter()
        .map(|der| {
            let certificate = parse(der)?;
            Ok(AuthorityCertificate {
                subject: certificate.subject().as_raw().to_vec(),
                public_key: public_key(&certificate),
                not_before: Timestamp::from_seconds(certificate.validity().not_before.timestamp()),
                not_after: Timestamp::from_seconds(certificate.validity().not_after.timestamp()),
                self_signed: certificate.subject().as_raw() == certificate.issuer().as_raw(),
                key_id: usage::subject_key_identifier(&certificate).map(<[u8]>::to_vec),
                serial: certificate.raw_serial().to_vec(),
                cannot_sign: usage::may_sign(&certificate, purpose).err(),
            })
        })
        .collect::<Result<Vec<_>, String>>()?;
    let signer = key.and_then(|key| signer(&certificates, key, now));
    Ok(Authority { certificates, signer })
}

/// Index of the certificate that signs at this moment, among those that the key belongs to: a CA renewed with its old key
/// stands twice in the bundle, the new certificate perhaps long before it begins. One that may sign comes first, then one
/// that is valid now, then the longer-lived; of those that all lie ahead - or the clock behind - the one that begins first.
fn signer(certificates: &[AuthorityCertificate], key: &PublicKey, now: Timestamp) -> Option<usize> {
    let rank = |certificate: &AuthorityCertificate| {
        let (begins, ends) = (certificate.not_before, certificate.not_after);
        let when = match () {
            () if now < begins => (1, -begins.seconds()),
            () if now < ends => (2, ends.seconds()),
            () => (0, ends.seconds()),
        };
        (certificate.cannot_sign.is_none(), when)
    };
    let fitting = certificates.iter().enumerate().filter(|(_, certificate)| certificate.public_key == *key);
    // The first of those that are equal.
    fitting.rev().max_by_key(|(_, certificate)| rank(certificate)).map(|(index, _)| index)
}

/// Whether the leaf's issuer is a certificate of the bundle and signed it; `None` when the signature is of a kind that
/// cannot be checked here.
fn is_issued_by(leaf: &[u8], bundle: &[Vec<u8>]) -> Option<bool> {
    let leaf = parse(leaf).ok()?;
    let mut unknown = false;
    for der in bundle {
        let candidate = parse(der).ok()?;
        if candidate.subject().as_raw() != leaf.issuer().as_raw() {
            continue;
        }
        match leaf.verify_signature(Some(candidate.public_key())) {
            Ok(()) => return Some(true),
            Err(X509Error::SignatureUnsupportedAlgorithm) => unknown = true,
            Err(_) => {}
        }
    }
    (!unknown).then_some(false)
}

/// The same for a CA that was read before: its names and keys are enough.
pub(crate) fn is_issued_by_known(leaf: &[u8], authority: &Authority) -> Option<bool> {
    let leaf = parse(leaf).ok()?;
    let mut unknown = false;
    for candidate in authority.certificates.iter().filter(|known| known.subject == leaf.issuer().as_raw()) {
        let (_, key) = SubjectPublicKeyInfo::from_der(&candidate.public_key.0).ok()?;
        match leaf.verify_signature(Some(&key)) {
            Ok(()) => return Some(true),
            Err(X509Error::SignatureUnsupportedAlgorithm) => unknown = true,
            Err(_) => {}
        }
    }
    (!unknown).then_some(false)
}

/// Whether a CA of the bundle signed the file's leaf, directly or through the certificates that follow it in the file.
///
/// # Errors
/// One of the files cannot be read.
pub fn is_by(path: &Path, others: &Path) -> Read<bool> {
    let (chain, others) = (bundle(path)?, bundle(others)?);
    let mut current = 0;
    // Each certificate of the file is a step at most, so that a circle ends.
    for _ in 0..chain.len() {
        if is_issued_by(&chain[current], &others) == Some(true) {
            return Ok(true);
        }
        let above =
            |other: &usize| *other != current && is_issued_by(&chain[current], &chain[*other..=*other]) == Some(true);
        let Some(next) = (0..chain.len()).find(above) else { return Ok(false) };
        current = next;
    }
    Ok(false)
}

fn public_key(certificate: &X509Certificate<'_>) -> PublicKey {
    PublicKey(certificate.public_key().raw.to_vec())
}

/// The names of a certificate.
#[derive(Default)]
struct Names {
    /// Those that can match a client's.
    sans: SanSet,
    /// As text, those for which Go refuses the whole certificate (measured with Go 1.27).
    refused: Vec<String>,
    /// As text, names of other kinds, and DNS names that Go reads but never matches (white space, a trailing dot).
    others: Vec<String>,
}

fn names(certificate: &X509Certificate<'_>) -> Names {
    let Names { mut sans, mut refused, mut others } = Names::default();
    let extension = match certificate.subject_alternative_name() {
        Ok(Some(extension)) => extension,
        Ok(None) => return Names::default(),
        Err(error) => {
            return Names { refused: vec![format!("subjectAltName cannot be parsed: {error}")], ..Names::default() };
        }
    };
    for name in &extension.value.general_names {
        match name {
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(value) => {
                    if value.to_canonical() != value {
                        refused.push(format!("IP {value}: an IPv4 address in IPv6 form"));
                    }
                    sans.insert(San::ip(value));
                }
                None => refused.push(format!("IP of {} bytes", bytes.len())),
            },
            GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) if !text.is_ascii() => {
                refused.push(format!("{}: not ASCII", text.escape_default()));
            }
            GeneralName::URI(text) if !is_plain_uri(text) => {
                refused.push(format!("URI {}: not one that Go is sure to read", text.escape_default()));
            }
            GeneralName::DNSName(text) => match DnsName::new(text) {
                Ok(name) => _ = sans.insert(San::Dns(name)),
                Err(_) => others.push(format!("DNS {}", text.escape_default())),
            },
            // Email, DNS and URI are IA5String: anything else in them spoils the certificate, an unknown tag does not.
            GeneralName::Invalid(tag, bytes) if matches!(tag.0, 1 | 2 | 6) => {
                refused.push(format!("{}: not ASCII", bytes.escape_ascii()));
            }
            GeneralName::URI(text) => others.push(format!("URI {text}")),
            GeneralName::RFC822Name(text) => others.push(format!("email {}", text.escape_default())),
            other => others.push(kind(other).to_owned()),
        }
    }
    Names { sans, refused, others }
}

/// What a name is that nobody here can show.
const fn kind(name: &GeneralName<'_>) -> &'static str {
    match name {
        GeneralName::DirectoryName(_) => "a directory name",
        GeneralName::RegisteredID(_) => "a registered ID",
        GeneralName::OtherName(..) => "a name of another kind",
        _ => "a name that cannot be read",
    }
}

/// Whether Go's `url.Parse` reads it for sure: a scheme, a host that is a name or an address, no odd character (RFC 3986).
/// Go refuses the whole certificate for a URI that it cannot read.
fn is_plain_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let scheme_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let plain_byte = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let escape = |rest: &str| rest.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(scheme_byte)
        && !rest.is_empty()
        && rest.bytes().all(plain_byte)
        && rest.split('%').skip(1).all(escape)
        && rest.strip_prefix("//").is_none_or(|rest| {
            let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let host = authority.rsplit_once(':').filter(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
            let host = host.map_or(authority, |(host, _)| host);
            let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            host.is_empty()
                || DnsName::new(host).is_ok_and(|name| !name.as_str().starts_with('*'))
                || literal.is_some_and(|value| value.parse::<std::net::Ipv6Addr>().is_ok())
        })
}

/// RFC 5280 section 4.2.1.6: four or sixteen octets.
fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

fn at<T>(path: &Path, result: Result<T, String>) -> Read<T> {
    result.map_err(|why| ReadError::malformed(path, why))
}

/// The parser's own word for what is wrong, without the combinator library's wrapping.
fn reason(error: x509_parser::nom::Err<X509Error>) -> String {
    match error {
        x509_parser::nom::Err::Incomplete(_) => "it ends too early".to_owned(),
        x509_parser::nom::Err::Error(error) | x509_parser::nom::Err::Failure(error) => error.to_string(),
    }
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
