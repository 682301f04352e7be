//! Trees by their argument files: what kubelite would make of them is what is made of them here.

use std::fs;

use crate::play::{NODE, Row, play};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::age::Age;
use crate::stage::tree::Tree;

pub(crate) const CASES: &[Case] = &[
    Case { name: "arguments::odd-but-good", play: |t| play(&odd(), t), patience: 60 },
    Case { name: "arguments::crlf", play: |t| play(&crlf(), t), patience: 60 },
    Case { name: "arguments::comments", play: |t| play(&comments(), t), patience: 60 },
    Case { name: "arguments::pinned", play: |t| play(&pinned(), t), patience: 60 },
    Case { name: "arguments::a-wildcard-switches-following-off", play: |t| play(&wildcard(), t), patience: 60 },
    Case { name: "arguments::other-ports-and-addresses", play: |t| play(&ports(), t), patience: 60 },
    Case { name: "arguments::a-name-for-the-node", play: |t| play(&renamed(), t), patience: 60 },
    Case { name: "arguments::node-ip", play: |t| play(&node_ip(), t), patience: 60 },
    Case {
        name: "arguments::another-certificate-in-the-folder",
        play: |t| play(&another_certificate(), t),
        patience: 60,
    },
    Case {
        name: "arguments::a-certificate-outside-the-folder",
        play: |t| play(&elsewhere("/etc/ssl/tls.crt"), t),
        patience: 60,
    },
    Case {
        name: "arguments::the-ca-for-a-certificate",
        play: |t| play(&elsewhere("${SNAP_DATA}/certs/ca.crt"), t),
        patience: 60,
    },
    Case { name: "arguments::a-link-out-of-the-folder", play: |t| play(&through_a_link(), t), patience: 60 },
    Case { name: "arguments::a-file-of-a-mebibyte", play: |t| play(&unread(a_mebibyte), t), patience: 60 },
    Case { name: "arguments::a-line-that-kubelite-refuses", play: |t| play(&unread(a_long_line), t), patience: 60 },
    Case { name: "arguments::a-folder-in-its-place", play: |t| play(&unread(a_folder), t), patience: 60 },
    Case { name: "arguments::nul-bytes-and-stray-ones", play: |t| play(&stray(), t), patience: 60 },
    Case { name: "arguments::a-variable-that-is-not-known", play: |t| play(&unknown_variable(), t), patience: 60 },
];

fn server_file(tree: &Tree, change: impl FnOnce(&[u8]) -> Vec<u8>) -> Result<()> {
    let path = tree.data("args/kube-apiserver");
    let text = fs::read(&path)?;
    Ok(fs::write(path, change(&text))?)
}

fn with_arguments(component: &str, lines: &[&str]) -> Row {
    let mut row = Row::of(Age::V1_34);
    row.spec.args.insert(component.to_owned(), lines.iter().map(|line| (*line).to_owned()).collect());
    row
}

/// Quotes, underscores, values in words of their own, repetitions, and no newline at the end.
fn odd() -> Row {
    let mut row = with_arguments(
        "kube-apiserver",
        &[
            "--secure-port=1 --secure_port \"16444\"",
            "\t --service-cluster-ip-range='10.152.183.0/24',\"fd98::/108\"  ",
            "--v=2 # --advertise-address=192.0.2.99",
            "--secure-port=16445 -- --secure-port=16446",
        ],
    );
    row.prepare = |tree| server_file(tree, |text| text.trim_ascii_end().to_vec());
    // What stands behind a # within a line is read like the rest.
    row.reasons =
        vec![("configured-san-missing", "server"), ("address-missing", "server"), ("address-missing", "kubelet")];
    row.holds = vec!["pinned-args"];
    row.names.iter_mut().for_each(|names| names.extend(["fd98::1", "192.0.2.99"].map(str::to_owned)));
    row.steps[0] = "reissue server with 11 names (adding 198.51.100.7)".to_owned();
    row.steps[1] = "confirm that 127.0.0.1:16445 serves the server certificate".to_owned();
    row.ips = format!("192.0.2.99 {NODE} 198.51.100.7");
    row
}

fn crlf() -> Row {
    let mut row = with_arguments("kube-apiserver", &["--secure-port=16444"]);
    row.prepare = |tree| server_file(tree, |text| String::from_utf8_lossy(text).replace('\n', "\r\n").into_bytes());
    row.steps[1] = "confirm that 127.0.0.1:16444 serves the server certificate".to_owned();
    row
}

/// None of these is a flag.
fn comments() -> Row {
    with_arguments(
        "kube-apiserver",
        &[
            "# --bind-address=0.0.0.0",
            "  \t# --advertise-address=192.0.2.99",
            "#--secure-port=1",
            "bind-address=::",
            "-bind-address=::",
        ],
    )
}

fn pinned() -> Row {
    let mut row = with_arguments("kube-apiserver", &["--advertise_address 203.0.113.9"]);
    row.reasons =
        vec![("configured-san-missing", "server"), ("address-missing", "server"), ("address-missing", "kubelet")];
    row.holds = vec!["pinned-args"];
    row.names.iter_mut().for_each(|names| names.push("203.0.113.9".to_owned()));
    row.steps[0] = "reissue server with 10 names (adding 198.51.100.7)".to_owned();
    row.ips = format!("203.0.113.9 {NODE} 198.51.100.7");
    row
}

fn wildcard() -> Row {
    with_arguments("kube-apiserver", &["--bind-address=0.0.0.0"]).held(&["pinned-args"])
}

/// Where the ports are, by the arguments of each component.
fn ports() -> Row {
    let mut row = with_arguments("kube-apiserver", &["--secure-port=6443"]);
    row.spec.args.insert("kubelet".to_owned(), vec!["--port=10260".to_owned(), "--address=192.0.2.10".to_owned()]);
    row.prepare = |tree| Ok(fs::write(tree.data("var/lock/host-access-enabled"), "10.0.1.1")?);
    row.reasons.push(("configured-san-missing", "kubelet"));
    row.steps = [
        "reissue server with 9 names (adding 198.51.100.7)",
        "reissue kubelet with 4 names (adding 198.51.100.7)",
        "confirm that 127.0.0.1:6443 serves the server certificate",
        "restart cluster-agent (loaded-once)",
        "confirm that 192.0.2.10:10260 serves the kubelet certificate",
    ]
    .map(str::to_owned)
    .into();
    row.written.push(("certs/kubelet.crt", 0o660));
    row
}

/// Kubernetes knows the node by another name, and asks its kubelet by that.
fn renamed() -> Row {
    let mut row = with_arguments("kubelet", &["--hostname-override=Edge-7"]).in_step();
    row.verdict = "reissue";
    row.reasons = vec![("configured-san-missing", "kubelet")];
    row.steps = vec![
        "reissue kubelet with 4 names (adding 198.51.100.7)".to_owned(),
        "confirm that 127.0.0.1:10250 serves the kubelet certificate".to_owned(),
    ];
    row.written = vec![("certs/kubelet.crt", 0o660)];
    row
}

/// A pin for the names, not for what is advertised.
fn node_ip() -> Row {
    let mut row = with_arguments("kubelet", &["--node-ip=192.0.2.10,2001:db8::99"]);
    row.reasons = vec![("configured-san-missing", "server"), ("address-missing", "server")];
    row.names.iter_mut().for_each(|names| names.push("2001:db8::99".to_owned()));
    row.steps[0] = "reissue server with 10 names (adding 198.51.100.7)".to_owned();
    row.ips = format!("{NODE} 198.51.100.7 2001:db8::99");
    row
}

/// The API server was told another pair of the same folder: that one is looked after, the other is left as it is.
fn another_certificate() -> Row {
    let mut row = with_arguments(
        "kube-apiserver",
        &[
            "--tls-cert-file=/var/snap/microk8s/current/certs/tls.crt",
            "--tls-private-key-file=$SNAP_DATA/certs/tls.key",
        ],
    );
    row.prepare = |tree| {
        fs::copy(tree.data("certs/server.crt"), tree.data("certs/tls.crt"))?;
        fs::copy(tree.data("certs/server.key"), tree.data("certs/tls.key"))?;
        Ok(())
    };
    row.written = vec![("certs/csr.conf", 0o660), ("certs/tls.crt", 0o660)];
    row.certificate = "certs/tls.crt";
    row
}

fn elsewhere(told: &str) -> Row {
    let mut row =
        with_arguments("kube-apiserver", &[&format!("--tls-cert-file={told}")]).held(&["certificate-elsewhere"]);
    row.said = "kube-apiserver --tls-cert-file=/";
    row
}

/// A member of the group has put a link where the arguments point.
fn through_a_link() -> Row {
    let mut row = with_arguments("kube-apiserver", &["--tls-cert-file=${SNAP_DATA}/args/there/tls.crt"])
        .held(&["certificate-elsewhere"]);
    row.prepare = |tree| Ok(std::os::unix::fs::symlink("/etc/ssl", tree.data("args/there"))?);
    row
}

/// The file cannot be read, so nobody knows whether it switches following off.
fn unread(prepare: fn(&Tree) -> Result<()>) -> Row {
    let mut row = Row::of(Age::V1_34).held(&["args-unreadable"]);
    row.prepare = prepare;
    row
}

fn a_mebibyte(tree: &Tree) -> Result<()> {
    server_file(tree, |_| vec![b'\n'; (1 << 20) + 1])
}

fn a_long_line(tree: &Tree) -> Result<()> {
    server_file(tree, |text| [text, b"--x=", &[b'x'; 65_536]].concat())
}

fn a_folder(tree: &Tree) -> Result<()> {
    let path = tree.data("args/kube-apiserver");
    fs::remove_file(&path)?;
    Ok(fs::create_dir(path)?)
}

/// In a comment and in a flag that nobody asks for here.
fn stray() -> Row {
    let mut row = Row::of(Age::V1_34);
    row.prepare = |tree| server_file(tree, |text| [b"# caf\xe9 \0\n--event-ttl=\xff\0\n", text].concat());
    row
}

/// What stands for a network is not known here: least of all is it the one that MicroK8s ships.
fn unknown_variable() -> Row {
    let mut row = with_arguments("kube-apiserver", &["--service-cluster-ip-range=${SERVICES}"]);
    row.spec.template = Some(crate::stage::tree::template(&[]).replace("IP.2 = 10.152.183.1\n", ""));
    row.spec.sans.retain(|name| name != "10.152.183.1");
    row.names.iter_mut().for_each(|names| names.retain(|name| name != "10.152.183.1"));
    row.steps[0] = "reissue server with 8 names (adding 198.51.100.7)".to_owned();
    row
}
