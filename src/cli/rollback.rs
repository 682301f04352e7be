//! `rollback [N]`.

use crate::cli::arguments::{Format, Rollback};
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::decide::Mode;
use crate::decide::outcome::lasting_failures;
use crate::report::{check, generations};
use crate::rollback::{LOCK_WAIT, Which};
use crate::{one_shot, rollback};

/// Puts an earlier certificate back, and carries out what follows from that; or lists what can be put back.
///
/// # Errors
/// It was refused or failed, or the pass behind it could not be made.
pub fn run(setup: &Setup, arguments: &Rollback) -> Result<Status, CliError> {
    let site = setup.site();
    let name = rollback::certificate_name(&site, arguments.certificate.as_deref())?;
    if arguments.list {
        let all = rollback::list(&site, &name)?;
        output::data(&match arguments.format {
            Format::Text => generations::table(&name, &all),
            Format::Json => generations::document(&name, &all),
        })?;
        return Ok(Status::Done);
    }
    let generation = rollback::put_back(&site, &name, Which::Back(usize::from(arguments.back)), LOCK_WAIT)?;
    // What follows every new certificate: the port is asked, and who loads it once is restarted.
    let look = one_shot::look(&site, Mode::OneShot)?;
    let outcomes = one_shot::apply(&site, look, Mode::OneShot)?.outcomes;
    output::data(&match arguments.format {
        Format::Text => generations::put_back(&name, &generation) + &check::outcomes(&outcomes, setup.colour),
        Format::Json => generations::put_back_document(&name, &generation, &outcomes),
    })?;
    for line in check::failures(&outcomes) {
        tracing::error!("{line}");
    }
    let failed = lasting_failures(&outcomes).next().is_some();
    Ok(if failed { Status::Failed } else { Status::Done })
}
