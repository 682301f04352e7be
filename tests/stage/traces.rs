//! What a private key leaves where it is shown: as PEM, in whatever lines; as DER; in hexadecimal; as a list of numbers.
//!
//! In: key files. Out: what to look for, and a search. The rule of this file: what stands in a
//! certificate too is public and no trace; a stretch of a dozen bytes is enough to be one. Nothing of the stage is used
//! here, so that other tests can have this file.

use std::collections::HashMap;

use ipguard::observe::private_key::PrivateKey;
use rustls_pki_types::pem::{self, SectionKind};

/// Bytes of a key in one trace. Random bytes are the same by chance once in 2^96 tries.
const STRETCH: usize = 12;
/// A base64 text of this length says a stretch of that many bytes.
const LETTERS: usize = STRETCH / 3 * 4;

/// The traces of every key of a file.
#[derive(Debug)]
pub(crate) struct Traces {
    /// By their first bytes.
    of: HashMap<[u8; Self::START], Vec<Vec<u8>>>,
    /// Which first two bytes there are: most places of a text are ruled out by them.
    begun: Vec<bool>,
}

impl Default for Traces {
    fn default() -> Self {
        Self { of: HashMap::new(), begun: vec![false; 1 << 16] }
    }
}

/// The first two bytes as a number.
fn beginning(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

impl Traces {
    const START: usize = 8;

    /// Adds those of a key file.
    pub(crate) fn add(&mut self, pem_text: &[u8]) {
        for der in private_keys(pem_text) {
            // What every certificate of the key shows.
            let public = PrivateKey::from_der(&der).map(|key| key.public().0.clone()).unwrap_or_default();
            for trace in of_bytes(&der, &public) {
                if let Some(start) = trace.first_chunk() {
                    self.begun[beginning(start)] = true;
                    self.of.entry(*start).or_default().push(trace);
                }
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.of.values().map(Vec::len).sum()
    }

    /// The first trace in a text, as it stands or with its lines joined.
    pub(crate) fn find(&self, text: &[u8]) -> Option<&[u8]> {
        self.find_as_it_stands(text).or_else(|| self.find_as_it_stands(&joined(text)))
    }

    fn find_as_it_stands(&self, text: &[u8]) -> Option<&[u8]> {
        (0..text.len().saturating_sub(Self::START - 1)).filter(|at| self.begun[beginning(&text[*at..])]).find_map(
            |at| {
                let candidates = self.of.get(text[at..].first_chunk()?)?;
                candidates.iter().find(|trace| text[at..].starts_with(trace)).map(Vec::as_slice)
            },
        )
    }
}

/// Without white space, and without line ends as `Debug` and JSON write them.
fn joined(text: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        rest = match rest {
            [b'\\', b'n' | b'r' | b't', behind @ ..] => behind,
            _ => {
                if !byte.is_ascii_whitespace() {
                    joined.push(*byte);
                }
                behind
            }
        };
    }
    joined
}

/// The DER of every private key of a file. What is damaged so that nobody can read it has none.
fn private_keys(pem_text: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut rest = pem_text;
    while let Ok(Some((kind, der))) = pem::from_buf(&mut rest) {
        if matches!(kind, SectionKind::RsaPrivateKey | SectionKind::PrivateKey | SectionKind::EcPrivateKey) {
            keys.push(der);
        }
    }
    keys
}

fn of_bytes(der: &[u8], public: &[u8]) -> Vec<Vec<u8>> {
    let mut traces = Vec::new();
    // They overlap, so that a line or a cut has a whole one in it. What a key begins with is the same for all of its kind
    // (36 bytes in PKCS#8 of P-256), and stands in every program that can write one: a stretch reaches beyond it.
    for at in (27..=der.len().saturating_sub(STRETCH)).step_by(3) {
        let Some(stretch) = der.get(at..at + STRETCH) else { continue };
        if public.windows(STRETCH).any(|window| window == stretch) {
            continue;
        }
        traces.push(stretch.to_vec());
        let hex = |between: &str| stretch.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(between);
        for text in [hex(""), hex(":"), hex("").to_uppercase(), hex(":").to_uppercase()] {
            traces.push(text.into());
        }
        let numbers = stretch.iter().map(u8::to_string).collect::<Vec<_>>();
        // In one line, and with its lines joined.
        traces.extend([numbers.join(", ").into(), numbers.join(",").into()]);
        // Three bytes make four letters, so base64 of the key itself has them at one of three offsets only - but what
        // stands before a key that is encoded once more, or cut, is not known.
        for skip in 0..3 {
            if let Some(bytes) = der.get(at + skip..at + skip + STRETCH)
                && !public.windows(STRETCH).any(|window| window == bytes)
            {
                let letters = base64(bytes);
                debug_assert_eq!(letters.len(), LETTERS);
                traces.push(letters.replace('+', "-").replace('/', "_").into());
                traces.push(letters.into());
            }
        }
    }
    traces
}

/// Base64 of a multiple of three bytes.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks_exact(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        text.extend([18, 12, 6, 0].map(|shift| char::from(ALPHABET[bits >> shift & 63])));
    }
    text
}
