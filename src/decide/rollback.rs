//! An earlier certificate that was put back, and how long it stays.
//!
//! In: the state. Out: whether names are held, and what ends that. The rule of this file: only a person puts a certificate
//! back; what makes the one in place unusable - its end, another CA, another key - is never held.
//!
//! Nothing is rolled back by itself. A server that runs and serves the leaf before, or a third one, uses other files than
//! ours, and older content in ours would change nothing. One that answers nobody after our restart may start slowly, or
//! fail for a reason of its own; a pair that a server cannot load does not get past the verification before it is written.
//! So the silence is reported, with what puts the certificate before back, and the choice is left to whoever reads it.

use serde::{Deserialize, Serialize};

use crate::decide::state::{State, Unconfirmed};
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

/// What is said when the API server was restarted with a new certificate in place and nobody has answered since.
pub(crate) fn silent_after_restart(unconfirmed: &Unconfirmed) -> Option<String> {
    // A restart forgets when the port was asked, so this is about an answer that was missing behind it.
    let silent = unconfirmed.restarted && !unconfirmed.stale && unconfirmed.unanswered > 0;
    silent.then_some(unconfirmed.asked?).map(|_| {
        format!(
            "the API server has not answered since it was restarted at {}: its log says why; `ipguard rollback` puts \
             the certificate before back",
            unconfirmed.since
        )
    })
}
