//! One pass: from facts to a plan.
//!
//! In: everything observed, the configuration, the state, `now`, and who asks. Out: a [`Plan`] with all reasons, all
//! holds, the steps in order, and the state as this observation leaves it. The rule of this file: it only puts together
//! what the other files of the folder find.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::config::Config;
use crate::decide::case::Grounds;
use crate::decide::classify::classify;
use crate::decide::mend::{self, Mend};
use crate::decide::names::{self, Configured};
use crate::decide::node_address::{self, NodeAddresses};
use crate::decide::plan::{
    Hold, HoldCode, IssueOrder, Mode, Plan, Reason, ReasonCode, SanPlan, Step, Subject, Summary,
};
use crate::decide::request;
use crate::decide::state::State;
use crate::decide::steps::next_question;
use crate::decide::verdict::{Class, Classification};
use crate::decide::{checks, clock, holds, remember, restart};
use crate::facts::Observed;
use crate::facts::certificate::CertificateFacts;
use crate::facts::cluster::{Cluster, Role, Service};
use crate::facts::san::{San, SanSet};
use crate::facts::time::{Now, Timestamp};

/// Makes the plan of one pass. `services` are the profile's and the configuration's.
pub fn plan(observed: &Observed, services: &[Service], config: &Config, state: &State, now: Now, mode: Mode) -> Plan {
    let state = clock::adjusted(state, &observed.boot_id, now);
    let interrupted = state.issuing.is_some();
    let state = match &observed.cluster {
        Some(cluster) => &state.resumed(&cluster.certificates),
        None => &state,
    };
    let pass = Pass::survey(observed, services, config, state, now, mode);
    match &observed.cluster {
        Some(cluster) => pass.conclude(cluster, interrupted),
        None => pass.addresses_only(),
    }
}

/// A pass under way.
pub(super) struct Pass<'a> {
    pub(super) observed: &'a Observed,
    pub(super) services: &'a [Service],
    pub(super) config: &'a Config,
    pub(super) state: &'a State,
    pub(super) now: Now,
    pub(super) mode: Mode,
    pub(super) classes: Classification,
    pub(super) node: NodeAddresses,
    pub(super) configured: Configured,
    pub(super) certificate_ips: BTreeSet<IpAddr>,
}

impl<'a> Pass<'a> {
    fn survey(
        observed: &'a Observed,
        services: &'a [Service],
        config: &'a Config,
        state: &'a State,
        now: Now,
        mode: Mode,
    ) -> Self {
        let cluster = observed.cluster.as_ref();
        let configured = cluster.map(|c| names::configured(c, config)).unwrap_or_default();
        let no_arguments = crate::facts::cluster::Arguments::default();
        let arguments = cluster.map_or(&no_arguments, |c| &c.arguments);
        let mut pins: BTreeMap<IpAddr, String> = BTreeMap::new();
        for (address, who) in names::pins(arguments, config) {
            pins.entry(address).or_insert_with(|| who.to_owned());
        }
        let certificate_ips: BTreeSet<IpAddr> = cluster
            .and_then(|c| c.certificates.first())
            .and_then(|facts| facts.leaf.as_ref().ok())
            .map(|leaf| leaf.sans.difference(&configured.sans).filter_map(San::as_ip).collect())
            .unwrap_or_default();
        let cluster_cidrs: Vec<ipnet::IpNet> =
            arguments.pod_cidrs.iter().chain(&arguments.service_cidrs).copied().collect();
        let classes = classify(&Grounds {
            network: &observed.network,
            config,
            state,
            now,
            pins: &pins,
            cluster_cidrs: &cluster_cidrs,
            certificate_ips: &certificate_ips,
        });
        let node =
            node_address::choose(&observed.network, &classes, cluster.map(|c| &c.arguments), config, state, now, mode);
        Self { observed, services, config, state, now, mode, classes, node, configured, certificate_ips }
    }

    /// No distribution here: the addresses are all there is to say.
    fn addresses_only(self) -> Plan {
        let primary = self.classes.primary();
        let san = SanPlan { desired: primary.into_iter().map(San::ip).collect(), ..SanPlan::default() };
        let mut draft = Draft { san, ..Draft::default() };
        if let Some(why) = &self.observed.data_missing {
            draft.hold(HoldCode::DataMissing, &format!("{why}; everything waits until it is there"));
        }
        self.finish(draft)
    }

    fn conclude(self, cluster: &Cluster, interrupted: bool) -> Plan {
        let mut draft = Draft::default();
        let server = cluster.certificates.first();
        let leaf = server.and_then(|facts| facts.leaf.as_ref().ok());
        let nothing = SanSet::new();
        let certificate = leaf.map_or(&nothing, |leaf| &leaf.sans);
        let node: BTreeSet<IpAddr> = self.node.of.values().copied().collect();
        draft.san =
            names::weigh(&self.configured, &self.classes, &node, certificate, self.config, self.state, self.now);
        self.notice(cluster, &mut draft);

        if !self.observed.network.complete {
            draft.hold(HoldCode::SnapshotIncomplete, "the address list was interrupted; it is taken again");
            return self.finish(draft);
        }
        let mut on_everything = holds::on_everything(cluster, self.config, self.now);
        if self.mode == Mode::Daemon {
            on_everything.extend(holds::another_guard(self.services, self.observed));
        }
        let address_holds = self.address_holds(cluster, leaf.is_some());

        let mut orders = Vec::new();
        for facts in &cluster.certificates {
            self.judge_certificate(cluster, facts, &address_holds, &mut draft, &mut orders);
        }
        // A certificate that is made, or held back, has its request file made with it.
        let in_step = !draft.reasons.iter().any(|reason| server.is_some_and(|s| s.name == reason.certificate));
        let service = self.service(Role::ApiServer);
        let decision = restart::decide(&restart::Input {
            observed: self.observed,
            cluster,
            config: self.config,
            state: self.state,
            classes: &self.classes,
            node: &self.node,
            leaf,
            certificate_ips: &self.certificate_ips,
            address_holds: &address_holds,
            service: service.and_then(|s| self.observed.services.get(&s.name)),
            now: self.now,
            mode: self.mode,
        });
        draft.advertised.clone_from(&decision.advertised);
        draft.needs_services = decision.needs_service || (!orders.is_empty() && self.observed.services.is_empty());
        draft.holds.extend(decision.holds.iter().cloned());
        let certificate_name = server.map(|s| s.name.clone()).unwrap_or_default();
        for (code, detail) in &decision.wanted {
            draft.reasons.push(Reason { code: *code, certificate: certificate_name.clone(), detail: detail.clone() });
        }
        let may_restart = !decision.wanted.is_empty() && decision.holds.is_empty();
        self.hold_promotions(&mut draft);

        if !on_everything.is_empty() {
            let something = !orders.is_empty() || !decision.wanted.is_empty() || self.has_unfinished_work();
            if something || on_everything.iter().any(|h| h.code == HoldCode::ConfigurationConflict) {
                draft.holds.splice(0..0, on_everything);
            }
            draft.needs_services = false;
            return self.finish(draft);
        }
        if in_step {
            draft.mend = mend::owed(cluster, interrupted);
            draft.notices.extend(draft.mend.iter().map(|mend| mend.why.clone()));
        }
        let unusable_before = leaf.is_none() || server.is_some_and(|s| s.key.is_err());
        draft.caller_restarts = may_restart || (unusable_before && !orders.is_empty());
        self.order_steps(cluster, orders, may_restart.then_some(&decision.wanted), service, &mut draft);
        self.finish(draft)
    }

    /// Holds on following addresses, with those that need the network: a first certificate is made with what there is.
    fn address_holds(&self, cluster: &Cluster, usable_certificate: bool) -> Vec<Hold> {
        let mut holds = holds::on_addresses(cluster, self.state, self.config, self.now);
        if usable_certificate && self.observed.network.default_routes.is_empty() {
            let detail = "the host has no default route; the certificate stays until it has one";
            holds.push(Hold { code: HoldCode::NoDefaultRoute, detail: detail.to_owned(), until: None });
        }
        holds
    }

    /// Adds a certificate's reasons, its holds, and the order to make it where nothing speaks against it.
    fn judge_certificate(
        &self,
        cluster: &Cluster,
        facts: &CertificateFacts,
        address_holds: &[Hold],
        draft: &mut Draft,
        orders: &mut Vec<IssueOrder>,
    ) {
        let served = cluster.certificates.first().is_some_and(|first| first.name == facts.name);
        // Only the served one names the host's addresses and what the template asks for; others keep their names.
        let kept = SanPlan::keeping(facts.leaf.as_ref().ok().map(|leaf| &leaf.sans));
        let (san, configured) = if served { (&draft.san, &self.configured) } else { (&kept, &Configured::default()) };
        let input = checks::Input { facts, san, configured, config: self.config, now: self.now };
        let reasons = checks::reasons(&input);
        if reasons.is_empty() {
            return;
        }
        let address_caused = reasons.iter().all(|r| r.code.is_address_caused());
        let mut holding: Vec<Hold> = holds::foreign_issuer(cluster, facts).into_iter().collect();
        holding.extend(holds::on_issuing(facts, self.state, self.now));
        if address_caused {
            holding.extend(address_holds.iter().cloned());
        }
        let no_names = facts.leaf.is_err() && cluster.template.as_ref().is_some_and(Result::is_err);
        if no_names {
            let detail = "the template cannot be read, so the names a first certificate needs are not known";
            holding.push(Hold { code: HoldCode::TemplateUnreadable, detail: detail.to_owned(), until: None });
        }
        let order = if holding.is_empty() { self.order(cluster, &input, served) } else { None };
        draft.holds.append(&mut holding);
        draft.reasons.extend(reasons);
        orders.extend(order.map(|order| IssueOrder { address_caused, ..order }));
    }

    fn order(&self, cluster: &Cluster, input: &checks::Input<'_>, served: bool) -> Option<IssueOrder> {
        let facts = input.facts;
        let (not_before, not_after) = checks::validity(input)?;
        let mut sans = input.san.desired.clone();
        if served {
            sans = names::of_new_certificate(input.san, &self.configured, &self.classes, self.config);
            if facts.leaf.is_err() && !self.configured.manual {
                sans.extend(names::remembered(&self.classes, self.config, self.state, self.now));
            }
        }
        let template = cluster.template.as_ref().and_then(|t| t.as_ref().ok()).filter(|_| served);
        let subject = match (template, &facts.leaf) {
            (Some(template), _) => Subject::Attributes(template.subject.clone()),
            (None, Ok(leaf)) => Subject::Keep(leaf.subject.clone()),
            (None, Err(_)) => return None,
        };
        let had = facts.leaf.as_ref().map(|leaf| leaf.sans.clone()).unwrap_or_default();
        // A name that configuration asks for is not one that ipguard decided to add.
        let added = sans.difference(&had).filter(|san| !self.configured.sans.contains(san)).cloned().collect();
        Some(IssueOrder {
            certificate: facts.name.clone(),
            request: template.map(|t| request::render(t, &sans)),
            added,
            sans,
            subject,
            not_before,
            not_after,
            new_key: facts.key.is_err(),
            authority_key_id: self.config.certificate.authority_key_id,
            address_caused: false,
            served,
        })
    }

    fn hold_promotions(&self, draft: &mut Draft) {
        if let Some(due) = self.classes.promotion_due {
            let detail = "a link has lost its primary address; another takes its place if it does not return";
            draft.holds.push(Hold { code: HoldCode::Settling, detail: detail.to_owned(), until: Some(due) });
        }
        for address in &self.classes.dad_failed {
            draft.hold(
                HoldCode::DadFailed,
                &format!("{address} failed duplicate address detection: another host has it"),
            );
        }
        let settled = self.classes.verdicts.iter().all(|v| v.class != Class::Unsettled || is_link_local(v.address));
        if self.classes.primary().is_empty() && settled && self.certificate_exists() {
            draft.hold(HoldCode::NoPrimaryAddress, "no address is the node's own; the certificate stays as it is");
        }
    }

    fn certificate_exists(&self) -> bool {
        self.observed.cluster.iter().flat_map(|c| &c.certificates).any(|facts| facts.leaf.is_ok())
    }

    fn notice(&self, cluster: &Cluster, draft: &mut Draft) {
        draft.notices.extend(self.classes.notices.iter().cloned());
        draft.notices.extend(holds::left_behind(cluster, self.now));
        draft.notices.extend(cluster.arguments.errors.iter().map(|e| format!("{e}; nothing is dropped meanwhile")));
        if let Some(Err(error)) = &cluster.template {
            draft.notices.push(format!("{error}; names are kept as they are in the certificate"));
        }
        if !draft.san.left_out.is_empty() {
            let names: Vec<String> = draft.san.left_out.iter().map(San::to_string).collect();
            draft.notices.push(format!(
                "more than {} names: left out {}; pin those that clients need",
                names::MOST_SANS,
                names.join(", ")
            ));
        }
        if self.state.unconfirmed.as_ref().is_some_and(|u| u.stale && u.restarted) {
            draft.notices.push(
                "the API server serves another certificate even after a restart: is another program on its port, or \
                 --tls-sni-cert-key in its arguments?"
                    .to_owned(),
            );
        }
        for facts in &cluster.certificates {
            if let Some(signer) = facts.signer()
                && signer.not_after.since(self.now.wall) < self.config.certificate.renew_before
            {
                draft.notices.push(format!("the CA of {} expires at {}", facts.name, signer.not_after));
            }
        }
    }

    fn has_unfinished_work(&self) -> bool {
        self.state.unconfirmed.is_some() || !self.state.owed_restarts.is_empty()
    }

    fn service(&self, role: Role) -> Option<&'a Service> {
        self.services.iter().find(|s| s.role == role)
    }

    fn finish(self, draft: Draft) -> Plan {
        let issues = draft.steps.iter().any(|s| matches!(s, Step::Issue(_)));
        let restarts = draft.caller_restarts && self.mode == Mode::Hook
            || draft
                .steps
                .iter()
                .any(|s| matches!(s, Step::Restart { reason, .. } if *reason != ReasonCode::LoadedOnce));
        let summary = match (issues, restarts) {
            (true, true) => Summary::ReissueAndRestart,
            (true, false) => Summary::Reissue,
            (false, true) => Summary::Restart,
            (false, false) if draft.holds.is_empty() => Summary::InStep,
            (false, false) => Summary::Hold,
        };
        // Without the distribution's files - for a moment of each refresh they cannot be found - neither pins nor pod
        // networks are known: what such a pass makes of an address is not remembered.
        let state = if self.observed.network.complete && self.observed.cluster.is_some() {
            remember::after(
                self.state,
                &remember::Pass {
                    network: &self.observed.network,
                    classes: &self.classes,
                    node: &self.node,
                    desired: &draft.san.desired,
                    advertised: draft.advertised.as_ref(),
                    started: restart::started(self.service(Role::ApiServer), self.observed, self.now),
                    last_true: restart::last_true(self.observed, self.config, self.state, self.now),
                    boot_id: &self.observed.boot_id,
                    now: self.now,
                },
            )
        } else {
            self.state.clone()
        };
        let look_again = self.look_again(&draft);
        Plan {
            summary,
            reasons: draft.reasons,
            holds: draft.holds,
            notices: draft.notices,
            steps: draft.steps,
            mend: draft.mend,
            san: draft.san,
            addresses: self.classes.verdicts,
            node_address: self.node.of,
            state,
            needs_services: draft.needs_services,
            load_once_services: self
                .services
                .iter()
                .filter(|s| s.role == Role::LoadsCertificateOnce)
                .map(|s| s.name.clone())
                .collect(),
            caller_restarts: draft.caller_restarts,
            look_again,
        }
    }

    /// When time alone will change the plan.
    fn look_again(&self, draft: &Draft) -> Option<Timestamp> {
        let holds = draft.holds.iter().filter_map(|h| h.until);
        let question = self.state.unconfirmed.as_ref().filter(|u| !u.stale).and_then(next_question);
        let expiry = self
            .observed
            .cluster
            .iter()
            .flat_map(|c| &c.certificates)
            .filter_map(|facts| Some(facts.leaf.as_ref().ok()?.not_after - self.config.certificate.renew_before));
        // Nothing tells when a service manager is able to answer again, or when the other guard ends.
        let asked = |h: &Hold| matches!(h.code, HoldCode::ServiceInactive | HoldCode::AnotherGuardActive);
        let unknown = draft.holds.iter().any(asked);
        let unknown = unknown.then(|| self.now.wall + ASK_AGAIN);
        holds
            .chain(self.node.waiting_until)
            .chain(question)
            .chain(expiry)
            .chain(unknown)
            .filter(|at| *at > self.now.wall)
            .min()
    }
}

/// Link-local addresses are never a node's; one under duplicate detection is no reason to wait.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
/// When services whose states nobody could tell are asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// A plan being put together.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) reasons: Vec<Reason>,
    pub(super) holds: Vec<Hold>,
    pub(super) notices: Vec<String>,
    pub(super) steps: Vec<Step>,
    pub(super) mend: Option<Mend>,
    pub(super) san: SanPlan,
    pub(super) advertised: Option<crate::decide::state::Advertised>,
    pub(super) needs_services: bool,
    pub(super) caller_restarts: bool,
}

impl Draft {
    fn hold(&mut self, code: HoldCode, detail: &str) {
        self.holds.push(Hold { code, detail: detail.to_owned(), until: None });
    }
}
