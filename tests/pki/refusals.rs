//! Every refusal: its exact words, and that no file changed by it.

use std::time::Duration;

use ipguard::act::issue::{CertificateFiles, issue};
use ipguard::decide::plan::{IssueOrder, Subject};
use ipguard::facts::certificate::Purpose;
use ipguard::facts::time::Timestamp;
use ipguard::observe::der::tlv;
use ipguard::observe::pem;

use crate::forge::{
    self, Forged, UTF8, common_name, constraints, element, extension, identifier, name, purposes, usage,
};
use crate::state;
use crate::tree::{Key, Tree, chain, has_openssl, now, order};

/// What is in place before each refusal.
struct Good {
    authority: Key,
    leaf: Key,
    other: Key,
    certificate: String,
}

impl Good {
    fn make() -> Self {
        let make = || Key::make("ecparam -name prime256v1 -genkey -noout");
        let (authority, leaf, other) = (make(), make(), make());
        let root = Forged::root(common_name(UTF8, b"kube-ca"), authority.spki());
        let certificate = root.signed(authority.spki(), &authority.key);
        Self { authority, leaf, other, certificate }
    }

    fn root(&self) -> Forged {
        Forged::root(common_name(UTF8, b"kube-ca"), self.authority.spki())
    }

    fn signed(&self, forged: &Forged) -> String {
        forged.signed(self.authority.spki(), &self.authority.key)
    }

    fn tree(&self) -> Tree {
        let tree = Tree::new();
        tree.write("ca.crt", &self.certificate);
        tree.write("ca.key", &self.authority.pem);
        tree.write("server.key", &self.leaf.pem);
        tree.write("server.crt", "the certificate before");
        tree.write("csr.conf", "the request before");
        tree
    }
}

/// The tree, then what the order is for.
type Damage<'a> = Box<dyn Fn(&Tree, &mut IssueOrder, &mut CertificateFiles) + 'a>;

fn file<'a>(name: &'a str, content: impl AsRef<[u8]> + 'a) -> Damage<'a> {
    Box::new(move |tree, _, _| tree.write(name, &content))
}

fn ordered<'a>(change: impl Fn(&mut IssueOrder) + 'a) -> Damage<'a> {
    Box::new(move |_, order, _| change(order))
}

/// Carries out the damaged order and writes down what was said.
fn refusal(good: &Good, damage: &Damage<'_>) -> String {
    let tree = good.tree();
    let (mut order, mut files) = (order(), tree.files());
    damage(&tree, &mut order, &mut files);
    let lock = tree.lock();
    let before = state::of(&tree.certs());
    let error = issue(&order, &files, &lock, now()).expect_err("it must be refused");
    assert_eq!(state::of(&tree.certs()), before, "{error}");
    let text = chain(&error);
    text.replace(&tree.certs().display().to_string(), "CERTS").replace(&tree.0.display().to_string(), "TREE")
}

fn check(good: &Good, cases: &[(&str, Damage<'_>, &str)]) {
    let faults: Vec<String> = cases
        .iter()
        .filter_map(|(name, damage, expected)| {
            let said = refusal(good, damage);
            (said != *expected).then(|| format!("{name}\n  said:     {said}\n  expected: {expected}"))
        })
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A key as openssl writes it, of a kind that cannot be used.
fn odd_key(arguments: &str) -> Vec<u8> {
    let output = std::process::Command::new("openssl").args(arguments.split(' ')).output().expect("it was asked");
    assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// To make a large one takes openssl half a minute, and its size is all that is looked at.
fn rsa_of(bytes: usize) -> String {
    let large = [&[0][..], &vec![0xff; bytes]].concat();
    let half = [&[0][..], &vec![0xff; bytes / 2]].concat();
    let numbers: [&[u8]; 9] = [&[0], &large, &[1, 0, 1], &large, &half, &half, &half, &half, &half];
    let numbers: Vec<Vec<u8>> = numbers.iter().map(|number| tlv(2, &[number]).to_vec()).collect();
    pem::encode("RSA PRIVATE KEY", &tlv(0x30, &[&numbers.concat()])).to_string()
}

#[test]
fn keys_that_cannot_be_used() {
    if !has_openssl() {
        return;
    }
    let good = Good::make();
    const OTHERS: &str = "cannot be used here, but RSA of 2048 to 4096 bits, P-256, P-384 and Ed25519 can: replace it \
        with one of those, a CA's key together with its certificate";
    const ENCRYPTED: &str = "the private key is encrypted, and nobody is here to type a passphrase: decrypt it with \
        `openssl pkey -in FILE -out NEW`";
    let scratch = Tree::new();
    scratch.write("plain", &good.leaf.pem);
    let other = |what: &str| format!("{what} {OTHERS}");
    let parameters = odd_key("genpkey -genparam -algorithm DSA -pkeyopt dsa_paramgen_bits:1024");
    scratch.write("dsa", parameters);
    let plain = scratch.path("plain").display().to_string();
    let dsa = odd_key(&format!("genpkey -paramfile {}", scratch.path("dsa").display()));
    scratch.write("dsa", &dsa);
    let keys: Vec<(&str, Vec<u8>, String)> = vec![
        ("RSA 1024", odd_key("genrsa 1024"), other("an RSA key of 1024 bits")),
        ("RSA 1024 PKCS#1", odd_key("genrsa -traditional 1024"), other("an RSA key of 1024 bits")),
        ("RSA 2040", odd_key("genrsa 2040"), other("an RSA key of 2040 bits")),
        ("RSA 4104", rsa_of(513).into(), other("an RSA key of 4104 bits")),
        ("RSA 8192", rsa_of(1024).into(), other("an RSA key of 8192 bits")),
        (
            "RSA with a large exponent",
            odd_key("genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_pubexp:4294967297"),
            other("an RSA key with a public exponent that Go refuses"),
        ),
        (
            "RSA-PSS",
            odd_key("genpkey -algorithm RSA-PSS -pkeyopt rsa_keygen_bits:2048"),
            other("a key of the kind RSA-PSS"),
        ),
        ("P-521", odd_key("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521"), other("an EC key on P-521")),
        ("P-521 SEC1", odd_key("ecparam -name secp521r1 -genkey -noout"), other("an EC key on P-521")),
        ("secp256k1", odd_key("ecparam -name secp256k1 -genkey"), other("an EC key on secp256k1")),
        (
            "explicit parameters",
            odd_key("ecparam -name prime256v1 -genkey -noout -param_enc explicit"),
            other("an EC key on a curve with explicit parameters"),
        ),
        ("Ed448", odd_key("genpkey -algorithm ed448"), other("a key of the kind Ed448")),
        ("X25519", odd_key("genpkey -algorithm x25519"), other("a key of the kind X25519")),
        ("DSA PKCS#8", dsa, other("a key of the kind DSA")),
        ("DSA", odd_key(&format!("dsa -in {}", scratch.path("dsa").display())), other("a key of the kind DSA")),
        (
            "no public half",
            odd_key(&format!("ec -no_public -in {plain}")),
            "the EC private key has no public key beside it: add it with `openssl ec -in FILE -out NEW`".to_owned(),
        ),
        ("encrypted PKCS#8", odd_key(&format!("pkcs8 -topk8 -passout pass:x -in {plain}")), ENCRYPTED.to_owned()),
        (
            "encrypted PKCS#8 of PKCS#5 v1",
            odd_key(&format!("pkcs8 -topk8 -v1 PBE-SHA1-3DES -passout pass:x -in {plain}")),
            ENCRYPTED.to_owned(),
        ),
        ("encrypted SEC1", odd_key(&format!("ec -aes128 -passout pass:x -in {plain}")), ENCRYPTED.to_owned()),
        ("encrypted PKCS#1", odd_key("genrsa -traditional -aes128 -passout pass:x 2048"), ENCRYPTED.to_owned()),
        (
            "DER",
            odd_key(&format!("pkey -outform DER -in {plain}")),
            "the private key is in DER, without PEM around it: rewrite it with \
             `openssl pkey -inform DER -in FILE -out NEW`"
                .to_owned(),
        ),
        (
            "OpenSSH",
            b"-----BEGIN OPENSSH PRIVATE KEY-----\nZm9v\n-----END OPENSSH PRIVATE KEY-----\n".to_vec(),
            "the private key is in OpenSSH's own format: rewrite it with `ssh-keygen -p -m PEM -f FILE`".to_owned(),
        ),
    ];
    for (name, key, said) in &keys {
        // As the CA's, as the leaf's, and where a new leaf key would be put in its place.
        check(
            &good,
            &[
                (name, file("ca.key", key), &format!("the CA's key cannot be used: CERTS/ca.key: {said}")),
                (
                    name,
                    file("server.key", key),
                    &format!("the certificate's key cannot be used: CERTS/server.key: {said}"),
                ),
                (
                    name,
                    Box::new(|tree, order, _| {
                        tree.write("server.key", key);
                        order.new_key = true;
                    }),
                    &format!(
                        "CERTS/server.key holds a key that cannot be used here and is not overwritten: move it away: {said}"
                    ),
                ),
            ],
        );
    }
}

#[test]
fn broken_files() {
    if !has_openssl() {
        return;
    }
    let good = Good::make();
    let cut = &good.certificate[..good.certificate.len() / 2];
    let broken = format!("{}{cut}", good.certificate);
    let garbled = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let garbled_key = "-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n";
    let public = String::from_utf8(pem::encode("PUBLIC KEY", good.leaf.spki()).as_bytes().to_vec()).expect("PEM");
    let swapped = format!("{}{}", good.other.pem, good.leaf.pem);
    let leaf = Forged::root(common_name(UTF8, b"x"), good.leaf.spki()).signed(good.leaf.spki(), &good.leaf.key);
    let gone = |name: &'static str| -> Damage<'_> {
        Box::new(move |tree, _, _| std::fs::remove_file(tree.path(name)).expect("it is ours"))
    };
    let folder = |name: &'static str| -> Damage<'_> {
        Box::new(move |tree, _, _| {
            std::fs::remove_file(tree.path(name)).expect("it is ours");
            std::fs::create_dir(tree.path(name)).expect("it is ours");
        })
    };
    check(
        &good,
        &[
            ("CA gone", gone("ca.crt"), "the CA cannot be used: CERTS/ca.crt: no such file"),
            ("CA empty", file("ca.crt", ""), "the CA cannot be used: CERTS/ca.crt: the file is empty"),
            (
                "CA without a block",
                file("ca.crt", "changeme"),
                "the CA cannot be used: CERTS/ca.crt: there is no CERTIFICATE block in it",
            ),
            (
                "CA garbled",
                file("ca.crt", garbled),
                "the CA cannot be used: CERTS/ca.crt: certificate 1: it is no X.509 certificate: it ends too early",
            ),
            (
                "CA's second certificate cut",
                file("ca.crt", &broken),
                "the CA cannot be used: CERTS/ca.crt: certificate 2: the block has no END line",
            ),
            (
                "CA a folder",
                folder("ca.crt"),
                "the CA cannot be used: CERTS/ca.crt: cannot be read: it is not a regular file of at most 1 MiB",
            ),
            ("CA key gone", gone("ca.key"), "the CA's key cannot be used: CERTS/ca.key: no such file"),
            ("CA key empty", file("ca.key", " \n"), "the CA's key cannot be used: CERTS/ca.key: the file is empty"),
            (
                "CA key without a block",
                file("ca.key", "changeme"),
                "the CA's key cannot be used: CERTS/ca.key: there is no PEM block with a private key in it",
            ),
            (
                "CA key garbled",
                file("ca.key", garbled_key),
                "the CA's key cannot be used: CERTS/ca.key: the private key is damaged: it has no structure known for keys",
            ),
            (
                "CA key public",
                file("ca.key", &public),
                "the CA's key cannot be used: CERTS/ca.key: there is no PEM block with a private key in it",
            ),
            (
                "CA key a folder",
                folder("ca.key"),
                "the CA's key cannot be used: CERTS/ca.key: cannot be read: it is not a regular file of at most 1 MiB",
            ),
            (
                "CA key foreign",
                file("ca.key", &good.other.pem),
                "CERTS/ca.key: it belongs to no certificate of CERTS/ca.crt: restore the two of them together",
            ),
            (
                "leaf key gone",
                gone("server.key"),
                "the certificate's key cannot be used: CERTS/server.key: no such file",
            ),
            (
                "leaf key empty",
                file("server.key", ""),
                "the certificate's key cannot be used: CERTS/server.key: the file is empty",
            ),
            (
                "leaf key public",
                file("server.key", &public),
                "the certificate's key cannot be used: CERTS/server.key: there is no PEM block with a private key in it",
            ),
            (
                "leaf key marked",
                file("server.key", format!("\u{feff}{}", good.leaf.pem)),
                "the certificate's key cannot be used: CERTS/server.key: text or a byte order mark stands before BEGIN on its line, where a Go server does not look: remove it, so that the line starts with -----BEGIN",
            ),
            (
                "leaf key second",
                Box::new(|tree, _, _| {
                    tree.write("server.key", &swapped);
                    tree.write("server.crt", &leaf);
                }),
                "the certificate's key cannot be used: CERTS/server.key: the key that belongs to the certificate is number 2 of the file, and a Go server reads the first alone: put it first or remove the others",
            ),
            (
                "leaf key a folder",
                folder("server.key"),
                "the certificate's key cannot be used: CERTS/server.key: cannot be read: it is not a regular file of at most 1 MiB",
            ),
        ],
    );
}

#[test]
fn authorities_nobody_would_accept() {
    if !has_openssl() {
        return;
    }
    let good = Good::make();
    let with = |extensions: Vec<Vec<u8>>| file("ca.crt", good.signed(&good.root().with(extensions)));
    let usual = |more: Vec<u8>| with(vec![identifier(&[7; 20]), constraints(&[]), usage(0x06), more]);
    let dated = |from, to| file("ca.crt", good.signed(&good.root().dated(from, to)));
    let not_ca = extension(19, true, &element(0x30, &[]));
    let garbled = extension(19, true, &[0x30, 5, 1]);
    let permitted = element(0xa0, &[&element(0x30, &[&element(0x82, &[b"example.com"])])]);
    let unknown = element(0x30, &[&forge::oid(&[1, 3, 6, 1, 4, 1, 99_999, 1]), &[1, 1, 0xff], &element(4, &[&[5, 0]])]);
    check(
        &good,
        &[
            (
                "expired",
                dated("200101000000Z", "210101000000Z"),
                "CERTS/ca.crt: the CA is valid from 2020-01-01T00:00:00Z to 2021-01-01T00:00:00Z, not now",
            ),
            (
                "not yet valid",
                dated("400101000000Z", "450101000000Z"),
                "CERTS/ca.crt: the CA is valid from 2040-01-01T00:00:00Z to 2045-01-01T00:00:00Z, not now",
            ),
            (
                "no CA",
                with(vec![not_ca]),
                "CERTS/ca.crt: the CA certificate cannot sign: its basicConstraints say that it is no CA",
            ),
            (
                "no basicConstraints",
                with(vec![identifier(&[7; 20])]),
                "CERTS/ca.crt: the CA certificate cannot sign: it has no basicConstraints",
            ),
            (
                "garbled basicConstraints",
                with(vec![garbled]),
                "CERTS/ca.crt: the CA certificate cannot sign: its extensions cannot be parsed",
            ),
            (
                "cRLSign alone",
                with(vec![constraints(&[]), usage(0x02)]),
                "CERTS/ca.crt: the CA certificate cannot sign: its keyUsage does not allow signing certificates",
            ),
            (
                "for clients alone",
                usual(purposes(&[2])),
                "CERTS/ca.crt: the CA certificate cannot sign: its extendedKeyUsage does not allow serverAuth",
            ),
            (
                "for servers alone, for a client",
                Box::new(|tree, order, files| {
                    usual(purposes(&[1]))(tree, order, files);
                    order.purpose = Purpose::Client;
                }),
                "CERTS/ca.crt: the CA certificate cannot sign: its extendedKeyUsage does not allow clientAuth",
            ),
            (
                "for e-mail alone",
                usual(purposes(&[4])),
                "CERTS/ca.crt: the CA certificate cannot sign: its extendedKeyUsage does not allow serverAuth",
            ),
            (
                "other names only",
                usual(extension(30, true, &element(0x30, &[&permitted]))),
                "the new certificate did not pass its own verification, nothing was written: a client would refuse it for serverAuth: NameConstraintViolation",
            ),
            (
                "an extension of its own",
                usual(unknown),
                "CERTS/ca.crt: the CA certificate cannot sign: it has a critical extension that nobody knows",
            ),
        ],
    );
}

#[test]
fn orders_that_cannot_be_carried_out() {
    if !has_openssl() {
        return;
    }
    let good = Good::make();
    let attribute = |kind: &'static str, value: &'static str| {
        ordered(move |order| order.subject = Subject::Attributes(vec![(kind.to_owned(), value.to_owned())]))
    };
    let padded = [&[0x30, 0x81, 14][..], &name(&[&[("CN", UTF8, b"abc")]])[2..]].concat();
    let at = Timestamp::from_seconds;
    let outside = "/elsewhere/server.crt";
    check(
        &good,
        &[
            (
                "beyond the CA's end",
                ordered(|order| order.not_after = order.not_after + Duration::from_secs(1 << 30)),
                "the ordered validity reaches beyond the CA's",
            ),
            (
                "before the CA's start",
                ordered(|order| order.not_before = order.not_before - Duration::from_secs(1 << 29)),
                "the ordered validity reaches beyond the CA's",
            ),
            (
                "over already",
                ordered(|order| (order.not_before, order.not_after) = (at(1_600_000_000), at(1_700_000_000))),
                "the ordered validity is from 2020-09-13T12:26:40Z to 2023-11-14T22:13:20Z, not now",
            ),
            (
                "not valid yet",
                ordered(|order| (order.not_before, order.not_after) = (at(2_200_000_000), at(2_300_000_000))),
                "the ordered validity is from 2039-09-18T23:06:40Z to 2042-11-19T08:53:20Z, not now",
            ),
            (
                "an unknown attribute",
                attribute("XX", "a"),
                "the subject cannot be written as ordered: XX is not an attribute that is known here",
            ),
            (
                "a country that is none",
                attribute("C", "G_B"),
                "the subject cannot be written as ordered: the value of C, \"G_B\", cannot be written as PrintableString, which takes only letters, digits, spaces and '()+,-./:=?",
            ),
            (
                "an address not in ASCII",
                attribute("emailAddress", "m\u{fc}@example.com"),
                "the subject cannot be written as ordered: the value of emailAddress, \"mü@example.com\", cannot be written as IA5String, which takes only ASCII",
            ),
            (
                "a subject that is no name",
                ordered(|order| order.subject = Subject::Keep(b"CN=a".to_vec())),
                "the subject cannot be written as ordered: the subject to keep is not a distinguished name in DER",
            ),
            (
                "a subject not in DER",
                ordered(|order| order.subject = Subject::Keep(padded.clone())),
                "the subject cannot be written as ordered: the subject to keep is not a distinguished name in DER",
            ),
            (
                "a key appeared",
                ordered(|order| order.new_key = true),
                "CERTS/server.key has a usable key now, which is kept: the next pass decides anew",
            ),
            (
                "nowhere to put the request",
                Box::new(|_, order, files| {
                    order.request = Some("text".to_owned());
                    files.request = None;
                }),
                "the order has a request text for server, which has no request file",
            ),
            (
                "outside the folder",
                Box::new(|_, _, files| files.paths.certificate = outside.into()),
                "/elsewhere/server.crt is outside the certificate folder CERTS",
            ),
            (
                "a link in its place",
                Box::new(|tree, _, _| {
                    std::fs::remove_file(tree.path("server.crt")).expect("it is ours");
                    std::os::unix::fs::symlink("/etc/hostname", tree.path("server.crt")).expect("it is ours");
                }),
                "CERTS/server.crt is a symbolic link and is not followed",
            ),
            (
                "a folder in its place",
                Box::new(|tree, _, _| {
                    std::fs::remove_file(tree.path("server.crt")).expect("it is ours");
                    std::fs::create_dir(tree.path("server.crt")).expect("it is ours");
                }),
                "CERTS/server.crt is not a regular file",
            ),
            (
                "no folder",
                Box::new(|tree, _, files| files.folder = tree.0.join("nowhere")),
                "TREE/nowhere: cannot open the folder: No such file or directory (os error 2)",
            ),
        ],
    );
}
