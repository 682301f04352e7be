//! Certificates with names no builder would write, and bytes that are none.

use super::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::facts::Problem;
use crate::facts::certificate::Usage;
use rcgen::{BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair};

/// In the middle of the certificates' time.
const NOW: Timestamp = Timestamp::from_seconds(1_796_094_000);

struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-tree-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("the temporary folder is writable");
        Self(path)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), content).expect("it is ours");
    }

    fn facts(&self) -> CertificateFacts {
        let path = |name| self.0.join(name);
        let paths = CertificatePaths {
            certificate: path("server.crt"),
            key: path("server.key"),
            authority: path("ca.crt"),
            authority_key: path("ca.key"),
        };
        read("server", CertificateRole::ApiServer, &paths, &mut KeyCache::default(), NOW)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Ca {
    params: CertificateParams,
    key: KeyPair,
    pem: String,
}

fn ca(name: &str, key: KeyPair, not_after: i32) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(not_after, 1, 1);
    let pem = params.self_signed(&key).expect("it can be built").pem();
    Ca { params, key, pem }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("P-256")
}

/// A leaf of the CA with these bytes as its subjectAltName.
fn leaf_with(ca: &Ca, key: &KeyPair, san: Option<&[u8]>) -> rcgen::Certificate {
    let mut params = CertificateParams::default();
    if let Some(san) = san {
        params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 17], san.to_vec()));
    }
    params.signed_by(key, &Issuer::from_params(&ca.params, &ca.key)).expect("it can be built")
}

fn general_names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let mut content = Vec::new();
    for (tag, value) in names {
        content.push(0x80 | tag);
        content.push(u8::try_from(value.len()).expect("short"));
        content.extend_from_slice(value);
    }
    let length = u8::try_from(content.len()).expect("short");
    let header = if length < 0x80 { vec![0x30, length] } else { vec![0x30, 0x81, length] };
    [header, content].concat()
}

fn names_of(san: &[u8]) -> (Vec<String>, Vec<String>) {
    let ca = ca("test", key(), 2100);
    let leaf = leaf(leaf_with(&ca, &key(), Some(san)).der()).expect("the certificate itself is fine");
    (leaf.sans.iter().map(ToString::to_string).collect(), leaf.refused_sans)
}

#[test]
fn a_good_tree_is_read_whole() {
    let tree = Tree::new();
    let (ca, key) = (ca("10.152.183.1", key(), 2100), key());
    let leaf = leaf_with(&ca, &key, Some(&general_names(&[(2, b"Kubernetes"), (7, &[192, 0, 2, 10])])));
    tree.write("ca.crt", &ca.pem);
    tree.write("ca.key", ca.key.serialize_pem());
    tree.write("server.crt", leaf.pem());
    tree.write("server.key", key.serialize_pem());
    let facts = tree.facts();
    let read = facts.leaf.as_ref().expect("it was written");
    assert_eq!(read.sans.iter().map(ToString::to_string).collect::<Vec<_>>(), ["kubernetes", "192.0.2.10"]);
    assert_eq!(facts.key.as_ref(), Ok(&read.public_key));
    assert_eq!(facts.issued_by_authority, Some(true));
    assert_eq!(read.not_before.to_string(), "1975-01-01T00:00:00Z");
    assert!(facts.signer().expect("the key is there").self_signed);
    assert_eq!(facts.authority_key.as_ref(), Ok(&facts.signer().expect("as before").public_key));
    assert_eq!(read.fingerprint, fingerprint(leaf.der()));
}

#[test]
fn names_a_go_server_refuses_are_told_apart() {
    let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 10];
    let (sans, refused) = names_of(&general_names(&[(7, &mapped)]));
    assert_eq!((sans.as_slice(), refused.len()), (&["192.0.2.10".to_owned()][..], 1));
    for bytes in [&[][..], &[1, 2, 3, 4, 5], &[0; 8], &[0; 17]] {
        let (sans, refused) = names_of(&general_names(&[(7, bytes), (2, b"ok")]));
        assert_eq!((sans, refused.len()), (vec!["ok".to_owned()], 1), "{} bytes", bytes.len());
    }
    for tag in [1, 2, 6] {
        for text in ["müller".as_bytes(), b"m\xfcller"] {
            let (sans, refused) = names_of(&general_names(&[(tag, text), (2, b"ok")]));
            assert_eq!((sans, refused.len()), (vec!["ok".to_owned()], 1), "tag {tag}");
            assert!(refused[0].is_ascii(), "{refused:?}");
        }
    }
}

#[test]
fn names_that_match_nothing_are_left_aside() {
    let odd = general_names(&[(2, b""), (2, b"a b"), (2, b"a."), (2, b"a\0b"), (9, b"x"), (1, b"a@b"), (2, b"A_b")]);
    assert_eq!(names_of(&odd), (vec!["a_b".to_owned()], Vec::new()));
    assert_eq!(names_of(&general_names(&[(7, &[192, 0, 2, 1]), (7, &[192, 0, 2, 1])])).0, ["192.0.2.1"]);
}

#[test]
fn names_that_no_client_looks_for_are_told() {
    let odd = general_names(&[
        (6, b"spiffe://example/api"),
        (1, b"admin@example.com"),
        (2, b"*"),
        (2, b"api.corp.example."),
        (2, b"api.example"),
        (8, &[0x2a, 3]),
    ]);
    let ca = ca("test", key(), 2100);
    let leaf = leaf(leaf_with(&ca, &key(), Some(&odd)).der()).expect("the certificate itself is fine");
    let told =
        ["URI spiffe://example/api", "email admin@example.com", "DNS *", "DNS api.corp.example.", "a registered ID"];
    assert_eq!(leaf.other_names, told);
    assert_eq!(leaf.sans.iter().map(ToString::to_string).collect::<Vec<_>>(), ["api.example"]);
}

#[test]
fn a_broken_extension_is_refused_and_a_missing_one_is_not() {
    for broken in [&[0x30, 0x20, 0x82][..], &[0x04, 1, 0], b"garbage", &[]] {
        let (sans, refused) = names_of(broken);
        assert!(sans.is_empty() && refused.len() == 1, "{broken:?}: {sans:?} {refused:?}");
    }
    let ca = ca("test", key(), 2100);
    let without = leaf(leaf_with(&ca, &key(), None).der()).expect("it is fine");
    assert!(without.sans.is_empty() && without.refused_sans.is_empty());
    let mut params = CertificateParams::default();
    let one = CustomExtension::from_oid_content(&[2, 5, 29, 17], general_names(&[(2, b"a")]));
    params.custom_extensions = vec![one.clone(), one];
    let twice = params.self_signed(&key()).expect("it can be built");
    match leaf(twice.der()) {
        Ok(leaf) => assert_eq!((leaf.sans.len(), leaf.refused_sans.len()), (0, 1)),
        Err(why) => assert!(!why.is_empty()),
    }
}

#[test]
fn the_signer_is_the_certificate_that_fits_the_key() {
    let tree = Tree::new();
    let old = ca("root", key(), 2100);
    let new = ca("root", key(), 2100);
    tree.write("ca.crt", [old.pem.as_str(), &new.pem].concat());
    tree.write("ca.key", new.key.serialize_pem());
    tree.write("server.crt", leaf_with(&old, &key(), None).pem());
    let facts = tree.facts();
    assert_eq!(facts.authority.as_ref().expect("both are fine").signer, Some(1));
    assert_eq!(facts.issued_by_authority, Some(true), "the old root is in the bundle, so clients trust it");

    tree.write("ca.crt", &new.pem);
    assert_eq!(tree.facts().issued_by_authority, Some(false), "same name, another key");
    tree.write("ca.key", key().serialize_pem());
    assert_eq!(tree.facts().authority.expect("it is fine").signer, None);

    // The same key in two certificates: the longer-lived one, the first of equals.
    let renewed = ca("root", KeyPair::from_pem(&new.key.serialize_pem()).expect("it was just written"), 2200);
    tree.write("ca.key", new.key.serialize_pem());
    tree.write("ca.crt", [new.pem.as_str(), &renewed.pem, &renewed.pem].concat());
    assert_eq!(tree.facts().authority.expect("it is fine").signer, Some(1));
}

/// A CA that was renewed with its key stands twice in the bundle, and what signs depends on the moment.
#[test]
fn the_signer_is_the_certificate_that_is_good_now() {
    let key = key();
    let dated = |from: i32, to: i32, authority: bool| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "root");
        params.is_ca = if authority { IsCa::Ca(BasicConstraints::Unconstrained) } else { IsCa::ExplicitNoCa };
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
        params.self_signed(&key).expect("it can be built").der().to_vec()
    };
    let public = public_key(&parse(&dated(2020, 2030, true)).expect("it was just built"));
    let at = |year: i64| Timestamp::from_seconds((year - 1970) * 31_556_952 + 86_400 * 30);
    let signer =
        |ders: &[Vec<u8>], year| authority(ders, Some(&public), Purpose::Server, at(year)).expect("it is fine").signer;
    let (old, renewed) = (dated(2020, 2030, true), dated(2028, 2040, true));
    for (ders, [first, second]) in [([old.clone(), renewed.clone()], [0, 1]), ([renewed, old.clone()], [1, 0])] {
        assert_eq!(signer(&ders, 2026), Some(first), "the renewed one has not begun");
        assert_eq!(signer(&ders, 2029), Some(second), "both are good: the longer-lived one");
        assert_eq!(signer(&ders, 2035), Some(second), "the old one is over");
        assert_eq!(signer(&ders, 1975), Some(first), "a clock that nobody has set: the one that begins first");
        assert_eq!(signer(&ders, 2045), Some(second), "both are over");
    }
    let none = dated(2020, 2099, false);
    assert_eq!(signer(&[none.clone(), old.clone()], 2026), Some(1), "one that may sign, however long the other lives");
    assert_eq!(signer(&[none, old], 2035), Some(1), "and even when it is over: that is what is wrong");
}

#[test]
fn a_leaf_whose_issuer_has_another_name_is_foreign_even_with_a_valid_signature() {
    let tree = Tree::new();
    let real = ca("root", key(), 2100);
    let renamed = ca("other", KeyPair::from_pem(&real.key.serialize_pem()).expect("it was just written"), 2100);
    tree.write("ca.crt", &renamed.pem);
    tree.write("server.crt", leaf_with(&real, &key(), None).pem());
    assert_eq!(tree.facts().issued_by_authority, Some(false));
}

#[test]
fn broken_files_are_values() {
    let tree = Tree::new();
    let good = ca("root", key(), 2100);
    let facts = tree.facts();
    assert_eq!(facts.leaf.expect_err("nothing is there").problem, Problem::Missing);
    assert_eq!(facts.authority.expect_err("nothing is there").problem, Problem::Missing);
    assert_eq!((facts.key.is_err(), facts.authority_key.is_err(), facts.issued_by_authority), (true, true, None));

    for empty in ["", "\n \n", "\u{feff}"] {
        tree.write("server.crt", empty);
        tree.write("ca.crt", empty);
        assert_eq!(tree.facts().leaf.expect_err("empty").problem, Problem::Empty);
        assert_eq!(tree.facts().authority.expect_err("empty").problem, Problem::Empty);
    }
    let cut = &good.pem[..good.pem.len() / 2];
    let unreadable_by_go = format!("\u{feff}{}", good.pem);
    let trailing = pem::encode("CERTIFICATE", &[leaf_with(&good, &key(), None).der(), &b"x"[..]].concat());
    for broken in ["garbage", cut, &good.key.serialize_pem(), &unreadable_by_go, &trailing] {
        tree.write("server.crt", broken);
        let problem = tree.facts().leaf.expect_err(broken).problem;
        assert!(matches!(problem, Problem::Malformed(_)), "{problem}");
    }
    tree.write("ca.crt", format!("{}{cut}", good.pem));
    let problem = tree.facts().authority.expect_err("half of it is cut").problem;
    assert!(problem.to_string().starts_with("certificate 2: "), "{problem}");
}

#[test]
fn mutated_certificates_never_panic() {
    let tree = Tree::new();
    let ca = ca("root", key(), 2100);
    let good = leaf_with(&ca, &key(), Some(&general_names(&[(2, b"kubernetes"), (7, &[192, 0, 2, 10])])));
    let bundle = [x509(&ca.pem)];
    // A small generator with a fixed start: a failure can be repeated.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("below a usize")
    };
    let mut readable = 0;
    for _ in 0..20_000 {
        let mut der = good.der().to_vec();
        for _ in 0..=random(3) {
            let position = random(der.len());
            der[position] = u8::try_from(random(256)).expect("below 256");
        }
        if random(8) == 0 {
            der.truncate(random(der.len()));
        }
        if let Ok(leaf) = leaf(&der) {
            readable += 1;
            assert!(!leaf.public_key.0.is_empty());
        }
        if random(4) == 0 {
            let issued = is_issued_by(&der, &bundle);
            assert!(issued != Some(true) || der == good.der().as_ref() || same_but_unsigned_part(&der, good.der()));
            let _ = authority(&[der], None, Purpose::Server, NOW);
        }
    }
    assert!((1_000..19_000).contains(&readable), "{readable} of 20000 were readable: the mutations test nothing");
    let mut text = good.pem().into_bytes();
    for _ in 0..200 {
        let position = random(text.len());
        text[position] = u8::try_from(random(256)).expect("below 256");
        tree.write("server.crt", &text);
        let _ = tree.facts();
    }
}

/// Mutants that verify may differ only outside the signed part: in how the signature itself is written.
fn same_but_unsigned_part(mutant: &[u8], good: &[u8]) -> bool {
    let signed = |der: &[u8]| parse(der).map(|certificate| certificate.tbs_certificate.as_ref().to_vec());
    signed(mutant) == signed(good)
}

fn x509(pem: &str) -> Vec<u8> {
    pem::blocks(pem.as_bytes()).remove(0).der.expect("it was just built").to_vec()
}

#[test]
fn what_a_certificate_allows() {
    use rcgen::{ExtendedKeyUsagePurpose as Purpose, KeyUsagePurpose};
    let usage = |change: fn(&mut CertificateParams)| {
        let mut params = CertificateParams::default();
        change(&mut params);
        leaf(params.self_signed(&key()).expect("it can be built").der()).expect("it is fine").usage
    };
    let all = Usage { server_auth: true, client_auth: true, digital_signature: true, is_ca: false };
    assert_eq!(usage(|_| {}), all, "without extensions everything is allowed");
    assert_eq!(usage(|p| p.extended_key_usages = vec![Purpose::Any]), all);
    let client = |p: &mut CertificateParams| p.extended_key_usages = vec![Purpose::ClientAuth];
    assert_eq!(usage(client), Usage { server_auth: false, ..all });
    let server = |p: &mut CertificateParams| p.extended_key_usages = vec![Purpose::ServerAuth];
    assert_eq!(usage(server), Usage { client_auth: false, ..all });
    let encipherment = |p: &mut CertificateParams| p.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    assert_eq!(usage(encipherment), Usage { digital_signature: false, ..all });
    assert_eq!(usage(|p| p.key_usages = vec![KeyUsagePurpose::DigitalSignature]), all);
    let authority = |p: &mut CertificateParams| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    assert_eq!(usage(authority), Usage { is_ca: true, ..all });
    assert_eq!(usage(|p| p.is_ca = IsCa::ExplicitNoCa), all);
    let broken = |number| CustomExtension::from_oid_content(&[2, 5, 29, number], b"garbage".to_vec());
    let of_broken = |number| {
        let mut params = CertificateParams::default();
        params.custom_extensions = vec![broken(number)];
        leaf(params.self_signed(&key()).expect("it can be built").der()).expect("it is fine").usage
    };
    assert!(!of_broken(15).digital_signature, "what cannot be read allows nothing");
    assert!(!of_broken(37).server_auth);
}

#[test]
fn signatures_that_go_refuses_are_named() {
    let good = leaf_with(&ca("root", key(), 2100), &key(), None).der().to_vec();
    assert_eq!(leaf(&good).expect("it is fine").refused_signature, None);
    // ecdsa-with-SHA256 becomes ecdsa-with-SHA224, and something that nobody knows.
    for (last, name) in [(1, "SHA-224 with ECDSA"), (9, "1.2.840.10045.4.3.9")] {
        let oid = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let mut der = good.clone();
        for at in 0..der.len() - oid.len() {
            if der[at..].starts_with(&oid) {
                der[at + 7] = last;
            }
        }
        assert_eq!(leaf(&der).expect("it parses").refused_signature.as_deref(), Some(name));
    }
    let tree = Tree::new();
    for (digest, name) in [("sha1", Some("SHA-1 with RSA")), ("md5", Some("MD5 with RSA")), ("sha256", None)] {
        let line = format!("req -x509 -newkey rsa:2048 -nodes -keyout key -subj /CN=a -{digest} -out server.crt");
        let made = std::process::Command::new("openssl").args(line.split(' ')).current_dir(&tree.0).output();
        let Ok(output) = made else {
            crate::skipped::skipped("openssl not found");
            return;
        };
        // A distribution may have switched the old ones off.
        if !output.status.success() && name.is_some() {
            crate::skipped::skipped(&format!("openssl signs nothing with {digest}"));
            continue;
        }
        assert_eq!(tree.facts().leaf.expect("openssl wrote it").refused_signature.as_deref(), name, "{digest}");
    }
}

#[test]
fn a_leaf_says_which_key_and_certificate_it_is_by() {
    let (root, key) = (ca("root", key(), 2100), key());
    let mut params = CertificateParams::default();
    params.use_authority_key_identifier_extension = true;
    let made = params.signed_by(&key, &Issuer::from_params(&root.params, &root.key)).expect("it can be built");
    let read = leaf(made.der()).expect("it is fine");
    let authority = authority(&[x509(&root.pem)], None, Purpose::Server, NOW).expect("it is fine");
    let certificate = &authority.certificates[0];
    assert!(certificate.key_id.is_some() && !certificate.serial.is_empty());
    assert_eq!((&read.authority_key_id, &read.authority_serial), (&certificate.key_id, &None));
    assert_eq!(certificate.cannot_sign, None);
    // AuthorityKeyIdentifier with keyIdentifier [0] and authorityCertSerialNumber [2] (RFC 5280 section 4.2.1.1).
    let mut params = CertificateParams::default();
    let pointer = CustomExtension::from_oid_content(&[2, 5, 29, 35], vec![0x30, 7, 0x80, 2, 1, 2, 0x82, 1, 9]);
    params.custom_extensions = vec![pointer];
    let read = leaf(params.self_signed(&key).expect("it can be built").der()).expect("it is fine");
    assert_eq!((read.authority_key_id, read.authority_serial), (Some(vec![1, 2]), Some(vec![9])));
    assert!(leaf(leaf_with(&root, &key, None).der()).expect("it is fine").authority_key_id.is_none());
}

#[test]
fn a_ca_that_may_not_sign_says_why() {
    use rcgen::ExtendedKeyUsagePurpose::{Any, ClientAuth, EmailProtection, ServerAuth};
    let for_purposes = |change: &dyn Fn(&mut CertificateParams)| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let der = params.self_signed(&key()).expect("it can be built").der().to_vec();
        [Purpose::Server, Purpose::Client].map(|purpose| {
            authority(std::slice::from_ref(&der), None, purpose, NOW).expect("it parses").certificates[0].cannot_sign
        })
    };
    let why = |change: fn(&mut CertificateParams)| {
        let [server, client] = for_purposes(&change);
        assert_eq!(server, client, "it is the same for everything that is signed");
        server
    };
    assert_eq!(why(|_| {}), None);
    assert_eq!(why(|p| p.is_ca = IsCa::ExplicitNoCa), Some("its basicConstraints say that it is no CA"));
    assert_eq!(why(|p| p.is_ca = IsCa::NoCa), Some("it has no basicConstraints"));
    let no_signing = |p: &mut CertificateParams| p.key_usages = vec![rcgen::KeyUsagePurpose::CrlSign];
    assert_eq!(why(no_signing), Some("its keyUsage does not allow signing certificates"));
    let no_server = Some("its extendedKeyUsage does not allow serverAuth");
    let no_client = Some("its extendedKeyUsage does not allow clientAuth");
    for (usages, expected) in [
        (vec![ServerAuth, ClientAuth], [None, None]),
        (vec![Any], [None, None]),
        (vec![ServerAuth], [None, no_client]),
        (vec![ClientAuth], [no_server, None]),
        (vec![EmailProtection], [no_server, no_client]),
    ] {
        assert_eq!(for_purposes(&|p| p.extended_key_usages.clone_from(&usages)), expected, "{usages:?}");
    }
}
