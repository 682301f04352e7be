//! Turns a service off for good, or on.
//!
//! In: a command that does it. Out: that it is done, or why not. The rule of this file: it is tried again only while
//! another change of the service manager is in the way. Both commands of snapd and both of systemd leave alone what is
//! as they would make it, so a try that was lost half-way may be repeated.

use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::child::{Child, ChildError, Command};
use crate::act::execution::{Pace, wait};
use crate::act::services::is_change_in_progress;
use crate::chain::chain;

/// Why a service was not turned; the whole chain of causes on one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotTurned {
    /// Another change of the service manager was in the way until the end.
    #[error("{0}")]
    Busy(String),
    /// It failed.
    #[error("{0}")]
    Failed(String),
}

/// A switch that is under way.
#[derive(Debug)]
pub struct Switch {
    command: Command,
    pace: Pace,
    began: Instant,
    pause: Duration,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Starting,
    Running(Box<Child>),
    /// Another change is in the way.
    Pausing(Instant),
}

impl Switch {
    /// Nothing happens before it is advanced.
    pub fn new(command: Command, pace: Pace) -> Self {
        let (began, pause) = (Instant::now(), pace.retry_first);
        Self { command, pace, began, pause, stage: Stage::Starting }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.stage {
            Stage::Running(child) => child.poll_fds(),
            Stage::Starting | Stage::Pausing(_) => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Starting => self.began,
            Stage::Running(child) => child.deadline(),
            Stage::Pausing(until) => *until,
        }
    }

    /// Whether the service manager is at it.
    pub(crate) const fn is_handed_over(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<Result<(), NotTurned>> {
        match &mut self.stage {
            Stage::Starting => self.start(),
            Stage::Running(child) => match child.advance()?.and_then(|output| output.success(&self.command)) {
                Ok(_) => Some(Ok(())),
                Err(error) => self.try_again(&error),
            },
            Stage::Pausing(until) if Instant::now() >= *until => self.start(),
            Stage::Pausing(_) => None,
        }
    }

    /// Waits for the end, for callers with nothing else to do.
    ///
    /// # Errors
    /// It failed, or something else was in the way for too long.
    pub fn run_to_end(mut self) -> Result<(), NotTurned> {
        loop {
            if let Some(result) = self.advance() {
                return result;
            }
            wait(&mut self.poll_fds(), Some(self.deadline()));
        }
    }

    fn start(&mut self) -> Option<Result<(), NotTurned>> {
        match Child::spawn(self.command.clone(), self.began + self.pace.restart) {
            Ok(child) => {
                self.stage = Stage::Running(Box::new(child));
                None
            }
            Err(error) => Some(Err(NotTurned::Failed(chain(&error)))),
        }
    }

    fn try_again(&mut self, error: &ChildError) -> Option<Result<(), NotTurned>> {
        if !is_change_in_progress(error) {
            return Some(Err(NotTurned::Failed(chain(error))));
        }
        let until = Instant::now() + self.pause;
        if until >= self.began + self.pace.retries {
            let tried = self.began.elapsed().as_secs_f32();
            return Some(Err(NotTurned::Busy(format!("given up after {tried:.0} s: {}", chain(error)))));
        }
        self.pause = (self.pause * 2).min(self.pace.retry_longest);
        self.stage = Stage::Pausing(until);
        None
    }
}
