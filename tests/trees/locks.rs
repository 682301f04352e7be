//! Trees by their lock files and tokens: what is held, and what goes on all the same.

use std::fs;
use std::process::Command;

use rcgen::{DnType, KeyPair};

use crate::play::{NODE, Row, SECOND, SHIPPED, play};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::age::Age;
use crate::stage::authority::Authority;
use crate::stage::tree::{CertificateState, Tree};

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "locks::clustered-control-plane",
        play: |t| play(&clustered().held(&["reissue-disabled"]), t),
        patience: 60,
    },
    Case { name: "locks::clustered-and-near-its-end", play: |t| play(&clustered_near_end(), t), patience: 60 },
    Case { name: "locks::clustered-and-another-ca", play: |t| play(&clustered_other_authority(), t), patience: 60 },
    Case { name: "locks::clustered-and-a-name-is-asked-for", play: |t| play(&clustered_name(), t), patience: 60 },
    Case { name: "locks::clustered-and-the-node-has-moved", play: |t| play(&clustered_moved(), t), patience: 60 },
    Case { name: "locks::worker", play: |t| play(&worker(), t), patience: 60 },
    Case { name: "locks::from-before-1970", play: |t| play(&from_before_1970(), t), patience: 60 },
    Case {
        name: "locks::joining",
        play: |t| play(&locked("join-in-progress", &["join-in-progress"]), t),
        patience: 60,
    },
    Case { name: "locks::joining-and-expired", play: |t| play(&joining_expired(), t), patience: 60 },
    Case { name: "locks::joining-left-behind", play: |t| play(&left_behind(), t), patience: 60 },
    Case {
        name: "locks::low-memory",
        play: |t| play(&locked("low-memory-guard.lock", &["low-memory-guard"]), t),
        patience: 60,
    },
    Case { name: "locks::stopped", play: |t| play(&stopped(), t), patience: 60 },
    Case { name: "locks::those-that-are-nobodys-business", play: |t| play(&others(), t), patience: 60 },
    Case { name: "locks::host-access", play: |t| play(&host_access(), t), patience: 60 },
    Case { name: "locks::host-access-of-nonsense", play: |t| play(&host_access_of_nonsense(), t), patience: 60 },
    Case { name: "locks::a-join-token", play: |t| play(&token(), t), patience: 60 },
    Case { name: "locks::join-tokens-that-are-over", play: |t| play(&no_token(), t), patience: 60 },
    Case { name: "locks::a-join-token-and-the-node-has-moved", play: |t| play(&token_and_moved(), t), patience: 60 },
];

fn locked(lock: &str, holds: &[&'static str]) -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.locks = vec![lock.to_owned()];
    row.held(holds)
}

fn clustered() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.locks = vec!["no-cert-reissue".to_owned()];
    row
}

/// The server certificate made anew by a CA whose key is at hand, valid between two days from today.
fn dated(tree: &Tree, names: &[String], days: (i64, i64)) -> Result<()> {
    let authority = Authority::new()?;
    tree.write("ca.crt", &authority.certificate_pem)?;
    tree.write("ca.key", &authority.key_pem)?;
    let key = |name: &str| Result::Ok(KeyPair::from_pem(&fs::read_to_string(tree.data("certs").join(name))?)?);
    let subject = [(DnType::CommonName, "127.0.0.1")];
    tree.write("server.crt", &authority.sign_for(&subject, &key("server.key")?, names, days)?)?;
    let subject = [(DnType::CommonName, "system:node:node-1"), (DnType::OrganizationName, "system:nodes")];
    let names = ["DNS:node-1".to_owned(), NODE.to_owned()];
    tree.write("kubelet.crt", &authority.sign_for(&subject, &key("kubelet.key")?, &names, (-10, 355))?)
}

fn shipped_and_node() -> Vec<String> {
    SHIPPED.iter().copied().chain([NODE]).map(str::to_owned).collect()
}

/// Renewal does not ask the lock, and a certificate that is made anyway has the primary set.
fn clustered_near_end() -> Row {
    let mut row = clustered();
    row.prepare = |tree| dated(tree, &shipped_and_node(), (-345, 20));
    row.reasons = vec![("near-expiry", "server"), ("address-missing", "server")];
    row
}

fn clustered_other_authority() -> Row {
    let mut row = clustered();
    row.spec.certificate = CertificateState::SignedByOther;
    row.reasons = vec![("issuer-mismatch", "server"), ("address-missing", "server")];
    row
}

fn clustered_name() -> Row {
    let mut row = clustered();
    row.spec.args.insert("csr.conf.template".to_owned(), vec!["DNS.6 = k8s.example.com".to_owned()]);
    row.reasons = vec![("configured-san-missing", "server"), ("address-missing", "server")];
    row.steps[0] = "reissue server with 10 names (adding 198.51.100.7)".to_owned();
    row.names.iter_mut().for_each(|names| names.push("DNS:k8s.example.com".to_owned()));
    row
}

/// Neither certificate nor restart: the lock is law for addresses.
fn clustered_moved() -> Row {
    let mut row = clustered();
    row.network = ["addr add 192.0.2.57/24 dev eth0", "route add default via 192.0.2.1"].map(str::to_owned).into();
    row.ips = "192.0.2.57".to_owned();
    let mut row = row.held(&["reissue-disabled"]);
    row.reasons.push(("address-missing", "kubelet"));
    row.holds = vec!["reissue-disabled", "reissue-disabled", "settling"];
    row
}

/// A worker has no API server, no CA key and no server certificate, and gets none.
fn worker() -> Row {
    let mut row = locked("clustered.lock", &["worker", "ca-key-missing", "ca-key-missing"]);
    row.spec.certificate = CertificateState::Missing;
    row.reasons = vec![("certificate-unusable", "server")];
    row.prepare = |tree| Ok(fs::remove_file(tree.data("certs/ca.key"))?);
    row.names = None;
    row
}

/// Of a host without a clock of its own, or unpacked from an archive that has no times.
fn from_before_1970() -> Row {
    let mut row = locked("low-memory-guard.lock", &["low-memory-guard"]);
    row.prepare = |tree| {
        let lock = tree.data("var/lock/low-memory-guard.lock");
        let status = Command::new("touch").args(["-d", "1965-01-01"]).arg(lock).status()?;
        if status.success() { Ok(()) } else { Err("touch failed".into()) }
    };
    row
}

/// The whole transaction waits, what is over included.
fn joining_expired() -> Row {
    let mut row = locked("join-in-progress", &["join-in-progress"]);
    row.prepare = |tree| dated(tree, &shipped_and_node(), (-370, -5));
    row.reasons = vec![("expired", "server"), ("address-missing", "server")];
    row
}

/// By a join that died without removing it.
fn left_behind() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.locks = vec!["join-in-progress".to_owned()];
    row.prepare = |tree| {
        let status = Command::new("touch")
            .args(["-d", "16 minutes ago"])
            .arg(tree.data("var/lock/join-in-progress"))
            .status()?;
        if status.success() { Ok(()) } else { Err("touch failed".into()) }
    };
    row
}

/// Certificates are made; what runs is looked at, and nothing is ever started.
fn stopped() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.locks = vec!["stopped.lock".to_owned()];
    row
}

fn others() -> Row {
    let mut row = Row::of(Age::V1_28);
    let names = "no-k8s-dqlite no-traefik no-cni-reload cni-needs-reload no-manage-calico snapdata-mounts-need-reload \
                 no-arg-sanitisation skip-kubelet-tune.lock skip.ufw .hidden no-cert-reissue.bak";
    row.spec.locks = names.split_whitespace().map(str::to_owned).collect();
    row
}

/// The address of the addon belongs into the kubelet's certificate, and not into the server's.
fn host_access() -> Row {
    let mut row = Row::of(Age::V1_28).in_step();
    row.prepare = |tree| Ok(fs::write(tree.data("var/lock/host-access-enabled"), "10.0.1.1\n")?);
    row.network.push("addr add 10.0.1.1/32 dev lo label lo:microk8s".to_owned());
    row.verdict = "reissue";
    row.reasons = vec![("configured-san-missing", "kubelet")];
    row.steps = vec![
        "reissue kubelet with 4 names (adding 198.51.100.7)".to_owned(),
        "confirm that 127.0.0.1:10250 serves the kubelet certificate".to_owned(),
    ];
    row.written = vec![("certs/kubelet.crt", 0o660)];
    row
}

fn host_access_of_nonsense() -> Row {
    let mut row = Row::of(Age::V1_28).in_step();
    row.prepare = |tree| Ok(fs::write(tree.data("var/lock/host-access-enabled"), "yes\n")?);
    row
}

fn token() -> Row {
    let mut row = Row::of(Age::V1_34).held(&["join-tokens"]);
    row.said = "a join token is outstanding";
    row.prepare = |tree| {
        let path = tree.data("credentials/cluster-tokens.txt");
        Ok(fs::write(path, "5a9f4e0c7d1b42d6a83e9c10b7f25d31\n")?)
    };
    row
}

fn no_token() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.prepare = |tree| {
        fs::write(tree.data("credentials/cluster-tokens.txt"), "5a9f|1600000000\nbroken|-10a\n\n")?;
        fs::write(tree.data("credentials/callback-tokens.txt"), "192.0.2.11:25000 5a9f\n")?;
        Ok(fs::write(tree.data("credentials/certs-request-tokens.txt"), "5a9f-kubelet\n")?)
    };
    row
}

/// The node address waits for nobody.
fn token_and_moved() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.spec.sans.retain(|name| name != NODE);
    row.prepare = |tree| Ok(fs::write(tree.data("credentials/persistent-cluster-tokens.txt"), "for-ever\n")?);
    row.steps[0] = format!("reissue server with 9 names (adding {NODE}, {SECOND})");
    row
}
