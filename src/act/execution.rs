//! Carries out steps one after the other, as a state machine that somebody else's poll(2) loop drives.
//!
//! In: steps, or services to ask for, and where. Out: what became of them. The rule of this file: the order of the
//! plan, nothing added and nothing left out silently.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use crate::act::confirm::Confirm;
use crate::act::inquiry::Inquiry;
use crate::act::probe::Identity;
use crate::act::ready::{self, Ready};
use crate::act::restart::Restart;
use crate::act::services::Manager;
use crate::act::switch::Switch;
use crate::decide::outcome::{StepOutcome, StepResult};
use crate::decide::plan::{IssueOrder, Question, ReasonCode, Step};
use crate::facts::certificate::Fingerprint;
use crate::facts::cluster::{Role, Service, ServiceState};
use crate::facts::time::Timestamp;
use crate::observe::kubeconfig::Credentials;
use crate::report::log;

pub use crate::act::pace::Pace;

/// Where steps are carried out.
pub struct Host {
    /// Prefix of every command.
    pub root: PathBuf,
    /// Who manages the services.
    pub manager: Manager,
    /// The services that steps name.
    pub services: Vec<Service>,
    /// The leaf on disk for each certificate of the profile that has one; a step that issues replaces it.
    pub certificates: BTreeMap<String, Fingerprint>,
    /// Since when the newest leaf is in place (`CLOCK_MONOTONIC`): a service that loads it once and started later has it.
    pub in_place_since: Option<Duration>,
    /// Makes one leaf and puts it in place.
    pub issue: Box<Issue>,
    /// Puts an earlier leaf back.
    pub put_back: Box<PutBack>,
    /// Notes that a restart of the API server is about to be handed over; says why it must not be.
    pub claim: Box<Claim>,
    /// Who we are to the API server: a certificate of the profile with its key, read anew each time.
    pub identify: Arc<Identify>,
    /// Who asks the API server for the addresses that it lists, read anew each time.
    pub credentials: Arc<ReadCredentials>,
    /// How long things may take.
    pub pace: Pace,
}

/// See [`Host::issue`].
pub type Issue = dyn FnMut(&IssueOrder) -> Result<Fingerprint, NotIssued>;

/// See [`Host::put_back`]: a certificate of the profile, the SHA-256 of the leaf (hexadecimal), and why.
pub type PutBack = dyn FnMut(&str, &str, &str) -> Result<Fingerprint, String>;

/// See [`Host::claim`]: the service, why, and when the step began.
pub type Claim = dyn FnMut(&str, ReasonCode, Timestamp) -> Result<(), String>;

/// See [`Host::identify`]; `None` where it cannot be used, and then nobody is.
pub type Identify = dyn Fn(&str) -> Option<Identity>;

/// See [`Host::credentials`]; the error is for people.
pub type ReadCredentials = dyn Fn() -> Result<Credentials, String>;

/// Why no leaf was put in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotIssued {
    /// The whole chain of causes on one line.
    Failed(String),
    /// The certificate is no longer the one the order was made for.
    Overtaken,
    /// The data folder is no longer the one that the order was made for: the distribution was refreshed.
    Moved,
}

impl From<String> for NotIssued {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Work that is under way. Dropping it ends what it started.
#[derive(Debug)]
pub struct Execution(Work);

#[derive(Debug)]
enum Work {
    Ask(Box<Inquiry>),
    Steps(Box<Steps>),
}

/// How far an execution is.
#[derive(Debug)]
pub enum Progress {
    /// Wait for the descriptors or the deadline, then advance again.
    Working,
    /// It is over; there is nothing more to advance.
    Done(Finished),
}

/// What an execution found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finished {
    /// What became of each step, in order.
    pub outcomes: Vec<StepOutcome>,
    /// The services' states as they were last seen, by name in the profile.
    pub services: BTreeMap<String, ServiceState>,
    /// The addresses that the `kubernetes` Service lists, or why they are not known; `None` when nobody asked.
    pub listed: Option<Result<BTreeSet<IpAddr>, String>>,
}

#[derive(Debug)]
struct Steps {
    host: Host,
    queue: VecDeque<Step>,
    current: Option<Current>,
    finished: Finished,
    issue_failed: bool,
    /// The port does not serve what it should.
    unconfirmed: bool,
    api_server_restarted: bool,
    /// It did not come back: nobody is at its ports.
    api_server_down: bool,
}

#[derive(Debug)]
struct Current {
    step: Step,
    began: Timestamp,
    started: Instant,
    activity: Activity,
}

#[derive(Debug)]
enum Activity {
    Confirm(Box<Confirm>),
    Ready(Box<Ready>),
    Restart(Box<Restart>),
    Disable(Box<Switch>),
}

impl Activity {
    /// Whether the service manager completes it without us.
    fn is_handed_over(&self) -> bool {
        match self {
            Self::Confirm(_) | Self::Ready(_) => false,
            Self::Restart(restart) => restart.is_handed_over(),
            Self::Disable(switch) => switch.is_handed_over(),
        }
    }
}

/// A deadline farther away than this comes from a clock that was set meanwhile: it is no reason to wait for a year.
const LONGEST_CONFIRMATION: Duration = Duration::from_secs(10 * 60);
/// What poll(2) waits at most before the deadline is looked at again.
const LONGEST_POLL: u16 = 60_000;

impl Execution {
    /// Asks for the states of services, and the API server where there is a question for it, and does nothing else.
    pub fn ask(services: Vec<Service>, question: Option<&Question>, host: &Host) -> Self {
        Self(Work::Ask(Box::new(Inquiry::new(services, question, host))))
    }

    /// Carries out steps in order. Nothing happens before the first [`Execution::advance`].
    pub fn carry_out(steps: Vec<Step>, host: Host) -> Self {
        Self(Work::Steps(Box::new(Steps {
            host,
            queue: steps.into(),
            current: None,
            finished: Finished::default(),
            issue_failed: false,
            unconfirmed: false,
            api_server_restarted: false,
            api_server_down: false,
        })))
    }

    /// What to wait for. They change with every [`Execution::advance`].
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        match &self.0 {
            Work::Ask(ask) => ask.poll_fds(),
            Work::Steps(steps) => steps.current.as_ref().map_or_else(Vec::new, |current| match &current.activity {
                Activity::Confirm(confirm) => confirm.poll_fds(),
                Activity::Ready(ready) => ready.poll_fds(),
                Activity::Restart(restart) => restart.poll_fds(),
                Activity::Disable(switch) => switch.poll_fds(),
            }),
        }
    }

    /// When to advance even if no descriptor is ready; `None` when nothing is left to do.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.0 {
            Work::Ask(ask) => Some(ask.deadline()),
            Work::Steps(steps) => match &steps.current {
                Some(Current { activity: Activity::Confirm(confirm), .. }) => Some(confirm.deadline()),
                Some(Current { activity: Activity::Ready(ready), .. }) => Some(ready.deadline()),
                Some(Current { activity: Activity::Restart(restart), .. }) => Some(restart.deadline()),
                Some(Current { activity: Activity::Disable(switch), .. }) => Some(switch.deadline()),
                None => (!steps.queue.is_empty()).then(Instant::now),
            },
        }
    }

    /// Does what can be done without waiting, at most one step of it.
    ///
    /// Making a leaf is the exception: it is done in one go, since it must not be left half-way.
    pub fn advance(&mut self) -> Progress {
        match &mut self.0 {
            Work::Ask(ask) => ask.advance().map_or(Progress::Working, Progress::Done),
            Work::Steps(steps) => steps.advance(),
        }
    }

    /// Whether it only waits for a port to serve the new leaf: nothing is lost by [`Execution::abandon`].
    pub fn interruptible(&self) -> bool {
        match &self.0 {
            Work::Ask(_) => false,
            Work::Steps(steps) => {
                let waits = |activity: &Activity| matches!(activity, Activity::Confirm(_) | Activity::Ready(_));
                steps.current.as_ref().is_some_and(|current| waits(&current.activity))
            }
        }
    }

    /// Whether something can be done without waiting for anybody: a certificate that is about to be made.
    pub fn has_work_at_once(&self) -> bool {
        matches!(&self.0, Work::Steps(steps) if steps.current.is_none() && !steps.queue.is_empty())
    }

    /// The step that is waited for.
    pub fn under_way(&self) -> Option<&Step> {
        match &self.0 {
            Work::Ask(_) => None,
            Work::Steps(steps) => steps.current.as_ref().map(|current| &current.step),
        }
    }

    /// Begins no further step. One that was handed over to the service manager goes on to its end, so that its end is
    /// known; every other one can be ended where it is, and false says so.
    pub fn cut_short(&mut self) -> bool {
        let Work::Steps(steps) = &mut self.0 else { return false };
        let handed_over = steps.current.as_ref().is_some_and(|current| current.activity.is_handed_over());
        if handed_over {
            steps.queue.clear();
        }
        handed_over
    }

    /// Ends it where it is. The step under way gets no outcome - but for a restart that was handed over: systemd or snapd
    /// completes it without us, so it must be remembered, and how it ended is not known. One that was not yet handed over
    /// was not tried, and whoever comes next need not wait for it.
    pub fn abandon(self) -> Finished {
        match self.0 {
            Work::Ask(_) => Finished::default(),
            Work::Steps(mut steps) => {
                if let Some(Current { step, began, started, activity }) = steps.current.take() {
                    if activity.is_handed_over() {
                        steps.finish(step, began, started, StepResult::Begun);
                    } else if matches!(activity, Activity::Restart(_)) {
                        let why = "told to end before it was handed over".to_owned();
                        steps.finish(step, began, started, StepResult::NotTried(why));
                    }
                }
                std::mem::take(&mut steps.finished)
            }
        }
    }

    /// Waits for the end, for callers with nothing else to do.
    pub fn run_to_end(mut self) -> Finished {
        loop {
            if let Progress::Done(finished) = self.advance() {
                return finished;
            }
            wait(&mut self.poll_fds(), self.deadline());
        }
    }
}

/// Waits for a descriptor or the deadline, for whoever has no loop of its own.
pub(crate) fn wait(descriptors: &mut [PollFd<'_>], deadline: Option<Instant>) {
    let left = deadline.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
    // Rounded up: a poll that returns a fraction of a millisecond early would be repeated with zero.
    let millis = u16::try_from(left.as_millis() + 1).unwrap_or(u16::MAX).min(LONGEST_POLL);
    // A signal is as good a reason to look as any; so is the impossible (a descriptor that is none).
    let _ = poll(descriptors, PollTimeout::from(millis));
}

impl Steps {
    fn advance(&mut self) -> Progress {
        match self.current.take() {
            Some(current) => self.go_on(current),
            None => {
                if let Some(step) = self.queue.pop_front() {
                    self.begin(step);
                }
            }
        }
        if self.current.is_none() && self.queue.is_empty() {
            return Progress::Done(std::mem::take(&mut self.finished));
        }
        Progress::Working
    }

    fn begin(&mut self, step: Step) {
        let (began, started) = (wall_clock(), Instant::now());
        match self.activity(&step, began) {
            Ok(activity) => self.current = Some(Current { step, began, started, activity }),
            Err(result) => self.finish(step, began, started, result),
        }
    }

    /// What a step waits for, or its result where there is nothing to wait for.
    fn activity(&mut self, step: &Step, now: Timestamp) -> Result<Activity, StepResult> {
        if self.issue_failed {
            return Err(StepResult::NotTried("an earlier step was not done".to_owned()));
        }
        if self.api_server_down && matches!(step, Step::ConfirmServed { .. } | Step::ConfirmReady { .. }) {
            return Err(StepResult::NotTried("the API server did not come back".to_owned()));
        }
        match step {
            Step::Issue(order) => Err(self.issue(order)),
            Step::PutBack { certificate, leaf, cause } => Err(self.put_back(certificate, leaf, cause)),
            Step::ConfirmServed { certificate, port, host, deadline, .. } => {
                let Some(expected) = self.host.certificates.get(certificate) else {
                    let why =
                        format!("the {certificate} certificate on disk is not known, so nothing can be confirmed");
                    return Err(StepResult::Failed(why));
                };
                let address = SocketAddr::from((*host, *port));
                let within = deadline.since(now).min(LONGEST_CONFIRMATION);
                let confirm = Confirm::new(address, *expected, within, self.api_server_restarted, self.host.pace);
                Ok(Activity::Confirm(Box::new(confirm)))
            }
            Step::Disable { service: name, .. } => {
                let (host, service) = (&self.host, self.service(name)?);
                let command = host.manager.turn_off(&host.root, service);
                let command =
                    command.ok_or_else(|| StepResult::Failed(format!("{name} is no service of this snap")))?;
                Ok(Activity::Disable(Box::new(Switch::new(command, host.pace))))
            }
            Step::ConfirmReady { certificate, port, host, path, deadline } => {
                let expected = self.host.certificates.get(certificate).filter(|_| !self.unconfirmed);
                let Some(expected) = expected else {
                    return Err(StepResult::NotTried("its port does not serve the certificate in place".to_owned()));
                };
                let address = SocketAddr::from((*host, *port));
                let question = ready::Question { address, path: path.clone(), expected: *expected };
                let (identify, name) = (Arc::clone(&self.host.identify), certificate.clone());
                let identify = Box::new(move || identify(&name));
                let within = deadline.since(now).min(LONGEST_CONFIRMATION);
                Ok(Activity::Ready(Box::new(Ready::new(question, identify, within, self.host.pace))))
            }
            Step::Restart { service: name, reason } => {
                let service = self.service(name)?.clone();
                if service.role.is_api_server() {
                    (self.host.claim)(name, *reason, now).map_err(StepResult::NotTried)?;
                }
                let host = &self.host;
                let since = host.in_place_since.filter(|_| service.role == Role::LoadsCertificateOnce);
                let down = *reason == ReasonCode::ServiceDown;
                let restart = Restart::new(host.root.clone(), host.manager, service, since, down, host.pace);
                Ok(Activity::Restart(Box::new(restart)))
            }
        }
    }

    fn service(&self, name: &str) -> Result<&Service, StepResult> {
        let found = self.host.services.iter().find(|service| service.name == name);
        found.ok_or_else(|| StepResult::Failed(format!("there is no service {name} in the profile")))
    }

    fn issue(&mut self, order: &IssueOrder) -> StepResult {
        match (self.host.issue)(order) {
            Ok(fingerprint) => {
                // Services that load a certificate once load the served one.
                if order.served {
                    self.host.in_place_since = clock_gettime(ClockId::CLOCK_MONOTONIC).ok().map(Duration::from);
                }
                self.host.certificates.insert(order.certificate.clone(), fingerprint);
                StepResult::Issued { fingerprint }
            }
            Err(why) => {
                // What follows is about the served one.
                self.issue_failed |= order.served;
                match why {
                    NotIssued::Failed(why) => StepResult::Failed(why),
                    NotIssued::Overtaken => {
                        StepResult::NotTried("somebody else has replaced the certificate meanwhile".to_owned())
                    }
                    NotIssued::Moved => {
                        StepResult::NotTried("the data folder has moved meanwhile; everything is read again".to_owned())
                    }
                }
            }
        }
    }

    fn put_back(&mut self, certificate: &str, leaf: &str, cause: &str) -> StepResult {
        match (self.host.put_back)(certificate, leaf, cause) {
            Ok(fingerprint) => {
                self.host.certificates.insert(certificate.to_owned(), fingerprint);
                StepResult::Issued { fingerprint }
            }
            Err(why) => StepResult::Failed(why),
        }
    }

    fn go_on(&mut self, mut current: Current) {
        let result = match &mut current.activity {
            Activity::Confirm(confirm) => {
                let result = confirm.advance();
                self.unconfirmed |= result.as_ref().is_some_and(|result| *result != StepResult::Confirmed);
                result
            }
            Activity::Ready(ready) => ready.advance(),
            Activity::Restart(restart) => {
                let result = restart.advance();
                if result.is_some() {
                    self.note_restart(&current.step, restart);
                }
                result
            }
            Activity::Disable(switch) => switch.advance().map(|done| match done {
                Ok(()) => StepResult::Disabled,
                Err(why) => StepResult::Failed(why.to_string()),
            }),
        };
        match result {
            Some(result) => self.finish(current.step, current.began, current.started, result),
            None => self.current = Some(current),
        }
    }

    fn note_restart(&mut self, step: &Step, restart: &mut Restart) {
        let Step::Restart { service: name, .. } = step else { return };
        // A restart that failed in our eyes may still be under way in the service manager.
        let is_api_server = |s: &Service| s.name == *name && s.role.is_api_server();
        self.api_server_restarted |= restart.tried && self.host.services.iter().any(is_api_server);
        if let Some(state) = restart.state.take() {
            self.api_server_down |=
                restart.tried && state.active == Some(false) && self.host.services.iter().any(is_api_server);
            self.finished.services.insert(name.clone(), state);
        }
    }

    fn finish(&mut self, step: Step, began: Timestamp, started: Instant, result: StepResult) {
        let outcome = StepOutcome { step, result, began, took: started.elapsed() };
        // Said at once: the next step may take minutes.
        log::outcome(&outcome);
        self.finished.outcomes.push(outcome);
    }
}

/// The function has no text.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("root", &self.root)
            .field("manager", &self.manager)
            .field("services", &self.services)
            .field("certificates", &self.certificates)
            .field("in_place_since", &self.in_place_since)
            .field("pace", &self.pace)
            .finish_non_exhaustive()
    }
}

fn wall_clock() -> Timestamp {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
}
