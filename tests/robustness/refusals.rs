//! Trees in which no certificate is made: the real binary says exactly why, as a one-shot and as a daemon, and changes
//! nothing of the tree - no byte, inode, owner, mode or time. Only its own state folder is its own.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::Value;

use crate::clock::{Clock, Kernel, no_compiler};
use crate::host::{Host, SOON, Setup, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::authority::Authority;
use crate::stage::timeline::Timeline;
use crate::state;

pub(crate) const CASES: &[Case] = &[Case { name: "refusals::nothing-is-touched", play, patience: 300 }];

/// An address of the node's own that the certificate lacks: there is a reason in every tree.
const ADDED: &str = "198.51.100.7";

/// What is wrong with the tree, and the one hold that must be told: its code, and its words with the tree's own path left
/// out and TIME for a time.
struct Row {
    title: &'static str,
    damage: fn(&Host) -> Result<()>,
    code: &'static str,
    words: &'static str,
}

const ROWS: &[Row] = &[
    Row {
        title: "no CA",
        damage: |host| gone(host, "ca.crt"),
        code: "ca-missing",
        words: "CERTS/ca.crt: no such file; a CA is never made here",
    },
    Row {
        title: "an empty CA",
        damage: |host| host.tree.write("ca.crt", ""),
        code: "ca-missing",
        words: "CERTS/ca.crt: the file is empty; a CA is never made here",
    },
    Row {
        title: "no CA key",
        damage: |host| gone(host, "ca.key"),
        code: "ca-key-missing",
        words: "CERTS/ca.key: no such file; a CA key is never made here",
    },
    Row {
        title: "the key of another CA",
        damage: |host| host.tree.write("ca.key", &Authority::new()?.key_pem),
        code: "ca-key-missing",
        words: "the CA key belongs to none of the CA certificates; a CA key is never made here",
    },
    Row {
        title: "an encrypted CA key",
        damage: |host| {
            let header = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n";
            host.tree.write("ca.key", header)
        },
        code: "ca-key-missing",
        words: "CERTS/ca.key: the private key is encrypted, and nobody is here to type a passphrase: decrypt it with \
                `openssl pkey -in FILE -out NEW`; a CA key is never made here",
    },
    Row {
        title: "a CA that is over",
        damage: |host| authority(host, &Authority::between(-400, -30)?, (-300, 60)),
        code: "ca-not-valid",
        words: "the CA expired at TIME",
    },
    Row {
        title: "a CA that has not begun",
        damage: |host| authority(host, &Authority::between(2, 400)?, (-10, 60)),
        code: "ca-not-valid",
        words: "the CA is not valid before TIME; is the clock right?",
    },
    Row {
        title: "a CA that may not sign certificates",
        damage: |host| powerless(host, IsCa::Ca(BasicConstraints::Unconstrained), &[KeyUsagePurpose::CrlSign]),
        code: "ca-cannot-sign",
        words: "the CA certificate cannot sign: its keyUsage does not allow signing certificates",
    },
    Row {
        title: "a CA that is none",
        damage: |host| powerless(host, IsCa::ExplicitNoCa, &[KeyUsagePurpose::KeyCertSign]),
        code: "ca-cannot-sign",
        words: "the CA certificate cannot sign: its basicConstraints say that it is no CA",
    },
    Row {
        title: "somebody else's certificate",
        damage: |host| {
            let company = [(DnType::OrganizationName, "Example"), (DnType::CommonName, "api.example.com")];
            let names = Setup::default().spec.sans;
            let other = Authority::named("Example CA")?;
            host.tree.write("server.crt", &other.sign_for(&company, &key(host)?, &names, (-10, 355))?)
        },
        code: "foreign-issuer",
        words: "CERTS/server.crt: issued by another CA with a subject of its own; left alone",
    },
    Row {
        title: "no certificate, and a template that nobody can read",
        damage: |host| {
            gone(host, "server.crt")?;
            gone(host, "csr.conf.template")?;
            Ok(fs::create_dir(host.tree.data("certs/csr.conf.template"))?)
        },
        code: "template-unreadable",
        words: "CERTS/csr.conf.template: not a regular file; the names a first certificate needs are not known",
    },
    Row {
        title: "no certificate, and a template that makes no sense",
        damage: |host| {
            gone(host, "server.crt")?;
            Ok(fs::write(host.tree.data("certs/csr.conf.template"), [0xff, 0xfe, 0, 0x41])?)
        },
        code: "template-unreadable",
        words: "CERTS/csr.conf.template: not UTF-8 text; the names a first certificate needs are not known",
    },
    Row {
        title: "the API server has its certificate elsewhere",
        damage: |host| {
            let path = host.tree.data("args/kube-apiserver");
            let text = fs::read_to_string(&path)?;
            Ok(fs::write(path, text.replace("${SNAP_DATA}/certs/server.crt", "/etc/company/api.crt"))?)
        },
        code: "certificate-elsewhere",
        words: "kube-apiserver --tls-cert-file=/etc/company/api.crt: no file of the certificate folder that may be replaced; \
                left alone",
    },
];

fn gone(host: &Host, name: &str) -> Result<()> {
    Ok(fs::remove_file(host.tree.data("certs").join(name))?)
}

fn key(host: &Host) -> Result<KeyPair> {
    Ok(KeyPair::from_pem(&fs::read_to_string(host.tree.data("certs/server.key"))?)?)
}

/// This CA with its key, and a certificate of MicroK8s' by it.
fn authority(host: &Host, authority: &Authority, dates: (i64, i64)) -> Result<()> {
    host.tree.write("ca.crt", &authority.certificate_pem)?;
    host.tree.write("ca.key", &authority.key_pem)?;
    let microk8s = [(DnType::CommonName, "127.0.0.1")];
    let names = Setup::default().spec.sans;
    host.tree.write("server.crt", &authority.sign_for(&microk8s, &key(host)?, &names, dates)?)
}

/// A CA of MicroK8s' name that lacks something.
fn powerless(host: &Host, is_ca: IsCa, usages: &[KeyUsagePurpose]) -> Result<()> {
    let own = KeyPair::generate()?;
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::CommonName, "10.152.183.1");
    parameters.is_ca = is_ca;
    parameters.key_usages = usages.to_vec();
    host.tree.write("ca.crt", &parameters.self_signed(&own)?.pem())?;
    host.tree.write("ca.key", &own.serialize_pem())
}

/// The whole tree as it is on disk, but for ipguard's own folder, the sockets of the stage, and its record of calls.
fn tree(host: &Host) -> Vec<String> {
    let own = ["var/lib/ipguard", "run", "calls.log"].map(|name| host.tree.path(name).display().to_string());
    let all = state::of(host.tree.root());
    all.into_iter().filter(|line| !own.iter().any(|path| line.starts_with(path.as_str()))).collect()
}

fn unchanged(host: &Host, before: &[String], by: &str) -> Result<()> {
    let after = tree(host);
    let gone: Vec<&String> = before.iter().filter(|line| !after.contains(line)).collect();
    let new: Vec<&String> = after.iter().filter(|line| !before.contains(line)).collect();
    expect(gone.is_empty() && new.is_empty(), format!("{by} changes nothing:\n  gone {gone:#?}\n  new {new:#?}"))
}

/// Without the tree's path, and without times.
fn generic(host: &Host, words: &str) -> String {
    let certs = fs::canonicalize(host.tree.data("certs")).unwrap_or_default();
    let words = [certs.as_path(), Path::new(&host.tree.data("certs"))]
        .iter()
        .fold(words.to_owned(), |words, path| words.replace(&path.display().to_string(), "CERTS"));
    let is_time = |word: &str| word.len() == 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T';
    let word = |word: &str| {
        let bare = word.trim_end_matches([';', ',']);
        if is_time(bare) { word.replace(bare, "TIME") } else { word.to_owned() }
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    words.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn play(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    host.ip(&format!("addr add {ADDED}/24 dev eth0"))?;
    // Nobody doubts the clock, whatever this machine's kernel says of it.
    if Clock::of(&mut host, Kernel::Synchronised, 0)?.is_none() {
        return no_compiler();
    }
    // The watchers look at a certificate that this case puts there itself.
    host.server = None;
    let (certs, args) = (host.tree.data("certs"), host.tree.data("args/kube-apiserver"));
    let mut pristine = vec![(args.clone(), fs::read(&args)?)];
    for entry in fs::read_dir(&certs)? {
        let path = entry?.path();
        let content = fs::read(&path)?;
        pristine.push((path, content));
    }
    let mut faults = Vec::new();
    for row in ROWS {
        timeline.note("step", row.title);
        // As it was, and without what an earlier row remembers.
        let _ = fs::remove_dir(host.tree.data("certs/csr.conf.template"));
        for (path, content) in &pristine {
            fs::write(path, content)?;
        }
        let _ = fs::remove_dir_all(host.state_folder());
        fs::create_dir(host.state_folder())?;
        (row.damage)(&host)?;
        let before = tree(&host);
        if let Err(fault) = refuses(&host, row, &before) {
            faults.push(format!("{}: {fault}", row.title));
        }
    }
    // And the host is one on which a certificate is made, when nothing is wrong.
    for (path, content) in &pristine {
        fs::write(path, content)?;
    }
    let before = tree(&host);
    host.once(&["check", "--apply"])?;
    expect(host.covers(ADDED), "a certificate is made where nothing is wrong")?;
    expect(unchanged(&host, &before, "it").is_err(), "the comparison sees that one was made")?;
    if faults.is_empty() {
        println!("{} trees, each as a one-shot and as a daemon: no byte, inode, owner or time was changed", ROWS.len());
        return Ok(());
    }
    Err(format!("{} of {} trees:\n{}", faults.len(), ROWS.len(), faults.join("\n")).into())
}

fn refuses(host: &Host, row: &Row, before: &[String]) -> Result<()> {
    let printed = host.once(&["check", "--apply", "--format", "json"])?;
    unchanged(host, before, "check --apply")?;
    same("exit status", &printed.status.code(), &Some(0))?;
    let document: Value = serde_json::from_str(&printed.stdout)?;
    let holds = document["holds"].as_array().cloned().unwrap_or_default();
    let told: Vec<(String, String)> = holds
        .iter()
        .map(|hold| {
            let text = |field: &str| hold[field].as_str().unwrap_or_default();
            (text("code").to_owned(), generic(host, text("detail")))
        })
        .collect();
    same("holds", &told, &vec![(row.code.to_owned(), row.words.to_owned())])?;
    // For people the same words.
    let printed = host.once(&["check", "--apply"])?;
    expect(generic(host, &printed.stdout).contains(row.words), format!("for people: {}", printed.stdout))?;
    unchanged(host, before, "check --apply")?;

    let heard = host.timeline.texts("ipguard").len();
    let daemon = host.daemon()?;
    let says = || {
        host.timeline.texts("ipguard")[heard..].iter().any(|line| {
            let line = generic(host, line);
            line.contains(&format!("hold: {}", row.words)) && line.contains(row.code)
        })
    };
    until(&format!("the daemon holds: {}", row.words), SOON, says)?;
    // Longer than everything that is configured: quiet, max and the hold.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    expect(daemon.stop(SOON)?.success(), "the daemon ends well")?;
    unchanged(host, before, "the daemon")
}
