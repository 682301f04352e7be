//! The one-shots as scripts see them on a whole host: exit statuses, what is printed, what is touched.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::host::{A_WHILE, Host, NODE, SOON, Setup, expect, same};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::services;
use crate::stage::timeline::{Timeline, monotonic};
use crate::stage::tree::CertificateState;

pub(crate) const CASES: &[Case] = &[
    Case { name: "command-line::observe-touches-nothing", play: observe, patience: 40 },
    Case { name: "command-line::without-root", play: without_root, patience: 40 },
    Case { name: "command-line::exit-statuses", play: statuses, patience: 40 },
    Case { name: "command-line::microk8s-prints-one-digit", play: digits, patience: 60 },
    Case { name: "command-line::microk8s-inside-the-snap", play: inside_the_snap, patience: 60 },
    Case { name: "command-line::first-certificate", play: first_certificate, patience: 40 },
    Case { name: "command-line::nothing-to-print", play: nothing, patience: 40 },
];

/// Every file below a folder with what would change if it were touched. What the stand-ins and the stage write is theirs.
fn listing(folder: &Path, into: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.path().symlink_metadata()?;
        let stage = ["calls.log", "notify", "run", "through"].iter().any(|name| entry.file_name() == *name);
        if stage {
            continue;
        }
        let changed = (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec());
        into.push(format!("{} {} {changed:?}", entry.path().display(), metadata.ino()));
        if metadata.is_dir() {
            listing(&entry.path(), into)?;
        }
    }
    Ok(())
}

fn observe(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    host.run_through("exec \"$guard\" \"$@\" --observe")?;
    let look = || {
        let mut files = Vec::new();
        listing(host.tree.root(), &mut files).map(|()| {
            files.sort();
            files
        })
    };
    let before = look()?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.add("198.51.100.7")?;
    host.await_said("observing only, not done: reissue server")?;
    host.await_said("observing only, not done: restart kubelite")?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    same("restarts", &host.restarts()?, &(0, 0))?;
    let after = look()?;
    let changed: Vec<&String> = after.iter().filter(|file| !before.contains(file)).collect();
    expect(changed.is_empty() && before.len() == after.len(), format!("nothing is touched: {changed:?}"))
}

fn without_root(timeline: &Timeline) -> Result<()> {
    const SOMEBODY: u32 = 4242;
    let host = Host::new(timeline)?;
    let probe = host.tree.path("state/probe");
    fs::write(&probe, "")?;
    if chown(&probe, Some(SOMEBODY), Some(SOMEBODY)).is_err() {
        return skip("needs root to become somebody else");
    }
    let open = Command::new("chmod").args(["-R", "a+rX"]).arg(host.tree.root()).status()?;
    expect(open.success(), "chmod works")?;
    // The program may be in a folder that is root's alone.
    let program = host.tree.path("usr/bin/ipguard");
    fs::copy(&host.guard.program, &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let run = |arguments: &[&str]| {
        let output = Command::new(&program)
            .args(arguments)
            .arg("--root")
            .arg(host.tree.root())
            .env_clear()
            .current_dir("/")
            .uid(SOMEBODY)
            .gid(SOMEBODY)
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ran = (output.status.code(), text(&output.stdout), text(&output.stderr));
        timeline.note("ipguard", format!("{arguments:?}: {ran:?}"));
        Result::Ok(ran)
    };
    same("ips", &run(&["ips"])?, &(Some(0), format!("{NODE}\n"), String::new()))?;
    let (status, stdout, stderr) = run(&["explain"])?;
    expect(status == Some(0) && stdout.contains(NODE) && stderr.is_empty(), "explain works")?;
    let (status, stdout, stderr) = run(&["check"])?;
    expect(status == Some(0) && stdout.contains("in-step") && stderr.is_empty(), "check works")?;
    let (status, stdout, stderr) = run(&["check", "--apply"])?;
    same("exit status of check --apply", &status, &Some(1))?;
    expect(stdout.is_empty() && stderr.contains("ermission denied"), format!("a clear error: {stderr}"))?;
    host.add("198.51.100.7")?;
    same("exit status of check", &run(&["check"])?.0, &Some(2))?;
    same("exit status of check --apply", &run(&["check", "--apply"])?.0, &Some(1))?;
    let digit = run(&["check", "--apply", "--format", "microk8s"])?;
    same("what the hook sees", &(digit.0, digit.1.as_str()), &(Some(0), "0\n"))?;
    same("reissues", &host.reissues(), &0)
}

fn statuses(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let status = |arguments: &[&str]| Result::Ok(host.once(arguments)?.status.code());
    same("in step", &status(&["check"])?, &Some(0))?;
    same("in step, --apply", &status(&["check", "--apply"])?, &Some(0))?;
    host.add("198.51.100.7")?;
    // No settle time; a secondary address alone does not need an age.
    same("an address is missing", &status(&["check"])?, &Some(2))?;
    same("an address is missing, json", &status(&["check", "--format", "json"])?, &Some(2))?;
    same("nothing was written", &host.reissues(), &0)?;
    same("applied", &status(&["check", "--apply"])?, &Some(0))?;
    same("then in step", &status(&["check"])?, &Some(0))?;
    same("usage", &status(&["check", "--nonsense"])?, &Some(64))?;
    same("an address that is not there", &status(&["explain", "203.0.113.99"])?, &Some(1))?;
    same("an address that is there", &status(&["explain", NODE])?, &Some(0))?;
    same("no address", &status(&["explain", "eth0"])?, &Some(64))?;
    host.replace_stand_in("snap", "exit 1")?;
    host.add("198.51.101.7")?;
    same("the restart fails", &status(&["check", "--apply"])?, &Some(1))?;
    host.restore_stand_in("snap")?;
    same("what is owed is done", &status(&["check", "--apply"])?, &Some(0))?;
    same("restarts", &host.restarts()?, &(0, 2))?;
    fs::write(host.guard.config(), "[settle]\nqiet = \"1s\"\n")?;
    let printed = host.once(&["check"])?;
    same("a wrong configuration", &printed.status.code(), &Some(1))?;
    expect(printed.stderr.contains("quiet"), format!("names the nearest key: {}", printed.stderr))
}

fn digits(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let digit = |apply: bool| {
        let arguments = ["check", "--format", "microk8s", "--apply"];
        let printed = host.once(if apply { &arguments } else { &arguments[..3] })?;
        same("exit status", &printed.status.code(), &Some(0))?;
        Result::Ok(printed.stdout)
    };
    same("in step", &digit(true)?, &"0\n".to_owned())?;
    // The kernel's stamp on the newcomer, which lags, must be later than the state.
    sleep(Duration::from_millis(700));
    host.replace_node_address(NODE, "192.0.2.11")?;
    sleep(Duration::from_millis(2500));
    same("the node address was replaced long ago", &digit(true)?, &"1\n".to_owned())?;
    expect(host.covers("192.0.2.11"), "covered")?;
    // The caller restarts it, and is not asked to again.
    services::set_active(host.tree.root(), Some(monotonic()))?;
    same("the caller has restarted it", &digit(true)?, &"0\n".to_owned())?;
    host.add("198.51.100.7")?;
    same("an address was added, only asked", &digit(false)?, &"0\n".to_owned())?;
    same("an address was added", &digit(true)?, &"0\n".to_owned())?;
    expect(host.covers("198.51.100.7"), "covered")?;
    same("kubelite is the caller's", &host.restarts()?.0, &0)?;
    let lock = host.tree.data("var/lock/join-in-progress");
    fs::write(&lock, "")?;
    host.add("198.51.101.7")?;
    same("hold", &digit(true)?, &"0\n".to_owned())?;
    expect(!host.covers("198.51.101.7"), "held")?;
    fs::remove_file(&lock)?;
    fs::remove_file(host.tree.server_certificate())?;
    same("no certificate, only asked", &digit(false)?, &"1\n".to_owned())?;
    same("no certificate", &digit(true)?, &"1\n".to_owned())?;
    host.pair_is_usable()?;
    fs::write(host.tree.server_certificate(), "garbage")?;
    fs::rename(host.tree.data("certs/ca.key"), host.tree.path("ca.key"))?;
    same("no certificate can be made", &digit(true)?, &"0\n".to_owned())?;
    fs::rename(host.tree.path("ca.key"), host.tree.data("certs/ca.key"))?;
    fs::write(host.guard.config(), "nonsense = 1\n")?;
    same("a wrong configuration", &digit(true)?, &"0\n".to_owned())
}

/// A process that stands for a service's, where the kernel's files below the root tell of it.
struct Process(std::process::Child);

impl Process {
    fn of(unit: &str, root: &Path) -> Result<Self> {
        let child = Command::new("sleep").arg("120").spawn()?;
        let group = root.join("sys/fs/cgroup/system.slice").join(unit);
        let process = root.join("proc").join(child.id().to_string());
        fs::create_dir_all(&group)?;
        fs::create_dir_all(&process)?;
        fs::copy(Path::new("/proc").join(child.id().to_string()).join("stat"), process.join("stat"))?;
        fs::write(group.join("cgroup.procs"), format!("{}\n", child.id()))?;
        Ok(Self(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// snapctl does not tell when a service started. The kernel does, and what the caller was asked for is written down: a
/// hook that runs again before its restart has happened asks for no second one.
fn inside_the_snap(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut inside = host.guard.clone();
    let data = Path::new("/").join(host.tree.data("").canonicalize()?.strip_prefix(host.tree.root())?);
    inside.environment.push(("SNAP_INSTANCE_NAME".into(), "microk8s".into()));
    inside.environment.push(("SNAP_DATA".into(), data.into()));
    inside.environment.push(("SNAP_COMMON".into(), "/var/snap/microk8s/common".into()));
    fs::create_dir_all(host.tree.path("var/snap/microk8s/common"))?;
    let digit = || {
        let printed = inside.once(&["check", "--apply", "--format", "microk8s"], SOON, timeline)?;
        same("exit status", &printed.status.code(), &Some(0))?;
        Result::Ok(printed.stdout.trim().to_owned())
    };
    let kubelite = || Process::of(services::KUBELITE, host.tree.root());
    let first = kubelite()?;
    same("in step", &digit()?.as_str(), &"0")?;
    // The kernel's stamp on the newcomer, which lags, must be later than the state.
    sleep(Duration::from_millis(700));
    host.replace_node_address(NODE, "192.0.2.11")?;
    sleep(Duration::from_millis(1500));
    drop(first);
    let second = kubelite()?;
    sleep(Duration::from_millis(1500));
    same("somebody has restarted it since", &digit()?.as_str(), &"0")?;
    expect(host.covers("192.0.2.11"), "covered")?;
    sleep(Duration::from_millis(700));
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    sleep(Duration::from_millis(2500));
    same("the node address was replaced", &digit()?.as_str(), &"1")?;
    same("before the restart has happened", &digit()?.as_str(), &"0")?;
    drop(second);
    let _third = kubelite()?;
    same("the caller has restarted it", &digit()?.as_str(), &"0")?;
    expect(host.covers("192.0.2.12"), "covered")?;
    same("kubelite is the caller's", &host.restarts()?.0, &0)
}

/// A first installation: no certificate, no services, no state.
fn first_certificate(timeline: &Timeline) -> Result<()> {
    let mut setup = Setup::default();
    setup.spec.certificate = CertificateState::Missing;
    let host = Host::with(&setup, timeline)?;
    let printed = host.once(&["check", "--apply", "--format", "microk8s"])?;
    same("what the hook sees", &printed.stdout, &"1\n".to_owned())?;
    host.pair_is_usable()?;
    expect(host.covers(NODE) && host.covers("DNS:kubernetes"), "complete")?;
    same("exit status of check", &host.once(&["check"])?.status.code(), &Some(0))
}

fn nothing(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { addresses: false, ..Setup::default() }, timeline)?;
    same("ips", &host.once(&["ips"])?.stdout, &"none\n".to_owned())?;
    let printed = host.once(&["check", "--apply"])?;
    same("exit status of check", &printed.status.code(), &Some(0))?;
    let digit = host.once(&["check", "--apply", "--format", "microk8s"])?;
    same("what the hook sees", &digit.stdout, &"0\n".to_owned())?;
    same("reissues", &host.reissues(), &0)?;
    let printed = host.once(&["explain", "192.0.2.77"])?;
    same("exit status of explain", &printed.status.code(), &Some(1))?;
    expect(printed.stdout.is_empty() && printed.stderr.contains("192.0.2.77 is not on this host"), "says so")
}
