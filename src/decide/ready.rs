//! Whether the API server is asked if it is ready, and what is said of one that is not.
//!
//! In: the state, the API server's service, `now`. Out: a question to its port, and a notice. The rule of this file: only
//! somebody whom we restarted is asked, until the answer is yes; the answer never causes a restart - what keeps an API
//! server from being ready is not a certificate.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::outcome::StepResult;
use crate::decide::plan::{Mode, Step};
use crate::decide::planner::Pass;
use crate::decide::state::{State, back_off};
use crate::facts::cluster::{Cluster, Service};
use crate::facts::time::Timestamp;

/// The API server was restarted by us and has not said since that it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedReady {
    /// When it was restarted.
    pub since: Timestamp,
    /// How often it was asked.
    pub asked: u32,
    /// When that was last.
    pub last: Option<Timestamp>,
    /// What came of it.
    #[serde(default)]
    pub said: String,
}

/// A restarted kubelite may take minutes to be ready on a small board.
const AFTER_RESTART: Duration = Duration::from_secs(180);
/// A question later on.
const LATER: Duration = Duration::from_secs(5);

impl AwaitedReady {
    /// For a restart of this moment.
    pub const fn since(since: Timestamp) -> Self {
        Self { since, asked: 0, last: None, said: String::new() }
    }

    /// When it is asked next: after 30 s, doubling up to an hour.
    pub(crate) fn next_question(&self) -> Option<Timestamp> {
        Some(self.last? + back_off(Duration::from_secs(30), self.asked))
    }
}

impl State {
    /// Learns from an answer.
    pub(crate) fn note_ready(&mut self, at: Timestamp, result: &StepResult) {
        match (&mut self.awaited_ready, result) {
            (awaited, StepResult::Ready) => *awaited = None,
            (Some(awaited), StepResult::NotReady(said) | StepResult::Unanswered(said)) => {
                awaited.asked = awaited.asked.saturating_add(1);
                awaited.last = Some(at);
                awaited.said.clone_from(said);
            }
            _ => {}
        }
    }
}

impl Pass<'_> {
    /// The question, if it is due. `restarts` says that a restart stands before it in the plan.
    pub(super) fn ask_ready(&self, cluster: &Cluster, api_server: Option<&Service>, restarts: bool) -> Option<Step> {
        let service = api_server?;
        let path = service.ready.clone()?;
        let patience = if restarts {
            AFTER_RESTART
        } else {
            let awaited = self.state.awaited_ready.as_ref()?;
            if awaited.next_question().is_some_and(|at| at > self.now.wall) {
                return None;
            }
            // The first time it may still be starting; nobody sits before a daemon and waits.
            if awaited.last.is_none() && self.mode == Mode::Daemon {
                AFTER_RESTART.saturating_sub(self.now.wall.since(awaited.since))
            } else {
                LATER
            }
        };
        Some(Step::ConfirmReady {
            certificate: cluster.certificates.first()?.name.clone(),
            port: cluster.arguments.secure_port,
            host: cluster.arguments.api_server_host(),
            path,
            deadline: self.now.wall + patience.max(LATER),
        })
    }
}

/// What is said of an API server that was restarted and has been asked in vain.
pub(crate) fn not_ready(state: &State) -> Option<String> {
    let awaited = state.awaited_ready.as_ref().filter(|awaited| awaited.asked > 0)?;
    Some(format!(
        "the API server was restarted at {} and is not ready: {}; `journalctl -u` of its service says why",
        awaited.since, awaited.said
    ))
}
