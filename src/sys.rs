//! The system calls that have no safe function in the standard library or nix.
//!
//! In: plain values. Out: owned descriptors and `io::Result`s. The rule of this file: the only one that may say
//! `unsafe`; every use says why it is sound, and nothing here decides anything.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process;

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::unistd::Pid;

/// A descriptor that becomes readable when the process ends: `pidfd_open(2)`, Linux 5.3. Always close-on-exec.
pub(crate) fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    let flags: libc::c_long = 0;
    // SAFETY: the call takes two integers and reads or writes no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(pid.as_raw()), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = libc::c_int::try_from(fd).expect("the kernel's descriptors are ints");
    // SAFETY: the kernel has just made this descriptor for us, so nobody else owns or closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets the program start with no signal blocked. The standard library passes our own mask on, and a daemon that reads
/// its signals from a signalfd has them blocked: the child would be deaf to SIGTERM.
pub(crate) fn start_with_no_signal_blocked(command: &mut process::Command) {
    let start = || SigSet::empty().thread_set_mask().map_err(io::Error::from);
    // SAFETY: the closure runs in the child between fork and exec. It calls pthread_sigmask(3) only, which is
    // async-signal-safe, and neither allocates nor takes a lock; an errno turned into io::Error is a plain number.
    unsafe { command.pre_exec(start) };
}

/// Has the kernel keep the ends of children for whoever asks. A process that was started with SIGCHLD ignored inherits
/// that, its children leave no status behind (wait(2), notes), and every command would seem to have been lost.
pub(crate) fn keep_ends_of_children() -> nix::Result<()> {
    // SAFETY: the default action runs no code of ours, so there is no handler that could do what handlers must not.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map(drop)
}

/// Whether the kernel takes its clock for synchronised: `adjtimex(2)`, which needs no privilege to read. `None` where the
/// call is refused, as by the filter of a sandbox.
pub(crate) fn clock_synchronised() -> Option<bool> {
    // SAFETY: `timex` is a C structure of plain integers, for which all zeroes is a value: it asks and sets nothing.
    let mut asked: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a structure of the right type that lives until the call returns, and nobody keeps it.
    let state = unsafe { libc::adjtimex(&raw mut asked) };
    (state >= 0).then_some(asked.status & libc::STA_UNSYNC == 0)
}

/// The value of an extended attribute of an open file; `None` where the file has none of that name, or its file system
/// knows none at all.
pub(crate) fn attribute(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    // The largest value the kernel allows (XATTR_SIZE_MAX), so one call is enough whatever else changes meanwhile.
    let mut value = vec![0_u8; 64 * 1024];
    // SAFETY: the descriptor is open while `file` is borrowed, `name` ends with a NUL, and the kernel writes at most
    // `value.len()` bytes into `value`.
    let length = unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let Ok(length) = usize::try_from(length) else {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENODATA | libc::EOPNOTSUPP) => Ok(None),
            _ => Err(error),
        };
    };
    value.truncate(length);
    Ok(Some(value))
}

/// Gives an open file an extended attribute, or takes it away.
pub(crate) fn set_attribute(file: &File, name: &CStr, value: Option<&[u8]>) -> io::Result<()> {
    let result = match value {
        // SAFETY: the descriptor is open while `file` is borrowed, `name` ends with a NUL, and the kernel reads
        // `value.len()` bytes of `value` and writes none.
        Some(value) => unsafe {
            libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        },
        // SAFETY: the descriptor is open while `file` is borrowed, and `name` ends with a NUL.
        None => unsafe { libc::fremovexattr(file.as_raw_fd(), name.as_ptr()) },
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_does_not_exist_is_an_error() {
        // Beyond the largest pid_max of the kernel (2^22), so never a process.
        let error = pidfd_open(Pid::from_raw(1 << 23)).expect_err("no such process");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_descriptor_is_not_inherited() {
        let fd = pidfd_open(Pid::this()).expect("our own process exists");
        let flags = nix::fcntl::fcntl(&fd, nix::fcntl::FcntlArg::F_GETFD).expect("the descriptor is open");
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC, "descriptor {}", fd.as_raw_fd());
    }
}
