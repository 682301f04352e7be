//! MicroK8s trees of every age and kind on the real binary: what is read, what is held, what is written.
//!
//! In: libtest's usual arguments. Out: libtest's usual lines. The rule of this file: a tree is a row of data; what is done
//! with it is the same for all (`trees/play.rs`).

#[path = "trees/ages.rs"]
mod ages;
#[path = "trees/arguments.rs"]
mod arguments;
#[path = "trees/locks.rs"]
mod locks;
#[path = "trees/play.rs"]
mod play;
#[path = "robustness/runner.rs"]
mod runner;
mod stage;
#[path = "trees/templates.rs"]
mod templates;

use std::process::ExitCode;

use runner::{Case, Options};

const CASES: &[&[Case]] = &[ages::CASES, arguments::CASES, locks::CASES, templates::CASES];

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
