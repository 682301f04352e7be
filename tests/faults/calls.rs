//! Every system call of a write path: killed at it, and refused by it.
//!
//! In: a command in a prepared tree, and the judge of what is left ([`Written`]). Out: one line of counts. The server's
//! reissue is played here, other commands beside this file.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bed::{Bed, Files, Host, all, answered, text};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "calls::killed-at-every-one", play: killed, patience: 170 },
    Case { name: "calls::killed-while-a-new-key-is-written", play: killed_with_new_key, patience: 120 },
    Case { name: "calls::refused-at-every-one", play: refused, patience: 170 },
];

/// Calls that change something on the disk without writing to a file.
const CHANGING: [&str; 5] = ["ftruncate", "flock", "mkdir", "unlinkat", "fremovexattr"];
/// Calls that put something on the disk, and what a disk may answer.
pub(crate) const WRITING: [&str; 8] =
    ["openat", "write", "fsync", "fchmod", "fchown", "fsetxattr", "renameat", "renameat2"];
const ERRORS: [&str; 5] = ["ENOSPC", "EIO", "EROFS", "EACCES", "EPERM"];

/// One call of a run: its name, and the how manieth of this name it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    name: String,
    number: usize,
    /// It puts something on the disk, or takes it away.
    changes: bool,
    line: String,
}

/// A command whose write path is broken.
pub(crate) trait Written: Sync {
    fn bed(&self) -> &Bed;

    fn arguments(&self) -> &'static [&'static str] {
        &["check", "--apply"]
    }

    /// What it does when nothing disturbs it.
    fn is_done(&self, host: &Host) -> Result<()>;

    /// What a fault left is whole, and heals. `turn` counts the faults: a judge with two ways to heal takes turns.
    fn judge(&self, host: &Host, turn: usize) -> Result<()>;
}

/// One call to break, and how.
#[derive(Debug)]
struct Fault<'a> {
    turn: usize,
    how: String,
    call: &'a Call,
}

#[derive(Debug, Default)]
struct Tally {
    hit: AtomicUsize,
    survived: AtomicUsize,
    succeeded: AtomicUsize,
}

pub(crate) fn has_strace() -> bool {
    Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success())
}

/// The calls from the first open of a temporary file to the last fsync: all of them until the services' turn comes, and
/// behind it, where only the state is written, those that change something on the disk.
pub(crate) fn write_path(path: &dyn Written) -> Result<Vec<Call>> {
    if !has_strace() {
        return skip("strace not found");
    }
    let host = path.bed().host()?;
    let log = host.root.join("state/strace");
    let output = host.run(&["strace", "-qq", "-o", log.to_str().ok_or("a path of this test")?], path.arguments())?;
    path.is_done(&host).map_err(|error| format!("{error}: {}", text(&output)))?;
    let log = fs::read_to_string(log)?;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains('(')).collect();
    let begins = |line: &&str| line.starts_with("openat") && line.contains(".ipguard-") && line.contains("O_EXCL");
    let first = lines.iter().position(begins).ok_or("no temporary file was opened")?;
    let last = lines.iter().rposition(|line| line.starts_with("fsync")).ok_or("there was no fsync")?;
    let is_start = |line: &&str| ["clone", "vfork", "fork"].iter().any(|name| line.starts_with(name));
    let services = lines.iter().skip(first).position(is_start).map_or(last, |at| first + at);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut calls = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let name = line.split('(').next().unwrap_or_default();
        // Signals and the end are lines of another form.
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let number = counts.entry(name).or_default();
        *number += 1;
        let writes = WRITING.contains(&name) || CHANGING.contains(&name);
        let changes = writes && !line.contains("O_RDONLY");
        if (first..=services).contains(&at) || (services..=last).contains(&at) && changes {
            let line = line.chars().take(160).collect();
            calls.push(Call { name: name.to_owned(), number: *number, changes, line });
        }
    }
    Ok(calls)
}

/// Kills at each of these calls; of those that change nothing only at every second one, and so on.
pub(crate) fn kill(what: &str, path: &dyn Written, calls: &[Call], every: usize) -> Result<()> {
    let (changing, others): (Vec<&Call>, Vec<&Call>) = calls.iter().partition(|call| call.changes);
    let faults: Vec<Fault<'_>> = changing
        .into_iter()
        .chain(others.into_iter().step_by(every))
        .enumerate()
        .map(|(turn, call)| Fault { turn, how: "signal=SIGKILL".to_owned(), call })
        .collect();
    let tally = strike(path, &faults)?;
    let rest = if every > 1 { format!(", each that changes something and 1 in {every} others") } else { String::new() };
    let of = format!("system calls ({}{rest})", calls.len());
    println!("{what} killed: {}", tally.summarise(faults.len(), &of)?);
    Ok(())
}

/// Lets each of these calls fail in every way, or in every second one and so on, if it is of one of these kinds.
pub(crate) fn refuse(what: &str, path: &dyn Written, calls: &[Call], kinds: &[&str], every: usize) -> Result<()> {
    let possible: Vec<(&Call, &str)> = calls
        .iter()
        .filter(|call| kinds.contains(&call.name.as_str()))
        .flat_map(|call| ERRORS.map(|error| (call, error)))
        .collect();
    let faults: Vec<Fault<'_>> = possible
        .iter()
        .step_by(every)
        .enumerate()
        .map(|(turn, (call, error))| Fault { turn, how: format!("error={error}"), call })
        .collect();
    let tally = strike(path, &faults)?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    faults.iter().for_each(|fault| *counts.entry(&fault.call.name).or_default() += 1);
    let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let rest = if every > 1 { format!(", 1 in {every}") } else { String::new() };
    let summary = tally.summarise(faults.len(), &format!("refusals ({}{rest})", possible.len()))?;
    let succeeded = tally.succeeded.into_inner();
    println!(
        "{what} refused ({}): {}; {succeeded} succeeded all the same, {} said why; {summary}",
        ERRORS.join(", "),
        counts.join(", "),
        faults.len() - succeeded
    );
    Ok(())
}

/// Each fault in a copy of its own. Children are not followed: it is ipguard that is to be hit.
fn strike(path: &dyn Written, faults: &[Fault<'_>]) -> Result<Tally> {
    let tally = Tally::default();
    all(faults, |Fault { turn, how, call }| {
        let host = path.bed().host()?;
        let log = host.root.join("state/strace");
        let trace = format!("trace={}", call.name);
        let inject = format!("--inject={}:{how}:when={}", call.name, call.number);
        let strace = ["strace", "-qq", "-o", log.to_str().ok_or("a path of this test")?, "-e", &trace, &inject];
        let output = host.run(&strace, path.arguments())?;
        // A run with fewer calls than the traced one is not hit. strace ends as the program did.
        let killed = output.status.code().is_none();
        let hit = killed || fs::read_to_string(&log)?.contains("(INJECTED)");
        tally.hit.fetch_add(usize::from(hit), Ordering::Relaxed);
        if !killed {
            answered(&output)?;
        }
        path.judge(&host, *turn).map_err(|error| format!("{error}\nthe broken run: {}", text(&output)))?;
        tally.survived.fetch_add(usize::from(hit), Ordering::Relaxed);
        tally.succeeded.fetch_add(usize::from(output.status.success()), Ordering::Relaxed);
        Ok(())
    })?;
    Ok(tally)
}

impl Tally {
    /// All that was hit was survived, and nearly all was hit: polls and the like vary by one or two between runs.
    fn summarise(&self, planned: usize, of: &str) -> Result<String> {
        let (hit, survived) = (self.hit.load(Ordering::Relaxed), self.survived.load(Ordering::Relaxed));
        if survived != hit {
            return Err(format!("only {survived} of {hit} were survived").into());
        }
        if hit == 0 || hit * 100 < planned * 97 {
            return Err(format!("only {hit} of {planned} were hit").into());
        }
        Ok(format!("{hit} of {planned} {of} were hit; {survived} of {hit} left whole pairs and healed"))
    }
}

/// The server's reissue, with the key that it has.
struct Reissue(Bed);

impl Written for Reissue {
    fn bed(&self) -> &Bed {
        &self.0
    }

    fn is_done(&self, host: &Host) -> Result<()> {
        host.is_done()
    }

    fn judge(&self, host: &Host, _: usize) -> Result<()> {
        self.0.old_or_new(host)?;
        self.0.heals(host)
    }
}

/// The server's reissue where there is no key, and so no pair to keep.
struct NewKey(Bed);

impl Written for NewKey {
    fn bed(&self) -> &Bed {
        &self.0
    }

    fn is_done(&self, host: &Host) -> Result<()> {
        host.is_done()
    }

    /// Nothing is ever half there, and the key that was written stays.
    fn judge(&self, host: &Host, _: usize) -> Result<()> {
        let now = Files::of(&host.root);
        if now.certificate != self.0.old.certificate {
            host.is_done()?;
        }
        if now.key.as_ref().is_some_and(|key| !key.ends_with(b"-----END PRIVATE KEY-----\n")) {
            return Err("half a key".into());
        }
        self.0.request_is_whole(&now)?;
        self.0.heals(host)?;
        if now.key.is_some() && Files::of(&host.root).key != now.key {
            return Err("the key was made twice".into());
        }
        Ok(())
    }
}

fn killed(_: &Timeline) -> Result<()> {
    let path = Reissue(Bed::new(|_| Ok(()))?);
    kill("reissue", &path, &write_path(&path)?, 1)
}

fn killed_with_new_key(_: &Timeline) -> Result<()> {
    let path = NewKey(Bed::new(|tree| Ok(fs::remove_file(tree.data("certs/server.key"))?))?);
    // What is the same as without a new key has been tried with the old one.
    let mut calls = write_path(&path)?;
    calls.retain(|call| WRITING.contains(&call.name.as_str()) || CHANGING.contains(&call.name.as_str()));
    kill("reissue with a new key", &path, &calls, 1)
}

fn refused(_: &Timeline) -> Result<()> {
    let path = Reissue(Bed::new(|_| Ok(()))?);
    refuse("reissue", &path, &write_path(&path)?, &WRITING, 1)
}
