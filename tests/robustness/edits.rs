//! Files that people, scripts and snapd change while the daemon runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, Usage, expect, put, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::authority;
use crate::stage::namespace::ip;
use crate::stage::timeline::Timeline;
use crate::stage::tree::{MARKER, template};

pub(crate) const CASES: &[Case] = &[
    Case { name: "edits::the-template-in-every-way", play: template_edits, patience: 50 },
    Case { name: "edits::refresh-certs", play: refresh_certs, patience: 120 },
    Case { name: "edits::refresh-certs-while-a-look-is-due", play: refresh_certs_with_a_look_due, patience: 150 },
    Case { name: "edits::no-cert-reissue", play: no_cert_reissue, patience: 40 },
    Case { name: "edits::join-in-progress", play: join_in_progress, patience: 40 },
    Case { name: "edits::an-address-is-pinned", play: pinned, patience: 40 },
    Case { name: "edits::join-tokens", play: join_tokens, patience: 60 },
    Case { name: "edits::csr-conf", play: request_edits, patience: 40 },
    Case { name: "edits::a-bundle-of-other-cas", play: bundle_edits, patience: 40 },
    Case { name: "edits::a-snap-refresh", play: snap_refresh, patience: 50 },
    Case { name: "edits::a-refresh-hides-the-pod-network", play: hidden_pod_network, patience: 40 },
    Case { name: "edits::a-lock-folder-that-is-a-link", play: linked_locks, patience: 40 },
];

fn with_name(name: &str) -> String {
    template(&[format!("DNS.9 = {name}")])
}

fn template_edits(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let path = host.tree.data("certs/csr.conf.template");
    let daemon = host.daemon()?;
    let await_name = |name: &str| until(name, SOON, || host.covers(&format!("DNS:{name}")));
    timeline.note("step", "in place");
    fs::write(&path, with_name("one.example.org"))?;
    await_name("one.example.org")?;
    timeline.note("step", "by rename");
    put(&path, &with_name("two.example.org"), 0o660)?;
    await_name("two.example.org")?;
    timeline.note("step", "deleted and made again");
    fs::remove_file(&path)?;
    sleep(Duration::from_millis(100));
    fs::write(&path, with_name("three.example.org"))?;
    await_name("three.example.org")?;
    host.await_restarts((0, 3))?;
    timeline.note("step", "gone for longer");
    fs::remove_file(&path)?;
    host.nothing_happens(A_WHILE)?;
    fs::write(&path, with_name("four.example.org"))?;
    await_name("four.example.org")?;
    timeline.note("step", "written slowly, then broken, then put right");
    fs::write(&path, "[ req ]\n")?;
    sleep(Duration::from_millis(150));
    fs::write(&path, with_name("five.example.org"))?;
    await_name("five.example.org")?;
    host.await_restarts((0, 5))?;
    same("reissues", &host.reissues(), &5)?;
    expect(host.covers(NODE), "the node address stays")?;
    host.pair_is_usable()?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Deletes the certificate and writes it anew: whoever makes one in between races the script. Whether the script was as
/// quick as `quick`; one that a busy machine held up shows nothing, and is not judged.
fn play_refresh_certs(host: &Host, between: Duration, quick: Duration) -> Result<bool> {
    let path = host.tree.server_certificate();
    let text = fs::read(&path)?;
    host.timeline.note("step", "refresh-certs deletes");
    let began = Instant::now();
    fs::remove_file(&path)?;
    sleep(between);
    let untouched = !path.exists();
    // Asked behind the look: what was made before the look was made within this time.
    if began.elapsed() >= quick {
        host.timeline.note("step", "the script was held up");
        return Ok(false);
    }
    expect(untouched, "nobody made a certificate in between")?;
    fs::write(&path, text)?;
    let in_time = began.elapsed() < quick;
    host.timeline.note("step", "refresh-certs has written");
    sleep(Duration::from_millis(50));
    Ok(in_time)
}

/// Tries, of which a busy machine may spoil some.
const TRIES: usize = 12;

fn refresh_certs(timeline: &Timeline) -> Result<()> {
    let config = CONFIG.replace("300ms", "1s").replace("\"2s\"\npromotion", "\"6s\"\npromotion");
    let host = Host::with(&Setup { config, ..Setup::default() }, timeline)?;
    let daemon = host.daemon()?;
    let (mut shown, mut spoilt) = (0, 0);
    while shown < 3 {
        let reissues = host.state()["reissues"].clone();
        let before = fs::read(host.tree.server_certificate())?;
        // The daemon waits for 1 s of quiet from the moment it notices.
        if play_refresh_certs(&host, Duration::from_millis(600), Duration::from_millis(950))? {
            shown += 1;
            host.nothing_happens(A_WHILE)?;
            expect(fs::read(host.tree.server_certificate())? == before, "the script's certificate is in place")?;
            same("reissues", &host.state()["reissues"], &reissues)?;
            same("restarts of kubelite", &host.restarts()?.0, &0)?;
        } else {
            spoilt += 1;
            expect(spoilt < TRIES, "this machine is too busy to play a script of 0.6 s")?;
            until("a usable certificate", SOON, || host.pair_is_usable().is_ok())?;
            // What the held-up script caused is done before the next one.
            until("in step", SOON, || host.once(&["check"]).is_ok_and(|printed| printed.status.code() == Some(0)))?;
            sleep(A_WHILE);
        }
    }
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Time makes another look due - the promotion hold of a lost address ends - just while the script is at work.
fn refresh_certs_with_a_look_due(timeline: &Timeline) -> Result<()> {
    // The scene can be played once on a host, and the namespace has one: another try takes the links away first.
    for _ in 0..4 {
        if look_due(timeline)? {
            return Ok(());
        }
        ip("link del eth0")?;
    }
    Err("this machine is too busy to play a script of 0.7 s".into())
}

/// Whether the script was not held up.
fn look_due(timeline: &Timeline) -> Result<bool> {
    let config = CONFIG
        .replace("300ms", "1s")
        .replace("\"2s\"\npromotion", "\"8s\"\npromotion")
        .replace("promotion_hold = \"1s\"", "promotion_hold = \"3s\"");
    let host = Host::with(&Setup { config, ..Setup::default() }, timeline)?;
    let daemon = host.daemon()?;
    // The settled pass is due 1 s after this, and the next look 3 s after that.
    host.ip(&format!("addr del {NODE}/24 dev eth0"))?;
    host.ip("addr add 203.0.113.5/24 dev eth0")?;
    host.ip("route add default via 203.0.113.1")?;
    host.await_restarts((0, 1))?;
    sleep(Duration::from_millis(2500));
    if !play_refresh_certs(&host, Duration::from_millis(700), Duration::from_millis(950))? {
        daemon.stop(SOON)?;
        return Ok(false);
    }
    host.await_covered("203.0.113.5")?;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    Ok(true)
}

fn no_cert_reissue(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let lock = host.tree.data("var/lock/no-cert-reissue");
    fs::write(&lock, "")?;
    sleep(Duration::from_millis(100));
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.add("198.51.100.7")?;
    host.await_said("no-cert-reissue")?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &0)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    timeline.note("step", "the lock is removed");
    fs::remove_file(&lock)?;
    host.await_covered("198.51.100.7")?;
    host.await_covered("192.0.2.11")?;
    host.await_restarts((1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn join_in_progress(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let lock = host.tree.data("var/lock/join-in-progress");
    fs::write(&lock, "")?;
    host.add("198.51.100.7")?;
    host.await_said("join-in-progress")?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &0)?;
    timeline.note("step", "it was left behind 16 minutes ago");
    let status = Command::new("touch").args(["-d", "16 minutes ago"]).arg(&lock).status()?;
    expect(status.success(), "touch works")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.await_said("left behind")?;
    let printed = host.once(&["check"])?;
    same("exit status of check", &printed.status.code(), &Some(0))?;
    expect(printed.stdout.contains("join-in-progress"), "check says that the lock is ignored")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A second address waits for a node that may still join; it comes at once when the token is used up, or with the node
/// address. The token is nobody's business.
fn join_tokens(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let (path, token) = (host.tree.data("credentials/cluster-tokens.txt"), "5a9f4e0c7d1b42d6a83e9c10b7f25d31");
    fs::write(&path, format!("{token}\n"))?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_said("a join token is outstanding")?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &0)?;
    let printed = host.once(&["check", "--format", "json"])?;
    expect(printed.stdout.contains("\"join-tokens\""), "check says why")?;
    timeline.note("step", "a node has joined");
    fs::write(&path, "")?;
    host.await_covered("198.51.100.7")?;
    timeline.note("step", "another token, and the node moves");
    fs::write(&path, format!("{token}|{}\n", i64::MAX / 1000))?;
    host.add("198.51.101.7")?;
    until("it waits", SOON, || host.said().matches("a join token is outstanding").count() > 1)?;
    expect(!host.covers("198.51.101.7"), "it waits")?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    expect(host.covers("198.51.101.7"), "one certificate serves both")?;
    host.await_restarts((0, 2))?;
    timeline.note("step", "somebody does not want to wait");
    host.add("198.51.102.7")?;
    until("it waits", SOON, || host.said().matches("a join token is outstanding").count() > 2)?;
    same("exit status", &host.once(&["renew", "server"])?.status.code(), &Some(0))?;
    host.await_covered("198.51.102.7")?;
    expect(!host.said().contains(token) && !printed.stdout.contains(token), "the token is not said")?;
    expect(!host.state().to_string().contains(token), "nor remembered")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// An advertise address freezes following, and gets into the certificate itself.
fn pinned(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let path = host.tree.data("args/kube-apiserver");
    let before = fs::read_to_string(&path)?;
    put(&path, &format!("{before}--advertise-address=203.0.113.7\n"), 0o660)?;
    host.await_covered("203.0.113.7")?;
    host.await_restarts((0, 1))?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.nothing_happens(A_WHILE)?;
    expect(!host.covers("192.0.2.11"), "not followed")?;
    timeline.note("step", "the pin is removed");
    fs::write(&path, before)?;
    host.await_covered("192.0.2.11")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A request file that makes no sense any more is seen and put right at once, and that wakes nobody: least of all us.
fn request_edits(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let path = host.tree.data("certs/csr.conf");
    let daemon = host.daemon()?;
    let before = fs::read_to_string(&path)?;
    for text in ["changeme\n", "", "[ req\n"] {
        fs::write(&path, text)?;
        until("csr.conf is written anew", SOON, || fs::read_to_string(&path).is_ok_and(|now| now.contains(NODE)))?;
        // Shorter than `quiet`: a pass that our own write had asked for would come within the span that is measured.
        sleep(Duration::from_millis(150));
        let wakeups = Usage::of(&daemon)?.wakeups;
        sleep(Duration::from_millis(1500));
        same("wake-ups behind it", &(Usage::of(&daemon)?.wakeups - wakeups), &0)?;
    }
    timeline.note("step", "one that makes sense is somebody's own");
    let theirs = before.replace(NODE, "203.0.113.9");
    fs::write(&path, &theirs)?;
    host.nothing_happens(A_WHILE)?;
    expect(fs::read_to_string(&path)? == theirs, "it is as they left it")?;
    same("reissues", &host.reissues(), &0)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A certificate by a CA of the bundle is left alone, until that CA is taken out of it.
fn bundle_edits(timeline: &Timeline) -> Result<()> {
    let config = CONFIG.replace("[certificate]", "[certificate]\nforeign_bundle = \"/etc/ssl/others.pem\"");
    let host = Host::with(&Setup { config, ..Setup::default() }, timeline)?;
    let (theirs, another) = (authority::Authority::new()?, authority::Authority::named("another")?);
    let bundle = host.tree.path("etc/ssl/others.pem");
    fs::create_dir(host.tree.path("etc/ssl"))?;
    fs::write(&bundle, [theirs.certificate_pem.as_str(), &another.certificate_pem].concat())?;
    let key = rcgen::KeyPair::from_pem(&fs::read_to_string(host.tree.data("certs/server.key"))?)?;
    let names = ["DNS:kubernetes".to_owned()];
    host.tree.write("server.crt", &theirs.sign(&key, &names)?)?;
    until("the watcher has seen it", SOON, || host.reissues() == 1)?;
    let daemon = host.daemon()?;
    host.await_said("left alone")?;
    host.nothing_happens(A_WHILE)?;
    timeline.note("step", "the CA is taken out of the bundle");
    put(&bundle, &another.certificate_pem, 0o644)?;
    host.await_covered(NODE)?;
    host.await_restarts((0, 1))?;
    same("reissues", &host.reissues(), &2)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// snapd copies the data to a new revision's folder and moves the link; for a moment there is none.
fn snap_refresh(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let snap = host.tree.path("var/snap/microk8s");
    let status = Command::new("cp").arg("-a").arg(snap.join("7400")).arg(snap.join("7500")).status()?;
    expect(status.success(), "cp works")?;
    let old = snap.join("7400/certs/server.crt");
    let before = fs::read(&old)?;
    timeline.note("step", "current leads nowhere");
    fs::remove_file(snap.join("current"))?;
    symlink("7600", snap.join("current"))?;
    host.add("198.51.100.7")?;
    sleep(Duration::from_secs(2));
    host.await_said("everything waits until it is there")?;
    timeline.note("step", "current leads to the new revision");
    symlink("7500", snap.join("new"))?;
    fs::rename(snap.join("new"), snap.join("current"))?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    expect(fs::read(&old)? == before, "the old revision is untouched")?;
    expect(authority::names(&snap.join("7500/certs/server.crt"))?.contains("198.51.100.7"), "the new one covers it")?;
    // Edits in the new revision are seen.
    fs::write(host.tree.data("certs/csr.conf.template"), with_name("new.example.org"))?;
    until("new.example.org", SOON, || host.covers("DNS:new.example.org"))?;
    expect(fs::read(&old)? == before, "the old revision is untouched")?;
    expect(!fs::read_to_string(host.tree.data("certs/csr.conf"))?.contains(MARKER), "csr.conf is in the new one")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // A daemon that starts in such a moment finds its way as well.
    fs::remove_file(snap.join("current"))?;
    symlink("7600", snap.join("current"))?;
    let daemon = host.daemon()?;
    host.add("198.51.101.7")?;
    sleep(Duration::from_millis(800));
    symlink("7500", snap.join("new"))?;
    fs::rename(snap.join("new"), snap.join("current"))?;
    host.await_covered("198.51.101.7")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// While `current` leads nowhere the pod network is not known. An address of it that comes just then must not be
/// remembered as the node's own.
fn hidden_pod_network(timeline: &Timeline) -> Result<()> {
    let mut setup = Setup::default();
    setup.spec.args.insert("kube-proxy".to_owned(), vec!["--cluster-cidr=172.20.0.0/16".to_owned()]);
    let host = Host::with(&setup, timeline)?;
    let daemon = host.daemon()?;
    host.ip("link add brpods type veth peer name far1")?;
    host.ip("link set brpods up")?;
    let before = fs::read(host.tree.server_certificate())?;
    let current = host.tree.path("var/snap/microk8s/current");
    fs::remove_file(&current)?;
    host.ip("addr add 172.20.7.1/32 dev brpods")?;
    sleep(Duration::from_secs(2));
    symlink("7400", &current)?;
    sleep(A_WHILE);
    expect(fs::read(host.tree.server_certificate())? == before, "the certificate is the one from before")?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    let printed = host.once(&["ips"])?;
    same("ips", &printed.stdout.trim(), &NODE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Whoever may write beside the lock folder can put a link in its place: what lies behind it says nothing, and what the
/// locks forbid is not known.
fn linked_locks(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let (folder, aside) = (host.tree.data("var/lock"), host.tree.data("var/lock.aside"));
    std::fs::rename(&folder, &aside)?;
    std::os::unix::fs::symlink("lock.aside", &folder)?;
    host.add("198.51.100.7")?;
    let before = std::fs::read(host.tree.server_certificate())?;
    let printed = host.once(&["check", "--apply"])?;
    expect(printed.stdout.contains("locks-unreadable"), &printed.stdout)?;
    same("exit status", &printed.status.code(), &Some(0))?;
    same("the certificate", &std::fs::read(host.tree.server_certificate())?, &before)?;
    // A file in its place forbids nothing either.
    std::fs::remove_file(&folder)?;
    std::fs::write(&folder, "")?;
    expect(host.once(&["check"])?.stdout.contains("locks-unreadable"), "a file is no folder")?;
    // None at all is a node without locks.
    std::fs::remove_file(&folder)?;
    same("exit status", &host.once(&["check", "--apply"])?.status.code(), &Some(0))?;
    expect(host.covers("198.51.100.7"), "covered")
}
