//! Orders carried out in a whole tree: what is written, in which state a failure leaves it.

use super::*;
use crate::facts::certificate::{CertificateFacts, CertificateRole};
use std::path::Path;

use rcgen::KeyPair;

use crate::act::test_tree::{Ca, Tree, now, order, order_for};
use crate::observe::certificate;
use crate::observe::private_key::KeyCache;

fn run(tree: &Tree, order: &IssueOrder) -> Result<Issued, IssueError> {
    issue(order, &tree.files(), &tree.lock(), now())
}

fn facts(tree: &Tree) -> CertificateFacts {
    certificate::read("server", CertificateRole::ApiServer, &tree.files().paths, &mut KeyCache::default(), now())
}

/// The order is refused, and every file is as it was.
fn refused(tree: &Tree, order: &IssueOrder) -> IssueError {
    let before = tree.contents();
    let error = run(tree, order).expect_err("it must be refused");
    assert_eq!(tree.contents(), before, "{error}");
    error
}

#[test]
fn certificate_and_request_are_written_and_nothing_else() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let key = tree.read("server.key");
    let issued = run(&tree, &order()).expect("all is well");
    let facts = facts(&tree);
    let leaf = facts.leaf.expect("it was written");
    assert_eq!((leaf.fingerprint, &leaf.sans), (issued.fingerprint, &order().sans));
    assert_eq!((facts.issued_by_authority, facts.key), (Some(true), Ok(leaf.public_key)));
    assert_eq!((tree.read("server.key"), tree.read("csr.conf")), (key, "the request after".to_owned()));
    assert_eq!(tree.contents().len(), 5, "no temporary file, no serial file");
}

#[test]
fn a_new_key_comes_with_its_certificate() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    for broken in ["", "garbage", "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----"] {
        tree.write("server.key", broken);
        run(&tree, &IssueOrder { new_key: true, ..order() }).expect("there is no key to lose");
        let facts = facts(&tree);
        assert_eq!(facts.key, Ok(facts.leaf.expect("it was written").public_key));
    }
    std::fs::remove_file(tree.path("server.key")).expect("it is ours");
    run(&tree, &IssueOrder { new_key: true, ..order() }).expect("there is no key to lose");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(tree.path("server.key")).expect("it is there"));
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn nobodys_key_is_lost() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let new_key = IssueOrder { new_key: true, ..order() };
    assert!(matches!(refused(&tree, &new_key), IssueError::KeyAppeared { .. }));
    tree.write("server.key", crate::observe::pem::encode("ENCRYPTED PRIVATE KEY", b"secret").as_bytes());
    assert!(matches!(refused(&tree, &new_key), IssueError::ForeignKey { why: Unusable::Encrypted, .. }));
    assert!(matches!(refused(&tree, &order()), IssueError::Key(LoadError::Unusable { .. })));
    // Not readable is not absent.
    tree.write("server.key", vec![b'x'; 2 * 1024 * 1024]);
    assert!(matches!(refused(&tree, &new_key), IssueError::Key(LoadError::File(_))));
}

#[test]
fn the_issuer_repeats_every_kind_of_name() {
    let tree = Tree::new();
    let Some(_) = tree.openssl("ecparam -name prime256v1 -genkey -noout -out ca.key") else { return };
    tree.write("server.key", KeyPair::generate().expect("P-256").serialize_pem());
    for subject in ["/DC=com/DC=example/CN=ca", "/OU=a/OU=b", "/CN=a/CN=b", "/CN=a+OU=b -multivalue-rdn"] {
        tree.openssl(&format!("req -x509 -new -nodes -days 3650 -key ca.key -out ca.crt -subj {subject}"));
        run(&tree, &order_for(&tree)).expect(subject);
        assert_eq!(tree.openssl("verify -CAfile ca.crt server.crt").as_deref(), Some("server.crt: OK\n"), "{subject}");
    }
}

#[test]
fn an_expired_ca_is_refused_without_a_trace() {
    let tree = Tree::with(&Ca::root("ca", |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1)));
    assert!(matches!(refused(&tree, &order()), IssueError::Leaf(LeafError::AuthorityNotValid { .. })));
}

#[test]
fn broken_ca_files_are_refused_without_a_trace() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    for (file, content) in [("ca.key", ""), ("ca.key", "garbage"), ("ca.crt", "garbage"), ("ca.crt", "")] {
        tree.write(file, content);
        assert!(matches!(refused(&tree, &order()), IssueError::Leaf(_)), "{file}");
    }
    std::fs::remove_file(tree.path("ca.key")).expect("it is ours");
    assert!(matches!(refused(&tree, &order()), IssueError::Leaf(LeafError::Authority(_))));
}

#[test]
fn a_fifo_instead_of_a_key_does_not_hang() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    std::fs::remove_file(tree.path("server.key")).expect("it is ours");
    let all = nix::sys::stat::Mode::S_IRWXU;
    nix::unistd::mkfifo(&tree.path("server.key"), all).expect("it is ours");
    assert!(matches!(run(&tree, &order()), Err(IssueError::Key(_))));
    let new_key = IssueOrder { new_key: true, ..order() };
    assert!(matches!(run(&tree, &new_key), Err(IssueError::Store(StoreError::NotRegular { .. }))));
    assert_eq!(tree.read("server.crt"), "the certificate before");
}

#[test]
fn places_outside_the_folder_and_links_are_refused_before_anything_is_written() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let outside = tree.0.join("outside.crt");
    std::fs::write(&outside, "precious").expect("it is ours");
    let changes: [&dyn Fn(&mut CertificateFiles); 4] = [
        &|files| files.paths.certificate.clone_from(&outside),
        &|files| files.request = Some(outside.clone()),
        &|files| files.paths.certificate = files.folder.join("../outside.crt"),
        &|files| files.request = Some(Path::new("outside.crt").to_owned()),
    ];
    for change in changes {
        let (mut files, before) = (tree.files(), tree.contents());
        change(&mut files);
        let error = issue(&order(), &files, &tree.lock(), now()).expect_err("it must be refused");
        assert!(matches!(error, IssueError::Store(StoreError::Outside { .. })), "{error}");
        assert!(error.to_string().contains("outside the certificate folder"), "{error}");
        assert_eq!(tree.contents(), before);
    }
    for name in ["server.crt", "csr.conf"] {
        let tree = Tree::with(&Ca::root("ca", |_| {}));
        std::fs::remove_file(tree.path(name)).expect("it is ours");
        std::os::unix::fs::symlink(&outside, tree.path(name)).expect("it is ours");
        assert!(matches!(refused(&tree, &order()), IssueError::Store(StoreError::Symlink { .. })));
    }
    assert_eq!(std::fs::read(&outside).expect("it is there"), b"precious");
}

#[test]
fn a_crash_between_key_and_certificate_is_seen_and_repaired() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    run(&tree, &order()).expect("all is well");
    // As if the process had died behind its first write, with a temporary file of the second beside it.
    let made = crate::observe::private_key::PrivateKey::generate().expect("random bytes");
    tree.write("server.key", made.to_pem().as_bytes());
    tree.write(".ipguard-0123456789abcdef", "half of a certificate");
    let seen = facts(&tree);
    assert_ne!(seen.key, Ok(seen.leaf.expect("the old one is whole").public_key), "the mismatch can be seen");
    run(&tree, &order()).expect("the key in place is kept");
    let after = facts(&tree);
    assert_eq!(after.key, Ok(after.leaf.expect("it was written").public_key));
    assert_eq!(after.key.as_ref(), Ok(made.public()));
    assert_eq!(tree.contents().len(), 5, "the leftover is gone");
}

#[test]
fn an_order_with_a_request_needs_a_place_for_it() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let files = CertificateFiles { request: None, ..tree.files() };
    let error = issue(&order(), &files, &tree.lock(), now()).expect_err("there is no place");
    assert!(matches!(error, IssueError::NoRequestFile { .. }));
    let without = IssueOrder { request: None, ..order() };
    issue(&without, &files, &tree.lock(), now()).expect("nothing to write there");
    assert_eq!(tree.read("csr.conf"), "the request before");
}
