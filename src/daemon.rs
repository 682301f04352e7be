//! The daemon: the only loop. One thread, one poll(2).
//!
//! In: netlink, file and signal events, children, sockets, time. Out: passes, and plans carried out. The rule of this file:
//! an event only says "look again" and arms the settle timer; a pass reads everything anew. Nothing here blocks
//! but the lock, for [`LOCK_WAIT`] at most, so a restart that takes minutes delays no event and no signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::act::execution::{Execution, Finished, Progress};
use crate::chain::chain;
use crate::decide::Mode;
use crate::decide::outcome::StepOutcome;
use crate::decide::plan::Plan;
use crate::facts::Observed;
use crate::facts::time::Timestamp;
use crate::memory::{LOCK_WAIT, Memory};
use crate::notify::Notify;
use crate::observe::enabled;
use crate::observe::network::NetworkError;
use crate::observe::watch::{Names, Watch};
use crate::pass::{self, Eyes};
use crate::report::log;
use crate::site::Site;
use crate::{takeover, takeover_file};

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

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The network cannot be watched, or the kernel refuses a descriptor.
pub fn run(site: Site, notify: Notify) -> Result<(), DaemonError> {
    let mut daemon = Daemon::open(site, notify)?;
    if daemon.site.found.is_none() {
        tracing::warn!("no Kubernetes distribution on this host yet: addresses are watched, nothing is done");
    }
    daemon.pass(None);
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
    signals: SignalFd,
    watch: Option<Watch>,
    notify: Notify,
    settle: Settle,
    /// Since when no change can have escaped us.
    watched_since: Timestamp,
    work: Work,
    /// When time alone makes the next pass due.
    look_again: Option<Instant>,
    memory: Memory,
    /// The first pass that came to a conclusion was made, and the service manager knows.
    ready: bool,
    /// When the services' states were asked for last.
    services_asked: Option<Timestamp>,
    /// When the service manager's watchdog is told next that the loop turns; `None` when there is none.
    alive_due: Option<Instant>,
    last_said: Option<String>,
}

/// What is under way.
enum Work {
    Nothing,
    /// The plan needs the services' states.
    Asking(Execution),
    Acting(Box<Plan>, Execution),
}

/// The settle timer: due after `quiet` without a further event, at most `max` after the first.
#[derive(Debug, Default)]
struct Settle {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Settle {
    fn mark(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn due(&self, site: &Site) -> Option<Instant> {
        let settle = &site.config.settle;
        Some((self.last? + settle.quiet).min(self.first? + settle.max))
    }
}

impl Daemon {
    fn open(site: Site, notify: Notify) -> Result<Self, DaemonError> {
        let system = |what| move |source| DaemonError::System { what, source };
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            signals.add(signal);
        }
        signals.thread_block().map_err(system("blocking signals"))?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&signals, flags).map_err(system("opening a signal descriptor"))?;
        let watch = Watch::open()
            .inspect_err(|error| tracing::warn!("edits of files are seen only when something else happens: {error}"))
            .ok();
        Ok(Self {
            eyes: Eyes::open()?,
            memory: Memory::new(site.config.observe),
            ready: false,
            services_asked: None,
            alive_due: notify.watchdog().map(|_| Instant::now()),
            site,
            signals,
            watch,
            notify,
            settle: Settle::default(),
            watched_since: pass::now().wall,
            work: Work::Nothing,
            look_again: None,
            last_said: None,
        })
    }

    /// Waits for something to happen and deals with it. True when it is time to end.
    fn turn(&mut self) -> Result<bool, DaemonError> {
        self.wait()?;
        let now = Instant::now();
        self.say_alive(now);
        while let Ok(Some(signal)) = self.signals.read_signal() {
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            if number != Signal::SIGHUP as i32 {
                self.abandon_work();
                return Ok(true);
            }
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
        Ok(false)
    }

    fn wait(&self) -> Result<(), DaemonError> {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let sources: [Option<BorrowedFd<'_>>; 2] = [self.eyes.network.poll_fd(), self.watch.as_ref().map(Watch::fd)];
        fds.extend(sources.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
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
        let deadline = [pass, work, polling, self.alive_due].into_iter().flatten().min();
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

    /// When the next pass is due. While something changes only the settle timer counts: a pass that is due by time alone
    /// would judge a snapshot in the middle of a flap.
    fn next_pass(&self) -> Option<Instant> {
        self.settle.due(&self.site).or(self.look_again)
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
            // What has changed meanwhile settles first, and the answer is asked for again.
            Work::Asking(_) if self.settle.first.is_some() => {}
            Work::Asking(_) => self.pass(Some(finished)),
            Work::Acting(plan, _) => {
                // What somebody else is doing is looked at when it may be over.
                let overtaken = finished.outcomes.iter().any(StepOutcome::is_left_to_another);
                self.record(*plan, finished);
                if overtaken {
                    self.look_again = Some(Instant::now() + TRY_AGAIN);
                } else if self.settle.first.is_none() {
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
        self.settle = Settle::default();
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
            self.work = Work::Asking(Execution::ask(self.site.services(), plan.needs_listed.as_ref(), &host));
            return;
        }
        self.say(&plan);
        if !self.ready {
            // The first lock has made our own folder, which could not be watched before.
            self.watch_files();
            tracing::info!("first pass done; watching");
            self.notify.say("READY=1");
            self.ready = true;
        }
        if let Some(at) = plan.look_again {
            // The wall clock may be set, and this one stands still while the host sleeps: an hour is the most that is
            // trusted to it.
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
        let (Some(watch), Some(profile)) = (&mut self.watch, self.site.profile()) else { return };
        let mut wanted: Vec<(PathBuf, Names)> = Vec::new();
        let mut single: BTreeMap<PathBuf, Vec<OsString>> = BTreeMap::new();
        let mut want = |path: &Path| {
            if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
                single.entry(folder.to_owned()).or_default().push(name.to_owned());
            }
        };
        if let Ok(data) = self.site.data(profile) {
            self.site.files_that_matter(profile, &data).iter().for_each(|path| want(path));
            wanted.push((data.join(&profile.files.arguments), Names::All));
            wanted.push((data.join(&profile.files.locks), Names::All));
        }
        // Somebody orders a takeover, and somebody enables the guard again that was taken over from.
        wanted.push((self.site.state_dir(), Names::Only(vec![takeover_file::NAME.into()])));
        let guards = takeover::guards(&self.site).into_iter().map(|guard| guard.unit.into()).collect();
        wanted.push((enabled::folder(&self.site.root), Names::Only(guards)));
        // A refresh moves the link to another revision.
        if let (Some(parent), Some(name)) = (profile.data.parent(), profile.data.file_name())
            && let Ok(parent) = crate::profiles::beneath(&self.site.root, parent)
        {
            want(&parent.join(name));
        }
        wanted.extend(single.into_iter().map(|(folder, names)| (folder, Names::Only(names))));
        watch.set(&wanted);
    }

    /// Tells what a pass concluded, once: a pass that says the same again is silent.
    fn say(&mut self, plan: &Plan) {
        let said = log::summary(plan);
        if self.last_said.as_ref() != Some(&said) {
            log::plan(plan, self.site.config.observe);
            self.notify.say(&format!("STATUS={}", said.lines().next().unwrap_or_default()));
            self.last_said = Some(said);
        }
    }
}
