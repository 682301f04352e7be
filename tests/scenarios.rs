//! Every file of `fixtures/scenarios` as a test of the real binary, in a private network namespace.
//!
//! In: scenarios, and libtest's usual arguments (a name filter, `--exact`, `--list`, `--test-threads`). Out: libtest's
//! usual lines. The rule of this file: each scenario gets a process of its own, this program again, because a
//! namespace is entered by a process with one thread; the parent only waits and prints.

#[path = "scenarios/expect.rs"]
mod expect;
#[path = "scenarios/play.rs"]
mod play;
#[path = "scenarios/rehearsal.rs"]
mod rehearsal;
#[path = "scenarios/scenario.rs"]
mod scenario;
mod stage;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use play::{Mode, Scale};
use scenario::{Modes, Scenario};
use stage::namespace;
use stage::timeline::Timeline;

/// Scenarios that fail for a reason that is known and has its place in a later change: id and reason. They are
/// reported as ignored; one that passes all the same is a failure, so that the list cannot outlive its reasons.
const EXPECTED_LATER: &[(&str, &str)] = &[];

/// Time scale of the many.
const SCALE: f64 = 10.0;

/// Scenarios that are also played at the defaults, one of each kind of consequence: nothing, a cancelled change, a
/// replaced node address, a vanished one, a reload.
const AT_DEFAULTS: [&str; 6] = [
    "L01-purelb-local-vip",
    "D01-dhcp-new-ip",
    "D10-a-b-a",
    "L06-vip-promoted-node-ip-demoted",
    "F12-best-uplink-unplugged-same-subnet",
    "M06-template-edit",
];

/// A program in ipguard's place, and what must be said about it.
struct BadGuard {
    name: &'static str,
    guard: &'static str,
    scenario: &'static str,
    complaint: &'static str,
}

/// Played against guards that are known to be bad: the bed must notice.
const BAD_GUARDS: [BadGuard; 2] = [
    // Decides nothing and does nothing; the node address changes.
    BadGuard {
        name: "bed::notices-a-guard-that-does-nothing",
        guard: "idles",
        scenario: "D01-dhcp-new-ip",
        complaint: "reissue should be true",
    },
    // Restarts once for nothing; a load balancer's address comes.
    BadGuard {
        name: "bed::notices-a-guard-that-restarts",
        guard: "restarts",
        scenario: "L01-purelb-local-vip",
        complaint: "restart should be false",
    },
];

/// The word for the real binary.
const IPGUARD: &str = "ipguard";

/// Exit status of a child whose machine permits no namespaces.
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--far-end") => return namespace::serve_far_end(),
        Some("--scenario") => return child(&arguments),
        Some("--rehearse") => return rehearse(),
        _ => {}
    }
    match Options::parse(&arguments).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(101)
        }
    }
}

/// One scenario in one form.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    /// What the child is told to play.
    arguments: Vec<String>,
    /// Another program is in ipguard's place, and this must be said about it.
    complaint: Option<&'static str>,
    later: Option<&'static str>,
    patience: Duration,
    /// Sleeps for a minute and more.
    at_defaults: bool,
}

/// libtest's arguments, as far as they mean something here.
#[derive(Debug, Default)]
struct Options {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    ignored_only: bool,
    jobs: Option<usize>,
}

impl Options {
    fn parse(arguments: &[String]) -> stage::Result<Self> {
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

fn cases() -> stage::Result<Vec<Case>> {
    let mut cases = Vec::new();
    let all = Scenario::read_all()?;
    for (path, scenario) in &all {
        let modes: &[Mode] = match scenario.mode {
            Modes::Watch => &[Mode::Watch],
            Modes::Check => &[Mode::Check],
            Modes::Both => &[Mode::Watch, Mode::Check],
        };
        let later = EXPECTED_LATER.iter().find(|(id, _)| *id == scenario.id).map(|(_, reason)| *reason);
        let mut add = |name: String, mode: Mode, scale: f64, guard: &str| {
            let arguments = ["--scenario", &path.display().to_string(), "--mode", mode.name(), "--scale"];
            let mut arguments: Vec<String> = arguments.map(str::to_owned).into();
            arguments.extend([scale.to_string(), "--guard".to_owned(), guard.to_owned()]);
            let patience = play::patience(scenario, Scale(scale));
            let complaint = BAD_GUARDS.iter().find(|bad| bad.guard == guard).map(|bad| bad.complaint);
            cases.push(Case { name, arguments, complaint, later, patience, at_defaults: scale <= 1.0 });
        };
        for mode in modes {
            add(format!("{}::{}", scenario.id, mode.name()), *mode, SCALE, IPGUARD);
        }
        if AT_DEFAULTS.contains(&scenario.id.as_str()) {
            add(format!("{}::watch-at-defaults", scenario.id), Mode::Watch, 1.0, IPGUARD);
        }
        for bad in BAD_GUARDS.iter().filter(|bad| bad.scenario == scenario.id) {
            add(bad.name.to_owned(), Mode::Watch, SCALE, bad.guard);
        }
    }
    cases.push(Case {
        name: "bed::api-server-reloads-its-certificate".to_owned(),
        arguments: vec!["--rehearse".to_owned()],
        complaint: None,
        later: None,
        patience: Duration::from_secs(30),
        at_defaults: false,
    });
    // The longest first, so that none of them is left over at the end.
    cases.sort_by(|one, other| other.patience.cmp(&one.patience).then_with(|| one.name.cmp(&other.name)));
    Ok(cases)
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Check => "check",
        }
    }
}

/// How one case ended.
#[derive(Debug)]
enum Ending {
    Passed { blemishes: String },
    Failed(String),
    Ignored(String),
}

/// Runs what is wanted; whether nothing failed.
fn run(options: &Options) -> stage::Result<bool> {
    let all = cases()?;
    let total = all.len();
    let wanted: Vec<Case> = all.into_iter().filter(|case| options.wants(&case.name)).collect();
    if options.list {
        let mut names: Vec<&str> = wanted.iter().map(|case| case.name.as_str()).collect();
        names.sort_unstable();
        names.iter().for_each(|name| println!("{name}: test"));
        return Ok(true);
    }
    let count = wanted.len();
    println!("\nrunning {count} tests");
    let began = Instant::now();
    // They sleep most of the time; more than eight would make two cores late. Those at the defaults need no place among
    // the eight, unless the number is given.
    let jobs = options.jobs.unwrap_or(8).clamp(1, 64);
    let (sleepers, others): (Vec<Case>, Vec<Case>) =
        wanted.into_iter().partition(|case| case.at_defaults && options.jobs.is_none());
    let queue = Mutex::new(VecDeque::from(others));
    let endings = Mutex::new(Vec::new());
    let finish = |case: Case| {
        let ending = supervise(&case);
        let mut endings = endings.lock().unwrap_or_else(PoisonError::into_inner);
        announce(&case, &ending);
        endings.push((case, ending));
    };
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    thread::scope(|scope| {
        for case in sleepers {
            scope.spawn(|| finish(case));
        }
        for _ in 0..jobs {
            scope.spawn(|| std::iter::from_fn(next).for_each(finish));
        }
    });
    let mut endings = endings.into_inner().unwrap_or_else(PoisonError::into_inner);
    endings.sort_by(|one, other| one.0.name.cmp(&other.0.name));
    Ok(summarise(&endings, total - count, began.elapsed()))
}

/// One line, printed at once: a reader may be watching.
fn announce(case: &Case, ending: &Ending) {
    let mut out = std::io::stdout().lock();
    // A closed stdout ends the run soon enough by itself.
    let _ = match ending {
        Ending::Passed { blemishes } => write!(out, "test {} ... ok\n{blemishes}", case.name),
        Ending::Failed(_) => writeln!(out, "test {} ... FAILED", case.name),
        Ending::Ignored(reason) => writeln!(out, "test {} ... ignored, {reason}", case.name),
    };
    let _ = out.flush();
}

fn summarise(endings: &[(Case, Ending)], filtered_out: usize, took: Duration) -> bool {
    let failed: Vec<(&Case, &String)> = endings
        .iter()
        .filter_map(|(case, ending)| if let Ending::Failed(text) = ending { Some((case, text)) } else { None })
        .collect();
    if !failed.is_empty() {
        println!("\nfailures:\n");
        for (case, text) in &failed {
            println!("---- {} ----\n{text}", case.name);
        }
        println!("\nfailures:");
        failed.iter().for_each(|(case, _)| println!("    {}", case.name));
    }
    let passed = endings.iter().filter(|(_, ending)| matches!(ending, Ending::Passed { .. })).count();
    let ignored = endings.len() - passed - failed.len();
    println!(
        "\ntest result: {}. {passed} passed; {} failed; {ignored} ignored; 0 measured; {filtered_out} filtered out; \
         finished in {:.2}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        failed.len(),
        took.as_secs_f64()
    );
    failed.is_empty()
}

/// Runs a case in a child and waits for it.
fn supervise(case: &Case) -> Ending {
    let child = Command::new("/proc/self/exe")
        .args(&case.arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The whole family ends with it, whatever happens.
        .process_group(0)
        .spawn();
    let ended = child.map_err(stage::Failure::from).and_then(|child| wait(child, case.patience));
    let (status, output) = match ended {
        Ok(ended) => ended,
        Err(error) => return Ending::Failed(error.to_string()),
    };
    match (status, case.complaint, case.later) {
        (Some(SKIPPED), _, _) => Ending::Ignored(format!("skipped: {}", output.trim())),
        (Some(0), None, None) => Ending::Passed { blemishes: output },
        (Some(1), Some(complaint), _) if output.contains(complaint) => Ending::Passed { blemishes: String::new() },
        (Some(0), Some(_), _) => Ending::Failed("the bad guard passed".to_owned()),
        (Some(0), None, Some(reason)) => Ending::Failed(format!("passes, but is expected later: {reason}")),
        (_, None, Some(reason)) => Ending::Ignored(format!("expected later: {reason}")),
        _ => Ending::Failed(output),
    }
}

fn wait(mut child: Child, patience: Duration) -> stage::Result<(Option<u8>, String)> {
    let mut stdout = child.stdout.take().ok_or("no stdout")?;
    let mut stderr = child.stderr.take().ok_or("no stderr")?;
    let errors = thread::spawn(move || {
        let mut text = String::new();
        // Whatever could be read is shown.
        let _ = stderr.read_to_string(&mut text);
        text
    });
    let output = thread::spawn(move || {
        let mut text = String::new();
        // Whatever could be read is shown.
        let _ = stdout.read_to_string(&mut text);
        text
    });
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

/// The child: `--scenario FILE --mode MODE --scale N --guard WHICH`.
fn child(arguments: &[String]) -> ExitCode {
    let [_, path, _, mode, _, scale, _, guard] = arguments else {
        eprintln!("usage: --scenario FILE --mode watch|check --scale N --guard ipguard|idles|restarts");
        return ExitCode::from(64);
    };
    if let Err(refused) = namespace::enter() {
        println!("{}", refused.0);
        return ExitCode::from(SKIPPED);
    }
    let timeline = Timeline::start();
    let scenario = match Scenario::read(Path::new(path)) {
        Ok(scenario) => scenario,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match child_plays(&scenario, mode, scale, guard, &timeline) {
        Ok(judgement) if judgement.failures.is_empty() => {
            judgement.blemishes.iter().for_each(|blemish| println!("    blemish: {blemish}"));
            ExitCode::SUCCESS
        }
        Ok(judgement) => {
            println!("    {}: {}\n{}", scenario.id, scenario.title, timeline.render());
            println!("    expected and got:");
            judgement.failures.iter().for_each(|failure| println!("    - {failure}"));
            judgement.blemishes.iter().for_each(|blemish| println!("    - (blemish) {blemish}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("{}\n    could not be played: {error}", timeline.render());
            ExitCode::FAILURE
        }
    }
}

/// The child that tries the stand-in of the API server.
fn rehearse() -> ExitCode {
    if let Err(refused) = namespace::enter() {
        println!("{}", refused.0);
        return ExitCode::from(SKIPPED);
    }
    match rehearsal::api_server() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn child_plays(
    scenario: &Scenario,
    mode: &str,
    scale: &str,
    guard: &str,
    timeline: &Timeline,
) -> stage::Result<expect::Judgement> {
    let mode = if mode == Mode::Check.name() { Mode::Check } else { Mode::Watch };
    let program = match guard {
        IPGUARD => PathBuf::from(env!("CARGO_BIN_EXE_ipguard")),
        bad => Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/scenarios/guard-that-{bad}.sh")),
    };
    let keep = std::env::var_os("IPGUARD_KEEP_ROOT").is_some();
    let seen = play::play(scenario, mode, Scale(scale.parse()?), program, keep, timeline)?;
    Ok(expect::judge(scenario, &seen))
}
