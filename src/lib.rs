//! Keeps a Kubernetes API server's certificate true to the node's own addresses.
//!
//! ```text
//! kernel --rtnetlink--> observe --facts--> decide --Plan--> act --Outcome--> state, status
//! disk   --certificates, args, locks-->      ^                |
//!                                            '-- what is served
//! ```
//!
//! One path for everybody: the daemon, `check`, hooks and tests all run observe, then [`decide`], then act. It is
//! level-triggered: an event only says "look again", and every pass recomputes the whole plan.

pub mod act;
pub mod chain;
pub mod chores;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod decide;
pub mod facts;
pub mod memory;
pub mod notify;
pub mod observe;
pub mod one_shot;
pub mod pass;
pub mod profiles;
pub mod publish;
pub mod reload;
pub mod report;
pub mod rollback;
pub mod settle;
pub mod signals;
pub mod site;
#[cfg(test)]
#[path = "../tests/skipped/mod.rs"]
mod skipped;
pub mod state_file;
pub mod status_file;
mod sys;
pub mod takeover;
pub mod takeover_file;
pub mod watched;
