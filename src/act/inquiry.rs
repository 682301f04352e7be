//! What a plan wants to know before it is made: how services are, and which addresses the API server lists.
//!
//! In: services, and a question where there is one. Out: both answers. The rule of this file: both are asked at the same time,
//! and one that fails takes nothing from the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use nix::poll::PollFd;

use crate::act::ask::Ask;
use crate::act::execution::{Finished, Host};
use crate::act::listed::Listed;
use crate::decide::plan::Question;
use crate::facts::cluster::{Service, ServiceState};

/// Questions that are under way.
#[derive(Debug)]
pub(crate) struct Inquiry {
    ask: Ask,
    services: Option<BTreeMap<String, ServiceState>>,
    /// `None` once it is answered, or when there is none.
    question: Option<Listed>,
    listed: Option<Result<BTreeSet<IpAddr>, String>>,
}

impl Inquiry {
    pub(crate) fn new(services: Vec<Service>, question: Option<&Question>, host: &Host) -> Self {
        let question = question.map(|question| {
            let in_place = host.certificates.get(&question.certificate).copied();
            let address = SocketAddr::from((question.host, question.port));
            Listed::new(address, in_place, Arc::clone(&host.credentials), Instant::now() + host.pace.probe)
        });
        let ask = Ask::new(host.manager, &host.root, services, host.pace.ask);
        Self { ask, services: None, question, listed: None }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let asked = if self.services.is_none() { self.ask.poll_fds() } else { Vec::new() };
        asked.into_iter().chain(self.question.iter().flat_map(Listed::poll_fds)).collect()
    }

    pub(crate) fn deadline(&self) -> Instant {
        let asked = self.services.is_none().then(|| self.ask.deadline());
        let question = self.question.as_ref().map(Listed::deadline);
        asked.into_iter().chain(question).min().unwrap_or_else(Instant::now)
    }

    /// Never waits. `Some` once, when both answers are there.
    pub(crate) fn advance(&mut self) -> Option<Finished> {
        if let Some(listed) = self.question.as_mut().and_then(Listed::advance) {
            self.listed = Some(listed);
            self.question = None;
        }
        if self.services.is_none() {
            self.services = self.ask.advance();
        }
        if self.question.is_some() {
            return None;
        }
        Some(Finished { services: self.services.take()?, listed: self.listed.take(), ..Finished::default() })
    }
}
