//! Asks an API server whether it is ready: one request of HTTP/1.1, again and again.
//!
//! In: where, for what, the leaf that it must show, who we are. Out: a [`StepResult`]. The rule of this file: the request
//! goes to nobody but the holder of the certificate that is in place, and of the answer no more is kept than says why.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::execution::Pace;
use crate::act::probe::{Identity, ProbeError, client};
use crate::act::request::Request;
use crate::chain::chain;
use crate::decide::outcome::StepResult;
use crate::facts::certificate::Fingerprint;

/// So much of what it says is kept.
const LONGEST_REASON: usize = 300;

/// What is asked for, and of whom.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) address: SocketAddr,
    pub(crate) path: String,
    /// The leaf that the server must show.
    pub(crate) expected: Fingerprint,
}

/// Reads [`Identity`] anew for each connection, so that no key is kept in between.
pub(crate) type Identify = dyn FnMut() -> Option<Identity>;

/// Waits until the answer is yes.
pub(crate) struct Ready {
    question: Question,
    identify: Box<Identify>,
    pace: Pace,
    deadline: Instant,
    pause: Duration,
    stage: Stage,
}

enum Stage {
    Asking(Box<Request>),
    Pausing(Instant),
}

impl Ready {
    pub(crate) fn new(question: Question, mut identify: Box<Identify>, within: Duration, pace: Pace) -> Self {
        let now = Instant::now();
        let request = request(&question, identify(), now + pace.probe);
        let stage = Stage::Asking(Box::new(request));
        Self { question, identify, pace, deadline: now + within, pause: pace.probe_first, stage }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.stage {
            Stage::Asking(request) => request.poll_fds(),
            Stage::Pausing(_) => Vec::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        match &self.stage {
            Stage::Asking(request) => request.deadline(),
            Stage::Pausing(until) => *until,
        }
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<StepResult> {
        let now = Instant::now();
        match &mut self.stage {
            Stage::Asking(request) => {
                let result = match request.advance()? {
                    Ok((200, _)) => return Some(StepResult::Ready),
                    Ok((status, body)) => StepResult::NotReady(reason(status, &body)),
                    Err(error) => StepResult::Unanswered(error),
                };
                if now >= self.deadline {
                    return Some(result);
                }
                self.stage = Stage::Pausing((now + self.pause).min(self.deadline));
                self.pause = (self.pause * 2).min(self.pace.probe_longest);
            }
            Stage::Pausing(until) if now >= *until => {
                let request = request(&self.question, (self.identify)(), now + self.pace.probe);
                self.stage = Stage::Asking(Box::new(request));
            }
            Stage::Pausing(_) => {}
        }
        None
    }
}

/// The keys are nobody's business.
impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ready").field("question", &self.question).finish_non_exhaustive()
    }
}

fn request(question: &Question, identity: Option<Identity>, deadline: Instant) -> Request {
    let address = question.address;
    // Kubernetes' own probes of the API server look the same.
    let text = format!("GET {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n", question.path);
    Request::new(address, Some(question.expected), text, deadline, |leaf| {
        // Who cannot show a certificate (ring signs with fewer kinds of keys than servers have) asks as nobody.
        client(address, Arc::clone(&leaf), identity)
            .or_else(|_| client(address, leaf, None))
            .map_err(|source| chain(&ProbeError::Tls { address, source }))
    })
}

/// What an API server that is not ready says of it: the checks that failed are lines that begin with `[-]`.
pub(crate) fn reason(status: u16, body: &str) -> String {
    let failed: Vec<&str> = body.lines().filter_map(|line| line.trim().strip_prefix("[-]")).collect();
    let why = match status {
        _ if !failed.is_empty() => failed.join("; "),
        401 | 403 => "it does not let us ask; its log says why".to_owned(),
        _ => body.lines().next().unwrap_or_default().trim().to_owned(),
    };
    let why: String = why.chars().filter(|c| !c.is_control()).take(LONGEST_REASON).collect();
    if why.is_empty() { format!("status {status}") } else { format!("status {status}: {why}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ready_is_named() {
        let body =
            "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n[-]poststarthook/x failed\nreadyz check failed";
        assert_eq!(reason(500, body), "status 500: etcd failed: reason withheld; poststarthook/x failed");
        assert_eq!(reason(503, ""), "status 503");
        assert_eq!(reason(401, "{\"kind\":\"Status\"}"), "status 401: it does not let us ask; its log says why");
        assert_eq!(reason(500, "\u{1b}[2Jgone\r\n"), "status 500: [2Jgone");
        assert_eq!(reason(500, &"x".repeat(5000)).chars().count(), "status 500: ".len() + LONGEST_REASON);
    }
}
