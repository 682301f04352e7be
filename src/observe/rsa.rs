//! RSA keys.
//!
//! In: an `RSAPrivateKey` (RFC 8017, appendix A.1.2). Out: a key that signs, its public half, or what is wrong with it. The
//! rule of this file: every size and exponent that Go and OpenSSL take is taken, and the secret numbers are wiped when
//! they are dropped.

use ring::digest::{SHA256, digest};
use rsa::{BoxedUint, Pkcs1v15Sign, PrivateKey};

use crate::observe::der::{INTEGER, SEQUENCE, element, only, parts, tlv};
use crate::observe::private_key::Unusable;

/// Sizes that are taken, in bits: Go verifies from 1024 on, ring from 2048; beyond 4096 a handshake takes a small board
/// a second.
const SIZES: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Go's crypto/rsa reads a public exponent into 31 bits.
const MOST_EXPONENT: u64 = (1 << 31) - 1;
/// `DigestInfo` of SHA-256 up to the digest itself (RFC 8017, section 9.2, note 1).
const SHA256_INFO: &[u8] = &[0x30, 0x31, 0x30, 0x0d, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1, 5, 0, 4, 0x20];
const DAMAGED: Unusable = Unusable::Damaged("it is no RSA key inside");

/// A key ready to sign.
pub(super) struct RsaKey {
    key: PrivateKey,
    /// `RSAPublicKey` (RFC 8017, appendix A.1.1).
    public: Vec<u8>,
}

impl RsaKey {
    /// Reads `RSAPrivateKey`.
    pub(super) fn from_pkcs1(der: &[u8]) -> Result<Self, Unusable> {
        let mut rest = only(SEQUENCE, der).ok_or(DAMAGED)?;
        let mut number = || next(&mut rest).ok_or(DAMAGED);
        let version = number()?;
        let [n, e, d] = [number()?, number()?, number()?];
        let mut primes = vec![number()?, number()?];
        // The exponents and the coefficient of the Chinese remainder are computed anew.
        for _ in 0..3 {
            number()?;
        }
        if version == [1] {
            primes.extend(other_primes(rest).ok_or(DAMAGED)?);
        } else if version != [0] {
            return Err(DAMAGED);
        }
        let bits = bits(n);
        if !SIZES.contains(&bits) {
            return Err(Unusable::Unsupported(format!("an RSA key of {bits} bits")));
        }
        let exponent = e.iter().try_fold(0_u64, |sum, byte| Some(sum.checked_mul(256)? + u64::from(*byte)));
        if exponent.is_none_or(|e| !(3..=MOST_EXPONENT).contains(&e) || e.is_multiple_of(2)) {
            return Err(Unusable::Unsupported("an RSA key with a public exponent that Go refuses".to_owned()));
        }
        let public = tlv(SEQUENCE, &[&tlv(INTEGER, &[n]), &tlv(INTEGER, &[e])]).to_vec();
        let number = |bytes: &[u8]| {
            let precision = u32::try_from(self::bits(bytes).next_multiple_of(64).max(64)).map_err(|_| DAMAGED)?;
            let significant = &bytes[bytes.iter().take_while(|&&byte| byte == 0).count()..];
            BoxedUint::from_be_slice(significant, precision).map_err(|_| DAMAGED)
        };
        let primes = primes.into_iter().map(number).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKey::from_components(number(n)?, number(e)?, number(d)?, primes)
            .map_err(|_| Unusable::Damaged("its RSA numbers do not fit together"))?;
        Ok(Self { key, public })
    }

    pub(super) fn public_bytes(&self) -> &[u8] {
        &self.public
    }

    /// PKCS#1 v1.5 with SHA-256, which every verifier takes; blinded, so that its time tells nothing.
    pub(super) fn sign(&self, message: &[u8]) -> rsa::Result<Vec<u8>> {
        let scheme = Pkcs1v15Sign { hash_len: Some(SHA256.output_len()), prefix: SHA256_INFO.into() };
        self.key.sign(scheme, digest(&SHA256, message).as_ref())
    }
}

/// The next number of a sequence.
fn next<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (_, number, after) = element(rest).filter(|(tag, number, _)| is_positive(*tag, number))?;
    *rest = after;
    Some(number)
}

/// `OtherPrimeInfos`: of each its prime; exponent and coefficient follow from it. OpenSSL makes keys of up to five primes.
fn other_primes(rest: &[u8]) -> Option<Vec<&[u8]>> {
    parts(only(SEQUENCE, rest)?)?.into_iter().map(|info| next(&mut only(SEQUENCE, info)?)).collect()
}

/// Zero and what is positive, in the shortest form (X.690, section 8.3.2), as Go and OpenSSL want it.
fn is_positive(tag: u8, number: &[u8]) -> bool {
    tag == INTEGER
        && match number {
            [] => false,
            [first] => *first < 0x80,
            [0, second, ..] => *second >= 0x80,
            [first, ..] => *first < 0x80,
        }
}

fn bits(number: &[u8]) -> usize {
    let zeros = number.iter().take_while(|&&byte| byte == 0).count();
    number.get(zeros).map_or(0, |first| (number.len() - zeros) * 8 - first.leading_zeros() as usize)
}
