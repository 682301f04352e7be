//! Distinguished names, as DER.
//!
//! In: a subject as ordered. Out: the bytes of its Name. The rule of this file: never an approximation. A name that is
//! kept is kept byte for byte, whatever its form; attributes become what `openssl req -utf8` makes of them, and what it
//! would refuse is refused here with the reason.

use crate::decide::plan::Subject;
use crate::observe::der::{self, OBJECT_IDENTIFIER, SEQUENCE, SET, tlv};

/// Why a name cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A type that is not in the table below.
    #[error("{0} is not an attribute that is known here")]
    UnknownAttribute(String),
    /// The characters do not suit the attribute's type.
    #[error("the value of {attribute}, {value:?}, cannot be written as {kind}, which takes only {allowed}")]
    Value {
        /// Which one.
        attribute: String,
        /// As ordered.
        value: String,
        /// The ASN.1 string type.
        kind: &'static str,
        /// What it can be written with.
        allowed: &'static str,
    },
    /// Not DER of a name.
    #[error("the subject to keep is not a distinguished name in DER")]
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
    ("name", "name", &[2, 5, 4, 41], Text::Utf8),
    ("initials", "initials", &[2, 5, 4, 43], Text::Utf8),
    ("pseudonym", "pseudonym", &[2, 5, 4, 65], Text::Utf8),
    ("generationQualifier", "generationQualifier", &[2, 5, 4, 44], Text::Utf8),
    ("title", "title", &[2, 5, 4, 12], Text::Utf8),
    ("description", "description", &[2, 5, 4, 13], Text::Utf8),
    ("businessCategory", "businessCategory", &[2, 5, 4, 15], Text::Utf8),
    ("postalCode", "postalCode", &[2, 5, 4, 17], Text::Utf8),
    ("organizationIdentifier", "organizationIdentifier", &[2, 5, 4, 97], Text::Utf8),
    ("serialNumber", "serialNumber", &[2, 5, 4, 5], Text::Printable),
    ("dnQualifier", "dnQualifier", &[2, 5, 4, 46], Text::Printable),
    ("UID", "userId", &[0, 9, 2342, 19_200_300, 100, 1, 1], Text::Utf8),
    ("DC", "domainComponent", &[0, 9, 2342, 19_200_300, 100, 1, 25], Text::Ia5),
    ("emailAddress", "emailAddress", &[1, 2, 840, 113_549, 1, 9, 1], Text::Ia5),
    ("unstructuredName", "unstructuredName", &[1, 2, 840, 113_549, 1, 9, 2], Text::Utf8),
];

/// The Name of an order's subject.
///
/// # Errors
/// It cannot be written as ordered.
pub fn encode(subject: &Subject) -> Result<Vec<u8>, NameError> {
    match subject {
        Subject::Keep(name) if is_name(name) => Ok(name.clone()),
        Subject::Keep(_) => Err(NameError::Malformed),
        Subject::Attributes(attributes) => {
            let mut sets: Vec<Vec<Vec<u8>>> = Vec::new();
            for (key, value) in attributes {
                // OpenSSL's way to write a relative name of several attributes.
                let (joined, attribute) = key.strip_prefix('+').map_or((false, key.as_str()), |rest| (true, rest));
                let encoded = attribute_value(attribute, value)?;
                match sets.last_mut().filter(|_| joined) {
                    Some(set) => set.push(encoded),
                    None => sets.push(vec![encoded]),
                }
            }
            let sets: Vec<_> = sets
                .iter_mut()
                .map(|set| {
                    // DER orders a SET OF by the bytes of its elements (X.690 section 11.6).
                    set.sort();
                    tlv(SET, &set.iter().map(|attribute| attribute.as_slice()).collect::<Vec<_>>())
                })
                .collect();
            Ok(tlv(SEQUENCE, &sets.iter().map(|set| set.as_slice()).collect::<Vec<_>>()).to_vec())
        }
    }
}

fn attribute_value(attribute: &str, value: &str) -> Result<Vec<u8>, NameError> {
    let known = ATTRIBUTES.iter().find(|(short, long, ..)| *short == attribute || *long == attribute);
    let (_, _, oid, text) = known.ok_or_else(|| NameError::UnknownAttribute(attribute.to_owned()))?;
    let (tag, kind, allowed, good) = match text {
        Text::Utf8 => (0x0c, "UTF8String", "any text", true),
        Text::Printable => {
            let printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
            (0x13, "PrintableString", "letters, digits, spaces and '()+,-./:=?", value.bytes().all(printable))
        }
        Text::Ia5 => (0x16, "IA5String", "ASCII", value.is_ascii()),
    };
    if !good {
        let (attribute, value) = (attribute.to_owned(), value.to_owned());
        return Err(NameError::Value { attribute, value, kind, allowed });
    }
    let oid = tlv(OBJECT_IDENTIFIER, &[&der::object_identifier(oid)]);
    Ok(tlv(SEQUENCE, &[&oid, &tlv(tag, &[value.as_bytes()])]).to_vec())
}

/// Whether the bytes are a Name: relative names of attributes, each a type and a value of any kind.
fn is_name(name: &[u8]) -> bool {
    let attribute = |attribute: &&[u8]| {
        let parts = der::only(SEQUENCE, attribute).and_then(der::parts);
        parts.is_some_and(|parts| parts.len() == 2 && parts[0].first() == Some(&OBJECT_IDENTIFIER))
    };
    let relative = |set: &&[u8]| {
        let attributes = der::only(SET, set).and_then(der::parts);
        attributes.is_some_and(|attributes| !attributes.is_empty() && attributes.iter().all(attribute))
    };
    der::only(SEQUENCE, name).and_then(der::parts).is_some_and(|sets| sets.iter().all(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(list: &[(&str, &str)]) -> Subject {
        Subject::Attributes(list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn attributes_keep_their_order_and_string_types() {
        let name = encode(&attributes(&[("CN", "a"), ("countryName", "GB"), ("O", "ä"), ("DC", "x"), ("DC", "y")]));
        let expected = [
            &[0x30, 70, 0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1, b'a'][..],
            &[0x31, 11, 0x30, 9, 6, 3, 0x55, 4, 6, 0x13, 2, b'G', b'B'],
            &[0x31, 11, 0x30, 9, 6, 3, 0x55, 4, 10, 0x0c, 2, 0xc3, 0xa4],
            &[0x31, 17, 0x30, 15, 6, 10, 9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25, 0x16, 1, b'x'],
            &[0x31, 17, 0x30, 15, 6, 10, 9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25, 0x16, 1, b'y'],
        ];
        assert_eq!(
            name,
            Ok(expected.concat()).map(|mut name: Vec<u8>| {
                name[1] = u8::try_from(name.len() - 2).expect("short");
                name
            })
        );
        assert_eq!(encode(&attributes(&[])), Ok(vec![0x30, 0]));
    }

    #[test]
    fn joined_attributes_are_one_sorted_set() {
        let name = encode(&attributes(&[("OU", "b"), ("+CN", "a")])).expect("both are known");
        let (ou, cn) = ([0x30, 8, 6, 3, 0x55, 4, 11, 0x0c, 1, b'b'], [0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1, b'a']);
        assert_eq!(name, [&[0x30, 22, 0x31, 20][..], &cn, &ou].concat());
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let refused =
            |kind: &str, value: &str| encode(&attributes(&[(kind, value)])).expect_err("it must be").to_string();
        assert_eq!(refused("XX", "a"), "XX is not an attribute that is known here");
        assert_eq!(
            refused("C", "G_B"),
            "the value of C, \"G_B\", cannot be written as PrintableString, which takes only letters, digits, spaces and '()+,-./:=?"
        );
        assert_eq!(
            refused("emailAddress", "mü@example.com"),
            "the value of emailAddress, \"mü@example.com\", cannot be written as IA5String, which takes only ASCII"
        );
    }

    #[test]
    fn a_name_to_keep_is_copied_or_refused_and_never_changed() {
        let attribute = [0x30, 8, 6, 3, 0x55, 4, 3, 0x0c, 1, b'a'];
        let double = [&[0x30, 22, 0x31, 20][..], &attribute, &attribute].concat();
        let single = [&[0x30, 12, 0x31, 10][..], &attribute].concat();
        for good in [&double[..], &single, &[0x30, 0]] {
            assert_eq!(encode(&Subject::Keep(good.to_vec())).as_deref(), Ok(good));
        }
        for bad in [&[][..], &[0x30, 2, 0x31, 0], &[&single[..], &[0]].concat(), &single[..13], b"CN=a", &single[2..]] {
            assert_eq!(encode(&Subject::Keep(bad.to_vec())), Err(NameError::Malformed), "{bad:?}");
        }
        for position in 0..single.len() {
            for value in 0..=255 {
                let mut mutant = single.clone();
                mutant[position] = value;
                if let Ok(name) = encode(&Subject::Keep(mutant.clone())) {
                    assert_eq!(name, mutant);
                }
            }
        }
    }
}
