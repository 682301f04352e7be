//! The daemon: the only loop. One thread, one poll(2).
//!
//! In: netlink, file, clock and signal events, children, sockets, time. Out: passes, and plans carried out. The rule of
//! this file: an event only says "look again" and arms the settle timer; a pass reads everything anew. Nothing here blocks
//! but the lock, for [`LOCK_WAIT`] at most, so a restart that takes minutes delays no event and no signal.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::act::execution::{Execution, Finished, Progress};
use crate::chain::chain;
use crate::config::LogLevel;
use crate::decide::outcome::StepOutcome;
use crate::decide::plan::Plan;
use crate::decide::{Mode, boot};
use crate::facts::Observed;
use crate::facts::time::Timestamp;
use crate::memory::{LOCK_WAIT, Memory};
use crate::notify::Notify;
use crate::observe::clock_set::ClockSet;
use crate::observe::network::NetworkError;
use crate::observe::watch::Watch;
use crate::pass::{self, Eyes};
use crate::publish::Publisher;
use crate::report::log;
use crate::report::status_line::{self, Concluded, Line};
use crate::settle::Settle;
use crate::signals::{self, Signals};
use crate::site::Site;
use crate::{reload, state_file, watched};

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Neither rtnetlink nor polling works.
    #[error("watching the network")]
    Network(#[from] NetworkError),
    /// A descriptor that everything depends on could not be had.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        #[source]
        source: Errno,
    },
}

/// Without a distribution on this host, the time between two looks for one.
const LOOK_FOR_DISTRIBUTION: Duration = Duration::from_secs(60);
/// After a pass that could not be made, the next one.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// The longest wait for a moment of the wall clock before it is asked again.
const LONGEST_LOOK: Duration = Duration::from_secs(60 * 60);
/// Without netlink events, the time between two looks.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// What is waited for at a boot.
const NETWORK: &str = "a default route, as the host is just starting";

/// Changes the level of the log while it is written.
pub type SetLevel = Box<dyn Fn(LogLevel)>;

/// Runs until SIGTERM or SIGINT. SIGHUP has the configuration read again, its log level included.
///
/// # Errors
/// The network cannot be watched, or the kernel refuses a descriptor.
pub fn run(site: Site, notify: Notify, set_level: SetLevel) -> Result<(), DaemonError> {
    let mut daemon = Daemon::open(site, notify, set_level)?;
    if daemon.site.found.is_none() {
        tracing::warn!("no Kubernetes distribution on this host yet: addresses are watched, nothing is done");
    }
    daemon.pass(None);
    daemon.tell();
    while !daemon.turn()? {}
    daemon.notify.say("STOPPING=1");
    // Nothing else is left to do: now there is time to wait for whoever holds the lock.
    let last_try = Instant::now() + TRY_AGAIN;
    while !daemon.memory.write_down(&daemon.site.state_dir()) && Instant::now() < last_try {}
    tracing::info!("stopped");
    Ok(())
}

struct Daemon {
    site: Site,
    eyes: Eyes,
    signals: Signals,
    watch: Option<Watch>,
    clock_set: Option<ClockSet>,
    notify: Notify,
    set_level: SetLevel,
    settle: Settle,
    /// Since when no change can have escaped us.
    watched_since: Timestamp,
    work: Work,
    /// When time alone makes the next pass due.
    look_again: Option<Instant>,
    memory: Memory,
    /// What the last pass came to; `None` before the first.
    concluded: Option<Concluded>,
    /// The first pass is complete, and the service manager knows.
    ready: bool,
    /// Why the configuration in the file is not the one in force.
    refused: Option<String>,
    /// When the services' states were asked for last.
    services_asked: Option<Timestamp>,
    /// When the service manager's watchdog is told next that the loop turns; `None` when there is none.
    alive_due: Option<Instant>,
    last_said: Option<String>,
    publisher: Publisher,
}

/// What is under way.
enum Work {
    Nothing,
    /// The plan needs the services' states.
    Asking(Execution),
    Acting(Box<Plan>, Execution),
}

impl Daemon {
    fn open(site: Site, notify: Notify, set_level: SetLevel) -> Result<Self, DaemonError> {
        let signals = Signals::open().map_err(|(what, source)| DaemonError::System { what, source })?;
        let without = |what: &'static str| move |error: &Errno| tracing::warn!("{what}: {error}");
        let watch = Watch::open().inspect_err(without("edits of files are seen only when something else happens"));
        let clock_set =
            ClockSet::open().inspect_err(without("a clock that is set is seen only when something happens"));
        let mut daemon = Self {
            eyes: Eyes::open()?,
            memory: Memory::new(site.config.observe),
            concluded: None,
            ready: false,
            refused: None,
            services_asked: None,
            alive_due: notify.watchdog().map(|_| Instant::now()),
            site,
            signals,
            watch: watch.ok(),
            clock_set: clock_set.ok(),
            notify,
            set_level,
            settle: Settle::default(),
            watched_since: pass::now().wall,
            work: Work::Nothing,
            look_again: None,
            last_said: None,
            publisher: Publisher::default(),
        };
        daemon.settle.at_the_latest = daemon.end_of_boot();
        Ok(daemon)
    }

    /// Until when the first pass waits for the network of a host that is just starting.
    fn end_of_boot(&self) -> Option<Instant> {
        let (state, _) = state_file::load(&self.site.state_dir());
        let starting = boot::network_may_come(&state.boot_id, &pass::boot_id(), pass::now().uptime);
        (starting && self.site.found.is_some()).then(|| Instant::now() + self.site.config.settle.boot)
    }

    /// Waits for something to happen and deals with it. True when it is time to end.
    fn turn(&mut self) -> Result<bool, DaemonError> {
        self.wait()?;
        let now = Instant::now();
        self.say_alive(now);
        let told = self.signals.drain();
        if told.end {
            self.abandon_work();
            return Ok(true);
        }
        if told.reload {
            self.reload();
            self.settle.mark(now);
        }
        if self.clock_set.as_ref().is_some_and(ClockSet::drain) {
            tracing::info!("the clock was set, or the host slept: everything is looked at again");
            self.settle.mark(now);
        }
        let drained = self.eyes.network.drain();
        if drained.overrun {
            tracing::info!("the kernel dropped events; everything is read again");
        }
        if drained.relevant || drained.overrun {
            self.settle.mark(now);
        }
        if self.watch.as_ref().is_some_and(Watch::drain) {
            self.settle.mark(now);
        }
        self.advance();
        if self.may_pass() && self.next_pass().is_some_and(|at| at <= now) {
            self.abandon_work();
            self.pass(None);
        }
        if matches!(self.work, Work::Nothing) {
            signals::take_ends_of_orphans();
        }
        self.tell();
        Ok(false)
    }

    fn wait(&self) -> Result<(), DaemonError> {
        let sources: [Option<BorrowedFd<'_>>; 4] = [
            Some(self.signals.fd()),
            self.eyes.network.poll_fd(),
            self.watch.as_ref().map(Watch::fd),
            self.clock_set.as_ref().map(ClockSet::fd),
        ];
        let mut fds: Vec<PollFd<'_>> =
            sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let work = match &self.work {
            Work::Nothing => None,
            Work::Asking(execution) | Work::Acting(_, execution) => {
                fds.extend(execution.poll_fds());
                execution.deadline()
            }
        };
        // While something that must not be interrupted is under way, no pass can be due.
        let pass = if self.may_pass() { self.next_pass() } else { None };
        let polling = self.eyes.network.poll_fd().is_none().then(|| Instant::now() + POLL_EVERY);
        let tell = self.notify.try_again_in().map(|pause| Instant::now() + pause);
        let deadline = [pass, work, polling, tell, self.alive_due].into_iter().flatten().min();
        let timeout = deadline.map_or(PollTimeout::NONE, |at| {
            // Rounded up: waking a moment too early would turn into a busy loop.
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(source) => Err(DaemonError::System { what: "waiting for events", source }),
        }
    }

    /// Feeds the watchdog. Here and nowhere else: a loop that does not turn must not look alive.
    fn say_alive(&mut self, now: Instant) {
        if let (Some(due), Some(every)) = (self.alive_due, self.notify.watchdog())
            && due <= now
        {
            self.notify.say("WATCHDOG=1");
            self.alive_due = Some(now + every);
        }
    }

    /// Takes the configuration over as it is now, and keeps the one before where it is wrong. What is under way was decided
    /// on the one before: nothing more of it is begun.
    fn reload(&mut self) {
        // A start that is not complete is not a reload: READY=1 would end it.
        if self.ready {
            self.notify.reloading(pass::now().uptime);
        }
        match reload::reread(&self.site) {
            Ok(site) => {
                self.refused = None;
                if site == self.site {
                    tracing::info!("the configuration is as it was; everything is looked at again");
                } else {
                    self.take_over(site);
                }
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!("the configuration before stays in force: {why}");
                self.refused = Some(why);
            }
        }
        if self.ready {
            self.notify.ready();
        }
    }

    fn take_over(&mut self, site: Site) {
        let goes_on = match &mut self.work {
            Work::Acting(_, execution) => execution.cut_short(),
            Work::Nothing | Work::Asking(_) => false,
        };
        if !goes_on {
            self.abandon_work();
        }
        self.memory.keep_only_here(site.config.observe);
        (self.set_level)(site.config.log_level);
        tracing::info!("the configuration was read again from {}", site.source.path.display());
        if site.found != self.site.found {
            tracing::info!("profile: {}", site.found.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string));
        }
        self.site = site;
        // What is concluded on it is said again, even where it is the same.
        self.last_said = None;
    }

    /// When the next pass is due. While something changes only the settle timer counts: a pass that is due by time alone
    /// would judge a snapshot in the middle of a flap.
    fn next_pass(&self) -> Option<Instant> {
        self.settle.due(&self.site.config.settle).or(self.look_again)
    }

    /// Whether a pass may be made now: nothing is under way, or only a wait for the port.
    fn may_pass(&self) -> bool {
        match &self.work {
            Work::Nothing => true,
            Work::Asking(_) => false,
            Work::Acting(_, execution) => execution.interruptible(),
        }
    }

    /// Takes one step of what is under way.
    fn advance(&mut self) {
        let (Work::Asking(execution) | Work::Acting(_, execution)) = &mut self.work else { return };
        let progress = execution.advance();
        // What we wrote ourselves is no news: the pass that follows every execution reads it anyway.
        if let (Work::Acting(..), Some(watch)) = (&self.work, &self.watch) {
            watch.drain();
        }
        let Progress::Done(finished) = progress else { return };
        match std::mem::replace(&mut self.work, Work::Nothing) {
            // What has changed meanwhile settles first, and the answer is asked for again; see `Settle::undecided`.
            Work::Asking(_) if self.settle.due(&self.site.config.settle).is_some_and(|at| at > Instant::now()) => {}
            Work::Asking(_) => self.pass(Some(finished)),
            Work::Acting(plan, _) => {
                // What somebody else is doing is looked at when it may be over.
                let overtaken = finished.outcomes.iter().any(StepOutcome::is_left_to_another);
                self.record(*plan, finished);
                if overtaken {
                    self.look_again = Some(Instant::now() + TRY_AGAIN);
                } else if !self.settle.pending() {
                    self.pass(None);
                }
            }
            Work::Nothing => {}
        }
    }

    fn abandon_work(&mut self) {
        if let Work::Acting(plan, execution) = std::mem::replace(&mut self.work, Work::Nothing) {
            let finished = execution.abandon();
            self.record(*plan, finished);
        }
    }

    /// One pass. `answer` holds the services' states that the pass before asked for.
    fn pass(&mut self, answer: Option<Finished>) {
        let since = self.settle.take_in();
        self.look_again = None;
        if !self.memory.write_down(&self.site.state_dir()) {
            self.look_again = Some(Instant::now() + LOCK_WAIT);
            return;
        }
        self.find_distribution();
        self.watch_files();
        let observed = match self.eyes.observe(&self.site) {
            Ok(observed) => observed,
            Err(error) => {
                tracing::error!("no pass: {}", chain(&error));
                self.look_again = Some(Instant::now() + TRY_AGAIN);
                return;
            }
        };
        if self.network_is_coming(&observed) {
            return;
        }
        let answered = answer.is_some();
        if answered {
            self.services_asked = Some(pass::now().wall);
        }
        let answer = answer.unwrap_or_default();
        let observed = Observed {
            services: answer.services,
            listed: answer.listed,
            watched_since: Some(self.watched_since),
            services_asked: self.services_asked,
            ..observed
        };
        let decide = |state: &_| pass::decide(&observed, &self.site, state, Mode::Daemon);
        let Some(plan) = self.memory.plan(&self.site.state_dir(), decide) else {
            self.look_again = Some(Instant::now() + LOCK_WAIT);
            return;
        };
        if !observed.network.complete || observed.data_missing.is_some() {
            self.look_again = Some(Instant::now() + TRY_AGAIN);
        } else if self.site.found.is_none() {
            self.look_again = Some(Instant::now() + LOOK_FOR_DISTRIBUTION);
        }
        if plan.needs_services && !answered {
            let host = pass::host(&self.site, &observed, None, LOCK_WAIT);
            self.settle.undecided(since);
            self.work = Work::Asking(Execution::ask(self.site.services(), plan.needs_listed.as_ref(), &host));
            return;
        }
        self.say(&plan);
        self.publisher.publish(&self.site, &observed, &plan);
        if let Some(at) = plan.look_again {
            // The wall clock may be set, and this one stands still while the host sleeps. Both are told by an event where
            // the kernel has it; an hour is the most that is trusted to it elsewhere.
            let left = at.since(pass::now().wall).min(LONGEST_LOOK);
            let at = Instant::now() + left;
            self.look_again = Some(self.look_again.map_or(at, |other| other.min(at)));
        }
        if !self.site.config.observe && plan.mend.is_some() {
            self.mend(&observed, &plan);
        }
        if plan.has_steps() && !self.site.config.observe {
            log::steps(&plan);
            let host = pass::host(&self.site, &observed, Some(&plan), LOCK_WAIT);
            let execution = Execution::carry_out(plan.steps.clone(), host);
            self.work = Work::Acting(Box::new(plan), execution);
        }
    }

    /// Whether the first pass behind a boot still waits; then it is due when the network has settled, or at the end.
    fn network_is_coming(&mut self, observed: &Observed) -> bool {
        let Some(end) = self.settle.at_the_latest else { return false };
        if observed.network.default_routes.is_empty() && Instant::now() < end {
            self.look_again = Some(end);
            return true;
        }
        self.settle.at_the_latest = None;
        false
    }

    /// Tells the service manager how things are. READY=1 comes once the certificates of the first pass are made, and before
    /// anything that others have to do: whoever is ordered behind us, the API server above all, waits for it.
    fn tell(&mut self) {
        let at_once = matches!(&self.work, Work::Acting(_, execution) if execution.has_work_at_once());
        if !self.ready && self.concluded.is_some() && !at_once {
            // The first lock has made our own folder, which could not be watched before.
            self.watch_files();
            tracing::info!("first pass done; watching");
            self.notify.ready();
            self.ready = true;
        }
        let doing = match &self.work {
            Work::Acting(_, execution) => execution.under_way().map(ToString::to_string),
            Work::Nothing | Work::Asking(_) => None,
        };
        self.notify.status(status_line::line(&Line {
            profile: self.site.profile().map(|profile| profile.name.as_str()),
            concluded: self.concluded.as_ref(),
            observe: self.site.config.observe,
            doing: doing.as_deref(),
            refused: self.refused.as_deref(),
            waits_for: self.settle.at_the_latest.map(|_| NETWORK),
        }));
    }

    /// Finishes what an interrupted write left, and is not woken by it.
    fn mend(&mut self, observed: &Observed, plan: &Plan) {
        let request = self.site.profile().and_then(|profile| profile.files.request.as_ref()?.file_name());
        let before = self.watch.as_ref().is_some_and(Watch::drain);
        pass::mend(&self.site, observed, plan, LOCK_WAIT);
        let behind = self.watch.as_ref().is_some_and(|watch| watch.drain_but(request));
        if before || behind {
            self.settle.mark(Instant::now());
        }
    }

    /// Learns from what was done.
    fn record(&mut self, plan: Plan, finished: Finished) {
        self.memory.record(&self.site.state_dir(), plan, finished.outcomes);
    }

    /// Looks for a distribution as long as there is none: ipguard may well be installed first.
    fn find_distribution(&mut self) {
        if self.site.found.is_some() {
            return;
        }
        match self.site.look_again() {
            Ok(site) => {
                if let Some(found) = &site.found {
                    tracing::info!("found {found}");
                }
                self.site = site;
            }
            Err(error) => tracing::error!("{}", chain(&error)),
        }
    }

    /// Watches the folders of the data folder of the moment.
    fn watch_files(&mut self) {
        if let (Some(watch), Some(profile)) = (&mut self.watch, self.site.profile()) {
            watch.set(&watched::wanted(&self.site, profile));
        }
    }

    /// Tells what a pass concluded, once: a pass that says the same again is silent.
    fn say(&mut self, plan: &Plan) {
        self.concluded = Some(Concluded::of(plan));
        let said = log::summary(plan);
        if self.last_said.as_ref() != Some(&said) {
            log::plan(plan, self.site.config.observe);
            self.last_said = Some(said);
        }
    }
}
