//! Taking the place of another guard, and giving it back.
//!
//! In: a [`Site`]. Out: what was done, line by line. The rule of this file: there is never a moment without any guard that
//! a failure could turn into a lasting one - ipguard's own service is on before the other guard is turned off - and what
//! has been done already is done again without harm, so that a command that was cut short is simply repeated.

use std::time::Duration;

use crate::act::ask::Ask;
use crate::act::execution::Pace;
use crate::act::lock::{Lock, LockError};
use crate::act::services::Manager;
use crate::act::switch::{NotTurned, Switch};
use crate::facts::cluster::{Role, Service};
use crate::facts::takeover::Takeover;
use crate::facts::{Read, ReadError};
use crate::observe::enabled;
use crate::pass;
use crate::site::Site;
use crate::takeover_file::{self, Order, OrderError};

/// How long somebody else may hold the lock.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// No distribution.
    #[error("no Kubernetes distribution was found here, so there is no guard to take over from; --profile names one")]
    NoDistribution,
    /// Inside the distribution's snap its own wrapper decides which guard runs.
    #[error("inside the snap {0} its own services decide which guard runs: run this on the host")]
    InsideDistribution(String),
    /// ipguard would touch nothing, and the other guard would be off.
    #[error(
        "observe = true is configured, so ipguard would do nothing in the place of the other guard: remove it first"
    )]
    Observing,
    /// The service that is to take over does not start.
    #[error("{unit} is not running, so the other guard was left on: {why}")]
    NotStarted {
        /// Our own unit.
        unit: String,
        /// The whole chain of causes.
        why: String,
    },
    /// Another writer, or a folder that cannot be used.
    #[error("the order to take over needs the lock")]
    Lock(#[from] LockError),
    /// The order is on the disk as it was.
    #[error(transparent)]
    Order(#[from] OrderError),
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// One line for each thing, also for what was so already.
    pub done: Vec<String>,
    /// What did not work, each with what happens now.
    pub failed: Vec<String>,
}

/// The order as it is on the disk, with what it is about.
pub fn look(site: &Site) -> Option<Read<Takeover>> {
    let profile = site.profile()?;
    let order = match takeover_file::load(&site.state_dir())? {
        Ok(order) if order.profile == profile.name => order,
        Ok(_) => return None,
        Err(error) => return Some(Err::<Takeover, ReadError>(error)),
    };
    let enabled = guards(site).into_iter().filter(|guard| enabled::is_enabled(&site.root, &guard.unit));
    Some(Ok(Takeover { since: order.since, enabled_guards: enabled.map(|guard| guard.name).collect() }))
}

/// Services of the distribution that are guards besides us.
pub fn guards(site: &Site) -> Vec<Service> {
    site.services().into_iter().filter(|service| service.role == Role::OtherGuard).collect()
}

/// Turns the other guard off for good and ipguard on.
///
/// # Errors
/// Nothing was changed but our own service, which waits while the other guard runs.
pub fn take_over(site: &Site) -> Result<Report, TakeoverError> {
    let profile = on_the_host(site)?;
    if site.config.observe {
        return Err(TakeoverError::Observing);
    }
    let mut report = Report::default();
    let own = own_service(site);
    // Ours first: where it cannot run, the other one is better than none.
    match turn(site, &own, Turn::On) {
        Ok(line) => report.done.push(line),
        Err(why) => return Err(TakeoverError::NotStarted { unit: own.unit, why: why.to_string() }),
    }
    let path = site.state_dir().join(takeover_file::NAME);
    // Before the other guard is touched: whatever ends this command now, the order is not lost.
    let new = takeover_file::give(&Lock::acquire(&site.state_dir(), LOCK_WAIT)?, profile, &own.unit, pass::now().wall)?;
    let word = if new { "recorded" } else { "recorded already" };
    report.done.push(format!("{word} in {}: ipguard turns the other guard off whenever it is on", path.display()));
    let guards = guards(site);
    if guards.is_empty() {
        report.done.push(format!("{profile} has no guard of its own"));
    }
    for guard in guards {
        if !enabled::is_installed(&site.root, &guard.unit) {
            report.done.push(format!("{}: not installed here, so there is nothing to turn off", guard.unit));
            continue;
        }
        match turn(site, &guard, Turn::Off) {
            Ok(line) => report.done.push(line),
            Err(why) => report.failed.push(format!("{why}; ipguard tries again while {} runs", own.unit)),
        }
    }
    for unit in chores(site, profile) {
        match turn(site, &unit, Turn::On) {
            Ok(line) => report.done.push(line),
            Err(why) => report.failed.push(format!("{why}; run `ipguard takeover` again")),
        }
    }
    Ok(report)
}

/// Gives back what this installation of ipguard took over, and nothing that another one did or somebody without it: for
/// the removal of a snap, which nobody asked what it may turn on.
///
/// # Errors
/// Nothing was changed.
pub fn release_own(site: &Site) -> Result<Report, TakeoverError> {
    let why = match takeover_file::load(&site.state_dir()) {
        None => "no takeover was ordered".to_owned(),
        Some(Ok(Order { service: Some(service), .. })) if service != own_service(site).unit => {
            format!("{service} has taken over")
        }
        // What cannot be read was an order once: a node with two guards is better than one with none.
        Some(_) => return release(site),
    };
    Ok(Report { done: vec![format!("{why}, so there is nothing to give back")], ..Report::default() })
}

/// Turns ipguard off and the other guard on.
///
/// # Errors
/// Nothing was changed.
pub fn release(site: &Site) -> Result<Report, TakeoverError> {
    let profile = on_the_host(site)?;
    let mut report = Report::default();
    // First of all: as long as the order stands, a running ipguard turns off what is turned on below.
    let withdrawn = takeover_file::withdraw(&Lock::acquire(&site.state_dir(), LOCK_WAIT)?)?;
    report
        .done
        .push(if withdrawn { "the order to take over is withdrawn" } else { "no takeover was ordered" }.to_owned());
    let own = own_service(site);
    if enabled::is_installed(&site.root, &own.unit) {
        match turn(site, &own, Turn::Off) {
            Ok(line) => report.done.push(line),
            // A hook of ipguard's own snap runs this: snapd stops the service itself, or lets it run on.
            Err(NotTurned::Busy(_)) if own.snap.is_some() => {
                report.done.push(format!("{}: left to snapd, which is changing its snap", own.unit));
            }
            Err(why) => report.failed.push(format!("{why}; it waits while the other guard runs")),
        }
    } else {
        report.done.push(format!("{}: not installed here", own.unit));
    }
    for unit in chores(site, profile) {
        match turn(site, &unit, Turn::Off) {
            Ok(line) => report.done.push(line),
            Err(why) => report.failed.push(format!("{why}; run `ipguard release` again")),
        }
    }
    for guard in guards(site) {
        if !enabled::is_installed(&site.root, &guard.unit) {
            report.done.push(format!("{}: not installed here, so there is nothing to turn on", guard.unit));
        } else if is_stopped(site) {
            // It would start the API server, which somebody has stopped.
            report.done.push(format!("{}: left off, as the node is stopped; its start turns it on", guard.unit));
        } else {
            match turn(site, &guard, Turn::On) {
                Ok(line) => report.done.push(line),
                Err(why) => report.failed.push(format!("{why}; run `ipguard release` again")),
            }
        }
    }
    Ok(report)
}

/// The profile's name, where this may be done at all.
fn on_the_host(site: &Site) -> Result<&'static str, TakeoverError> {
    let profile = site.profile().ok_or(TakeoverError::NoDistribution)?;
    match site.manager() {
        Manager::Host => Ok(&profile.name),
        Manager::InsideSnap => Err(TakeoverError::InsideDistribution(profile.name.clone())),
    }
}

/// ipguard's own service: the unit of the host, or that of its own snap.
fn own_service(site: &Site) -> Service {
    let (unit, snap) = match &site.snap.instance_name {
        Some(name) => (format!("snap.{name}.daemon.service"), Some(format!("{name}.daemon"))),
        None => ("ipguard.service".to_owned(), None),
    };
    Service { name: "ipguard".to_owned(), role: Role::OtherGuard, unit, snap, ready: None }
}

/// What starts the other guard's other work in its place, where that is installed. In ipguard's own snap it is always on.
fn chores(site: &Site, profile: &str) -> Vec<Service> {
    let units = ["path", "timer"].map(|kind| format!("ipguard-{profile}-chores.{kind}"));
    let installed = units.into_iter().filter(|unit| enabled::is_installed(&site.root, unit));
    let unit = |unit: String| Service { name: unit.clone(), role: Role::OtherGuard, unit, snap: None, ready: None };
    if site.snap.instance_name.is_some() { Vec::new() } else { installed.map(unit).collect() }
}

/// The operator stopped the node: `stopped.lock` of MicroK8s.
fn is_stopped(site: &Site) -> bool {
    let locks = site.profile().and_then(|profile| Some(site.data(profile).ok()?.join(&profile.files.locks)));
    locks.is_some_and(|locks| locks.join("stopped.lock").symlink_metadata().is_ok())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    On,
    Off,
}

/// Turns a service on or off, whatever it is, and says what it was.
fn turn(site: &Site, service: &Service, turn: Turn) -> Result<String, NotTurned> {
    let was_on = (enabled::is_enabled(&site.root, &service.unit), runs(site, service));
    let (command, already, done) = match turn {
        Turn::On => {
            let command = Manager::Host.turn_on(&site.root, service);
            (command, was_on == (true, Some(true)), "enabled and started")
        }
        Turn::Off => {
            let command = Manager::Host.turn_off(&site.root, service);
            (command, was_on == (false, Some(false)), "stopped and disabled")
        }
    };
    let unreached = || NotTurned::Failed(format!("{}: no command reaches it", service.unit));
    let mut pace = Pace::default();
    if site.snap.instance_name.is_some() && *service == own_service(site) {
        // Waiting for the end of a hook of our own snap, inside that hook, would be in vain.
        pace.retries = Duration::ZERO;
    }
    Switch::new(command.ok_or_else(unreached)?, pace).run_to_end()?;
    Ok(if already { format!("{}: {done} already", service.unit) } else { format!("{}: {done}", service.unit) })
}

fn runs(site: &Site, service: &Service) -> Option<bool> {
    let ask = Ask::new(Manager::Host, &site.root, vec![service.clone()], Pace::default().ask);
    ask.run_to_end().get(&service.name)?.active
}
