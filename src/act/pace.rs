//! The deadlines and pauses of everything that is waited for.
//!
//! In: nothing. Out: [`Pace`]. The rule of this file: each time says which program needs it.

use std::time::Duration;

/// How long things may take, and how long to wait between tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A question to the service manager. systemctl itself gives up after 25 s without an answer on the bus, and says
    /// so: ours is longer, so that its words are heard.
    pub ask: Duration,
    /// A restart with all its tries. kubelite needs up to 90 s to stop (the manager kills it then) and as long to be
    /// ready on a small machine.
    pub restart: Duration,
    /// No try begins later than this: one that is killed half-way would be called a failure while it goes on.
    pub retries: Duration,
    /// The first pause after "change in progress". A change of snapd takes a second or more.
    pub retry_first: Duration,
    /// Pauses double up to this.
    pub retry_longest: Duration,
    /// One look at a port. A busy API server takes a second for a handshake.
    pub probe: Duration,
    /// The first pause between looks. An API server that watches its files serves the new leaf within a quarter second.
    pub probe_first: Duration,
    /// Pauses double up to this: others look only once a minute.
    pub probe_longest: Duration,
    /// How long a port must have refused before it is taken for closed.
    pub refusals: Duration,
    /// How long a TLS server must have said that it cannot use its certificate before it is believed. An API server
    /// loads its pair before it listens.
    pub unusable: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            ask: Duration::from_secs(30),
            restart: Duration::from_secs(180),
            retries: Duration::from_secs(120),
            retry_first: Duration::from_secs(1),
            retry_longest: Duration::from_secs(10),
            probe: Duration::from_secs(5),
            probe_first: Duration::from_millis(250),
            probe_longest: Duration::from_secs(2),
            refusals: Duration::from_secs(2),
            unusable: Duration::from_secs(20),
        }
    }
}
