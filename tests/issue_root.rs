//! What only root can try: owners and groups, other users' folders, a disk that is full.
//!
//! Each test says "skipped" and passes where it cannot run. Nothing outside folders made here is touched: the small disks
//! are mounted in a mount namespace of one thread.

mod skipped;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use ipguard::act::issue::{CertificateFiles, IssueError, issue};
use ipguard::act::lock::{Lock, LockError};
use ipguard::act::store::{Folder, StoreError};
use ipguard::config::AuthorityKeyId;
use ipguard::decide::plan::{IssueOrder, Subject};
use ipguard::facts::certificate::Purpose;
use ipguard::facts::cluster::CertificatePaths;
use ipguard::facts::time::Timestamp;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Gid, Uid};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

/// Some user and group that are not ours; they need not exist in the user database.
const OTHER: u32 = 4242;

struct Tree(PathBuf);

impl Tree {
    /// `None`, and said so, where we are not root of the machine's own user namespace or of one with many users.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-root-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let tree = Self(std::env::temp_dir().join(name));
        std::fs::create_dir(&tree.0).expect("the temporary folder is writable");
        if !Uid::effective().is_root() || chown(&tree.0, Some(OTHER), Some(OTHER)).is_err() {
            skipped::skipped("needs root");
            return None;
        }
        chown(&tree.0, Some(0), Some(0)).expect("the way back is open too");
        Some(tree)
    }

    fn certs(&self) -> PathBuf {
        self.0.join("certs")
    }

    /// A CA, a key, and a certificate to be replaced, owned as MicroK8s owns them.
    fn fill(&self) -> CertificateFiles {
        let certs = self.certs();
        std::fs::create_dir_all(&certs).expect("it is ours");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        let key = KeyPair::generate().expect("P-256");
        let ca = params.self_signed(&key).expect("it can be built").pem();
        let server = KeyPair::generate().expect("P-256").serialize_pem();
        let contents = [("ca.crt", ca), ("ca.key", key.serialize_pem()), ("server.key", server)];
        let before = [("server.crt", BEFORE.to_owned()), ("csr.conf", BEFORE.to_owned())];
        for (name, content) in contents.into_iter().chain(before) {
            std::fs::write(certs.join(name), content).expect("there is space");
        }
        CertificateFiles {
            paths: CertificatePaths {
                certificate: certs.join("server.crt"),
                key: certs.join("server.key"),
                authority: certs.join("ca.crt"),
                authority_key: certs.join("ca.key"),
            },
            request: Some(certs.join("csr.conf")),
            new_mode: ipguard::act::issue::SHARED,
            folder: certs,
        }
    }

    fn issue(&self, order: &IssueOrder, files: &CertificateFiles) -> Result<(), IssueError> {
        let lock = Lock::acquire(&self.0.join("state"), Duration::ZERO).expect("nobody else is here");
        issue(order, files, &lock, now()).map(drop)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const BEFORE: &str = "what was there before";

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    Timestamp::from_seconds(i64::try_from(since.as_secs()).expect("it is earlier than the end of time"))
}

fn order() -> IssueOrder {
    IssueOrder {
        certificate: "server".to_owned(),
        purpose: Purpose::Server,
        sans: ["kubernetes", "192.0.2.10"].iter().map(|name| name.parse().expect("names")).collect(),
        added: std::collections::BTreeSet::default(),
        dropped: [].into(),
        subject: Subject::Attributes(vec![("CN".to_owned(), "127.0.0.1".to_owned())]),
        not_before: now() - Duration::from_secs(60),
        not_after: now() + Duration::from_secs(3600),
        new_key: false,
        authority_key_id: AuthorityKeyId::KeyId,
        request: Some("the request after".to_owned()),
        address_caused: false,
        served: true,
        shown_by_kubelet: false,
    }
}

/// Owner, group, mode.
fn rights(path: &Path) -> (u32, u32, u32) {
    let metadata = std::fs::symlink_metadata(path).expect("it is there");
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}

fn set(path: &Path, owner: u32, group: u32, mode: u32) {
    chown(path, Some(owner), Some(group)).expect("root may");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("root may");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("it is there")
}

#[test]
fn owner_group_and_mode_of_the_files_before_are_kept() {
    let Some(tree) = Tree::new() else { return };
    let files = tree.fill();
    set(&files.folder, 0, OTHER, 0o770);
    set(&files.paths.certificate, 0, OTHER, 0o660);
    set(&files.folder.join("csr.conf"), OTHER, OTHER + 1, 0o604);
    tree.issue(&order(), &files).expect("all is well");
    assert!(read(&files.paths.certificate).starts_with("-----BEGIN CERTIFICATE-----"));
    assert_eq!(rights(&files.paths.certificate), (0, OTHER, 0o660));
    assert_eq!(rights(&files.folder.join("csr.conf")), (OTHER, OTHER + 1, 0o604));
}

#[test]
fn new_files_get_the_group_of_their_folder_and_a_new_key_is_private() {
    let Some(tree) = Tree::new() else { return };
    let files = tree.fill();
    set(&files.folder, OTHER + 1, OTHER, 0o770);
    for name in ["server.crt", "server.key", "csr.conf"] {
        std::fs::remove_file(files.folder.join(name)).expect("it was made");
    }
    tree.issue(&IssueOrder { new_key: true, ..order() }, &files).expect("all is well");
    assert_eq!(rights(&files.paths.certificate), (0, OTHER, 0o660));
    assert_eq!(rights(&files.paths.key), (0, OTHER, 0o600));
    assert_eq!(rights(&files.folder.join("csr.conf")), (0, OTHER, 0o660));
}

#[test]
fn setuid_bits_are_not_copied() {
    let Some(tree) = Tree::new() else { return };
    let files = tree.fill();
    set(&files.paths.certificate, 0, OTHER, 0o6755);
    tree.issue(&order(), &files).expect("all is well");
    assert_eq!(rights(&files.paths.certificate), (0, OTHER, 0o755));
}

#[test]
fn a_state_folder_of_another_user_is_refused() {
    let Some(tree) = Tree::new() else { return };
    let state = tree.0.join("state");
    drop(Lock::acquire(&state, Duration::ZERO).expect("it is made"));
    set(&state, OTHER, 0, 0o700);
    let refused = Lock::acquire(&state, Duration::ZERO).expect_err("it could be swapped under our hands");
    assert!(matches!(refused, LockError::ForeignOwner { owner: OTHER, .. }), "{refused}");
}

/// Runs the test on a disk of this size, in a mount namespace that ends with its thread.
fn on_small_disk(bytes: u32, test: impl FnOnce(&Tree) + Send) {
    let Some(tree) = Tree::new() else { return };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            let options = format!("size={bytes}");
            let mounted = unshare(CloneFlags::CLONE_NEWNS)
                .and_then(|()| mount(none, "/", none, private, none))
                .and_then(|()| std::fs::create_dir(tree.certs()).map_err(|_| nix::errno::Errno::EIO))
                .and_then(|()| {
                    mount(Some("tmpfs"), &tree.certs(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
                });
            match mounted {
                Ok(()) => test(&tree),
                Err(error) => skipped::skipped(&format!("no mount namespace ({error})")),
            }
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn names(folder: &Path) -> Vec<String> {
    let listing = std::fs::read_dir(folder).expect("it is there");
    let mut names: Vec<_> =
        listing.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_full_disk_leaves_the_files_before_and_a_later_pass_finishes() {
    on_small_disk(64 * 1024, |tree| {
        let files = tree.fill();
        let filler = files.folder.join("filler");
        // Until the disk takes no more: the error is the point.
        assert!(std::fs::write(&filler, vec![b'x'; 256 * 1024]).is_err(), "the disk is not small");
        let before = names(&files.folder);
        let error = tree.issue(&order(), &files).expect_err("there is no space");
        assert!(matches!(&error, IssueError::Store(StoreError::System { .. })), "{error}");
        assert_eq!(read(&files.paths.certificate), BEFORE);
        assert_eq!(read(&files.folder.join("csr.conf")), BEFORE);
        assert_eq!(names(&files.folder), before, "the temporary file is removed");

        std::fs::remove_file(filler).expect("it was made");
        tree.issue(&order(), &files).expect("there is space again");
        assert!(read(&files.paths.certificate).starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(read(&files.folder.join("csr.conf")), "the request after");
    });
}

#[test]
fn at_every_point_where_the_disk_fills_up_each_file_is_old_or_new() {
    // Pages left on the disk from none to enough: it fills up before the key (one page), the certificate (a few), the
    // request (more), or never. Each replacement frees the pages of the file before.
    let request = "the request after\n".repeat(1200);
    let sans = (0..250).map(|number| format!("name-{number}.example.com").parse().expect("a name")).collect();
    let order = IssueOrder { new_key: true, sans, request: Some(request.clone()), ..order() };
    let mut outcomes = Vec::new();
    on_small_disk(128 * 1024, |tree| {
        for left in 0..10 {
            let files = tree.fill();
            std::fs::write(&files.paths.key, "garbage").expect("there is space");
            let filler = files.folder.join("filler");
            let _ = std::fs::write(&filler, vec![b'x'; 256 * 1024]);
            let size = std::fs::metadata(&filler).expect("it was made").len();
            std::fs::File::options()
                .write(true)
                .open(&filler)
                .and_then(|file| file.set_len(size.saturating_sub(left * 4096)))
                .expect("shrinking needs no space");
            let result = tree.issue(&order, &files);
            let state = |path: &Path, old: &str, new: &str| {
                let content = read(path);
                assert!(
                    content == old || content.starts_with(new) && content.ends_with('\n') || content == new,
                    "{content}"
                );
                content != old
            };
            let written = [
                state(&files.paths.key, "garbage", "-----BEGIN PRIVATE KEY-----\n"),
                state(&files.paths.certificate, BEFORE, "-----BEGIN CERTIFICATE-----\n"),
                state(&files.folder.join("csr.conf"), BEFORE, &request),
            ];
            assert_eq!(result.is_ok(), written == [true; 3]);
            assert!(written.is_sorted_by(|earlier, later| earlier >= later), "out of order: {written:?}");
            assert!(names(&files.folder).iter().all(|name| !name.starts_with(".ipguard-")));
            outcomes.push(written);
            std::fs::remove_file(filler).expect("it was made");
        }
    });
    if !outcomes.is_empty() {
        assert_eq!(outcomes[0], [false; 3], "nothing fits on a full disk");
        assert_eq!(outcomes[9], [true; 3], "nine pages are enough");
        for half_way in [[true, false, false], [true, true, false]] {
            assert!(outcomes.contains(&half_way), "it never stopped at {half_way:?}: {outcomes:?}");
        }
    }
}

#[test]
fn a_read_only_disk_is_reported() {
    on_small_disk(64 * 1024, |tree| {
        let files = tree.fill();
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &tree.certs(), None::<&str>, read_only, None::<&str>).expect("root may");
        let error = tree.issue(&order(), &files).expect_err("it cannot be written");
        assert!(matches!(&error, IssueError::Store(StoreError::System { .. })), "{error}");
        assert_eq!(read(&files.paths.certificate), BEFORE);
    });
}

#[test]
fn a_group_that_cannot_be_given_is_an_error_and_not_a_new_group() {
    let Some(tree) = Tree::new() else { return };
    let files = tree.fill();
    set(&files.folder, OTHER, OTHER, 0o777);
    set(&files.paths.certificate, 0, OTHER + 1, 0o666);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            // File system ids are per thread: this one acts as a user who may write here and may not give files away.
            nix::unistd::setfsgid(Gid::from_raw(OTHER));
            nix::unistd::setfsuid(Uid::from_raw(OTHER));
            let place = Folder::open(&files.folder).expect("it is open to all").place(&files.paths.certificate);
            place.expect("it is inside").replace(b"new", 0o660).expect_err("only root may give files away")
        });
        let error = run.join().expect("no panic");
        assert!(matches!(&error, StoreError::Owner { owner: 0, .. }), "{error}");
    });
    assert_eq!(read(&files.paths.certificate), BEFORE);
    assert_eq!(rights(&files.paths.certificate), (0, OTHER + 1, 0o666));
    assert!(names(&files.folder).iter().all(|name| !name.starts_with(".ipguard-")));
}
