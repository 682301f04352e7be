//! Must this certificate be made anew? A list of checks, each named by the violation it finds.
//!
//! In: one certificate's facts, the weighed names, `now`. Out: every reason, not the first. The rule of this file: an
//! unreadable certificate or key is a reason, never an error; what cannot be improved by a new certificate is none.

use std::time::Duration;

use crate::config::Config;
use crate::decide::names::Configured;
use crate::decide::plan::{Reason, ReasonCode, SanPlan};
use crate::facts::certificate::{AuthorityCertificate, CertificateFacts, Leaf, Purpose};
use crate::facts::san::San;
use crate::facts::time::{Now, Timestamp};

/// What the checks look at.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) facts: &'a CertificateFacts,
    pub(crate) san: &'a SanPlan,
    pub(crate) configured: &'a Configured,
    pub(crate) config: &'a Config,
    /// A person wants it made anew.
    pub(crate) forced: bool,
    pub(crate) now: Now,
}

type Check = fn(&Input<'_>) -> Option<(ReasonCode, String)>;

const CHECKS: &[Check] = &[
    is_forced,
    // There is a leaf, and a server can load it together with its key.
    certificate_is_unusable,
    key_is_unusable,
    key_does_not_match,
    san_is_refused,
    // Clients that trust the current CA accept it, today and for a while.
    signature_is_refused,
    usage_is_wrong,
    issuer_is_not_the_authority,
    is_not_valid_yet,
    is_expired,
    expiry_is_near,
    // It names everything it must.
    configured_san_is_missing,
    address_is_missing,
];

/// Every reason to make the certificate anew.
pub(crate) fn reasons(input: &Input<'_>) -> Vec<Reason> {
    CHECKS
        .iter()
        .filter_map(|check| check(input))
        .map(|(code, detail)| Reason { code, certificate: input.facts.name.clone(), detail })
        .collect()
}

fn is_forced(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    input.forced.then(|| (ReasonCode::Forced, "a new one was asked for".to_owned()))
}

/// Missing, empty and unreadable have one code, since one thing follows from all of them; the detail tells them apart.
fn certificate_is_unusable(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let error = input.facts.leaf.as_ref().err()?;
    Some((ReasonCode::CertificateUnusable, error.to_string()))
}

fn key_is_unusable(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let error = input.facts.key.as_ref().err()?;
    Some((ReasonCode::KeyUnusable, error.to_string()))
}

fn key_does_not_match(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let (leaf, key) = (input.facts.leaf.as_ref().ok()?, input.facts.key.as_ref().ok()?);
    (leaf.public_key != *key)
        .then(|| (ReasonCode::KeyMismatch, "the certificate is for another key than the key file's".to_owned()))
}

fn san_is_refused(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let leaf = input.facts.leaf.as_ref().ok()?;
    (!leaf.refused_sans.is_empty())
        .then(|| (ReasonCode::SanRefused, format!("a Go server refuses {}", leaf.refused_sans.join(", "))))
}

fn signature_is_refused(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let algorithm = input.facts.leaf.as_ref().ok()?.refused_signature.as_ref()?;
    Some((ReasonCode::SignatureRefused, format!("Go clients refuse its signature: {algorithm}")))
}

fn usage_is_wrong(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let usage = input.facts.leaf.as_ref().ok()?.usage;
    let purpose = match input.facts.role.purpose() {
        Purpose::Server => (!usage.server_auth).then_some("its extendedKeyUsage has no serverAuth"),
        Purpose::Client => (!usage.client_auth).then_some("its extendedKeyUsage has no clientAuth"),
    };
    let faults: Vec<&str> = purpose
        .into_iter()
        .chain((!usage.digital_signature).then_some("its keyUsage has no digitalSignature"))
        .chain(usage.is_ca.then_some("its basicConstraints say CA:TRUE"))
        .collect();
    (!faults.is_empty()).then(|| (ReasonCode::WrongUsage, faults.join(", ")))
}

fn issuer_is_not_the_authority(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let detail = match input.facts.issued_by_authority {
        Some(false) => "not issued by the current CA",
        _ if points_elsewhere(input.facts) => "it points to another key or certificate than the current CA's",
        _ => return None,
    };
    Some((ReasonCode::IssuerMismatch, detail.to_owned()))
}

/// Whether the leaf's authorityKeyIdentifier fits no certificate of its issuer's name: OpenSSL finds no issuer then,
/// whoever signed it (RFC 5280 section 4.2.1.1).
fn points_elsewhere(facts: &CertificateFacts) -> bool {
    let (Ok(leaf), Ok(authority)) = (&facts.leaf, &facts.authority) else { return false };
    let fits = |ca: &AuthorityCertificate| {
        let key = leaf.authority_key_id.as_ref().zip(ca.key_id.as_ref());
        let serial = leaf.authority_serial.as_ref();
        key.is_none_or(|(pointer, id)| pointer == id) && serial.is_none_or(|serial| *serial == ca.serial)
    };
    let mut named = authority.certificates.iter().filter(|ca| ca.subject == leaf.issuer).peekable();
    named.peek().is_some() && !named.any(fits)
}

fn is_not_valid_yet(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let leaf = input.facts.leaf.as_ref().ok()?;
    (input.now.wall < leaf.not_before)
        .then(|| (ReasonCode::NotYetValid, format!("not valid before {}", leaf.not_before)))
}

fn is_expired(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let leaf = input.facts.leaf.as_ref().ok()?;
    (input.now.wall >= leaf.not_after).then(|| (ReasonCode::Expired, format!("expired at {}", leaf.not_after)))
}

fn expiry_is_near(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let leaf = input.facts.leaf.as_ref().ok()?;
    let now = input.now.wall;
    if now >= leaf.not_after || leaf.not_after.since(now) >= lead(leaf, input.config) {
        return None;
    }
    // Without a CA that can sign, the reason is told all the same: the hold says what is missing. With one, a new leaf
    // that would end hardly later changes nothing: the CA's own end is the limit, and is reported apart.
    let gained = validity(input, now)
        .is_none_or(|(_, not_after)| not_after.since(leaf.not_after) >= least_gain(leaf, input.config));
    gained.then(|| (ReasonCode::NearExpiry, format!("expires at {}", leaf.not_after)))
}

/// The shorter of the leaf's life and that of a new one: a leaf of ten years gives way to one of a year in good time, and
/// not before it has to.
fn life(leaf: &Leaf, config: &Config) -> Duration {
    leaf.not_after.since(leaf.not_before).min(config.certificate.validity)
}

/// How long before its end a leaf is renewed: a third of its life, unless the operator says how long.
pub(crate) fn lead(leaf: &Leaf, config: &Config) -> Duration {
    config.certificate.renew_before.unwrap_or_else(|| life(leaf, config) / 3)
}

/// How much later a new leaf must end to be worth it.
fn least_gain(leaf: &Leaf, config: &Config) -> Duration {
    life(leaf, config) / 10
}

/// The moments at which time alone makes a leaf due.
pub(crate) fn due(leaf: &Leaf, config: &Config) -> [Timestamp; 2] {
    let enough = leaf.not_after + least_gain(leaf, config) - config.certificate.validity;
    [(leaf.not_after - lead(leaf, config)).max(enough), leaf.not_after]
}

fn configured_san_is_missing(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    input.facts.leaf.as_ref().ok()?;
    let missing = input.san.missing.iter().filter(|san| input.configured.sans.contains(san));
    list(missing)
        .map(|names| (ReasonCode::ConfiguredSanMissing, format!("configured and not in the certificate: {names}")))
}

fn address_is_missing(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    input.facts.leaf.as_ref().ok()?;
    let missing = input.san.missing.iter().filter(|san| !input.configured.sans.contains(san));
    list(missing)
        .map(|names| (ReasonCode::AddressMissing, format!("the node's own and not in the certificate: {names}")))
}

fn list<'a>(sans: impl Iterator<Item = &'a San>) -> Option<String> {
    let names: Vec<String> = sans.map(San::to_string).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Start and end of a leaf made now: back-dated by up to an hour against clients whose clock is behind, within the CA's
/// own validity. It lasts from `known`, the latest moment that has surely passed, where the clock is behind that: a leaf
/// dated by such a clock would be over when the clock is set. `None` without a CA that can sign.
pub(crate) fn validity(input: &Input<'_>, known: Timestamp) -> Option<(Timestamp, Timestamp)> {
    let signer = input.facts.signer()?;
    let now = input.now.wall;
    let not_before = (now - Duration::from_secs(3600)).max(signer.not_before);
    let not_after = (now.max(known) + input.config.certificate.validity).min(signer.not_after);
    Some((not_before, not_after))
}
