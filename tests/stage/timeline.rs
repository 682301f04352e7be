//! One clock and one list of what happened, from every source, so that a failure can be read from top to bottom.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Events in the order of their time; clones share the list.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    began: Duration,
    events: Arc<Mutex<Vec<Event>>>,
}

/// One thing that happened.
#[derive(Debug, Clone)]
struct Event {
    at: Duration,
    source: &'static str,
    text: String,
}

impl Timeline {
    pub(crate) fn start() -> Self {
        Self { began: monotonic(), events: Arc::default() }
    }

    /// Notes something that happens now.
    pub(crate) fn note(&self, source: &'static str, text: impl Into<String>) {
        self.note_at(monotonic(), source, text);
    }

    /// Notes something that carries its own time.
    pub(crate) fn note_at(&self, at: Duration, source: &'static str, text: impl Into<String>) {
        self.lock().push(Event { at, source, text: text.into() });
    }

    /// The texts of one source, in order.
    pub(crate) fn texts(&self, source: &str) -> Vec<String> {
        self.lock().iter().filter(|event| event.source == source).map(|event| event.text.clone()).collect()
    }

    /// The texts alone, as they were said, each on lines of its own.
    pub(crate) fn words(&self) -> String {
        self.lock().iter().map(|event| event.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Everything, one line each, seconds since the start in front.
    pub(crate) fn render(&self) -> String {
        let mut events = self.lock().clone();
        events.sort_by_key(|event| event.at);
        let mut text = String::new();
        for event in events {
            let since = event.at.as_secs_f64() - self.began.as_secs_f64();
            for (n, line) in event.text.lines().enumerate() {
                let mark = if n == 0 { event.source } else { "" };
                // Writing to a String cannot fail.
                let _ = writeln!(text, "    {since:8.3}  {mark:<8} {line}");
            }
        }
        text
    }

    /// A poisoned list is still a list: the panic that poisoned it is what the reader wants to see.
    fn lock(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CLOCK_MONOTONIC, the clock of systemd's `ExecMainStartTimestampMonotonic`.
pub(crate) fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).expect("CLOCK_MONOTONIC exists on every Linux")
}
