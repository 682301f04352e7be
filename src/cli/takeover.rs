//! `takeover` and `release`.

use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::takeover::{self, Report};

/// Turns the other guard off and ipguard on, and prints what was done.
///
/// # Errors
/// It was refused.
pub fn take_over(setup: &Setup) -> Result<Status, CliError> {
    told(&takeover::take_over(&setup.site())?)
}

/// Turns ipguard off and the other guard on, and prints what was done; `own` only where it was this ipguard that took over.
///
/// # Errors
/// It was refused.
pub fn release(setup: &Setup, own: bool) -> Result<Status, CliError> {
    let site = setup.site();
    told(&if own { takeover::release_own(&site)? } else { takeover::release(&site)? })
}

fn told(report: &Report) -> Result<Status, CliError> {
    output::data(&report.done.iter().map(|line| format!("{line}\n")).collect::<String>())?;
    for line in &report.failed {
        tracing::error!("{line}");
    }
    Ok(if report.failed.is_empty() { Status::Done } else { Status::Failed })
}
