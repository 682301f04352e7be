//! What ipguard remembers from pass to pass and over restarts of its own.
//!
//! In: the state before, a plan's observation, the outcomes of its steps. Out: the state after. The rule of this file:
//! fields are only ever added, each with a default, so that an older file is always read; losing the file must not by
//! itself cause a reissue or a restart.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::plan::{IssueOrder, Step};
use crate::decide::ready::AwaitedReady;
use crate::decide::rollback::RolledBack;
use crate::decide::verdict::Class;
use crate::decide::word::Word;
use crate::facts::certificate::{CertificateFacts, Fingerprint};
use crate::facts::network::Family;
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;

/// The form written today.
pub const VERSION: u32 = 1;

/// What ipguard remembers. [`State::default`] is "nothing": no file, or one that could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// [`VERSION`] once a settled pass was made; 0 is the default and stands for "nothing is known".
    pub version: u32,
    /// Boot in which it was last written.
    pub boot_id: String,
    /// When it was last written.
    pub written: Timestamp,
    /// When that boot was, on the clock of that time: tells that the clock was set since.
    pub booted: Option<Timestamp>,
    /// The primary set of the last settled pass.
    pub accepted: Vec<Accepted>,
    /// Primary addresses that left the host; each keeps its place for `retain`.
    pub lost: Vec<Lost>,
    /// Present addresses that were secondary or a load balancer's in the last settled pass.
    pub candidates: Vec<Candidate>,
    /// Addresses that became primary only because a link had lost its last one.
    pub promoted: Vec<IpAddr>,
    /// The accepted node address of each family.
    pub node_address: BTreeMap<Family, IpAddr>,
    /// What the running API server is believed to advertise.
    pub advertised: Option<Advertised>,
    /// What an API server started in this boot would have picked, and since when; newest last.
    pub choices: Vec<Choice>,
    /// What the API server said about it last.
    pub word: Option<Word>,
    /// The address that it was believed to advertise when it was restarted for that last.
    pub restarted_for: Option<IpAddr>,
    /// Names that ipguard itself put into the server certificate.
    pub added: Vec<Added>,
    /// Since when a new server certificate waits for nodes that may still join.
    pub waiting_for_joins: Option<Timestamp>,
    /// The certificate that was put in place and not yet seen on the port.
    pub unconfirmed: Option<Unconfirmed>,
    /// The same about the kubelet's own certificate and port.
    pub unconfirmed_kubelet: Option<Unconfirmed>,
    /// The API server was restarted by us and has not said since that it is ready.
    pub awaited_ready: Option<AwaitedReady>,
    /// The leaf that the API server's port was last seen to show, hexadecimal.
    pub shown: Option<String>,
    /// A certificate that is just being put in place. Written before, gone behind it, both under the lock: whoever holds
    /// the lock and finds it here knows that its writer was killed in between.
    pub issuing: Option<Issuing>,
    /// Certificates that were put back and are held: one entry for each at most.
    pub rolled_back: Vec<RolledBack>,
    /// Services that load the certificate once and have not been restarted since it changed.
    pub owed_restarts: Vec<String>,
    /// Restarts of the API server, newest last.
    pub restarts: Vec<Restart>,
    /// When that log was lost with a state that could not be used: it is taken for used up at that moment.
    pub restarts_lost: Option<Timestamp>,
    /// Reissues of the server certificate, newest last.
    pub reissues: Vec<Reissue>,
    /// When another guard was turned off again after a takeover, newest last.
    pub disablings: Vec<Timestamp>,
    /// Failures since the last success, for backing off.
    pub failures: Option<Failures>,
    /// What became of the last plan that had steps.
    pub last_outcome: Option<LastOutcome>,
}

/// A primary address of the last settled pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The value.
    pub address: IpAddr,
    /// Name of its link then.
    pub link: String,
    /// When it was first accepted.
    pub since: Timestamp,
}

/// A primary address that left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The value.
    pub address: IpAddr,
    /// Link it was on.
    pub link: String,
    /// When it was missed first.
    pub since: Timestamp,
    /// Whether it was its family's node address: it is again when it returns.
    pub node_address: bool,
    /// It only stood in for one that was lost before it.
    #[serde(default)]
    pub stand_in: bool,
}

/// A present address that is not primary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The value.
    pub address: IpAddr,
    /// What it was.
    pub class: Class,
    /// When it was first seen so.
    pub since: Timestamp,
}

/// What the running API server is believed to advertise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advertised {
    /// The address; `None` when all that is known is that it is none of the host's: the certificate names an address
    /// that is gone and lacks the node's.
    pub address: Option<IpAddr>,
    /// Since when it is no longer the node's; `None` while it is.
    pub gone_since: Option<Timestamp>,
    /// When it was still the node's for certain, once it is not: a service that started later may advertise another.
    pub last_true: Option<Timestamp>,
}

impl Advertised {
    /// An address that is the node's now.
    pub const fn now(address: IpAddr) -> Self {
        Self { address: Some(address), gone_since: None, last_true: None }
    }
}

/// What an API server started at some time would have picked as its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The address; `None` when there was none to pick.
    pub address: Option<IpAddr>,
    /// When it was first noticed; it was so until the next entry.
    pub since: Timestamp,
    /// It became so after this moment.
    pub after: Timestamp,
    /// It was still so at this moment: the first look after each restart by ipguard.
    pub seen: Timestamp,
}

/// A name that ipguard added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Added {
    /// The name.
    pub san: San,
    /// When.
    pub at: Timestamp,
    /// Since when nothing demands it; `None` while it is demanded.
    pub unneeded_since: Option<Timestamp>,
}

/// A certificate that was put in place and not yet seen on the port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconfirmed {
    /// SHA-256 of the leaf, hexadecimal.
    pub fingerprint: String,
    /// When it was put in place, or the API server restarted for it.
    pub since: Timestamp,
    /// The port still served another leaf after the reload timeout.
    pub stale: bool,
    /// The API server was restarted for it already: a second restart would not help.
    pub restarted: bool,
    /// How often nobody answered.
    pub unanswered: u32,
    /// When that was last.
    pub asked: Option<Timestamp>,
    /// SHA-256 of the leaves it came after, hexadecimal: those that a process may serve that has loaded none since.
    #[serde(default)]
    pub replaced: Vec<String>,
    /// What the server said that came up behind our restart and could not use it.
    #[serde(default)]
    pub unusable: Option<String>,
}

/// A certificate that is just being put in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Issuing {
    /// Its name in the profile.
    pub certificate: String,
    /// SHA-256 of the leaf that is replaced, hexadecimal; empty when there is none.
    pub before: String,
    /// When that began.
    pub at: Timestamp,
    /// Names that are added.
    pub added: Vec<San>,
    /// Whether the host's addresses are the only cause.
    pub address_caused: bool,
    /// Services to restart for it.
    pub services: Vec<String>,
    /// Whether it is the one that the API server's port shows: then services load it, and the port is asked for it.
    #[serde(default = "served")]
    pub served: bool,
    /// Whether it is the one that the kubelet's port shows.
    #[serde(default)]
    pub shown_by_kubelet: bool,
    /// It is an earlier certificate that is put back.
    #[serde(default)]
    pub rolled_back: Option<RolledBack>,
}

/// Files from before others were written down are about the one that is served.
const fn served() -> bool {
    true
}

/// A restart of the API server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// When it was begun.
    pub at: Timestamp,
    /// Which service.
    pub service: String,
    /// Why.
    pub reason: String,
    /// It was handed over, and how it ended is not known yet.
    #[serde(default)]
    pub open: bool,
}

/// A reissue of the server certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reissue {
    /// When.
    pub at: Timestamp,
    /// Whether the host's addresses were its only cause: those are limited.
    pub address_caused: bool,
    /// SHA-256 of the leaf, hexadecimal; empty in a file from before this was kept.
    #[serde(default)]
    pub fingerprint: String,
    /// The boot it was made in.
    #[serde(default)]
    pub boot_id: String,
    /// Milliseconds since that boot when it was in place, where that is known. Services say their start on this clock,
    /// which nobody sets.
    #[serde(default)]
    pub uptime_ms: Option<u64>,
}

/// When a certificate was in place, on the clock that services say their start on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InPlace {
    /// The boot.
    pub boot_id: String,
    /// Since it; `None` when nobody knows.
    pub uptime: Option<Duration>,
}

/// Failures since the last success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// How many in a row.
    pub count: u32,
    /// When the last one was.
    pub at: Timestamp,
    /// What it said.
    pub detail: String,
    /// The steps that failed, as text: only those wait, what is asked for meanwhile does not.
    #[serde(default)]
    pub steps: Vec<String>,
}

/// What became of the last plan that had steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastOutcome {
    /// When its last step ended.
    pub at: Timestamp,
    /// Whether every step succeeded.
    pub ok: bool,
    /// One line.
    pub detail: String,
}

/// Longest log that is kept of what is no limit's.
const KEPT: usize = 64;

/// Longest log of restarts and of reissues: as long as the largest limit that the configuration takes, for a shorter one
/// would never be used up.
const KEPT_FOR_LIMITS: usize = 1000;

impl State {
    /// What is known where there is a state that cannot be used, since `lost`: nothing, but not that nothing was done.
    pub fn lost(lost: Timestamp) -> Self {
        Self { restarts_lost: Some(lost), ..Self::default() }
    }

    /// Whether the primary set of an earlier pass is remembered. A file that says nothing of it - emptied by hand, or of
    /// a host that had no address then - knows no more than no file.
    pub const fn is_known(&self) -> bool {
        self.version != 0 && !(self.accepted.is_empty() && self.lost.is_empty())
    }

    /// Whether two states say the same: the moment of writing is no news, and must not cause a write.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let plain = |state: &Self| Self { written: Timestamp::default(), ..state.clone() };
        plain(self) == plain(other)
    }

    /// The class a present address had in the last settled pass, if it was not primary.
    pub fn candidate(&self, address: IpAddr) -> Option<&Candidate> {
        self.candidates.iter().find(|c| c.address == address)
    }

    /// What an API server may have picked that started at that moment, and whether that is certain. It is not when a
    /// change that was noticed later may have come before, or when nobody was looking yet.
    pub fn choices_at(&self, moment: Timestamp) -> (&[Choice], bool) {
        let noticed = self.choices.iter().rposition(|choice| choice.since <= moment);
        let first = noticed.unwrap_or(0);
        let end = first + self.choices[first..].iter().take_while(|choice| choice.after < moment).count();
        let end = end.max(noticed.map_or(0, |index| index + 1));
        (&self.choices[first..end], noticed.is_some() && end == first + 1)
    }
}

impl State {
    /// Learns that a certificate was put in place. Once: a second time changes nothing.
    pub fn issued(&mut self, issuing: &Issuing, leaf: Fingerprint, sans: &SanSet, in_place: InPlace) {
        self.issuing = None;
        let fingerprint = leaf.to_hex();
        // One that is put back was issued before, and is in place anew.
        let put_back = issuing.rolled_back.as_ref().filter(|rollback| rollback.fingerprint == fingerprint);
        if let Some(rollback) = put_back {
            self.note_rollback(rollback);
        } else if self.reissues.iter().any(|r| r.fingerprint == fingerprint) {
            return;
        }
        if issuing.shown_by_kubelet {
            self.kubelet_certificate_issued(issuing, fingerprint);
            return;
        }
        if !issuing.served {
            return;
        }
        let at = issuing.at;
        for san in &issuing.added {
            self.added.retain(|a| a.san != *san);
            self.added.push(Added { san: san.clone(), at, unneeded_since: None });
        }
        // A dropped name that comes back later is added anew; until then nothing is known about it.
        self.added.retain(|a| sans.contains(&a.san));
        let uptime_ms = in_place.uptime.and_then(|uptime| u64::try_from(uptime.as_millis()).ok());
        push_limited(
            &mut self.reissues,
            Reissue {
                at,
                address_caused: issuing.address_caused,
                fingerprint: fingerprint.clone(),
                boot_id: in_place.boot_id,
                uptime_ms,
            },
        );
        self.unconfirmed = Some(Unconfirmed::new(fingerprint, at, Vec::new()));
        self.owed_restarts.clone_from(&issuing.services);
    }

    /// The kubelet's own. Told a second time, it changes nothing: the port may have been asked meanwhile.
    fn kubelet_certificate_issued(&mut self, issuing: &Issuing, fingerprint: String) {
        let before = self.unconfirmed_kubelet.take();
        if before.as_ref().is_some_and(|before| before.fingerprint == fingerprint) {
            self.unconfirmed_kubelet = before;
            return;
        }
        // A kubelet that has not loaded the one before still serves what that came after.
        let mut replaced = before.map(|before| before.replaced).unwrap_or_default();
        push_bounded(&mut replaced, issuing.before.clone());
        self.unconfirmed_kubelet = Some(Unconfirmed::new(fingerprint, issuing.at, replaced));
    }

    /// The state as it is once it is clear what became of a certificate whose writer was killed: another leaf than the
    /// one before is in place, or it was never put there.
    #[must_use]
    pub fn resumed(&self, certificates: &[CertificateFacts]) -> Self {
        let mut state = self.clone();
        let Some(issuing) = state.issuing.take() else { return state };
        let facts = certificates.iter().find(|facts| facts.name == issuing.certificate);
        if let Some(leaf) = facts.and_then(|facts| facts.leaf.as_ref().ok())
            && leaf.fingerprint.to_hex() != issuing.before
        {
            state.issued(&issuing, leaf.fingerprint, &leaf.sans, InPlace::default());
        }
        state
    }

    /// Since when the newest certificate is in place, on the clock that services say their start on: one that started
    /// later has it. `None` when nobody knows.
    pub fn in_place_since(&self, boot_id: &str) -> Option<Duration> {
        let reissue = self.reissues.last()?;
        let uptime = reissue.uptime_ms.map(Duration::from_millis)?;
        // Whatever runs now started after a boot that came later.
        Some(if reissue.boot_id == boot_id { uptime } else { Duration::ZERO })
    }
}

impl Issuing {
    /// What is about to be done, in place of the leaf `before`.
    pub fn new(order: &IssueOrder, before: Option<Fingerprint>, services: &[String], at: Timestamp) -> Self {
        Self {
            certificate: order.certificate.clone(),
            before: before.map(|leaf| leaf.to_hex()).unwrap_or_default(),
            at,
            added: order.added.iter().cloned().collect(),
            address_caused: order.address_caused,
            services: services.to_vec(),
            served: order.served,
            shown_by_kubelet: order.shown_by_kubelet,
            rolled_back: None,
        }
    }
}

impl Unconfirmed {
    /// One that was just put in place.
    pub const fn new(fingerprint: String, since: Timestamp, replaced: Vec<String>) -> Self {
        Self {
            fingerprint,
            since,
            stale: false,
            restarted: false,
            unanswered: 0,
            asked: None,
            unusable: None,
            replaced,
        }
    }
}

impl Failures {
    /// When the next try is due: after 10 s, doubling up to an hour.
    pub fn next_try(&self) -> Timestamp {
        self.at + back_off(Duration::from_secs(10), self.count)
    }

    /// Whether this step, as it is, was among those that failed.
    pub fn failed(&self, step: &Step) -> bool {
        let step = step.to_string();
        self.steps.contains(&step)
    }
}

/// `first`, doubled for each further time, at most an hour.
pub fn back_off(first: Duration, times: u32) -> Duration {
    const MOST: Duration = Duration::from_secs(60 * 60);
    let doublings = times.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(MOST)
}

pub(crate) fn push_bounded<T>(log: &mut Vec<T>, entry: T) {
    push(log, entry, KEPT);
}

/// For what a limit counts.
pub(crate) fn push_limited<T>(log: &mut Vec<T>, entry: T) {
    push(log, entry, KEPT_FOR_LIMITS);
}

fn push<T>(log: &mut Vec<T>, entry: T, most: usize) {
    if log.len() >= most {
        log.remove(0);
    }
    log.push(entry);
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
