//! The API server's own word: when it is asked which addresses the `kubernetes` Service lists, and what that tells.
//!
//! In: the answer, what the API server is believed to advertise, the host's addresses. Out: a better belief where the answer
//! gives one, and when to ask again. The rule of this file: the list is the whole cluster's, and the other control planes'
//! addresses are none of ours. Each API server adds its own every ten seconds, and lets others expire; so what is listed
//! and on this host is what ours advertises, and only where nothing listed is on this host does ours advertise one that is
//! gone - which of them is told by what this host is known to have had, or by its being the only one. No answer, or one
//! that tells nothing, leaves everything to the record.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::node_address::told;
use crate::decide::plan::{Mode, Question};
use crate::decide::restart::{Input, started_at};
use crate::decide::state::{Advertised, State, back_off};
use crate::decide::verdict::Class;
use crate::facts::time::Timestamp;

/// What came of the last question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// The boot it was asked in.
    pub boot_id: String,
    /// The node address of that moment: another one is another question.
    pub node: IpAddr,
    /// When it was asked.
    pub at: Timestamp,
    /// How often in a row nothing final came of it.
    pub unclear: u32,
    /// Why there was no answer the last time.
    #[serde(default)]
    pub failed: Option<String>,
    /// Since when none of the host's addresses is listed.
    #[serde(default)]
    pub unlisted_since: Option<Timestamp>,
    /// What it advertises, if that is gone.
    #[serde(default)]
    pub gone: Option<IpAddr>,
    /// Listed, while this host had them once and has them no longer.
    #[serde(default)]
    pub stale: Vec<IpAddr>,
}

/// What an answer tells about this node's API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// It advertises this address, which is the node's own.
    Advertises(IpAddr),
    /// It advertises this one, which is gone, since that moment at least.
    Gone(IpAddr, Timestamp),
    /// Nothing that the record would not know better.
    Nothing,
}

/// The first pause before it is asked again. A lease in the list lasts fifteen seconds, and the list is made anew every
/// ten: whatever is wrong in it for longer stays.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// An API server that is younger has perhaps not yet put itself on the list, nor the process before it off.
const AT_REST: Duration = Duration::from_secs(30);
/// Failures before anybody hears of them: an API server that starts takes its time.
const PATIENCE: u32 = 3;

/// Whether it may be asked at all in this pass.
pub(crate) fn may_ask(input: &Input<'_>) -> bool {
    let observed = input.observed;
    input.mode != Mode::Hook
        && observed.credentials
        && observed.listed.is_none()
        && !input.cluster.arguments.endpoints_are_others
        && told(&input.cluster.arguments).is_none()
}

/// Whether it is asked although nothing speaks against the record: once for each boot and node address, again while
/// nothing final has come of it, and by whoever looks once.
pub(crate) fn is_due(input: &Input<'_>, node: IpAddr) -> bool {
    let fresh = |word: &Word| word.boot_id == input.observed.boot_id && word.node == node;
    may_ask(input)
        && match input.state.word.as_ref().filter(|word| fresh(word)) {
            Some(word) if input.mode == Mode::Daemon => word.next_question().is_some_and(|at| at <= input.now.wall),
            _ => true,
        }
}

/// Where the question goes: to the API server of this node, whatever the kubeconfig says.
pub(crate) fn question(input: &Input<'_>) -> Option<Question> {
    let arguments = &input.cluster.arguments;
    Some(Question {
        certificate: input.cluster.certificates.first()?.name.clone(),
        host: arguments.api_server_host(),
        port: arguments.secure_port,
    })
}

impl Word {
    /// When it is asked again: after 30 s, doubling up to an hour; never once the answer was final.
    pub(crate) fn next_question(&self) -> Option<Timestamp> {
        (self.unclear > 0).then(|| self.at + back_off(ASK_AGAIN, self.unclear))
    }

    /// What people should know of it.
    pub(crate) fn notice(&self) -> Option<String> {
        let list = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if !self.stale.is_empty() {
            return Some(format!(
                "the endpoints of the kubernetes Service still list {}, which this node no longer has: pods that get it reach \
                 nobody, unless another control-plane node has it now",
                list(&self.stale)
            ));
        }
        if let Some(why) = self.failed.as_ref().filter(|_| self.unclear >= PATIENCE) {
            return Some(format!(
                "the API server does not say what it advertises ({why}); ipguard goes by its own record"
            ));
        }
        let since = self.unlisted_since.filter(|since| self.at.since(*since) >= ASK_AGAIN)?;
        Some(format!("the endpoints of the kubernetes Service list no address of this node since {since}"))
    }
}

/// What the answer of this pass tells, and what is kept of it. `believed` is what the API server is believed to advertise.
pub(crate) fn listen(input: &Input<'_>, believed: &Advertised, node: IpAddr) -> (Told, Option<Word>) {
    let Some(answer) = &input.observed.listed else { return (Told::Nothing, None) };
    let (now, boot_id) = (input.now.wall, &input.observed.boot_id);
    let before = input.state.word.as_ref().filter(|word| word.boot_id == *boot_id && word.node == node);
    let unclear = before.map_or(0, |word| word.unclear).saturating_add(1);
    let mut word = Word {
        boot_id: boot_id.clone(),
        node,
        at: now,
        unclear,
        failed: None,
        unlisted_since: before.and_then(|word| word.unlisted_since),
        gone: before.and_then(|word| word.gone),
        stale: before.map(|word| word.stale.clone()).unwrap_or_default(),
    };
    let listed = match answer {
        Ok(listed) => listed,
        Err(why) => {
            word.failed = Some(why.clone());
            // Behind it there may be another process, that has just become ready.
            word.unlisted_since = None;
            return (Told::Nothing, Some(word));
        }
    };
    word.stale.clear();
    word.gone = None;
    let at_rest = input
        .service
        .and_then(|service| service.started)
        .is_none_or(|started| now.since(started_at(input, started)) >= AT_REST);
    let gone: Vec<IpAddr> = listed.iter().copied().filter(|address| !is_here(input, *address)).collect();
    let own: Vec<IpAddr> = listed.iter().copied().filter(|address| is_own(input, *address)).collect();
    if gone.len() < listed.len() {
        word.unlisted_since = None;
        let ours_gone: Vec<IpAddr> = gone.into_iter().filter(|address| was_ours(input, *address)).collect();
        if ours_gone.is_empty() {
            word.unclear = 0;
        }
        word.stale = if at_rest { ours_gone } else { Vec::new() };
        // An address of the host that is not the node's own may be a virtual one, by which nobody is told anything.
        let believed_is_listed = believed.address.is_some_and(|address| listed.contains(&address));
        let of_host = believed.address.filter(|address| own.contains(address));
        let other = own.iter().copied().find(|address| *address == node).or_else(|| own.first().copied());
        let told = of_host.or_else(|| other.filter(|_| !believed_is_listed)).map_or(Told::Nothing, Told::Advertises);
        return (told, Some(word));
    }
    // One that has just become ready is not on the list yet, and one that stops takes itself off it. Who is not ready is not
    // listened to (`act/listed.rs`).
    let since = *word.unlisted_since.get_or_insert(now);
    let ours = listed.iter().copied().find(|address| believed.address == Some(*address) || was_ours(input, *address));
    let only = if listed.len() == 1 { listed.first().copied() } else { None };
    let told = match ours.or(only) {
        // It was restarted for this one already.
        Some(address) if input.state.restarted_for == Some(address) => {
            word.stale = if at_rest { vec![address] } else { Vec::new() };
            Told::Nothing
        }
        Some(address) if at_rest && now.since(since) >= ASK_AGAIN => Told::Gone(address, since),
        _ => Told::Nothing,
    };
    if let Told::Gone(address, _) = told {
        word.gone = Some(address);
    }
    (told, Some(word))
}

/// Whether the host has the address, whosever it is.
fn is_here(input: &Input<'_>, address: IpAddr) -> bool {
    input.classes.verdict(address).is_some_and(|verdict| !verdict.interface.is_empty())
}

/// Whether it is the node's own.
pub(crate) fn is_own(input: &Input<'_>, address: IpAddr) -> bool {
    input.classes.verdict(address).is_some_and(|v| matches!(v.class, Class::Primary | Class::Unsettled))
}

/// Whether this host is known to have had the address: by what ipguard remembers, or by the certificate, which was made for
/// the addresses of its time. Virtual addresses are in old certificates too; one of those matters here only where another
/// API server happens to advertise it and ours is on no list.
fn was_ours(input: &Input<'_>, address: IpAddr) -> bool {
    let state: &State = input.state;
    let remembered: BTreeSet<IpAddr> = state
        .lost
        .iter()
        .map(|lost| lost.address)
        .chain(state.advertised.iter().filter_map(|advertised| advertised.address))
        .chain(state.choices.iter().filter_map(|choice| choice.address))
        .chain(state.added.iter().filter_map(|added| added.san.as_ip()))
        .chain(state.restarted_for)
        .collect();
    remembered.contains(&address) || input.certificate_ips.contains(&address)
}
