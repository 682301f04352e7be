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
    // The clock by another door.
    "now_utc",
    "now_local",
    "UtcDateTime",
    "rcgen",
    "ring",
    "rsa",
    "rustls",
    "rustls_pki_types",
    "webpki",
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
    "crate::status_file",
    "crate::publish",
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

#[test]
fn every_forbidden_name_is_seen_and_its_neighbours_are_not() {
    let bad = [
        ("let t = time::OffsetDateTime::now_utc();", "now_utc"),
        ("use time::OffsetDateTime as Date; let t = Date::now_local();", "now_local"),
        ("use webpki;", "webpki"),
        ("let leaf = webpki::EndEntityCert::try_from(der);", "webpki"),
        ("use rsa::RsaPrivateKey;", "rsa"),
        ("use ::rsa as numbers;", "rsa"),
        ("extern crate ring as circle;", "ring"),
        ("use ring::{digest, rand};", "ring"),
        ("use rustls::ServerConfig;", "rustls"),
        ("use rustls_pki_types::pem;", "rustls_pki_types"),
        // What looks like a comment and is none.
        (r#"let url = "https://example.org"; let t = Instant::now();"#, "Instant"),
        (r#"let quote = "\"//"; std::fs::read(path);"#, "std::fs"),
        (r##"let raw = r#"a " // b"#; std::env::var("X");"##, "std::env"),
        (r#"let bytes = br"\"; std::process::exit(1); // ""#, "std::process"),
        ("let slash = '/'; let quote = '\"'; libc::abort(); // \"", "libc"),
        ("fn f<'a>(x: &'a str) { std::thread::yield_now() } // '", "std::thread"),
        ("/* a /* nested */ comment */ SystemTime::now()", "SystemTime"),
        ("let range = a /* // */ .. b; dbg!(range)", "dbg!"),
        ("let two = 4 / 2; println!()", "println!"),
    ];
    for (text, name) in bad {
        let found: Vec<&str> = named(text, FORBIDDEN).into_iter().map(|(_, name)| name).collect();
        assert!(found.contains(&name), "{text}: {found:?}");
    }
    let good = [
        "fn string() -> String { String::new() } // ring::digest",
        "/* std::fs\n std::io */ let a = 1;",
        "/// Like `SystemTime::now`.\nfn parse() {}",
        "let coring = 1; let rsa_bits = 2; let universal = 3;",
        "let text = \"a \\\" b\"; // Instant",
        "let c = '\\''; // std::env",
    ];
    for text in good {
        assert_eq!(named(text, FORBIDDEN), [], "{text}");
    }
    // Every name of the list is found where it stands alone, so that none is misspelt into blindness.
    for name in FORBIDDEN {
        let found = named(&format!("fn f() {{ {name} }}"), FORBIDDEN);
        assert!(found.contains(&(1, name)), "{name}: {found:?}");
    }
    // Lines are counted as an editor does, whatever stands before.
    assert_eq!(named("/* 1\n2 */ \"3\n// 4\"\n;\nInstant", &["Instant"]), [(5, "Instant")]);
}

fn faults(file: &Path, forbidden: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a source file");
    let named = named(&text, forbidden).into_iter();
    named.map(|(line, name)| format!("{}:{line}: {name}", file.display())).collect()
}

/// The forbidden names of a text, each with its line.
fn named<'f>(text: &str, forbidden: &[&'f str]) -> Vec<(usize, &'f str)> {
    let code = without_comments(text);
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        found.extend(forbidden.iter().filter(|name| names(line, name)).map(|name| (index + 1, *name)));
    }
    found
}

/// The text with its comments left out, line by line in its place. Literals stay: what they say counts as named.
fn without_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else {
            let before = code.chars().next_back();
            let literal = literal(rest, before).unwrap_or_else(|| first.len_utf8());
            code.push_str(&rest[..literal]);
            rest = &rest[literal..];
            continue;
        };
        code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        rest = &rest[length..];
    }
    code
}

/// The length of the block comment that the text begins with; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        match text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of the string or character literal that the text begins with.
fn literal(text: &str, before: Option<char>) -> Option<usize> {
    let in_a_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let prefix = text.len() - text.trim_start_matches(['b', 'c']).len();
    let raw = text[prefix..].strip_prefix('r').filter(|_| prefix <= 1 && !in_a_word);
    if let Some(behind) = raw {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        if behind[hashes..].starts_with('"') {
            let (opening, end) = (prefix + 1 + hashes + 1, format!("\"{}", "#".repeat(hashes)));
            return Some(text[opening..].find(&end).map_or(text.len(), |at| opening + at + end.len()));
        }
    }
    if text.starts_with('"') {
        return Some(closing(text, '"').unwrap_or(text.len()));
    }
    // A character, not a lifetime: one character, or an escape, and a quote.
    let inside = text.strip_prefix('\'')?;
    let mut characters = inside.chars();
    let escaped = characters.next()? == '\\';
    if escaped || characters.next() == Some('\'') { closing(text, '\'') } else { None }
}

/// The length of a literal between two quotes, escapes included.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().skip(1).find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at + 1)
    })
}

/// Names so short that longer words begin with them.
const WHOLE: &[&str] = &["ring", "rsa"];

/// Whether the code names it, or something that begins with it: `String::new` does not name `ring`.
fn names(code: &str, name: &str) -> bool {
    let in_a_word = |c: char| c.is_alphanumeric() || c == '_';
    let whole = WHOLE.contains(&name);
    code.match_indices(name).any(|(at, _)| {
        let behind = &code[at + name.len()..];
        !code[..at].ends_with(in_a_word) && (!whole || !behind.starts_with(in_a_word))
    })
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
