//! The functions that replace `get_ips` and `produce_certs`, called as MicroK8s calls them: bare under `set -eux` by the
//! install hook, in a substitution by the configure hook. ipguard and OpenSSL are the real ones.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Folder, Ran, program, repository, run};

const DATA: &str = "var/snap/microk8s/1";

/// The template that MicroK8s ships, as far as it matters.
const TEMPLATE: &str = "[ req ]\nprompt = no\ndistinguished_name = dn\nreq_extensions = req_ext\n[ dn ]\nC = GB\nO = Canonical\n\
CN = 127.0.0.1\n[ req_ext ]\nsubjectAltName = @alt_names\n[ alt_names ]\nDNS.1 = kubernetes\nIP.1 = 127.0.0.1\n\
IP.2 = 10.152.183.1\n#MOREIPS\n[ v3_ext ]\nsubjectAltName = @alt_names\n";

/// A snap at its first install: nothing but a template.
fn snap() -> Option<Folder> {
    if program("/usr/bin/openssl").arg("version").output().is_err() {
        crate::skipped::skipped("needs openssl");
        return None;
    }
    let snap = Folder::new();
    snap.write(&format!("{DATA}/certs/csr.conf.template"), TEMPLATE);
    for folder in ["var/lock", "args"] {
        fs::create_dir_all(snap.path(DATA).join(folder)).expect("it is ours");
    }
    snap.script("snap/openssl.wrapper", "exec /usr/bin/openssl \"$@\"");
    // The real one, with this folder as its host: the variables of the snap are paths below it.
    let ipguard = format!(
        "SNAP_DATA=/{DATA} SNAP_COMMON=/var/snap/microk8s/common exec '{}' --root '{}' \"$@\"",
        env!("CARGO_BIN_EXE_ipguard"),
        snap.0.display()
    );
    snap.script("snap/bin/ipguard", &ipguard);
    let calls = snap.path("calls");
    let table = "Service Startup Current Notes\nmicrok8s.daemon-kubelite enabled active -\n\
                 microk8s.daemon-cluster-agent enabled active -";
    snap.script(
        "usr/bin/snapctl",
        &format!("echo \"$@\" >> '{}'\n[ $1 != services ] || echo '{table}'", calls.display()),
    );
    Some(snap)
}

fn bash(snap: &Folder, script: &str) -> Ran {
    let functions = repository("snap/local/microk8s/functions.sh");
    // As upstream's file defines them; ours come later and win.
    let upstream = "get_ips() { echo upstream; }\nproduce_certs() { echo upstream; }";
    let mut command: Command = program("/bin/bash");
    command
        .args(["-c", &format!("set -eux\n{upstream}\nsource '{}'\n{script}\necho AFTER >&2", functions.display())])
        .env("SNAP", snap.path("snap"))
        .env("SNAP_DATA", snap.path(DATA))
        .env("SNAP_INSTANCE_NAME", "microk8s")
        .env("SNAP_NAME", "microk8s");
    run(&mut command)
}

fn certs(snap: &Folder) -> PathBuf {
    snap.path(DATA).join("certs")
}

/// It succeeded, the hook went on, and nothing but this was printed.
fn printed(ran: &Ran, expected: &str) {
    assert_eq!((ran.status, &*ran.stdout), (Some(0), expected), "{}", ran.stderr);
    assert!(ran.stderr.ends_with("AFTER\n"), "{}", ran.stderr);
}

fn openssl(arguments: &[&str], folder: PathBuf) -> Ran {
    run(program("/usr/bin/openssl").args(arguments).current_dir(folder))
}

/// Names and contents of the certificate folder.
fn files(snap: &Folder) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(certs(snap)).expect("it is there").map(|entry| entry.expect("it can be listed"));
    let mut found: Vec<_> = entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap_or_default()))
        .collect();
    found.sort();
    found
}

#[test]
fn a_first_install_makes_everything_and_asks_for_a_restart_once() {
    let Some(snap) = snap() else { return };
    printed(&bash(&snap, "produce_certs"), "1\n");
    let folder = certs(&snap);
    for (authority, leaf) in [("ca.crt", "server.crt"), ("front-proxy-ca.crt", "front-proxy-client.crt")] {
        let ran = openssl(&["verify", "-CAfile", authority, leaf], folder.clone());
        assert_eq!(ran.stdout, format!("{leaf}: OK\n"), "{}", ran.stderr);
    }
    assert!(openssl(&["x509", "-noout", "-subject", "-in", "ca.crt"], folder.clone()).stdout.contains("10.152.183.1"));
    for key in ["ca", "server", "serviceaccount", "front-proxy-ca", "front-proxy-client"] {
        let path = folder.join(format!("{key}.key"));
        assert_eq!(fs::metadata(&path).expect(key).permissions().mode() & 0o777, 0o600, "{key}");
        assert!(
            openssl(&["rsa", "-check", "-noout", "-in", &path.display().to_string()], folder.clone()).status == Some(0)
        );
    }
    let left = fs::read_dir(snap.path(DATA))
        .expect("it is there")
        .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with(".certs")));
    assert_eq!(left.count(), 0);
    let before = files(&snap);
    printed(&bash(&snap, "produce_certs"), "0\n");
    // The configure hook's way.
    printed(
        &bash(
            &snap,
            "modified=\"$(produce_certs)\"; if [[ \"$modified\" -eq 1 ]]; then echo restart; else echo none; fi",
        ),
        "none\n",
    );
    assert_eq!(files(&snap), before);
}

/// What the caller has to do does not depend on another service, and it is not kept waiting for that one: the restart is
/// owed, and the daemon or the next call hands it over.
#[test]
fn a_refused_restart_of_the_cluster_agent_neither_waits_nor_changes_the_digit() {
    let Some(snap) = snap() else { return };
    let snapctl = snap.read("usr/bin/snapctl");
    let refusal = "error: snap \\\"microk8s\\\" has \\\"service-control\\\" change in progress";
    snap.write("usr/bin/snapctl", &format!("{snapctl}\n[ $1 != restart ] || {{ echo \"{refusal}\" >&2; exit 1; }}\n"));
    let began = Instant::now();
    let ran = bash(&snap, "produce_certs");
    printed(&ran, "1\n");
    assert!(ran.stderr.contains("change in progress"), "{}", ran.stderr);
    assert!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    let restarts = || snap.read("calls").matches("restart microk8s.daemon-cluster-agent").count();
    assert_eq!(restarts(), 1);
    snap.write("usr/bin/snapctl", &snapctl);
    printed(&bash(&snap, "produce_certs"), "0\n");
    assert_eq!(restarts(), 2, "{}", snap.read("calls"));
    printed(&bash(&snap, "produce_certs"), "0\n");
    assert_eq!(restarts(), 2, "{}", snap.read("calls"));
}

#[test]
fn a_ca_without_its_key_gets_none_and_the_install_goes_on() {
    let Some(snap) = snap() else { return };
    printed(&bash(&snap, "produce_certs"), "1\n");
    for key in ["ca.key", "front-proxy-ca.key"] {
        fs::remove_file(certs(&snap).join(key)).expect("it was made");
    }
    let before = files(&snap);
    printed(&bash(&snap, "produce_certs"), "0\n");
    assert_eq!(files(&snap), before);
    // A CA whose certificate alone was removed is made anew from its key, as upstream's refresh-certs expects.
    let Some(snap) = self::snap() else { return };
    printed(&bash(&snap, "produce_certs"), "1\n");
    let key = fs::read(certs(&snap).join("ca.key")).expect("it was made");
    fs::remove_file(certs(&snap).join("ca.crt")).expect("it was made");
    let ran = bash(&snap, "produce_certs");
    assert_eq!(ran.status, Some(0));
    assert!(["0\n", "1\n"].contains(&&*ran.stdout), "{ran:?}");
    assert_eq!(fs::read(certs(&snap).join("ca.key")).expect("it stays"), key);
    let verified = openssl(&["verify", "-CAfile", "ca.crt", "server.crt"], certs(&snap));
    assert_eq!(verified.stdout, "server.crt: OK\n", "{}", verified.stderr);
}

#[test]
fn links_that_a_member_of_the_group_put_there_are_not_written_through() {
    let Some(snap) = snap() else { return };
    for name in ["ca.key", "ca.crt", "serviceaccount.key", "front-proxy-ca.crt"] {
        symlink(snap.path("victim").join(name), certs(&snap).join(name)).expect("it is ours");
    }
    fs::create_dir(snap.path("victim")).expect("it is ours");
    printed(&bash(&snap, "produce_certs"), "0\n");
    assert_eq!(fs::read_dir(snap.path("victim")).expect("it is there").count(), 0);
}

#[test]
fn whatever_ipguard_does_it_is_one_digit_and_success() {
    let Some(snap) = snap() else { return };
    for (script, expected) in [
        ("exit 9", "0\n"),
        ("echo 1; exit 9", "0\n"),
        ("echo oops", "0\n"),
        ("kill -9 $$", "0\n"),
        ("echo 0", "0\n"),
        ("echo 1", "1\n"),
        ("echo 1; echo 1", "0\n"),
        ("", "0\n"),
    ] {
        snap.script("snap/bin/ipguard", script);
        printed(&bash(&snap, "produce_certs"), expected);
    }
    fs::remove_file(snap.path("snap/bin/ipguard")).expect("it is ours");
    printed(&bash(&snap, "produce_certs"), "0\n");
    // And without a way to make keys.
    snap.script("snap/openssl.wrapper", "exit 1");
    fs::remove_dir_all(certs(&snap)).expect("it is ours");
    fs::create_dir(certs(&snap)).expect("it is ours");
    printed(&bash(&snap, "produce_certs"), "0\n");
    fs::set_permissions(snap.path(DATA), Permissions::from_mode(0o555)).expect("it is ours");
    printed(&bash(&snap, "produce_certs"), "0\n");
    fs::set_permissions(snap.path(DATA), Permissions::from_mode(0o755)).expect("it is ours");
}

#[test]
fn get_ips_is_the_line_of_ipguard_or_none() {
    let Some(snap) = snap() else { return };
    let ran = bash(&snap, "get_ips");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.trim() == "none"
            || ran.stdout.split_whitespace().all(|word| word.parse::<std::net::IpAddr>().is_ok()),
        "{ran:?}"
    );
    snap.script("snap/bin/ipguard", "[ \"$*\" = ips ] && echo 192.0.2.10 2001:db8::10");
    printed(&bash(&snap, "get_ips"), "192.0.2.10 2001:db8::10\n");
    snap.script("snap/bin/ipguard", "exit 1");
    printed(&bash(&snap, "get_ips"), "none\n");
}
