//! Verifying our own leaf as its peers would, before it is written.
//!
//! In: the finished DER and the order. Out: nothing, or the first [`Flaw`]. The rule of this file: it trusts nothing the
//! builder said, and parses the bytes anew.

use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage};
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::ParsedExtension;

use crate::act::leaf::Authority;
use crate::act::{distinguished_name, extensions};
use crate::decide::plan::IssueOrder;
use crate::facts::ReadError;
use crate::facts::certificate::{Leaf, PublicKey, Purpose};
use crate::facts::cluster::CertificatePaths;
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;
use crate::observe::certificate;
use crate::observe::usage;

/// How a leaf differs from its order.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// It cannot be parsed.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// Verifiers compare these bytes.
    #[error("its issuer is not the CA's subject byte for byte")]
    Issuer,
    /// Another subject.
    #[error("its subject is not the ordered one byte for byte")]
    Subject,
    /// An extension is missing, or says something else.
    #[error("its {0} is not as ordered")]
    Extension(&'static str),
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
    /// A peer would not accept it.
    #[error("a {peer} would refuse it for {purpose}", peer = peer(*purpose))]
    Chain {
        /// What it was verified for.
        purpose: Purpose,
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
    if distinguished_name::encode(&order.subject).as_ref() != Ok(&leaf.subject) {
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
    chains(der, order, authority, now)?;
    extensions(&certificate::parse(der).map_err(Flaw::Unreadable)?, &signer)
}

/// What the leaf may be used for, and that it points to the CA's key: OpenSSL looks for the issuer by that.
fn extensions(leaf: &X509Certificate<'_>, signer: &X509Certificate<'_>) -> Result<(), Flaw> {
    let constraints = leaf.basic_constraints().ok().flatten();
    if constraints.is_none_or(|constraints| constraints.value.ca) {
        return Err(Flaw::Extension("basicConstraints"));
    }
    let usage = leaf.key_usage().ok().flatten();
    if usage.is_none_or(|usage| usage.value.flags != u16::from(extensions::KEY_USAGES.reverse_bits())) {
        return Err(Flaw::Extension("keyUsage"));
    }
    let purposes = leaf.extended_key_usage().ok().flatten();
    if !purposes.is_some_and(|usage| usage.value.server_auth && usage.value.client_auth) {
        return Err(Flaw::Extension("extendedKeyUsage"));
    }
    let pointer = leaf.iter_extensions().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(pointer) => pointer.key_identifier.as_ref().map(|found| found.0),
        _ => None,
    });
    if pointer != usage::subject_key_identifier(signer) {
        return Err(Flaw::Extension("authorityKeyIdentifier"));
    }
    Ok(())
}

fn names(leaf: &Leaf, ordered: &SanSet) -> Result<(), Flaw> {
    let mut differences: Vec<String> = leaf.refused_sans.clone();
    differences.extend(ordered.difference(&leaf.sans).map(|san: &San| format!("{san} is missing")));
    differences.extend(leaf.sans.difference(ordered).map(|san| format!("{san} is not ordered")));
    if differences.is_empty() { Ok(()) } else { Err(Flaw::Names(differences.join(", "))) }
}

/// Both ways a client may trust the CA: by the signing certificate itself, which is in the bundle, and by the root above
/// it where the bundle has that one.
fn chains(der: &[u8], order: &IssueOrder, authority: &Authority, now: Timestamp) -> Result<(), Flaw> {
    let seconds = u64::try_from(now.seconds()).map_err(|_| Flaw::Clock)?;
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let leaf = CertificateDer::from(der);
    let chain = authority.chain();
    // A CA for one end alone is the operator's choice; rustls-webpki would not see it on an anchor, but on the way to one.
    let other = order.purpose.other();
    let for_both = chain
        .iter()
        .chain([&authority.certificate()])
        .all(|der| certificate::parse(der).is_ok_and(|certificate| usage::allows(&certificate, other)));
    let signer = CertificateDer::from(authority.certificate());
    for purpose in [order.purpose].into_iter().chain(for_both.then_some(other)) {
        let refused = |error| Flaw::Chain { purpose, error };
        accepted(&leaf, &[&signer], &[], time, purpose).map_err(refused)?;
        let Some(top) = chain.last().and_then(|top| certificate::parse(top).ok()) else { continue };
        let roots: Vec<CertificateDer<'_>> =
            authority.bundle().filter(|root| is_root_of(root, &top)).map(CertificateDer::from).collect();
        // A signature above the signer that cannot be checked here is none of ours; Go and OpenSSL can check it.
        if !roots.is_empty()
            && chain.iter().zip(chain.iter().skip(1)).all(|(below, above)| can_be_checked(below, above))
            && roots.iter().all(|root| chain.last().is_none_or(|top| can_be_checked(top, root)))
        {
            let intermediates: Vec<CertificateDer<'_>> = chain.iter().copied().map(CertificateDer::from).collect();
            let roots: Vec<_> = roots.iter().collect();
            accepted(&leaf, &roots, &intermediates, time, purpose).map_err(refused)?;
        }
    }
    second_reading(&leaf, &order.sans)
}

/// Verifies a certificate file with the CA in place as a peer would that trusts every certificate of the CA file: a
/// client, or a server where the certificate is a client's.
///
/// # Errors
/// What the peer would say.
pub fn by_peer(paths: &CertificatePaths, purpose: Purpose, now: Timestamp) -> Result<(), String> {
    let told = |error: ReadError| error.to_string();
    let leaf = certificate::first_certificate(&paths.certificate).map_err(told)?;
    let bundle = certificate::bundle(&paths.authority).map_err(told)?;
    let seconds = u64::try_from(now.seconds()).map_err(|_| Flaw::Clock.to_string())?;
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    let anchors: Vec<CertificateDer<'_>> = bundle.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let anchors: Vec<&CertificateDer<'_>> = anchors.iter().collect();
    accepted(&CertificateDer::from(leaf.as_slice()), &anchors, &[], time, purpose)
        .map_err(|error| format!("a {} would refuse it: {error}", peer(purpose)))
}

/// Who verifies it.
fn peer(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Server => "client",
        Purpose::Client => "server",
    }
}

fn can_be_checked(below: &[u8], above: &[u8]) -> bool {
    let (Ok(below), Ok(above)) = (certificate::parse(below), certificate::parse(above)) else { return true };
    below.verify_signature(Some(above.public_key())) != Err(X509Error::SignatureUnsupportedAlgorithm)
}

fn is_root_of(root: &[u8], top: &X509Certificate<'_>) -> bool {
    certificate::parse(root).is_ok_and(|root| {
        root.subject().as_raw() == top.issuer().as_raw() && root.subject().as_raw() == root.issuer().as_raw()
    })
}

fn accepted(
    leaf: &CertificateDer<'_>,
    anchors: &[&CertificateDer<'_>],
    intermediates: &[CertificateDer<'_>],
    time: UnixTime,
    purpose: Purpose,
) -> Result<(), webpki::Error> {
    let anchors: Vec<TrustAnchor<'_>> =
        anchors.iter().map(|anchor| webpki::anchor_from_trusted_cert(anchor)).collect::<Result<_, _>>()?;
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    let usage = match purpose {
        Purpose::Server => KeyUsage::server_auth(),
        Purpose::Client => KeyUsage::client_auth(),
    };
    EndEntityCert::try_from(leaf)?
        .verify_for_usage(algorithms, &anchors, intermediates, time, usage, None, None)
        .map(drop)
}

/// The names once more, by another parser than the one that compared them with the order.
fn second_reading(leaf: &CertificateDer<'_>, sans: &SanSet) -> Result<(), Flaw> {
    let leaf = EndEntityCert::try_from(leaf).map_err(|error| Flaw::Unreadable(error.to_string()))?;
    for san in sans {
        let text = san.to_string();
        // A client asks for a name that the wildcard stands for.
        let (asked, below) =
            text.strip_prefix("*.").map_or_else(|| (text.clone(), "."), |below| (format!("any.{below}"), below));
        // A wildcard below a single label (`*.local`) is one for Go and OpenSSL, and none for rustls-webpki.
        if !below.contains('.') {
            continue;
        }
        // A name that rustls cannot ask for (a last label of digits) no client of it will ask for.
        let Ok(asked) = ServerName::try_from(asked) else { continue };
        leaf.verify_is_valid_for_subject_name(&asked).map_err(|_| Flaw::Names(format!("{san} is not found")))?;
    }
    Ok(())
}
