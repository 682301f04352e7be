//! Watches the server certificate on disk as a suspicious reader does: every content it ever had, and every moment in
//! which it was not a certificate although it had been one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    timeline: Timeline,
    watched: Mutex<Watched>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    last: Option<Vec<u8>>,
    looked: Duration,
    was_good: bool,
    seen: Sightings,
}

/// What was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sightings {
    /// For each other certificate that appeared: the last moment at which the one before was still there.
    pub(crate) replacements: Vec<Duration>,
    /// What was wrong in between.
    pub(crate) broken: Vec<String>,
}

impl CertificateWatch {
    pub(crate) fn start(path: PathBuf, timeline: &Timeline) -> Self {
        let last = std::fs::read(&path).ok();
        let was_good = last.as_deref().is_some_and(|bytes| names_of(bytes).is_ok());
        let watched = Watched { path, last, looked: monotonic(), was_good, seen: Sightings::default() };
        let shared =
            Arc::new(Shared { stop: AtomicBool::new(false), timeline: timeline.clone(), watched: Mutex::new(watched) });
        let looking = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            while !looking.stop.load(Ordering::Relaxed) {
                thread::sleep(TICK);
                drop(looking.look());
            }
        });
        Self { shared, thread: Some(thread) }
    }

    /// Everything up to now. The file is looked at again first: who has just read a new certificate from it must find
    /// that certificate counted, however late the thread is.
    pub(crate) fn sightings(&self) -> Sightings {
        self.shared.look().seen.clone()
    }
}

impl Shared {
    /// Reads the file under the lock, so that two looks are in the order of what they read.
    fn look(&self) -> MutexGuard<'_, Watched> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut watched.looked, monotonic());
        let now = std::fs::read(&watched.path).ok();
        if now == watched.last {
            return watched;
        }
        match now.as_deref().map(names_of) {
            Some(Ok(names)) => {
                watched.seen.replacements.push(before);
                self.timeline.note("disk", format!("server.crt replaced, now {}", join(&names)));
                watched.was_good = true;
            }
            other if watched.was_good => {
                let what = if other.is_none() { "gone" } else { "no certificate" };
                watched.seen.broken.push(format!("server.crt was {what} for a moment"));
                self.timeline.note("disk", format!("server.crt is {what}"));
            }
            _ => {}
        }
        watched.last = now;
        watched
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
