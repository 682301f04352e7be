//! Generations in a whole tree: what is kept, how, and what a failure does to the certificate that is needed.

use super::*;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rcgen::KeyPair;

use crate::act::issue::{Issued, issue};
use crate::act::test_tree::{Ca, Tree, now, order};
use crate::decide::plan::IssueOrder;

fn run(tree: &Tree, order: &IssueOrder) -> Issued {
    issue(order, &tree.files(), &tree.lock(), now()).expect("all is well")
}

fn kept(tree: &Tree) -> Vec<Generation> {
    list(&tree.0.join("state"), "server").expect("it can be listed")
}

fn numbers_of(tree: &Tree) -> Vec<u64> {
    kept(tree).iter().map(|generation| generation.number).collect()
}

#[test]
fn a_certificate_that_cannot_be_used_is_not_worth_a_generation() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    for broken in ["", "garbage"] {
        tree.write("server.crt", broken);
        assert!(run(&tree, &order()).not_kept.is_none());
        assert!(kept(&tree).is_empty(), "{broken:?}");
        std::fs::remove_file(tree.path("server.crt")).expect("it was just made");
    }
    assert!(run(&tree, &order()).not_kept.is_none());
    // For another key than the one in place.
    tree.write("server.key", KeyPair::generate().expect("P-256").serialize_pem());
    assert!(run(&tree, &order()).not_kept.is_none());
    assert!(kept(&tree).is_empty());
}

#[test]
fn five_are_kept_as_copies_for_root_alone_and_without_a_key() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let mut issued = Vec::new();
    for round in 0..7 {
        issued.push(run(&tree, &IssueOrder { request: Some(format!("request {round}")), ..order() }).fingerprint);
    }
    let kept = kept(&tree);
    assert_eq!(kept.iter().map(|generation| generation.number).collect::<Vec<_>>(), [6, 5, 4, 3, 2]);
    let leaves: Vec<_> = kept.iter().map(|generation| generation.leaf.fingerprint).collect();
    assert_eq!(leaves, issued[1..6].iter().rev().copied().collect::<Vec<_>>());
    for generation in &kept {
        let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
        assert_eq!(mode(&generation.folder), 0o700);
        let names: Vec<_> = std::fs::read_dir(&generation.folder).expect("it is there").flatten().collect();
        assert_eq!(names.len(), 3, "{names:?}");
        for file in names {
            assert_eq!(mode(&file.path()), 0o600, "{file:?}");
            assert_eq!(file.metadata().expect("it is there").nlink(), 1, "{file:?}");
            let text = std::fs::read_to_string(file.path()).expect("it is text");
            assert!(!text.contains("PRIVATE KEY"), "{file:?}");
        }
    }
    let request = std::fs::read_to_string(kept[0].folder.join(REQUEST)).expect("it was kept");
    assert_eq!(request, "request 5");
    assert_eq!(std::fs::metadata(tree.path("server.crt")).expect("it is there").nlink(), 1);
}

#[test]
fn one_that_is_kept_already_is_not_kept_twice() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    run(&tree, &order());
    run(&tree, &order());
    let newest = kept(&tree).remove(0);
    newest.load().expect("it was kept").put_back(&tree.files(), &tree.lock()).expect("all is well");
    assert_eq!(tree.read("server.crt"), std::fs::read_to_string(newest.certificate()).expect("it was kept"));
    run(&tree, &order());
    assert_eq!(numbers_of(&tree), [1]);
    run(&tree, &order());
    assert_eq!(numbers_of(&tree), [2, 1]);
}

#[test]
fn what_a_crash_left_is_passed_over_and_removed() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    run(&tree, &order());
    let above = tree.0.join("state/generations/server");
    std::fs::create_dir_all(above.join("4")).expect("it is ours");
    std::fs::write(above.join("4").join(REQUEST), "half").expect("it is ours");
    assert!(kept(&tree).is_empty());
    run(&tree, &order());
    assert_eq!(numbers_of(&tree), [5]);
    assert!(!above.join("4").exists());
}

#[test]
fn what_cannot_be_kept_stops_no_certificate_and_is_told() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    run(&tree, &order());
    let before = tree.read("server.crt");
    drop(tree.lock());
    std::fs::write(tree.0.join("state/generations"), "in the way").expect("it is ours");
    let issued = run(&tree, &order());
    assert_ne!(tree.read("server.crt"), before);
    let told = issued.not_kept.expect("it could not be kept").to_string();
    assert!(told.contains("state/generations"), "{told}");
}

#[test]
fn nothing_is_read_or_written_through_a_link() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    run(&tree, &order());
    run(&tree, &order());
    let generation = kept(&tree).remove(0);
    std::fs::rename(tree.path("csr.conf"), tree.path("elsewhere")).expect("it is ours");
    std::os::unix::fs::symlink(tree.path("elsewhere"), tree.path("csr.conf")).expect("it is ours");
    let before = tree.contents();
    let refused = generation.load().expect("it was kept").put_back(&tree.files(), &tree.lock());
    let refused = refused.expect_err("the request is a link");
    assert!(matches!(refused, GenerationError::Store(StoreError::Symlink { .. })), "{refused}");
    assert_eq!(tree.contents(), before);
}
