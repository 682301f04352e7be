//! Private keys stay where they are: not in what is printed, logged or reported, not in another file, not in memory that
//! was given back.

use std::fmt::{Debug, Write as _};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use ipguard::act::issue::{CertificateFiles, issue};
use ipguard::act::leaf::{self, Authority};
use ipguard::decide::plan::{IssueOrder, Subject};
use ipguard::facts::certificate::{CertificateRole, Purpose};
use ipguard::observe::private_key::{KeyCache, Owner, PrivateKey};
use ipguard::observe::{certificate, pem};

use crate::forge::{Forged, UTF8, common_name};
use crate::skipped::skipped;
use crate::traces::Traces;
use crate::tree::{Key, Tree, chain, has_openssl, now, order};

/// All that a test's code said, to whomever.
#[derive(Debug, Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn text(&self, text: &str) {
        self.0.lock().expect("no panic").extend_from_slice(text.as_bytes());
    }

    fn debug(&self, value: &impl Debug) {
        self.text(&format!("{value:?}\n{value:#?}\n"));
    }

    fn error(&self, error: &(dyn std::error::Error + 'static)) {
        self.text(&format!("{}\n{error:?}\n{error:#?}\n", chain(error)));
    }
}

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Those of several keys. What stands in a certificate too is none.
fn traces(keys: &[&Key]) -> Traces {
    let mut traces = Traces::default();
    keys.iter().for_each(|key| traces.add(key.pem.as_bytes()));
    traces
}

/// Everything the code of keys and certificates says of a tree, in success and in failure.
fn speak(said: &Said, files: &CertificateFiles, lock: &ipguard::act::lock::Lock) {
    let orders = [
        order(),
        IssueOrder { new_key: true, ..order() },
        IssueOrder { not_after: now(), ..order() },
        IssueOrder { subject: Subject::Keep(b"no name".to_vec()), ..order() },
    ];
    let bundle = certificate::bundle(&files.paths.authority);
    let owners = [
        certificate::server_owner(&files.paths.certificate),
        certificate::authority_owner(bundle.as_deref().unwrap_or_default()),
    ];
    for (path, owner) in [(&files.paths.key, &owners[0]), (&files.paths.authority_key, &owners[1])] {
        said.debug(owner);
        match PrivateKey::load(path, owner) {
            Ok(key) => {
                said.debug(&key);
                said.debug(&key.public());
            }
            Err(error) => said.error(&error),
        }
        if let Ok((bytes, _)) = pem::read_file(path) {
            said.debug(&pem::blocks(&bytes));
        }
    }
    let mut cache = KeyCache::default();
    let facts = certificate::read("server", CertificateRole::ApiServer, &files.paths, &mut cache, now());
    said.debug(&facts);
    said.debug(&cache);
    match Authority::load(&files.paths, Purpose::Server, now()) {
        Ok(authority) => {
            said.debug(&authority);
            match leaf::build(&IssueOrder { new_key: true, ..order() }, &authority, None, now()) {
                Ok(built) => said.debug(&built),
                Err(error) => said.error(&error),
            }
        }
        Err(error) => said.error(&error),
    }
    for order in &orders {
        match issue(order, files, lock, now()) {
            Ok(issued) => said.debug(&issued),
            Err(error) => said.error(&error),
        }
    }
}

#[test]
fn nothing_that_is_said_and_no_other_file_has_a_private_key_in_it() {
    if !has_openssl() {
        return;
    }
    let said = Said::default();
    let writer = said.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let keys =
        ["genrsa -traditional 2048", "genrsa 2048", "ecparam -name secp384r1 -genkey", "genpkey -algorithm ed25519"]
            .map(Key::make);
    let leaf = Key::make("ecparam -name prime256v1 -genkey -noout");
    let mut all: Vec<&Key> = keys.iter().collect();
    all.push(&leaf);
    let needles = traces(&all);
    assert!(needles.count() > 300, "{} traces are too few", needles.count());
    tracing::subscriber::with_default(subscriber, || {
        for key in &keys {
            let certificate = Forged::root(common_name(UTF8, b"ca"), key.spki()).signed(key.spki(), &key.key);
            // Whole; two in a file; cut in the middle, by a letter, in its structure; where a certificate should be.
            let cut = &key.pem[..key.pem.len() / 2];
            let half = format!("{cut}\n-----END PRIVATE KEY-----\n");
            let letter = key.pem.replacen("\nM", "\nN", 1);
            let marked = format!("\u{feff}{}", leaf.pem);
            let both = format!("{}{}", key.pem, leaf.pem);
            let trees: [(&str, &str, &str); 8] = [
                (&certificate, &key.pem, &leaf.pem),
                (&certificate, &both, &both),
                (&certificate, cut, cut),
                (&certificate, &half, &half),
                (&certificate, &letter, &letter),
                (&certificate, &leaf.pem, &marked),
                (&key.pem, &key.pem, &key.pem),
                (&both, &certificate, &certificate),
            ];
            for (authority, authority_key, server_key) in trees {
                let tree = Tree::new();
                tree.write("ca.crt", authority);
                tree.write("ca.key", authority_key);
                tree.write("server.key", server_key);
                tree.write("server.crt", server_key);
                speak(&said, &tree.files(), &tree.lock());
                std::fs::write(tree.path("server.crt"), "").expect("it is ours");
                speak(&said, &tree.files(), &tree.lock());
                nothing_left_behind(&tree, &needles);
            }
        }
    });
    let said = said.0.lock().expect("no panic");
    assert!(said.len() > 10_000, "{} bytes are too few", said.len());
    let leak = needles.find(&said).map(<[u8]>::escape_ascii);
    assert!(leak.is_none(), "a private key was shown: {}", leak.expect("it was found"));
}

/// No file but the keys' own has a key in it: no leftover of a write, no lock, no state.
fn nothing_left_behind(tree: &Tree, needles: &Traces) {
    let mut folders = vec![tree.0.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("it is ours") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if path.is_dir() {
                folders.push(path);
            } else if !["ca.crt", "ca.key", "server.key"].contains(&name.as_str()) {
                let content = std::fs::read(&path).expect("readable");
                assert!(needles.find(&content).is_none(), "{} has a private key in it", path.display());
            }
        }
    }
}

#[test]
fn the_search_finds_what_it_looks_for() {
    if !has_openssl() {
        return;
    }
    let key = Key::make("ecparam -name prime256v1 -genkey -noout");
    let needles = traces(&[&key]);
    let der = pem::blocks(key.pem.as_bytes()).remove(0).der.expect("openssl wrote it");
    let mut hex = String::new();
    der.iter().for_each(|byte| write!(hex, "{byte:02x}").expect("a string"));
    for shown in [key.pem.clone(), hex.clone(), hex.to_uppercase(), format!("{:?}", der.as_slice())] {
        assert!(needles.find(shown.as_bytes()).is_some(), "{shown}");
    }
    assert!(needles.find(key.spki()).is_none());
}

/// Bytes moved by half their range, so that to look for them is not to have them.
fn disguised(tree: &Tree, command: &str) -> Vec<u8> {
    let script = format!(r"{command} | tr '\000-\377' '\200-\377\000-\177'");
    let output = Command::new("sh").arg("-c").arg(script).current_dir(tree.certs()).env("LC_ALL", "C").output();
    output.expect("a shell").stdout
}

/// How often the disguised bytes are, undisguised, in the memory of this process.
fn in_memory(needle: &[u8]) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel has it");
    let mut memory = std::fs::File::open("/proc/self/mem").expect("it is our own");
    let mut count = 0;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let ends =
            range.and_then(|(from, to)| Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?)));
        let Some((from, to)) = ends else { continue };
        let mut bytes = vec![0; usize::try_from(to - from).expect("it is in memory")];
        // Another thread may have given it back by now.
        if memory.seek(SeekFrom::Start(from)).is_ok() && memory.read_exact(&mut bytes).is_ok() {
            let first = needle[0].wrapping_add(128);
            let starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
            let is_there = |at: usize| {
                let stretch = bytes.get(at..at + needle.len()).unwrap_or_default();
                stretch.len() == needle.len()
                    && stretch.iter().zip(needle).all(|(byte, hidden)| byte.wrapping_add(128) == *hidden)
            };
            count += starts.filter(|(at, _)| is_there(*at)).count();
        }
        // Or what was read here would be found again by the next search.
        bytes.fill(0);
        std::hint::black_box(&bytes);
    }
    count
}

#[test]
fn a_key_is_wiped_from_memory_when_it_was_used() {
    if !has_openssl() {
        return;
    }
    if !Path::new("/proc/self/mem").exists() {
        return skipped("no /proc/self/mem");
    }
    let tree = Tree::new();
    // Where the secret is in the DER: in an EC key at the beginning, in an RSA key at the end.
    let kinds = [
        ("ecparam -name prime256v1 -genkey -noout -out ca.key", "tail -c +3 | head -c 36"),
        ("genrsa -traditional -out ca.key 2048", "tail -c 300 | head -c 36"),
    ];
    for (make, place) in kinds {
        let (success, text) = tree.openssl(make);
        assert!(success, "{text}");
        let (success, text) = tree.openssl("req -x509 -new -nodes -days 3650 -key ca.key -subj /CN=ca -out ca.crt");
        assert!(success, "{text}");
        tree.openssl("ecparam -name prime256v1 -genkey -noout -out server.key");
        // A line of the file, and the secret with the element that it is in.
        let line = disguised(&tree, "sed -n 2p ca.key | tr -d '\\n'");
        let der = &disguised(&tree, &format!("openssl pkey -in ca.key -traditional -outform DER | {place}"));
        assert!(line.len() == 64 && der.len() == 36, "{} {}", line.len(), der.len());
        let files = tree.files();
        let bundle = certificate::bundle(&files.paths.authority).expect("openssl made it");
        let owner = certificate::authority_owner(&bundle);
        {
            let key = PrivateKey::load(&files.paths.authority_key, &owner).expect("openssl made it");
            assert!(in_memory(der) > 0, "the search is blind");
            drop(key);
        }
        let recent = IssueOrder { not_before: now(), ..order() };
        issue(&recent, &files, &tree.lock(), now()).expect("all is well");
        assert!(KeyCache::default().public(&files.paths.authority_key, &Owner::Authority(Vec::new())).is_ok());
        assert_eq!((in_memory(&line), in_memory(der)), (0, 0), "{make}");
    }
}
