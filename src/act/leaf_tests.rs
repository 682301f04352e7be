//! Leaves for CAs of many kinds, judged by openssl where it is installed.

use super::*;
use std::time::Duration;

use rcgen::{DistinguishedName, DnType, DnValue, KeyPair};

use crate::act::test_tree::{Ca, Tree, now, order, order_for};
use crate::decide::plan::Subject;
use crate::facts::san::SanSet;

/// Builds the standard order with what is in the tree.
fn build_in(tree: &Tree, order: &IssueOrder) -> Result<Built, LeafError> {
    let files = tree.files();
    let key = PrivateKey::load(&files.paths.key).ok();
    build(order, &Authority::load(&files.paths)?, key.as_ref(), now())
}

#[test]
fn the_leaf_is_what_was_ordered() {
    let tree = Tree::with(&Ca::root("10.152.183.1", |_| {}));
    let order = order();
    let built = build_in(&tree, &order).expect("all is well");
    let leaf = certificate::leaf(&built.der).expect("it was verified");
    assert_eq!(leaf.sans, order.sans);
    assert_eq!((leaf.not_before, leaf.not_after), (order.not_before, order.not_after));
    assert_eq!(leaf.fingerprint, built.fingerprint);
    assert!(built.key_pem.is_none());
    assert_eq!(built.pem.matches("BEGIN CERTIFICATE").count(), 1);
}

#[test]
fn serials_are_random_positive_and_sixteen_bytes() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let serials: std::collections::BTreeSet<Vec<u8>> = (0..50)
        .map(|_| {
            let built = build_in(&tree, &order()).expect("all is well");
            certificate::parse(&built.der).expect("it was verified").raw_serial().to_vec()
        })
        .collect();
    assert_eq!(serials.len(), 50);
    assert!(serials.iter().all(|serial| serial.len() == 16 && serial[0] < 0x80), "{serials:?}");
}

#[test]
fn openssl_accepts_the_leaf_of_every_kind_of_ca_key_and_leaf_key() {
    let tree = Tree::new();
    let keys = [
        ("genrsa -out KEY 2048", "RSA PKCS#8"),
        ("genrsa -traditional -out KEY 4096", "RSA PKCS#1"),
        ("ecparam -name prime256v1 -genkey -out KEY", "P-256 SEC1"),
        ("ecparam -name secp384r1 -genkey -noout -out KEY", "P-384 SEC1"),
        ("genpkey -algorithm ed25519 -out KEY", "Ed25519"),
    ];
    for (make, kind) in keys {
        for name in ["ca.key", "server.key"] {
            if tree.openssl(&make.replace("KEY", name)).is_none() {
                return;
            }
        }
        tree.openssl("req -x509 -new -sha256 -nodes -days 3650 -key ca.key -subj /CN=10.152.183.1 -out ca.crt");
        let built = build_in(&tree, &order_for(&tree)).expect(kind);
        tree.write("server.crt", &built.pem);
        // Without -x509_strict, which refuses MicroK8s' own CA for having no keyUsage.
        for purpose in ["sslserver -verify_ip 2001:db8::10", "sslserver -verify_hostname kubernetes", "sslclient"] {
            let verify = format!("verify -CAfile ca.crt -purpose {purpose} server.crt");
            assert_eq!(tree.openssl(&verify).as_deref(), Some("server.crt: OK\n"), "{kind}");
        }
        let modulus = tree.openssl("x509 -in server.crt -noout -pubkey").expect("it ran before");
        assert_eq!(Some(modulus), tree.openssl("pkey -in server.key -pubout"), "{kind}");
    }
}

/// What `openssl x509` prints of a certificate, by heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    text.split_once(heading)
        .map_or("", |(_, rest)| rest.split_once('\n').map_or("", |(_, rest)| rest))
        .lines()
        .next()
        .unwrap_or("")
        .trim()
}

#[test]
fn subject_and_extensions_are_those_of_the_request_microk8s_signs() {
    let tree = Tree::new();
    let Some(_) = tree.openssl("genrsa -out ca.key 2048") else { return };
    tree.openssl("genrsa -out server.key 2048");
    tree.openssl("req -x509 -new -sha256 -nodes -days 3650 -key ca.key -subj /CN=10.152.183.1 -out ca.crt");
    let order = order_for(&tree);
    let mut request = "[ req ]\nprompt = no\ndistinguished_name = dn\n[ dn ]\nC = GB\nST = Canonical\nL = Canonical\n\
                       O = Canonical\nOU = Canonical\nCN = 127.0.0.1\n[ v3_ext ]\nauthorityKeyIdentifier=keyid\n\
                       basicConstraints=CA:FALSE\nkeyUsage=keyEncipherment,dataEncipherment,digitalSignature\n\
                       extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName=@names\n\
                       subjectKeyIdentifier=hash\n[ names ]\n"
        .to_owned();
    for (number, san) in order.sans.iter().enumerate() {
        let kind = if san.as_ip().is_some() { "IP" } else { "DNS" };
        request.push_str(&format!("{kind}.{number} = {san}\n"));
    }
    tree.write("csr.conf", request);
    tree.openssl("req -new -utf8 -key server.key -config csr.conf -out server.csr");
    tree.openssl("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extensions v3_ext -extfile csr.conf -sha256 -out theirs.crt");
    let built = build_in(&tree, &order).expect("all is well");
    tree.write("ours.crt", &built.pem);

    let print = |name: &str| tree.openssl(&format!("x509 -in {name} -noout -text")).expect("it ran before");
    let (ours, theirs) = (print("ours.crt"), print("theirs.crt"));
    for heading in ["Subject Key Identifier", "Authority Key Identifier", "Basic Constraints", "Extended Key Usage"] {
        assert!(!section(&theirs, heading).is_empty(), "{heading} is not in {theirs}");
        assert_eq!(section(&ours, heading), section(&theirs, heading), "{heading}");
    }
    assert_eq!(section(&ours, "X509v3 Key Usage"), section(&theirs, "X509v3 Key Usage"));
    let theirs = tree.read("theirs.crt");
    let theirs = crate::observe::pem::blocks(theirs.as_bytes()).remove(0).der.expect("openssl wrote it");
    let (ours, theirs) = (certificate::leaf(&built.der), certificate::leaf(&theirs));
    let (ours, theirs) = (ours.expect("it was verified"), theirs.expect("openssl wrote it"));
    assert_eq!((ours.subject, ours.issuer, ours.sans), (theirs.subject, theirs.issuer, theirs.sans));
}

#[test]
fn the_leaf_points_to_the_key_identifier_of_the_ca_and_to_nothing_when_it_has_none() {
    let tree = Tree::new();
    let Some(_) = tree.openssl("ecparam -name prime256v1 -genkey -noout -out ca.key") else { return };
    tree.write("server.key", KeyPair::generate().expect("P-256").serialize_pem());
    for (identifier, expected) in [("none", None), ("0102030405", Some("01:02:03:04:05"))] {
        let config = format!(
            "[req]\nprompt=no\ndistinguished_name=dn\nx509_extensions=ext\n[dn]\nCN=ca\n[ext]\nbasicConstraints=CA:TRUE\nsubjectKeyIdentifier={identifier}\n"
        );
        tree.write("ca.conf", config);
        tree.openssl("req -x509 -new -nodes -days 3650 -key ca.key -config ca.conf -out ca.crt");
        tree.write("server.crt", build_in(&tree, &order_for(&tree)).expect("all is well").pem);
        let text = tree.openssl("x509 -in server.crt -noout -text").expect("it ran before");
        assert_eq!(text.contains("Authority Key Identifier"), expected.is_some(), "{text}");
        assert!(section(&text, "Authority Key Identifier").ends_with(expected.unwrap_or_default()), "{text}");
        assert_eq!(tree.openssl("verify -CAfile ca.crt server.crt").as_deref(), Some("server.crt: OK\n"));
    }
}

#[test]
fn an_intermediate_sends_its_chain_without_the_root() {
    let root = Ca::root("root", |_| {});
    let upper = root.below("upper");
    let lower = upper.below("lower");
    let tree = Tree::with(&lower);
    for bundle in [[&root, &lower, &upper], [&lower, &upper, &root]] {
        tree.write("ca.crt", bundle.map(|ca| ca.pem.as_str()).concat());
        let built = build_in(&tree, &order()).expect("all is well");
        let ders: Vec<Vec<u8>> = crate::observe::pem::blocks(built.pem.as_bytes())
            .into_iter()
            .map(|block| block.der.expect("it was just written").to_vec())
            .collect();
        assert_eq!(ders, [built.der, lower.der.clone(), upper.der.clone()]);
    }
    tree.write("root.crt", &root.pem);
    tree.write("server.crt", build_in(&tree, &order()).expect("all is well").pem);
    tree.openssl("verify -CAfile root.crt -untrusted server.crt server.crt");

    // Without the root in the bundle, and with only the one that signs.
    tree.write("ca.crt", lower.pem);
    assert_eq!(build_in(&tree, &order()).expect("all is well").pem.matches("BEGIN").count(), 2);
}

#[test]
fn two_cas_that_certify_each_other_end() {
    let (one, two) = (Ca::root("one", |_| {}), Ca::root("two", |_| {}));
    let cross = |subject: &Ca, by: &Ca| {
        let issuer = Issuer::from_params(&by.params, &by.key);
        subject.params.signed_by(&subject.key, &issuer).expect("it can be built").pem()
    };
    let tree = Tree::with(&one);
    tree.write("ca.crt", [cross(&one, &two), cross(&two, &one)].concat());
    assert_eq!(build_in(&tree, &order()).expect("it ends").pem.matches("BEGIN").count(), 3);
}

#[test]
fn a_new_key_is_made_only_when_ordered() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let built = build_in(&tree, &IssueOrder { new_key: true, ..order() }).expect("all is well");
    let key = PrivateKey::from_pem(built.key_pem.expect("it was ordered").as_bytes()).expect("it is usable");
    assert_eq!(certificate::leaf(&built.der).expect("it was verified").public_key, *key.public());
    std::fs::remove_file(tree.path("server.key")).expect("it is ours");
    assert!(matches!(build_in(&tree, &order()), Err(LeafError::NoKey)));
}

#[test]
fn a_subject_is_kept_byte_for_byte_or_refused() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let subject = |change: &dyn Fn(&mut DistinguishedName)| {
        let before = Ca::root("before", |params| change(&mut params.distinguished_name));
        certificate::parse(&before.der).expect("it was just built").subject().as_raw().to_vec()
    };
    let plain = subject(&|name| {
        name.push(DnType::OrganizationName, DnValue::PrintableString("x".try_into().expect("printable")));
        name.push(DnType::CustomDnType(vec![2, 5, 4, 5]), "serial");
    });
    let built = build_in(&tree, &IssueOrder { subject: Subject::Keep(plain.clone()), ..order() }).expect("it can be");
    assert_eq!(certificate::leaf(&built.der).expect("it was verified").subject, plain);

    let attribute = |value: u8| [0x31, 10, 0x30, 8, 6, 3, 0x55, 4, 11, 0x0c, 1, value];
    let repeated = [&[0x30, 24][..], &attribute(b'a'), &attribute(b'b')].concat();
    let order = IssueOrder { subject: Subject::Keep(repeated), ..order() };
    assert!(matches!(build_in(&tree, &order), Err(LeafError::Subject(NameError::Repeated(kind))) if kind == "OU"));
    // A legal name in a length encoding that DER does not allow would be written differently.
    let padded = [&[0x30, 0x81, 12][..], &attribute(b'a')].concat();
    let order = IssueOrder { subject: Subject::Keep(padded), ..order };
    assert!(matches!(build_in(&tree, &order), Err(LeafError::SelfCheck(Flaw::Subject) | LeafError::Subject(_))));
}

#[test]
fn a_ca_nobody_would_accept_does_not_sign() {
    let refused = |ca: &Ca| build_in(&Tree::with(ca), &order()).expect_err("it must not sign");
    let expired = Ca::root("ca", |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1));
    assert!(matches!(refused(&expired), LeafError::AuthorityNotValid { .. }));
    let future = Ca::root("ca", |params| params.not_before = rcgen::date_time_ymd(2099, 1, 1));
    assert!(matches!(refused(&future), LeafError::AuthorityNotValid { .. }));
    let leaf = Ca::root("ca", |params| params.is_ca = IsCa::ExplicitNoCa);
    assert!(matches!(refused(&leaf), LeafError::CannotSign(_)));
    let bare = Ca::root("ca", |params| params.is_ca = IsCa::NoCa);
    assert!(matches!(refused(&bare), LeafError::CannotSign(_)));
    let usage = Ca::root("ca", |params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
    assert!(matches!(refused(&usage), LeafError::CannotSign(_)));
    let constrained = Ca::root("ca", |params| {
        let only = rcgen::GeneralSubtree::DnsName("example.com".to_owned());
        params.name_constraints =
            Some(rcgen::NameConstraints { permitted_subtrees: vec![only], excluded_subtrees: Vec::new() });
    });
    assert!(matches!(refused(&constrained), LeafError::SelfCheck(Flaw::Chain { .. })));
}

#[test]
fn dates_beyond_the_ca_are_refused() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let far = IssueOrder { not_after: Timestamp::from_seconds(4_102_444_801), ..order() };
    assert!(matches!(build_in(&tree, &far), Err(LeafError::BeyondAuthority)));
    let edge = IssueOrder { not_after: Timestamp::from_seconds(4_102_444_800), ..order() };
    assert!(build_in(&tree, &edge).is_ok(), "exactly as long as the CA");
    let early = IssueOrder { not_before: Timestamp::from_seconds(1_577_836_799), ..order() };
    assert!(matches!(build_in(&tree, &early), Err(LeafError::BeyondAuthority)));
    let over = IssueOrder { not_after: now() - Duration::from_secs(1), ..order() };
    assert!(matches!(build_in(&tree, &over), Err(LeafError::SelfCheck(Flaw::Chain { .. }))));
}

#[test]
fn a_foreign_ca_key_is_refused() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    tree.write("ca.key", KeyPair::generate().expect("P-256").serialize_pem());
    assert!(matches!(build_in(&tree, &order()), Err(LeafError::ForeignAuthorityKey)));
}

#[test]
fn the_self_check_sees_every_difference_from_the_order() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let (order, files) = (order(), tree.files());
    let authority = Authority::load(&files.paths).expect("it was just written");
    let key = PrivateKey::load(&files.paths.key).expect("it was just written");
    let built = build(&order, &authority, Some(&key), now()).expect("all is well");
    let flaw = |order: &IssueOrder| self_check::check(&built.der, order, &authority, key.public(), now());
    assert!(flaw(&order).is_ok());

    let mut more = order.clone();
    more.sans.insert("192.0.2.11".parse().expect("an address"));
    assert!(matches!(flaw(&more), Err(Flaw::Names(text)) if text == "192.0.2.11 is missing"));
    let fewer = IssueOrder { sans: SanSet::new(), ..order.clone() };
    assert!(matches!(flaw(&fewer), Err(Flaw::Names(_))));
    let later = IssueOrder { not_after: order.not_after + Duration::from_secs(1), ..order.clone() };
    assert!(matches!(flaw(&later), Err(Flaw::Dates { .. })));
    let other = PrivateKey::generate().expect("random bytes");
    let mismatch = self_check::check(&built.der, &order, &authority, other.public(), now());
    assert!(matches!(mismatch, Err(Flaw::Key)));

    // One bit of the signature.
    let mut forged = built.der.clone();
    *forged.last_mut().expect("it is long") ^= 1;
    let forged = self_check::check(&forged, &order, &authority, key.public(), now());
    assert!(matches!(forged, Err(Flaw::Chain { .. } | Flaw::Unreadable(_))), "{forged:?}");

    let stranger = Tree::with(&Ca::root("ca", |_| {}));
    let stranger = Authority::load(&stranger.files().paths).expect("it was just written");
    let foreign = self_check::check(&built.der, &order, &stranger, key.public(), now());
    assert!(matches!(foreign, Err(Flaw::Chain { .. })), "the same name with another key");
}
