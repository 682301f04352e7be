//! An earlier certificate that was put back, and how long it stays.
//!
//! In: the state. Out: whether names are held and what ends that, and whether a certificate is put back by itself. The
//! rule of this file: what makes the one in place unusable - its end, another CA, another key - is never held.
//!
//! Whoever asks for it gets an earlier certificate back. By itself that is done for one thing alone: the API server came
//! up behind our restart, answers TLS, and says that it cannot use the pair. A server that serves the leaf before, or a
//! third one, uses other files than ours, and older content in ours would change nothing. One that answers nobody may
//! start slowly, or fail for a reason of its own: rolling back there would loop for ever. Both are reported, with what
//! puts the certificate before back, and the choice is left to whoever reads it.
//!
//! What is put back is the leaf that this very port was last seen to show, so the answer is about the pair and not about a
//! port that never understood us; and never from behind one that was itself put back, so it is done once.

use serde::{Deserialize, Serialize};

use crate::decide::state::{State, Unconfirmed};
use crate::facts::certificate::CertificateFacts;
use crate::facts::time::Timestamp;

/// A certificate that was put back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// When.
    pub at: Timestamp,
    /// Its name in the profile.
    pub certificate: String,
    /// SHA-256 of the leaf, hexadecimal.
    pub fingerprint: String,
    /// [`crate::facts::Observed::configuration`] then; empty when the template could not be read.
    pub configuration: String,
    /// Why, where nobody asked for it.
    #[serde(default)]
    pub cause: Option<String>,
}

impl State {
    /// The rollback that holds a certificate.
    pub fn rollback_of(&self, certificate: &str) -> Option<&RolledBack> {
        self.rolled_back.iter().find(|rollback| rollback.certificate == certificate)
    }

    /// Holds a certificate from now on.
    pub fn note_rollback(&mut self, rollback: &RolledBack) {
        self.end_rollback(&rollback.certificate);
        self.rolled_back.push(rollback.clone());
    }

    /// Holds a certificate no longer.
    pub fn end_rollback(&mut self, certificate: &str) {
        self.rolled_back.retain(|rollback| rollback.certificate != certificate);
    }

    /// A configuration that was changed since asks for something new. While it cannot be read nobody knows.
    pub(crate) fn end_rollbacks_of_other_configurations(&mut self, configuration: Option<&str>) {
        let Some(configuration) = configuration else { return };
        for rollback in &mut self.rolled_back {
            if rollback.configuration.is_empty() {
                configuration.clone_into(&mut rollback.configuration);
            }
        }
        self.rolled_back.retain(|rollback| rollback.configuration == configuration);
    }
}

/// The leaf to put back by itself, and what the server says about the one in place.
pub(crate) fn due<'a>(state: &'a State, facts: &CertificateFacts) -> Option<(&'a str, &'a str)> {
    let unconfirmed = state.unconfirmed.as_ref().filter(|unconfirmed| unconfirmed.restarted)?;
    let cause = unconfirmed.unusable.as_deref()?;
    // Somebody else has replaced the file since: what is said of it is not about ours.
    let ours = facts.leaf.as_ref().is_ok_and(|leaf| leaf.fingerprint.to_hex() == unconfirmed.fingerprint);
    let put_back = state.rollback_of(&facts.name).is_some_and(|back| back.fingerprint == unconfirmed.fingerprint);
    let shown = state.shown.as_deref().filter(|shown| *shown != unconfirmed.fingerprint)?;
    (ours && !put_back).then_some((shown, cause))
}

/// What is said when the API server was restarted with a new certificate in place and nobody has answered since.
pub(crate) fn silent_after_restart(unconfirmed: &Unconfirmed) -> Option<String> {
    // A restart forgets when the port was asked, so this is about an answer that was missing behind it.
    let silent = unconfirmed.restarted && !unconfirmed.stale && unconfirmed.unanswered > 0;
    if let Some(why) = unconfirmed.unusable.as_ref().filter(|_| silent) {
        return Some(format!(
            "the API server came up at {} and cannot use the certificate in place ({why}): `ipguard rollback` puts the one \
             before back",
            unconfirmed.since
        ));
    }
    silent.then_some(unconfirmed.asked?).map(|_| {
        format!(
            "the API server has not answered since it was restarted at {}: its log says why; `ipguard rollback` puts \
             the certificate before back",
            unconfirmed.since
        )
    })
}
