//! Tests of the test bed itself that need no network: the scenario format, the reports' sums, the judge, the tree, the stand-ins.
//! `tests/scenarios.rs` has a harness of its own, in which `#[test]` functions do not run.

#![allow(dead_code, reason = "what plays scenarios is used by tests/scenarios.rs")]

#[path = "scenarios/expect.rs"]
mod expect;
#[path = "scenarios/scenario.rs"]
mod scenario;
mod skipped;
mod stage;

#[path = "bed/authority.rs"]
mod authority;
#[path = "bed/format.rs"]
mod format;
#[path = "bed/judge.rs"]
mod judge;
#[path = "bed/namespace.rs"]
mod namespace;
#[path = "bed/originals.rs"]
mod originals;
#[path = "bed/secrets.rs"]
mod secrets;
#[path = "bed/services.rs"]
mod services;
#[path = "bed/tree.rs"]
mod tree;
