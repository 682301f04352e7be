//! What the state learns from what was done.
//!
//! In: a plan and what became of its steps. Out: the state after. The rule of this file: what was not tried says nothing,
//! and what may have happened counts as if it had - a restart that nobody remembers would be repeated.

use crate::decide::outcome::{StepOutcome, StepResult};
use crate::decide::plan::{Plan, ReasonCode, Step};
use crate::decide::ready::AwaitedReady;
use crate::decide::restart::RESTART_TAKES;
use crate::decide::state::{
    Failures, InPlace, Issuing, LastOutcome, Restart, State, Unconfirmed, push_bounded, push_limited,
};
use crate::facts::time::Timestamp;

impl State {
    /// Learns from what became of a plan's steps. `self` is the plan's own state.
    pub fn record(&mut self, plan: &Plan, outcomes: &[StepOutcome]) {
        let issue_failed = outcomes.iter().any(|o| {
            matches!(&o.step, Step::Issue(order) if order.served) && matches!(o.result, StepResult::Failed(_))
        });
        for outcome in outcomes {
            // What was not even tried after a failure says nothing about a service: a restart that was owed still is.
            if !(issue_failed && matches!(outcome.result, StepResult::Skipped(_))) {
                self.record_step(plan, outcome);
            }
        }
        let Some(last) = outcomes.last() else { return };
        let at = last.began + last.took;
        let failed: Vec<&StepOutcome> = outcomes.iter().filter(|o| matches!(o.result, StepResult::Failed(_))).collect();
        let ok = failed.is_empty();
        if !ok {
            let detail: Vec<String> = failed.iter().map(|o| format!("{}: {}", o.step, o.result)).collect();
            self.failures = Some(Failures {
                count: self.failures.as_ref().map_or(0, |f| f.count).saturating_add(1),
                at,
                detail: detail.join("; "),
                steps: failed.iter().map(|o| o.step.to_string()).collect(),
            });
        } else if self
            .failures
            .as_ref()
            .is_some_and(|f| outcomes.iter().any(|o| f.failed(&o.step)) || at >= f.next_try())
        {
            // A success elsewhere says nothing about what failed.
            self.failures = None;
        }
        let lines: Vec<String> = outcomes.iter().map(|o| format!("{}: {}", o.step, o.result)).collect();
        self.last_outcome = Some(LastOutcome { at, ok, detail: lines.join("; ") });
    }

    /// Notes that the API server is about to be restarted, before anything is started: whatever becomes of us, it may
    /// happen. [`State::record`] learns the rest. False when somebody else's restart is under way.
    #[must_use]
    pub fn claim_restart(&mut self, service: &str, reason: ReasonCode, at: Timestamp) -> bool {
        let under_way = self.restarts.last().is_some_and(|last| last.open && at.since(last.at) < RESTART_TAKES);
        if !under_way {
            let (service, reason) = (service.to_owned(), reason.to_string());
            push_limited(&mut self.restarts, Restart { at, service, reason, open: true });
        }
        !under_way
    }

    fn record_step(&mut self, plan: &Plan, outcome: &StepOutcome) {
        let at = outcome.began;
        match (&outcome.step, &outcome.result) {
            // Mostly known already: whoever puts a certificate in place writes it down at once.
            (Step::Issue(order), StepResult::Issued { fingerprint }) if order.served || order.shown_by_kubelet => {
                let issuing = Issuing::new(order, None, &plan.load_once_services, at);
                self.issued(&issuing, *fingerprint, &order.sans, InPlace::default());
            }
            (Step::ConfirmServed { shown_by_kubelet, .. }, result) => {
                let asked = at + outcome.took;
                if *shown_by_kubelet {
                    kubelet_answered(&mut self.unconfirmed_kubelet, result, asked);
                } else {
                    self.api_server_answered(result, asked);
                }
            }
            (Step::ConfirmReady { .. }, result) => self.note_ready(at + outcome.took, result),
            (Step::Restart { service, reason }, StepResult::Restarted) if *reason == ReasonCode::LoadedOnce => {
                self.owed_restarts.retain(|owed| owed != service);
            }
            // It does not run: whenever it starts, it loads the new certificate.
            (Step::Restart { service, reason }, StepResult::Skipped(_)) if *reason == ReasonCode::LoadedOnce => {
                self.owed_restarts.retain(|owed| owed != service);
            }
            // It was claimed, and then nothing was started. A claim that was refused is none of ours, and stays.
            (Step::Restart { service, .. }, StepResult::Skipped(_) | StepResult::NotTried(_)) => {
                self.forget_restart(at, service);
            }
            (Step::Restart { service, reason }, StepResult::Restarted) => {
                self.record_api_server_restart(at, service, *reason, false);
                self.advertised = plan.advertised_after_restart();
            }
            // A restart that failed half-way may well have taken the service down: it counts against the limit. But the
            // port is asked again before anybody says that a restart did not help.
            (Step::Restart { service, reason }, result @ (StepResult::Failed(_) | StepResult::Begun))
                if *reason != ReasonCode::LoadedOnce =>
            {
                let restarted = |slot: &Option<Unconfirmed>| slot.as_ref().is_some_and(|u| u.restarted);
                let before = (restarted(&self.unconfirmed), restarted(&self.unconfirmed_kubelet));
                self.record_api_server_restart(at, service, *reason, *result == StepResult::Begun);
                self.unconfirmed.iter_mut().for_each(|u| u.restarted = before.0);
                self.unconfirmed_kubelet.iter_mut().for_each(|u| u.restarted = before.1);
            }
            // A try that failed counts too: it may have been done all the same.
            (Step::Disable { .. }, _) => push_bounded(&mut self.disablings, at),
            _ => {}
        }
    }

    /// `open` says that nobody knows yet how it ended.
    fn record_api_server_restart(&mut self, at: Timestamp, service: &str, reason: ReasonCode, open: bool) {
        // That it was begun is known already, where it could be written down.
        self.forget_restart(at, service);
        if reason == ReasonCode::NodeAddressReplaced {
            self.restarted_for = self.advertised.as_ref().and_then(|advertised| advertised.address);
        }
        // The one that comes up is asked anew.
        self.word = None;
        let (service, reason) = (service.to_owned(), reason.to_string());
        push_limited(&mut self.restarts, Restart { at, service, reason, open });
        self.awaited_ready = Some(AwaitedReady::since(at));
        // On these nodes one process is the API server and the kubelet.
        for unconfirmed in self.unconfirmed.iter_mut().chain(&mut self.unconfirmed_kubelet) {
            unconfirmed.restarted = true;
            unconfirmed.stale = false;
            unconfirmed.since = at;
            unconfirmed.asked = None;
            unconfirmed.unusable = None;
        }
    }

    fn forget_restart(&mut self, at: Timestamp, service: &str) {
        self.restarts.retain(|last| (last.at, last.service.as_str()) != (at, service));
    }
}

impl State {
    /// Learns what the API server's port said about its certificate.
    fn api_server_answered(&mut self, result: &StepResult, asked: Timestamp) {
        match result {
            StepResult::Confirmed => {
                self.shown =
                    self.unconfirmed.take().map(|unconfirmed| unconfirmed.fingerprint).or_else(|| self.shown.take());
            }
            StepResult::Stale { served } => {
                self.shown = Some(served.to_hex());
                self.unconfirmed.iter_mut().for_each(|unconfirmed| unconfirmed.is_stale(asked));
            }
            StepResult::Unanswered(_) | StepResult::Unusable(_) => {
                if let Some(unconfirmed) = &mut self.unconfirmed {
                    // Before a restart it may still have been busy with the files.
                    unconfirmed.unusable = match result {
                        StepResult::Unusable(why) if unconfirmed.restarted => Some(why.clone()),
                        _ => None,
                    };
                    unconfirmed.gave_no_answer(asked);
                }
            }
            _ => {}
        }
    }
}

impl Unconfirmed {
    fn is_stale(&mut self, asked: Timestamp) {
        self.stale = true;
        self.asked = Some(asked);
    }

    fn gave_no_answer(&mut self, asked: Timestamp) {
        self.unanswered = self.unanswered.saturating_add(1);
        self.asked = Some(asked);
    }
}

/// Learns what the kubelet's port said about its own.
fn kubelet_answered(slot: &mut Option<Unconfirmed>, result: &StepResult, asked: Timestamp) {
    let Some(unconfirmed) = slot else { return };
    match result {
        StepResult::Confirmed => *slot = None,
        // Neither the new one nor one that it came after: the kubelet has a certificate of its own, or the port is somebody
        // else's, and no restart would change that.
        StepResult::Stale { served } if !unconfirmed.replaced.contains(&served.to_hex()) => *slot = None,
        StepResult::Stale { .. } => unconfirmed.is_stale(asked),
        StepResult::Unanswered(_) | StepResult::Unusable(_) => unconfirmed.gave_no_answer(asked),
        _ => {}
    }
}
