//! Restarts one service that runs.
//!
//! In: a service. Out: a [`StepResult`]. The rule of this file: a stopped service is never started. An explicitly named
//! service is started by `snap restart` and `snapctl restart` even when it was stopped, so the state is asked for right
//! before every try, the repeated ones included: the change that was in the way may have been the operator's stop.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::ask::Ask;
use crate::act::child::{Child, ChildError, Command};
use crate::act::execution::Pace;
use crate::act::services::{Manager, cause_of_failure, is_change_in_progress};
use crate::chain::chain;
use crate::decide::outcome::StepResult;
use crate::facts::cluster::{Service, ServiceState};

/// A restart that is under way.
#[derive(Debug)]
pub(crate) struct Restart {
    root: PathBuf,
    manager: Manager,
    service: Service,
    /// One that started after this has what it would be restarted for.
    unless_started_since: Option<Duration>,
    pace: Pace,
    began: Instant,
    pause: Duration,
    /// The last state that was seen.
    pub(crate) state: Option<ServiceState>,
    /// Whether a restart command was started at all.
    pub(crate) tried: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Asking(Ask),
    Restarting(Command, Child),
    /// Another change is in the way.
    Pausing(Instant),
}

impl Restart {
    pub(crate) fn new(
        root: PathBuf,
        manager: Manager,
        service: Service,
        unless_started_since: Option<Duration>,
        pace: Pace,
    ) -> Self {
        let stage = Stage::Asking(Ask::new(manager, &root, vec![service.clone()], pace.ask));
        Self {
            root,
            manager,
            service,
            unless_started_since,
            pace,
            began: Instant::now(),
            pause: pace.retry_first,
            state: None,
            tried: false,
            stage,
        }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.stage {
            Stage::Asking(ask) => ask.poll_fds(),
            Stage::Restarting(_, child) => child.poll_fds(),
            Stage::Pausing(_) => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Asking(ask) => ask.deadline(),
            Stage::Restarting(_, child) => child.deadline(),
            Stage::Pausing(until) => *until,
        }
    }

    /// Whether the service manager is at it. A try that met another change has ended, and handed nothing over.
    pub(crate) const fn is_handed_over(&self) -> bool {
        matches!(self.stage, Stage::Restarting(..))
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<StepResult> {
        match &mut self.stage {
            Stage::Asking(ask) => {
                self.state = ask.advance()?.remove(&self.service.name);
                self.restart_if_active()
            }
            Stage::Restarting(command, child) => {
                let result = child.advance()?.and_then(|output| output.success(command));
                match result {
                    Ok(_) => Some(StepResult::Restarted),
                    Err(error) => self.try_again(&error),
                }
            }
            Stage::Pausing(until) => {
                if Instant::now() >= *until {
                    let service = vec![self.service.clone()];
                    self.stage = Stage::Asking(Ask::new(self.manager, &self.root, service, self.pace.ask));
                }
                None
            }
        }
    }

    fn restart_if_active(&mut self) -> Option<StepResult> {
        let name = &self.service.name;
        let (active, detail) = self.state.as_ref().map_or((None, "no answer"), |s| (s.active, s.detail.as_str()));
        let started = self.state.as_ref().and_then(|state| state.started);
        if active == Some(true) && started.zip(self.unless_started_since).is_some_and(|(at, since)| at > since) {
            return Some(StepResult::Skipped(format!("{name} has started since")));
        }
        let command = match (active, self.manager.restart(&self.root, &self.service)) {
            (Some(true), Some(command)) => command,
            (Some(false), _) => return Some(StepResult::Skipped(format!("{name} is not running: {detail}"))),
            _ => return Some(StepResult::Failed(format!("the state of {name} is unknown: {detail}"))),
        };
        match Child::spawn(command.clone(), self.began + self.pace.restart) {
            Ok(child) => {
                self.tried = true;
                self.stage = Stage::Restarting(command, child);
                None
            }
            Err(error) => Some(StepResult::Failed(chain(&error))),
        }
    }

    fn try_again(&mut self, error: &ChildError) -> Option<StepResult> {
        if !is_change_in_progress(error) {
            let cause = cause_of_failure(error).map_or_else(String::new, |cause| format!(" ({cause})"));
            return Some(StepResult::Failed(chain(error) + &cause));
        }
        let until = Instant::now() + self.pause;
        if until >= self.began + self.pace.retries {
            let tried = self.began.elapsed().as_secs_f32();
            return Some(StepResult::Failed(format!("given up after {tried:.0} s: {}", chain(error))));
        }
        self.pause = (self.pause * 2).min(self.pace.retry_longest);
        self.stage = Stage::Pausing(until);
        None
    }
}
