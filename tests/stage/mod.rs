//! The stage: a private network, a MicroK8s-shaped tree and stand-ins for everything ipguard talks to.
//!
//! In: what a test or the demo wants to play. Out: a host that exists only inside network namespaces and one temporary
//! folder. The rule of this folder: nothing here knows what ipguard should decide, and nothing outside the namespaces
//! and the folder is touched. The judges are the tests that use it.

#![allow(dead_code, reason = "each test binary and the demo use another part of the stage")]

pub(crate) mod age;
pub(crate) mod api_server;
pub(crate) mod authority;
pub(crate) mod certificate_watch;
pub(crate) mod guard;
pub(crate) mod namespace;
pub(crate) mod port;
pub(crate) mod secrets;
pub(crate) mod services;
pub(crate) mod timeline;
pub(crate) mod traces;
pub(crate) mod tree;

/// A failure of the stage itself. The text is all that anybody does with it.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the stage returns.
pub(crate) type Result<T> = std::result::Result<T, Failure>;
