//! Trees by age, by CA, by network: what a node is.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::play::{Row, SHIPPED, play};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::age::Age;
use crate::stage::tree::{AuthorityKind, CertificateState, MARKER, Tree, template};

pub(crate) const CASES: &[Case] = &[
    Case { name: "ages::1.18-with-docker", play: |t| play(&Row::of(Age::V1_18), t), patience: 60 },
    Case { name: "ages::1.18-in-step", play: |t| play(&Row::of(Age::V1_18).in_step(), t), patience: 60 },
    Case {
        name: "ages::1.18-and-the-node-has-moved",
        play: |t| play(&moved(Age::V1_18, "apiserver"), t),
        patience: 60,
    },
    Case { name: "ages::1.28-and-the-node-has-moved", play: |t| play(&moved(Age::V1_28, "kubelite"), t), patience: 60 },
    Case {
        name: "ages::1.24-that-verifies-kubelets",
        play: |t| play(&with_an_api_server_that_verifies_it(), t),
        patience: 60,
    },
    Case { name: "ages::1.24", play: |t| play(&with_a_kubelet_of_its_own(), t), patience: 60 },
    Case { name: "ages::1.28", play: |t| play(&Row::of(Age::V1_28), t), patience: 60 },
    Case { name: "ages::1.34", play: |t| play(&Row::of(Age::V1_34), t), patience: 60 },
    Case { name: "ages::1.34-in-step", play: |t| play(&Row::of(Age::V1_34).in_step(), t), patience: 60 },
    Case { name: "ages::first-install", play: |t| play(&first_install(), t), patience: 60 },
    Case {
        name: "ages::custom-ca",
        play: |t| play(&authority(AuthorityKind::Named("Example Corp CA"), 1), t),
        patience: 60,
    },
    Case { name: "ages::intermediate-ca", play: |t| play(&authority(AuthorityKind::Intermediate, 2), t), patience: 60 },
    Case { name: "ages::ca-key-elsewhere", play: |t| play(&offline_root(), t), patience: 60 },
    Case { name: "ages::another-ca-in-place", play: |t| play(&other_authority(), t), patience: 60 },
    Case { name: "ages::ipv6-only", play: |t| play(&ipv6_only(), t), patience: 60 },
    Case { name: "ages::dual-stack", play: |t| play(&dual_stack(), t), patience: 60 },
    Case { name: "ages::changed-service-range", play: |t| play(&changed_range(), t), patience: 60 },
    Case { name: "ages::changed-pod-network", play: |t| play(&changed_pods(), t), patience: 60 },
    Case { name: "ages::no-default-route", play: |t| play(&no_route(), t), patience: 60 },
    Case { name: "ages::strict-inside-the-snap", play: |t| play(&strict(), t), patience: 60 },
    Case { name: "ages::cis-hardened", play: |t| play(&hardened(), t), patience: 60 },
    Case { name: "ages::cis-hardened-without-a-certificate", play: |t| play(&hardened_first(), t), patience: 60 },
];

/// The kubelet of that age signs its own by a CA that nobody has, and nobody verifies it: nothing is wrong with it.
fn with_a_kubelet_of_its_own() -> Row {
    Row::of(Age::V1_24)
}

/// The argument that MicroK8s got later, on a node whose kubelet still has one of its own.
fn with_an_api_server_that_verifies_it() -> Row {
    let mut row = Row::of(Age::V1_24);
    let argument = "--kubelet-certificate-authority=${SNAP_DATA}/certs/ca.crt".to_owned();
    row.spec.args.entry("kube-apiserver".to_owned()).or_default().push(argument);
    row.reasons.push(("issuer-mismatch", "kubelet"));
    row.steps.insert(1, "reissue kubelet with 3 names (adding 198.51.100.7)".to_owned());
    row.steps.push("confirm that 127.0.0.1:10250 serves the kubelet certificate".to_owned());
    row.written.push(("certs/kubelet.crt", 0o660));
    row
}

/// The API server still advertises an address that is gone: its own service is restarted, whatever that is at that age.
fn moved(age: Age, service: &str) -> Row {
    let mut row = Row::of(age);
    (row.promotion_hold, row.services_first) = ("100ms", true);
    row.state = Some(
        r#"{ "version": 1, "boot_id": "before", "written": 1700000000000,
             "accepted": [ { "address": "192.0.2.10", "link": "eth0", "since": 1700000000000 },
                           { "address": "198.51.100.7", "link": "eth0", "since": 1700000000000 } ],
             "lost": [ { "address": "192.0.2.9", "link": "eth0", "since": 1700000000000, "node_address": true } ],
             "node_address": { "ipv4": "192.0.2.10" },
             "advertised": { "address": "192.0.2.9", "gone_since": 1700000000000, "last_true": 1700000000000 } }"#,
    );
    row.verdict = "reissue-and-restart";
    row.reasons.push(("node-address-replaced", "server"));
    row.steps.swap(1, 2);
    row.steps.insert(2, format!("restart {service} (node-address-replaced)"));
    row.steps.push("confirm that 127.0.0.1:16443 is ready (/readyz)".to_owned());
    row
}

fn first_install() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.spec.certificate = CertificateState::Missing;
    row.reasons = vec![("certificate-unusable", "server")];
    row.steps[0] = "reissue server with 9 names (adding 192.0.2.10, 198.51.100.7)".to_owned();
    row
}

fn authority(kind: AuthorityKind, chain: usize) -> Row {
    let mut row = Row::of(Age::V1_28);
    (row.spec.authority, row.chain) = (kind, chain);
    row
}

/// The server certificate that is due waits, and the next one of the kubelet would.
fn offline_root() -> Row {
    let mut row = Row::of(Age::V1_28).held(&["ca-key-missing", "ca-key-missing"]);
    row.prepare = |tree| Ok(fs::remove_file(tree.data("certs/ca.key"))?);
    row.said = "a CA key is never made here";
    row
}

/// refresh-certs or a join has brought another CA of the same name.
fn other_authority() -> Row {
    let mut row = Row::of(Age::V1_28).in_step();
    row.spec.certificate = CertificateState::SignedByOther;
    row.verdict = "reissue";
    row.reasons = vec![("issuer-mismatch", "server")];
    row.steps = Row::of(Age::V1_28).steps;
    row.steps[0] = "reissue server with 9 names".to_owned();
    // The request is the one that is there.
    row.written = vec![("certs/server.crt", 0o660)];
    row
}

/// The template without MicroK8s' own service address.
fn without_the_usual_service() -> String {
    template(&[MARKER.to_owned()]).replace("IP.2 = 10.152.183.1\n", "")
}

fn ipv6_only() -> Row {
    let mut row = Row::of(Age::V1_34);
    let usual = |name: &&str| *name != "10.152.183.1";
    row.spec.sans = SHIPPED.iter().filter(|name| usual(name)).map(|name| (*name).to_owned()).collect();
    row.spec.beside = Some("2001:db8::10".to_owned());
    row.spec.template = Some(without_the_usual_service());
    row.spec.args.insert("kube-apiserver".to_owned(), vec!["--service-cluster-ip-range=fd98::/108".to_owned()]);
    row.spec.args.insert("kube-proxy".to_owned(), vec!["--cluster-cidr=fd01::/64".to_owned()]);
    row.network =
        ["addr add 2001:db8::10/64 dev eth0 nodad", "route add default via 2001:db8::1"].map(str::to_owned).into();
    row.reasons = vec![("configured-san-missing", "server"), ("address-missing", "server")];
    row.steps[0] = "reissue server with 8 names (adding 2001:db8::10)".to_owned();
    let mut names = row.spec.sans.clone();
    names.extend(["fd98::1", "2001:db8::10"].map(str::to_owned));
    row.names = Some(names);
    row.ips = "2001:db8::10".to_owned();
    row
}

/// The first address of each service network is a name, and the node has one of each family.
fn dual_stack() -> Row {
    let mut row = Row::of(Age::V1_28);
    let range = "--service-cluster-ip-range=10.152.183.0/24,fd98::/108".to_owned();
    row.spec.args.insert("kube-apiserver".to_owned(), vec![range]);
    row.spec.args.insert("kube-proxy".to_owned(), vec!["--cluster-cidr=10.1.0.0/16,fd01::/64".to_owned()]);
    row.network
        .extend(["addr add 2001:db8::10/64 dev eth0 nodad", "route add default via 2001:db8::1"].map(str::to_owned));
    row.reasons =
        vec![("configured-san-missing", "server"), ("address-missing", "server"), ("address-missing", "kubelet")];
    row.steps = vec![
        "reissue server with 11 names (adding 198.51.100.7, 2001:db8::10)".to_owned(),
        "reissue kubelet with 4 names (adding 198.51.100.7, 2001:db8::10)".to_owned(),
        "confirm that 127.0.0.1:16443 serves the server certificate".to_owned(),
        "restart cluster-agent (loaded-once)".to_owned(),
        "confirm that 127.0.0.1:10250 serves the kubelet certificate".to_owned(),
    ];
    row.written.push(("certs/kubelet.crt", 0o660));
    row.names.iter_mut().for_each(|names| names.extend(["fd98::1", "2001:db8::10"].map(str::to_owned)));
    row.ips = "192.0.2.10 2001:db8::10 198.51.100.7".to_owned();
    row
}

/// 10.152.183.1 is nobody's where the arguments say otherwise.
fn changed_range() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.sans.retain(|name| name != "10.152.183.1");
    row.spec.template = Some(without_the_usual_service());
    row.spec.args.insert("kube-apiserver".to_owned(), vec!["--service_cluster_ip_range '10.94.0.0/16'".to_owned()]);
    row.reasons = vec![("configured-san-missing", "server"), ("address-missing", "server")];
    let mut names = row.spec.sans.clone();
    names.extend(["10.94.0.1", "198.51.100.7"].map(str::to_owned));
    row.names = Some(names);
    row
}

/// An address of the pods is no name of the node, whatever network they have.
fn changed_pods() -> Row {
    let mut row = Row::of(Age::V1_28).in_step();
    row.spec.args.insert("kube-proxy".to_owned(), vec!["--cluster-cidr=172.20.0.0/16".to_owned()]);
    row.network.extend(
        ["link add pods type veth peer name far1", "link set pods up", "addr add 172.20.7.1/32 dev pods"]
            .map(str::to_owned),
    );
    row
}

/// Air-gapped, or not there yet: the certificate stays.
fn no_route() -> Row {
    let mut row = Row::of(Age::V1_28).held(&["no-default-route"]);
    row.network.pop();
    row
}

/// The group of the strict snap, and snapd's own environment; nobody but snapctl is asked.
fn strict() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.inside_snap = true;
    row.spec.certificate = CertificateState::Missing;
    row.prepare = |tree| {
        // Only root may give files away; to others the group of the folder is the one they have.
        let group = nix::unistd::geteuid().is_root().then(|| nix::unistd::Gid::from_raw(584_788));
        let _ = group.map(|group| nix::unistd::chown(&tree.data("certs"), None, Some(group)));
        Ok(())
    };
    row.reasons = vec![("certificate-unusable", "server")];
    row.steps[0] = "reissue server with 9 names (adding 192.0.2.10, 198.51.100.7)".to_owned();
    row
}

/// What the CIS addon leaves behind.
fn harden(tree: &Tree) -> Result<()> {
    for entry in fs::read_dir(tree.data("certs"))? {
        fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn hardened() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.spec.locks = vec!["cis-hardening".to_owned()];
    row.prepare = harden;
    row.written.iter_mut().for_each(|(_, mode)| *mode = 0o600);
    row
}

fn hardened_first() -> Row {
    let mut row = first_install();
    row.spec.locks = vec!["cis-hardening".to_owned()];
    row.prepare = harden;
    row.written.iter_mut().for_each(|(_, mode)| *mode = 0o600);
    row
}
