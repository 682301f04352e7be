//! `check [--apply]`.

use crate::cli::arguments::CheckFormat;
use crate::cli::setup::Setup;
use crate::cli::{CliError, Status, output};
use crate::decide::outcome::{StepOutcome, lasting_failures};
use crate::decide::plan::{Plan, Step, Summary};
use crate::report::check;

/// What `--format microk8s` prints when there is no plan to speak of.
pub(super) const NO_RESTART: &str = check::digit(false);

/// Prints the plan of a pass; `outcomes` is what became of its steps, where they were carried out.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(
    setup: &Setup,
    plan: &Plan,
    outcomes: Option<&[StepOutcome]>,
    format: CheckFormat,
) -> Result<Status, CliError> {
    let tried = outcomes.unwrap_or_default();
    match format {
        CheckFormat::Text => {
            let plan = check::text(plan, setup.profile_name(), setup.colour);
            output::data(&(plan + &check::outcomes(tried, setup.colour)))?;
        }
        CheckFormat::Json => output::data(&check::document(plan, setup.profile_name()))?,
        CheckFormat::Microk8s => output::data(check::digit(caller_restarts(plan, tried)))?,
    }
    for line in check::failures(tried) {
        // Programs read standard output, people who look for the cause read this.
        tracing::error!("{line}");
    }
    Ok(status(plan, outcomes, format))
}

/// Never for a certificate that is not in place. What else failed is another service's or another certificate's matter:
/// kubelite has to be restarted all the same, and nobody would say so again.
fn caller_restarts(plan: &Plan, tried: &[StepOutcome]) -> bool {
    let of_server = |outcome: &StepOutcome| matches!(&outcome.step, Step::Issue(order) if order.served);
    plan.caller_restarts && !lasting_failures(tried).any(of_server)
}

fn status(plan: &Plan, outcomes: Option<&[StepOutcome]>, format: CheckFormat) -> Status {
    if format == CheckFormat::Microk8s {
        return Status::Done;
    }
    match outcomes {
        Some(outcomes) if lasting_failures(outcomes).next().is_some() => Status::Failed,
        Some(_) => Status::Done,
        None if matches!(plan.summary, Summary::InStep | Summary::Hold) => Status::Done,
        None => Status::ChangeNeeded,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::AuthorityKeyId;
    use crate::decide::outcome::StepResult;
    use crate::decide::plan::{IssueOrder, ReasonCode, Subject};
    use crate::facts::certificate::{Fingerprint, Purpose};
    use crate::facts::san::SanSet;
    use crate::facts::time::Timestamp;
    use crate::report::tests::plan;

    fn outcome(result: StepResult) -> StepOutcome {
        let step = Step::Restart { service: "cluster-agent".to_owned(), reason: ReasonCode::LoadedOnce };
        StepOutcome { step, result, began: Timestamp::default(), took: Duration::ZERO }
    }

    #[test]
    fn the_exit_status_without_apply_is_the_verdict() {
        for (summary, expected) in [
            (Summary::InStep, Status::Done),
            (Summary::Hold, Status::Done),
            (Summary::Reissue, Status::ChangeNeeded),
            (Summary::ReissueAndRestart, Status::ChangeNeeded),
            (Summary::Restart, Status::ChangeNeeded),
        ] {
            let mut plan = plan();
            plan.summary = summary;
            assert_eq!(status(&plan, None, CheckFormat::Text), expected, "{summary}");
            assert_eq!(status(&plan, None, CheckFormat::Json), expected, "{summary}");
            assert_eq!(status(&plan, None, CheckFormat::Microk8s), Status::Done, "{summary}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_in_place_asks_nobody_to_restart_and_nothing_else_takes_it_back() {
        let mut plan = plan();
        assert!(!caller_restarts(&plan, &[]));
        plan.caller_restarts = true;
        assert!(caller_restarts(&plan, &[outcome(StepResult::Restarted)]));
        assert!(caller_restarts(&plan, &[outcome(StepResult::Failed("change in progress".to_owned()))]));
        for (served, expected) in [(true, false), (false, true)] {
            let order = IssueOrder {
                certificate: if served { "server" } else { "kubelet" }.to_owned(),
                purpose: Purpose::Server,
                sans: SanSet::new(),
                added: SanSet::new(),
                dropped: SanSet::new(),
                subject: Subject::Attributes(Vec::new()),
                not_before: Timestamp::default(),
                not_after: Timestamp::default(),
                new_key: false,
                authority_key_id: AuthorityKeyId::KeyId,
                request: None,
                address_caused: false,
                served,
                shown_by_kubelet: !served,
            };
            let failed = outcome(StepResult::Failed("no space".to_owned()));
            let failed = StepOutcome { step: Step::Issue(order), ..failed };
            assert_eq!(caller_restarts(&plan, &[failed]), expected);
        }
    }

    #[test]
    fn the_exit_status_with_apply_is_the_success() {
        let mut plan = plan();
        plan.summary = Summary::Reissue;
        let status = |results: &[StepResult], format| {
            let outcomes: Vec<StepOutcome> = results.iter().cloned().map(outcome).collect();
            status(&plan, Some(&outcomes), format)
        };
        let unanswered = StepResult::Unanswered("refused".to_owned());
        let failed = StepResult::Failed("no space".to_owned());
        assert_eq!(status(&[], CheckFormat::Text), Status::Done);
        assert_eq!(status(&[StepResult::Restarted, unanswered], CheckFormat::Json), Status::Done);
        assert_eq!(status(&[StepResult::Restarted, failed.clone()], CheckFormat::Text), Status::Failed);
        assert_eq!(status(&[failed], CheckFormat::Microk8s), Status::Done);
        // A port that showed the certificate before, and after a restart the new one; the other's is another matter.
        let answered = |certificate: &str, result| {
            let (certificate, host) = (certificate.to_owned(), std::net::Ipv4Addr::LOCALHOST.into());
            let deadline = Timestamp::default();
            let step = Step::ConfirmServed { certificate, shown_by_kubelet: false, port: 1, host, deadline };
            StepOutcome { step, ..outcome(result) }
        };
        let stale = |certificate| answered(certificate, StepResult::Stale { served: Fingerprint([1; 32]) });
        let all = |outcomes: &[StepOutcome]| super::status(&plan, Some(outcomes), CheckFormat::Text);
        assert_eq!(all(&[stale("server"), answered("server", StepResult::Confirmed)]), Status::Done);
        assert_eq!(all(&[stale("server"), answered("kubelet", StepResult::Confirmed)]), Status::Failed);
        assert_eq!(all(&[answered("server", StepResult::Confirmed), stale("server")]), Status::Failed);
    }
}
