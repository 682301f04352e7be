//! `chores`: one pass of MicroK8s' upkeep besides certificates.

use std::ffi::OsString;

use crate::chores;
use crate::cli::{CliError, Setup, Status, output};

/// What was done on standard output, what failed on standard error; nothing at all when nothing was wrong.
///
/// # Errors
/// There was no pass, or standard output cannot be written.
pub fn run(setup: &Setup, environment: &[(OsString, OsString)]) -> Result<Status, CliError> {
    let report = chores::run(&setup.site(), environment)?;
    let mut text = report.done.join("\n");
    if !text.is_empty() {
        text.push('\n');
    }
    for line in &report.failed {
        tracing::error!("{line}");
    }
    if report.more > 0 {
        tracing::warn!("and {} more lines", report.more);
    }
    output::data(&text)?;
    Ok(if report.failed.is_empty() { Status::Done } else { Status::Failed })
}
