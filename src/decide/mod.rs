//! Decisions: what every address is, which names the certificate needs, and what has to be done about it.
//!
//! In: facts, configuration, state, `now`. Out: a [`plan::Plan`]. The rule of this folder: pure. No file system,
//! socket, process, environment, clock, logger or netlink crate is named here; `tests/layering.rs` reads these files
//! and fails otherwise. Behaviour belongs here, so that `act/` has none left to choose.

pub mod boot;
pub mod case;
mod certificates;
mod checks;
pub mod chores;
pub mod classify;
mod clock;
mod credible;
mod down;
pub mod holds;
pub mod incumbents;
pub mod inventory;
mod join_tokens;
mod learn;
mod limits;
pub mod links;
pub mod mend;
pub mod names;
pub mod node_address;
pub mod outcome;
pub mod plan;
pub mod planner;
mod promotion;
pub mod ready;
mod remember;
pub mod request;
mod restart;
pub mod rollback;
pub mod rules;
mod self_made;
pub mod state;
mod steps;
mod takeover;
pub mod verdict;
pub mod word;

pub use plan::Mode;
pub use planner::plan;
