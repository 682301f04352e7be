//! `explain [ADDRESS]`.

use std::net::IpAddr;

use crate::cli::arguments::Format;
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::one_shot::Look;
use crate::report::{address, explain};

/// Prints what a pass made of every address, or of one.
///
/// # Errors
/// The address is neither on the host nor pinned, or standard output cannot be written.
pub fn run(setup: &Setup, look: &Look, only: Option<IpAddr>, format: Format) -> Result<Status, CliError> {
    output::data(&text(look, only, format, setup.colour)?)?;
    Ok(Status::Done)
}

fn text(look: &Look, only: Option<IpAddr>, format: Format, colour: bool) -> Result<String, CliError> {
    let plan = &look.plan;
    let in_certificate = &plan.san.certificate;
    match (format, only) {
        (Format::Text, None) => Ok(explain::table(plan, in_certificate, colour)),
        (Format::Text, Some(value)) => address::text(plan, in_certificate, &look.observed.network, value, colour)
            .ok_or(CliError::UnknownAddress(value)),
        (Format::Json, None) => Ok(explain::document(plan, in_certificate)),
        (Format::Json, Some(value)) => {
            explain::document_of(plan, in_certificate, value).ok_or(CliError::UnknownAddress(value))
        }
    }
}
