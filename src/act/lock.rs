//! The lock between everything that changes certificates: daemon, `check` and hooks.
//!
//! In: the state folder, and the folder that is written to. Out: a [`Lock`], held as long as the value lives. The rule of
//! this file: only root's own folder is trusted. In a folder others can write to, the lock file could be swapped, and two
//! writers would both hold "it".

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, open, openat};
use nix::sys::stat::Mode;

/// Name of the lock file in the state folder.
const NAME: &str = "lock";

/// Between two tries. The lock is held for milliseconds, so a waiter gets it at once in human terms.
const RETRY: Duration = Duration::from_millis(50);

/// The longest wait for the lock on a folder of certificates. Everybody can take that one who may read the folder, so it
/// must not be able to keep us from work.
const WAIT_BESIDE: Duration = Duration::from_secs(2);

/// Proof that nobody else changes certificates now. The kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct Lock {
    file: Flock<File>,
    folder: PathBuf,
    /// See [`Lock::also_on`].
    beside: Option<Flock<File>>,
}

/// Why the lock is not held.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it.
    #[error("{path} is held by {holder}", path = path.display(), holder = holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")))]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// Process number the holder wrote, if it is known.
        holder: Option<u32>,
    },
    /// The folder belongs to another user.
    #[error("{path} belongs to user {owner}, not to us: its content cannot be trusted", path = path.display())]
    ForeignOwner {
        /// The state folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Others may write to the folder.
    #[error("{path} is writable by others (mode {mode:04o}): its content cannot be trusted", path = path.display())]
    WritableByOthers {
        /// The state folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A system call failed.
    #[error("{path} cannot be used", path = path.display())]
    System {
        /// The folder or the lock file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
}

impl Lock {
    /// Takes the lock, waiting at most `wait` for it. The folder is made if it is missing.
    ///
    /// # Errors
    /// [`LockError::Busy`] when the wait is over; otherwise the folder or the file cannot be used.
    pub fn acquire(state_dir: &Path, wait: Duration) -> Result<Self, LockError> {
        let deadline = Instant::now() + wait;
        let folder = open_folder(state_dir)?;
        let path = state_dir.join(NAME);
        let system = |error: Errno| LockError::System { path: path.clone(), source: error.into() };
        loop {
            let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let file = File::from(openat(&folder, NAME, flags, Mode::from_bits_truncate(0o600)).map_err(system)?);
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => {
                    let lock = Self { file, folder: state_dir.to_owned(), beside: None };
                    // Somebody may have removed the file between the open and the lock: then this is a lock on nothing.
                    if lock.is_at(&path) {
                        lock.write_holder().map_err(|source| LockError::System { path: path.clone(), source })?;
                        return Ok(lock);
                    }
                }
                Err((_, Errno::EINTR)) => {}
                Err((file, Errno::EWOULDBLOCK)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(LockError::Busy { path, holder: read_holder(file) });
                    }
                    std::thread::sleep(left.min(RETRY));
                }
                Err((_, error)) => return Err(system(error)),
            }
        }
    }

    /// Locks the folder that is written to as well, by itself and without a file in it. A hook inside the distribution's
    /// snap and a daemon on the host keep their state in different folders, and so hold different locks; the certificates
    /// are the same.
    ///
    /// It waits at most `wait` and at most two seconds. Behind that the work is done without it, and that is said: root's own
    /// folder is often open to readers (kubeadm's is), each of them may lock it for ever (flock(2) asks for no more than a
    /// descriptor), and a certificate that is needed must not hang on that. Where the folder cannot be opened nothing can
    /// be written either, and the writer says why.
    pub fn also_on(&mut self, written: &Path, wait: Duration) {
        let deadline = Instant::now() + wait.min(WAIT_BESIDE);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let Ok(folder) = open(written, flags, Mode::empty()) else { return };
        let mut folder = File::from(folder);
        loop {
            match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
                Ok(locked) => {
                    self.beside = Some(locked);
                    return;
                }
                Err((again, Errno::EINTR)) => folder = again,
                Err((again, Errno::EWOULDBLOCK)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        tracing::warn!("{} is locked by another process; going on without", written.display());
                        return;
                    }
                    folder = again;
                    std::thread::sleep(left.min(RETRY));
                }
                // A file system without locks.
                Err((_, error)) => {
                    tracing::debug!(%error, "{} cannot be locked", written.display());
                    return;
                }
            }
        }
    }

    /// The state folder it was taken in: ours alone.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn is_at(&self, path: &Path) -> bool {
        let (Ok(ours), Ok(there)) = (self.file.metadata(), std::fs::symlink_metadata(path)) else { return false };
        (ours.dev(), ours.ino()) == (there.dev(), there.ino())
    }

    fn write_holder(&self) -> io::Result<()> {
        let mut file: &File = &self.file;
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    }
}

/// The number is taken out while the lock is still held: a waiter never sees the one before.
impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = self.file.set_len(0) {
            tracing::debug!(%error, "the lock file keeps the number of this process");
        }
    }
}

/// Only to tell people who it is: nothing hangs on it.
fn read_holder(mut file: File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Locks a folder of ours itself, without a file in it: for work that comes every minute, where the name of the holder is
/// not worth a write to the disk each time. The folder is made if it is missing.
///
/// # Errors
/// [`LockError::Busy`] when another process has it; otherwise the folder cannot be used.
pub fn lock_folder(path: &Path) -> Result<Flock<File>, LockError> {
    match Flock::lock(open_folder(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(locked) => Ok(locked),
        Err((_, Errno::EWOULDBLOCK)) => Err(LockError::Busy { path: path.to_owned(), holder: None }),
        Err((_, error)) => Err(LockError::System { path: path.to_owned(), source: error.into() }),
    }
}

/// Opens the state folder, and makes it if it is missing.
fn open_folder(path: &Path) -> Result<File, LockError> {
    let system = |source: io::Error| LockError::System { path: path.to_owned(), source };
    // The folders above are made as the system makes them; only the last one holds state.
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(above).map_err(system)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
        _ => {}
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = File::from(open(path, flags, Mode::empty()).map_err(|error| system(error.into()))?);
    let metadata = folder.metadata().map_err(system)?;
    if metadata.uid() != nix::unistd::geteuid().as_raw() {
        return Err(LockError::ForeignOwner { path: path.to_owned(), owner: metadata.uid() });
    }
    let mode = metadata.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(LockError::WritableByOthers { path: path.to_owned(), mode });
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// A folder of its own for each test, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let name = format!("ipguard-lock-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir(&path).expect("the temporary folder is writable");
            Self(path)
        }

        fn state(&self) -> PathBuf {
            self.0.join("above/state")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_folder_is_made_for_us_alone() {
        let scratch = Scratch::new();
        let lock = Lock::acquire(&scratch.state(), Duration::ZERO).expect("nobody else is here");
        let mode = |path: &Path| std::fs::metadata(path).expect("it was made").mode() & 0o777;
        assert_eq!(mode(&scratch.state()), 0o700);
        assert_eq!(mode(&scratch.state().join(NAME)), 0o600);
        drop(lock);
        assert_eq!(std::fs::read(scratch.state().join(NAME)).expect("it stays"), b"");
    }

    #[test]
    fn a_second_taker_waits_and_is_told_who_has_it() {
        let scratch = Scratch::new();
        let first = Lock::acquire(&scratch.state(), Duration::ZERO).expect("nobody else is here");
        let began = Instant::now();
        let refused = Lock::acquire(&scratch.state(), Duration::from_millis(200)).expect_err("it is held");
        assert!(began.elapsed() >= Duration::from_millis(200), "it did not wait");
        assert!(matches!(refused, LockError::Busy { holder: Some(pid), .. } if pid == std::process::id()), "{refused}");
        let state = scratch.state();
        let waiter = std::thread::spawn(move || Lock::acquire(&state, Duration::from_secs(20)).map(drop));
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        waiter.join().expect("no panic").expect("it was let go");
    }

    #[test]
    fn a_lock_file_that_was_removed_is_not_mistaken_for_the_lock() {
        let scratch = Scratch::new();
        let first = Lock::acquire(&scratch.state(), Duration::ZERO).expect("nobody else is here");
        assert!(first.is_at(&scratch.state().join(NAME)));
        std::fs::remove_file(scratch.state().join(NAME)).expect("it is ours");
        assert!(!first.is_at(&scratch.state().join(NAME)));
        Lock::acquire(&scratch.state(), Duration::ZERO).expect("a new file is a new lock");
    }

    #[test]
    fn the_written_folder_is_locked_too_and_cannot_be_held_against_us() {
        let scratch = Scratch::new();
        let written = scratch.0.join("certificates");
        std::fs::create_dir(&written).expect("it is ours");
        let take = |state: &str, wait: u64| {
            let mut lock = Lock::acquire(&scratch.0.join(state), Duration::ZERO).expect("a state folder of its own");
            lock.also_on(&written, Duration::from_millis(wait));
            lock
        };
        let first = take("one", 0);
        assert!(first.beside.is_some());
        let began = Instant::now();
        assert!(take("another", 200).beside.is_none(), "it is held");
        assert!(began.elapsed() >= Duration::from_millis(200), "it did not wait");
        drop(first);
        assert!(take("another", 0).beside.is_some(), "it was let go");
        // What is no folder of its own is no lock either.
        std::os::unix::fs::symlink(&written, scratch.0.join("link")).expect("it is ours");
        for not in ["link", "missing", "one/lock"] {
            let mut lock = Lock::acquire(&scratch.0.join("one"), Duration::ZERO).expect("nobody else is here");
            lock.also_on(&scratch.0.join(not), Duration::ZERO);
            assert!(lock.beside.is_none(), "{not}");
        }
    }

    #[test]
    fn a_folder_others_can_write_to_is_refused() {
        let scratch = Scratch::new();
        Lock::acquire(&scratch.state(), Duration::ZERO).expect("it is made");
        for mode in [0o770, 0o702, 0o1777] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(scratch.state(), permissions).expect("it is ours");
            let refused = Lock::acquire(&scratch.state(), Duration::ZERO).expect_err("others can write to it");
            assert!(matches!(refused, LockError::WritableByOthers { .. }), "{refused}");
        }
    }

    #[test]
    fn links_and_other_things_are_refused() {
        let scratch = Scratch::new();
        let target = scratch.0.join("target");
        std::fs::create_dir(&target).expect("it is ours");
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(&target, &link).expect("it is ours");
        assert!(matches!(Lock::acquire(&link, Duration::ZERO), Err(LockError::System { .. })));
        std::os::unix::fs::symlink("elsewhere", target.join(NAME)).expect("it is ours");
        assert!(matches!(Lock::acquire(&target, Duration::ZERO), Err(LockError::System { .. })));
        assert!(!target.join("elsewhere").exists());
    }
}
