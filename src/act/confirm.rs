//! Waits until a port serves the leaf that is on disk.
//!
//! In: the leaf to expect. Out: a [`StepResult`]. Only another leaf that is really shown is "stale"; a port that does
//! not answer says nothing about the reload, and one that answers for long that it has no certificate to use says that.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::execution::Pace;
use crate::act::probe::{Probe, ProbeError};
use crate::decide::outcome::StepResult;
use crate::facts::certificate::{Fingerprint, Served};

/// Refusals in a row after which a port that never answered is taken for closed.
const REFUSALS: u32 = 3;

/// Looks at a port again and again.
#[derive(Debug)]
pub(crate) struct Confirm {
    address: SocketAddr,
    expected: Fingerprint,
    pace: Pace,
    began: Instant,
    deadline: Instant,
    pause: Duration,
    /// `Some` while nothing but refusals has come, with their number; `None` when the port has answered otherwise, or
    /// its server was restarted just now and may still be starting.
    only_refusals: Option<u32>,
    /// Since when nothing has come but that it cannot use its certificate.
    unusable_since: Option<Instant>,
    last: Served,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Looking(Box<Probe>),
    Pausing(Instant),
}

impl Confirm {
    pub(crate) fn new(
        address: SocketAddr,
        expected: Fingerprint,
        within: Duration,
        just_restarted: bool,
        pace: Pace,
    ) -> Self {
        let began = Instant::now();
        Self {
            address,
            expected,
            pace,
            began,
            deadline: began + within,
            pause: pace.probe_first,
            only_refusals: (!just_restarted).then_some(0),
            unusable_since: None,
            last: Served::Unknown(format!("{address}: not looked at")),
            // One look is taken even if the deadline has passed meanwhile: a restart before this step may take long.
            stage: Stage::Looking(Box::new(Probe::new(address, began + pace.probe))),
        }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.stage {
            Stage::Looking(probe) => probe.poll_fds(),
            Stage::Pausing(_) => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Looking(probe) => probe.deadline(),
            Stage::Pausing(until) => *until,
        }
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<StepResult> {
        match &mut self.stage {
            Stage::Looking(probe) => {
                let answer = probe.advance()?;
                self.judge(answer)
            }
            Stage::Pausing(until) => {
                let now = Instant::now();
                if now >= *until {
                    // The last look may end after the deadline: cut short, it would say nothing.
                    self.stage = Stage::Looking(Box::new(Probe::new(self.address, now + self.pace.probe)));
                }
                None
            }
        }
    }

    fn judge(&mut self, answer: Result<Fingerprint, ProbeError>) -> Option<StepResult> {
        let refused = answer.as_ref().is_err_and(ProbeError::is_refusal);
        self.only_refusals = self.only_refusals.filter(|_| refused).map(|count| count + 1);
        self.last = Served::from(answer);
        let now = Instant::now();
        let closed = self.only_refusals.is_some_and(|count| count >= REFUSALS)
            && now.duration_since(self.began) >= self.pace.refusals;
        self.unusable_since = match &self.last {
            Served::Unusable(_) => self.unusable_since.or(Some(now)),
            _ => None,
        };
        let unusable = self.unusable_since.is_some_and(|since| now.duration_since(since) >= self.pace.unusable);
        match &self.last {
            Served::Leaf(served) if *served == self.expected => return Some(StepResult::Confirmed),
            Served::Leaf(served) if now >= self.deadline => return Some(StepResult::Stale { served: *served }),
            Served::Unusable(why) if unusable || now >= self.deadline => {
                return Some(StepResult::Unusable(why.clone()));
            }
            Served::Unknown(why) if closed || now >= self.deadline => {
                return Some(StepResult::Unanswered(why.clone()));
            }
            _ => {}
        }
        // The last pause is cut so that one look falls on the deadline itself.
        self.stage = Stage::Pausing((now + self.pause).min(self.deadline));
        self.pause = (self.pause * 2).min(self.pace.probe_longest);
        None
    }
}
