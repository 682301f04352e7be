//! One pass from the command line: `check`, `explain`, `ips`, the hook.
//!
//! In: a [`Site`]. Out: a plan, and with `--apply` what became of it. The rule of this file: the same observe, decide and
//! act as the daemon's, with a loop of its own only to wait for the end; without `--apply` nothing is written, not even
//! what was observed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::act::execution::Execution;
use crate::act::lock::{Lock, LockError};
use crate::decide::Mode;
use crate::decide::outcome::{StepOutcome, StepResult};
use crate::decide::plan::{Plan, ReasonCode, Step};
use crate::decide::state::State;
use crate::facts::cluster::Role;
use crate::facts::{Observed, ReadError};
use crate::observe::network::NetworkError;
use crate::pass::{self, Eyes};
use crate::site::Site;
use crate::state_file::{self, SaveError};

/// How long somebody else may hold the lock: building and writing takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Making a certificate, restarting for one that is not reloaded, looking once more, and some for being overtaken.
const MOST_ROUNDS: usize = 5;

/// Why a pass could not be made or carried out.
#[derive(Debug, thiserror::Error)]
pub enum OneShotError {
    /// The kernel gives no list of addresses.
    #[error("reading the network")]
    Network(#[from] NetworkError),
    /// Another writer, or a folder that cannot be used.
    #[error("--apply needs the lock")]
    Lock(#[from] LockError),
    /// What was seen or done is not remembered.
    #[error(transparent)]
    Save(#[from] SaveError),
}

/// One pass that was made.
#[derive(Debug)]
pub struct Look {
    /// What looked; it looks again after acting.
    pub eyes: Eyes,
    /// What was there.
    pub observed: Observed,
    /// What follows.
    pub plan: Plan,
    /// What it was decided on.
    pub state: State,
    /// Why the remembered state was not used, though there is one.
    pub state_unused: Option<ReadError>,
    /// What is made anew whatever it is like.
    pub forced: Forced,
}

/// A pass that was carried out.
#[derive(Debug)]
pub struct Applied {
    /// What became of its steps.
    pub outcomes: Vec<StepOutcome>,
    /// Whether the caller of a hook has to restart the API server: by what was so when it was carried out.
    pub caller_restarts: bool,
}

/// Certificates that somebody wants made anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forced {
    /// Their names.
    pub certificates: BTreeSet<String>,
    /// Without the names that nothing demands.
    pub exact: bool,
}

/// Looks and decides without a question to anybody: what addresses are hangs on no answer, and whoever only wants that must
/// not wait for one.
///
/// # Errors
/// The network cannot be read.
pub fn glance(site: &Site) -> Result<Look, OneShotError> {
    glance_with(Eyes::open()?, site, Mode::OneShot, Forced::default())
}

/// Looks and decides, asking services and the API server only when the plan needs them.
///
/// # Errors
/// The network cannot be read.
pub fn look(site: &Site, mode: Mode) -> Result<Look, OneShotError> {
    look_for(site, mode, Forced::default())
}

/// Looks and decides as [`look`] does, with certificates to be made anew.
///
/// # Errors
/// The network cannot be read.
pub fn look_for(site: &Site, mode: Mode, forced: Forced) -> Result<Look, OneShotError> {
    look_with(Eyes::open()?, site, mode, forced)
}

fn glance_with(mut eyes: Eyes, site: &Site, mode: Mode, forced: Forced) -> Result<Look, OneShotError> {
    let mut observed = eyes.observe(site)?;
    observed.forced.clone_from(&forced.certificates);
    observed.exact = forced.exact;
    let (state, state_unused) = state_file::load(&site.state_dir());
    let plan = pass::decide(&observed, site, &state, mode);
    Ok(Look { eyes, observed, plan, state, state_unused, forced })
}

fn look_with(eyes: Eyes, site: &Site, mode: Mode, forced: Forced) -> Result<Look, OneShotError> {
    let mut look = glance_with(eyes, site, mode, forced)?;
    if look.plan.needs_services {
        let host = pass::host(site, &look.observed, None, LOCK_WAIT);
        let answer = Execution::ask(site.services(), look.plan.needs_listed.as_ref(), &host).run_to_end();
        (look.observed.services, look.observed.listed) = (answer.services, answer.listed);
        look.plan = pass::decide(&look.observed, site, &look.state, mode);
    }
    Ok(look)
}

/// Carries out a plan, and what follows from carrying it out.
///
/// # Errors
/// The lock cannot be had, or what was done cannot be written down. A step that failed is an outcome, not an error.
pub fn apply(site: &Site, mut look: Look, mode: Mode) -> Result<Applied, OneShotError> {
    let mut all = Vec::new();
    // Whoever else has made the certificate meanwhile, there was none: that stays true.
    let without_certificate = look.plan.caller_restarts && look.plan.restart_of_caller().is_none();
    let mut caller_restarts = false;
    for round in 1..=MOST_ROUNDS {
        let carried_out = carry_out(site, &look, mode)?;
        let overtaken = carried_out.is_none();
        caller_restarts = look.plan.caller_restarts;
        let outcomes = carried_out.unwrap_or_default();
        let mut forced = look.forced;
        // What somebody else came between is still to be done.
        forced.certificates.retain(|name| !issued(&outcomes).any(|issued| issued == name));
        all.extend(outcomes);
        if let Some(reason) = look.plan.restart_of_caller().filter(|_| mode == Mode::Hook && is_server_in_place(&all)) {
            caller_restarts = claim(site, reason)?;
        }
        // A hook must not wait; and after a failure trying again at once would only fail again.
        let follows = overtaken || (mode != Mode::Hook && !all.is_empty() && !all.iter().any(stops));
        if !follows || round == MOST_ROUNDS {
            break;
        }
        look = look_with(look.eyes, site, mode, forced)?;
        if !overtaken && !look.plan.has_steps() {
            break;
        }
    }
    Ok(Applied { outcomes: all, caller_restarts: caller_restarts || without_certificate })
}

/// Writes down that the caller restarts the API server, so that neither the daemon nor the next hook asks for another
/// restart before that one has happened. False when somebody else's is under way.
fn claim(site: &Site, reason: ReasonCode) -> Result<bool, OneShotError> {
    let service = site.services().into_iter().find(|service| service.role == Role::ApiServer);
    let name = service.map(|service| service.name).unwrap_or_default();
    let mut claimed = true;
    remember(&site.state_dir(), |state| claimed = state.claim_restart(&name, reason, pass::now().wall))?;
    Ok(claimed)
}

/// Whether no server certificate was to be made in vain: without it nobody restarts.
fn is_server_in_place(outcomes: &[StepOutcome]) -> bool {
    let of_server = |outcome: &&StepOutcome| matches!(&outcome.step, Step::Issue(order) if order.served);
    !outcomes.iter().filter(of_server).any(|outcome| outcome.result.is_failure())
}

/// Signs certificates anew, and ends the rollbacks that hold them.
///
/// # Errors
/// As [`apply`].
pub fn renew(site: &Site, look: Look) -> Result<Vec<StepOutcome>, OneShotError> {
    let outcomes = apply(site, look, Mode::OneShot)?.outcomes;
    // Only now: a hold must not end by a certificate that could not be made.
    remember(&site.state_dir(), |state| issued(&outcomes).for_each(|name| state.end_rollback(name)))?;
    Ok(outcomes)
}

/// Names of the certificates that were put in place.
pub fn issued(outcomes: &[StepOutcome]) -> impl Iterator<Item = &str> {
    outcomes.iter().filter_map(|outcome| match (&outcome.step, &outcome.result) {
        (Step::Issue(order), StepResult::Issued { .. }) => Some(order.certificate.as_str()),
        _ => None,
    })
}

fn stops(outcome: &StepOutcome) -> bool {
    matches!(outcome.result, StepResult::Failed(_) | StepResult::Unanswered(_))
}

/// `None` when somebody else has written the state since it was looked at: then the plan may be wrong, and its state
/// would undo what they wrote down.
fn carry_out(site: &Site, look: &Look, mode: Mode) -> Result<Option<Vec<StepOutcome>>, OneShotError> {
    let (folder, plan) = (site.state_dir(), &look.plan);
    // Before the state forgets that a writer was interrupted.
    pass::mend(site, &look.observed, plan, LOCK_WAIT);
    let mut overtaken = false;
    remember(&folder, |state| {
        overtaken = !state.says_the_same(&look.state);
        if !overtaken {
            plan.state.clone_into(state);
        }
    })?;
    if overtaken {
        return Ok(None);
    }
    if !plan.has_steps() {
        return Ok(Some(Vec::new()));
    }
    let mut host = pass::host(site, &look.observed, Some(plan), LOCK_WAIT);
    if mode == Mode::Hook {
        // A change in the way may be the one that the hook belongs to. What is refused is owed, and handed over later.
        host.pace.retries = Duration::ZERO;
    }
    let finished = Execution::carry_out(plan.steps.clone(), host).run_to_end();
    remember(&folder, |state| state.record(plan, &finished.outcomes))?;
    Ok(Some(finished.outcomes))
}

/// Changes the state on disk; an unchanged one is not written.
fn remember(folder: &std::path::Path, change: impl FnOnce(&mut State)) -> Result<(), OneShotError> {
    let _lock = Lock::acquire(folder, LOCK_WAIT)?;
    let (before, _) = state_file::load(folder);
    let mut state = before.clone();
    change(&mut state);
    if state.says_the_same(&before) {
        state_file::remove_leftovers(folder);
        return Ok(());
    }
    Ok(state_file::save(folder, &state)?)
}
