//! One child at a time, until it ends, its time is up, or somebody wants us to stop.
//!
//! In: a started [`Child`]. Out: its output, or why there is none. The rule of this file: SIGTERM ends the child and all
//! it started before it ends us; a hook must not go on alone for minutes after its service was stopped.

use std::os::fd::AsFd as _;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::act::child::{Child, ChildError, Output};

/// Listens for the signals that mean "stop".
#[derive(Debug)]
pub struct StopSignals(SignalFd);

/// How waiting ended.
#[derive(Debug)]
pub enum Waited {
    /// The child ended, by itself or by its deadline.
    Ended(Result<Output, ChildError>),
    /// We are to stop; the child is gone.
    Stopped,
}

impl StopSignals {
    /// Takes SIGTERM and SIGINT away from their default action.
    ///
    /// # Errors
    /// The kernel gives no descriptor.
    pub fn take() -> nix::Result<Self> {
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGINT);
        signals.thread_block()?;
        SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map(Self)
    }

    /// Whether one has come.
    pub fn came(&self) -> bool {
        matches!(self.0.read_signal(), Ok(Some(_)))
    }

    /// Waits for a child.
    pub fn wait(&self, mut child: Child) -> Waited {
        loop {
            // Asked for first: a child that has ended has ended, also when a signal came meanwhile.
            if let Some(result) = child.advance() {
                return Waited::Ended(result);
            }
            if self.came() {
                // Dropping it kills its process group.
                return Waited::Stopped;
            }
            let left = child.deadline().saturating_duration_since(Instant::now());
            // Rounded up, or the last millisecond would be spent spinning.
            let timeout = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
            let mut fds = child.poll_fds();
            fds.push(PollFd::new(self.0.as_fd(), PollFlags::POLLIN));
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                // No memory for the kernel: the deadline still ends this.
                Err(error) => tracing::debug!(%error, "poll"),
            }
        }
    }
}
