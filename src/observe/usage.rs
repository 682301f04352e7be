//! What a certificate allows: usages, the right to sign, and how it points to its CA.
//!
//! In: a parsed certificate. Out: plain values. The rule of this file: an extension that is not there allows everything,
//! one that cannot be read allows nothing.

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{
    OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE, Oid,
};
use x509_parser::x509::X509Version;

use crate::facts::certificate::{Purpose, Usage};

/// Whether a certificate's extendedKeyUsage allows the purpose; without the extension everything is allowed. On a CA it
/// limits what is below it, for Go, OpenSSL and rustls-webpki alike.
pub fn allows(certificate: &X509Certificate<'_>, purpose: Purpose) -> bool {
    match certificate.extended_key_usage() {
        Ok(Some(usage)) => {
            let named = match purpose {
                Purpose::Server => usage.value.server_auth,
                Purpose::Client => usage.value.client_auth,
            };
            named || usage.value.any
        }
        Ok(None) => true,
        Err(_) => false,
    }
}

/// What a leaf may be used for.
pub fn of(certificate: &X509Certificate<'_>) -> Usage {
    Usage {
        server_auth: allows(certificate, Purpose::Server),
        client_auth: allows(certificate, Purpose::Client),
        digital_signature: match certificate.key_usage() {
            Ok(Some(usage)) => usage.value.digital_signature(),
            Ok(None) => true,
            Err(_) => false,
        },
        is_ca: certificate.is_ca(),
    }
}

/// Signature algorithms that Go verifies (crypto/x509 of Go 1.24; SHA-1 went in 1.18).
const ACCEPTED_SIGNATURES: &[&str] = &[
    "1.2.840.113549.1.1.10",
    "1.2.840.113549.1.1.11",
    "1.2.840.113549.1.1.12",
    "1.2.840.113549.1.1.13",
    "1.2.840.10045.4.3.2",
    "1.2.840.10045.4.3.3",
    "1.2.840.10045.4.3.4",
    "1.3.101.112",
];

/// Those that were common once, by the names people know.
const REFUSED_SIGNATURES: &[(&str, &str)] = &[
    ("1.2.840.113549.1.1.2", "MD2 with RSA"),
    ("1.2.840.113549.1.1.4", "MD5 with RSA"),
    ("1.2.840.113549.1.1.5", "SHA-1 with RSA"),
    ("1.2.840.113549.1.1.14", "SHA-224 with RSA"),
    ("1.2.840.10040.4.3", "SHA-1 with DSA"),
    ("1.2.840.10045.4.1", "SHA-1 with ECDSA"),
    ("1.2.840.10045.4.3.1", "SHA-224 with ECDSA"),
];

/// The signature algorithm, where a Go peer refuses it.
pub fn refused_signature(certificate: &X509Certificate<'_>) -> Option<String> {
    let oid = certificate.signature_algorithm.algorithm.to_id_string();
    if ACCEPTED_SIGNATURES.contains(&oid.as_str()) {
        return None;
    }
    let known = REFUSED_SIGNATURES.iter().find(|(refused, _)| *refused == oid);
    Some(known.map_or_else(|| oid.clone(), |(_, name)| (*name).to_owned()))
}

/// How a leaf points to its CA.
#[derive(Debug, Default)]
pub struct Pointer {
    /// By the key.
    pub key_id: Option<Vec<u8>>,
    /// By the certificate's serial.
    pub serial: Option<Vec<u8>>,
}

/// The authorityKeyIdentifier; empty where there is none.
pub fn authority_key_identifier(certificate: &X509Certificate<'_>) -> Pointer {
    let found = certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(pointer) => Some(Pointer {
            key_id: pointer.key_identifier.as_ref().map(|id| id.0.to_vec()),
            serial: pointer.authority_cert_serial.map(<[u8]>::to_vec),
        }),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The identifier a CA gives its key, of whatever length. It is copied, never computed.
pub fn subject_key_identifier<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a [u8]> {
    certificate.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(identifier) => Some(identifier.0),
        _ => None,
    })
}

/// Whether verifiers accept what the certificate signs for this purpose.
///
/// rustls-webpki never looks at these on a trust anchor, and OpenSSL's `x509 -req` signs with anything; Go and OpenSSL
/// then refuse the leaf (RFC 5280 sections 4.2.1.3 and 4.2.1.9).
///
/// # Errors
/// What a verifier would say.
pub fn may_sign(certificate: &X509Certificate<'_>, purpose: Purpose) -> Result<(), &'static str> {
    for extension in certificate.iter_extensions() {
        match extension.parsed_extension() {
            ParsedExtension::UnsupportedExtension { .. } if extension.critical => {
                return Err("it has a critical extension that nobody knows");
            }
            // The parser passes over what it cannot read, and no verifier does.
            ParsedExtension::ParseError { .. } if JUDGED.contains(&extension.oid) => {
                return Err("its extensions cannot be parsed");
            }
            _ => {}
        }
    }
    match certificate.basic_constraints() {
        Err(_) => return Err("its extensions cannot be parsed"),
        Ok(Some(constraints)) if !constraints.value.ca => return Err("its basicConstraints say that it is no CA"),
        // Before version 3 there were no extensions, and such a root is accepted everywhere.
        Ok(None) if certificate.version() == X509Version::V3 => return Err("it has no basicConstraints"),
        Ok(_) => {}
    }
    match certificate.key_usage() {
        Err(_) => Err("its extensions cannot be parsed"),
        Ok(Some(usage)) if !usage.value.key_cert_sign() => Err("its keyUsage does not allow signing certificates"),
        Ok(_) if allows(certificate, purpose) => Ok(()),
        Ok(_) => Err(match purpose {
            Purpose::Server => "its extendedKeyUsage does not allow serverAuth",
            Purpose::Client => "its extendedKeyUsage does not allow clientAuth",
        }),
    }
}

/// Extensions by which a CA is judged here.
const JUDGED: [Oid<'static>; 3] =
    [OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_KEY_USAGE, OID_X509_EXT_EXTENDED_KEY_USAGE];
