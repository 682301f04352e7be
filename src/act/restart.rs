//! Restarts one service that runs.
//!
//! In: a service. Out: a [`StepResult`]. The rules of this file: a stopped service is never started, and a restart is done
//! when the service is active behind it, whatever the command said. An explicitly named service is started by `snap
//! restart` and `snapctl restart` even when it was stopped, so the state is asked for right before every try, the repeated
//! ones included: the change that was in the way may have been the operator's stop.
//!
//! The exception is a service that failed behind our own restart: it was not stopped by anybody. systemd refuses to start
//! one that was started too often (`start-limit-hit`), and with it a restart that has just stopped it; a few seconds later
//! it does. So that is tried again, where every other failure is left to whoever decides.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::ask::Ask;
use crate::act::child::{Child, Command};
use crate::act::execution::Pace;
use crate::act::services::{Manager, cause_of_failure, is_change_in_progress};
use crate::chain::chain;
use crate::decide::outcome::StepResult;
use crate::facts::cluster::{START_LIMIT_HIT, Service, ServiceState, Standing};

/// A restart that is under way.
#[derive(Debug)]
pub(crate) struct Restart {
    root: PathBuf,
    manager: Manager,
    service: Service,
    /// One that started after this has what it would be restarted for.
    unless_started_since: Option<Duration>,
    /// One that failed is restarted too: it did so behind a restart of ours.
    even_failed: bool,
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
    /// The command is over; what it said, where it failed.
    Verifying(Ask, Option<String>),
    /// It is on its way up or down.
    Starting(Instant, Option<String>),
    /// Another change is in the way, or the service manager's own limit.
    Pausing(Instant),
}

impl Restart {
    pub(crate) fn new(
        root: PathBuf,
        manager: Manager,
        service: Service,
        unless_started_since: Option<Duration>,
        even_failed: bool,
        pace: Pace,
    ) -> Self {
        let stage = Stage::Asking(Ask::new(manager, &root, vec![service.clone()], pace.ask));
        Self {
            root,
            manager,
            service,
            unless_started_since,
            even_failed,
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
            Stage::Asking(ask) | Stage::Verifying(ask, _) => ask.poll_fds(),
            Stage::Restarting(_, child) => child.poll_fds(),
            Stage::Starting(..) | Stage::Pausing(_) => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Asking(ask) | Stage::Verifying(ask, _) => ask.deadline(),
            Stage::Restarting(_, child) => child.deadline(),
            Stage::Starting(until, _) | Stage::Pausing(until) => *until,
        }
    }

    /// Whether the service manager is at it. A try that met another change has ended, and handed nothing over.
    pub(crate) const fn is_handed_over(&self) -> bool {
        matches!(self.stage, Stage::Restarting(..) | Stage::Verifying(..) | Stage::Starting(..))
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<StepResult> {
        match &mut self.stage {
            Stage::Asking(ask) => {
                self.state = ask.advance()?.remove(&self.service.name);
                self.restart_if_active()
            }
            Stage::Restarting(command, child) => {
                match child.advance()?.and_then(|output| output.success(command)) {
                    Ok(_) => self.verify(None),
                    Err(error) if is_change_in_progress(&error) => return self.try_again(&chain(&error)),
                    Err(error) => {
                        let cause = cause_of_failure(&error).map_or_else(String::new, |cause| format!(" ({cause})"));
                        self.verify(Some(chain(&error) + &cause));
                    }
                }
                None
            }
            Stage::Verifying(ask, error) => {
                let state = ask.advance()?.remove(&self.service.name);
                let error = error.take();
                self.judge(state, error)
            }
            Stage::Starting(until, error) => {
                if Instant::now() >= *until {
                    let error = error.take();
                    self.verify(error);
                }
                None
            }
            Stage::Pausing(until) => {
                if Instant::now() >= *until {
                    self.stage = Stage::Asking(self.ask());
                }
                None
            }
        }
    }

    fn ask(&self) -> Ask {
        Ask::new(self.manager, &self.root, vec![self.service.clone()], self.pace.ask)
    }

    /// Asks how the service is behind the command.
    fn verify(&mut self, error: Option<String>) {
        self.stage = Stage::Verifying(self.ask(), error);
    }

    /// What the state behind the command makes of it.
    fn judge(&mut self, state: Option<ServiceState>, error: Option<String>) -> Option<StepResult> {
        let name = self.service.name.clone();
        let (active, standing, detail) = state.as_ref().map_or((None, Standing::Stopped, String::new()), |state| {
            (state.active, state.standing.clone(), state.detail.clone())
        });
        self.state = state;
        let down = format!("{name} did not come back: {detail}");
        let why = error.as_ref().map_or_else(|| down.clone(), |error| format!("{error}; {down}"));
        match (active, standing) {
            (Some(false), Standing::Changing) => {
                let until = Instant::now() + self.pause;
                if until >= self.began + self.pace.restart {
                    return Some(StepResult::Failed(why));
                }
                self.pause = (self.pause * 2).min(self.pace.retry_longest);
                self.stage = Stage::Starting(until, error);
                None
            }
            (Some(false), Standing::Failed(result)) if result == START_LIMIT_HIT => {
                self.even_failed = true;
                self.try_again(&why)
            }
            (Some(false), _) => Some(StepResult::Failed(why)),
            // Where the manager gives no answer its command's word is all there is.
            (Some(true) | None, _) => Some(error.map_or(StepResult::Restarted, StepResult::Failed)),
        }
    }

    fn restart_if_active(&mut self) -> Option<StepResult> {
        let name = &self.service.name;
        let (active, detail) = self.state.as_ref().map_or((None, "no answer"), |s| (s.active, s.detail.as_str()));
        let started = self.state.as_ref().and_then(|state| state.started);
        if active == Some(true) && started.zip(self.unless_started_since).is_some_and(|(at, since)| at > since) {
            return Some(StepResult::Skipped(format!("{name} has started since")));
        }
        let failed = self.state.as_ref().is_some_and(|state| matches!(state.standing, Standing::Failed(_)));
        let down = self.even_failed && failed;
        let command = match (active, self.manager.restart(&self.root, &self.service, down)) {
            (Some(true), Some(command)) => command,
            (Some(false), Some(command)) if down => command,
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

    fn try_again(&mut self, why: &str) -> Option<StepResult> {
        let until = Instant::now() + self.pause;
        if until >= self.began + self.pace.retries {
            let tried = self.began.elapsed().as_secs_f32();
            return Some(StepResult::Failed(format!("given up after {tried:.0} s: {why}")));
        }
        self.pause = (self.pause * 2).min(self.pace.retry_longest);
        self.stage = Stage::Pausing(until);
        None
    }
}
