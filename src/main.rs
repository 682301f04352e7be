//! The program: reads the environment once, and hands over.

use std::alloc::System;
use std::process::ExitCode;

use ipguard::cli::{self, Environment};
use zeroizing_alloc::ZeroAlloc;

/// Private keys go through the buffers of several libraries, and not all of them wipe: whatever is freed is wiped here.
#[global_allocator]
static ALLOCATOR: ZeroAlloc<System> = ZeroAlloc(System);

fn main() -> ExitCode {
    cli::run_from(std::env::args_os(), &Environment::read())
}
