//! One external command as a child process that never blocks its owner.
//!
//! In: an absolute command and a deadline. Out: descriptors for poll(2), and at the end exit status and output, or why
//! there is none. The rule of this file: no shell, no inherited environment, bounded memory, bounded time, no zombie.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{self, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::sys;

/// What a child may say: a question about a hundred services fits, a child gone mad does not fill our memory.
const KEPT_OUTPUT: usize = 16 * 1024;
/// How much of it an error shows, from its end, where a program says what went wrong.
const SHOWN_OUTPUT: usize = 4 * 1024;
/// Bytes read at once.
const CHUNK: usize = 16 * 1024;
/// Chunks read per turn while the child runs: its talking must not keep the caller from its other work.
const CHUNKS_PER_TURN: usize = 4;
/// Chunks read when the child has ended. A pipe holds 64 KiB, at most 1 MiB (`/proc/sys/fs/pipe-max-size`); whatever
/// comes after that is another process writing on.
const CHUNKS_AT_EXIT: usize = 64;
/// How long a killed child may take to be gone. SIGKILL is immediate unless it sits in an uninterruptible wait (a dead
/// NFS server), which nobody can end.
const REAP_WITHIN: Duration = Duration::from_secs(1);

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Absolute path: never searched for.
    pub program: PathBuf,
    /// Its arguments, as they are: no shell looks at them.
    pub arguments: Vec<String>,
    /// Variables of our own environment that it keeps; all others are gone.
    pub keeps: &'static [&'static str],
}

/// A running command. Dropping it kills its process group.
#[derive(Debug)]
pub struct Child {
    command: Command,
    process: process::Child,
    pidfd: OwnedFd,
    stdout: Capture,
    stderr: Capture,
    started: Instant,
    deadline: Instant,
    life: Life,
}

/// What a command left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// The last 16 KiB of its standard output; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// The same of its standard error.
    pub stderr: String,
}

/// Why a command gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The path is relative, so what would run depends on where we are.
    #[error("{}: not an absolute path", program.display())]
    NotAbsolute {
        /// As given.
        program: PathBuf,
    },
    /// The kernel cannot tell us when a child ends.
    #[error("{command}: not started, because this kernel has no pidfd_open (Linux 5.3 or later is needed)")]
    NoPidfd {
        /// The command.
        command: Command,
    },
    /// The program could not be started.
    #[error("{command}: cannot be started")]
    Start {
        /// The command.
        command: Command,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// It did not end in time and was killed.
    #[error("{command}: killed, because it had not ended after {:.1} s{}", .after.as_secs_f32(), quoted(.said))]
    TimedOut {
        /// The command.
        command: Command,
        /// The time it had.
        after: Duration,
        /// The end of what it had said.
        said: String,
    },
    /// It ended and said that it failed.
    #[error("{command}: {status}{}", quoted(.said))]
    Failed {
        /// The command.
        command: Command,
        /// Exit status or signal.
        status: ExitStatus,
        /// The end of what it said.
        said: String,
    },
    /// Somebody else took its exit status.
    #[error("{command}: its exit status is lost")]
    Lost {
        /// The command.
        command: Command,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Running,
    /// SIGKILL was sent at that time.
    Killed(Instant),
    /// Its exit status was taken: the process id may belong to somebody else now.
    Reaped,
}

impl Child {
    /// Starts a command that may run until the deadline.
    ///
    /// # Errors
    /// When nothing runs afterwards: the path is relative, there is no such program, the kernel is too old.
    pub fn spawn(command: Command, deadline: Instant) -> Result<Self, ChildError> {
        // What is recognised in answers is their untranslated form.
        let plain = [("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C")];
        let mut environment: Vec<_> = plain.map(|(name, value)| (name.into(), value.into())).into();
        environment.extend(command.keeps.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))));
        Self::spawn_with(command, &environment, deadline)
    }

    /// As [`Child::spawn`], with an environment of exactly these variables. For programs that are promised one: hooks.
    ///
    /// # Errors
    /// The same.
    pub fn spawn_with(
        command: Command,
        environment: &[(OsString, OsString)],
        deadline: Instant,
    ) -> Result<Self, ChildError> {
        if !command.program.is_absolute() {
            return Err(ChildError::NotAbsolute { program: command.program });
        }
        // Asked before anything runs: a restart that is under way and that nobody watches is worse than none.
        if sys::pidfd_open(Pid::this()).is_err_and(|error| error.raw_os_error() == Some(Errno::ENOSYS as i32)) {
            return Err(ChildError::NoPidfd { command });
        }
        match start(&command, environment) {
            Ok((process, pidfd, stdout, stderr)) => {
                let started = Instant::now();
                Ok(Self { command, process, pidfd, stdout, stderr, started, deadline, life: Life::Running })
            }
            Err(source) => Err(ChildError::Start { command, source }),
        }
    }

    /// What to wait for: its end, and its output.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let outputs = [&self.stdout, &self.stderr].into_iter().filter_map(|capture| capture.pipe.as_ref());
        let readable = outputs.map(AsFd::as_fd).chain([self.pidfd.as_fd()]);
        readable.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect()
    }

    /// When to look even if no descriptor is ready.
    pub fn deadline(&self) -> Instant {
        match self.life {
            Life::Running => self.deadline,
            Life::Killed(at) => at + REAP_WITHIN,
            Life::Reaped => self.started,
        }
    }

    /// Takes what there is; never waits. `Some` once, when it is over.
    pub fn advance(&mut self) -> Option<Result<Output, ChildError>> {
        // The exit is asked for first: all that the child itself wrote is in the pipes by then, so one drain gets it.
        // End of file is not waited for, since any grandchild may hold the pipe open.
        let exit = self.process.try_wait();
        let chunks = if matches!(exit, Ok(None)) { CHUNKS_PER_TURN } else { CHUNKS_AT_EXIT };
        self.stdout.read(chunks);
        self.stderr.read(chunks);
        let now = Instant::now();
        match (exit, self.life) {
            (Ok(Some(status)), life) => {
                self.life = Life::Reaped;
                let ours = matches!(life, Life::Killed(_)) && status.signal() == Some(Signal::SIGKILL as i32);
                Some(if ours { Err(self.timed_out()) } else { Ok(self.output(status)) })
            }
            (Ok(None), Life::Running) if now >= self.deadline => {
                self.kill();
                None
            }
            // Not even SIGKILL ends it. It is left behind rather than waited for.
            (Ok(None), Life::Killed(at)) if now >= at + REAP_WITHIN => Some(Err(self.timed_out())),
            (Ok(None), _) => None,
            (Err(source), _) => {
                self.life = Life::Reaped;
                Some(Err(ChildError::Lost { command: self.command.clone(), source }))
            }
        }
    }

    fn timed_out(&self) -> ChildError {
        ChildError::TimedOut {
            command: self.command.clone(),
            after: self.deadline.duration_since(self.started),
            said: said(&self.stdout.text(), &self.stderr.text()),
        }
    }

    fn output(&self, status: ExitStatus) -> Output {
        Output { status, stdout: self.stdout.text(), stderr: self.stderr.text() }
    }

    /// SIGKILL for the child and all it started, except what made a group of its own.
    fn kill(&mut self) {
        if self.life == Life::Running {
            // The only error is that the group is gone already. It cannot be another's: the leader is not reaped yet,
            // so the kernel gives its number to nobody.
            let _ = killpg(pid_of(&self.process), Signal::SIGKILL);
            self.life = Life::Killed(Instant::now());
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.life == Life::Reaped {
            return;
        }
        self.kill();
        // Milliseconds, unless it sits in an uninterruptible wait.
        let mut ended = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        let wait = u16::try_from(REAP_WITHIN.as_millis()).map_or(PollTimeout::MAX, PollTimeout::from);
        while poll(&mut ended, wait) == Err(Errno::EINTR) {}
        let _ = self.process.try_wait();
    }
}

impl Output {
    /// The output of a command that says it succeeded.
    ///
    /// # Errors
    /// [`ChildError::Failed`] when the exit status is not zero.
    pub fn success(self, command: &Command) -> Result<Self, ChildError> {
        if self.status.success() {
            return Ok(self);
        }
        let said = said(&self.stdout, &self.stderr);
        Err(ChildError::Failed { command: command.clone(), status: self.status, said })
    }
}

/// As one would type it, which is also how a log line is understood.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program.display())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
    }
}

type Started = (process::Child, OwnedFd, Capture, Capture);

fn start(command: &Command, environment: &[(OsString, OsString)]) -> io::Result<Started> {
    let mut process = process::Command::new(&command.program);
    process
        .args(&command.arguments)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own: the deadline reaches what it started, and a Ctrl-C at our terminal does not cut it off.
        .process_group(0);
    sys::start_with_no_signal_blocked(&mut process);
    let mut process = process.spawn()?;
    match watch(&mut process) {
        Ok((pidfd, stdout, stderr)) => Ok((process, pidfd, stdout, stderr)),
        Err(error) => {
            // Out of descriptors, most likely. What cannot be watched must not run on.
            let _ = killpg(pid_of(&process), Signal::SIGKILL);
            let _ = process.wait();
            Err(error)
        }
    }
}

fn watch(process: &mut process::Child) -> io::Result<(OwnedFd, Capture, Capture)> {
    let pidfd = sys::pidfd_open(pid_of(process))?;
    let stdout = Capture::new(process.stdout.take().map(OwnedFd::from))?;
    let stderr = Capture::new(process.stderr.take().map(OwnedFd::from))?;
    Ok((pidfd, stdout, stderr))
}

fn pid_of(process: &process::Child) -> Pid {
    Pid::from_raw(i32::try_from(process.id()).expect("the kernel's process ids are positive ints"))
}

/// The reading end of a pipe, and the end of what came through it.
#[derive(Debug)]
struct Capture {
    /// `None` after end of file: a closed pipe is always ready, and poll(2) would never sleep again.
    pipe: Option<File>,
    tail: VecDeque<u8>,
}

impl Capture {
    fn new(pipe: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            // The flag belongs to our end alone; the child's writes still block, as programs expect.
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self { pipe: pipe.map(File::from), tail: VecDeque::new() })
    }

    fn read(&mut self, chunks: usize) {
        let mut chunk = [0; CHUNK];
        for _ in 0..chunks {
            let Some(pipe) = &mut self.pipe else { return };
            match pipe.read(&mut chunk) {
                Ok(0) => self.pipe = None,
                Ok(len) => {
                    self.tail.extend(&chunk[..len]);
                    let surplus = self.tail.len().saturating_sub(KEPT_OUTPUT);
                    self.tail.drain(..surplus);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing that a pipe can recover from; the exit status is still to come.
                Err(_) => self.pipe = None,
            }
        }
    }

    fn text(&self) -> String {
        let (front, back) = self.tail.as_slices();
        String::from_utf8_lossy(&[front, back].concat()).into_owned()
    }
}

/// What a command said, for people: its errors, or its output where there are none.
fn said(stdout: &str, stderr: &str) -> String {
    let text = if stderr.trim().is_empty() { stdout } else { stderr };
    let text = text.trim();
    let surplus = text.len().saturating_sub(SHOWN_OUTPUT);
    let from = (surplus..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    // One line, and nothing that could drive a terminal.
    let words: Vec<&str> = text[from..].split_whitespace().collect();
    words.join(" ").chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn quoted(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

#[cfg(test)]
mod tests;
