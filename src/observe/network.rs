//! Where the host's network is read: rtnetlink, or polling where the socket is refused.
//!
//! In: nothing. Out: [`Network`] snapshots, and whether it is worth taking one. The rule of this file: a sandbox that
//! refuses netlink costs lifetimes, protocols and speed, never the service.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::libc;

use crate::facts::network::Network;
use crate::observe::polling::Polling;
use crate::observe::rtnetlink::Monitor;

/// Where the host's network is read.
#[derive(Debug)]
pub enum NetworkSource {
    /// The kernel tells what changes.
    Rtnetlink(Monitor),
    /// It has to be asked.
    Polling(Polling),
}

/// What a call of [`NetworkSource::drain`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drained {
    /// Something changed that can change a decision: a new snapshot is due.
    pub relevant: bool,
    /// Events were lost and everything was read anew. Always relevant, since nobody knows what they said.
    pub overrun: bool,
    /// How many events of the kernel were read.
    pub messages: usize,
}

/// Why the network could not be read.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A call on the netlink socket failed.
    #[error("rtnetlink socket: {call} failed")]
    Socket {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel answered a dump request with an error, which must never look like an empty dump.
    #[error("rtnetlink: the dump of {what} failed{}{message}", if message.is_empty() { "" } else { ": " })]
    Dump {
        /// What was asked for.
        what: &'static str,
        /// The kernel's own words (`NETLINK_EXT_ACK`), where it has any.
        message: String,
        /// The error code.
        #[source]
        source: io::Error,
    },
    /// The kernel did not answer a dump request in time: its refusal was lost in a full socket buffer.
    #[error("rtnetlink: no answer to the dump of {what}")]
    Unanswered {
        /// What was asked for.
        what: &'static str,
    },
    /// Neither getifaddrs nor a file told the links.
    #[error("{path} cannot be read", path = path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl NetworkError {
    /// Whether this process may not use netlink at all (`RestrictAddressFamilies=`, seccomp, an LSM, a kernel without
    /// it), as opposed to a failure that may pass.
    pub fn is_refusal(&self) -> bool {
        let (Self::Socket { source, .. } | Self::Dump { source, .. }) = self else { return false };
        matches!(
            source.raw_os_error(),
            Some(libc::EPERM | libc::EACCES | libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT)
        )
    }
}

impl NetworkSource {
    /// Opens rtnetlink; where that is refused, warns once and polls.
    ///
    /// # Errors
    /// When rtnetlink fails for another reason, or polling does not work either.
    pub fn open() -> Result<Self, NetworkError> {
        Self::open_with(Monitor::open, Path::new("/"))
    }

    /// The seam of [`NetworkSource::open`]: what opens the monitor, and where polling finds /proc and /sys.
    fn open_with(monitor: impl FnOnce() -> Result<Monitor, NetworkError>, root: &Path) -> Result<Self, NetworkError> {
        match monitor() {
            Ok(monitor) => Ok(Self::Rtnetlink(monitor)),
            Err(refusal) if refusal.is_refusal() => {
                tracing::warn!(
                    error = %refusal,
                    cause = std::error::Error::source(&refusal).map(tracing::field::display),
                    "rtnetlink is refused: polling instead, without lifetimes, protocols and IPv4 flags"
                );
                Polling::open(root).map(Self::Polling)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Readable when [`NetworkSource::drain`] has work; `None` when only time tells.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Rtnetlink(monitor) => Some(monitor.as_fd()),
            Self::Polling(_) => None,
        }
    }

    /// Reads what is queued without waiting, and says whether it matters.
    pub fn drain(&mut self) -> Drained {
        match self {
            Self::Rtnetlink(monitor) => monitor.drain(),
            Self::Polling(polling) => polling.drain(),
        }
    }

    /// The network as it is now.
    ///
    /// # Errors
    /// When the kernel cannot be asked or answers with an error. A dump that is interrupted again and again is no
    /// error: it is a snapshot that is not complete.
    pub fn snapshot(&mut self) -> Result<Network, NetworkError> {
        match self {
            Self::Rtnetlink(monitor) => monitor.snapshot(),
            Self::Polling(polling) => polling.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::network::Source;

    fn socket_error(code: i32) -> NetworkError {
        NetworkError::Socket { call: "socket", source: io::Error::from_raw_os_error(code) }
    }

    #[test]
    fn a_refused_socket_means_polling() {
        for code in [libc::EPERM, libc::EACCES, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT] {
            let mut source = NetworkSource::open_with(|| Err(socket_error(code)), Path::new("/"))
                .expect("polling works on any Linux host");
            assert!(matches!(source, NetworkSource::Polling(_)));
            assert!(source.poll_fd().is_none());
            let network = source.snapshot().expect("the host has a loopback link");
            assert_eq!(network.source, Source::Polling);
            assert!(network.links.values().any(|link| link.loopback));
        }
    }

    #[test]
    fn any_other_failure_is_an_error_and_not_a_silent_fallback() {
        for code in [libc::EMFILE, libc::ENOBUFS, libc::ENOMEM] {
            let result = NetworkSource::open_with(|| Err(socket_error(code)), Path::new("/"));
            let error = result.expect_err("the failure may pass, so the caller must hear of it");
            assert!(!error.is_refusal());
        }
    }

    #[test]
    fn the_cause_is_the_source_and_not_repeated() {
        let error = socket_error(libc::EACCES);
        assert_eq!(error.to_string(), "rtnetlink socket: socket failed");
        assert!(std::error::Error::source(&error).is_some());
    }
}
