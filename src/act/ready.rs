//! Asks an API server whether it is ready: one request of HTTP/1.1, again and again.
//!
//! In: where, for what, the leaf that it must show, who we are. Out: a [`StepResult`]. The rule of this file: the request
//! goes to nobody but the holder of the certificate that is in place, and of the answer no more is kept than says why.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags};
use rustls::ClientConnection;

use crate::act::execution::Pace;
use crate::act::probe::{Identity, ProbeError, client, connection_error, start_connection};
use crate::chain::chain;
use crate::decide::outcome::StepResult;
use crate::facts::certificate::Fingerprint;

/// The answer of an API server that names everything that is wrong is about 3 KiB.
const LONGEST_ANSWER: usize = 16 * 1024;
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
        let request = Request::new(&question, identify(), now + pace.probe);
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
            Stage::Asking(request) => request.deadline,
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
                let request = Request::new(&self.question, (self.identify)(), now + self.pace.probe);
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

/// One connection with one request.
struct Request {
    address: SocketAddr,
    began: Instant,
    deadline: Instant,
    expected: Fingerprint,
    leaf: Arc<OnceLock<Fingerprint>>,
    /// What is still to be said; said once the server has shown who it is.
    request: Option<String>,
    answer: Vec<u8>,
    /// `Err` when the connection could not even be tried.
    connection: Result<(TcpStream, Box<ClientConnection>), Option<String>>,
    connected: bool,
}

impl Request {
    fn new(question: &Question, identity: Option<Identity>, deadline: Instant) -> Self {
        let address = question.address;
        let leaf = Arc::new(OnceLock::new());
        let begin = || {
            // Who cannot show a certificate (ring signs with fewer kinds of keys than servers have) asks as nobody.
            let tls =
                client(address, Arc::clone(&leaf), identity).or_else(|_| client(address, Arc::clone(&leaf), None));
            let tls = tls.map_err(|source| ProbeError::Tls { address, source })?;
            let stream = start_connection(address).map_err(|error| connection_error(address, error))?;
            Ok::<_, ProbeError>((stream, Box::new(tls)))
        };
        // Kubernetes' own probes of the API server look the same.
        let request = format!("GET {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n", question.path);
        Self {
            address,
            began: Instant::now(),
            deadline,
            expected: question.expected,
            leaf: Arc::clone(&leaf),
            request: Some(request),
            answer: Vec::new(),
            connection: begin().map_err(|error| Some(chain(&error))),
            connected: false,
        }
    }

    fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let Ok((stream, tls)) = &self.connection else { return Vec::new() };
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLOUT, !self.connected || tls.wants_write());
        events.set(PollFlags::POLLIN, self.connected && tls.wants_read());
        vec![PollFd::new(stream.as_fd(), events)]
    }

    /// Status and body, or why there is none.
    fn advance(&mut self) -> Option<Result<(u16, String), String>> {
        if let Err(error) = &mut self.connection {
            return Some(Err(error.take().unwrap_or_default()));
        }
        match self.talk() {
            Ok(false) if Instant::now() < self.deadline => None,
            Ok(false) => {
                let error = ProbeError::TimedOut { address: self.address, after: self.deadline - self.began };
                Some(Err(chain(&error)))
            }
            Ok(true) => Some(parse(&self.answer).ok_or_else(|| format!("{}: no answer of HTTP", self.address))),
            Err(error) => Some(Err(error)),
        }
    }

    /// Says and hears what can be now. True when the answer is complete.
    fn talk(&mut self) -> Result<bool, String> {
        let address = self.address;
        let Ok((stream, tls)) = &mut self.connection else { return Ok(false) };
        let broken = |error| chain(&connection_error(address, error));
        if !self.connected {
            if let Some(error) = stream.take_error().map_err(broken)? {
                return Err(broken(error));
            }
            match stream.peer_addr() {
                Ok(_) => self.connected = true,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                Err(error) => return Err(broken(error)),
            }
        }
        loop {
            if !tls.is_handshaking()
                && let Some(request) = self.request.take()
            {
                if self.leaf.get() != Some(&self.expected) {
                    return Err(format!("{address}: another certificate than the one in place"));
                }
                tls.writer().write_all(request.as_bytes()).map_err(broken)?;
            }
            let moved = if tls.wants_write() { tls.write_tls(stream) } else { tls.read_tls(stream) };
            match moved {
                Ok(0) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error)),
            }
            let state = tls.process_new_packets().map_err(|source| chain(&ProbeError::Tls { address, source }))?;
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            tls.reader().read_exact(&mut plain).map_err(broken)?;
            self.answer.extend_from_slice(&plain);
            if state.peer_has_closed() || is_complete(&self.answer) || self.answer.len() > LONGEST_ANSWER {
                // Says goodbye, or the server logs a broken connection.
                tls.send_close_notify();
                let _ = tls.write_tls(stream);
                return Ok(true);
            }
            if Instant::now() >= self.deadline {
                return Ok(false);
            }
        }
    }
}

/// Whether an answer whose length is said is all there; others end with the connection.
fn is_complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

/// Status and body.
fn parse(answer: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.strip_prefix("HTTP/1.")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

/// What an API server that is not ready says of it: the checks that failed are lines that begin with `[-]`.
fn reason(status: u16, body: &str) -> String {
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

    #[test]
    fn an_answer_is_read_to_its_end_and_no_further() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 2\r\n\r\nok";
        assert!(is_complete(whole) && !is_complete(&whole[..whole.len() - 1]) && !is_complete(&whole[..20]));
        assert!(!is_complete(b"HTTP/1.1 200 OK\r\n\r\nok"), "it ends with the connection");
        assert_eq!(parse(whole), Some((200, "ok".to_owned())));
        assert_eq!(parse(b"HTTP/1.0 500 Internal Server Error\r\n\r\n[-]x"), Some((500, "[-]x".to_owned())));
        for nonsense in [&b""[..], b"SSH-2.0-OpenSSH", b"HTTP/1.1", b"HTTP/1.1 two OK\r\n\r\n", b"HTTP/2 200\r\n\r\n"] {
            assert_eq!(parse(nonsense), None, "{}", String::from_utf8_lossy(nonsense));
        }
    }
}
