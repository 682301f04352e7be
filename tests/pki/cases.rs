//! The matrix: CAs by their names and their oddities, keys by their kinds and files, subjects of leaves.

use std::sync::Arc;

use ipguard::config::AuthorityKeyId;
use ipguard::decide::plan::Subject;

use crate::forge::{
    self, BITS, BMP, Forged, IA5, NUMERIC, PRINTABLE, T61, UNIVERSAL, UTF8, VISIBLE, common_name, constraints, element,
    extension, identifier, name, purposes, usage,
};
use crate::tree::{Key, Tree, subject};

/// One CA, one key, one subject.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    /// ca.crt.
    pub(crate) authority: String,
    /// ca.key.
    pub(crate) authority_key: String,
    /// The certificate that signs, alone.
    pub(crate) signer: String,
    /// Its key, alone.
    pub(crate) signer_key: Arc<Key>,
    /// What a server sends behind the leaf: nothing where a root signs, else the one that signs and those above it, without
    /// the root. The judges get it from here, not from what ipguard made of the case.
    pub(crate) chain: String,
    /// What clients trust.
    pub(crate) trust: String,
    /// server.key.
    pub(crate) leaf_key_file: String,
    /// The key in it.
    pub(crate) leaf_key: Arc<Key>,
    pub(crate) subject: Subject,
    pub(crate) pointer: AuthorityKeyId,
    /// The CA is of this minute: openssl makes none that began earlier, and a leaf does not begin before its CA.
    pub(crate) of_now: bool,
}

/// Keys of every usable kind, each made once.
#[derive(Debug)]
pub(crate) struct Keys {
    /// In the forms openssl writes them, with a word for each.
    pub(crate) all: Vec<(&'static str, Arc<Key>)>,
}

const FORMS: [(&str, &str); 16] = [
    ("RSA 2048 PKCS#8", "genrsa 2048"),
    ("RSA 2048 PKCS#1", "genrsa -traditional 2048"),
    ("RSA 3072 PKCS#1", "genrsa -traditional 3072"),
    ("RSA 4096 PKCS#8", "genrsa 4096"),
    ("P-256 SEC1", "ecparam -name prime256v1 -genkey -noout"),
    ("P-256 EC PARAMETERS first", "ecparam -name prime256v1 -genkey"),
    ("P-256 PKCS#8", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"),
    ("P-384 SEC1", "ecparam -name secp384r1 -genkey -noout"),
    ("P-384 PKCS#8", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384"),
    ("Ed25519", "genpkey -algorithm ed25519"),
    ("RSA 2049", "genrsa 2049"),
    ("RSA 2056", "genrsa 2056"),
    ("RSA 2560 PKCS#1", "genrsa -traditional 2560"),
    ("RSA 3584", "genrsa 3584"),
    ("RSA e=3", "genrsa -3 2048"),
    ("RSA of three primes", "genrsa -primes 3 2048"),
];

impl Keys {
    pub(crate) fn make() -> Self {
        let all = std::thread::scope(|scope| {
            let made = FORMS.map(|(word, command)| (word, scope.spawn(|| Arc::new(Key::make(command)))));
            made.map(|(word, key)| (word, key.join().expect("openssl makes it"))).into()
        });
        Self { all }
    }

    /// One of P-256, by number: they cost nothing.
    pub(crate) fn small(&self, number: usize) -> Arc<Key> {
        self.all[4 + number].1.clone()
    }
}

/// A case of a CA with this one certificate, signed by itself.
fn rooted(name: &str, forged: &Forged, key: &Arc<Key>, leaf: &Arc<Key>) -> Case {
    let pem = forged.signed(key.spki(), &key.key);
    Case {
        name: name.to_owned(),
        authority: pem.clone(),
        authority_key: key.pem.clone(),
        signer: pem.clone(),
        signer_key: key.clone(),
        chain: String::new(),
        trust: pem,
        leaf_key_file: leaf.pem.clone(),
        leaf_key: leaf.clone(),
        subject: subject(),
        pointer: AuthorityKeyId::KeyId,
        of_now: false,
    }
}

/// Names in every form that a CA's subject has been seen in, and some that have not.
fn names() -> Vec<(&'static str, Vec<u8>)> {
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    let utf32 = |text: &str| text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect::<Vec<u8>>();
    let long = "x".repeat(300);
    let many: Vec<[forge::Attribute<'_>; 1]> = (0..20).map(|_| [("OU", UTF8, &b"unit"[..])]).collect();
    vec![
        ("UTF8String", common_name(UTF8, b"10.152.183.1")),
        ("PrintableString", common_name(PRINTABLE, b"10.152.183.1")),
        ("not ASCII", common_name(UTF8, "b\u{fc}ro \u{4e2d} \u{1f511}".as_bytes())),
        ("T61String in ASCII", common_name(T61, b"kube")),
        ("T61String in Latin-1", common_name(T61, b"b\xfcro")),
        ("BMPString", common_name(BMP, &utf16("b\u{fc}ro"))),
        ("UniversalString", common_name(UNIVERSAL, &utf32("kube"))),
        ("NumericString", common_name(NUMERIC, b"10 152")),
        ("VisibleString", common_name(VISIBLE, b"kube")),
        ("BIT STRING", name(&[&[("CN", UTF8, b"kube")], &[("unique", BITS, &[0, 0xa5])]])),
        ("IA5String", name(&[&[("CN", UTF8, b"kube")], &[("email", IA5, b"a@example.com")]])),
        ("DC twice", name(&[&[("DC", IA5, b"com")], &[("DC", IA5, b"example")], &[("CN", UTF8, b"ca")]])),
        ("OU twice", name(&[&[("OU", UTF8, b"a")], &[("OU", UTF8, b"b")]])),
        ("CN twice", name(&[&[("CN", UTF8, b"a")], &[("CN", PRINTABLE, b"b")]])),
        ("one attribute repeated", name(&[&[("OU", UTF8, b"a")], &[("OU", UTF8, b"a")]])),
        ("multi-valued", name(&[&[("CN", UTF8, b"a"), ("OU", UTF8, b"b")], &[("O", UTF8, b"c")]])),
        ("multi-valued in mixed strings", name(&[&[("CN", T61, b"\xe9"), ("serial", PRINTABLE, b"1")]])),
        ("multi-valued out of order", name(&[&[("OU", UTF8, b"b"), ("CN", UTF8, b"a")]])),
        (
            "serial, UID, title",
            name(&[&[("serial", PRINTABLE, b"1")], &[("UID", UTF8, b"u")], &[("title", UTF8, b"t")]]),
        ),
        ("CN first", name(&[&[("CN", UTF8, b"kube")], &[("O", UTF8, b"o")], &[("C", PRINTABLE, b"GB")]])),
        ("odd spaces and case", common_name(UTF8, b"  Kube   CA ")),
        ("empty value", name(&[&[("CN", UTF8, b"")], &[("O", UTF8, b"o")]])),
        ("CN of 300", common_name(UTF8, long.as_bytes())),
        ("NUL", common_name(UTF8, b"kube\0ca")),
        ("private types", name(&[&[("1.3.6.1.4.1.99999.1", UTF8, b"x")], &[("2.25.1", IA5, b"y")]])),
        ("country in lower-case UTF8", name(&[&[("C", UTF8, b"gb")], &[("CN", UTF8, b"kube")]])),
        ("no attribute", name(&[])),
        ("PrintableString with & and _", common_name(PRINTABLE, b"kube_ca & co")),
        ("twenty units", name(&many.iter().map(|set| &set[..]).collect::<Vec<_>>())),
    ]
}

/// Roots that are odd in another way than by their name.
fn oddities(key: &Key) -> Vec<(&'static str, Forged)> {
    let base = Forged::root(common_name(UTF8, b"kube-ca"), key.spki());
    let serial = |bytes: &[u8]| Forged { serial: bytes.to_vec(), ..base.clone() };
    let long: Vec<u8> = (1..=40).collect();
    let usual = || vec![identifier(&[7; 20]), constraints(&[]), usage(0x06)];
    let and = |more: Vec<u8>| base.clone().with(usual().into_iter().chain([more]).collect());
    let excluded = element(0xa1, &[&element(0x30, &[&element(0x82, &[b"forbidden.example"])])]);
    let policies = element(0x30, &[&element(0x30, &[&forge::oid(&[2, 5, 29, 32, 0])])]);
    vec![
        ("identifier of 5 bytes", base.clone().with(vec![identifier(&[1, 2, 3, 4, 5]), constraints(&[]), usage(0x06)])),
        ("identifier of 64 bytes", base.clone().with(vec![identifier(&[9; 64]), constraints(&[]), usage(0x06)])),
        ("no identifier", base.clone().with(vec![constraints(&[]), usage(0x06)])),
        ("negative serial", serial(&[0xfe, 0xdc, 0xba])),
        ("serial of 20 bytes", serial(&[0x7f; 20])),
        ("serial of 21 bytes with its sign", serial(&[&[0][..], &[0xff; 20]].concat())),
        ("serial of 40 bytes", serial(&long)),
        ("serial zero", serial(&[0])),
        ("version 1", Forged { extensions: None, ..base.clone() }),
        ("path length 0", base.clone().with(vec![identifier(&[7; 20]), constraints(&[2, 1, 0]), usage(0x04)])),
        ("no keyUsage, as MicroK8s", base.clone().with(vec![identifier(&[7; 20]), constraints(&[])])),
        ("all usages", base.clone().with(vec![identifier(&[7; 20]), constraints(&[]), usage(0xa6)])),
        ("for servers and clients", and(purposes(&[1, 2]))),
        ("for servers alone", and(purposes(&[1]))),
        ("for clients alone", and(purposes(&[2]))),
        ("names excluded", and(extension(30, true, &element(0x30, &[&excluded])))),
        ("any policy, critical", and(extension(32, true, &policies))),
        ("until 2099", base.clone().dated("20000101000000Z", "20990101000000Z")),
        ("no expiry (RFC 5280)", base.dated("200101000000Z", "99991231235959Z")),
    ]
}

/// Bundles of several certificates.
fn bundles(keys: &Keys) -> Vec<Case> {
    let (root_key, upper_key, lower_key, leaf) = (keys.small(0), keys.all[8].1.clone(), keys.small(2), &keys.small(1));
    let root_name = common_name(UTF8, b"root");
    let root = Forged::root(root_name.clone(), root_key.spki());
    let root_pem = root.signed(root_key.spki(), &root_key.key);
    let upper_name = name(&[&[("DC", IA5, b"com")], &[("DC", IA5, b"example")]]);
    let upper = Forged::below(&root_name, root_key.spki(), upper_name.clone(), upper_key.spki());
    let upper_pem = upper.signed(upper_key.spki(), &root_key.key);
    let lower = Forged::below(&upper_name, upper_key.spki(), common_name(T61, b"b\xfcro"), lower_key.spki());
    let lower_pem = lower.signed(lower_key.spki(), &upper_key.key);
    let other = Forged::root(root_name.clone(), lower_key.spki()).signed(lower_key.spki(), &lower_key.key);
    let renewed = Forged { serial: vec![0x77], ..root.clone() }.dated("250101000000Z", "490101000000Z");
    let renewed = renewed.signed(root_key.spki(), &root_key.key);

    let case = |name: &str, certificates: &[&str], signer: &str, key: &Arc<Key>, trust: &str| Case {
        name: name.to_owned(),
        authority: certificates.concat(),
        authority_key: key.pem.clone(),
        signer: signer.to_owned(),
        trust: trust.to_owned(),
        ..rooted(name, &root, key, leaf)
    };
    let one = |name: &str, certificates: &[&str]| Case {
        signer_key: upper_key.clone(),
        chain: upper_pem.clone(),
        ..case(name, certificates, &upper_pem, &upper_key, &root_pem)
    };
    let two = |name: &str, certificates: &[&str]| Case {
        signer_key: lower_key.clone(),
        chain: [lower_pem.as_str(), &upper_pem].concat(),
        ..case(name, certificates, &lower_pem, &lower_key, &root_pem)
    };
    let both = [root_pem.as_str(), &other].concat();
    let comments = format!("root\r\n{}\r\nthe one that signs\n{upper_pem}", root_pem.replace('\n', "\r\n"));
    let mut cases = vec![
        one("intermediate, root", &[&upper_pem, &root_pem]),
        one("root, intermediate", &[&root_pem, &upper_pem]),
        one("intermediate alone", &[&upper_pem]),
        one("comments and CRLF", &[&comments]),
        one("a stranger between", &[&root_pem, &other, &upper_pem]),
        two("two levels, top first", &[&root_pem, &upper_pem, &lower_pem]),
        two("two levels, bottom first", &[&lower_pem, &upper_pem, &root_pem]),
        two("two levels, mixed", &[&upper_pem, &root_pem, &lower_pem]),
        two("two levels without root", &[&upper_pem, &lower_pem]),
        case("old root, new root", &[&other, &root_pem], &root_pem, &root_key, &both),
        case("new root, old root", &[&root_pem, &other], &root_pem, &root_key, &both),
        case("renewed root", &[&root_pem, &renewed], &renewed, &root_key, &renewed),
        case("renewed root, clients with the old one", &[&root_pem, &renewed], &renewed, &root_key, &root_pem),
    ];
    let pointed = one("intermediate named by issuer and serial", &[&upper_pem, &root_pem]);
    cases.push(Case { pointer: AuthorityKeyId::KeyIdIssuerSerial, ..pointed });
    cases
}

/// Authorities above the one that signs that are of a kind ipguard itself cannot sign with, and a key file that openssl
/// writes without its public half. OpenSSL makes all of it.
fn of_other_kinds(keys: &Keys) -> Vec<Case> {
    let (low, leaf) = (keys.small(0), &keys.small(1));
    let tree = Tree::new();
    let run = |arguments: &str| {
        let (success, text) = tree.openssl(arguments);
        assert!(success, "openssl {arguments}: {text}");
    };
    let read = |name: &str| std::fs::read_to_string(tree.path(name)).expect("openssl made it");
    tree.write("low.key", &low.pem);
    tree.write("ca.cnf", "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n");
    for (name, curve) in [("p384", "secp384r1"), ("p521", "secp521r1"), ("upper", "secp521r1")] {
        run(&format!("ecparam -name {curve} -genkey -noout -out {name}.key"));
    }
    let root = |name: &str, digest: &str| {
        run(&format!("req -x509 -new -nodes -days 3650 -{digest} -key {name}.key -subj /CN={name} -out {name}.crt"));
    };
    let below = |name: &str, above: &str, digest: &str, out: &str| {
        run(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        run(&format!(
            "x509 -req -in {name}.csr -CA {above}.crt -CAkey {above}.key -days 3000 -{digest} -set_serial 7 -extfile ca.cnf -out {out}.crt"
        ));
    };
    root("p521", "sha512");
    root("p384", "sha384");
    below("low", "p521", "sha512", "under-p521");
    below("upper", "p384", "sha384", "upper");
    below("low", "upper", "sha512", "under-upper");
    root("low", "sha512");
    run("ec -in low.key -no_public -out bare.key");
    let (bare, own) = (read("bare.key"), read("low.crt"));
    assert_ne!(bare, low.pem, "openssl left the public half in");

    let case = |name: &str, certificates: &[&str], chain: &[&str], trust: &str| Case {
        name: name.to_owned(),
        authority: certificates.concat().to_owned(),
        authority_key: low.pem.clone(),
        signer: certificates[0].to_owned(),
        signer_key: low.clone(),
        chain: chain.concat(),
        trust: trust.to_owned(),
        leaf_key_file: leaf.pem.clone(),
        leaf_key: leaf.clone(),
        subject: subject(),
        pointer: AuthorityKeyId::KeyId,
        of_now: true,
    };
    let (under, upper, signer) = (read("under-p521.crt"), read("upper.crt"), read("under-upper.crt"));
    let (p521, p384) = (read("p521.crt"), read("p384.crt"));
    vec![
        case("P-256 below a root of P-521", &[&under, &p521], &[&under], &p521),
        case("P-256 below a root of P-521 that is not in the file", &[&under], &[&under], &p521),
        case("P-256 root that signed itself with SHA-512", &[&own], &[], &own),
        case("P-256 below P-521 below a root of P-384", &[&signer, &upper, &p384], &[&signer, &upper], &p384),
        Case { authority_key: bare, ..case("EC key file without its public half", &[&own], &[], &own) },
    ]
}

/// Key files as people leave them. For a server only what Go finds.
fn key_files(key: &str, certificate: &str, other: &str) -> Vec<(&'static str, String, bool)> {
    vec![
        ("text before", format!("Bag Attributes\n    localKeyID: 01 02\nKey Attributes: <No Attributes>\n{key}"), true),
        ("CRLF", key.replace('\n', "\r\n"), true),
        ("certificate before", format!("{certificate}{key}"), true),
        ("another key behind", format!("{key}{other}"), true),
        ("no line end", key.trim_end().to_owned(), true),
        ("byte order mark", format!("\u{feff}{key}"), false),
        ("another key before", format!("{other}{key}"), false),
        ("indented", format!("  {}", key.trim_end().replace('\n', "\n  ")), false),
    ]
}

/// Every case.
pub(crate) fn all(keys: &Keys) -> Vec<Case> {
    let (authority, leaf) = (&keys.small(0), &keys.small(1));
    let plain = Forged::root(common_name(UTF8, b"10.152.183.1"), authority.spki());
    let mut cases = Vec::new();
    let named = |by: &str, name: &str| format!("{by}: {name}");
    for (word, name) in names() {
        let forged = Forged::root(name.clone(), authority.spki());
        cases.push(rooted(&named("CA name", word), &forged, authority, leaf));
        let kept = rooted(&named("leaf name", word), &plain, authority, leaf);
        cases.push(Case { subject: Subject::Keep(name), ..kept });
    }
    for (word, forged) in oddities(authority) {
        let case = rooted(&named("CA", word), &forged, authority, leaf);
        cases.push(Case {
            name: named("CA by issuer and serial", word),
            pointer: AuthorityKeyId::KeyIdIssuerSerial,
            ..case.clone()
        });
        cases.push(case);
    }
    cases.extend(of_other_kinds(keys));
    cases.extend(bundles(keys).into_iter().map(|case| Case { name: named("bundle", &case.name), ..case }));
    for (word, key) in &keys.all {
        let forged = Forged::root(common_name(UTF8, b"10.152.183.1"), key.spki());
        cases.push(rooted(&named("CA key", word), &forged, key, leaf));
        if !Arc::ptr_eq(key, authority) {
            cases.push(rooted(&named("leaf key", word), &plain, authority, key));
        }
        cases.push(rooted(&named("CA and leaf key", word), &forged, key, key));
    }
    let one = rooted("", &plain, authority, leaf);
    for (word, file, _) in key_files(&authority.pem, &one.authority, &keys.small(2).pem) {
        cases.push(Case { name: named("CA key file", word), authority_key: file, ..one.clone() });
    }
    for (word, file, _) in key_files(&leaf.pem, &one.authority, &keys.small(2).pem).into_iter().filter(|(.., go)| *go) {
        cases.push(Case { name: named("leaf key file", word), leaf_key_file: file, ..one.clone() });
    }
    let lists: [&[(&str, &str)]; 3] = [
        &[("CN", "system:node:b\u{fc}ro-1"), ("O", "system:nodes")],
        &[("DC", "com"), ("DC", "example"), ("OU", "a"), ("+OU", "b"), ("CN", "x")],
        &[],
    ];
    for list in lists {
        let attributes = list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let name = named("leaf of attributes", &format!("{list:?}"));
        cases.push(Case { name, subject: Subject::Attributes(attributes), ..one.clone() });
    }
    cases
}
