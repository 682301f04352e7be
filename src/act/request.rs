//! One request of HTTP/1 to an API server, over one connection that is closed behind it.
//!
//! In: where, what to say, whom to say it to, who we are. Out: status and body. The rule of this file: not a word is said
//! before the server has shown that it is the one that was meant, and of an answer no more than [`LONGEST_ANSWER`] is kept.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags};
use rustls::ClientConnection;

use crate::act::probe::{ProbeError, connection_error, start_connection};
use crate::chain::chain;
use crate::facts::certificate::Fingerprint;

/// What an API server says that names everything that is wrong is about 3 KiB; the addresses of a hundred of them 10 KiB.
const LONGEST_ANSWER: usize = 64 * 1024;

/// The leaf that a connection has seen, once the handshake's signature proved it.
pub(crate) type Seen = Arc<OnceLock<Fingerprint>>;

/// One connection with one request.
pub(crate) struct Request {
    address: SocketAddr,
    began: Instant,
    deadline: Instant,
    /// The leaf that the server must show; `None` where the handshake itself takes no other than the right one.
    expected: Option<Fingerprint>,
    leaf: Seen,
    /// What is still to be said.
    request: Option<String>,
    answer: Vec<u8>,
    /// `Err` when the connection could not even be tried.
    connection: Result<(TcpStream, Box<ClientConnection>), Option<String>>,
    connected: bool,
}

impl Request {
    /// Starts a connection. `tls` makes the client that notes the leaf it sees.
    pub(crate) fn new(
        address: SocketAddr,
        expected: Option<Fingerprint>,
        request: String,
        deadline: Instant,
        tls: impl FnOnce(Seen) -> Result<ClientConnection, String>,
    ) -> Self {
        let leaf = Seen::default();
        let begin = || {
            let tls = tls(Arc::clone(&leaf))?;
            let stream = start_connection(address).map_err(|error| chain(&connection_error(address, error)))?;
            Ok::<_, String>((stream, Box::new(tls)))
        };
        Self {
            address,
            began: Instant::now(),
            deadline,
            expected,
            connection: begin().map_err(Some),
            leaf,
            request: Some(request),
            answer: Vec::new(),
            connected: false,
        }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let Ok((stream, tls)) = &self.connection else { return Vec::new() };
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLOUT, !self.connected || tls.wants_write());
        events.set(PollFlags::POLLIN, self.connected && tls.wants_read());
        vec![PollFd::new(stream.as_fd(), events)]
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Status and body, or why there is none.
    pub(crate) fn advance(&mut self) -> Option<Result<(u16, String), String>> {
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
                if self.expected.is_some_and(|expected| self.leaf.get() != Some(&expected)) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
