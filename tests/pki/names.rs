//! Odd names: whatever is accepted here Go accepts too and finds, and what Go refuses never gets into a file.

use ipguard::act::issue::issue;
use ipguard::facts::san::San;
use ipguard::observe::certificate;
use serde_json::{Value, json};

use crate::forge::{Forged, UTF8, common_name, element, extension};
use crate::tree::{Key, Tree, chain, has_openssl, now, order};
use crate::{go, state};

/// A CA, a key, and how to ask Go about leaves of both.
struct Pair {
    authority: Key,
    leaf: Key,
    certificate: String,
    root: Forged,
}

impl Pair {
    fn make() -> Self {
        let make = || Key::make("ecparam -name prime256v1 -genkey -noout");
        let (authority, leaf) = (make(), make());
        let root = Forged::root(common_name(UTF8, b"kube-ca"), authority.spki());
        let certificate = root.signed(authority.spki(), &authority.key);
        Self { authority, leaf, certificate, root }
    }

    fn tree(&self) -> Tree {
        let tree = Tree::new();
        tree.write("ca.crt", &self.certificate);
        tree.write("ca.key", &self.authority.pem);
        tree.write("server.key", &self.leaf.pem);
        tree
    }

    fn question(&self, certificate: &str, hosts: &[String]) -> Value {
        let leaf = json!({ "certificate": certificate, "key": self.leaf.pem });
        json!({
            "trust": self.certificate, "signer": self.certificate, "signer_key": self.authority.pem,
            "reference": leaf, "ours": leaf, "hosts": hosts,
        })
    }

    /// A leaf with these bytes as its names.
    fn forged(&self, names: &[u8]) -> String {
        let mut leaf = Forged { subject: common_name(UTF8, b"leaf"), ..self.root.clone() };
        leaf.extensions = Some(vec![extension(17, false, names)]);
        leaf.signed(self.leaf.spki(), &self.authority.key)
    }
}

/// Texts from anywhere in the space around names, the same in every run.
fn texts() -> Vec<String> {
    const PARTS: [&str; 20] = [
        "a", "B", "7", "-", "_", ".", "*", "*.", "xn--", "1", "0x", ":", "::", " ", "\u{e9}", "%", "/", "\0", "kube",
        "255",
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("below a usize")
    };
    let mut texts: Vec<String> = (0..20_000).map(|_| (0..=random(7)).map(|_| PARTS[random(20)]).collect()).collect();
    let label = "a".repeat(63);
    let longest = [label.as_str(), &label, &label, &"b".repeat(61)].join(".");
    let known =
        ["k8s", "K8S.Example", "*.example", "_x._tcp.a", "a_", "_", "1a", "a.1", "xn--mller-kva.de", "::1", "::"];
    let more = [
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "::ffff:192.0.2.7",
        "fe80::1",
        "::192.0.2.1",
        "1.2.3.4.5",
        "0x7f.1",
    ];
    texts.extend(known.into_iter().chain(more).map(str::to_owned));
    texts.extend([longest.clone(), format!("{longest}b"), label.clone(), format!("{label}a")]);
    texts
}

#[test]
fn every_name_that_is_accepted_is_found_by_go() {
    if !has_openssl() {
        return;
    }
    let pair = Pair::make();
    let mut names: Vec<San> = texts().iter().filter_map(|text| text.parse().ok()).collect();
    names.sort();
    names.dedup();
    assert!(names.len() > 500, "{} names were accepted", names.len());
    let mut questions = Vec::new();
    for names in names.chunks(200) {
        let tree = pair.tree();
        let order = ipguard::decide::plan::IssueOrder { sans: names.iter().cloned().collect(), ..order() };
        issue(&order, &tree.files(), &tree.lock(), now()).expect("all of them are names");
        let certificate = std::fs::read_to_string(tree.path("server.crt")).expect("it was written");
        let hosts: Vec<String> = names.iter().map(|name| name.to_string().replacen('*', "any", 1)).collect();
        questions.push(pair.question(&certificate, &hosts));
    }
    let Some(program) = go::program() else { return };
    for verdict in go::judge(program, &questions) {
        assert_eq!(verdict["ours"]["server"], "", "of {} names", names.len());
    }
}

#[test]
fn what_is_no_name_says_why() {
    let long = format!("{}.{}", "a".repeat(63), ["abc"; 60].join("."));
    let cases = [
        ("", "it is empty"),
        ("*.", "it is empty"),
        (".", "it looks like an IPv4 address but is not one"),
        ("a..b", "a label is empty (a leading, trailing or double dot)"),
        ("a.", "a label is empty (a leading, trailing or double dot)"),
        (".a", "a label is empty (a leading, trailing or double dot)"),
        ("*", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("a.*.b", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("*a.b", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("*.*.b", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("m\u{fc}ller.de", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("a b", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("a\0b", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("a\n", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("https-//a", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        ("-a", "a label starts or ends with a hyphen"),
        ("a-.b", "a label starts or ends with a hyphen"),
        ("192.0.2.1:16443", "it has a colon but is not an IPv6 address"),
        ("[::1]", "it has a colon but is not an IPv6 address"),
        ("fe80::1%eth0", "it has a colon but is not an IPv6 address"),
        ("a:b", "it has a colon but is not an IPv6 address"),
        ("192.0.2.300", "it looks like an IPv4 address but is not one"),
        ("192.0.2.01", "it looks like an IPv4 address but is not one"),
        ("192.0.2", "it looks like an IPv4 address but is not one"),
        ("192.0.2.1.", "it looks like an IPv4 address but is not one"),
        ("42", "it looks like an IPv4 address but is not one"),
        ("192.0.2.0/24", "only letters, digits, hyphens, dots and a leading *. are allowed"),
        (&"a".repeat(64), "a label is longer than 63 characters"),
        (&long, "it is longer than 253 characters"),
    ];
    for (text, why) in cases {
        assert_eq!(text.parse::<San>().map_err(|error| error.why), Err(why), "{text:?}");
    }
}

#[test]
fn a_set_has_each_name_once_and_in_one_order() {
    let mut sans = order().sans;
    let count = sans.len();
    for again in ["KUBERNETES", "::ffff:192.0.2.10", "2001:DB8:0:0::10", "::ffff:c000:20a"] {
        sans.insert(again.parse().expect("a name"));
    }
    assert_eq!(sans.len(), count);
    let text: Vec<String> = sans.iter().map(San::to_string).collect();
    assert_eq!(
        text,
        [
            "*.wild.example",
            "kubernetes",
            "kubernetes.default.svc.cluster.local",
            "10.152.183.1",
            "127.0.0.1",
            "192.0.2.10",
            "2001:db8::10",
        ]
    );
}

#[test]
fn an_address_in_the_form_go_refuses_is_never_written() {
    if !has_openssl() {
        return;
    }
    let (pair, mut order) = (Pair::make(), order());
    // As nothing but the type allows it.
    order.sans.insert(San::Ip("::ffff:192.0.2.99".parse().expect("an address")));
    let tree = pair.tree();
    tree.write("server.crt", "the certificate before");
    let lock = tree.lock();
    let before = state::of(&tree.certs());
    let error = issue(&order, &tree.files(), &lock, now()).expect_err("Go would refuse it");
    assert_eq!(state::of(&tree.certs()), before);
    assert_eq!(
        chain(&error),
        "the new certificate did not pass its own verification, nothing was written: its names differ from the order: \
         IP ::ffff:192.0.2.99: an IPv4 address in IPv6 form, ::ffff:192.0.2.99 is missing, 192.0.2.99 is not ordered"
    );
}

#[test]
fn a_certificate_go_refuses_for_its_names_is_told_apart() {
    if !has_openssl() {
        return;
    }
    let pair = Pair::make();
    let host: &[u8] = b"\x82\x0akubernetes";
    let entry = |tag: u8, content: &[u8]| element(tag, &[content]);
    let mapped = [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, 1]].concat();
    let kinds = [
        ("an address", entry(0x87, &[192, 0, 2, 1])),
        ("an address of none", entry(0x87, &[])),
        ("an address of 5", entry(0x87, &[0; 5])),
        ("an address of 8", entry(0x87, &[0; 8])),
        ("an address of 17", entry(0x87, &[0; 17])),
        ("a mapped address", entry(0x87, &mapped)),
        ("UTF-8", entry(0x82, "m\u{fc}ller".as_bytes())),
        ("Latin-1", entry(0x82, b"m\xfcller")),
        ("NUL", entry(0x82, b"a\0b")),
        ("nothing", entry(0x82, b"")),
        ("a space", entry(0x82, b"a b")),
        ("300 characters", entry(0x82, &[b'a'; 300])),
        ("a dot at the end", entry(0x82, b"a.")),
        ("e-mail", entry(0x81, b"a@example.com")),
        ("e-mail in UTF-8", entry(0x81, "\u{fc}@example.com".as_bytes())),
        ("e-mail in Latin-1", entry(0x81, b"\xfc@example.com")),
        ("URI", entry(0x86, b"spiffe://example.com/a")),
        ("URI in UTF-8", entry(0x86, "https://m\u{fc}ller".as_bytes())),
        ("URI with a port", entry(0x86, b"https://example.com:8443/a%20b?c=d#e")),
        ("URI of an address", entry(0x86, b"https://[2001:db8::1]:1/")),
        ("URN", entry(0x86, b"urn:example:a:b")),
        ("URI that is none", entry(0x86, b"https://a b/%zz")),
        ("URI of a bad host", entry(0x86, b"https://a..b/")),
        ("URI without a scheme", entry(0x86, b"://")),
        ("a name of its own kind", entry(0xa0, &[6, 1, 0x55, 0xa0, 2, 5, 0])),
        ("a directory name", entry(0xa4, &[0x30, 0])),
        ("a registered number", entry(0x88, &[0x55, 4, 3])),
        ("an unknown tag", entry(0x89, b"x")),
        ("the same twice", host.to_vec()),
    ];
    let mut raw: Vec<(&str, Vec<u8>)> =
        kinds.into_iter().map(|(word, entry)| (word, element(0x30, &[host, &entry]))).collect();
    raw.push(("bytes behind", [element(0x30, &[host]), vec![5, 0]].concat()));
    raw.push(("a length too long", [&[0x30, 0x7f][..], host].concat()));
    raw.push(("another type", element(4, &[host])));
    let leaves: Vec<String> = raw.iter().map(|(_, names)| pair.forged(names)).collect();
    let Some(program) = go::program() else { return };
    let hosts = ["kubernetes".to_owned()];
    let questions: Vec<Value> = leaves.iter().map(|leaf| pair.question(leaf, &hosts)).collect();
    let mut faults = Vec::new();
    for (((word, _), leaf), verdict) in raw.iter().zip(&leaves).zip(go::judge(program, &questions)) {
        let der = ipguard::observe::pem::blocks(leaf.as_bytes()).remove(0).der.expect("it was just written");
        let told = match certificate::leaf(&der) {
            Ok(leaf) if leaf.refused_sans.is_empty() => None,
            Ok(leaf) => Some(leaf.refused_sans.join(", ")),
            Err(why) => Some(why),
        };
        let go = verdict["ours"]["server"].as_str().expect("a verdict");
        // Told without need is a reissue too many, not told is a server that does not start.
        if !go.is_empty() && told.is_none() {
            faults.push(format!("{word}: {go}"));
        }
        // Older versions of Go read this one.
        if go.is_empty() && told.is_some() && *word != "a mapped address" {
            faults.push(format!("{word}: {told:?}, and Go has nothing against it"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
