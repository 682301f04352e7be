//! CA x key x subject: every leaf that ipguard makes, judged by OpenSSL, rustls-webpki and Go.
//!
//! The CA is judged first: OpenSSL and Go make a leaf of their own with it. Whoever accepts one of those must accept
//! ours, and a CA that OpenSSL and Go accept must not be refused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipguard::act::distinguished_name;
use ipguard::act::issue::issue;
use ipguard::decide::plan::IssueOrder;
use ipguard::observe::{certificate, pem};
use rustls_pki_types::{CertificateDer, UnixTime};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;

use crate::cases::{self, Case, Keys};
use crate::tree::{SANS, Tree, chain, has_openssl, now, order};
use crate::{forge, go};

/// Names that clients ask for: those of the orders.
const HOSTS: [&str; 4] = ["kubernetes", "any.wild.example", "192.0.2.10", "2001:db8::10"];

/// What one verifier says of one leaf; empty is acceptance.
type Verdicts = BTreeMap<&'static str, String>;

/// What became of one case.
struct Judged {
    /// Why ipguard made no leaf.
    refused: Option<String>,
    /// OpenSSL's leaf, or ours.
    reference: Verdicts,
    ours: Verdicts,
    /// For Go.
    question: Value,
}

#[test]
fn whoever_accepts_the_ca_accepts_the_leaf() {
    if !has_openssl() {
        return;
    }
    let keys = Keys::make();
    let all = cases::all(&keys);
    let judged = everywhere(&all);
    let go = go::program();
    let questions: Vec<Value> = judged.iter().map(|judged| judged.question.clone()).collect();
    let answers = go.map(|program| go::judge(program, &questions));

    let mut faults = Vec::new();
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let (mut both, mut lines) = (0, Vec::new());
    for (index, (case, judged)) in all.iter().zip(judged).enumerate() {
        let (mut reference, mut ours) = (judged.reference, judged.ours);
        if let Some(answer) = answers.as_ref().map(|answers| &answers[index]) {
            for (verifier, usage) in [("Go as server", "server"), ("Go as client", "client")] {
                let text = |leaf: &str| answer[leaf][usage].as_str().expect("a verdict").to_owned();
                // Go has its own leaf where OpenSSL has none.
                let theirs = if text("made").is_empty() { String::new() } else { text("reference") };
                reference.insert(verifier, theirs);
                ours.insert(verifier, text("ours"));
            }
        }
        let accepted = |verifier: &str| reference.get(verifier).is_none_or(String::is_empty);
        let usable = accepted("OpenSSL as server") && accepted("Go as server");
        both += usize::from(usable);
        if !usable {
            let whom = reference.iter().filter(|(who, why)| who.ends_with("server") && !why.is_empty());
            let whom: Vec<&str> = whom.map(|(who, _)| *who).collect();
            lines.push(format!("{}: not for {}", case.name, whom.join(", ")));
        }
        if let Some(why) = judged.refused {
            if usable {
                faults.push(format!("{}: refused: {why}", case.name));
            }
            lines.push(format!("{}: refused: {why}", case.name));
            continue;
        }
        for (verifier, theirs) in &reference {
            let ours = &ours[verifier];
            let [of_them, of_us] = counts.entry((*verifier).to_owned()).or_default();
            *of_them += usize::from(theirs.is_empty());
            *of_us += usize::from(ours.is_empty());
            if theirs.is_empty() && !ours.is_empty() {
                faults.push(format!("{}: {verifier}: {ours}", case.name));
            }
        }
    }
    let counts: Vec<String> =
        counts.iter().map(|(who, [theirs, ours])| format!("{who} {ours} ({theirs} of theirs)")).collect();
    eprintln!(
        "matrix: {} cases, {both} with a CA and a key that all accept; accepted: {}",
        all.len(),
        counts.join(", ")
    );
    lines.iter().for_each(|line| eprintln!("  {line}"));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(all.len() >= 60 && both >= 60, "{both} of {} cases test anything", all.len());
}

/// All cases, on as many threads as there are processors.
fn everywhere(all: &[Case]) -> Vec<Judged> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(case) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((case.name.clone(), judge(case)));
        }
        done
    };
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    let mut done: BTreeMap<String, Judged> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    assert_eq!(done.len(), all.len(), "two cases have one name");
    all.iter().map(|case| done.remove(&case.name).expect("it was judged")).collect()
}

fn judge(case: &Case) -> Judged {
    let tree = Tree::new();
    let files = [
        ("ca.crt", &case.authority),
        ("ca.key", &case.authority_key),
        ("server.key", &case.leaf_key_file),
        ("signer.crt", &case.signer),
        ("signer.key", &case.signer_key.pem),
        ("trust.crt", &case.trust),
    ];
    files.iter().for_each(|(name, content)| tree.write(name, content));
    let order = IssueOrder { subject: case.subject.clone(), authority_key_id: case.pointer, ..order() };
    let order = IssueOrder { not_before: if case.of_now { now() } else { order.not_before }, ..order };
    let issued = issue(&order, &tree.files(), &tree.lock(), now());
    let refused = issued.err().map(|error| chain(&error));

    let reference = reference(case, &tree, &order);
    let read = |name: &str| std::fs::read_to_string(tree.path(name)).unwrap_or_default();
    let ours = if refused.is_none() { read("server.crt") } else { String::new() };
    if refused.is_none() {
        told_as_ordered(case, &ours);
    }
    let leaf = |certificate: &str, key: &str| json!({ "certificate": certificate, "key": key });
    Judged {
        reference: verdicts(&tree, "reference.crt", &reference, case),
        ours: verdicts(&tree, "server.crt", &ours, case),
        question: json!({
            "trust": case.trust,
            "signer": case.signer,
            "signer_key": case.signer_key.pem,
            "chain": case.chain,
            "subject": distinguished_name::encode(&case.subject).expect("it can be written"),
            "names": SANS,
            "public": case.leaf_key.spki(),
            "reference": leaf(&reference, &case.leaf_key.pem),
            "ours": leaf(&ours, &case.leaf_key_file),
            "hosts": HOSTS,
        }),
        refused,
    }
}

/// The leaf that OpenSSL makes with the same CA, key, subject and names, and the chain that belongs to it; empty where it
/// makes none.
fn reference(case: &Case, tree: &Tree, order: &IssueOrder) -> String {
    let names: Vec<String> = SANS
        .iter()
        .map(|san| format!("{}:{san}", if san.parse::<std::net::IpAddr>().is_ok() { "IP" } else { "DNS" }))
        .collect();
    let subject = distinguished_name::encode(&order.subject).expect("it can be written");
    let critical = if subject.len() == 2 { "critical," } else { "" };
    tree.write("request", forge::request(&subject, &case.leaf_key.key));
    // Some versions of OpenSSL refuse to point to the key of a CA that does not name it.
    let made = ["authorityKeyIdentifier=keyid\n", ""].into_iter().any(|pointer| {
        let extensions = format!(
            "{pointer}basicConstraints=CA:FALSE\nkeyUsage=keyEncipherment,dataEncipherment,digitalSignature\n\
             extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={critical}{}\n",
            names.join(",")
        );
        tree.write("extensions", extensions);
        let sign = "x509 -req -in request -CA signer.crt -CAkey signer.key -set_serial 0x4711 -days 30 -extfile extensions -sha256 -out reference.crt";
        tree.openssl(sign).0
    });
    if !made {
        return String::new();
    }
    let mut text = std::fs::read_to_string(tree.path("reference.crt")).expect("it was just written");
    text.push_str(&case.chain);
    tree.write("reference.crt", &text);
    text
}

/// What the tests of single parts show, once more for every case.
fn told_as_ordered(case: &Case, pem: &str) {
    let name = &case.name;
    let der = ders(pem).remove(0);
    let leaf = certificate::leaf(&der).expect(name);
    let (_, signer) = x509_parser::pem::parse_x509_pem(case.signer.as_bytes()).expect(name);
    let (_, signer) = x509_parser::certificate::X509Certificate::from_der(&signer.contents).expect(name);
    assert_eq!(leaf.issuer, signer.subject().as_raw(), "{name}");
    assert_eq!(leaf.sans, order().sans, "{name}");
    assert_eq!(leaf.public_key.0, case.leaf_key.spki(), "{name}");
    assert_eq!(Ok(leaf.subject), distinguished_name::encode(&case.subject), "{name}");
}

fn ders(pem: &str) -> Vec<Vec<u8>> {
    pem::blocks(pem.as_bytes()).into_iter().map(|block| block.der.expect("it was just written").to_vec()).collect()
}

fn verdicts(tree: &Tree, file: &str, pem: &str, case: &Case) -> Verdicts {
    let none = || "there is none".to_owned();
    let openssl = |options: &str| {
        if pem.is_empty() {
            return none();
        }
        let (success, text) = tree.openssl(&format!("verify -CAfile trust.crt -untrusted {file} {options} {file}"));
        if success { String::new() } else { text }
    };
    let server = "-purpose sslserver -verify_hostname kubernetes -verify_ip 2001:db8::10";
    let mut verdicts = Verdicts::new();
    verdicts.insert("OpenSSL as server", openssl(server));
    verdicts.insert("OpenSSL as client", openssl("-purpose sslclient"));
    verdicts.insert("OpenSSL strict", openssl(&format!("-x509_strict {server}")));
    let rustls = if pem.is_empty() { none() } else { webpki_accepts(pem, &case.trust).err().unwrap_or_default() };
    verdicts.insert("webpki", rustls);
    verdicts
}

fn webpki_accepts(pem: &str, trust: &str) -> Result<(), String> {
    let (chain, roots) = (ders(pem), ders(trust));
    let chain: Vec<CertificateDer<'_>> = chain.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let roots: Vec<CertificateDer<'_>> = roots.iter().map(|der| CertificateDer::from(der.as_slice())).collect();
    let anchors: Result<Vec<_>, _> = roots.iter().map(|root| webpki::anchor_from_trusted_cert(root)).collect();
    let anchors = anchors.map_err(|error| format!("the root: {error}"))?;
    let leaf = webpki::EndEntityCert::try_from(&chain[0]).map_err(|error| error.to_string())?;
    let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now().seconds().unsigned_abs()));
    let (algorithms, usage) = (webpki::ALL_VERIFICATION_ALGS, webpki::KeyUsage::server_auth());
    leaf.verify_for_usage(algorithms, &anchors, &chain[1..], time, usage, None, None)
        .map_err(|error| error.to_string())?;
    HOSTS.iter().try_for_each(|host| {
        let host = (*host).try_into().expect("a name");
        leaf.verify_is_valid_for_subject_name(&host).map_err(|error| error.to_string())
    })
}
