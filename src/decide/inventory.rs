//! The certificates of a node, and what is wrong with each: those that ipguard makes, and those in kubeconfigs, which
//! nobody makes anew.
//!
//! In: facts. Out: one [`Item`] for each. The rule of this file: what can only be known when it is read - the days that
//! are left - is a function of its own, for what is published is read later.

use std::path::PathBuf;
use std::time::Duration;

use crate::facts::certificate::{Authority, AuthorityCertificate, CertificateFacts};
use crate::facts::cluster::Cluster;
use crate::facts::kubeconfig::{Client, KubeconfigFacts};
use crate::facts::san::San;
use crate::facts::time::Timestamp;

/// From so little on somebody should know: kubeadm's and the kubelet's own renewal have their month too.
const SOON: Duration = Duration::from_secs(30 * DAY);
const DAY: u64 = 24 * 60 * 60;

/// One certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its name in the profile, or the kubeconfig's.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Whether it is a client's, in a kubeconfig.
    pub in_kubeconfig: bool,
    /// Its end; `None` where there is no certificate to read.
    pub not_after: Option<Timestamp>,
    /// Its names.
    pub san: Vec<String>,
    /// Whether the cluster's current CA signed it; `None` where that cannot be told.
    pub issuer_ok: Option<bool>,
    /// Whether a kubeconfig knows the API server by the current CA; `None` for other certificates, and where it cannot be
    /// told.
    pub authority_ok: Option<bool>,
    /// Why there is nothing to read, or what else is to be known.
    pub remark: Option<String>,
}

/// How much of a validity is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Over,
    /// Less than 30 days.
    Little,
    /// More.
    Enough,
}

/// Lists them: those of the profile in its order, then the kubeconfigs.
pub fn list(cluster: &Cluster, kubeconfigs: &[KubeconfigFacts]) -> Vec<Item> {
    let current = cluster.certificates.first().and_then(|server| server.authority.as_ref().ok());
    // What a node of its age does not have is not missing; the server's always is.
    let there = cluster.certificates.iter().enumerate().filter(|(number, facts)| *number == 0 || !facts.is_absent());
    there
        .map(|(_, facts)| of_node(facts))
        .chain(kubeconfigs.iter().map(|facts| of_kubeconfig(facts, current)))
        .collect()
}

fn of_node(facts: &CertificateFacts) -> Item {
    let remark = match &facts.leaf {
        Err(error) => Some(error.problem.to_string()),
        Ok(_) => facts.elsewhere.as_ref().map(|flag| format!("not the one in use: {flag}")),
    };
    let leaf = facts.leaf.as_ref().ok();
    Item {
        name: facts.name.clone(),
        path: facts.path.clone(),
        in_kubeconfig: false,
        not_after: leaf.map(|leaf| leaf.not_after),
        san: leaf.map(|leaf| leaf.sans.iter().map(San::to_string).collect()).unwrap_or_default(),
        issuer_ok: leaf.and(facts.issued_by_authority),
        authority_ok: None,
        remark,
    }
}

fn of_kubeconfig(facts: &KubeconfigFacts, current: Option<&Authority>) -> Item {
    let name = facts.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut listed = Item {
        name,
        path: facts.path.clone(),
        in_kubeconfig: true,
        not_after: None,
        san: Vec::new(),
        issuer_ok: None,
        authority_ok: None,
        remark: None,
    };
    let content = match &facts.content {
        Ok(content) => content,
        Err(error) => return Item { remark: Some(error.problem.to_string()), ..listed },
    };
    let mut remarks = Vec::new();
    match &content.client {
        Client::Certificate(leaf) => match leaf.as_ref() {
            Ok(leaf) => {
                listed.not_after = Some(leaf.not_after);
                listed.san = leaf.sans.iter().map(San::to_string).collect();
                listed.issuer_ok = content.issued_by_authority;
            }
            Err(error) => remarks.push(error.problem.to_string()),
        },
        Client::Token => remarks.push("a token, no certificate".to_owned()),
        Client::Refused(why) => remarks.push(why.clone()),
        Client::Nobody => remarks.push("neither a certificate nor a token".to_owned()),
    }
    match &content.authority {
        Some(Ok(authority)) => listed.authority_ok = current.map(|current| knows(authority, current)),
        Some(Err(error)) => remarks.push(error.problem.to_string()),
        None if !content.insecure => remarks.push("no CA in it: it trusts those of the system".to_owned()),
        None => {}
    }
    if content.insecure {
        remarks.push("it takes any server for the API server (insecure-skip-tls-verify)".to_owned());
    }
    listed.remark = Some(remarks.join("; ")).filter(|remark| !remark.is_empty());
    listed
}

/// Whether who trusts the one CA accepts what the current one signs: a CA that was renewed with its key is the same to
/// everybody (RFC 5280 section 6.1.1 d), one that was made anew under the same name is not.
fn knows(authority: &Authority, current: &Authority) -> bool {
    let is_trusted = |ca: &AuthorityCertificate| {
        authority.certificates.iter().any(|other| other.subject == ca.subject && other.public_key == ca.public_key)
    };
    match current.signer.and_then(|signer| current.certificates.get(signer)) {
        Some(signer) => is_trusted(signer),
        // Which of them signs is not known: any will do.
        None => current.certificates.iter().any(is_trusted),
    }
}

/// Whole days until the end; negative when it is over.
pub fn days_left(not_after: Timestamp, now: Timestamp) -> i64 {
    not_after.seconds().saturating_sub(now.seconds()).div_euclid(DAY.cast_signed())
}

/// How much is left.
pub fn left(not_after: Timestamp, now: Timestamp) -> Left {
    match not_after {
        _ if now > not_after => Left::Over,
        _ if now + SOON > not_after => Left::Little,
        _ => Left::Enough,
    }
}

/// How many restarts count at this moment. What lies ahead - the clock was set back - counts.
pub fn within(restarts: &[Timestamp], window: Duration, now: Timestamp) -> usize {
    restarts.iter().filter(|at| now.since(**at) < window).count()
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;
