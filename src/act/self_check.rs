//! Verifying our own leaf as a client would, before it is written.
//!
//! In: the finished DER and the order. Out: nothing, or the first [`Flaw`]. The rule of this file: it trusts nothing the
//! builder said, and parses the bytes anew.

use rustls_pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

use crate::act::leaf::Authority;
use crate::decide::plan::{IssueOrder, Subject};
use crate::facts::certificate::{Leaf, PublicKey};
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;
use crate::observe::certificate;

/// How a leaf differs from its order.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// It cannot be parsed.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// Verifiers compare these bytes; rcgen encodes the name anew.
    #[error("its issuer is not the CA's subject byte for byte")]
    Issuer,
    /// The subject was to be kept.
    #[error("its subject is not the one before byte for byte")]
    Subject,
    /// Another public key.
    #[error("it does not belong to the key")]
    Key,
    /// Another set of names.
    #[error("its names differ from the order: {0}")]
    Names(String),
    /// Other dates.
    #[error("it is valid from {not_before} to {not_after}, not as ordered")]
    Dates {
        /// Start of its validity.
        not_before: Timestamp,
        /// End of its validity.
        not_after: Timestamp,
    },
    /// A client would not accept it.
    #[error("a client would refuse it for {usage}")]
    Chain {
        /// serverAuth or clientAuth.
        usage: &'static str,
        /// The verifier's reason.
        #[source]
        error: webpki::Error,
    },
    /// The clock is before 1970.
    #[error("the clock shows a time before 1970")]
    Clock,
}

/// Verifies a leaf against its order, its CA and its key.
///
/// # Errors
/// The first difference found.
pub fn check(
    der: &[u8],
    order: &IssueOrder,
    authority: &Authority,
    key: &PublicKey,
    now: Timestamp,
) -> Result<(), Flaw> {
    let leaf = certificate::leaf(der).map_err(Flaw::Unreadable)?;
    let signer = certificate::parse(authority.certificate()).map_err(Flaw::Unreadable)?;
    if leaf.issuer != signer.subject().as_raw() {
        return Err(Flaw::Issuer);
    }
    if let Subject::Keep(subject) = &order.subject
        && leaf.subject != *subject
    {
        return Err(Flaw::Subject);
    }
    if leaf.public_key != *key {
        return Err(Flaw::Key);
    }
    names(&leaf, &order.sans)?;
    let dates = |from: Timestamp, to: Timestamp| (from.seconds(), to.seconds());
    if dates(leaf.not_before, leaf.not_after) != dates(order.not_before, order.not_after) {
        return Err(Flaw::Dates { not_before: leaf.not_before, not_after: leaf.not_after });
    }
    chains(der, authority, now)
}

fn names(leaf: &Leaf, ordered: &SanSet) -> Result<(), Flaw> {
    let mut differences: Vec<String> = leaf.refused_sans.clone();
    differences.extend(ordered.difference(&leaf.sans).map(|san: &San| format!("{san} is missing")));
    differences.extend(leaf.sans.difference(ordered).map(|san| format!("{san} is not ordered")));
    if differences.is_empty() { Ok(()) } else { Err(Flaw::Names(differences.join(", "))) }
}

/// Both ways a client may trust the CA: by the signing certificate itself, which is in the bundle, and by the root above
/// it where the bundle has that one.
fn chains(der: &[u8], authority: &Authority, now: Timestamp) -> Result<(), Flaw> {
    let signer = CertificateDer::from(authority.certificate());
    accepted(der, &[&signer], &[], now)?;
    let chain = authority.chain();
    let Some(top) = chain.last().and_then(|top| certificate::parse(top).ok()) else { return Ok(()) };
    let roots: Vec<CertificateDer<'_>> = authority
        .bundle()
        .filter(|root| {
            certificate::parse(root).is_ok_and(|root| {
                root.subject().as_raw() == top.issuer().as_raw() && root.subject().as_raw() == root.issuer().as_raw()
            })
        })
        .map(CertificateDer::from)
        .collect();
    if roots.is_empty() {
        return Ok(());
    }
    let intermediates: Vec<CertificateDer<'_>> = chain.into_iter().map(CertificateDer::from).collect();
    accepted(der, &roots.iter().collect::<Vec<_>>(), &intermediates, now)
}

fn accepted(
    der: &[u8],
    anchors: &[&CertificateDer<'_>],
    intermediates: &[CertificateDer<'_>],
    now: Timestamp,
) -> Result<(), Flaw> {
    let seconds = u64::try_from(now.seconds()).map_err(|_| Flaw::Clock)?;
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let leaf = CertificateDer::from(der);
    for (usage, purpose) in [("serverAuth", KeyUsage::server_auth()), ("clientAuth", KeyUsage::client_auth())] {
        let refused = |error| Flaw::Chain { usage, error };
        let anchors: Vec<TrustAnchor<'_>> = anchors
            .iter()
            .map(|anchor| webpki::anchor_from_trusted_cert(anchor))
            .collect::<Result<_, _>>()
            .map_err(refused)?;
        EndEntityCert::try_from(&leaf)
            .and_then(|leaf| {
                let algorithms = webpki::ALL_VERIFICATION_ALGS;
                leaf.verify_for_usage(algorithms, &anchors, intermediates, time, purpose, None, None).map(drop)
            })
            .map_err(refused)?;
    }
    Ok(())
}
