//! Runs ipguard itself: the daemon until it is told to stop, and the one-shot commands.
//!
//! In: a program and the fake root. Out: what it printed and how it ended. What this file relies on is the stable
//! command line, `READY=1` to `NOTIFY_SOCKET` or a line with "first pass" on stderr after the first pass, and the
//! end by SIGTERM with status 0.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::Result;
use super::timeline::Timeline;

/// Where the line of the first pass is looked for.
const FIRST_PASS: &str = "first pass";

/// How to run ipguard on one tree.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// The program.
    pub(crate) program: PathBuf,
    /// What its environment contains besides a PATH.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The fake root.
    pub(crate) root: PathBuf,
    /// `--log-level` of the daemon.
    pub(crate) log_level: &'static str,
}

/// What a one-shot command printed.
#[derive(Debug)]
pub(crate) struct Printed {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Guard {
    /// Where the configuration is.
    pub(crate) fn config(&self) -> PathBuf {
        self.root.join("etc/ipguard/ipguard.toml")
    }

    /// Starts the daemon; its stderr goes to the timeline.
    pub(crate) fn run(&self, timeline: &Timeline) -> Result<Daemon> {
        let path = self.root.join("run/notify");
        let notify = UnixDatagram::bind(&path)?;
        notify.set_nonblocking(true)?;
        let mut child = self
            .command(&["run", "--log-level", self.log_level])
            .env("NOTIFY_SOCKET", &path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        timeline.note("ipguard", format!("run, process {}", child.id()));
        let stderr = child.stderr.take().ok_or("the daemon has no stderr")?;
        let logged = Arc::new(AtomicBool::new(false));
        let (seen, notes) = (Arc::clone(&logged), timeline.clone());
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(std::io::Result::ok) {
                if line.contains(FIRST_PASS) {
                    seen.store(true, Ordering::Relaxed);
                }
                notes.note("ipguard", line);
            }
        });
        Ok(Daemon {
            child,
            notify,
            logged,
            reader: Some(reader),
            timeline: timeline.clone(),
            ready: false,
            status: String::new(),
        })
    }

    /// Runs a command to its end, within `patience`.
    pub(crate) fn once(&self, arguments: &[&str], patience: Duration, timeline: &Timeline) -> Result<Printed> {
        let mut child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdout = child.stdout.take().ok_or("no stdout")?;
        let mut stderr = child.stderr.take().ok_or("no stderr")?;
        let stdout = thread::spawn(move || std::io::read_to_string(&mut stdout));
        let stderr = thread::spawn(move || std::io::read_to_string(&mut stderr));
        let status = wait(&mut child, patience)?;
        let (stdout, stderr) = (collect(stdout)?, collect(stderr)?);
        let line = arguments.join(" ");
        timeline.note("ipguard", format!("{line}: {status}\n{}{}", stdout.trim_end(), indented(&stderr)));
        Ok(Printed { status, stdout, stderr })
    }

    /// A command that prints a JSON document of version 1 and succeeds.
    pub(crate) fn document(&self, arguments: &[&str], patience: Duration, timeline: &Timeline) -> Result<Value> {
        let printed = self.once(arguments, patience, timeline)?;
        let line = arguments.join(" ");
        if !printed.status.success() {
            return Err(format!("{line}: {}{}", printed.status, indented(&printed.stderr)).into());
        }
        let document: Value =
            serde_json::from_str(&printed.stdout).map_err(|error| format!("{line}: not JSON: {error}"))?;
        if document["version"] != 1 {
            return Err(format!("{line}: the document's version is {}", document["version"]).into());
        }
        Ok(document)
    }

    /// A clean environment: nothing of the machine's, MicroK8s' snap variables above all, may leak in.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("RUST_BACKTRACE", "1");
        command.envs(self.environment.iter().cloned());
        command.args(arguments).arg("--root").arg(&self.root).arg("--config").arg(self.config());
        command.stdin(Stdio::null());
        command
    }
}

/// A running daemon; killed when it is dropped without having been stopped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    notify: UnixDatagram,
    logged: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
    timeline: Timeline,
    ready: bool,
    status: String,
}

impl Daemon {
    /// Waits until the first pass is done.
    pub(crate) fn first_pass(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while !self.is_ready() {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("the daemon ended before its first pass: {status}").into());
            }
            if Instant::now() > deadline {
                return Err(format!("no first pass within {patience:?}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What it tells the service manager in a span of time, and when.
    pub(crate) fn heard_over(&mut self, span: Duration) -> Result<Vec<(Instant, String)>> {
        let mut message = [0; 4096];
        // What was said before is waiting in the socket.
        while self.notify.recv(&mut message).is_ok() {}
        let (began, mut heard) = (Instant::now(), Vec::new());
        while began.elapsed() < span {
            self.check_alive()?;
            while let Ok(length) = self.notify.recv(&mut message) {
                heard.push((Instant::now(), String::from_utf8_lossy(&message[..length]).into_owned()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(heard)
    }

    /// What it has told the service manager since this was asked last.
    pub(crate) fn hears(&mut self) -> Result<Vec<String>> {
        self.check_alive()?;
        let mut heard = Vec::new();
        while let Some(text) = self.hear() {
            heard.push(text);
        }
        Ok(heard)
    }

    /// The status line that it has told last.
    pub(crate) fn status(&mut self) -> Result<&str> {
        self.hears()?;
        Ok(&self.status)
    }

    fn hear(&mut self) -> Option<String> {
        let mut message = [0; 4096];
        let length = self.notify.recv(&mut message).ok()?;
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        self.timeline.note("notify", &text);
        text.lines().filter_map(|line| line.strip_prefix("STATUS=")).for_each(|line| line.clone_into(&mut self.status));
        Some(text)
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// An error when it runs no more.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(format!("the daemon ended by itself: {status}").into()),
            None => Ok(()),
        }
    }

    /// SIGTERM; the status it ends with.
    pub(crate) fn stop(mut self, patience: Duration) -> Result<ExitStatus> {
        self.check_alive()?;
        kill(self.pid(), Signal::SIGTERM)?;
        let status = wait(&mut self.child, patience)?;
        self.timeline.note("ipguard", format!("stopped: {status}"));
        Ok(status)
    }

    fn is_ready(&mut self) -> bool {
        while let Some(text) = self.hear() {
            self.ready |= text.lines().any(|line| line == "READY=1");
        }
        self.ready || self.logged.load(Ordering::Relaxed)
    }

    /// SIGKILL: nothing can be finished or tidied up.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        let status = self.child.wait()?;
        self.timeline.note("ipguard", format!("killed: {status}"));
        Ok(())
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids are positive ints"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // After `stop` both find nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            // It ends with the pipe; a panic there has already been printed.
            let _ = reader.join();
        }
    }
}

fn wait(child: &mut Child, patience: Duration) -> Result<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Err(format!("no end within {patience:?}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(reader: JoinHandle<std::io::Result<String>>) -> Result<String> {
    Ok(reader.join().map_err(|_| "a reader panicked")??)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("\n  {line}")).collect()
}
