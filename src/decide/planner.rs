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
use crate::decide::plan::{Hold, HoldCode, Mode, Plan, Question, Reason, ReasonCode, SanPlan, Step, Summary};
use crate::decide::state::{State, Unconfirmed};
use crate::decide::steps::next_question;
use crate::decide::verdict::{Class, Classification};
use crate::decide::word::Word;
use crate::decide::{checks, clock, credible, down, holds, ready, remember, restart, rollback, takeover};
use crate::facts::cluster::{Cluster, Role, Service};
use crate::facts::san::{San, SanSet};
use crate::facts::time::{Now, Timestamp};
use crate::facts::{Observed, Problem};

/// Makes the plan of one pass. `services` are the profile's and the configuration's.
pub fn plan(observed: &Observed, services: &[Service], config: &Config, state: &State, now: Now, mode: Mode) -> Plan {
    let state = credible::about_this_host(clock::adjusted(state, &observed.boot_id, now), observed);
    let interrupted = state.issuing.is_some();
    let mut state = match &observed.cluster {
        Some(cluster) => state.resumed(&cluster.certificates),
        None => state,
    };
    state.end_rollbacks_of_other_configurations(observed.configuration.as_deref());
    let pass = Pass::survey(observed, services, config, &state, now, mode);
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
    /// The configuration with the template's validity, where that counts.
    pub(super) of_template: Option<Config>,
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
        let named: SanSet = cluster
            .and_then(|c| c.certificates.first())
            .and_then(|facts| facts.leaf.as_ref().ok())
            .map(|leaf| leaf.sans.clone())
            .unwrap_or_default();
        let (configured_ips, certificate_ips): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) =
            named.iter().filter_map(San::as_ip).partition(|ip| configured.sans.contains(&San::ip(*ip)));
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
            configured_ips: &configured_ips,
        });
        let node = node_address::choose(&node_address::Input {
            network: &observed.network,
            classes: &classes,
            certificate: &certificate_ips,
            arguments: cluster.map(|c| &c.arguments),
            config,
            state,
            now,
            mode,
        });
        let of_template = cluster.and_then(|cluster| with_validity_of_template(cluster, config));
        Self { observed, services, config, state, now, mode, classes, node, configured, of_template, certificate_ips }
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
        if self.observed.exact && self.configured.complete && server.is_some_and(|facts| self.is_forced(&facts.name)) {
            draft.san.dropped.clone_from(&draft.san.extra);
        }
        self.notice(cluster, &mut draft);

        if !self.observed.network.complete {
            draft.hold(HoldCode::SnapshotIncomplete, "the address list was interrupted; it is taken again");
            return self.finish(draft);
        }
        let mut takeover = takeover::decide(self.services, self.observed, self.state, self.now, self.mode);
        draft.notices.extend(takeover.notice.take());
        draft.look_again = takeover.look_again;
        let mut on_everything = holds::on_everything(cluster, self.config, self.now);
        if on_everything.iter().any(|hold| hold.code == HoldCode::JoinInProgress) {
            // A join stops and starts services itself; the end of its lock is an event.
            takeover = takeover::Takeover::default();
        }
        if self.mode == Mode::Daemon {
            on_everything.extend(holds::another_guard(self.services, self.observed, takeover.waits));
        }
        let address_holds = self.address_holds(cluster, leaf.is_some());

        let mut orders = Vec::new();
        for facts in &cluster.certificates {
            self.judge_certificate(cluster, facts, &address_holds, &mut draft, &mut orders);
        }
        // A certificate that is made, or held back, has its request file made with it.
        let in_step = !draft.reasons.iter().any(|reason| server.is_some_and(|s| s.name == reason.certificate));
        let service = self.api_server();
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
        draft.word.clone_from(&decision.word);
        draft.needs_listed.clone_from(&decision.needs_word);
        draft.notices.extend(draft.word.as_ref().or(self.state.word.as_ref()).and_then(Word::notice));
        draft.needs_services = decision.needs_service
            || decision.needs_word.is_some()
            || (!orders.is_empty() && self.observed.services.is_empty());
        draft.holds.extend(decision.holds.iter().cloned());
        let certificate_name = server.map(|s| s.name.clone()).unwrap_or_default();
        draft.reasons.extend(decision.wanted.iter().cloned());
        let may_restart = !decision.wanted.is_empty() && decision.holds.is_empty();
        self.hold_promotions(&mut draft);
        self.hold_manual_template(&mut draft);
        Self::hold_unreadable_template(cluster, &mut draft);

        if !on_everything.is_empty() {
            let something = !draft.reasons.is_empty() || self.has_unfinished_work();
            if something || on_everything.iter().any(|h| h.code == HoldCode::ConfigurationConflict) {
                draft.holds.splice(0..0, on_everything);
            }
            draft.needs_services = false;
            draft.needs_listed = None;
            self.take_over(takeover, &mut draft);
            return self.finish(draft);
        }
        // A rollback that was cut short behind its certificate: that one is held, so nothing else writes the request file.
        let cut_short = interrupted && self.state.rollback_of(&certificate_name).is_some();
        if in_step || cut_short {
            draft.mend = mend::owed(cluster, interrupted);
            draft.notices.extend(draft.mend.iter().map(|mend| mend.why.clone()));
        }
        let unusable_before = leaf.is_none() || server.is_some_and(|s| s.key.is_err());
        if let Some(step) = self.put_back(server, &orders, &mut draft) {
            // Everything else is looked at again behind it: the port first of all.
            draft.steps.push(step);
            return self.finish(draft);
        }
        draft.caller_restarts = may_restart || (unusable_before && orders.iter().any(|order| order.served));
        self.order_steps(cluster, orders, may_restart.then_some(&decision.wanted), service, &mut draft);
        self.take_over(takeover, &mut draft);
        self.finish(draft)
    }

    /// Another guard is turned off before anything else: what is made meanwhile it might make anew.
    fn take_over(&self, takeover: takeover::Takeover, draft: &mut Draft) {
        draft.needs_services |= takeover.needs_services;
        let (steps, reasons): (Vec<Step>, Vec<Reason>) = takeover.steps.into_iter().unzip();
        draft.reasons.extend(reasons);
        if steps.iter().any(|step| self.backs_off(step)) {
            self.hold_failed(draft);
        }
        draft.steps.splice(0..0, steps.into_iter().filter(|step| !self.backs_off(step)));
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

    /// The configuration that counts for a certificate; the template is the server's.
    pub(super) fn config_for(&self, served: bool) -> &Config {
        self.of_template.as_ref().filter(|_| served).unwrap_or(self.config)
    }

    pub(super) fn is_forced(&self, certificate: &str) -> bool {
        self.observed.forced.contains(certificate)
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

    /// A template without the marker freezes the names. Whoever relies on an address of the node must hear of it.
    fn hold_manual_template(&self, draft: &mut Draft) {
        let missing: Vec<String> = self
            .classes
            .primary()
            .into_iter()
            .filter(|address| self.configured.manual && !draft.san.certificate.contains(&San::ip(*address)))
            .map(|address| address.to_string())
            .collect();
        if !missing.is_empty() {
            let detail = format!(
                "the template has no {} line, so its names are all: {} is not among them",
                crate::facts::cluster::MARKER,
                missing.join(", ")
            );
            draft.hold(HoldCode::ManualTemplate, &detail);
        }
    }

    /// What the template asks for is not known. The rest goes on, with the names that are in the certificate.
    fn hold_unreadable_template(cluster: &Cluster, draft: &mut Draft) {
        let Some(Err(error)) = &cluster.template else { return };
        let detail = format!("{error}; what it asks for waits, and names are kept as they are in the certificate");
        if error.problem == Problem::Missing {
            // Editors and scripts take it away for a moment.
            draft.notices.push(detail);
        } else if draft.holds.iter().all(|hold| hold.code != HoldCode::TemplateUnreadable) {
            draft.hold(HoldCode::TemplateUnreadable, &detail);
        }
    }

    fn certificate_exists(&self) -> bool {
        let server = self.observed.cluster.as_ref().and_then(|cluster| cluster.certificates.first());
        server.is_some_and(|facts| facts.leaf.is_ok())
    }

    fn notice(&self, cluster: &Cluster, draft: &mut Draft) {
        draft.notices.extend(self.classes.notices.iter().cloned());
        draft.notices.extend(holds::left_behind(cluster, self.now));
        draft.notices.extend(cluster.foreign_unreadable.iter().map(|e| format!("{e}; what is not ours is left alone")));
        draft.notices.extend(cluster.arguments.errors.iter().map(|e| format!("{e}; nothing is dropped meanwhile")));
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
        if self.state.unconfirmed_kubelet.as_ref().is_some_and(|u| u.stale && u.restarted) {
            draft.notices.push("the kubelet serves its certificate before even after a restart".to_owned());
        }
        draft.notices.extend(self.state.unconfirmed.as_ref().and_then(rollback::silent_after_restart));
        let service = self.api_server();
        let state = service.and_then(|service| self.observed.services.get(&service.name));
        match down::behind_our_restart(self.state, state).zip(service) {
            Some((down, service)) => draft.notices.push(down.notice(service)),
            None => draft.notices.extend(ready::not_ready(self.state)),
        }
        if self.observed.exact && !self.configured.complete {
            draft.notices.push("not every configured name is known, so none is dropped".to_owned());
        }
    }

    /// What was put in place and no port has shown yet.
    pub(super) fn unconfirmed(&self) -> impl Iterator<Item = &Unconfirmed> {
        self.state.unconfirmed.iter().chain(&self.state.unconfirmed_kubelet)
    }

    fn has_unfinished_work(&self) -> bool {
        self.unconfirmed().next().is_some() || !self.state.owed_restarts.is_empty()
    }

    /// The service that runs the API server here.
    pub(super) fn api_server(&self) -> Option<&'a Service> {
        let with_role = |role| self.services.iter().find(|s| s.role == role);
        let one_process = self.observed.cluster.as_ref().is_none_or(|cluster| cluster.locks.contains_key(ONE_PROCESS));
        let (now, former) = (with_role(Role::ApiServer), with_role(Role::FormerApiServer));
        // Somebody may have removed the lock under a kubelite that runs on.
        let runs = |service: Option<&Service>| {
            service.and_then(|s| self.observed.services.get(&s.name)).and_then(|state| state.active)
        };
        let replaced = runs(now) == Some(true) && runs(former) != Some(true);
        if one_process || replaced { now } else { former.or(now) }
    }

    fn finish(self, draft: Draft) -> Plan {
        let issues = draft.steps.iter().any(|s| matches!(s, Step::Issue(_) | Step::PutBack { .. }));
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
                    word: draft.word.as_ref(),
                    waiting_for_joins: draft.waiting_for_joins,
                    started: restart::started(self.api_server(), self.observed, self.now),
                    last_true: restart::last_true(self.observed, self.config, self.state, self.now),
                    boot_id: &self.observed.boot_id,
                    clock_synchronised: self.observed.clock_synchronised,
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
            needs_listed: draft.needs_listed,
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
        let questions = self.unconfirmed().filter(|u| !u.stale).filter_map(next_question);
        let ready = self.state.awaited_ready.as_ref().and_then(ready::AwaitedReady::next_question);
        let word = draft.word.as_ref().or(self.state.word.as_ref()).and_then(Word::next_question);
        let expiry = self
            .observed
            .cluster
            .iter()
            .flat_map(|c| c.certificates.iter().enumerate())
            .filter_map(|(index, facts)| Some((index == 0, facts.leaf.as_ref().ok()?)))
            .flat_map(|(served, leaf)| checks::due(leaf, self.config_for(served)));
        // Nothing tells when a service manager is able to answer again, when the other guard ends, or the clock is set.
        let asked = |h: &Hold| match h.code {
            HoldCode::ServiceInactive | HoldCode::AnotherGuardActive | HoldCode::LocksUnreadable => true,
            HoldCode::ClockUnsynchronised => h.until.is_none(),
            _ => false,
        };
        let unknown = draft.holds.iter().any(asked);
        let unknown = unknown.then(|| self.now.wall + ASK_AGAIN);
        holds
            .chain(self.node.waiting_until)
            .chain(questions)
            .chain(ready)
            .chain(word)
            .chain(expiry)
            .chain(unknown)
            .chain(draft.look_again)
            .filter(|at| *at > self.now.wall)
            .min()
    }
}

/// The template's `default_days`, unless ipguard's own configuration says how long a certificate lasts, or how long before
/// its end it is renewed and that is longer.
fn with_validity_of_template(cluster: &Cluster, config: &Config) -> Option<Config> {
    let validity = cluster.template.as_ref()?.as_ref().ok()?.validity?;
    let said = config.certificate.validity != Config::default().certificate.validity;
    let fits = config.certificate.renew_before.is_none_or(|before| before < validity);
    (!said && fits).then(|| {
        let mut config = config.clone();
        config.certificate.validity = validity;
        config
    })
}

/// Link-local addresses are never a node's; one under duplicate detection is no reason to wait.
fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
/// Lock file of nodes on which kubelite runs all components.
const ONE_PROCESS: &str = "lite.lock";

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
    pub(super) word: Option<Word>,
    pub(super) needs_listed: Option<Question>,
    pub(super) waiting_for_joins: Option<Timestamp>,
    pub(super) needs_services: bool,
    pub(super) caller_restarts: bool,
    pub(super) look_again: Option<Timestamp>,
}

impl Draft {
    fn hold(&mut self, code: HoldCode, detail: &str) {
        self.holds.push(Hold { code, detail: detail.to_owned(), until: None });
    }
}
