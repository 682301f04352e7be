//! A node with everything around it: who restarts what, what fails, and what the API server advertises in truth.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ipguard::decide::node_address::api_server_choice;
use ipguard::decide::outcome::{StepOutcome, StepResult};
use ipguard::decide::plan::{Plan, ReasonCode, Step};
use ipguard::decide::state::State;
use ipguard::facts::certificate::Fingerprint;
use ipguard::facts::cluster::ServiceState;
use ipguard::facts::san::San;
use ipguard::facts::time::Timestamp;

use super::Event;
use super::hosts::{DEPRECATED, Host, ip};

/// How long what an API server has put on the list stays there without it.
const LEASE: Duration = Duration::from_secs(15);
/// How long it takes until one that is started is on the list.
const REGISTERS: Duration = Duration::from_secs(10);

/// A node with everything around it.
pub(crate) struct World {
    pub(crate) host: Host,
    /// The address that is the node's, in truth.
    pub(crate) own: IpAddr,
    pub(crate) api_server: Option<Running>,
    pub(crate) failing: u8,
    next: u8,
    pub(crate) vips: Vec<IpAddr>,
    restarts: Vec<Timestamp>,
    pub(crate) reissues: usize,
    /// Changes that may each cost a reissue.
    pub(crate) changes: usize,
    pub(crate) log: Vec<String>,
    boot: u32,
    /// Nobody can know what the API server advertises: the state was lost while it was not the node's address, or somebody
    /// else restarted it and the next change came so soon that it may have come before.
    pub(crate) forgotten: bool,
    /// The state was lost while the certificate lacked the node's address, or the API server advertised another: all
    /// the evidence may say that the node moved.
    pub(crate) blind: bool,
    /// A VIP has taken the place of the node's address at some time.
    pub(crate) stood_in: bool,
    /// There are credentials, and these are on the list besides ours: the other control planes.
    told: Option<Vec<IpAddr>>,
    /// What the process before advertised, until its lease ends.
    former: Option<(IpAddr, Timestamp)>,
    /// How often the list was asked for.
    pub(crate) asked: usize,
}

/// The API server's process.
pub(crate) struct Running {
    pub(crate) advertises: Option<IpAddr>,
    since: Timestamp,
    by_others: bool,
    serves: Fingerprint,
}

impl World {
    /// `told` are the other control planes' addresses, where there are credentials to ask for the list of all.
    pub(crate) fn new(told: Option<Vec<IpAddr>>) -> Self {
        let mut host = Host::usual();
        host.credentials = told.is_some();
        // Long before the first event.
        host.services.clear();
        host.watched_since = Some(host.now.wall - Duration::from_secs(600));
        let mut world = Self {
            host,
            own: ip("192.0.2.10"),
            api_server: None,
            failing: 0,
            next: 20,
            vips: Vec::new(),
            restarts: Vec::new(),
            reissues: 0,
            changes: 0,
            log: Vec::new(),
            boot: 0,
            forgotten: false,
            blind: false,
            stood_in: false,
            told,
            former: None,
            asked: 0,
        };
        world.start_api_server(true);
        world.look();
        world.advance(Duration::from_secs(60));
        world
    }

    fn say(&mut self, line: String) {
        let at = self.host.now.wall.seconds() - 1_800_000_000;
        self.log.push(format!("{at:>8} {line}"));
    }

    fn fingerprint(&self) -> Fingerprint {
        self.host.cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint
    }

    fn start_api_server(&mut self, by_others: bool) {
        let advertises = api_server_choice(&self.host.network, self.host.now, None);
        self.stop_api_server();
        self.forgotten = false;
        self.api_server =
            Some(Running { advertises, since: self.host.now.wall, by_others, serves: self.fingerprint() });
        self.host.service_since(self.host.now.uptime);
        self.say(format!("API server started, advertises {advertises:?}"));
    }

    fn stop_api_server(&mut self) {
        let advertised = self.api_server.take().and_then(|running| running.advertises);
        self.former = advertised.map(|address| (address, self.host.now.wall + LEASE));
        self.host.services.insert(
            "kubelite".to_owned(),
            ServiceState {
                active: Some(false),
                started: None,
                main_process: None,
                standing: Default::default(),
                detail: "inactive".to_owned(),
            },
        );
    }

    /// Time passes as the daemon lives it: whenever a plan says that time alone changes it, it looks again.
    pub(crate) fn pass_time(&mut self, span: Duration) {
        let end = self.host.now.wall + span;
        let mut looks = 0;
        loop {
            let at = self.look();
            match at {
                Some(at) if at <= end => {
                    assert!(at > self.host.now.wall, "look_again lies in the past");
                    self.advance(at.since(self.host.now.wall));
                }
                _ => break,
            }
            looks += 1;
            assert!(looks < 60 + span.as_secs() / 600, "looks again and again: {:?}", self.log);
        }
        self.advance(end.since(self.host.now.wall));
    }

    fn advance(&mut self, span: Duration) {
        self.host.pass_time(span);
        // Who holds a finite lifetime renews it.
        let stamp = u32::try_from(self.host.now.uptime.as_millis() / 10).expect("not up for that long");
        for address in self.host.network.addresses.iter_mut().filter(|a| a.valid.is_some()) {
            address.updated = Some(stamp);
        }
    }

    /// One settled look: passes until nothing is left to do. When to look again.
    fn look(&mut self) -> Option<Timestamp> {
        for _ in 0..12 {
            let plan = self.plan();
            if !plan.has_steps() {
                self.check_in_step(&plan);
                return plan.look_again;
            }
            self.carry_out(&plan);
        }
        panic!("steps without end: {:#?}", self.log);
    }

    /// As the daemon: services are asked for only when the plan says so.
    pub(crate) fn plan(&mut self) -> Plan {
        let before = self.host.state.clone();
        let services = std::mem::take(&mut self.host.services);
        let mut plan = self.host.plan();
        let remembered = plan.state.clone();
        self.host.services = services;
        if plan.needs_services {
            if !remembered.says_the_same(&before) {
                self.host.state = remembered;
            }
            if plan.needs_listed.is_some() {
                self.asked += 1;
                self.host.listed = Some(self.list());
            }
            plan = self.host.plan();
            self.host.listed = None;
        }
        // Only what is news is written.
        if !plan.state.says_the_same(&before) {
            self.host.state = plan.state.clone();
        } else {
            self.host.state = before;
        }
        self.stood_in |= !plan.state.promoted.is_empty();
        plan
    }

    /// The endpoints of the `kubernetes` Service, as the API server of this node gives them.
    fn list(&self) -> Result<BTreeSet<IpAddr>, String> {
        let running = self.api_server.as_ref().ok_or("connection refused")?;
        let now = self.host.now.wall;
        let ours = running.advertises.filter(|_| now.since(running.since) >= REGISTERS);
        let former = self.former.filter(|(_, until)| now < *until).map(|(address, _)| address);
        Ok(ours.into_iter().chain(former).chain(self.told.iter().flatten().copied()).collect())
    }

    fn check_in_step(&self, plan: &Plan) {
        assert!(plan.reasons.is_empty() || !plan.holds.is_empty(), "reasons without steps or holds: {:#?}", self.log);
    }

    fn carry_out(&mut self, plan: &Plan) {
        let reasons: Vec<String> = plan.reasons.iter().map(|r| format!("{}: {}", r.code, r.detail)).collect();
        self.say(format!("plan {reasons:?}"));
        let mut outcomes = Vec::new();
        let mut issue_failed = false;
        for step in &plan.steps {
            let began = self.host.now.wall;
            let result = if issue_failed {
                StepResult::Skipped("an earlier step failed".to_owned())
            } else if self.failing > 0 && !matches!(step, Step::ConfirmServed { .. }) {
                self.failing -= 1;
                issue_failed = matches!(step, Step::Issue(_));
                StepResult::Failed("no luck".to_owned())
            } else {
                self.take(step)
            };
            self.say(format!("  {step}: {result}"));
            self.advance(Duration::from_millis(300));
            outcomes.push(StepOutcome { step: step.clone(), result, began, took: Duration::from_millis(300) });
        }
        self.host.state.record(plan, &outcomes);
    }

    fn take(&mut self, step: &Step) -> StepResult {
        match step {
            Step::Issue(order) => {
                self.reissues += 1;
                let reissues = u8::try_from(self.reissues % 250).expect("a remainder");
                let fingerprint = Fingerprint([reissues; 32]);
                let leaf = self.host.cluster.certificates[0].leaf.as_mut().expect("readable");
                assert!(order.sans.is_superset(&leaf.sans) || order.sans.len() > 3, "names vanish");
                leaf.sans = order.sans.clone();
                leaf.fingerprint = fingerprint;
                leaf.not_before = order.not_before;
                leaf.not_after = order.not_after;
                if let Some(running) = &mut self.api_server {
                    running.serves = fingerprint;
                }
                StepResult::Issued { fingerprint }
            }
            Step::PutBack { .. } => panic!("this server can use every certificate: {:#?}", self.log),
            Step::ConfirmServed { .. } => match &self.api_server {
                None => StepResult::Unanswered("connection refused".to_owned()),
                Some(running) if running.serves == self.fingerprint() => StepResult::Confirmed,
                Some(running) => StepResult::Stale { served: running.serves },
            },
            Step::ConfirmReady { .. } if self.api_server.is_some() => StepResult::Ready,
            Step::ConfirmReady { .. } => StepResult::Unanswered("connection refused".to_owned()),
            Step::Restart { service, reason } if service == "kubelite" => {
                let Some(running) = &self.api_server else { return StepResult::Skipped("not running".to_owned()) };
                assert_ne!(*reason, ReasonCode::ServedStale, "this one always reloads: {:#?}", self.log);
                let advertised = running.advertises;
                let classes = self.host.classify();
                let needed = advertised.is_none_or(|a| !classes.primary().contains(&a));
                assert!(
                    needed || self.blind,
                    "restarted although {advertised:?} is there and the node's own: {:#?}",
                    self.log
                );
                let now = self.host.now.wall;
                self.restarts.push(now);
                let recent = self.restarts.iter().filter(|at| now.since(**at) < Duration::from_secs(3_600)).count();
                assert!(recent <= 3, "{recent} restarts within an hour: {:#?}", self.log);
                self.start_api_server(false);
                StepResult::Restarted
            }
            Step::Restart { .. } => StepResult::Restarted,
            Step::Disable { .. } => panic!("nobody has ordered a takeover: {:#?}", self.log),
        }
    }

    fn has(&self, value: IpAddr) -> bool {
        self.host.network.copies(value).next().is_some()
    }

    pub(crate) fn happen(&mut self, event: &Event) {
        self.say(format!("{event:?}"));
        let young = self.api_server.as_ref().is_some_and(|running| {
            running.by_others
                && !matches!(event, Event::Time(_))
                && self.host.now.wall.since(running.since) <= self.host.config.settle.max
        });
        self.forgotten |= young;
        self.happens(event);
    }

    fn happens(&mut self, event: &Event) {
        match event {
            Event::Renumber { apart, source } => {
                let old = self.own;
                self.host.remove(&old.to_string());
                self.host.network.default_routes[0].preferred_source = None;
                // Long enough and something else takes its place first.
                self.changes += 1 + usize::from(*apart >= 30);
                if *apart > 0 {
                    self.settle(*apart);
                }
                self.next += 1;
                self.own = ip(&format!("192.0.2.{}", self.next));
                self.host.add("eth0", &format!("{}/24", self.own));
                if *source {
                    self.host.network.default_routes[0].preferred_source = Some(self.own);
                }
            }
            Event::Flap { away } => {
                let own = self.own;
                let source = self.host.network.default_routes[0].preferred_source.take();
                self.host.remove(&own.to_string());
                // Long enough and something else may take its place.
                self.changes += usize::from(*away >= 30);
                self.settle(*away);
                self.host.add("eth0", &format!("{own}/24"));
                self.host.network.default_routes[0].preferred_source = source;
            }
            Event::VipArrives { shape, first } => {
                let number = 200 + u8::try_from(self.vips.len()).expect("few");
                let value = format!("192.0.2.{number}");
                if self.has(ip(&value)) {
                    return;
                }
                match shape {
                    0 => self.host.add("eth0", &format!("{value}/24")).label = None,
                    1 => self.host.add("eth0", &format!("{value}/32")).label = None,
                    2 => self.host.lease("eth0", &format!("{value}/24"), 300).label = None,
                    3 => self.host.add("eth0", &format!("{value}/32")).flags.0 |= DEPRECATED,
                    4 => self.host.add("eth0", &format!("{value}/24")).protocol = Some(18),
                    _ => self.host.add("eth0", &format!("{value}/25")).label = None,
                }
                if *first {
                    let vip = self.host.network.addresses.pop().expect("just added");
                    self.host.network.addresses.insert(0, vip);
                }
                self.vips.push(ip(&value));
            }
            Event::VipLeaves => {
                if let Some(vip) = self.vips.pop() {
                    self.changes += usize::from(self.host.state.promoted.contains(&vip));
                    self.host.remove(&vip.to_string());
                }
            }
            Event::NicArrives => {
                if !self.has(ip("10.9.0.4")) {
                    if !self.host.network.links.values().any(|l| l.name == "eth1".into()) {
                        self.host.link("eth1", None);
                    }
                    self.host.add("eth1", "10.9.0.4/24");
                    self.changes += 1;
                }
            }
            Event::NicLeaves => self.host.remove("10.9.0.4"),
            Event::SubnetArrives => {
                if !self.has(ip("198.51.100.9")) {
                    self.host.add("eth0", "198.51.100.9/24");
                    self.changes += 1;
                }
            }
            Event::SubnetLeaves => self.host.remove("198.51.100.9"),
            Event::Time(seconds) => self.pass_time(Duration::from_secs(*seconds)),
            Event::Restarted => {
                if self.api_server.is_some() {
                    self.start_api_server(true);
                }
            }
            Event::Stopped(seconds) => {
                self.stop_api_server();
                self.pass_time(Duration::from_secs(*seconds));
                self.start_api_server(true);
            }
            Event::StateLost => {
                let advertised = self.api_server.as_ref().and_then(|running| running.advertises);
                let would = api_server_choice(&self.host.network, self.host.now, None);
                // It can say so itself - unless it is being started or does not run.
                let says =
                    self.told.is_some() && self.list().is_ok_and(|list| advertised.is_some_and(|a| list.contains(&a)));
                self.forgotten = !says && (advertised != Some(self.own) || would != Some(self.own));
                self.host.state = State::default();
                let leaf = self.host.cluster.certificates[0].leaf.as_ref().expect("readable");
                self.blind |= !says && (!leaf.sans.contains(&San::ip(self.own)) || advertised != Some(self.own));
                self.restarts.clear();
                self.changes += 1;
            }
            Event::Reboot { away } => {
                self.host.now.wall = self.host.now.wall + Duration::from_secs(*away);
                self.host.now.uptime = Duration::from_secs(100);
                for address in &mut self.host.network.addresses {
                    address.created = Some(500);
                    address.updated = Some(500);
                }
                self.boot += 1;
                self.host.boot_id = format!("boot {}", self.boot);
                self.host.watched_since = Some(self.host.now.wall);
                self.start_api_server(true);
                // It was up before anybody looked.
                let advertised = self.api_server.as_ref().and_then(|running| running.advertises);
                self.forgotten = advertised != Some(self.own);
            }
            Event::RouteFlaps { away } => {
                let routes = std::mem::take(&mut self.host.network.default_routes);
                self.settle(*away);
                self.host.network.default_routes = routes;
            }
            Event::Failures(count) => self.failing = *count,
            Event::ClockSet { forward, by } => {
                let by = Duration::from_secs(*by);
                let set = |at: Timestamp| if *forward { at + by } else { at - by };
                self.host.now.wall = set(self.host.now.wall);
                self.host.watched_since = self.host.watched_since.map(set);
                for at in self.restarts.iter_mut().chain(self.api_server.iter_mut().map(|running| &mut running.since)) {
                    *at = set(*at);
                }
                self.former = self.former.map(|(address, until)| (address, set(until)));
                // One from the future is made anew.
                self.changes += 1;
            }
            Event::Expires => {
                let day = Duration::from_secs(86_400);
                let leaf = self.host.cluster.certificates[0].leaf.as_mut().expect("readable");
                (leaf.not_before, leaf.not_after) = (self.host.now.wall - day * 364, self.host.now.wall + day);
                self.changes += 1;
            }
        }
    }

    /// Waits as the settle timer does: a change that is gone within five seconds was never seen.
    pub(crate) fn settle(&mut self, seconds: u64) {
        let quiet = Duration::from_secs(5);
        let span = Duration::from_secs(seconds);
        if span < quiet {
            self.advance(span);
        } else {
            self.advance(quiet);
            self.pass_time(span - quiet);
        }
    }
}
