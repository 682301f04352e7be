//! What the daemon publishes, and what `status` makes of it: for whom, when, and for how long it is true.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{DnType, KeyPair};
use serde_json::Value;

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, expect, same, until};
use crate::runner::{Case, skip};
use crate::stage::authority::Authority;
use crate::stage::timeline::Timeline;
use crate::stage::{Failure, Result};

pub(crate) const CASES: &[Case] = &[
    Case { name: "status::a-pass-is-published-and-a-reissue-too", play: published, patience: 60 },
    Case { name: "status::holds-appear-and-vanish", play: holds, patience: 60 },
    Case { name: "status::stale-behind-a-kill", play: stale, patience: 60 },
    Case { name: "status::another-user-reads-it", play: another_user, patience: 60 },
    Case { name: "status::a-torn-file-is-named", play: torn, patience: 60 },
    Case { name: "status::the-same-again-writes-nothing", play: quiet, patience: 60 },
    Case { name: "status::a-folder-that-takes-nothing", play: refused, patience: 60 },
    Case { name: "status::certificates-in-kubeconfigs", play: kubeconfigs, patience: 90 },
    Case { name: "status::watched", play: watched, patience: 90 },
];

fn file(host: &Host) -> PathBuf {
    host.tree.path("run/ipguard/status.json")
}

fn status(host: &Host) -> Result<Value> {
    host.guard.document(&["status", "--format", "json"], Duration::from_secs(60), &host.timeline)
}

/// Waits until the status says something.
fn await_status(host: &Host, what: &str, says: impl Fn(&Value) -> bool) -> Result<Value> {
    until(what, SOON, || status(host).is_ok_and(|status| says(&status)))?;
    status(host)
}

fn certificate(status: &Value, name: &str) -> Value {
    let all = status["certificates"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|one| one["name"] == name).unwrap_or_default()
}

fn published(timeline: &Timeline) -> Result<()> {
    let mut setup = Setup::default();
    setup.spec.beside = Some(NODE.to_owned());
    let host = Host::with(&setup, timeline)?;
    let before = host.once(&["status"])?;
    same("exit status without a daemon", &before.status.code(), &Some(1))?;
    expect(before.stdout.is_empty() && before.stderr.contains("nothing is published at"), &before.stderr)?;
    expect(!file(&host).exists(), "looking publishes nothing")?;

    // Whoever is told that it is ready finds the status.
    let daemon = host.daemon()?;
    let first = status(&host)?;
    same("state", &first["state"], &"in-step".into())?;
    same("running", &first["running"], &true.into())?;
    same("pid", &first["pid"], &daemon.pid().as_raw().into())?;
    same("node address", &first["node_address"], &serde_json::json!([NODE]))?;
    same("version", &first["ipguard"], &env!("CARGO_PKG_VERSION").into())?;
    same("restarts", &first["restarts"], &serde_json::json!({"used": 0, "limit": 100, "window": "1h"}))?;
    for name in ["server", "front-proxy-client", "kubelet"] {
        let one = certificate(&first, name);
        expect(one["issuer_ok"] == true && one["kind"] == "certificate", format!("{name}: {one}"))?;
        expect(one["days_left"].as_i64().is_some_and(|days| days > 0), format!("{name}: {one}"))?;
    }
    expect(certificate(&first, "server")["san"].to_string().contains(NODE), "its names")?;

    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    let behind = await_status(&host, "an outcome", |status| {
        status["state"] == "in-step" && status["last_outcome"]["ok"] == true
    })?;
    expect(certificate(&behind, "server")["san"].to_string().contains("198.51.100.7"), "the new name")?;
    expect(behind["last_outcome"]["at"].as_str().is_some_and(|at| at.ends_with('Z')), &behind["last_outcome"])?;
    let text = host.once(&["status"])?;
    expect(text.status.success() && text.stdout.starts_with("in-step, unchanged for "), &text.stdout)?;
    expect(text.stderr.is_empty(), &text.stderr)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    same("exit status behind it", &host.once(&["status"])?.status.code(), &Some(1))
}

fn holds(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    same("no hold", &status(&host)?["holds"], &serde_json::json!([]))?;
    fs::write(host.tree.data("var/lock/no-cert-reissue"), "")?;
    host.add("198.51.100.7")?;
    let held = await_status(&host, "the hold", |status| status["holds"][0]["code"] == "reissue-disabled")?;
    expect(held["holds"][0]["until"].is_null(), "no time ends it")?;
    host.tree.lock_del("no-cert-reissue")?;
    await_status(&host, "the hold is gone", |status| status["holds"].as_array().is_some_and(Vec::is_empty))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn stale(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let since = status(&host)?["published"].as_str().unwrap_or_default().to_owned();
    daemon.kill()?;
    let printed = host.once(&["status", "--format", "json"])?;
    same("exit status", &printed.status.code(), &Some(1))?;
    let document: Value = serde_json::from_str(&printed.stdout)?;
    same("running", &document["running"], &false.into())?;
    expect(printed.stderr.contains(&format!("stale since {since}")), &printed.stderr)?;
    let text = host.once(&["status"])?;
    expect(text.stdout.starts_with("stale: in-step "), &text.stdout)?;
    // The next daemon's is true again.
    let daemon = host.daemon()?;
    same("running", &status(&host)?["running"], &true.into())?;
    // So is not one of another boot, whoever has its number now.
    let mut forged: Value = serde_json::from_slice(&fs::read(file(&host))?)?;
    forged["publisher"]["boot_id"] = "another".into();
    fs::write(file(&host), forged.to_string())?;
    same("exit status", &host.once(&["status"])?.status.code(), &Some(1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn another_user(timeline: &Timeline) -> Result<()> {
    // In a user namespace there is only one user.
    if fs::read_to_string("/proc/self/uid_map")?.split_whitespace().nth(2) != Some("4294967295") {
        return skip("not root");
    }
    let host = Host::new(timeline)?;
    // A configuration that is root's alone must not matter to who only looks.
    fs::set_permissions(host.guard.config(), fs::Permissions::from_mode(0o600))?;
    // Whatever the umask of a service is (UMask=0077).
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let daemon = host.daemon();
    nix::sys::stat::umask(before);
    let daemon = daemon?;
    let mode = |path: PathBuf| fs::metadata(path).map(|metadata| metadata.mode() & 0o7777);
    same("mode of the file", &mode(file(&host))?, &0o644)?;
    same("mode of its folder", &mode(host.tree.path("run/ipguard"))?, &0o755)?;
    let program = host.tree.path("state/ipguard");
    fs::copy(&host.guard.program, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["status", "--format", "json", "--root"])
        .arg(host.tree.root())
        .env_clear()
        .output()?;
    expect(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    // The judge of keys reads every file of the tree.
    fs::remove_file(&program)?;
    let document: Value = serde_json::from_slice(&output.stdout)?;
    same("running", &document["running"], &true.into())?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn torn(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let whole = fs::read(file(&host))?;
    let name = file(&host).display().to_string();
    let cuts = (0..whole.len()).step_by(whole.len() / 40).map(|end| whole[..end].to_vec());
    let others =
        [&b"\0\0\0"[..], b"[]", b"null", b"{\"version\":2}", b"\xff", b"{\"version\":1}", b"{\"version\":\"1\"}"];
    for content in cuts.chain(others.into_iter().map(<[u8]>::to_vec)) {
        fs::write(file(&host), &content)?;
        let printed = host.once(&["status"])?;
        let shown = String::from_utf8_lossy(&content[..content.len().min(40)]).into_owned();
        same(&format!("exit status of {shown:?}"), &printed.status.code(), &Some(1))?;
        expect(printed.stdout.is_empty() && printed.stderr.contains(&name), format!("{shown:?}: {}", printed.stderr))?;
        expect(printed.stderr.lines().count() == 1, &printed.stderr)?;
    }
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn quiet(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let identity =
        || fs::metadata(file(&host)).map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()));
    let before = identity()?;
    // Passes that conclude the same.
    for _ in 0..3 {
        kill(daemon.pid(), Signal::SIGHUP)?;
        std::thread::sleep(A_WHILE / 3);
    }
    same("the file", &identity()?, &before)?;
    // One that begins to observe publishes no more, and what it published would seem to be true.
    fs::write(host.guard.config(), format!("observe = true\n{CONFIG}"))?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    until("it is withdrawn", SOON, || !file(&host).exists())?;
    fs::write(host.guard.config(), CONFIG)?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    await_status(&host, "it is published again", |status| status["running"] == true)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn refused(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    // A file in the place of the folder, and a link that leads elsewhere.
    fs::write(host.tree.path("run/ipguard"), "")?;
    let daemon = host.daemon()?;
    host.await_said("`ipguard status` has nothing to show")?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    same("said once", &host.said().matches("has nothing to show").count(), &1)?;
    fs::remove_file(host.tree.path("run/ipguard"))?;
    fs::create_dir(host.tree.path("elsewhere"))?;
    std::os::unix::fs::symlink("../elsewhere", host.tree.path("run/ipguard"))?;
    let daemon = host.daemon()?;
    expect(fs::read_dir(host.tree.path("elsewhere"))?.next().is_none(), "no link is followed")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn base64(text: &str) -> Result<String> {
    let encoded = ipguard::observe::pem::encode("X", text.as_bytes());
    Ok(encoded.lines().filter(|line| !line.starts_with("---")).collect())
}

fn kubeconfig(host: &Host, name: &str, ca: &str, user: &str) -> Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
         clusters:\n- name: k\n  cluster: {{server: 'https://127.0.0.1:16443', {ca}}}\nusers:\n- name: u\n  user: {{{user}}}\n"
    );
    let path = host.tree.data("credentials").join(name);
    fs::write(&path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

fn kubeconfigs(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    // A CA that this test knows takes the place of the tree's, as behind `microk8s refresh-certs`.
    let (current, other) = (Authority::new()?, Authority::new()?);
    fs::write(host.tree.data("certs/ca.crt"), &current.certificate_pem)?;
    fs::write(host.tree.data("certs/ca.key"), &current.key_pem)?;
    let key = KeyPair::generate()?;
    let client = |authority: &Authority, days| authority.sign_for(&[(DnType::CommonName, "admin")], &key, &[], days);
    let data = |authority: &Authority| {
        Ok::<_, Failure>(format!("certificate-authority-data: {}", base64(&authority.certificate_pem)?))
    };
    let embedded = |pem: &str| {
        Ok::<_, Failure>(format!(
            "client-certificate-data: {}, client-key-data: {}",
            base64(pem)?,
            base64(&key.serialize_pem())?
        ))
    };
    let mine = data(&current)?;
    kubeconfig(&host, "good.config", &mine, &embedded(&client(&current, (-1, 200))?)?)?;
    kubeconfig(&host, "expired.config", &mine, &embedded(&client(&current, (-20, -2))?)?)?;
    kubeconfig(&host, "foreign.config", &data(&other)?, &embedded(&client(&other, (-1, 200))?)?)?;
    fs::write(host.tree.data("credentials/file.crt"), client(&current, (-1, 20))?)?;
    kubeconfig(
        &host,
        "file.config",
        "certificate-authority: ../certs/ca.crt",
        "client-certificate: file.crt, client-key: file.key",
    )?;
    kubeconfig(&host, "exec.config", &mine, "exec: {command: /bin/never-run, env: [{name: A, value: s3cret-value}]}")?;
    kubeconfig(&host, "token.config", &mine, "token: s3cret-token")?;
    fs::write(host.tree.data("credentials/bomb.config"), "a: &a [x, x]\nb: [*a, *a]\n")?;
    fs::write(host.tree.data("credentials/known_tokens.csv"), "s3cret-token")?;
    std::os::unix::fs::symlink("/etc/passwd", host.tree.data("credentials/link.config"))?;

    let daemon = host.daemon()?;
    let seen = status(&host)?;
    let is = |name: &str, fields: Value| {
        let one = certificate(&seen, name);
        let as_wanted = fields.as_object().is_some_and(|fields| fields.iter().all(|(key, value)| one[key] == *value));
        expect(as_wanted && one["kind"] == "kubeconfig", format!("{name} is {one}, not {fields}"))
    };
    is("good.config", serde_json::json!({"issuer_ok": true, "authority_ok": true, "remark": null}))?;
    let days = |name: &str| certificate(&seen, name)["days_left"].as_i64().unwrap_or(-1);
    // Made for whole days, of which the first began a moment ago.
    expect((199..=200).contains(&days("good.config")), days("good.config"))?;
    expect((19..=20).contains(&days("file.config")), days("file.config"))?;
    is("expired.config", serde_json::json!({"issuer_ok": true, "authority_ok": true}))?;
    expect(certificate(&seen, "expired.config")["days_left"].as_i64().is_some_and(|days| days < 0), "over")?;
    is("foreign.config", serde_json::json!({"issuer_ok": false, "authority_ok": false}))?;
    is("file.config", serde_json::json!({"issuer_ok": true, "authority_ok": true}))?;
    is("token.config", serde_json::json!({"not_after": null, "days_left": null, "remark": "a token, no certificate"}))?;
    let remark = |name: &str, words: &str| {
        let remark = certificate(&seen, name)["remark"].clone();
        expect(remark.as_str().is_some_and(|remark| remark.contains(words)), format!("{name}: {remark}"))
    };
    remark("exec.config", "exec is not used: it names a program to run")?;
    remark("bomb.config", "line 2: an alias")?;
    remark("link.config", "a symbolic link, which is not followed")?;
    expect(!seen.to_string().contains("known_tokens"), "what is no kubeconfig")?;
    expect(!fs::read_to_string(file(&host))?.contains("s3cret"), "nothing secret is published")?;
    expect(!host.said().contains("s3cret"), "nor said")?;
    let text = host.once(&["status"])?.stdout;
    expect(text.contains("expired.config") && text.contains("not issued by the current CA"), &text)?;

    // One is replaced: seen without anything else happening.
    kubeconfig(&host, "foreign.config", &mine, &embedded(&client(&current, (-1, 100))?)?)?;
    await_status(&host, "the new one", |status| {
        (99..=100).contains(&certificate(status, "foreign.config")["days_left"].as_i64().unwrap_or(-1))
    })?;
    // The one file that nobody told us about when it changed is seen at the next look.
    fs::write(host.tree.data("credentials/file.crt"), client(&current, (-1, 50))?)?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    await_status(&host, "the new file", |status| {
        (49..=50).contains(&certificate(status, "file.config")["days_left"].as_i64().unwrap_or(-1))
    })?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Ends with the test, whatever becomes of it.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watched(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut watcher = Watcher(
        Command::new(&host.guard.program)
            .args(["status", "--watch", "--format", "json", "--root"])
            .arg(host.tree.root())
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let stdout = watcher.0.stdout.take().ok_or("no stdout")?;
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(std::io::Result::ok).for_each(|line| _ = sender.send(line));
    });
    // Each line is a document of its own. What is waited for comes sooner or later, never by being asked for.
    let next = |what: &str, says: fn(&Value) -> bool| -> Result<()> {
        loop {
            let line = lines.recv_timeout(SOON).map_err(|_| format!("nothing is printed: {what}"))?;
            if says(&serde_json::from_str(&line)?) {
                return Ok(());
            }
        }
    };
    std::thread::sleep(Duration::from_millis(300));
    expect(watcher.0.try_wait()?.is_none(), "it waits for the first daemon")?;
    let daemon = host.daemon()?;
    next("the first pass", |document| document["running"] == true && document["state"] == "in-step")?;
    host.add("198.51.100.7")?;
    next("the reissue", |document| {
        document["state"] == "in-step" && certificate(document, "server")["san"].to_string().contains("198.51.100.7")
    })?;
    let usage = |pid: u32| -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.ok_or("no such line")?.trim().parse()?)
    };
    // What the reissue brought with it is over, and so is the way back to sleep.
    std::thread::sleep(A_WHILE);
    let before = usage(watcher.0.id())?;
    std::thread::sleep(A_WHILE);
    same("wakeups while nothing changes", &usage(watcher.0.id())?, &before)?;
    daemon.kill()?;
    next("the end of the daemon", |document| document["running"] == false)?;
    fs::remove_dir_all(host.tree.path("run/ipguard"))?;
    let daemon = host.daemon()?;
    next("the next daemon", |document| document["running"] == true)?;
    kill(Pid::from_raw(i32::try_from(watcher.0.id())?), Signal::SIGINT)?;
    let deadline = Instant::now() + SOON;
    while watcher.0.try_wait()?.is_none() {
        expect(Instant::now() < deadline, "it ends when it is interrupted")?;
        std::thread::sleep(Duration::from_millis(10));
    }
    reader.join().map_err(|_| "a reader panicked")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
