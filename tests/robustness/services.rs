//! Service managers that are missing, fail, hang or lie, and a port that serves something else.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustls::{ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::host::{A_WHILE, Host, NODE, SOON, Setup, await_status, expect, is_calm, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::authority::Authority;
use crate::stage::guard::Daemon;
use crate::stage::services;
use crate::stage::timeline::{Timeline, monotonic};

pub(crate) const CASES: &[Case] = &[
    Case { name: "services::snap-is-missing", play: no_snap, patience: 60 },
    Case { name: "services::snap-fails", play: snap_fails, patience: 60 },
    Case { name: "services::snap-says-start-limit-hit", play: start_limit, patience: 60 },
    Case { name: "services::snap-says-change-in-progress", play: change_in_progress, patience: 60 },
    Case { name: "services::systemctl-is-missing", play: no_systemctl, patience: 70 },
    Case { name: "services::systemctl-fails", play: systemctl_fails, patience: 70 },
    Case { name: "services::systemctl-prints-garbage", play: systemctl_garbage, patience: 70 },
    Case { name: "services::the-loop-turns-while-a-restart-hangs", play: restart_hangs, patience: 50 },
    Case { name: "services::systemctl-hangs", play: systemctl_hangs, patience: 80 },
    Case { name: "services::inactive-is-never-started", play: inactive, patience: 40 },
    Case { name: "services::nothing-listens", play: nothing_listens, patience: 40 },
    Case { name: "services::a-restarted-api-server-says-that-it-is-ready", play: ready, patience: 60 },
    Case { name: "services::one-that-fails-behind-a-restart-is-brought-up-again", play: fails_behind, patience: 90 },
    Case { name: "services::one-that-keeps-failing-is-said-and-no-loop", play: keeps_failing, patience: 90 },
    Case { name: "services::the-port-speaks-no-tls", play: no_tls, patience: 40 },
    Case { name: "services::the-port-serves-another-certificate", play: another_certificate, patience: 60 },
    Case { name: "services::a-failed-restart-for-a-stale-port-is-tried-again", play: stale_retry, patience: 80 },
];

/// The first pause of the back-off, and some more.
const AFTER_BACK_OFF: Duration = Duration::from_secs(25);

/// The certificate is made; the restart fails, is said to, is neither repeated at once nor forgotten.
fn snap_trouble(timeline: &Timeline, break_it: impl Fn(&Host) -> Result<()>, said: &str) -> Result<()> {
    let host = Host::new(timeline)?;
    break_it(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_said(said)?;
    is_calm(&host, &daemon)?;
    host.restore_stand_in("snap")?;
    until("the cluster-agent is restarted", AFTER_BACK_OFF, || host.restarts().is_ok_and(|now| now == (0, 1)))?;
    host.nothing_happens(A_WHILE)?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn no_snap(timeline: &Timeline) -> Result<()> {
    let missing = |host: &Host| {
        host.replace_stand_in("snap", "")?;
        Ok(std::fs::remove_file(host.tree.path("usr/bin/snap"))?)
    };
    snap_trouble(timeline, missing, "cannot be started")
}

fn snap_fails(timeline: &Timeline) -> Result<()> {
    let script = "echo 'error: cannot communicate with server' >&2; exit 1";
    snap_trouble(timeline, |host| host.replace_stand_in("snap", script), "cannot communicate with server")
}

fn start_limit(timeline: &Timeline) -> Result<()> {
    let script = "echo 'Job for x.service failed. x.service: Start request repeated too quickly.' >&2; exit 1";
    snap_trouble(timeline, |host| host.replace_stand_in("snap", script), "start-limit-hit")
}

/// snapd is busy with another change: tried again within the same step.
fn change_in_progress(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let script = "if [ ! -e \"$root/state/refused\" ]; then : > \"$root/state/refused\"\n\
        echo 'error: snap \"microk8s\" has \"refresh-snap\" change in progress' >&2; exit 10; fi\n\
        exec \"$real\" \"$@\"";
    host.replace_stand_in("snap", script)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    expect(host.tree.path("state/refused").exists(), "it was refused once")?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Nobody knows whether the services run: nothing is restarted, until somebody does.
fn systemctl_trouble(timeline: &Timeline, break_it: impl Fn(&Host) -> Result<()>, said: &str) -> Result<()> {
    let host = Host::new(timeline)?;
    break_it(&host)?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    host.await_said(said)?;
    is_calm(&host, &daemon)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    host.restore_stand_in("systemctl")?;
    // Without any event: the question is asked again.
    let done = || host.restarts().is_ok_and(|now| now == (1, 1));
    until("both are restarted", Duration::from_secs(45), done)?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn no_systemctl(timeline: &Timeline) -> Result<()> {
    let missing = |host: &Host| {
        host.replace_stand_in("systemctl", "")?;
        Ok(std::fs::remove_file(host.tree.path("usr/bin/systemctl"))?)
    };
    systemctl_trouble(timeline, missing, "cannot be started")
}

fn systemctl_fails(timeline: &Timeline) -> Result<()> {
    let script = "echo 'Failed to connect to bus' >&2; exit 1";
    systemctl_trouble(timeline, |host| host.replace_stand_in("systemctl", script), "Failed to connect to bus")
}

fn systemctl_garbage(timeline: &Timeline) -> Result<()> {
    let script = "head -c 300000 /dev/zero | tr '\\0' '='; printf '\\nActiveState\\n\\377active\\n\\nId=\\n'";
    systemctl_trouble(timeline, |host| host.replace_stand_in("systemctl", script), "no answer about")
}

/// A question has 30 s; what hangs is killed then, with all it started, and nobody waits for it in the meantime.
fn systemctl_hangs(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let script = "[ -e \"$root/state/child\" ] && exec \"$real\" \"$@\"\n\
        sleep 1000 & echo $! > \"$root/state/child\"; wait";
    host.replace_stand_in("systemctl", script)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    let child = host.tree.path("state/child");
    until("the question is asked", SOON, || child.exists())?;
    is_calm(&host, &daemon)?;
    let hanging = Pid::from_raw(std::fs::read_to_string(&child)?.trim().parse()?);
    until("the hanging command is killed", Duration::from_secs(35), || kill(hanging, None).is_err())?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Stopped services stay stopped, and take the new certificate and address when somebody starts them.
fn inactive(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    let daemon = host.daemon()?;
    services::set_active(host.tree.root(), None)?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    host.nothing_happens(A_WHILE * 2)?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    is_calm(&host, &daemon)?;
    services::set_active(host.tree.root(), Some(monotonic()))?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// What is said to the watchdog over some seconds, and that it would have been content all the time.
fn watchdog_is_fed(daemon: &mut Daemon, span: Duration, patience: Duration) -> Result<()> {
    let began = Instant::now();
    let heard = daemon.heard_over(span)?;
    let fed: Vec<Instant> = heard.iter().filter(|(_, said)| said == "WATCHDOG=1").map(|(at, _)| *at).collect();
    let times = [&[began], fed.as_slice(), &[Instant::now()]].concat();
    let longest = times.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default();
    expect(longest < patience, format!("the watchdog was left without a word for {longest:?}"))?;
    // Half its patience: not more often than asked for.
    let most = span.as_millis() / (patience / 2).as_millis() + 2;
    expect(fed.len() as u128 <= most, format!("{} words in {span:?}, at most {most}", fed.len()))
}

/// A restart that takes many seconds: the watchdog is fed all the time, events are taken in, signals are served.
fn restart_hangs(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    let patience = Duration::from_secs(2);
    host.guard.environment.push(("WATCHDOG_USEC".into(), patience.as_micros().to_string().into()));
    host.replace_stand_in(
        "snap",
        "\"$real\" \"$@\"; case $2 in *kubelite) sleep 12; echo > \"$root/state/over\" ;; esac",
    )?;
    let mut daemon = host.daemon()?;
    watchdog_is_fed(&mut daemon, Duration::from_secs(5), patience)?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("kubelite is being restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    host.add("198.51.100.7")?;
    watchdog_is_fed(&mut daemon, Duration::from_secs(8), patience)?;
    expect(!host.tree.path("state/over").exists(), "the restart is still under way")?;
    // The event of the meantime is acted on once the restart is over.
    host.await_covered("198.51.100.7")?;
    expect(host.tree.path("state/over").exists(), "the restart is over")?;
    host.restore_stand_in("snap")?;
    host.await_restarts((1, 2))?;
    watchdog_is_fed(&mut daemon, Duration::from_secs(3), patience)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The service runs, the port is closed: the files stay, the cluster-agent gets its restart, kubelite none.
fn nothing_listens(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::Closed, ..Setup::default() }, timeline)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Behind a restart the API server is asked with its own certificate whether it is ready; what it is waiting for is said.
fn ready(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_restarts((1, 1))?;
    host.await_said("is ready (/readyz): ready")?;
    let awaited = |host: &Host| host.state()["awaited_ready"].clone();
    until("nothing is awaited any more", SOON, || awaited(&host).is_null())?;
    // A restart behind which it waits for its data store. The question takes three minutes, and an event ends it.
    std::fs::write(host.tree.path("state/not-ready"), "etcd")?;
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    host.await_restarts((2, 2))?;
    host.await_said("served")?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    until("it is awaited", SOON, || !awaited(&host).is_null())?;
    daemon.kill()?;
    let printed = host.once(&["check", "--apply"])?;
    expect(printed.stdout.contains("etcd failed: reason withheld"), &printed.stdout)?;
    let printed = host.once(&["check"])?;
    for words in ["is not ready", "status 500: etcd failed: reason withheld"] {
        expect(printed.stdout.contains(words), format!("check says {words:?}: {}", printed.stdout))?;
    }
    same("a report is no change that is needed", &printed.status.code(), &Some(0))?;
    // It is, at last; nobody was restarted for it.
    std::fs::remove_file(host.tree.path("state/not-ready"))?;
    let daemon = host.daemon()?;
    until("nothing is awaited any more", Duration::from_secs(45), || awaited(&host).is_null())?;
    same("restarts", &host.restarts()?, &(2, 2))?;
    expect(!host.once(&["check"])?.stdout.contains("not ready"), "it is said no more")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Takes the API server's place on its port.
fn impostor(host: &mut Host, answer: impl Fn(std::net::TcpStream) + Send + 'static) -> Result<()> {
    host.server = None;
    services::set_active(host.tree.root(), Some(monotonic()))?;
    // Without the stand-in of the API server there is nobody whose end a restart could wait for.
    std::fs::remove_file(host.tree.path(&format!("state/{}.stopped", services::KUBELITE)))?;
    let listener = TcpListener::bind(("::", 16443))?;
    thread::spawn(move || listener.incoming().flatten().for_each(&answer));
    Ok(())
}

fn no_tls(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    impostor(&mut host, |mut stream| {
        // A client that has gone is no concern.
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
    })?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Serves a certificate of its own, whatever is on disk.
fn serve_another(host: &mut Host) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    let certificate = Authority::new()?.sign(&key, &["127.0.0.1".to_owned()])?;
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes())?;
    let config = Arc::new(ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key)?);
    impostor(host, move |mut stream| {
        let config = Arc::clone(&config);
        thread::spawn(move || {
            let Ok(mut connection) = ServerConnection::new(config) else { return };
            while connection.is_handshaking() && connection.complete_io(&mut stream).is_ok() {}
        });
    })
}

/// One restart, which does not help; then a notice for as long as it lasts, and never a second restart.
fn another_certificate(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    serve_another(&mut host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    let restarted = |now: (usize, usize)| now.0 == 1;
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(restarted))?;
    sleep(Duration::from_secs(1));
    // It now waits three minutes for a restarted kubelite; an event ends the wait, and the question is a short one then.
    for _ in 0..3 {
        kill(daemon.pid(), Signal::SIGHUP)?;
        sleep(Duration::from_millis(3500));
    }
    host.await_said("even after a restart")?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE * 2)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    let printed = host.once(&["check"])?;
    expect(printed.stdout.contains("even after a restart"), "check says so too")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The API server does not reload, and the restart for it fails: it is tried again later, for it has not happened.
fn stale_retry(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::AtRestart, ..Setup::default() }, timeline)?;
    host.replace_stand_in(
        "snap",
        "case $2 in *kubelite) echo 'error: not now' >&2; exit 1 ;; esac\nexec \"$real\" \"$@\"",
    )?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_said("error: not now")?;
    expect(host.covers("198.51.100.7"), "covered")?;
    host.restore_stand_in("snap")?;
    sleep(Duration::from_secs(1));
    kill(daemon.pid(), Signal::SIGHUP)?;
    until("kubelite is restarted", Duration::from_secs(50), || host.restarts().is_ok_and(|now| now.0 == 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// A kubelite that systemd gives up where `condition`, a command of the shell, holds behind its restart.
fn gives_up_where(host: &Host, condition: &str) -> Result<()> {
    let unit = services::KUBELITE;
    let script = format!(
        "\"$real\" \"$@\"\ncase $2 in *kubelite) if {condition}; then echo failed > \"$root/state/{unit}.active\";\n\
         else echo active > \"$root/state/{unit}.active\"; fi ;; esac"
    );
    host.replace_stand_in("snap", &script)
}

/// With the new certificate it does not come up: the one before is back, it is restarted with that one, and comes up.
fn fails_behind(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::AtRestart, ..Setup::default() }, timeline)?;
    let first = std::fs::read(host.tree.server_certificate())?;
    std::fs::write(host.tree.path("state/first.crt"), &first)?;
    gives_up_where(
        &host,
        &format!("! cmp -s \"$root/state/first.crt\" '{}'", host.tree.server_certificate().display()),
    )?;
    let mut daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_said("kubelite did not come back: failed")?;
    host.await_said("put the server certificate")?;
    until("kubelite is restarted with it", SOON, || host.restarts().is_ok_and(|now| now.0 == 2))?;
    expect(std::fs::read(host.tree.server_certificate())? == first, "the certificate before is back")?;
    host.await_said("is ready (/readyz): ready")?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    daemon.hears()?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    await_status(&mut daemon, &["by rolled-back", "could not use the one behind it"])?;
    same("restarts of kubelite", &host.restarts()?.0, &2)?;
    same("certificates so far", &host.reissues(), &2)?;
    same("moments without a certificate", &host.watch.sightings().broken, &Vec::new())?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Nothing helps. It is said in the log, in the status and by `check`, and tried again as often as the limit allows.
fn keeps_failing(timeline: &Timeline) -> Result<()> {
    let config = crate::host::CONFIG.replace("limit = 100\njitter", "limit = 2\njitter");
    let host = Host::with(&Setup { config, ..Setup::default() }, timeline)?;
    gives_up_where(&host, "true")?;
    let mut daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("it is tried once more", SOON, || host.restarts().is_ok_and(|now| now.0 == 2))?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    // Ten messages are all that nobody has read.
    daemon.hears()?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    let down = "attention: kubelite did not come back behind the restart at 20";
    await_status(&mut daemon, &["by restart-limit", down, "journalctl -u"])?;
    daemon.kill()?;
    // Another process knows it too, and a second look changes nothing.
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    let printed = host.once(&["check"])?;
    for words in ["service-down", "restart-limit", "did not come back"] {
        expect(printed.stdout.contains(words), format!("check says {words:?}: {}", printed.stdout))?;
    }
    same("restarts of kubelite", &host.restarts()?.0, &2)?;
    // Somebody puts it right: it is said no more, without any restart of ours.
    host.restore_stand_in("snap")?;
    services::set_active(host.tree.root(), Some(monotonic()))?;
    kill(daemon.pid(), Signal::SIGHUP)?;
    until("it is said no more", SOON, || {
        host.once(&["check"]).is_ok_and(|printed| !printed.stdout.contains("did not come back"))
    })?;
    same("restarts of kubelite", &host.restarts()?.0, &2)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
