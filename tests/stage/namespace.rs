//! Network namespaces: the host under test, and the far end of its cables.
//!
//! In: `ip` commands. Out: nothing but their effect inside namespaces that vanish with their processes. The rule of
//! this file: [`enter`] comes before everything else, and nothing runs `ip` in a process that has not entered.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use super::Result;

/// Why no namespace could be made here, for people.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

/// Moves this process, which must have one thread, into a network namespace of its own, and brings `lo` up. Without
/// privileges that takes a user namespace in which the caller is root.
pub(crate) fn enter() -> std::result::Result<(), Refused> {
    let (uid, gid) = (geteuid(), getegid());
    let as_root = uid.is_root() && unshare(CloneFlags::CLONE_NEWNET).is_ok();
    if !as_root {
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
            .map_err(|errno| Refused(format!("unshare of a user and a network namespace: {errno}")))?;
        // The kernel refuses a group map while setgroups is possible (user_namespaces(7)).
        for (file, text) in [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("0 {uid} 1")),
            ("/proc/self/gid_map", format!("0 {gid} 1")),
        ] {
            fs::write(file, text).map_err(|error| Refused(format!("write to {file}: {error}")))?;
        }
    }
    // A namespace alone is not enough: AppArmor can take the capabilities away inside it, and containers mount
    // /proc/sys read-only. Find out here, not in the middle of a test.
    ip("link set lo up").map_err(|error| Refused(error.to_string()))?;
    ip("link add probe0 type veth peer name probe1").map_err(|error| Refused(error.to_string()))?;
    ip("link del probe0").map_err(|error| Refused(error.to_string()))?;
    sysctl("net.ipv4.conf.all.promote_secondaries=0").map_err(|error| Refused(error.to_string()))
}

/// What a fresh host starts from, whatever the machine's own settings are: they leak into new namespaces.
pub(crate) fn settle_defaults(duplicate_detection: bool) -> Result<()> {
    for scope in ["all", "default"] {
        sysctl(&format!("net.ipv4.conf.{scope}.promote_secondaries=0"))?;
        sysctl(&format!("net.ipv6.conf.{scope}.disable_ipv6=0"))?;
        sysctl(&format!("net.ipv6.conf.{scope}.accept_ra=0"))?;
        sysctl(&format!("net.ipv6.conf.{scope}.use_tempaddr=0"))?;
        sysctl(&format!("net.ipv6.conf.{scope}.accept_dad={}", u8::from(duplicate_detection)))?;
    }
    Ok(())
}

/// Runs one `ip` command; words are separated by white space. A route through an IPv6 gateway gets `-6`, which `ip`
/// does not conclude by itself.
pub(crate) fn ip(words: &str) -> Result<String> {
    let words: Vec<&str> = words.split_whitespace().collect();
    let family = if through_ipv6(&words) { &["-6"][..] } else { &[] };
    let output = ip_command().args(family).args(&words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run ip: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// Runs commands by as few processes as possible. All must succeed; `ip` stops at the first that does not.
pub(crate) fn ip_all(commands: &[String]) -> Result<()> {
    let is_ipv6 = |command: &String| through_ipv6(&command.split_whitespace().collect::<Vec<_>>());
    for run in commands.chunk_by(|one, next| is_ipv6(one) == is_ipv6(next)) {
        if let [command] = run {
            ip(command)?;
            continue;
        }
        let mut batch = ip_command();
        if run.first().is_some_and(is_ipv6) {
            batch.arg("-6");
        }
        let mut child =
            batch.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // A batch that fails early closes its input; its own message says more than EPIPE.
            let _ = input.write_all((run.join("\n") + "\n").as_bytes());
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(format!("ip -batch: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
        }
    }
    Ok(())
}

/// Sets a `key=value` of this namespace.
pub(crate) fn sysctl(setting: &str) -> Result<()> {
    let (key, value) = setting.split_once('=').ok_or_else(|| format!("not key=value: {setting}"))?;
    let path = format!("/proc/sys/{}", key.trim().replace('.', "/"));
    fs::write(&path, value.trim()).map_err(|error| format!("{path}: {error}").into())
}

/// The other end of the host's cables: a second namespace, held by a process that runs `ip` there on request.
#[derive(Debug)]
pub(crate) struct FarEnd {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl FarEnd {
    /// `command` must end in [`serve_far_end`].
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = process.stdin.take().ok_or("the far end has no stdin")?;
        let answers = BufReader::new(process.stdout.take().ok_or("the far end has no stdout")?);
        let mut far_end = Self { process, requests, answers };
        far_end.answer("start")?;
        Ok(far_end)
    }

    /// Process whose network namespace it is, for `ip link set DEV netns PID`.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Runs an `ip` command there.
    pub(crate) fn ip(&mut self, words: &str) -> Result<()> {
        self.request(&format!("ip {words}"))
    }

    /// Sets a sysctl there.
    pub(crate) fn sysctl(&mut self, setting: &str) -> Result<()> {
        self.request(&format!("sysctl {setting}"))
    }

    fn request(&mut self, line: &str) -> Result<()> {
        writeln!(self.requests, "{line}")?;
        self.requests.flush()?;
        self.answer(line)
    }

    fn answer(&mut self, request: &str) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim_end() {
            "ok" => Ok(()),
            problem => Err(format!("far end, {request}: {problem}").into()),
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        // It may have ended by itself; the zombie is reaped either way.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The process at the far end: a namespace of its own, then requests from stdin until it is closed. One answer per
/// line: `ok`, or what went wrong.
pub(crate) fn serve_far_end() -> ExitCode {
    let began = unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| format!("unshare: {errno}").into());
    let began = began.and_then(|()| ip("link set lo up").map(|_| ()));
    let failed = began.is_err();
    say(&began);
    if failed {
        return ExitCode::FAILURE;
    }
    for line in std::io::stdin().lines().map_while(std::io::Result::ok) {
        say(&match line.split_once(' ') {
            Some(("ip", words)) => ip(words).map(|_| ()),
            Some(("sysctl", setting)) => sysctl(setting),
            _ => Err(format!("unknown request: {line}").into()),
        });
    }
    ExitCode::SUCCESS
}

fn say(result: &Result<()>) {
    match result {
        Ok(()) => println!("ok"),
        Err(error) => println!("{}", error.to_string().replace('\n', " ")),
    }
}

/// `ip` lives in /sbin on many systems, which is not in everybody's PATH.
fn ip_command() -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new("ip");
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

/// Whether a route command names an IPv6 gateway or destination without saying `inet6` itself.
pub(crate) fn through_ipv6(words: &[&str]) -> bool {
    words.first() == Some(&"route") && !words.contains(&"inet6") && words.iter().any(|word| word.contains("::"))
}
