//! Certificates and requests written byte by byte, as no tool would write them.

use ipguard::observe::der::{
    BIT_STRING, INTEGER, OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, SET, object_identifier, tlv,
};
use ipguard::observe::pem;
use ipguard::observe::private_key::{Kind, PrivateKey};

/// An element, its content made of parts.
pub(crate) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    tlv(tag, parts).to_vec()
}

pub(crate) fn oid(numbers: &[u64]) -> Vec<u8> {
    element(OBJECT_IDENTIFIER, &[&object_identifier(numbers)])
}

/// Attribute types by their short names, or a number.
fn kind(name: &str) -> Vec<u8> {
    let numbers: Vec<u64> = match name {
        "CN" => vec![2, 5, 4, 3],
        "serial" => vec![2, 5, 4, 5],
        "C" => vec![2, 5, 4, 6],
        "L" => vec![2, 5, 4, 7],
        "O" => vec![2, 5, 4, 10],
        "OU" => vec![2, 5, 4, 11],
        "title" => vec![2, 5, 4, 12],
        "unique" => vec![2, 5, 4, 45],
        "UID" => vec![0, 9, 2342, 19_200_300, 100, 1, 1],
        "DC" => vec![0, 9, 2342, 19_200_300, 100, 1, 25],
        "email" => vec![1, 2, 840, 113_549, 1, 9, 1],
        number => number.split('.').map(|part| part.parse().expect("a number")).collect(),
    };
    oid(&numbers)
}

/// String types of ASN.1.
pub(crate) const UTF8: u8 = 12;
pub(crate) const NUMERIC: u8 = 18;
pub(crate) const PRINTABLE: u8 = 19;
pub(crate) const T61: u8 = 20;
pub(crate) const IA5: u8 = 22;
pub(crate) const VISIBLE: u8 = 26;
pub(crate) const UNIVERSAL: u8 = 28;
pub(crate) const BMP: u8 = 30;
pub(crate) const BITS: u8 = BIT_STRING;

/// An attribute of a name: type, string type, content.
pub(crate) type Attribute<'a> = (&'a str, u8, &'a [u8]);

/// A Name of relative names, in the order given, even where DER wants another.
pub(crate) fn name(sets: &[&[Attribute<'_>]]) -> Vec<u8> {
    let sets: Vec<Vec<u8>> = sets
        .iter()
        .map(|set| {
            let attributes: Vec<Vec<u8>> = set
                .iter()
                .map(|(name, tag, content)| element(SEQUENCE, &[&kind(name), &element(*tag, &[content])]))
                .collect();
            element(SET, &[&attributes.concat()])
        })
        .collect();
    element(SEQUENCE, &[&sets.concat()])
}

/// A Name of one CN.
pub(crate) fn common_name(tag: u8, content: &[u8]) -> Vec<u8> {
    name(&[&[("CN", tag, content)]])
}

/// An extension of the arc id-ce.
pub(crate) fn extension(number: u64, critical: bool, value: &[u8]) -> Vec<u8> {
    let flag: &[u8] = if critical { &[1, 1, 0xff] } else { &[] };
    element(SEQUENCE, &[&oid(&[2, 5, 29, number]), flag, &element(OCTET_STRING, &[value])])
}

/// What a certificate is made of.
#[derive(Debug, Clone)]
pub(crate) struct Forged {
    /// Without it the certificate is one of version 1.
    pub(crate) extensions: Option<Vec<Vec<u8>>>,
    /// Content of the INTEGER.
    pub(crate) serial: Vec<u8>,
    pub(crate) issuer: Vec<u8>,
    pub(crate) subject: Vec<u8>,
    /// Tag and text of the dates.
    pub(crate) dates: [(u8, &'static str); 2],
}

const UTC: u8 = 23;
const GENERALIZED: u8 = 24;

impl Forged {
    /// A root as OpenSSL makes them, of this name and key.
    pub(crate) fn root(subject: Vec<u8>, spki: &[u8]) -> Self {
        Self {
            extensions: Some(vec![identifier(&hash(spki)), constraints(&[]), usage(0x06)]),
            serial: vec![0x12, 0x34, 0x56],
            issuer: subject.clone(),
            subject,
            dates: [(UTC, "200101000000Z"), (UTC, "450101000000Z")],
        }
    }

    /// An intermediate.
    pub(crate) fn below(issuer: &[u8], issuer_spki: &[u8], subject: Vec<u8>, spki: &[u8]) -> Self {
        let mut forged = Self::root(subject, spki);
        forged.issuer = issuer.to_vec();
        let pointer = element(SEQUENCE, &[&element(0x80, &[&hash(issuer_spki)])]);
        forged.extensions.get_or_insert_default().push(extension(35, false, &pointer));
        forged
    }

    pub(crate) fn dated(mut self, from: &'static str, to: &'static str) -> Self {
        self.dates = [from, to].map(|date| (if date.len() > 13 { GENERALIZED } else { UTC }, date));
        self
    }

    pub(crate) fn with(mut self, extensions: Vec<Vec<u8>>) -> Self {
        self.extensions = Some(extensions);
        self
    }

    /// Signs it, as PEM.
    pub(crate) fn signed(&self, spki: &[u8], by: &PrivateKey) -> String {
        let version = element(0xa0, &[&element(INTEGER, &[&[2]])]);
        let version = if self.extensions.is_some() { version } else { Vec::new() };
        let dates = self.dates.map(|(tag, text)| element(tag, &[text.as_bytes()])).concat();
        let extensions = self.extensions.as_ref().map(|all| element(0xa3, &[&element(SEQUENCE, &[&all.concat()])]));
        let content = element(
            SEQUENCE,
            &[
                &version,
                &element(INTEGER, &[&self.serial]),
                &algorithm(by.kind()),
                &self.issuer,
                &element(SEQUENCE, &[&dates]),
                &self.subject,
                spki,
                &extensions.unwrap_or_default(),
            ],
        );
        armoured("CERTIFICATE", &content, by)
    }
}

/// A request for a certificate of this name.
pub(crate) fn request(subject: &[u8], by: &PrivateKey) -> String {
    let content = element(SEQUENCE, &[&element(INTEGER, &[&[0]]), subject, &by.public().0, &element(0xa0, &[])]);
    armoured("CERTIFICATE REQUEST", &content, by)
}

fn armoured(label: &str, content: &[u8], by: &PrivateKey) -> String {
    let signature = by.sign(content).expect("random bytes");
    let signature = element(BIT_STRING, &[&[0], &signature]);
    pem::encode(label, &element(SEQUENCE, &[content, &algorithm(by.kind()), &signature])).to_string()
}

/// RFC 4055 section 5, RFC 5758 section 3.2, RFC 8410 section 3.
fn algorithm(kind: Kind) -> Vec<u8> {
    match kind {
        Kind::Rsa => element(SEQUENCE, &[&oid(&[1, 2, 840, 113_549, 1, 1, 11]), &[5, 0]]),
        Kind::P256 => element(SEQUENCE, &[&oid(&[1, 2, 840, 10_045, 4, 3, 2])]),
        Kind::P384 => element(SEQUENCE, &[&oid(&[1, 2, 840, 10_045, 4, 3, 3])]),
        Kind::Ed25519 => element(SEQUENCE, &[&oid(&[1, 3, 101, 112])]),
    }
}

/// Twenty bytes that name a key.
fn hash(spki: &[u8]) -> Vec<u8> {
    ring::digest::digest(&ring::digest::SHA256, spki).as_ref()[..20].to_vec()
}

/// subjectKeyIdentifier.
pub(crate) fn identifier(bytes: &[u8]) -> Vec<u8> {
    extension(14, false, &element(OCTET_STRING, &[bytes]))
}

/// basicConstraints with CA:TRUE, and what follows it.
pub(crate) fn constraints(rest: &[u8]) -> Vec<u8> {
    extension(19, true, &element(SEQUENCE, &[&[1, 1, 0xff], rest]))
}

/// keyUsage of one byte: 0x04 is keyCertSign, 0x02 is cRLSign.
pub(crate) fn usage(bits: u8) -> Vec<u8> {
    let unused = u8::try_from(bits.trailing_zeros()).expect("at most eight");
    extension(15, true, &element(BIT_STRING, &[&[unused, bits]]))
}

/// extendedKeyUsage with these last numbers of id-kp.
pub(crate) fn purposes(numbers: &[u64]) -> Vec<u8> {
    let all: Vec<Vec<u8>> = numbers.iter().map(|number| oid(&[1, 3, 6, 1, 5, 5, 7, 3, *number])).collect();
    extension(37, false, &element(SEQUENCE, &[&all.concat()]))
}
