//! What can go wrong on a live host, tried on the real binary: killed half-way, two writers, broken disks, service
//! managers that lie, edits at the wrong moment, storms.
//!
//! In: libtest's usual arguments (a name filter, `--exact`, `--list`, `--skip`, `--test-threads`). Out: libtest's usual
//! lines. The rule of this file: each case gets a process of its own, this program again, because a namespace is entered
//! by a process with one thread; the parent only waits and prints.

#[path = "robustness/boot.rs"]
mod boot;
#[path = "robustness/certificates.rs"]
mod certificates;
#[path = "robustness/clock.rs"]
mod clock;
#[path = "robustness/command_line.rs"]
mod command_line;
#[path = "robustness/disk.rs"]
mod disk;
#[path = "robustness/edits.rs"]
mod edits;
#[path = "robustness/generations.rs"]
mod generations;
#[path = "robustness/host.rs"]
mod host;
#[path = "robustness/kills.rs"]
mod kills;
#[path = "robustness/limits.rs"]
mod limits;
#[path = "robustness/load.rs"]
mod load;
#[path = "robustness/memory.rs"]
mod memory;
#[path = "robustness/process_one.rs"]
mod process_one;
#[path = "robustness/refusals.rs"]
mod refusals;
#[path = "robustness/reload.rs"]
mod reload;
#[path = "robustness/revisions.rs"]
mod revisions;
#[path = "robustness/runner.rs"]
mod runner;
#[path = "robustness/sandbox.rs"]
mod sandbox;
#[path = "robustness/services.rs"]
mod services;
#[path = "robustness/sharing.rs"]
mod sharing;
mod stage;
#[path = "pki/state.rs"]
mod state;
#[path = "robustness/status.rs"]
mod status;
#[path = "robustness/stopping.rs"]
mod stopping;
#[path = "robustness/takeover.rs"]
mod takeover;
#[path = "robustness/word.rs"]
mod word;

use std::process::ExitCode;

use runner::{Case, Options};

/// Every case: name, what is played, and how many seconds it may take.
const CASES: &[&[Case]] = &[
    boot::CASES,
    certificates::CASES,
    clock::CASES,
    command_line::CASES,
    disk::CASES,
    edits::CASES,
    generations::CASES,
    kills::CASES,
    limits::CASES,
    load::CASES,
    revisions::CASES,
    memory::CASES,
    process_one::CASES,
    refusals::CASES,
    reload::CASES,
    services::CASES,
    sharing::CASES,
    status::CASES,
    stopping::CASES,
    takeover::CASES,
    word::CASES,
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all: Vec<&'static Case> = CASES.iter().copied().flatten().collect();
    match arguments.first().map(String::as_str) {
        Some("--case") => return runner::child(&all, arguments.get(1).map_or("", String::as_str)),
        Some(sandbox::WORD) => return sandbox::without_netlink(&arguments[1..]),
        _ => {}
    }
    match Options::parse(&arguments).and_then(|options| runner::run(&all, &options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(101)
        }
    }
}
