//! What the daemon is told by signals, and the ends of processes that it has inherited.
//!
//! In: SIGTERM, SIGINT, SIGHUP, SIGCHLD through signalfd(2). Out: [`Told`]. The rule of this file: a signal is read where the
//! loop can deal with it, so that none of them cuts a step in two.
//!
//! Nothing else is needed to run as process 1 of a container. The kernel ignores signals without a handler for that
//! process only as long as they are not blocked (`sig_ignored` in kernel/signal.c), and here they are blocked; and what
//! every orphan there becomes is our child, whose end somebody must take.

use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// The signals that are read in the loop.
#[derive(Debug)]
pub struct Signals(SignalFd);

/// What they say together: ten SIGHUPs say no more than one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// SIGTERM or SIGINT.
    pub end: bool,
    /// SIGHUP: the configuration is to be read again, and everything looked at.
    pub reload: bool,
}

/// The first thing that failed, and the kernel's reason.
pub type Refusal = (&'static str, Errno);

impl Signals {
    /// Blocks them for this process, and opens the descriptor that tells of them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open() -> Result<Self, Refusal> {
        let read = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD];
        let signals: SigSet = read.into_iter().collect();
        signals.thread_block().map_err(|error| ("blocking signals", error))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        SignalFd::with_flags(&signals, flags).map(Self).map_err(|error| ("opening a signal descriptor", error))
    }

    /// What to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Takes what has come.
    pub fn drain(&self) -> Told {
        let mut told = Told::default();
        while let Ok(Some(signal)) = self.0.read_signal() {
            match i32::try_from(signal.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok()) {
                Some(Signal::SIGTERM | Signal::SIGINT) => told.end = true,
                Some(Signal::SIGHUP) => told.reload = true,
                _ => {}
            }
        }
        told
    }
}

/// Takes the ends of processes that nobody waits for: orphans that became ours, and a command that not even SIGKILL had
/// ended in time. Only to be called while no command of ours runs, whose end its owner takes: waitpid(2) cannot leave
/// one out, and its number may be anybody's behind it. An orphan stays a zombie for as long as such a command takes.
pub fn take_ends_of_orphans() {
    while matches!(
        waitpid(None, Some(WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::EINTR)
    ) {}
}
