//! The write path of a reissue and of a rollback, broken at the system calls: killed there, refused there, on disks that
//! take nothing, in trees that somebody else has damaged, and under the hands of somebody who swaps files for links.
//!
//! In: libtest's usual arguments. Out: libtest's usual lines, and one line of counts for each case. The rule of this
//! file: whatever is broken, certificate and key are the old pair or the new one, whole, and the next run finishes.

#[path = "faults/back.rs"]
mod back;
#[path = "faults/bed.rs"]
mod bed;
#[path = "faults/beside.rs"]
mod beside;
#[path = "faults/calls.rs"]
mod calls;
#[path = "faults/damage.rs"]
mod damage;
#[path = "faults/disks.rs"]
mod disks;
#[path = "faults/links.rs"]
mod links;
#[path = "robustness/runner.rs"]
mod runner;
#[path = "faults/secrets.rs"]
mod secrets;
mod stage;

use std::process::ExitCode;

use runner::{Case, Options};

/// Every case: name, what is played, and how many seconds it may take.
const CASES: &[&[Case]] =
    &[back::CASES, beside::CASES, calls::CASES, damage::CASES, disks::CASES, links::CASES, secrets::CASES];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let all: Vec<&'static Case> = CASES.iter().copied().flatten().collect();
    if arguments.first().map(String::as_str) == Some("--case") {
        return runner::child(&all, arguments.get(1).map_or("", String::as_str));
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
