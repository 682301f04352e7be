//! A certificate that the kubelet made for itself, since nobody had given it one.
//!
//! In: a certificate's facts. Out: whether it is such a one. The rule of this file: only the kubelet's own handwriting
//! counts, and never the name of the node, which may have changed since.

use crate::facts::certificate::{CertificateFacts, CertificateRole, Leaf};

/// Whether the kubelet made it: without `--tls-cert-file` and with nothing in `--cert-dir` it signs one at its start by a CA
/// that it throws away. Kubernetes' `GenerateSelfSignedCertKey` writes both names with the second in which it did so:
/// `NAME@1700000000`, by `NAME-ca@1700000000`.
pub(crate) fn by_kubelet(facts: &CertificateFacts) -> bool {
    let Ok(leaf) = &facts.leaf else { return false };
    facts.role == CertificateRole::Kubelet && facts.issued_by_authority == Some(false) && is_handwriting(leaf)
}

/// The common name is the only attribute of both, so it ends the DER.
fn is_handwriting(leaf: &Leaf) -> bool {
    let before_second = |der: &[u8]| {
        let digits = der.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        (digits >= 9).then_some(der.len() - digits)
    };
    let ends = |der: &[u8], mark: &[u8]| before_second(der).is_some_and(|end| der[..end].ends_with(mark));
    ends(&leaf.subject, b"@") && ends(&leaf.issuer, b"-ca@")
}
