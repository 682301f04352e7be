//! Must this certificate be made anew? A list of checks, each named by the violation it finds.
//!
//! In: one certificate's facts, the weighed names, `now`. Out: every reason, not the first. The rule of this file: an
//! unreadable certificate or key is a reason, never an error; what cannot be improved by a new certificate is none.

use crate::config::Config;
use crate::decide::names::Configured;
use crate::decide::plan::{Reason, ReasonCode, SanPlan};
use crate::facts::certificate::CertificateFacts;
use crate::facts::san::San;
use crate::facts::time::{Now, Timestamp};

/// What the checks look at.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    pub(crate) facts: &'a CertificateFacts,
    pub(crate) san: &'a SanPlan,
    pub(crate) configured: &'a Configured,
    pub(crate) config: &'a Config,
    pub(crate) now: Now,
    pub(crate) forced: bool,
}

type Check = fn(&Input<'_>) -> Option<(ReasonCode, String)>;

const CHECKS: &[Check] = &[
    // There is a leaf, and a server can load it together with its key.
    certificate_is_unusable,
    key_is_unusable,
    key_does_not_match,
    san_is_refused,
    // Clients that trust the current CA accept it, today and for a while.
    issuer_is_not_the_authority,
    expiry_is_near,
    // It names everything it must.
    configured_san_is_missing,
    address_is_missing,
    // Whatever it is like.
    it_is_forced,
];

/// Every reason to make the certificate anew.
pub(crate) fn reasons(input: &Input<'_>) -> Vec<Reason> {
    CHECKS
        .iter()
        .filter_map(|check| check(input))
        .map(|(code, detail)| Reason { code, certificate: input.facts.name.clone(), detail })
        .collect()
}

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

fn issuer_is_not_the_authority(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    (input.facts.issued_by_authority == Some(false))
        .then(|| (ReasonCode::IssuerMismatch, "not issued by the current CA".to_owned()))
}

fn expiry_is_near(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    let leaf = input.facts.leaf.as_ref().ok()?;
    let now = input.now.wall;
    let detail = if now < leaf.not_before {
        format!("not valid before {}", leaf.not_before)
    } else if now >= leaf.not_after {
        format!("expired at {}", leaf.not_after)
    } else if leaf.not_after.since(now) < input.config.certificate.renew_before {
        format!("expires at {}", leaf.not_after)
    } else {
        return None;
    };
    // Without a CA that can sign, the reason is told all the same: the hold says what is missing.
    let Some((_, not_after)) = validity(input) else { return Some((ReasonCode::NearExpiry, detail)) };
    // A new one that would end no later changes nothing: the CA's own end is the limit, and is reported apart.
    let gain = not_after.since(leaf.not_after);
    let valid_at_once = now < leaf.not_before;
    (valid_at_once || gain >= std::time::Duration::from_secs(3600)).then_some((ReasonCode::NearExpiry, detail))
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

fn it_is_forced(input: &Input<'_>) -> Option<(ReasonCode, String)> {
    input.forced.then(|| (ReasonCode::Forced, "asked for".to_owned()))
}

fn list<'a>(sans: impl Iterator<Item = &'a San>) -> Option<String> {
    let names: Vec<String> = sans.map(San::to_string).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Start and end of a leaf made now: back-dated by up to an hour against clients whose clock is behind, within the CA's
/// own validity. `None` without a CA that can sign.
pub(crate) fn validity(input: &Input<'_>) -> Option<(Timestamp, Timestamp)> {
    let signer = input.facts.signer()?;
    let now = input.now.wall;
    let not_before = (now - std::time::Duration::from_secs(3600)).max(signer.not_before);
    let not_after = (now + input.config.certificate.validity).min(signer.not_after);
    Some((not_before, not_after))
}
