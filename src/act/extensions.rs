//! The extensions of a leaf, as `openssl x509 -req` writes them for MicroK8s' request.
//!
//! In: an order, the leaf's key, the CA. Out: rcgen's form of the extensions, in OpenSSL's order. The rule of this file:
//! nothing is left to a builder's own idea of criticality, order or identifiers.

use rcgen::CustomExtension;
use x509_parser::certificate::X509Certificate;
use zeroize::Zeroizing;

use crate::config::AuthorityKeyId;
use crate::facts::san::{San, SanSet};
use crate::observe::der::{self, BIT_STRING, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, tlv};
use crate::observe::usage::subject_key_identifier;

// Arc of the extensions of RFC 5280, id-ce, and their last number.
const SUBJECT_KEY_IDENTIFIER: u64 = 14;
const KEY_USAGE: u64 = 15;
const SUBJECT_ALT_NAME: u64 = 17;
const BASIC_CONSTRAINTS: u64 = 19;
const AUTHORITY_KEY_IDENTIFIER: u64 = 35;
const EXTENDED_KEY_USAGE: u64 = 37;

/// digitalSignature, keyEncipherment, dataEncipherment: bits 0, 2 and 3 (RFC 5280 section 4.2.1.3).
pub const KEY_USAGES: u8 = 0b1011_0000;
/// serverAuth and clientAuth: cluster components use the server's certificate as a client's too.
const PURPOSES: [&[u64]; 2] = [&[1, 3, 6, 1, 5, 5, 7, 3, 1], &[1, 3, 6, 1, 5, 5, 7, 3, 2]];

/// What the extensions are made from.
#[derive(Debug)]
pub struct Content<'a> {
    /// The names.
    pub sans: &'a SanSet,
    /// Whether the subject is empty: then the names alone identify the leaf, and are critical (RFC 5280 section 4.2.1.6).
    pub nameless: bool,
    /// What the BIT STRING of the leaf's SubjectPublicKeyInfo holds.
    pub public: &'a [u8],
    /// The CA's certificate.
    pub authority: &'a X509Certificate<'a>,
    /// How the leaf points to its CA.
    pub authority_key_id: AuthorityKeyId,
}

/// All extensions of a leaf.
pub fn all(content: &Content<'_>) -> Vec<CustomExtension> {
    let extension = |number, value: &[u8]| CustomExtension::from_oid_content(&[2, 5, 29, number], value.to_vec());
    let mut names = extension(SUBJECT_ALT_NAME, &alt_names(content.sans));
    names.set_criticality(content.nameless);
    let unused = u8::try_from(KEY_USAGES.trailing_zeros()).unwrap_or_default();
    let purposes = PURPOSES.map(|oid| tlv(OBJECT_IDENTIFIER, &[&der::object_identifier(oid)]));
    let authority = authority_key_identifier(content);
    authority
        .map(|value| extension(AUTHORITY_KEY_IDENTIFIER, &value))
        .into_iter()
        .chain([
            // CA:FALSE is the default, and DER leaves defaults out.
            extension(BASIC_CONSTRAINTS, &tlv(SEQUENCE, &[])),
            extension(KEY_USAGE, &tlv(BIT_STRING, &[&[unused, KEY_USAGES]])),
            extension(EXTENDED_KEY_USAGE, &tlv(SEQUENCE, &purposes.each_ref().map(|purpose| purpose.as_slice()))),
        ])
        // A list of no names is not allowed (RFC 5280 section 4.2.1.6).
        .chain((!content.sans.is_empty()).then_some(names))
        .chain([extension(SUBJECT_KEY_IDENTIFIER, &tlv(OCTET_STRING, &[&key_identifier(content.public)]))])
        .collect()
}

/// RFC 5280 section 4.2.1.2 method 1, as OpenSSL does it: the identifier of a kept key does not change. It names a key
/// and protects nothing, so SHA-1 is no weakness.
fn key_identifier(public: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, public).as_ref().to_vec()
}

/// `None` when there is nothing to point to: an invented identifier would match nothing.
fn authority_key_identifier(content: &Content<'_>) -> Option<Zeroizing<Vec<u8>>> {
    let authority = content.authority;
    let mut parts = Vec::new();
    parts.extend(subject_key_identifier(authority).map(|identifier| tlv(0x80, &[identifier])));
    if content.authority_key_id == AuthorityKeyId::KeyIdIssuerSerial {
        // The name of the CA's own issuer: together with the serial it names the CA's certificate.
        let name = tlv(0xa4, &[authority.issuer().as_raw()]);
        parts.push(tlv(0xa1, &[&name]));
        // The bytes as they are: a negative or padded serial written anew would be another.
        parts.push(tlv(0x82, &[authority.raw_serial()]));
    }
    if parts.is_empty() {
        return None;
    }
    Some(tlv(SEQUENCE, &parts.iter().map(|part| part.as_slice()).collect::<Vec<_>>()))
}

fn alt_names(sans: &SanSet) -> Zeroizing<Vec<u8>> {
    let names: Vec<_> = sans
        .iter()
        .map(|san| match san {
            San::Dns(name) => tlv(0x82, &[name.as_str().as_bytes()]),
            San::Ip(std::net::IpAddr::V4(value)) => tlv(0x87, &[&value.octets()]),
            San::Ip(std::net::IpAddr::V6(value)) => tlv(0x87, &[&value.octets()]),
        })
        .collect();
    tlv(SEQUENCE, &names.iter().map(|name| name.as_slice()).collect::<Vec<_>>())
}
