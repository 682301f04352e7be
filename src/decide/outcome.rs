//! What became of the steps of a plan, as values: `act/` makes them, [`crate::decide::state`] learns from them.

use std::time::Duration;

use crate::decide::plan::{ReasonCode, Step};
use crate::facts::certificate::Fingerprint;
use crate::facts::time::Timestamp;

/// One step that was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepOutcome {
    /// The step.
    pub step: Step,
    /// What became of it.
    pub result: StepResult,
    /// When it began.
    pub began: Timestamp,
    /// How long it took.
    pub took: Duration,
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepResult {
    /// The new leaf is in place.
    Issued {
        /// Of the leaf.
        fingerprint: Fingerprint,
    },
    /// The port serves the leaf on disk.
    Confirmed,
    /// The deadline passed and the port still serves another leaf.
    Stale {
        /// What it serves.
        served: Fingerprint,
    },
    /// Nobody answered with TLS; the text says how. Not a failed reload.
    Unanswered(String),
    /// A TLS server answers and cannot use the certificate it has; the text says how it told.
    Unusable(String),
    /// The API server says that it is ready.
    Ready,
    /// It answers and says that it is not; the text says what is missing.
    NotReady(String),
    /// The service manager restarted the service.
    Restarted,
    /// The service manager stopped the service, and does not start it again by itself.
    Disabled,
    /// Not done, because there is nothing to do: the service does not run, or has started since.
    Skipped(String),
    /// Not done, because an earlier step was not, or because the plan was made for a certificate that somebody else has
    /// replaced meanwhile. What it was for is still to be done.
    NotTried(String),
    /// Handed over to the service manager and not waited for, because we were stopped: it is completed without us.
    Begun,
    /// Tried and failed; the whole chain of causes on one line.
    Failed(String),
}

impl StepOutcome {
    /// A restart of the API server that was not tried, because another process is at it: asked again at once, the answer
    /// would be the same.
    pub fn is_left_to_another(&self) -> bool {
        let restart = matches!(&self.step, Step::Restart { reason, .. } if *reason != ReasonCode::LoadedOnce);
        restart && matches!(self.result, StepResult::NotTried(_))
    }

    /// What nobody has confirmed about a certificate in place: no port shows it.
    pub fn remark(&self) -> Option<&'static str> {
        match (&self.step, &self.result) {
            (Step::Issue(order), StepResult::Issued { .. }) if !order.served && !order.shown_by_kubelet => {
                Some("no port shows it: that it is loaded is not verified")
            }
            _ => None,
        }
    }
}

/// The outcomes that are failures in the end. A port that showed the certificate before, and after a restart the new one,
/// is none.
pub fn lasting_failures(outcomes: &[StepOutcome]) -> impl Iterator<Item = &StepOutcome> {
    outcomes
        .iter()
        .enumerate()
        .filter(|(at, outcome)| outcome.result.is_failure() && !made_good(outcome, &outcomes[at + 1..]))
        .map(|(_, outcome)| outcome)
}

/// Whether the same question was answered well later.
fn made_good(outcome: &StepOutcome, later: &[StepOutcome]) -> bool {
    let question = |outcome: &StepOutcome| match &outcome.step {
        Step::ConfirmServed { certificate, .. } => Some(("served", certificate.clone())),
        Step::ConfirmReady { certificate, .. } => Some(("ready", certificate.clone())),
        _ => None,
    };
    let asked = question(outcome);
    let well = |later: &StepOutcome| matches!(later.result, StepResult::Confirmed | StepResult::Ready);
    asked.is_some() && later.iter().any(|later| well(later) && question(later) == asked)
}

impl StepResult {
    /// Whether the step failed. A port that does not answer is not a failure.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Stale { .. } | Self::Unusable(_) | Self::NotReady(_))
    }
}

/// One line for logs and the state file.
impl std::fmt::Display for StepResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Issued { fingerprint } => write!(f, "in place ({fingerprint})"),
            Self::Confirmed => f.write_str("served"),
            Self::Stale { served } => write!(f, "still serves another certificate ({served})"),
            Self::Unanswered(why) => write!(f, "no answer: {why}"),
            Self::Unusable(why) => write!(f, "the server cannot use its certificate: {why}"),
            Self::Ready => f.write_str("ready"),
            Self::NotReady(why) => write!(f, "not ready: {why}"),
            Self::Restarted => f.write_str("restarted"),
            Self::Disabled => f.write_str("stopped and disabled"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::NotTried(why) => write!(f, "not tried: {why}"),
            Self::Begun => f.write_str("begun, and not waited for"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}
