//! Another guard that somebody ordered to stay off, and that was turned on again.
//!
//! In: the order, the services' states, the log of how often it was turned off. Out: whether the states are needed, and
//! the steps that turn it off. The rule of this file: without an order nothing is touched; with one, whoever turns the
//! guard on again and again is answered less and less often, never in a loop.
//!
//! `microk8s start` enables every service of the snap, and so may a refresh. That the guard is enabled shows on the disk
//! at no cost; that it was started without being enabled only shows when somebody asks for its state, which is done when
//! there is something to do anyway, and every few minutes.

use std::time::Duration;

use crate::decide::limits::next_restart;
use crate::decide::plan::{Mode, Reason, ReasonCode, Step};
use crate::decide::state::State;
use crate::facts::Observed;
use crate::facts::cluster::{Role, Service};
use crate::facts::time::{Now, Timestamp};

/// How often the guard's state is asked for where nothing else asks.
const LOOK_EVERY: Duration = Duration::from_secs(5 * 60);
/// At least so long after it was turned off it is not turned off again: something else than a person turns it on then.
const SPACING: Duration = Duration::from_secs(10);
/// So often within [`WINDOW`] without further pauses; then they double from five minutes up to an hour.
const LIMIT: u32 = 6;
const WINDOW: Duration = Duration::from_secs(60 * 60);

/// What follows from an order.
#[derive(Debug, Default)]
pub(super) struct Takeover {
    /// The services' states have to be asked for first.
    pub(super) needs_services: bool,
    /// What turns guards off, each with its reason.
    pub(super) steps: Vec<(Step, Reason)>,
    /// A guard is on and stays so until then: it was turned off too often.
    pub(super) waits: Option<Timestamp>,
    /// When time alone makes the next look due.
    pub(super) look_again: Option<Timestamp>,
    /// What people should know.
    pub(super) notice: Option<String>,
}

/// Judges the guards by the order that is on the disk.
pub(super) fn decide(services: &[Service], observed: &Observed, state: &State, now: Now, mode: Mode) -> Takeover {
    let takeover = match &observed.takeover {
        Some(Ok(takeover)) if mode == Mode::Daemon => takeover,
        // Whether it is to stay off is not known, so it is not touched.
        Some(Err(error)) => {
            let notice = format!("{error}; the other guard is left alone: run `ipguard takeover` or `ipguard release`");
            return Takeover { notice: Some(notice), ..Takeover::default() };
        }
        _ => return Takeover::default(),
    };
    let guards: Vec<&Service> = services.iter().filter(|service| service.role == Role::OtherGuard).collect();
    if guards.is_empty() {
        return Takeover::default();
    }
    if observed.services.is_empty() {
        let enabled = guards.iter().any(|guard| takeover.enabled_guards.contains(&guard.name));
        let waits = if enabled { next(state, now) } else { None };
        // The clock may have been set back behind the last question.
        let look = observed.services_asked.filter(|at| *at <= now.wall).map(|at| at + LOOK_EVERY);
        let due = look.is_none_or(|at| at <= now.wall);
        let notice = waits.map(|until| often(&guards, until));
        return Takeover {
            needs_services: due || (enabled && waits.is_none()),
            look_again: waits.into_iter().chain(look).min(),
            notice,
            ..Takeover::default()
        };
    }
    let mut found = Takeover { look_again: Some(now.wall + LOOK_EVERY), ..Takeover::default() };
    let mut on: Vec<&Service> = Vec::new();
    for guard in guards {
        let known = observed.services.get(&guard.name);
        let runs = known.is_some_and(|state| state.active == Some(true));
        let is_us =
            known.and_then(|state| state.main_process).is_some_and(|process| observed.lineage.contains(&process));
        let what = match (takeover.enabled_guards.contains(&guard.name), runs) {
            (true, true) => "is enabled and runs",
            (true, false) => "is enabled",
            (false, true) => "runs",
            (false, false) => continue,
        };
        if is_us {
            continue;
        }
        on.push(guard);
        let reason = ReasonCode::GuardEnabled;
        let detail = format!("{} {what} again, after `ipguard takeover` at {}", guard.unit, takeover.since);
        found.steps.push((
            Step::Disable { service: guard.name.clone(), reason },
            Reason { code: reason, certificate: "server".to_owned(), detail },
        ));
    }
    if !on.is_empty()
        && let Some(until) = next(state, now)
    {
        found.steps.clear();
        found.waits = Some(until);
        found.look_again = Some(until);
        found.notice = Some(often(&on, until));
    }
    found
}

/// When a guard may be turned off again; `None` when it may now.
fn next(state: &State, now: Now) -> Option<Timestamp> {
    let spaced = state.disablings.iter().max().map(|at| *at + SPACING).filter(|until| {
        // One that seems to lie ahead comes from a clock that was set back: a moment is waited, not until then.
        *until > now.wall && *until <= now.wall + SPACING
    });
    spaced.max(next_restart(&state.disablings, LIMIT, WINDOW, now.wall))
}

fn often(guards: &[&Service], until: Timestamp) -> String {
    let units: Vec<&str> = guards.iter().map(|guard| guard.unit.as_str()).collect();
    format!(
        "{} is turned on again and again although `ipguard takeover` turned it off; it is left on until {until}: find out \
         what turns it on",
        units.join(" and ")
    )
}
