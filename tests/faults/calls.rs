//! Every system call of the write path: killed at it, and refused by it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bed::{Bed, Files, all, answered, text};
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
const WRITING: [&str; 8] = ["openat", "write", "fsync", "fchmod", "fchown", "fsetxattr", "renameat", "renameat2"];
const ERRORS: [&str; 5] = ["ENOSPC", "EIO", "EROFS", "EACCES", "EPERM"];

/// One call of a run: its name, and the how manieth of this name it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Call {
    name: String,
    number: usize,
    line: String,
}

/// The calls from the first open of a temporary file to the last fsync: all of them until the services' turn comes, and
/// behind it, where only the state is written, those that change something on the disk.
fn write_path(bed: &Bed) -> Result<Vec<Call>> {
    if !Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("strace not found");
    }
    let host = bed.host()?;
    let log = host.root.join("state/strace");
    let output = host.apply(&["strace", "-qq", "-o", log.to_str().ok_or("a path of this test")?])?;
    host.is_done().map_err(|error| format!("{error}: {}", text(&output)))?;
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
        let changes = WRITING.contains(&name) || CHANGING.contains(&name);
        if (first..=services).contains(&at) || (services..=last).contains(&at) && changes && !line.contains("O_RDONLY")
        {
            let line = line.chars().take(160).collect();
            calls.push(Call { name: name.to_owned(), number: *number, line });
        }
    }
    Ok(calls)
}

/// The arguments of strace for one injection. Children are not followed: it is ipguard that is to be hit.
fn injected<'a>(trace: &'a str, inject: &'a str) -> [&'a str; 7] {
    ["strace", "-qq", "-o", "/dev/null", "-e", trace, inject]
}

fn kill_at(bed: &Bed, call: &Call, killed: &AtomicUsize) -> Result<crate::bed::Host> {
    let host = bed.host()?;
    let trace = format!("trace={}", call.name);
    let inject = format!("--inject={}:signal=SIGKILL:when={}", call.name, call.number);
    let output = host.apply(&injected(&trace, &inject))?;
    // strace ends as the program did; a run with fewer calls than the traced one was not hit.
    killed.fetch_add(usize::from(output.status.code().is_none()), Ordering::Relaxed);
    Ok(host)
}

fn killed(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|_| Ok(()))?;
    let calls = write_path(&bed)?;
    let killed = AtomicUsize::new(0);
    all(&calls, |call| {
        let host = kill_at(&bed, call, &killed)?;
        bed.old_or_new(&host)?;
        bed.heals(&host)
    })?;
    summarise("killed", killed.into_inner(), &calls)
}

/// Where there was no key, there is no pair to keep; but nothing is ever half there, and the key that was written stays.
fn killed_with_new_key(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|tree| Ok(fs::remove_file(tree.data("certs/server.key"))?))?;
    // What is the same as without a new key has been tried with the old one.
    let calls: Vec<Call> = write_path(&bed)?
        .into_iter()
        .filter(|call| WRITING.contains(&call.name.as_str()) || CHANGING.contains(&call.name.as_str()))
        .collect();
    let killed = AtomicUsize::new(0);
    all(&calls, |call| {
        let host = kill_at(&bed, call, &killed)?;
        let now = Files::of(&host.root);
        if now.certificate != bed.old.certificate {
            host.is_done()?;
        }
        if now.key.as_ref().is_some_and(|key| !key.ends_with(b"-----END PRIVATE KEY-----\n")) {
            return Err("half a key".into());
        }
        bed.request_is_whole(&now)?;
        bed.heals(&host)?;
        if now.key.is_some() && Files::of(&host.root).key != now.key {
            return Err("the key was made twice".into());
        }
        Ok(())
    })?;
    summarise("killed with a new key", killed.into_inner(), &calls)
}

fn summarise(what: &str, killed: usize, calls: &[Call]) -> Result<()> {
    let count = calls.len();
    println!("{what}: {killed} of {count} system calls; {count} of {count} left a whole pair and healed");
    // Polls and the like vary by one or two between runs.
    if killed * 10 < count * 9 { Err(format!("only {killed} of {count} were hit").into()) } else { Ok(()) }
}

fn refused(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|_| Ok(()))?;
    let calls = write_path(&bed)?;
    let faults: Vec<(&str, &Call)> = calls
        .iter()
        .filter(|call| WRITING.contains(&call.name.as_str()))
        .flat_map(|call| ERRORS.iter().map(move |error| (*error, call)))
        .collect();
    let answers = [AtomicUsize::new(0), AtomicUsize::new(0)];
    all(&faults, |(error, call)| {
        let host = bed.host()?;
        let trace = format!("trace={}", call.name);
        let inject = format!("--inject={}:error={error}:when={}", call.name, call.number);
        let output = host.apply(&injected(&trace, &inject))?;
        answered(&output)?;
        answers[usize::from(!output.status.success())].fetch_add(1, Ordering::Relaxed);
        bed.old_or_new(&host).map_err(|error| format!("{error}: {}", text(&output)))?;
        bed.heals(&host)
    })?;
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    calls.iter().filter(|call| WRITING.contains(&call.name.as_str())).for_each(|call| {
        *kinds.entry(&call.name).or_default() += ERRORS.len();
    });
    let kinds: Vec<String> = kinds.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let count = faults.len();
    let [done, failed] = answers.map(AtomicUsize::into_inner);
    println!(
        "refused ({}): {}; {done} succeeded all the same, {failed} said why; {count} of {count} left a whole pair and \
         healed",
        ERRORS.join(", "),
        kinds.join(", ")
    );
    Ok(())
}
