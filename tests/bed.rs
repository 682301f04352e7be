//! Tests of the test bed itself that need no network: the scenario format, the judge, the tree, certificates.
//! `tests/scenarios.rs` has a harness of its own, in which `#[test]` functions would not run.

#![allow(dead_code, reason = "what plays scenarios is used by tests/scenarios.rs")]

#[path = "scenarios/expect.rs"]
mod expect;
#[path = "scenarios/scenario.rs"]
mod scenario;
mod stage;
