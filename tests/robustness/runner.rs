//! Runs cases side by side, each in a child process, and reports as libtest does.

use std::collections::VecDeque;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::stage::timeline::Timeline;
use crate::stage::{Failure, Result, namespace};

/// Something to try.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Plays it; the namespace has been entered.
    pub(crate) play: fn(&Timeline) -> Result<()>,
    /// Seconds it may take on a busy machine.
    pub(crate) patience: u64,
}

/// A case that cannot be tried here, and why.
#[derive(Debug)]
pub(crate) struct Skipped(pub(crate) String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skipped {}

pub(crate) fn skip<T>(reason: impl Into<String>) -> Result<T> {
    Err(Box::new(Skipped(reason.into())))
}

/// Exit status of a child that skipped its case.
const SKIPPED: u8 = 77;
/// They sleep most of the time; more would make two cores late.
const JOBS: usize = 7;

/// libtest's arguments, as far as they mean something here.
#[derive(Debug, Default)]
pub(crate) struct Options {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    ignored_only: bool,
    jobs: Option<usize>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let (name, joined) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            let mut value =
                || joined.clone().or_else(|| words.next().cloned()).ok_or_else(|| format!("{name} needs a value"));
            match name {
                "--exact" => options.exact = true,
                "--list" => options.list = true,
                "--ignored" => options.ignored_only = true,
                "--skip" => options.skips.push(value()?),
                "--test-threads" => options.jobs = Some(value()?.parse()?),
                "--format" | "--color" | "--logfile" | "-Z" => _ = value()?,
                "--nocapture" | "--no-capture" | "--quiet" | "-q" | "--include-ignored" | "--show-output"
                | "--test" => {}
                flag if flag.starts_with('-') => return Err(format!("unknown argument: {flag}").into()),
                _ => options.filters.push(word.clone()),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| if self.exact { name == filter } else { name.contains(filter.as_str()) };
        // Nothing is ignored beforehand, so `--ignored` alone selects nothing.
        !self.ignored_only
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}

#[derive(Debug)]
enum Ending {
    /// With what it printed.
    Passed(Duration, String),
    Failed(String),
    Ignored(String),
}

/// Runs what is wanted; whether nothing failed.
pub(crate) fn run(all: &[&'static Case], options: &Options) -> Result<bool> {
    let mut wanted: Vec<&Case> = all.iter().copied().filter(|case| options.wants(case.name)).collect();
    if options.list {
        wanted.iter().for_each(|case| println!("{}: test", case.name));
        return Ok(true);
    }
    // The longest first, so that none of them is left over at the end.
    wanted.sort_by_key(|case| std::cmp::Reverse(case.patience));
    let count = wanted.len();
    println!("\nrunning {count} tests");
    let began = Instant::now();
    let queue = Mutex::new(VecDeque::from(wanted));
    let endings = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for _ in 0..options.jobs.unwrap_or(JOBS).clamp(1, 64) {
            scope.spawn(|| {
                std::iter::from_fn(next).for_each(|case| {
                    let ending = supervise(case);
                    let mut endings = endings.lock().unwrap_or_else(PoisonError::into_inner);
                    announce(case, &ending);
                    endings.push((case.name, ending));
                });
            });
        }
    });
    let mut endings = endings.into_inner().unwrap_or_else(PoisonError::into_inner);
    endings.sort_by_key(|(name, _)| *name);
    Ok(summarise(&endings, all.len() - count, began.elapsed()))
}

/// One line, printed at once: a reader may be watching.
fn announce(case: &Case, ending: &Ending) {
    let mut out = std::io::stdout().lock();
    // A closed stdout ends the run soon enough by itself.
    let _ = match ending {
        Ending::Passed(took, said) => {
            let said: String = said.lines().map(|line| format!("\n    {line}")).collect();
            writeln!(out, "test {} ... ok ({:.1} s){said}", case.name, took.as_secs_f32())
        }
        Ending::Failed(_) => writeln!(out, "test {} ... FAILED", case.name),
        Ending::Ignored(reason) => writeln!(out, "test {} ... ignored, skipped: {reason}", case.name),
    };
    let _ = out.flush();
}

fn summarise(endings: &[(&str, Ending)], filtered_out: usize, took: Duration) -> bool {
    let failed: Vec<(&str, &String)> = endings
        .iter()
        .filter_map(|(name, ending)| if let Ending::Failed(text) = ending { Some((*name, text)) } else { None })
        .collect();
    if !failed.is_empty() {
        println!("\nfailures:\n");
        failed.iter().for_each(|(name, text)| println!("---- {name} ----\n{text}"));
        println!("\nfailures:");
        failed.iter().for_each(|(name, _)| println!("    {name}"));
    }
    let ignored = endings.iter().filter(|(_, ending)| matches!(ending, Ending::Ignored(_))).count();
    println!(
        "\ntest result: {}. {} passed; {} failed; {ignored} ignored; 0 measured; {filtered_out} filtered out; \
         finished in {:.2}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        endings.len() - failed.len() - ignored,
        failed.len(),
        took.as_secs_f64()
    );
    failed.is_empty()
}

/// Runs a case in a child and waits for it.
fn supervise(case: &Case) -> Ending {
    let began = Instant::now();
    let child = Command::new("/proc/self/exe")
        .args(["--case", case.name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The whole family ends with it, whatever happens.
        .process_group(0)
        .spawn();
    let patience = Duration::from_secs(case.patience);
    match child.map_err(Failure::from).and_then(|child| wait(child, patience)) {
        Ok((Some(0), output)) => Ending::Passed(began.elapsed(), output),
        Ok((Some(SKIPPED), output)) => Ending::Ignored(output.trim().to_owned()),
        Ok((_, output)) => Ending::Failed(output),
        Err(error) => Ending::Failed(error.to_string()),
    }
}

fn wait(mut child: Child, patience: Duration) -> Result<(Option<u8>, String)> {
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let mut stderr = child.stderr.take().ok_or("no stderr")?;
    let read = |stream: &mut dyn Read| {
        let mut text = String::new();
        // Whatever could be read is shown.
        let _ = stream.read_to_string(&mut text);
        text
    };
    let errors = thread::spawn(move || read(&mut stderr));
    let output = thread::spawn(move || read(&mut stdout));
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > deadline {
            break None;
        }
        thread::sleep(Duration::from_millis(20));
    };
    // Whoever of the family is left; mostly nobody, which is ESRCH.
    let _ = killpg(group, Signal::SIGKILL);
    child.wait()?;
    let mut text = output.join().map_err(|_| "a reader panicked")?;
    text += &errors.join().map_err(|_| "a reader panicked")?;
    match status {
        Some(status) => Ok((status.code().and_then(|code| u8::try_from(code).ok()), text)),
        None => Err(format!("no end within {patience:?}\n{text}").into()),
    }
}

/// The child: plays one case.
pub(crate) fn child(all: &[&'static Case], name: &str) -> ExitCode {
    let Some(case) = all.iter().find(|case| case.name == name) else {
        eprintln!("there is no case {name}");
        return ExitCode::from(64);
    };
    if let Err(refused) = namespace::enter() {
        println!("{}", refused.0);
        return ExitCode::from(SKIPPED);
    }
    let timeline = Timeline::start();
    let ended = (case.play)(&timeline);
    if std::env::var_os("IPGUARD_SHOW_TIMELINE").is_some() {
        eprintln!("{}", timeline.render());
    }
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<Skipped>() => {
            println!("{error}");
            ExitCode::from(SKIPPED)
        }
        Err(error) => {
            println!("{}\n    {error}", timeline.render());
            ExitCode::FAILURE
        }
    }
}
