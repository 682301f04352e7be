//! The search for keys finds one, in whatever form it is shown, and takes nothing public for one.

use std::process::Command;

use rcgen::KeyPair;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;

use crate::skipped::skipped;
use crate::stage::Result;
use crate::stage::secrets::stay_secret;
use crate::stage::timeline::Timeline;
use crate::stage::traces::Traces;
use crate::stage::tree::{Tree, TreeSpec};

#[test]
fn a_key_that_is_said_or_written_is_found() -> Result<()> {
    let tree = Tree::create(&TreeSpec::default(), false)?;
    let timeline = Timeline::start();
    stay_secret(&tree, &timeline)?;
    let pem = std::fs::read_to_string(tree.data("certs/ca.key"))?;
    let line = pem.lines().nth(1).ok_or("a key has lines")?;
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes())?.secret_der().to_vec();
    let hex: String = der.iter().map(|byte| format!("{byte:02x}")).collect();
    let colons = der.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":");
    let forms: [(&str, Vec<u8>); 13] = [
        ("PEM", pem.clone().into()),
        ("a line of it", format!("made with {line}").into()),
        ("its body without line ends", body.clone().into()),
        ("in lines of 40", body.as_bytes().chunks(40).flat_map(|line| [line, b"\n  "].concat()).collect()),
        ("as Debug writes it", format!("{pem:?}").into()),
        ("a piece from its middle", body[body.len() / 2 - 60..body.len() / 2].into()),
        ("DER", der.clone()),
        ("half of the DER", der[..der.len() / 2].to_vec()),
        ("hexadecimal", hex.clone().into()),
        ("in capitals", hex.to_uppercase().into()),
        ("with colons", colons.into()),
        ("as Debug writes bytes", format!("{der:?}").into()),
        ("as pretty Debug writes bytes", format!("{der:#?}").into()),
    ];
    // Under ipguard's own folder, among the certificates, where messages are.
    std::fs::create_dir_all(tree.path("var/lib/ipguard/generations/server/1"))?;
    for (form, content) in &forms {
        for place in ["var/lib/ipguard/generations/server/1/note", "var/snap/microk8s/7400/certs/.left", "run/x", "log"]
        {
            std::fs::write(tree.path(place), content)?;
            assert!(stay_secret(&tree, &timeline).is_err(), "{form} in {place} was missed");
            std::fs::remove_file(tree.path(place))?;
        }
        stay_secret(&tree, &timeline)?;
        if let Ok(text) = std::str::from_utf8(content) {
            let said = Timeline::start();
            said.note("ipguard", format!("TRACE {text}"));
            assert!(stay_secret(&tree, &said).is_err(), "{form} in the log was missed");
        }
    }
    Ok(())
}

/// The public half is in every certificate, and base64 of a certificate is no key.
#[test]
fn what_is_public_is_no_key() -> Result<()> {
    let tree = Tree::create(&TreeSpec { beside: Some("192.0.2.10".into()), ..TreeSpec::default() }, false)?;
    let mut traces = Traces::default();
    for name in ["ca.key", "server.key", "front-proxy-ca.key", "kubelet.key"] {
        traces.add(&std::fs::read(tree.data("certs").join(name))?);
    }
    assert!(traces.count() > 100, "{} traces", traces.count());
    for name in ["ca.crt", "server.crt", "front-proxy-ca.crt", "kubelet.crt"] {
        let text = std::fs::read(tree.data("certs").join(name))?;
        assert_eq!(traces.find(&text), None, "{name}");
    }
    // A program that can write keys has their form in it, not a key: PKCS#8 of P-256 up to the secret.
    let der = PrivateKeyDer::from_pem_file(tree.data("certs/ca.key"))?.secret_der().to_vec();
    assert_eq!(traces.find(&[&der[..36], &[0; 32]].concat()), None);
    let pair = KeyPair::generate()?;
    let mut own = Traces::default();
    own.add(pair.serialize_pem().as_bytes());
    assert_eq!(own.find(pair.public_key_pem().as_bytes()), None);
    assert_eq!(own.find(pair.public_key_raw()), None);
    assert!(own.find(pair.serialize_pem().as_bytes()).is_some());
    Ok(())
}

/// Keys as openssl writes them, where it is installed: SEC1 and both forms of RSA.
#[test]
fn every_kind_of_key_leaves_traces() {
    let kinds =
        ["ecparam -name prime256v1 -genkey", "genrsa -traditional 2048", "genrsa 2048", "genpkey -algorithm ed25519"];
    for kind in kinds {
        let Ok(made) = Command::new("openssl").args(kind.split(' ')).output() else {
            return skipped("openssl not found");
        };
        let mut traces = Traces::default();
        traces.add(&made.stdout);
        let body: String =
            String::from_utf8_lossy(&made.stdout).lines().filter(|line| !line.starts_with('-')).collect();
        assert!(traces.count() > 5, "{kind}: {} traces", traces.count());
        assert!(traces.find(body.as_bytes()).is_some(), "{kind}");
    }
}
