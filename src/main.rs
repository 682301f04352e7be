//! The program: reads the environment once, and hands over.

use std::process::ExitCode;

use ipguard::cli::{self, Environment};

fn main() -> ExitCode {
    cli::run_from(std::env::args_os(), &Environment::read())
}
