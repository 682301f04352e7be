//! The steps of a plan, in order, and which of them have to wait after a failure.
//!
//! In: what a pass found and wants made. Out: steps. The rule of this file: certificates first; the API server is asked
//! whether it serves the new one before anything that only follows it; a step that failed waits, the others do not.

use std::time::Duration;

use crate::decide::plan::{Hold, HoldCode, IssueOrder, Mode, Reason, ReasonCode, Step};
use crate::decide::planner::{Draft, Pass};
use crate::decide::state::{Unconfirmed, back_off};
use crate::decide::{down, rollback};
use crate::facts::certificate::{CertificateFacts, CertificateRole};
use crate::facts::cluster::{Cluster, Role, Service};
use crate::facts::time::Timestamp;

/// When an API server that did not run is looked for again first, to see what it serves.
const STARTED_MEANWHILE: Duration = Duration::from_secs(30);
/// And at the latest.
const LONGEST_STOP: Duration = Duration::from_secs(60 * 60);

impl Pass<'_> {
    /// Whether a step failed a moment ago and waits before it is tried again. Others go on: a certificate must not wait
    /// for a service that cannot be restarted.
    pub(super) fn backs_off(&self, step: &Step) -> bool {
        let failures = self.state.failures.as_ref().filter(|f| f.next_try() > self.now.wall);
        self.mode == Mode::Daemon && failures.is_some_and(|f| f.failed(step))
    }

    pub(super) fn hold_failed(&self, draft: &mut Draft) {
        if let Some(failures) = &self.state.failures
            && draft.holds.iter().all(|hold| hold.code != HoldCode::FailedBefore)
        {
            let (detail, until) = (failures.detail.clone(), Some(failures.next_try()));
            draft.holds.push(Hold { code: HoldCode::FailedBefore, detail, until });
        }
    }

    /// Puts an earlier certificate back where the API server cannot use the one in place, and none is made anyway.
    pub(super) fn put_back(
        &self,
        server: Option<&CertificateFacts>,
        orders: &[IssueOrder],
        draft: &mut Draft,
    ) -> Option<Step> {
        let facts = server.filter(|_| self.mode != Mode::Hook && orders.iter().all(|order| !order.served))?;
        let service = self.api_server().and_then(|service| self.observed.services.get(&service.name));
        let (leaf, cause) = match rollback::due(self.state, facts) {
            Some((leaf, cause)) => (leaf, cause.to_owned()),
            None => {
                let down = down::behind_our_restart(self.state, service)?;
                (down::leaf_before(self.state, facts, &down)?, format!("it is {}", down.detail))
            }
        };
        let (certificate, code) = (facts.name.clone(), ReasonCode::ServedUnusable);
        let detail = format!("the API server was restarted and cannot use it: {cause}");
        draft.reasons.push(Reason { code, certificate: certificate.clone(), detail });
        let step = Step::PutBack { certificate, leaf: leaf.to_owned(), cause };
        if self.backs_off(&step) {
            self.hold_failed(draft);
            return None;
        }
        Some(step)
    }

    /// Puts the steps in order: certificates first; the API server is asked whether it serves the new one before
    /// anything that only follows it - unless it is restarted anyway.
    pub(super) fn order_steps(
        &self,
        cluster: &Cluster,
        orders: Vec<IssueOrder>,
        restart: Option<&Vec<Reason>>,
        api_server: Option<&Service>,
        draft: &mut Draft,
    ) {
        let waits = |order: &IssueOrder| self.backs_off(&Step::Issue(order.clone()));
        let (held, orders): (Vec<IssueOrder>, Vec<IssueOrder>) = orders.into_iter().partition(waits);
        let reissues = orders.iter().any(|order| order.served);
        let kubelet_reissued = orders.iter().any(|order| order.shown_by_kubelet);
        draft.steps.extend(orders.into_iter().map(Step::Issue));
        if !held.is_empty() {
            self.hold_failed(draft);
        }
        if held.iter().any(|order| order.served) {
            draft.needs_services = false;
            return;
        }
        let (waiting, followers): (Vec<Step>, Vec<Step>) = self
            .services
            .iter()
            .filter(|s| s.role == Role::LoadsCertificateOnce)
            .filter(|s| reissues || self.state.owed_restarts.contains(&s.name))
            .map(|s| Step::Restart { service: s.name.clone(), reason: ReasonCode::LoadedOnce })
            .partition(|step| self.backs_off(step));
        let runs = api_server
            .and_then(|s| self.observed.services.get(&s.name))
            .is_none_or(|state| state.active != Some(false));
        let restart = restart.and_then(|wanted| {
            let reason = wanted.first()?.code;
            // The hook's caller restarts it.
            let service = api_server.filter(|_| self.mode != Mode::Hook)?;
            Some(Step::Restart { service: service.name.clone(), reason })
        });
        let waits = restart.as_ref().is_some_and(|step| self.backs_off(step));
        let restart = restart.filter(|_| !waits);
        if waits || !waiting.is_empty() {
            self.hold_failed(draft);
        }
        let asks = (runs || restart.is_some()) && self.mode != Mode::Hook;
        let confirm = if asks { self.confirmation(cluster, reissues, restart.is_some()) } else { None };
        let ready = if asks { self.ask_ready(cluster, api_server, restart.is_some()) } else { None };
        let of_kubelet =
            if asks { self.kubelet_confirmation(cluster, kubelet_reissued, restart.is_some()) } else { None };
        // One that was stopped meanwhile, or has not been started yet in this boot, is not asked.
        let asked = confirm.is_some() || ready.is_some() || of_kubelet.is_some();
        draft.needs_services |= asked && self.observed.services.is_empty();
        if !runs && let Some(since) = self.unconfirmed().map(|unconfirmed| unconfirmed.since).min() {
            // Nothing tells when it is started: looked for again when it has been so for twice as long.
            let pause = self.now.wall.since(since).clamp(STARTED_MEANWHILE, LONGEST_STOP);
            draft.look_again = draft.look_again.into_iter().chain([self.now.wall + pause]).min();
        }
        if restart.is_some() {
            draft.steps.extend(followers);
            draft.steps.extend(restart);
            draft.steps.extend(confirm);
        } else {
            draft.steps.extend(confirm);
            draft.steps.extend(followers);
        }
        draft.steps.extend(ready);
        // Last: an old kubelet takes the whole time to be found out.
        draft.steps.extend(of_kubelet);
    }

    /// Whether the API server's port has to be asked, and until when.
    pub(super) fn confirmation(&self, cluster: &Cluster, reissues: bool, restarts: bool) -> Option<Step> {
        let server = cluster.certificates.first()?;
        let deadline = self.deadline(server, self.state.unconfirmed.as_ref(), reissues, restarts)?;
        Some(Step::ConfirmServed {
            certificate: server.name.clone(),
            shown_by_kubelet: false,
            port: cluster.arguments.secure_port,
            host: cluster.arguments.api_server_host(),
            deadline,
        })
    }

    /// Whether the kubelet's port has to be asked. A restart is no reason by itself: where nothing is unconfirmed, nobody
    /// knows what the kubelet should show.
    fn kubelet_confirmation(&self, cluster: &Cluster, reissues: bool, restarts: bool) -> Option<Step> {
        let kubelet = cluster.certificates.iter().find(|facts| facts.role == CertificateRole::Kubelet)?;
        let unconfirmed = self.state.unconfirmed_kubelet.as_ref();
        let restarts = restarts && (reissues || unconfirmed.is_some());
        let deadline = self.deadline(kubelet, unconfirmed, reissues, restarts)?;
        Some(Step::ConfirmServed {
            certificate: kubelet.name.clone(),
            shown_by_kubelet: true,
            port: cluster.arguments.kubelet_port,
            host: cluster.arguments.kubelet_host(),
            deadline,
        })
    }

    /// Until when a port is asked for a certificate; `None` when there is nothing to ask now.
    fn deadline(
        &self,
        facts: &CertificateFacts,
        unconfirmed: Option<&Unconfirmed>,
        reissues: bool,
        restarts: bool,
    ) -> Option<Timestamp> {
        /// A restarted kubelite may take minutes to open its port on a small board.
        const AFTER_RESTART: Duration = Duration::from_secs(180);
        let reload = self.config.probe.reload_timeout;
        if restarts {
            return Some(self.now.wall + AFTER_RESTART.max(reload));
        }
        if reissues {
            return Some(self.now.wall + reload);
        }
        let unconfirmed = unconfirmed?;
        let ours = facts.leaf.as_ref().is_ok_and(|leaf| leaf.fingerprint.to_hex() == unconfirmed.fingerprint);
        let due = next_question(unconfirmed).is_none_or(|at| at <= self.now.wall);
        // At least a few tries, however long ago the certificate was put in place.
        let until = (unconfirmed.since + reload).max(self.now.wall + Duration::from_secs(3).min(reload));
        (ours && !unconfirmed.stale && due).then_some(until)
    }
}

/// When a port that gave no answer is asked again: after 30 s, doubling up to an hour.
pub(super) fn next_question(unconfirmed: &Unconfirmed) -> Option<Timestamp> {
    Some(unconfirmed.asked? + back_off(Duration::from_secs(30), unconfirmed.unanswered))
}
