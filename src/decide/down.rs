//! An API server that did not come back behind our own restart.
//!
//! In: the state, what the service manager says of the service. Out: since when it is down and why, and what is said of it.
//! The rule of this file: down is what the manager has given up (`failed`), never a port that is silent - it may start
//! slowly - and never a service that somebody stopped.
//!
//! It is brought up again, for nobody else took it down: first with the certificate before, where the one in place was
//! never shown by a port, and once; then as it is. Each of those is a restart to the limit, so there is no loop: three in
//! an hour, then with pauses up to an hour, and all that time it is said.

use crate::decide::plan::{Reason, ReasonCode};
use crate::decide::state::State;
use crate::facts::certificate::CertificateFacts;
use crate::facts::cluster::{Service, ServiceState, Standing};
use crate::facts::time::Timestamp;

/// It is down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Down {
    /// When it was restarted.
    pub(crate) since: Timestamp,
    /// The manager's words.
    pub(crate) detail: String,
}

/// Whether it is down behind a restart of ours that it has never been ready after.
pub(crate) fn behind_our_restart(state: &State, service: Option<&ServiceState>) -> Option<Down> {
    let awaited = state.awaited_ready.as_ref()?;
    let service = service.filter(|service| matches!(service.standing, Standing::Failed(_)))?;
    (service.active == Some(false)).then(|| Down { since: awaited.since, detail: service.detail.clone() })
}

impl Down {
    /// Why it is restarted once more.
    pub(crate) fn reason(&self, certificate: &str) -> Reason {
        let detail = format!("restarted at {} and not up since: {}", self.since, self.detail);
        Reason { code: ReasonCode::ServiceDown, certificate: certificate.to_owned(), detail }
    }

    /// What is said for as long as it lasts.
    pub(crate) fn notice(&self, service: &Service) -> String {
        format!(
            "{} did not come back behind the restart at {}: it is {}; `journalctl -u {}` says why",
            service.name, self.since, self.detail, service.unit
        )
    }
}

/// The leaf to put back behind it: the one that the port showed last, where the one in place is ours, was put there
/// before that restart, and no port has ever shown it.
pub(crate) fn leaf_before<'a>(state: &'a State, facts: &CertificateFacts, down: &Down) -> Option<&'a str> {
    let unconfirmed = state.unconfirmed.as_ref().filter(|unconfirmed| unconfirmed.since <= down.since)?;
    let ours = facts.leaf.as_ref().is_ok_and(|leaf| leaf.fingerprint.to_hex() == unconfirmed.fingerprint);
    let put_back = state.rollback_of(&facts.name).is_some_and(|back| back.fingerprint == unconfirmed.fingerprint);
    state.shown.as_deref().filter(|shown| ours && !put_back && *shown != unconfirmed.fingerprint)
}
