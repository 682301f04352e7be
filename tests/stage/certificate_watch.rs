//! Watches the server certificate on disk as a suspicious reader does: every content it ever had, and every moment in
//! which it was not a certificate although it had been one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::authority::names_of;
use super::timeline::{Timeline, monotonic};

/// Short against the time between two reissues; a write in place is longer than this under load now and then, and one
/// sighting is enough.
const TICK: Duration = Duration::from_millis(5);

/// The watch; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CertificateWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    seen: Mutex<Sightings>,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sightings {
    /// Times at which another certificate appeared.
    pub(crate) replacements: Vec<Duration>,
    /// What was wrong in between.
    pub(crate) broken: Vec<String>,
}

impl CertificateWatch {
    pub(crate) fn start(path: PathBuf, timeline: &Timeline) -> Self {
        let shared = Arc::new(Shared::default());
        let (thread_shared, timeline) = (Arc::clone(&shared), timeline.clone());
        let mut last = std::fs::read(&path).ok();
        let mut was_good = last.as_deref().is_some_and(|bytes| names_of(bytes).is_ok());
        let thread = thread::spawn(move || {
            while !thread_shared.stop.load(Ordering::Relaxed) {
                thread::sleep(TICK);
                let now = std::fs::read(&path).ok();
                if now == last {
                    continue;
                }
                let names = now.as_deref().map(names_of);
                let mut seen = thread_shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
                match names {
                    Some(Ok(names)) => {
                        seen.replacements.push(monotonic());
                        timeline.note("disk", format!("server.crt replaced, now {}", join(&names)));
                        was_good = true;
                    }
                    other if was_good => {
                        let what = if other.is_none() { "gone" } else { "no certificate" };
                        seen.broken.push(format!("server.crt was {what} for a moment"));
                        timeline.note("disk", format!("server.crt is {what}"));
                    }
                    _ => {}
                }
                last = now;
            }
        });
        Self { shared, thread: Some(thread) }
    }

    pub(crate) fn sightings(&self) -> Sightings {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for CertificateWatch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

fn join(names: &std::collections::BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}
