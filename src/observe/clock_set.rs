//! That the wall clock was set, or that the host slept: timerfd_create(2) with `TFD_TIMER_CANCEL_ON_SET`.
//!
//! In: nothing. Out: "look again". The rule of this file: no time of its own - the timer is armed for a day that never
//! comes, so an idle host is not woken by it.
//!
//! One descriptor for both. The kernel cancels such a timer whenever the difference between `CLOCK_REALTIME` and
//! `CLOCK_MONOTONIC` jumps (`timerfd_clock_was_set` in fs/timerfd.c). settimeofday(2) and a step of NTP do that, and so does
//! a resume: `CLOCK_MONOTONIC` stands still in suspend, the time asleep is added to the wall clock behind it
//! (`timekeeping_resume`, or the RTC's driver by `timekeeping_inject_sleeptime64`), and both end in `clock_was_set`. A host
//! without any clock that runs in suspend gains no time asleep; there NTP steps the clock once it is up, with the same
//! event. That is why there is no second timer on `CLOCK_BOOTTIME` for the next pass: at a resume every pass is due anyway,
//! and makes its wait anew from the wall clock.

use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, TimerSetTimeFlags};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

/// The kernel's word that the wall clock is another one now.
#[derive(Debug)]
pub struct ClockSet(TimerFd);

impl ClockSet {
    /// Opens and arms it.
    ///
    /// # Errors
    /// The kernel refuses it, as a sandbox may: then a clock that was set is noticed at the next pass.
    pub fn open() -> Result<Self, Errno> {
        let timer = TimerFd::new(ClockId::CLOCK_REALTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        // The largest there is; the kernel cuts it down to what its own clock can hold (`KTIME_MAX`, 292 years).
        let never = Expiration::OneShot(TimeSpec::new(nix::libc::time_t::MAX, 0));
        match timer.set(never, flags) {
            // Set between the two calls: it is armed all the same.
            Ok(()) | Err(Errno::ECANCELED) => Ok(Self(timer)),
            Err(error) => Err(error),
        }
    }

    /// What to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether it was set since the last call. The timer stays armed: a read takes the cancellation and nothing else.
    pub fn drain(&self) -> bool {
        // `wait` reads, and takes ECANCELED for an end of the wait; without one there is nothing to read (EAGAIN).
        self.0.wait().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_clock_that_nobody_sets_wakes_nobody() {
        let clock = ClockSet::open().expect("every kernel of today has it");
        assert!(!clock.drain());
        let mut fds = [PollFd::new(clock.fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(50_u16)), Ok(0));
        assert!(!clock.drain());
    }
}
