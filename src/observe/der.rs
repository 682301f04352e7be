//! DER elements (X.690): taken apart and put together.
//!
//! In: bytes. Out: tags, contents, and elements made of parts. The rule of this file: only what DER allows, since Go
//! refuses the rest; and every element is wiped when it is dropped, because some of them are private keys.

use zeroize::Zeroizing;

/// INTEGER.
pub const INTEGER: u8 = 0x02;
/// BIT STRING.
pub const BIT_STRING: u8 = 0x03;
/// OCTET STRING.
pub const OCTET_STRING: u8 = 0x04;
/// OBJECT IDENTIFIER.
pub const OBJECT_IDENTIFIER: u8 = 0x06;
/// SEQUENCE and SEQUENCE OF.
pub const SEQUENCE: u8 = 0x30;
/// SET and SET OF.
pub const SET: u8 = 0x31;

/// The first element: its tag, its content, and what follows it.
pub fn element(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, length], rest) = input.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = digits.iter().fold(0, |sum, &digit| sum << 8 | usize::from(digit));
            // The shortest form is the only one (X.690 section 10.1).
            if digits.first() == Some(&0) || length < 0x80 {
                return None;
            }
            (length, rest)
        }
        // Indefinite, or more than the 16 MiB that no file read here can have.
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The content of the one element that the input is.
pub fn only(tag: u8, input: &[u8]) -> Option<&[u8]> {
    match element(input)? {
        (found, content, []) if found == tag => Some(content),
        _ => None,
    }
}

/// The elements of a content, each whole. `None` when it is not made of elements.
pub fn parts(mut content: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !content.is_empty() {
        let (_, _, rest) = element(content)?;
        parts.push(&content[..content.len() - rest.len()]);
        content = rest;
    }
    Some(parts)
}

/// An element made of parts. Allocated once, so that no copy of a secret is left behind.
pub fn tlv(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let digits = length.to_be_bytes();
    let skip = digits.iter().take_while(|&&digit| digit == 0).count();
    let mut header = vec![tag];
    match digits.get(skip..) {
        Some([short @ 0..=0x7f]) => header.push(*short),
        Some(long @ [_, ..]) => {
            header.push(0x80 | u8::try_from(long.len()).expect("a length has at most eight bytes"));
            header.extend_from_slice(long);
        }
        _ => header.push(0),
    }
    let mut all = vec![header.as_slice()];
    all.extend_from_slice(parts);
    wiped(&all)
}

/// The parts behind one another.
pub fn wiped(parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(parts.iter().map(|part| part.len()).sum()));
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

/// Content of an object identifier (X.690 section 8.19). Two numbers at least, the first pair one that exists: all that
/// are written here are constants.
pub fn object_identifier(numbers: &[u64]) -> Vec<u8> {
    let [first, second, rest @ ..] = numbers else { return Vec::new() };
    let mut content = Vec::new();
    for number in std::iter::once(first * 40 + second).chain(rest.iter().copied()) {
        let groups = number.max(1).ilog2() / 7;
        for group in (0..=groups).rev() {
            let seven = (number >> (7 * group)).to_be_bytes()[7] & 0x7f;
            content.push(if group == 0 { seven } else { seven | 0x80 });
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_as_der_wants_them() {
        for length in [0, 1, 127, 128, 255, 256, 65_536] {
            let content = vec![7; length];
            let written = tlv(OCTET_STRING, &[&content]);
            assert_eq!(element(&written), Some((OCTET_STRING, &content[..], &[][..])), "{length}");
        }
        assert_eq!(tlv(4, &[&[0; 128]])[..3], [4, 0x81, 128]);
    }

    #[test]
    fn what_is_not_der_is_nothing() {
        let padded = [&[4, 0x82, 0, 128][..], &[0; 128]].concat();
        for wrong in [&[4, 0x80, 0, 0][..], &[4, 0x84, 0xff, 0xff, 0xff, 0xff], &[4, 5, 1], &[4, 0x81, 1, 0], &padded] {
            assert_eq!(element(wrong), None, "{wrong:?}");
        }
        assert_eq!((only(4, &[4, 1, 7]), only(4, &[4, 1, 7, 0]), only(5, &[4, 1, 7])), (Some(&[7][..]), None, None));
        assert_eq!(parts(&[4, 1, 7, 5, 0]), Some(vec![&[4, 1, 7][..], &[5, 0]]));
        assert_eq!(parts(&[4, 1, 7, 5]), None);
    }

    #[test]
    fn identifiers_are_written_in_groups_of_seven_bits() {
        assert_eq!(object_identifier(&[2, 5, 4, 3]), [0x55, 4, 3]);
        assert_eq!(object_identifier(&[1, 2, 840, 113_549]), [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d]);
        assert_eq!(
            object_identifier(&[0, 9, 2342, 19_200_300, 100, 1, 25]),
            [9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25]
        );
    }
}
