//! The certificates that were replaced, on a whole host: kept, put back, held, and signed anew on request.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::host::{A_WHILE, CONFIG, Host, SOON, Setup, expect, is_calm, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "generations::five-of-six-reissues-are-kept", play: six_reissues, patience: 40 },
    Case { name: "generations::a-rollback-holds-until-renew", play: until_renew, patience: 60 },
    Case { name: "generations::a-rollback-behind-an-edit-under-a-running-daemon", play: behind_an_edit, patience: 60 },
    Case { name: "generations::a-rollback-holds-until-the-template-changes", play: until_edited, patience: 60 },
    Case { name: "generations::a-rollback-never-holds-what-is-needed", play: needed, patience: 60 },
    Case { name: "generations::what-cannot-be-put-back-is-refused", play: refused, patience: 40 },
    Case { name: "generations::a-killed-rollback-is-finished", play: killed, patience: 60 },
    Case { name: "generations::one-that-the-server-cannot-use-is-put-back", play: unusable, patience: 120 },
    Case { name: "generations::watchers-see-every-change", play: watchers, patience: 40 },
    Case { name: "generations::renew-signs-anew", play: renew, patience: 60 },
    Case { name: "generations::a-full-disk-stops-no-certificate", play: full_disk, patience: 40 },
    Case { name: "generations::no-core-dump", play: no_core_dump, patience: 40 },
];

fn certificate(host: &Host) -> Result<Vec<u8>> {
    Ok(fs::read(host.tree.server_certificate())?)
}

fn status(host: &Host, arguments: &[&str]) -> Result<Option<i32>> {
    Ok(host.once(arguments)?.status.code())
}

/// The served leaf is the one on disk.
fn served(host: &Host) -> Result<()> {
    until("the port serves what is on disk", SOON, || {
        let serving = host.server.as_ref().and_then(crate::stage::api_server::ApiServer::serving);
        let on_disk = <rustls_pki_types::CertificateDer<'_> as rustls_pki_types::pem::PemObject>::from_pem_file(
            host.tree.server_certificate(),
        );
        on_disk.is_ok_and(|leaf| serving.as_ref() == Some(&leaf))
    })
}

fn six_reissues(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let printed = host.once(&["rollback", "--list"])?;
    same("nothing is kept", &(printed.status.code(), printed.stdout.contains("no earlier")), &(Some(0), true))?;
    for round in 0..6 {
        host.add(&format!("198.51.{round}.7"))?;
        same("applied", &status(&host, &["check", "--apply"])?, &Some(0))?;
    }
    let list = host.guard.document(&["rollback", "--list", "--format", "json"], SOON, timeline)?;
    let all = list["generations"].as_array().ok_or("no generations")?;
    let numbers: Vec<u64> = all.iter().filter_map(|entry| entry["number"].as_u64()).collect();
    same("kept", &numbers, &vec![6, 5, 4, 3, 2])?;
    same("how far back the oldest is", &all[4]["back"], &5.into())?;
    let names = all[0]["names"].as_array().ok_or("no names")?;
    expect(
        names.contains(&"198.51.4.7".into()) && !names.contains(&"198.51.5.7".into()),
        "the newest is the one before",
    )?;
    let text = host.once(&["rollback", "--list"])?.stdout;
    same("lines", &text.lines().count(), &6)?;
    expect(text.contains("198.51.4.7"), text)?;
    // The oldest makes room for what it replaces, and is put back all the same.
    let oldest = fs::read(host.state_folder().join("generations/server/2/certificate.pem"))?;
    same("exit status of rollback", &status(&host, &["rollback", "5"])?, &Some(0))?;
    same("the oldest is back", &certificate(&host)?, &oldest)?;
    let list = host.guard.document(&["rollback", "--list", "--format", "json"], SOON, timeline)?;
    same("how many are kept", &list["generations"].as_array().map(Vec::len), &Some(5))?;
    same("the newest", &list["generations"][0]["number"], &7.into())
}

/// The API server does not reload, comes up behind the restart for it, and cannot use the pair: the one before is back,
/// once, held, and said for as long as it lasts.
fn unusable(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { reloading: Reloading::OnlyTheFirst, ..Setup::default() }, timeline)?;
    let first = certificate(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    let second = certificate(&host)?;
    until("the certificate before is back", Duration::from_secs(60), || {
        certificate(&host).is_ok_and(|now| now == first)
    })?;
    served(&host)?;
    // For the new one: kubelite once, and the cluster-agent; for the old one: the cluster-agent.
    host.await_restarts((1, 2))?;
    host.nothing_happens(A_WHILE)?;
    is_calm(&host, &daemon)?;
    // Another process, another address: nothing undoes it, and nothing is put back any further.
    daemon.kill()?;
    let daemon = host.daemon()?;
    host.add("198.51.101.7")?;
    host.nothing_happens(A_WHILE)?;
    same("certificates so far", &host.reissues(), &2)?;
    let printed = host.once(&["check"])?;
    for words in ["rolled-back", "could not use", "InternalError", "ipguard renew"] {
        expect(printed.stdout.contains(words), format!("check says {words:?}: {}", printed.stdout))?;
    }
    same("moments without a certificate", &host.watch.sightings().broken, &Vec::new())?;
    // What could not be used is kept, for whoever wants to know why.
    let kept = fs::read(host.state_folder().join("generations/server/2/certificate.pem"))?;
    same("the newest that is kept", &kept, &second)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The configuration is edited under the daemon, which goes on with the old one; then a certificate is put back. The daemon
/// and the one who asked for it look at the same file: nothing has changed since.
fn behind_an_edit(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let first = certificate(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    let edited = CONFIG.replacen("[certificate]", "[certificate]\nvalidity = \"300d\"", 1);
    fs::write(host.guard.config(), &edited)?;
    same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0))?;
    host.nothing_happens(A_WHILE)?;
    host.add("198.51.101.7")?;
    host.nothing_happens(A_WHILE)?;
    same("the old certificate is still there", &certificate(&host)?, &first)?;
    daemon.kill()?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    same("another daemon leaves it too", &certificate(&host)?, &first)?;
    // An edit behind it asks for something new, even of the daemon that has not read it.
    fs::write(host.guard.config(), edited.replace("300d", "200d"))?;
    host.add("198.51.102.7")?;
    host.await_covered("198.51.102.7")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn until_renew(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let first = certificate(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    let second = certificate(&host)?;
    let printed = host.once(&["rollback"])?;
    same("exit status of rollback", &printed.status.code(), &Some(0))?;
    expect(printed.stdout.contains("stays until"), &printed.stdout)?;
    same("the old certificate is back", &certificate(&host)?, &first)?;
    served(&host)?;
    host.await_restarts((0, 2))?;
    // Another address, a look at everything, another process: none of them undoes it.
    host.add("198.51.101.7")?;
    host.nothing_happens(A_WHILE)?;
    daemon.kill()?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status of check --apply", &printed.status.code(), &Some(0))?;
    expect(printed.stdout.contains("rolled-back"), &printed.stdout)?;
    same("the old certificate is still there", &certificate(&host)?, &first)?;
    same("exit status of renew", &status(&host, &["renew"])?, &Some(0))?;
    expect(host.covers("198.51.100.7") && host.covers("198.51.101.7"), "everything is covered")?;
    expect(certificate(&host)? != second, "it is a new one")?;
    same("the hold is gone", &host.state()["rolled_back"], &serde_json::json!([]))?;
    served(&host)?;
    host.add("198.51.102.7")?;
    host.await_covered("198.51.102.7")?;
    same("restarts of kubelite", &host.restarts()?.0, &0)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn until_edited(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let first = certificate(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    same("exit status of rollback", &status(&host, &["rollback", "1"])?, &Some(0))?;
    let path = host.tree.data("certs/csr.conf.template");
    let template = fs::read_to_string(&path)?;
    // The same text once more is no change.
    fs::write(&path, &template)?;
    host.nothing_happens(A_WHILE)?;
    same("the old certificate is back", &certificate(&host)?, &first)?;
    fs::write(&path, template.replace("IP.1 = ", "DNS.6 = api.example.com\nIP.1 = "))?;
    host.await_covered("DNS:api.example.com")?;
    host.await_covered("198.51.100.7")?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    // The configuration file counts as well; the one that a daemon was started with is another one then.
    same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0))?;
    same("held", &status(&host, &["check"])?, &Some(0))?;
    fs::write(host.guard.config(), format!("{CONFIG}\n[log]\nlevel = \"debug\"\n"))?;
    same("the level of the log is no change", &status(&host, &["check"])?, &Some(0))?;
    let config = CONFIG.replace("[certificate]", "[certificate]\nextra_sans = [\"more.example.com\"]");
    fs::write(host.guard.config(), config)?;
    same("a changed configuration", &status(&host, &["check"])?, &Some(2))
}

fn needed(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0))?;
    host.nothing_happens(A_WHILE)?;
    fs::write(host.tree.server_certificate(), "")?;
    until("a broken certificate is replaced all the same", SOON, || host.pair_is_usable().is_ok())?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn refused(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let refuses = |arguments: &[&str], words: &str| {
        let before = certificate(&host)?;
        let printed = host.once(arguments)?;
        same("exit status", &printed.status.code(), &Some(1))?;
        expect(printed.stdout.is_empty() && printed.stderr.contains(words), format!("{words:?}: {}", printed.stderr))?;
        same("the certificate", &certificate(&host)?, &before)
    };
    refuses(&["rollback"], "number 1 back is asked for, and 0 earlier certificates of server are kept")?;
    refuses(&["rollback", "--certificate", "nobody"], "there is no certificate nobody: there are server")?;
    refuses(&["renew", "nobody"], "there is no certificate nobody: there are server")?;
    same("zero back", &status(&host, &["rollback", "0"])?, &Some(64))?;
    host.add("198.51.100.7")?;
    same("applied", &status(&host, &["check", "--apply"])?, &Some(0))?;
    refuses(&["rollback", "2"], "number 2 back is asked for, and 1 earlier certificates")?;
    // Another key, then another CA.
    let (key, authority) = (host.tree.data("certs/server.key"), host.tree.data("certs/ca.crt"));
    let (key_before, authority_before) = (fs::read(&key)?, fs::read(&authority)?);
    let other = rcgen::KeyPair::generate()?;
    fs::write(&key, other.serialize_pem())?;
    refuses(&["rollback"], "key-mismatch")?;
    fs::write(&key, key_before)?;
    let ours = crate::stage::authority::Authority::new()?;
    fs::write(&authority, &ours.certificate_pem)?;
    refuses(&["rollback"], "issuer-mismatch")?;
    fs::write(&authority, authority_before)?;
    same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0))?;
    refuses(&["rollback", "2"], "number 2 back is asked for, and 1 earlier certificates")?;
    // And back again: what a rollback replaces is kept like anything else.
    same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0))?;
    expect(host.covers("198.51.100.7"), "the newer one is back")
}

/// Killed right behind the rename of the certificate: the next pass knows that it was a rollback.
fn killed(timeline: &Timeline) -> Result<()> {
    if !std::process::Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return crate::runner::skip("no strace");
    }
    let mut host = Host::new(timeline)?;
    let first = certificate(&host)?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    daemon.kill()?;
    let second = certificate(&host)?;
    let real = host.guard.program.clone();
    let mut finished = 0;
    for number in (1..=4).chain(1..=6) {
        host.run_through(&format!(
            "exec strace -f -qq -o /dev/null -e trace=renameat -e inject=renameat:signal=SIGKILL:when={number} \
             \"$guard\" \"$@\""
        ))?;
        host.once(&["rollback"])?;
        host.guard.program.clone_from(&real);
        host.pair_is_usable()?;
        let back = certificate(&host)? == first;
        let daemon = host.daemon()?;
        if back {
            host.await_restarts((0, 2))?;
            host.nothing_happens(A_WHILE)?;
            same(&format!("the old certificate, killed at rename {number}"), &certificate(&host)?, &first)?;
            finished += 1;
            daemon.kill()?;
            same("forward again", &status(&host, &["renew"])?, &Some(0))?;
            break;
        }
        same(&format!("the certificate, killed at rename {number}"), &certificate(&host)?, &second)?;
        daemon.kill()?;
    }
    same("a rollback that was killed behind its rename", &finished, &1)
}

fn watchers(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let path = host.tree.server_certificate();
    let changes = |change: &dyn Fn() -> Result<()>| {
        // As kube-apiserver does: on the file itself, which a rename takes away only when no other name keeps it.
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK)?;
        inotify.add_watch(&path, AddWatchFlags::IN_DELETE_SELF)?;
        change()?;
        same("names of the certificate", &fs::metadata(&path)?.nlink(), &1)?;
        until("the watcher sees it", Duration::from_secs(2), || inotify.read_events().is_ok_and(|all| !all.is_empty()))
    };
    changes(&|| {
        host.add("198.51.100.7")?;
        same("applied", &status(&host, &["check", "--apply"])?, &Some(0))
    })?;
    changes(&|| same("exit status of rollback", &status(&host, &["rollback"])?, &Some(0)))?;
    changes(&|| same("exit status of renew", &status(&host, &["renew", "server"])?, &Some(0)))
}

fn renew(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let key = fs::read(host.tree.data("certs/server.key"))?;
    let (names, before) = (host.names(), certificate(&host)?);
    same("in step", &status(&host, &["check"])?, &Some(0))?;
    let printed = host.once(&["renew"])?;
    same("exit status of renew", &printed.status.code(), &Some(0))?;
    expect(printed.stdout.contains("forced (server)"), &printed.stdout)?;
    expect(certificate(&host)? != before, "it is a new one")?;
    same("the same names", &host.names(), &names)?;
    served(&host)?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    host.add("198.51.100.7")?;
    same("applied", &status(&host, &["check", "--apply"])?, &Some(0))?;
    host.ip("addr del 198.51.100.7/24 dev eth0")?;
    same("an address that has left stays", &status(&host, &["renew", "server"])?, &Some(0))?;
    expect(host.covers("198.51.100.7"), "it is kept")?;
    let document = host.guard.document(&["renew", "--exact", "--format", "json"], SOON, timeline)?;
    same("the reason", &document["reasons"][0]["code"], &"forced".into())?;
    same("only what is demanded", &host.names(), &names)?;
    same("the same key", &fs::read(host.tree.data("certs/server.key"))?, &key)?;
    same("restarts of kubelite", &host.restarts()?.0, &0)?;
    fs::rename(host.tree.data("certs/ca.key"), host.tree.path("ca.key"))?;
    let printed = host.once(&["renew"])?;
    same("exit status without a CA key", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains("server was not signed anew"), &printed.stderr)
}

/// No room for a generation: the certificate is made, and the log says what is missing.
fn full_disk(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let folder = host.state_folder().join("generations");
    fs::create_dir_all(&folder)?;
    fs::set_permissions(host.state_folder(), fs::Permissions::from_mode(0o700))?;
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some("tmpfs"), &folder, Some("tmpfs"), flags, Some("size=4k,mode=700"))?;
    let daemon = host.daemon()?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_said("the certificate before is not kept")?;
    host.pair_is_usable()?;
    daemon.kill()
}

fn no_core_dump(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let daemon = host.daemon()?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid()))?;
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).ok_or("no such limit")?;
    let fields: Vec<&str> = line.split_whitespace().collect();
    same("limit of a core dump", &fields[4..6].to_vec(), &vec!["0", "0"])?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
