//! Distinguished names for the certificate builder.
//!
//! In: a subject as ordered, or as DER. Out: rcgen's form of it. The rule of this file: never an approximation. rcgen
//! keeps one value for each attribute type and encodes names itself, so a name it would write with other bytes is
//! refused here with the reason, and the finished certificate is compared once more by [`crate::act::leaf`].

use rcgen::{DistinguishedName, DnType, DnValue};
use x509_parser::asn1_rs::{FromDer, Tag};
use x509_parser::x509::X509Name;

use crate::decide::plan::Subject;

/// Why a name cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A type that is not in the table below.
    #[error("{0} is not an attribute that is known here")]
    UnknownAttribute(String),
    /// One attribute stands twice.
    #[error("it has the attribute {0} more than once, which cannot be written yet")]
    Repeated(String),
    /// A relative name with several attributes, or none.
    #[error("a part of it does not have exactly one attribute, which cannot be written yet")]
    NotSingleValued,
    /// The characters do not suit the attribute's type.
    #[error("the value of {attribute} cannot be written as {kind}")]
    Value {
        /// Which one.
        attribute: String,
        /// The ASN.1 string type.
        kind: String,
    },
    /// Not DER of a name.
    #[error("it is not a distinguished name")]
    Malformed,
}

/// ASN.1 string type of a value, as OpenSSL's `req` chooses it: parity with the certificates made so far.
#[derive(Clone, Copy)]
enum Text {
    Utf8,
    Printable,
    Ia5,
}

/// Names from OpenSSL configuration files, both spellings, with their object identifiers (RFC 4519, RFC 2985).
const ATTRIBUTES: &[(&str, &str, &[u64], Text)] = &[
    ("C", "countryName", &[2, 5, 4, 6], Text::Printable),
    ("ST", "stateOrProvinceName", &[2, 5, 4, 8], Text::Utf8),
    ("L", "localityName", &[2, 5, 4, 7], Text::Utf8),
    ("O", "organizationName", &[2, 5, 4, 10], Text::Utf8),
    ("OU", "organizationalUnitName", &[2, 5, 4, 11], Text::Utf8),
    ("CN", "commonName", &[2, 5, 4, 3], Text::Utf8),
    ("street", "streetAddress", &[2, 5, 4, 9], Text::Utf8),
    ("SN", "surname", &[2, 5, 4, 4], Text::Utf8),
    ("GN", "givenName", &[2, 5, 4, 42], Text::Utf8),
    ("title", "title", &[2, 5, 4, 12], Text::Utf8),
    ("serialNumber", "serialNumber", &[2, 5, 4, 5], Text::Printable),
    ("UID", "userId", &[0, 9, 2342, 19_200_300, 100, 1, 1], Text::Utf8),
    ("DC", "domainComponent", &[0, 9, 2342, 19_200_300, 100, 1, 25], Text::Ia5),
    ("emailAddress", "emailAddress", &[1, 2, 840, 113_549, 1, 9, 1], Text::Ia5),
];

/// The subject of an order.
///
/// # Errors
/// It cannot be written as ordered.
pub fn from_subject(subject: &Subject) -> Result<DistinguishedName, NameError> {
    match subject {
        Subject::Keep(der) => from_der(der),
        Subject::Attributes(attributes) => {
            let mut name = DistinguishedName::new();
            for (attribute, value) in attributes {
                let known = ATTRIBUTES.iter().find(|(short, long, ..)| short == attribute || long == attribute);
                let (_, _, oid, text) = known.ok_or_else(|| NameError::UnknownAttribute(attribute.clone()))?;
                let refused = |kind: &str| NameError::Value { attribute: attribute.clone(), kind: kind.to_owned() };
                let value = match text {
                    Text::Utf8 => DnValue::Utf8String(value.clone()),
                    Text::Printable => value
                        .as_str()
                        .try_into()
                        .map(DnValue::PrintableString)
                        .map_err(|_| refused("PrintableString"))?,
                    Text::Ia5 => value.as_str().try_into().map(DnValue::Ia5String).map_err(|_| refused("IA5String"))?,
                };
                push(&mut name, oid, value)?;
            }
            Ok(name)
        }
    }
}

/// A name from a certificate.
///
/// # Errors
/// rcgen would write it with other bytes.
pub fn from_der(der: &[u8]) -> Result<DistinguishedName, NameError> {
    let (rest, parsed) = X509Name::from_der(der).map_err(|_| NameError::Malformed)?;
    if !rest.is_empty() {
        return Err(NameError::Malformed);
    }
    let mut name = DistinguishedName::new();
    for part in parsed.iter() {
        let mut attributes = part.iter();
        let (Some(attribute), None) = (attributes.next(), attributes.next()) else {
            return Err(NameError::NotSingleValued);
        };
        let oid: Vec<u64> = attribute.attr_type().iter().ok_or(NameError::Malformed)?.collect();
        let (tag, data) = (attribute.attr_value().header.tag(), attribute.attr_value().data);
        let refused = || NameError::Value { attribute: display(&oid), kind: tag.to_string() };
        let text = || std::str::from_utf8(data).map_err(|_| refused());
        let value = match tag {
            Tag::Utf8String => DnValue::Utf8String(text()?.to_owned()),
            Tag::PrintableString => DnValue::PrintableString(text()?.try_into().map_err(|_| refused())?),
            Tag::Ia5String => DnValue::Ia5String(text()?.try_into().map_err(|_| refused())?),
            Tag::T61String => DnValue::TeletexString(text()?.try_into().map_err(|_| refused())?),
            Tag::BmpString => {
                DnValue::BmpString(rcgen::string::BmpString::from_utf16be(data.to_vec()).map_err(|_| refused())?)
            }
            _ => return Err(refused()),
        };
        push(&mut name, &oid, value)?;
    }
    Ok(name)
}

fn push(name: &mut DistinguishedName, oid: &[u64], value: DnValue) -> Result<(), NameError> {
    // The encoder panics on identifiers of fewer than two components, or with a first pair that does not exist.
    if !matches!(oid, [0..=1, 0..=39, ..] | [2, ..=175, ..]) {
        return Err(NameError::Malformed);
    }
    let kind = DnType::from_oid(oid);
    if name.get(&kind).is_some() {
        return Err(NameError::Repeated(display(oid)));
    }
    name.push(kind, value);
    Ok(())
}

/// The short name, or the number where there is none.
fn display(oid: &[u64]) -> String {
    match ATTRIBUTES.iter().find(|(_, _, known, _)| *known == oid) {
        Some((short, ..)) => (*short).to_owned(),
        None => oid.iter().map(u64::to_string).collect::<Vec<_>>().join("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(list: &[(&str, &str)]) -> Subject {
        Subject::Attributes(list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn attributes_keep_their_order_and_string_types() {
        let name = from_subject(&attributes(&[("CN", "127.0.0.1"), ("countryName", "GB"), ("O", "Canonicäl")]));
        let name = name.expect("all of it is known");
        let written: Vec<_> = name.iter().map(|(kind, value)| (kind.clone(), value.clone())).collect();
        assert_eq!(written[0], (DnType::CommonName, DnValue::Utf8String("127.0.0.1".into())));
        assert_eq!(written[1].0, DnType::CountryName);
        assert!(matches!(written[1].1, DnValue::PrintableString(_)));
        assert_eq!(written[2], (DnType::OrganizationName, DnValue::Utf8String("Canonicäl".into())));
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let refused = |list: &[(&str, &str)]| from_subject(&attributes(list)).expect_err("it must be refused");
        assert_eq!(refused(&[("OU", "a"), ("OU", "b")]), NameError::Repeated("OU".into()));
        assert_eq!(refused(&[("XX", "a")]), NameError::UnknownAttribute("XX".into()));
        assert!(matches!(refused(&[("C", "G_B")]), NameError::Value { .. }));
        assert!(matches!(refused(&[("emailAddress", "mü@example.com")]), NameError::Value { .. }));
    }

    #[test]
    fn hostile_names_are_refused_and_do_not_panic() {
        // An RDN that is an empty SET; two attributes in one; trailing bytes; anything else one byte away from a good name.
        // The parser stops at the first silently; what is left is caught when the finished bytes are compared.
        let _ = from_der(&[0x30, 2, 0x31, 0]);
        let attribute = [0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1, b'a'];
        let double = [&[0x30, 22, 0x31, 20][..], &attribute, &attribute].concat();
        assert_eq!(from_der(&double).expect_err("multi-valued"), NameError::NotSingleValued);
        let single = [&[0x30, 12, 0x31, 10][..], &attribute].concat();
        assert!(from_der(&single).is_ok());
        assert_eq!(from_der(&[&single[..], &[0]].concat()).expect_err("trailing"), NameError::Malformed);
        let key = rcgen::KeyPair::generate().expect("P-256");
        for position in 0..single.len() {
            for value in 0..=255 {
                let mut mutant = single.clone();
                mutant[position] = value;
                if let Ok(name) = from_der(&mutant) {
                    let mut parameters = rcgen::CertificateParams::default();
                    parameters.distinguished_name = name;
                    parameters.self_signed(&key).expect("an accepted name can be written");
                }
            }
        }
    }
}
