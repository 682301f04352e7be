//! What the daemon remembers: the state on disk, and in the process what the disk does not take.
//!
//! In: the state folder, plans, outcomes. Out: the state to decide on. The rule of this file: what was seen and done is
//! never forgotten while the process lives - a failure nobody remembers would be repeated at once, and for ever.

use std::path::Path;
use std::time::Duration;

use crate::act::lock::{Lock, LockError};
use crate::chain::chain;
use crate::decide::outcome::StepOutcome;
use crate::decide::plan::Plan;
use crate::decide::state::State;
use crate::state_file;

/// Another process holds the lock for milliseconds; the loop must not wait longer for it.
pub const LOCK_WAIT: Duration = Duration::from_millis(500);

/// The daemon's memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// `observe` mode touches nothing: everything is kept here.
    only_here: bool,
    /// The state as it should be on disk, and as it was there when it could not be written.
    unsaved: Option<Unsaved>,
    /// What was done and is not in any state yet, because somebody else had the lock.
    unrecorded: Vec<(Plan, Vec<StepOutcome>)>,
}

#[derive(Debug)]
struct Unsaved {
    state: State,
    on_disk: State,
}

/// Whether the folder can be used now.
enum Access {
    Free(#[allow(dead_code, reason = "held, not looked at")] Lock),
    /// Somebody else is at work.
    Busy,
    /// It cannot be used at all, which must not stop the daemon.
    Closed,
}

impl Memory {
    /// `only_here` is for the mode that touches nothing.
    pub fn new(only_here: bool) -> Self {
        Self { only_here, ..Self::default() }
    }

    /// From now on: whether it is the mode that touches nothing. What was kept here meanwhile is written with the next pass.
    pub const fn keep_only_here(&mut self, only_here: bool) {
        self.only_here = only_here;
    }

    /// Decides on the state as it is on disk, for a one-shot may have changed it, and writes what the observation alone
    /// has changed. `None` when somebody holds the lock.
    pub fn plan(&mut self, folder: &Path, decide: impl FnOnce(&State) -> Plan) -> Option<Plan> {
        let access = self.access(folder);
        if matches!(access, Access::Busy) {
            return None;
        }
        let on_disk = Self::load(folder);
        let state = self.recall(&on_disk);
        let plan = decide(&state);
        self.keep(folder, &access, on_disk, plan.state.clone());
        Some(plan)
    }

    /// Learns from what was done. The state is read again: what a one-shot wrote meanwhile stays.
    pub fn record(&mut self, folder: &Path, plan: Plan, outcomes: Vec<StepOutcome>) {
        if outcomes.is_empty() {
            return;
        }
        self.unrecorded.push((plan, outcomes));
        if !self.write_down(folder) {
            tracing::warn!("what was done is written down when the lock is free");
        }
    }

    /// Writes down what was done and is in no state yet. False while somebody else has the lock.
    pub fn write_down(&mut self, folder: &Path) -> bool {
        if self.unrecorded.is_empty() {
            return true;
        }
        let access = self.access(folder);
        if matches!(access, Access::Busy) {
            return false;
        }
        let on_disk = Self::load(folder);
        let state = self.recall(&on_disk);
        self.keep(folder, &access, on_disk, state);
        true
    }

    fn access(&self, folder: &Path) -> Access {
        if self.only_here {
            return Access::Closed;
        }
        match Lock::acquire(folder, LOCK_WAIT) {
            Ok(lock) => Access::Free(lock),
            Err(LockError::Busy { .. }) => Access::Busy,
            Err(error) => {
                tracing::error!("nothing can be remembered: {}", chain(&error));
                Access::Closed
            }
        }
    }

    fn load(folder: &Path) -> State {
        let (state, unused) = state_file::load(folder);
        if let Some(error) = unused {
            tracing::warn!("{error}: going on without what was remembered");
        }
        state
    }

    /// What was remembered last, with everything that was done since.
    fn recall(&mut self, on_disk: &State) -> State {
        // Somebody else could write meanwhile: theirs is the newer one.
        let ours = self.unsaved.take().filter(|unsaved| unsaved.on_disk == *on_disk);
        let mut state = ours.map_or_else(|| on_disk.clone(), |unsaved| unsaved.state);
        for (plan, outcomes) in self.unrecorded.drain(..) {
            state.record(&plan, &outcomes);
        }
        state
    }

    fn keep(&mut self, folder: &Path, access: &Access, on_disk: State, state: State) {
        if !self.only_here && state.says_the_same(&on_disk) {
            if let Access::Free(_) = access {
                state_file::remove_leftovers(folder);
            }
            return;
        }
        if let Access::Free(_) = access {
            match state_file::save(folder, &state) {
                Ok(()) => return,
                Err(error) => tracing::error!("{}", chain(&error)),
            }
        }
        self.unsaved = Some(Unsaved { state, on_disk });
    }
}
