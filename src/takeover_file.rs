//! The order to take over from another guard, on disk: one small JSON file in our own folder.
//!
//! In: the folder. Out: since when the order stands, for which distribution, and by which of ipguard's services. The rule of this file: the order stands
//! apart from the state, which the daemon writes anew all the time; it is there whole or not at all, and one that cannot
//! be trusted or understood orders nothing and is reported.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::act::lock::Lock;
use crate::act::store::{Folder, StoreError};
use crate::facts::time::Timestamp;
use crate::facts::{Problem, Read, ReadError};
use crate::state_file;

/// Name of the file in the state folder.
pub const NAME: &str = "takeover.json";

/// The form written today.
const VERSION: u32 = 1;

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    version: u32,
    /// The profile whose guard is to stay off: another distribution on the same host is not meant.
    pub profile: String,
    /// When it was given.
    pub since: Timestamp,
    /// Unit of the service that it was given for: the host's ipguard, or that of a snap. What another one leaves behind
    /// when it is removed is not its to withdraw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// Why the order was not changed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The file could not be written or removed.
    #[error("the order to take over is not changed in {path}", path = path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<StoreError>,
    },
    /// It does not serialise.
    #[error("the order to take over is not changed in {path}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the order; `None` where there is none.
pub fn load(folder: &Path) -> Option<Read<Order>> {
    let path = folder.join(NAME);
    match read(folder, &path) {
        Err(error) if error.problem == Problem::Missing => None,
        result => Some(result),
    }
}

fn read(folder: &Path, path: &Path) -> Read<Order> {
    let text = state_file::trusted_text(folder, path)?;
    let order: Order = serde_json::from_str(&text)
        .map_err(|error| ReadError::malformed(path, format!("not an order to take over: {error}")))?;
    match order.version {
        VERSION => Ok(order),
        other => Err(ReadError::malformed(path, format!("version {other}, where this program knows {VERSION}"))),
    }
}

/// Writes the order. True when there was none before that can be used, or one for another of ipguard's services: an order
/// that stands keeps its time.
///
/// # Errors
/// The file is as it was.
pub fn give(lock: &Lock, profile: &str, service: &str, now: Timestamp) -> Result<bool, OrderError> {
    let path = lock.folder().join(NAME);
    let before = load(lock.folder()).and_then(Result::ok).filter(|order| order.profile == profile);
    if before.as_ref().is_some_and(|order| order.service.as_deref() == Some(service)) {
        return Ok(false);
    }
    let since = before.map_or(now, |order| order.since);
    let order = Order { version: VERSION, profile: profile.to_owned(), since, service: Some(service.to_owned()) };
    let text = serde_json::to_vec_pretty(&order).map_err(|source| OrderError::Format { path: path.clone(), source })?;
    place(lock, &path)?.replace(&text, 0o600).map_err(|source| failed(&path, source))?;
    Ok(true)
}

/// Withdraws the order. False when there was none.
///
/// # Errors
/// The file is as it was.
pub fn withdraw(lock: &Lock) -> Result<bool, OrderError> {
    let path = lock.folder().join(NAME);
    place(lock, &path)?.remove().map_err(|source| failed(&path, source))
}

fn place(lock: &Lock, path: &Path) -> Result<crate::act::store::Place, OrderError> {
    Folder::open(lock.folder()).and_then(|folder| folder.place(path)).map_err(|source| failed(path, source))
}

fn failed(path: &Path, source: StoreError) -> OrderError {
    OrderError::Store { path: path.to_owned(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use std::{env, fs};

    use super::*;

    /// A folder of its own for each test, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let name = format!("ipguard-order-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            Self(env::temp_dir().join(name))
        }

        fn lock(&self) -> Lock {
            Lock::acquire(&self.0, Duration::ZERO).expect("nobody else is here")
        }

        fn unusable(&self) -> String {
            load(&self.0).expect("there is a file").expect_err("it is not used").to_string()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_order_stands_until_it_is_withdrawn() {
        let scratch = Scratch::new();
        assert_eq!(load(&scratch.0), None, "not even a folder");
        let (lock, at) = (scratch.lock(), Timestamp::from_seconds);
        assert_eq!(load(&scratch.0), None);
        assert!(give(&lock, "microk8s", "ipguard.service", at(100)).expect("given"));
        assert!(!give(&lock, "microk8s", "ipguard.service", at(200)).expect("it stands already"));
        let order = load(&scratch.0).expect("there").expect("usable");
        assert_eq!((order.profile.as_str(), order.since), ("microk8s", at(100)));
        assert!(give(&lock, "microk8s", "snap.ipguard.daemon.service", at(300)).expect("for another service"));
        let order = load(&scratch.0).expect("there").expect("usable");
        assert_eq!((order.service.as_deref(), order.since), (Some("snap.ipguard.daemon.service"), at(100)));
        let mode = fs::metadata(scratch.0.join(NAME)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(withdraw(&lock).expect("withdrawn"));
        assert!(!withdraw(&lock).expect("there is none"));
        assert_eq!(load(&scratch.0), None);
    }

    #[test]
    fn what_cannot_be_trusted_or_understood_orders_nothing() {
        let scratch = Scratch::new();
        let lock = scratch.lock();
        let path = scratch.0.join(NAME);
        for (text, why) in [
            ("", "the file is empty"),
            ("{", "not an order to take over"),
            ("{\"version\":1}", "not an order to take over"),
            (r#"{"version":2,"profile":"microk8s","since":0}"#, "version 2, where this program knows 1"),
        ] {
            fs::write(&path, text).expect("written");
            assert!(scratch.unusable().contains(why), "{text}: {}", scratch.unusable());
        }
        // A new order takes the place of one that means nothing.
        assert!(give(&lock, "microk8s", "ipguard.service", Timestamp::default()).expect("given"));
        assert!(load(&scratch.0).expect("there").is_ok());
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o770)).expect("it is ours");
        assert!(scratch.unusable().contains("writable by others"), "{}", scratch.unusable());
        fs::set_permissions(&scratch.0, fs::Permissions::from_mode(0o700)).expect("it is ours");
        fs::remove_file(&path).expect("there");
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("it is ours");
        assert!(scratch.unusable().contains("not a regular file"), "{}", scratch.unusable());
        assert!(withdraw(&lock).is_err(), "a link that somebody put there is for somebody to look at");
    }
}
