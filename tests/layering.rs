//! `src/decide/` is pure: its files name no I/O, no clock, no logger and no netlink crate.

use std::path::{Path, PathBuf};

/// What a pure file may not name, and why it might want to.
const FORBIDDEN: &[&str] = &[
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant",
    "tracing",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    // A grouped import would hide what it names.
    "std::{",
    "dbg!",
    "netlink_",
    "nix::",
    "libc",
    "rcgen",
    "rustls",
    "ring::",
    "x509_parser",
    "clap",
    "crate::act",
    "crate::cli",
    "crate::daemon",
    "crate::notify",
    "crate::one_shot",
    "crate::observe",
    "crate::pass",
    "crate::profiles",
    "crate::report",
    "crate::site",
    "crate::state_file",
];

#[test]
fn decide_is_pure() {
    let files = rust_files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/decide")));
    assert!(files.len() > 10, "the folder has moved: {files:?}");
    let faults: Vec<String> = files.iter().flat_map(|file| faults(file, FORBIDDEN)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn facts_are_values() {
    let allowed = ["std::io"];
    let forbidden: Vec<&str> = FORBIDDEN.iter().copied().filter(|name| !allowed.contains(name)).collect();
    let files = rust_files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/facts")));
    let faults: Vec<String> = files.iter().flat_map(|file| faults(file, &forbidden)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_fault_is_seen() {
    let folder = std::env::temp_dir().join(format!("ipguard-layering-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("bad.rs");
    // A word in a comment is no use of it; a use is one wherever it stands.
    std::fs::write(&file, "// tracing is not named here\nfn now() { let _ = std::time::Instant::now(); }\n")
        .expect("a file");
    let faults = faults(&file, FORBIDDEN);
    std::fs::remove_dir_all(&folder).expect("it is ours");
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].ends_with("bad.rs:2: Instant"), "{faults:?}");
}

fn faults(file: &Path, forbidden: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a source file");
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for name in forbidden.iter().filter(|name| names(code, name)) {
            faults.push(format!("{}:{}: {name}", file.display(), index + 1));
        }
    }
    faults
}

/// Whether the code names it: `String::new` does not name `ring::`.
fn names(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}
