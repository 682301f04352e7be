//! One certificate after the other: its reasons, its holds, and the order to make it.
//!
//! In: a certificate's facts, the names it needs, what speaks for waiting. Out: reasons, holds, notices and orders. The
//! rule of this file: every reason and every notice names its certificate; one that the distribution does not have is not
//! missed.

use crate::decide::holds::Clock;
use crate::decide::join_tokens::{self, Wait};
use crate::decide::names::{self, Configured};
use crate::decide::plan::{Hold, HoldCode, IssueOrder, Reason, SanPlan, Subject};
use crate::decide::planner::{Draft, Pass};
use crate::decide::{checks, holds, request, self_made};
use crate::facts::certificate::{CertificateFacts, CertificateRole};
use crate::facts::cluster::Cluster;
use crate::facts::san::{San, SanSet};
use crate::facts::time::Timestamp;

/// What a certificate is judged by, and what its order is made from.
struct Case<'a> {
    checked: checks::Input<'a>,
    served: bool,
    clock: Clock,
}

impl Pass<'_> {
    /// Adds a certificate's reasons, its holds, and the order to make it where nothing speaks against it.
    pub(super) fn judge_certificate(
        &self,
        cluster: &Cluster,
        facts: &CertificateFacts,
        address_holds: &[Hold],
        draft: &mut Draft,
        orders: &mut Vec<IssueOrder>,
    ) {
        if is_not_missed(facts) {
            return;
        }
        let served = cluster.certificates.first().is_some_and(|first| first.name == facts.name);
        if let (false, Some(flag)) = (served, &facts.elsewhere) {
            // Without a file of its own, there is none to tell about either.
            if facts.leaf.is_ok() {
                draft.notices.push(format!("{}: {flag}: another file is in use; this one is left alone", facts.name));
            }
            return;
        }
        if self_made::by_kubelet(facts) && !cluster.arguments.verifies_kubelets {
            let why = "the kubelet made it for itself, and the API server asks no kubelet who it is";
            draft.notices.push(format!("{}: {why}; left alone", facts.name));
            return;
        }
        // Only the served one names all of the host's addresses and what the template asks for.
        let (san, configured) = if served {
            (draft.san.clone(), self.configured.clone())
        } else {
            self.names_of_another(cluster, facts, &draft.san)
        };
        let clock = Clock::judge(facts, self.state, self.now, self.observed.clock_synchronised);
        let forced = self.is_forced(&facts.name);
        let checked = checks::Input {
            facts,
            san: &san,
            configured: &configured,
            config: self.config_for(served),
            forced,
            now: self.now,
        };
        let case = Case { checked, served, clock };
        let reasons = checks::reasons(&case.checked);
        if reasons.is_empty() {
            self.judge_authority(facts, clock, draft);
            return;
        }
        let address_caused = reasons.iter().all(|r| r.code.is_address_caused());
        let mut holding: Vec<Hold> = holds::foreign_issuer(cluster, facts, self.now).into_iter().collect();
        holding.extend(holds::on_issuing(facts, self.state, self.now, clock));
        if reasons.iter().all(|r| r.code.is_date_caused()) {
            holding.extend(holds::on_dates(facts, self.state, self.now, clock));
        }
        if address_caused {
            holding.extend(address_holds.iter().cloned());
        }
        if reasons.iter().all(|r| r.code.is_held_by_rollback()) {
            holding.extend(self.state.rollback_of(&facts.name).map(holds::rolled_back));
        }
        if served {
            let wait = self.wait_for_joins(cluster, facts, &reasons, &san);
            draft.waiting_for_joins = wait.since;
            holding.extend(wait.hold);
        }
        if let (true, Err(_), Some(Err(error))) = (served, &facts.leaf, &cluster.template) {
            let detail = format!("{error}; the names a first certificate needs are not known");
            holding.push(Hold { code: HoldCode::TemplateUnreadable, detail, until: None });
        }
        let order = if holding.is_empty() { self.order(cluster, &case) } else { None };
        draft.holds.append(&mut holding);
        draft.reasons.extend(reasons);
        if let Some(order) = order {
            draft.notices.extend(unverified(facts));
            draft.notices.extend(not_kept(facts));
            orders.push(IssueOrder { address_caused, ..order });
        }
        draft.notices.extend(self.end_of_authority(facts));
    }

    /// Whether a new server certificate waits for nodes that may still join.
    fn wait_for_joins(&self, cluster: &Cluster, facts: &CertificateFacts, reasons: &[Reason], san: &SanPlan) -> Wait {
        let pinned = names::pins(&cluster.arguments, self.config).map(|(address, _)| address);
        let urgent = self.node.of.values().copied().chain(pinned).collect();
        join_tokens::wait(&join_tokens::Input {
            tokens: &cluster.join_tokens,
            reasons,
            leaf: facts.leaf.as_ref().ok(),
            missing: &san.missing,
            urgent: &urgent,
            waiting_since: self.state.waiting_for_joins,
            now: self.now.wall,
        })
    }

    /// The names of a certificate beside the server's, and which of them somebody configured.
    fn names_of_another(&self, cluster: &Cluster, facts: &CertificateFacts, server: &SanPlan) -> (SanPlan, Configured) {
        let had = facts.leaf.as_ref().ok().map(|leaf| &leaf.sans);
        match (facts.role, had) {
            // MicroK8s makes it from the server's request, so it has the server's names; nobody asks for them.
            (CertificateRole::ProxyClient, None) => (SanPlan::keeping(Some(&server.desired)), Configured::default()),
            (CertificateRole::ProxyClient | CertificateRole::ApiServer, had) => {
                (SanPlan::keeping(had), Configured::default())
            }
            (CertificateRole::Kubelet, had) => {
                let nothing = SanSet::new();
                let had = had.unwrap_or(&nothing);
                let hostname = cluster.hostname.parse::<San>().ok();
                let configured: SanSet = hostname.into_iter().chain(cluster.host_access.map(San::ip)).collect();
                let mut demanded = configured.clone();
                demanded.extend(self.node.of.values().copied().map(San::ip));
                let primary = self.classes.primary().into_iter().map(San::ip);
                let desired: SanSet = demanded.iter().cloned().chain(primary).chain(had.iter().cloned()).collect();
                let missing = demanded.difference(had).cloned().collect();
                let san = SanPlan { desired, missing, certificate: had.clone(), ..SanPlan::default() };
                (san, Configured { sans: configured, ..Configured::default() })
            }
        }
    }

    fn order(&self, cluster: &Cluster, case: &Case<'_>) -> Option<IssueOrder> {
        let (input, served) = (&case.checked, case.served);
        let facts = input.facts;
        let (not_before, not_after) = checks::validity(input, self.known_to_have_passed(case))?;
        let mut sans = input.san.desired.clone();
        if served {
            sans = names::of_new_certificate(input.san, &self.configured, &self.classes, self.config);
            if facts.leaf.is_err() && !self.configured.manual && !self.observed.exact {
                sans.extend(names::remembered(&self.classes, self.config, self.state, self.now));
            }
        }
        let template = cluster.template.as_ref().and_then(|t| t.as_ref().ok()).filter(|_| served);
        let renamed = facts.role == CertificateRole::Kubelet
            && cluster.hostname.parse().is_ok_and(|hostname: San| input.san.missing.contains(&hostname));
        let subject = match (template, &facts.leaf) {
            (Some(template), _) => Subject::Attributes(template.subject.clone()),
            (None, Ok(leaf)) if !renamed && !self_made::by_kubelet(facts) => Subject::Keep(leaf.subject.clone()),
            (None, _) if facts.subject.is_empty() => return None,
            (None, _) => Subject::Attributes(facts.subject.clone()),
        };
        let had = facts.leaf.as_ref().map(|leaf| leaf.sans.clone()).unwrap_or_default();
        // A name that configuration asks for is not one that ipguard decided to add.
        let added = sans.difference(&had).filter(|san| !input.configured.sans.contains(san)).cloned().collect();
        Some(IssueOrder {
            certificate: facts.name.clone(),
            purpose: facts.role.purpose(),
            request: template.map(|t| request::render(t, &sans)),
            dropped: had.difference(&sans).cloned().collect(),
            added,
            sans,
            subject,
            not_before,
            not_after,
            new_key: facts.key.is_err(),
            authority_key_id: self.config.certificate.authority_key_id,
            address_caused: false,
            served,
            shown_by_kubelet: facts.role == CertificateRole::Kubelet,
        })
    }

    /// The latest moment that has surely passed: now, unless the clock is behind.
    fn known_to_have_passed(&self, case: &Case<'_>) -> Timestamp {
        let now = self.now.wall;
        if case.clock != Clock::Behind {
            return now;
        }
        let authority = case.checked.facts.signer().map_or(now, |signer| signer.not_before);
        now.max(authority).max(self.state.written)
    }

    /// What is wrong with a CA holds the next certificate, and is said before that one is due.
    fn judge_authority(&self, facts: &CertificateFacts, clock: Clock, draft: &mut Draft) {
        let faults = holds::on_issuing(facts, self.state, self.now, clock);
        let faults = faults.into_iter().filter(|hold| hold.code != HoldCode::ClockUnsynchronised);
        draft.holds.extend(faults.map(|hold| Hold { detail: format!("{}: {}", facts.name, hold.detail), ..hold }));
        let end = self.end_of_authority(facts);
        draft.holds.extend(end.map(|detail| Hold { code: HoldCode::CaExpiring, detail, until: None }));
    }

    /// A CA that ends soon: no certificate of it can live longer.
    fn end_of_authority(&self, facts: &CertificateFacts) -> Option<String> {
        let signer = facts.signer().filter(|signer| self.now.wall < signer.not_after)?;
        let leaf = facts.leaf.as_ref().ok();
        let near = self.config.certificate.renew_before.unwrap_or(self.config.certificate.validity / 3);
        let said = format!("the CA of {} expires at {}", facts.name, signer.not_after);
        if leaf.is_some_and(|leaf| signer.not_after < leaf.not_after) {
            return Some(format!("{said}, before the certificate does: clients refuse it from then on"));
        }
        (signer.not_after.since(self.now.wall) < near).then_some(said)
    }
}

/// Whether a certificate that is not there is none of the distribution's: old nodes have no kubelet certificate, and
/// without a CA of its own nobody uses a front-proxy one.
fn is_not_missed(facts: &CertificateFacts) -> bool {
    let wanted = match facts.role {
        CertificateRole::ApiServer => true,
        CertificateRole::ProxyClient => facts.authority.is_ok(),
        CertificateRole::Kubelet => false,
    };
    facts.is_absent() && !wanted
}

/// What a new certificate does not have of the one before, besides the names that the plan shows.
fn not_kept(facts: &CertificateFacts) -> Option<String> {
    let others = &facts.leaf.as_ref().ok()?.other_names;
    let names = others.join(", ");
    (!others.is_empty())
        .then(|| format!("{}: the new certificate does not keep {names}: no client looks for it", facts.name))
}

/// What nobody can confirm about a certificate that no port shows.
fn unverified(facts: &CertificateFacts) -> Option<String> {
    let shown = facts.role != CertificateRole::ProxyClient;
    (!shown)
        .then(|| format!("{}: no port shows it, so whether the API server has loaded it is not verified", facts.name))
}
