//! Replacing files in folders of our own, and in hostile ones. What needs root is in `tests/issue_root.rs`.

use super::*;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-store-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the temporary folder is writable");
        std::fs::create_dir(path.join("certs")).expect("it is ours");
        Self(path)
    }

    fn certs(&self) -> PathBuf {
        self.0.join("certs")
    }

    fn place(&self, path: &str) -> Result<Place, StoreError> {
        Folder::open(&self.certs()).expect("it was made").place(&self.0.join(path))
    }

    fn names(&self) -> Vec<String> {
        let listing = std::fs::read_dir(self.certs()).expect("it was made");
        let mut names: Vec<_> =
            listing.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn metadata(path: &Path) -> std::fs::Metadata {
    std::fs::symlink_metadata(path).expect("it is there")
}

#[test]
fn a_new_file_gets_the_mode_it_is_made_with_and_keeps_the_one_it_has() {
    let scratch = Scratch::new();
    let file = scratch.certs().join("server.crt");
    let place = scratch.place("certs/server.crt").expect("it is inside");
    assert_eq!(place.replace(b"one", 0o660).expect("there is space"), Replaced::Written);
    assert_eq!(metadata(&file).mode() & 0o7777, 0o660, "the umask must not matter");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o604)).expect("it is ours");
    let before = metadata(&file).ino();
    assert_eq!(place.replace(b"two", 0o660).expect("there is space"), Replaced::Written);
    assert_eq!(metadata(&file).mode() & 0o7777, 0o604);
    assert_ne!(metadata(&file).ino(), before, "it was written in place");
    assert_eq!(std::fs::read(&file).expect("it is there"), b"two");
    assert_eq!(scratch.names(), ["server.crt"]);
}

#[test]
fn the_same_content_is_not_written() {
    let scratch = Scratch::new();
    let place = scratch.place("certs/csr.conf").expect("it is inside");
    place.replace(b"text", 0o660).expect("there is space");
    let before = metadata(&scratch.certs().join("csr.conf"));
    assert_eq!(place.replace(b"text", 0o660).expect("nothing to do"), Replaced::Unchanged);
    let after = metadata(&scratch.certs().join("csr.conf"));
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
    assert_eq!(place.replace(b"tex", 0o660).expect("there is space"), Replaced::Written);
    assert_eq!(place.replace(b"", 0o660).expect("there is space"), Replaced::Written);
}

#[test]
fn a_reader_with_the_old_file_open_keeps_it_whole() {
    let scratch = Scratch::new();
    let place = scratch.place("certs/server.crt").expect("it is inside");
    place.replace(b"old", 0o660).expect("there is space");
    let mut open = File::open(scratch.certs().join("server.crt")).expect("it is there");
    // A backup by hard link must not be changed by what replaces the name.
    std::fs::hard_link(scratch.certs().join("server.crt"), scratch.certs().join("backup")).expect("it is ours");
    place.replace(b"new content", 0o660).expect("there is space");
    let mut text = String::new();
    open.read_to_string(&mut text).expect("it is open");
    assert_eq!(text, "old");
    assert_eq!(std::fs::read(scratch.certs().join("backup")).expect("it is there"), b"old");
}

#[test]
fn paths_that_lead_out_are_refused() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.0.join("elsewhere")).expect("it is ours");
    symlink("../elsewhere", scratch.certs().join("link")).expect("it is ours");
    symlink(".", scratch.certs().join("self")).expect("it is ours");
    for path in [
        "elsewhere/server.crt",
        "certs/../elsewhere/server.crt",
        "certs/../certs/server.crt",
        "certs/link/server.crt",
        "certs/self/server.crt",
        "certs",
        "missing/server.crt",
        "certs-too/server.crt",
        "/etc/passwd",
        "/",
    ] {
        let refused = scratch.place(path).expect_err(path);
        assert!(matches!(refused, StoreError::Outside { .. }), "{path}: {refused}");
    }
    assert_eq!(std::fs::read_dir(scratch.0.join("elsewhere")).expect("it is there").count(), 0);
}

#[test]
fn another_way_to_the_same_folder_is_inside() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.certs().join("sub")).expect("it is ours");
    symlink(".", scratch.0.join("current")).expect("it is ours");
    for (folder, path) in [
        ("current/certs", "certs/a"),
        ("certs", "current/certs/a"),
        ("certs", "current/certs/sub/a"),
        ("current/certs", "current/certs/./sub/a"),
    ] {
        let folder = Folder::open(&scratch.0.join(folder)).expect("a link above the folder is followed");
        let place = folder.place(&scratch.0.join(path)).expect(path);
        place.replace(path.as_bytes(), 0o600).expect("there is space");
        assert_eq!(std::fs::read(scratch.0.join(path)).expect("it is there"), path.as_bytes());
    }
}

#[test]
fn a_folder_that_is_moved_away_does_not_redirect_the_write() {
    let scratch = Scratch::new();
    let place = scratch.place("certs/server.crt").expect("it is inside");
    std::fs::rename(scratch.certs(), scratch.0.join("moved")).expect("it is ours");
    std::fs::create_dir(scratch.0.join("trap")).expect("it is ours");
    symlink("trap", scratch.certs()).expect("it is ours");
    place.replace(b"content", 0o600).expect("there is space");
    assert!(scratch.0.join("moved/server.crt").exists());
    assert!(!scratch.0.join("trap/server.crt").exists());
    assert!(matches!(Folder::open(&scratch.certs()), Err(StoreError::System { .. })), "the folder itself is a link");
}

#[test]
fn links_and_other_things_at_the_place_are_refused() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("target"), "precious").expect("it is ours");
    // Found when the place is looked up, and also when it was put there afterwards.
    let early = scratch.place("certs/server.crt").expect("nothing is there yet");
    symlink("../target", scratch.certs().join("server.crt")).expect("it is ours");
    assert!(matches!(scratch.place("certs/server.crt"), Err(StoreError::Symlink { .. })));
    assert!(matches!(early.replace(b"new", 0o600), Err(StoreError::Symlink { .. })));
    assert_eq!(std::fs::read(scratch.0.join("target")).expect("it is there"), b"precious");

    let early = scratch.place("certs/fifo").expect("nothing is there yet");
    nix::unistd::mkfifo(&scratch.certs().join("fifo"), Mode::S_IRWXU).expect("it is ours");
    assert!(matches!(scratch.place("certs/fifo"), Err(StoreError::NotRegular { .. })));
    assert!(matches!(early.replace(b"new", 0o600), Err(StoreError::NotRegular { .. })));
    std::fs::create_dir(scratch.certs().join("folder")).expect("it is ours");
    assert!(matches!(scratch.place("certs/folder"), Err(StoreError::NotRegular { .. })));
    assert_eq!(scratch.names(), ["fifo", "folder", "server.crt"]);
}

#[test]
fn only_our_own_leftovers_are_removed() {
    let scratch = Scratch::new();
    let keep = [".ipguard-", ".ipguard-0123", ".ipguard-0123456789abcdeg", "x.ipguard-0123456789abcdef"];
    for name in keep.iter().chain(&[".ipguard-0123456789abcdef"]) {
        std::fs::write(scratch.certs().join(name), "left").expect("it is ours");
    }
    // A folder of that name is somebody's joke; it must not stop the write.
    std::fs::create_dir(scratch.certs().join(".ipguard-00000000000000ff")).expect("it is ours");
    scratch.place("certs/server.crt").expect("it is inside").replace(b"x", 0o600).expect("there is space");
    let mut expected: Vec<String> = keep.iter().map(|name| (*name).to_owned()).collect();
    expected.extend([".ipguard-00000000000000ff".to_owned(), "server.crt".to_owned()]);
    expected.sort();
    assert_eq!(scratch.names(), expected);
}

#[test]
fn a_write_that_cannot_begin_leaves_the_old_file() {
    let scratch = Scratch::new();
    let place = scratch.place("certs/server.crt").expect("it is inside");
    place.replace(b"old", 0o660).expect("there is space");
    // The folder is gone from the tree, but still open: nothing can be made in it any more, whoever asks.
    std::fs::rename(scratch.certs().join("server.crt"), scratch.0.join("aside")).expect("it is ours");
    std::fs::remove_dir(scratch.certs()).expect("it is empty");
    let refused = place.replace(b"new", 0o660).expect_err("no file can be made in a removed folder");
    assert!(matches!(refused, StoreError::System { doing: "make a temporary file beside it", .. }), "{refused}");
    assert_eq!(std::fs::read(scratch.0.join("aside")).expect("it is there"), b"old");
}

/// An access control list (acl(5), `struct posix_acl_xattr_header`): the owner and one more user read and write, the
/// group reads, others nothing.
fn access_list() -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 6, NOBODY), (0x02, 6, 0), (0x04, 4, NOBODY), (0x10, 6, NOBODY), (0x20, 0, NOBODY)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, who) in entries {
        list.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        list.extend(who.to_le_bytes());
    }
    list
}

fn attribute(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    sys::attribute(&File::open(path).expect("it is there"), name).expect("it can be asked for")
}

/// False where it cannot be done: no such attributes here, or not for us.
fn give(path: &Path, name: &CStr, value: &[u8]) -> bool {
    sys::set_attribute(&File::open(path).expect("it is there"), name, Some(value)).is_ok()
}

#[test]
fn the_access_control_list_is_kept_and_none_is_inherited_instead() {
    let scratch = Scratch::new();
    let file = scratch.certs().join("server.crt");
    let place = scratch.place("certs/server.crt").expect("it is inside");
    place.replace(b"one", 0o660).expect("there is space");
    if !give(&file, c"system.posix_acl_access", &access_list()) {
        crate::skipped::skipped("no access control lists here");
        return;
    }
    let mode = metadata(&file).mode();
    place.replace(b"two", 0o660).expect("there is space");
    assert_eq!(attribute(&file, c"system.posix_acl_access"), Some(access_list()));
    assert_eq!(metadata(&file).mode(), mode, "the mask of the list is the group's part of the mode");

    // A file without a list stays without one, though its folder hands one down.
    sys::set_attribute(&File::open(&file).expect("it is there"), c"system.posix_acl_access", None).expect("it has one");
    let mode = metadata(&file).mode();
    assert!(give(&scratch.certs(), c"system.posix_acl_default", &access_list()));
    place.replace(b"three", 0o660).expect("there is space");
    assert_eq!(attribute(&file, c"system.posix_acl_access"), None);
    assert_eq!(metadata(&file).mode(), mode);
}

#[test]
fn the_security_label_is_kept_and_other_attributes_are_not() {
    let scratch = Scratch::new();
    let file = scratch.certs().join("server.crt");
    let place = scratch.place("certs/server.crt").expect("it is inside");
    place.replace(b"one", 0o660).expect("there is space");
    // With SELinux at work only labels of its policy can be given, and the kernel gives every file one.
    let label = b"system_u:object_r:cert_t:s0\0";
    if !give(&file, c"security.selinux", label) {
        crate::skipped::skipped("no security labels here, or not for us");
        return;
    }
    give(&file, c"user.note", b"somebody's");
    place.replace(b"two", 0o660).expect("there is space");
    assert_eq!(attribute(&file, c"security.selinux").as_deref(), Some(&label[..]));
    assert_eq!(attribute(&file, c"user.note"), None);
}

#[test]
fn a_secret_takes_nothing_from_what_stood_in_its_place() {
    let scratch = Scratch::new();
    let file = scratch.certs().join("server.key");
    std::fs::write(&file, "").expect("it is ours");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("it is ours");
    give(&file, c"system.posix_acl_access", &access_list());
    let place = scratch.place("certs/server.key").expect("it is inside");
    place.replace_secret(b"secret").expect("there is space");
    assert_eq!(metadata(&file).mode() & 0o7777, 0o600);
    assert_eq!(attribute(&file, c"system.posix_acl_access"), None);
    assert_eq!(std::fs::read(&file).expect("it is there"), b"secret");
    std::fs::remove_file(&file).expect("it is ours");
    symlink("../target", &file).expect("it is ours");
    assert!(matches!(place.replace_secret(b"secret"), Err(StoreError::Symlink { .. })));
}

#[test]
fn a_file_with_a_second_name_is_not_read_and_is_left_alone_when_it_is_replaced() {
    let scratch = Scratch::new();
    std::fs::write(scratch.0.join("secret"), "a secret").expect("it is ours");
    std::fs::hard_link(scratch.0.join("secret"), scratch.certs().join("csr.conf")).expect("one file system");
    let place = scratch.place("certs/csr.conf").expect("it is a regular file");
    let why = place.content().expect_err("whose it is nobody knows");
    assert!(crate::chain::chain(&why).contains("hard link"), "{why:?}");
    place.replace(b"new", 0o660).expect("a new file takes its place");
    assert_eq!(std::fs::read(scratch.0.join("secret")).expect("it is ours"), b"a secret");
    assert_eq!(
        *scratch.place("certs/csr.conf").expect("as before").content().expect("its own").expect("there"),
        b"new"
    );
}
