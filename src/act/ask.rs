//! Asks the service manager how services are, with one child process for all of them.
//!
//! In: services. Out: a state for each of them, also when there is no answer: not knowing is a state too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::PollFd;

use crate::act::child::{Child, ChildError, Command};
use crate::act::execution::wait;
use crate::act::services::{Manager, unanswered};
use crate::chain::chain;
use crate::facts::cluster::{Service, ServiceState};
use crate::observe::unit;

/// A question that is under way.
#[derive(Debug)]
pub(crate) struct Ask {
    manager: Manager,
    root: PathBuf,
    services: Vec<Service>,
    /// `None` when there is nothing to ask.
    asked: Option<(Command, Result<Child, ChildError>)>,
}

impl Ask {
    pub(crate) fn new(manager: Manager, root: &Path, services: Vec<Service>, within: Duration) -> Self {
        let command = manager.ask(root, &services);
        let asked = command.map(|command| (command.clone(), Child::spawn(command, Instant::now() + within)));
        Self { manager, root: root.to_owned(), services, asked }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        self.child().map_or_else(Vec::new, Child::poll_fds)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.child().map_or_else(Instant::now, Child::deadline)
    }

    /// Never waits. `Some` once, when the answer is there.
    pub(crate) fn advance(&mut self) -> Option<BTreeMap<String, ServiceState>> {
        let Some((command, child)) = &mut self.asked else {
            return Some(self.manager.read_answer(&self.services, ""));
        };
        let output = match child {
            Err(error) => return Some(unanswered(&self.services, &chain(error))),
            Ok(child) => child.advance()?,
        };
        let output = match output {
            Err(error) => return Some(unanswered(&self.services, &chain(&error))),
            Ok(output) => output,
        };
        let mut states = self.manager.read_answer(&self.services, &output.stdout);
        if self.manager == Manager::InsideSnap {
            // Without it nobody knows that somebody else's restart has made ours needless.
            for service in &self.services {
                let running = states.get_mut(&service.name).filter(|state| state.active == Some(true));
                running.into_iter().for_each(|state| state.started = unit::started(&self.root, &service.unit));
            }
        }
        // systemctl may fail for one unit and still tell about the others. The failure explains what is missing.
        if let Err(error) = output.success(command) {
            let missing = states.values_mut().filter(|state| state.active.is_none());
            missing.for_each(|state| state.detail = chain(&error));
        }
        Some(states)
    }

    /// Waits for the answer, for callers with nothing else to do.
    pub(crate) fn run_to_end(mut self) -> BTreeMap<String, ServiceState> {
        loop {
            if let Some(states) = self.advance() {
                return states;
            }
            wait(&mut self.poll_fds(), Some(self.deadline()));
        }
    }

    fn child(&self) -> Option<&Child> {
        self.asked.as_ref()?.1.as_ref().ok()
    }
}
