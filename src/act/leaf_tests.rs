//! Leaves for CAs of many kinds, judged by openssl where it is installed.

use super::*;
use std::time::Duration;

use rcgen::{DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};

use crate::act::test_tree::{Ca, Tree, now, order, order_for};
use crate::config::AuthorityKeyId;
use crate::decide::plan::Subject;
use crate::facts::certificate::Purpose;
use crate::facts::san::SanSet;
use crate::observe::private_key::Owner;

/// Builds the standard order with what is in the tree.
fn build_in(tree: &Tree, order: &IssueOrder) -> Result<Built, LeafError> {
    let files = tree.files();
    let key = PrivateKey::load(&files.paths.key, &Owner::Server(None)).ok();
    build(order, &Authority::load(&files.paths, order.purpose, now())?, key.as_ref(), now())
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

/// MicroK8s' certs/csr.conf.template (github.com/canonical/microk8s) as far as it decides the certificate.
const REQUEST: &str = "[ req ]
prompt = no
distinguished_name = dn

[ dn ]
SUBJECT
[ alt_names ]
NAMES
[ v3_ext ]
authorityKeyIdentifier=POINTER
basicConstraints=CA:FALSE
keyUsage=keyEncipherment,dataEncipherment,digitalSignature
extendedKeyUsage=serverAuth,clientAuth
subjectAltName=@alt_names
";

/// What OpenSSL makes of the request, by the commands of MicroK8s.
fn theirs(tree: &Tree, order: &IssueOrder, pointer: &str) -> Vec<u8> {
    let Subject::Attributes(attributes) = &order.subject else { panic!("openssl reads attributes") };
    let lines = |lines: Vec<String>| lines.join("\n");
    let subject = attributes.iter().enumerate().map(|(number, (key, value))| format!("{number}.{key} = {value}"));
    let names = order.sans.iter().enumerate().map(|(number, san)| {
        let kind = if san.as_ip().is_some() { "IP" } else { "DNS" };
        format!("{kind}.{number} = {san}")
    });
    let request = REQUEST
        .replace("SUBJECT", &lines(subject.collect()))
        .replace("NAMES", &lines(names.collect()))
        .replace("POINTER", pointer);
    tree.write("csr.conf", request);
    tree.openssl("req -new -utf8 -sha256 -key server.key -config csr.conf -out server.csr");
    tree.openssl("x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extensions v3_ext -extfile csr.conf -sha256 -out theirs.crt");
    crate::observe::pem::blocks(tree.read("theirs.crt").as_bytes()).remove(0).der.expect("openssl wrote it").to_vec()
}

#[test]
fn subject_and_extensions_are_byte_for_byte_those_of_the_request_microk8s_signs() {
    let tree = Tree::new();
    let Some(_) = tree.openssl("genrsa -out ca.key 2048") else { return };
    tree.openssl("genrsa -out server.key 2048");
    tree.openssl("req -x509 -new -sha256 -nodes -days 3650 -key ca.key -subj /CN=10.152.183.1 -out ca.crt");
    let pointers = [("keyid", AuthorityKeyId::KeyId), ("keyid,issuer:always", AuthorityKeyId::KeyIdIssuerSerial)];
    for (pointer, authority_key_id) in pointers {
        let order = IssueOrder { authority_key_id, ..order_for(&tree) };
        let theirs = theirs(&tree, &order, pointer);
        let ours = build_in(&tree, &order).expect("all is well").der;
        let [theirs, ours] = [&theirs, &ours].map(|der| certificate::parse(der).expect("it is a certificate"));
        assert_eq!(ours.subject().as_raw(), theirs.subject().as_raw());
        assert_eq!(ours.issuer().as_raw(), theirs.issuer().as_raw());
        assert_eq!(ours.public_key().raw, theirs.public_key().raw);
        assert_eq!(ours.signature_algorithm, theirs.signature_algorithm);
        let extensions = |certificate: &X509Certificate<'_>| -> Vec<(String, bool, Vec<u8>)> {
            let extensions = certificate.extensions().iter();
            extensions.map(|e| (e.oid.to_id_string(), e.critical, e.value.to_vec())).collect()
        };
        // Newer versions of OpenSSL may have another order; here everything but the order must be the same.
        let [mut ours, mut theirs] = [extensions(&ours), extensions(&theirs)];
        ours.sort();
        theirs.sort();
        assert_eq!(ours.len(), 6);
        assert_eq!(ours, theirs, "{pointer}");
    }
}

#[test]
fn a_subject_is_encoded_as_openssl_does_it() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let subjects: [&[(&str, &str)]; 7] = [
        &[
            ("C", "GB"),
            ("ST", "Canonical"),
            ("L", "Canonical"),
            ("O", "Canonical"),
            ("OU", "Canonical"),
            ("CN", "127.0.0.1"),
        ],
        &[("DC", "com"), ("DC", "example"), ("OU", "a"), ("OU", "b"), ("CN", "one"), ("CN", "two")],
        &[("CN", "system:node:b\u{fc}ro"), ("O", "system:nodes"), ("+OU", "b"), ("+L", "a"), ("street", "\u{4e2d} 1")],
        &[("commonName", "x"), ("countryName", "DE"), ("emailAddress", "a@example.com"), ("serialNumber", "1+2/3")],
        &[("SN", "s"), ("GN", "g"), ("name", "n"), ("initials", "i"), ("pseudonym", "p"), ("generationQualifier", "q")],
        &[("title", "t"), ("description", "d"), ("businessCategory", "b"), ("postalCode", "1"), ("dnQualifier", "q")],
        &[("organizationIdentifier", "o"), ("UID", "u"), ("unstructuredName", "\u{e9}"), ("CN", "a_b*c@d & e")],
    ];
    for subject in subjects {
        let attributes = subject.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let order = IssueOrder { subject: Subject::Attributes(attributes), ..order() };
        if tree.openssl("version").is_none() {
            return;
        }
        let theirs = certificate::leaf(&theirs(&tree, &order, "keyid")).expect("it is a certificate");
        let ours = certificate::leaf(&build_in(&tree, &order).expect("all is well").der).expect("it was verified");
        assert_eq!(ours.subject, theirs.subject, "{subject:?}");
    }
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
    let key = PrivateKey::from_pem(built.key_pem.expect("it was ordered").as_bytes(), &Owner::Server(None))
        .expect("it is usable");
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
    let built =
        build_in(&tree, &IssueOrder { subject: Subject::Keep(repeated.clone()), ..order() }).expect("it can be");
    assert_eq!(certificate::leaf(&built.der).expect("it was verified").subject, repeated);
    // A name in a length encoding that DER does not allow: Go could not read the certificate.
    let padded = [&[0x30, 0x81, 12][..], &attribute(b'a')].concat();
    let order = IssueOrder { subject: Subject::Keep(padded), ..order() };
    assert!(matches!(build_in(&tree, &order), Err(LeafError::Subject(NameError::Malformed))));
}

#[test]
fn a_ca_nobody_would_accept_does_not_sign() {
    let refused = |ca: &Ca| build_in(&Tree::with(ca), &order()).expect_err("it must not sign");
    let expired = Ca::root("ca", |params| params.not_after = rcgen::date_time_ymd(2021, 1, 1));
    assert!(matches!(refused(&expired), LeafError::AuthorityNotValid { .. }));
    let future = Ca::root("ca", |params| params.not_before = rcgen::date_time_ymd(2099, 1, 1));
    assert!(matches!(refused(&future), LeafError::AuthorityNotValid { .. }));
    let leaf = Ca::root("ca", |params| params.is_ca = IsCa::ExplicitNoCa);
    assert!(matches!(refused(&leaf), LeafError::CannotSign { .. }));
    let bare = Ca::root("ca", |params| params.is_ca = IsCa::NoCa);
    assert!(matches!(refused(&bare), LeafError::CannotSign { .. }));
    let usage = Ca::root("ca", |params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
    assert!(matches!(refused(&usage), LeafError::CannotSign { .. }));
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
    assert!(matches!(build_in(&tree, &over), Err(LeafError::NotNow { .. })));
}

#[test]
fn a_foreign_ca_key_is_refused() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    tree.write("ca.key", KeyPair::generate().expect("P-256").serialize_pem());
    assert!(matches!(build_in(&tree, &order()), Err(LeafError::ForeignAuthorityKey { .. })));
}

#[test]
fn the_self_check_sees_every_difference_from_the_order() {
    let tree = Tree::with(&Ca::root("ca", |_| {}));
    let (order, files) = (order(), tree.files());
    let authority = Authority::load(&files.paths, Purpose::Server, now()).expect("it was just written");
    let key = PrivateKey::load(&files.paths.key, &Owner::Server(None)).expect("it was just written");
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
    let stranger = Authority::load(&stranger.files().paths, Purpose::Server, now()).expect("it was just written");
    let foreign = self_check::check(&built.der, &order, &stranger, key.public(), now());
    assert!(matches!(foreign, Err(Flaw::Chain { .. })), "the same name with another key");
}

/// The CA that signs may be for one end alone, and so may one above it.
#[test]
fn a_ca_for_one_end_alone_signs_for_that_end() {
    use ExtendedKeyUsagePurpose::{ClientAuth, EmailProtection, ServerAuth};
    for (usages, good_for) in [
        (vec![ServerAuth, ClientAuth], [true, true]),
        (vec![ServerAuth], [true, false]),
        (vec![ClientAuth], [false, true]),
        (vec![EmailProtection], [false, false]),
    ] {
        let limited = |params: &mut CertificateParams| params.extended_key_usages.clone_from(&usages);
        let signing = Tree::with(&Ca::root("ca", limited));
        let root = Ca::root("root", |_| {});
        let upper = root.below_as("upper", limited);
        let lower = upper.below("lower");
        let above = Tree::with(&lower);
        above.write("ca.crt", [lower.pem, upper.pem, root.pem].concat());
        for (purpose, good) in [Purpose::Server, Purpose::Client].into_iter().zip(good_for) {
            let order = IssueOrder { purpose, ..order() };
            let (signing, above) = (build_in(&signing, &order), build_in(&above, &order));
            assert_eq!((signing.is_ok(), above.is_ok()), (good, good), "{purpose} by a CA for {usages:?}");
            assert!(
                good || matches!(signing, Err(LeafError::CannotSign { why, .. }) if why.contains(&purpose.to_string()))
            );
            assert!(good || matches!(above, Err(LeafError::SelfCheck(Flaw::Chain { purpose: p, .. })) if p == purpose));
        }
    }
}

#[test]
fn a_leaf_for_one_end_alone_is_accepted_by_the_other() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let ca = Ca::root("ca", |_| {});
    let tree = Tree::with(&ca);
    for (usages, [server, client]) in [
        (vec![], ["", ""]),
        (vec![ServerAuth, ClientAuth], ["", ""]),
        (vec![ServerAuth], ["", "a server would refuse it"]),
        (vec![ClientAuth], ["a client would refuse it", ""]),
    ] {
        let mut params = CertificateParams::default();
        params.extended_key_usages.clone_from(&usages);
        let key = KeyPair::generate().expect("P-256");
        let leaf = params.signed_by(&key, &Issuer::from_params(&ca.params, &ca.key)).expect("it can be built");
        tree.write("server.crt", leaf.pem());
        for (purpose, expected) in [(Purpose::Server, server), (Purpose::Client, client)] {
            let said = self_check::by_peer(&tree.files().paths, purpose, now()).err().unwrap_or_default();
            assert!(said.starts_with(expected) && said.is_empty() == expected.is_empty(), "{usages:?}: {said}");
        }
    }
}
