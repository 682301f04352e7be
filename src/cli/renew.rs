//! `renew [CERT…]`.

use crate::cli::arguments::{Format, Renew};
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::decide::Mode;
use crate::decide::outcome::lasting_failures;
use crate::decide::plan::ReasonCode;
use crate::one_shot::{self, Forced};
use crate::report::check;
use crate::rollback;

/// Signs certificates anew and prints what became of it.
///
/// # Errors
/// A name that is no certificate's, or the pass could not be made or carried out.
pub fn run(setup: &Setup, renew: &Renew) -> Result<Status, CliError> {
    let site = setup.site();
    let known = rollback::certificate_names(&site)?;
    let certificates = match renew.certificates.as_slice() {
        [] => known.into_iter().map(str::to_owned).collect(),
        asked => asked.iter().map(|name| rollback::certificate_name(&site, Some(name))).collect::<Result<_, _>>()?,
    };
    let wanted = Forced { certificates, exact: renew.exact };
    let look = one_shot::look_for(&site, Mode::OneShot, wanted.clone())?;
    if let Some(error) = &look.state_unused {
        tracing::warn!("{error}: going on without what was remembered");
    }
    let plan = look.plan.clone();
    let outcomes = one_shot::renew(&site, look)?;
    match renew.format {
        Format::Text => {
            let text = check::text(&plan, setup.profile_name(), setup.colour);
            output::data(&(text + &check::outcomes(&outcomes, setup.colour)))?;
        }
        Format::Json => output::data(&check::document(&plan, setup.profile_name()))?,
    }
    for line in check::failures(&outcomes) {
        tracing::error!("{line}");
    }
    let mut all_done = true;
    for name in &wanted.certificates {
        // Without a name it is about those that the node has: not every one has a kubelet's.
        let judged = plan.reasons.iter().any(|reason| reason.code == ReasonCode::Forced && reason.certificate == *name);
        if !judged && renew.certificates.is_empty() {
            continue;
        }
        if !one_shot::issued(&outcomes).any(|issued| issued == name) {
            tracing::error!("{name} was not signed anew");
            all_done = false;
        }
    }
    let failed = !all_done || lasting_failures(&outcomes).next().is_some();
    Ok(if failed { Status::Failed } else { Status::Done })
}
