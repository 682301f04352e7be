//! Where text goes: data to standard output, everything else to standard error.

use std::io::{self, Write as _};

use crate::chain::chain;
use crate::cli::CliError;

/// Writes data and makes sure that it arrived. A reader that has seen enough (`| head`) is no failure.
pub(super) fn data(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Output(error)),
        _ => Ok(()),
    }
}

/// Says what went wrong: one line, or one for each fault of a file.
pub(super) fn complain(error: &CliError) {
    let text: String = chain(error).lines().map(|line| format!("ipguard: {line}\n")).collect();
    // Nobody is left to be told when standard error is gone.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
