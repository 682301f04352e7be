//! `ipguard chores` on real files: what it corrects, what it leaves alone, which programs it runs, and that it costs
//! nothing when nothing is wrong. What needs root says "skipped" without.

mod skipped;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ipguard::act::chores::wait::StopSignals;
use ipguard::act::chores::{Report, hooks};
use nix::fcntl::{Flock, FlockArg, RenameFlags, renameat2};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, Uid, mkfifo};

/// MicroK8s' group in these trees, and that of a strict snap.
const GROUP: u32 = 4242;
const STRICT_GROUP: u32 = 4243;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A MicroK8s node as far as the chores look at it.
struct Node(PathBuf);

impl Node {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-chores-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let node = Self(std::env::temp_dir().join(name));
        fs::create_dir(&node.0).expect("the temporary folder is writable");
        for folder in ["var/lock", "var/kubernetes/backend", "certs", "args", "credentials"] {
            fs::create_dir_all(node.data().join(folder)).expect("it is ours");
        }
        for folder in ["run", "hooks/reconcile.d"] {
            fs::create_dir_all(node.common().join(folder)).expect("it is ours");
        }
        symlink("1", node.0.join("var/snap/microk8s/current")).expect("it is ours");
        node.write("etc/group", &format!("root:x:0:\nmicrok8s:x:{GROUP}:root\nsnap_microk8s:x:{STRICT_GROUP}:\n"));
        node.write("snap/microk8s/current/meta/snap.yaml", "name: microk8s\nconfinement: classic\n");
        node.write("proc/sys/kernel/random/boot_id", "first\n");
        // As after the first start of the daemon.
        fs::create_dir_all(node.0.join("var/lib/ipguard")).expect("it is ours");
        fs::set_permissions(node.0.join("var/lib/ipguard"), Permissions::from_mode(0o700)).expect("it is ours");
        node
    }

    /// `None`, and said so, where groups cannot be given away.
    fn of_root() -> Option<Self> {
        let node = Self::new();
        if !Uid::effective().is_root() || chown(node.0.join("etc/group"), None, Some(GROUP)).is_err() {
            crate::skipped::skipped("needs root");
            return None;
        }
        node.lock("ha-cluster");
        Some(node)
    }

    fn data(&self) -> PathBuf {
        self.0.join("var/snap/microk8s/1")
    }

    fn backend(&self) -> PathBuf {
        self.data().join("var/kubernetes/backend")
    }

    fn common(&self) -> PathBuf {
        self.0.join("var/snap/microk8s/common")
    }

    fn hooks(&self) -> PathBuf {
        self.common().join("hooks/reconcile.d")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("it is ours");
        fs::write(path, text).expect("there is space");
    }

    fn lock(&self, name: &str) {
        fs::write(self.data().join("var/lock").join(name), "").expect("it is ours");
    }

    fn configure(&self, text: &str) {
        self.write("etc/ipguard/ipguard.toml", text);
    }

    /// A hook that notes its name, then does what the script says.
    fn hook(&self, name: &str, mode: u32, script: &str) {
        let log = self.0.join("ran");
        script_file(&self.hooks().join(name), mode, &format!("echo {name} >> '{}'\n{script}", log.display()));
    }

    /// The names of the hooks that ran, in order.
    fn ran(&self) -> Vec<String> {
        lines(&self.0.join("ran"))
    }

    /// In the environment that `snap run --shell` gives.
    fn command(&self) -> Command {
        let mut command = self.bare_command();
        command.env("SNAP_INSTANCE_NAME", "microk8s").env("SNAP", "/snap/microk8s/current");
        command.env("SNAP_DATA", "/var/snap/microk8s/1").env("SNAP_COMMON", "/var/snap/microk8s/common");
        command
    }

    fn bare_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipguard"));
        command.env_clear().stdin(Stdio::null()).arg("--root").arg(&self.0).arg("chores");
        command
    }

    fn run(&self) -> Ran {
        self.command().output().expect("the program runs").into()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    /// It ended well and had nothing to say.
    fn is_quiet(&self) {
        assert_eq!((self.status, &*self.stdout, &*self.stderr), (Some(0), "", ""));
    }
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn script_file(path: &Path, mode: u32, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("there is space");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// A file with a mode, root's.
fn file(path: &Path, mode: u32) {
    fs::write(path, "content").expect("there is space");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

fn group_and_mode(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    (metadata.gid(), metadata.mode() & 0o7777)
}

/// What a change of an inode cannot hide: number and time of the last change of everything below a folder.
fn inodes(folder: &Path) -> Vec<(PathBuf, u64, i64, i64, u32, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it can be listed").path();
        let there = fs::symlink_metadata(&path).expect("it is there");
        found.push((path.clone(), there.ino(), there.ctime(), there.ctime_nsec(), there.gid(), there.mode()));
        if there.is_dir() {
            found.extend(inodes(&path));
        }
    }
    found.sort();
    found
}

/// A data store as it looks after k8s-dqlite wrote to it as root.
fn fill(node: &Node) -> (UnixListener, UnixListener) {
    let backend = node.backend();
    fs::create_dir(backend.join("snapshots")).expect("it is ours");
    for (path, mode) in [("cluster.key", 0o600), ("metadata1", 0o644), ("snapshots/one", 0o600), ("tool", 0o700)] {
        file(&backend.join(path), mode);
    }
    fs::set_permissions(backend.join("snapshots"), Permissions::from_mode(0o700)).expect("it is ours");
    let socket = |path: PathBuf| {
        let socket = UnixListener::bind(&path).expect("the path is short enough");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        socket
    };
    (socket(backend.join("kine.sock")), socket(node.common().join("run/containerd.sock")))
}

#[test]
fn group_and_mode_are_corrected_once_and_then_nothing_is_touched_or_started() {
    let Some(node) = Node::of_root() else { return };
    let _sockets = fill(&node);
    fs::set_permissions(node.backend(), Permissions::from_mode(0o755)).expect("it is ours");
    file(&node.data().join("certs/ca.key"), 0o600);
    let ran = node.run();
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    for (path, mode) in [
        ("", 0o775),
        ("cluster.key", 0o660),
        ("metadata1", 0o664),
        ("snapshots", 0o770),
        ("snapshots/one", 0o660),
        ("tool", 0o770),
        ("kine.sock", 0o660),
    ] {
        assert_eq!(group_and_mode(&node.backend().join(path)), (GROUP, mode), "{path}");
    }
    assert_eq!(group_and_mode(&node.common().join("run/containerd.sock")), (GROUP, 0o600), "only its group");
    assert_eq!(group_and_mode(&node.data().join("certs/ca.key")), (0, 0o600), "no chore looks there");
    assert_eq!(ran.stdout.lines().count(), 8, "{}", ran.stdout);
    let line = "cluster.key: corrected: group 0 to 4242, mode 0600 to 0660\n";
    assert!(ran.stdout.contains(line), "{}", ran.stdout);

    let before = inodes(&node.0);
    let trace = node.0.with_extension("trace");
    // Every call that starts a process, changes an inode, or opens something to write.
    let calls =
        "trace=process,fchmodat,fchownat,fchown,fchmod,chmod,chown,rename,renameat2,unlink,unlinkat,mkdir,mkdirat";
    let traced = Command::new("strace")
        .args(["-f", "-qq", "-e", calls, "-o"])
        .arg(&trace)
        .arg(env!("CARGO_BIN_EXE_ipguard"))
        .args(["--root".as_ref(), node.0.as_os_str(), "chores".as_ref()])
        .env_clear()
        .envs(node.command().get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("PATH", "/usr/bin:/bin")
        .output();
    let Ok(traced) = traced else {
        crate::skipped::skipped("needs strace");
        return;
    };
    Ran::from(traced).is_quiet();
    assert_eq!(inodes(&node.0), before);
    let calls: Vec<String> = lines(&trace)
        .into_iter()
        .filter(|line| !["execve(", "exit", "wait4(", "+++"].iter().any(|call| line.contains(call)))
        .collect();
    let _ = fs::remove_file(&trace);
    // The state folder is there since the first pass.
    let harmless = |line: &String| line.contains("mkdir") && line.contains("EEXIST");
    assert!(calls.iter().all(harmless), "{calls:#?}");
}

#[test]
fn links_second_names_and_fifos_in_the_tree_lead_nowhere() {
    let Some(node) = Node::of_root() else { return };
    let secret = node.0.join("shadow");
    file(&secret, 0o600);
    let folder = node.0.join("outside");
    fs::create_dir(&folder).expect("it is ours");
    file(&folder.join("inside"), 0o600);
    let backend = node.backend();
    symlink(&secret, backend.join("link")).expect("it is ours");
    symlink(&folder, backend.join("folder")).expect("it is ours");
    symlink("nowhere", backend.join("dangling")).expect("it is ours");
    fs::hard_link(&secret, backend.join("second-name")).expect("one file system");
    mkfifo(&backend.join("fifo"), Mode::from_bits_truncate(0o600)).expect("it is ours");
    file(&backend.join("own"), 0o600);
    let before = (inodes(&folder), group_and_mode(&secret), group_and_mode(&backend.join("fifo")));
    let ran = node.run();
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    assert_eq!((inodes(&folder), group_and_mode(&secret), group_and_mode(&backend.join("fifo"))), before);
    assert_eq!(group_and_mode(&backend.join("own")), (GROUP, 0o660), "the walk goes on");
    // The links themselves too.
    assert_eq!(group_and_mode(&backend.join("link")).0, 0);
    node.run().is_quiet();
    let told = node.command().args(["--log-level", "debug"]).output().expect("it runs");
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("second-name: left alone: it has several names"), "{told}");
}

#[test]
fn a_link_on_the_way_to_the_tree_is_said_and_not_followed() {
    let Some(node) = Node::of_root() else { return };
    let outside = node.0.join("outside");
    fs::create_dir(&outside).expect("it is ours");
    file(&outside.join("secret"), 0o600);
    for on_the_way in ["var/kubernetes/backend", "var/kubernetes"] {
        let place = node.data().join(on_the_way);
        fs::remove_dir(&place).or_else(|_| fs::remove_file(&place)).expect("it is empty");
        symlink(&outside, &place).expect("it is ours");
        fs::create_dir_all(outside.join("backend")).expect("it is ours");
        let ran = node.run();
        assert_eq!((ran.status, &*ran.stdout), (if on_the_way.ends_with("backend") { Some(0) } else { Some(1) }, ""));
        assert_eq!(group_and_mode(&outside.join("secret")), (0, 0o600));
        assert_eq!(group_and_mode(&outside).0, 0);
        fs::remove_file(&place).expect("it is ours");
        fs::create_dir_all(&place).expect("it is ours");
        fs::remove_dir_all(node.backend()).ok();
    }
}

/// Whoever may write to the tree swaps a folder for a link to one outside, as fast as it can, while root walks.
#[test]
fn a_folder_swapped_for_a_link_under_the_walk_leads_nowhere() {
    let Some(node) = Node::of_root() else { return };
    let outside = node.0.join("outside");
    fs::create_dir(&outside).expect("it is ours");
    (0..20).for_each(|number| file(&outside.join(format!("file{number:02}")), 0o600));
    let (folder, link) = (node.backend().join("folder"), node.backend().join("link"));
    fs::create_dir(&folder).expect("it is ours");
    symlink(&outside, &link).expect("it is ours");
    let made = (0..20).map(|number| fs::File::create(folder.join(format!("own{number:02}"))).expect("it is ours"));
    let inside: Vec<fs::File> = made.collect();
    let mut corrected = 0;
    let before = inodes(&outside);
    let (done, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let here = nix::fcntl::AT_FDCWD;
            while !done.load(Ordering::Relaxed) {
                renameat2(here, &folder, here, &link, RenameFlags::RENAME_EXCHANGE).expect("both are there");
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        for round in 0..100 {
            // Wrong again each time, by their descriptors: their names lead elsewhere half of the time.
            let wrong = |file: &fs::File| file.set_permissions(Permissions::from_mode(0o600)).expect("it is ours");
            inside.iter().for_each(wrong);
            let ran = node.run();
            assert_eq!(ran.status, Some(0), "round {round}: {}", ran.stderr);
            corrected += ran.stdout.lines().count();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(swaps.load(Ordering::Relaxed) > 1000 && corrected > 20, "{swaps:?} swaps, {corrected} corrected");
    assert_eq!(inodes(&outside), before);
}

#[test]
fn where_the_group_is_not_to_have_it_nothing_is_changed() {
    let Some(node) = Node::of_root() else { return };
    let _sockets = fill(&node);
    let before = (inodes(&node.backend()), inodes(&node.common().join("run")));
    let unchanged = |why: &str| {
        node.run().is_quiet();
        assert_eq!((inodes(&node.backend()), inodes(&node.common().join("run"))), before, "{why}");
    };
    for lock in ["cis-hardening", "clustered.lock", "low-memory-guard.lock", "stopped.lock"] {
        node.lock(lock);
        unchanged(lock);
        fs::remove_file(node.data().join("var/lock").join(lock)).expect("it is ours");
    }
    fs::remove_file(node.data().join("var/lock/ha-cluster")).expect("it is ours");
    unchanged("no dqlite");
    node.lock("ha-cluster");
    node.write("etc/group", "root:x:0:\nmicrok8s-other:x:5:\n");
    unchanged("no group");
    node.write("etc/group", &format!("microk8s:x:{GROUP}:\n"));
    node.configure("[chores]\npermissions = false\n");
    unchanged("switched off");
    node.configure("observe = true\n");
    let ran = node.run();
    assert_eq!((inodes(&node.backend()), ran.status), (before.0.clone(), Some(0)));
    assert!(ran.stdout.contains("cluster.key: would be corrected: group 0 to 4242"), "{}", ran.stdout);
    // And with none of that in the way it is.
    node.configure("");
    assert_eq!(node.run().stdout.lines().count(), ran.stdout.lines().count());
    assert_ne!(inodes(&node.backend()), before.0);
}

#[test]
fn a_strict_snap_has_a_group_of_its_own() {
    let Some(node) = Node::of_root() else { return };
    node.write("snap/microk8s/current/meta/snap.yaml", "name: microk8s\nconfinement: strict\n");
    file(&node.backend().join("cluster.key"), 0o600);
    assert_eq!(node.run().status, Some(0));
    assert_eq!(group_and_mode(&node.backend().join("cluster.key")), (STRICT_GROUP, 0o660));
}

#[test]
fn a_name_that_drives_a_terminal_is_shown_harmless_and_a_deep_tree_ends() {
    let Some(node) = Node::of_root() else { return };
    file(&node.backend().join("\u{1b}[2J\nforged"), 0o600);
    let mut deep = node.backend();
    (0..40).for_each(|_| deep.push("d"));
    fs::create_dir_all(&deep).expect("it is ours");
    let ran = node.run();
    assert_eq!(ran.status, Some(1));
    assert!(
        !ran.stdout.contains('\u{1b}') && !ran.stdout.lines().any(|line| line.starts_with("forged")),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("32 folders deep, not looked into"), "{}", ran.stderr);
}

#[test]
fn hooks_run_in_order_with_the_environment_and_a_failure_stops_none() {
    let node = Node::new();
    node.hook("20-fails", 0o755, "echo on its error output >&2; exit 7");
    node.hook("10-first", 0o700, "echo \"$SNAP_DATA in $PATH with $LD_LIBRARY_PATH, not $NOTIFY_SOCKET\"");
    node.hook("not-executable", 0o644, "");
    node.hook("target", 0o755, "");
    fs::rename(node.hooks().join("target"), node.0.join("elsewhere")).expect("it is ours");
    symlink(node.0.join("elsewhere"), node.hooks().join("30-link")).expect("it is ours");
    symlink("nowhere", node.hooks().join("40-dangling")).expect("it is ours");
    fs::create_dir(node.hooks().join("50-folder")).expect("it is ours");
    fs::write(node.hooks().join("60-no-program"), "#!/no/such/interpreter\n").expect("it is ours");
    fs::set_permissions(node.hooks().join("60-no-program"), Permissions::from_mode(0o755)).expect("it is ours");
    node.hook("90-last", 0o755, "printf 'cut\\033[31m\\n'");
    let mut command = node.command();
    for (name, value) in
        [("PATH", "/snap/bin:/bin"), ("IPGUARD_HOOK_LIBRARY_PATH", "/snap/lib"), ("NOTIFY_SOCKET", "/n")]
    {
        command.env(name, value);
    }
    let ran = Ran::from(command.output().expect("the program runs"));
    assert_eq!(node.ran(), ["10-first", "20-fails", "target", "90-last"]);
    assert_eq!(ran.status, Some(1), "one failed");
    let said = "hook 10-first: /var/snap/microk8s/1 in /snap/bin:/bin with /snap/lib, not\n\
                hook 20-fails: on its error output\n\
                hook 90-last: cut\\u{1b}[31m\n";
    assert_eq!(ran.stdout, said);
    assert!(ran.stderr.contains("hook 20-fails: ") && ran.stderr.contains("exit status: 7"), "{}", ran.stderr);
    assert!(ran.stderr.contains("hook 60-no-program: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);

    for name in ["20-fails", "60-no-program", "90-last", "10-first"] {
        fs::remove_file(node.hooks().join(name)).expect("it is ours");
    }
    node.run().is_quiet();
    fs::remove_file(node.0.join("ran")).expect("it is ours");
    node.configure("[chores]\nhooks = false\n");
    node.run().is_quiet();
    node.configure("observe = true\n");
    node.run().is_quiet();
    assert!(node.ran().is_empty(), "switched off");
    node.configure("");
    fs::remove_dir_all(node.hooks()).expect("it is ours");
    node.run().is_quiet();
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Gone, or dead and not yet collected by whoever inherited it.
fn is_gone(process: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn a_hook_that_hangs_is_ended_with_all_it_started_and_the_next_one_runs() {
    const TIME: Duration = Duration::from_secs(10);
    let node = Node::new();
    let started = node.0.join("started");
    let script = format!("sleep 1000 & echo $! $$ > '{}'; trap '' TERM; echo waiting; wait", started.display());
    node.hook("10-hangs", 0o755, &script);
    node.hook("20-next", 0o755, "");
    let signals = StopSignals::take().expect("signals can be taken");
    let mut report = Report::default();
    // The hook must have come to its wait; the time is that of the profile otherwise.
    assert!(hooks::run(&node.hooks(), TIME, &environment(), &signals, &mut report));
    assert_eq!(node.ran(), ["10-hangs", "20-next"]);
    assert_eq!(report.failed.len(), 1);
    assert!(
        report.failed[0].contains("killed, because it had not ended after ")
            && report.failed[0].ends_with(" s: waiting"),
        "{report:?}"
    );
    let started = fs::read_to_string(started).expect("the hook had ten seconds");
    for process in started.split_whitespace() {
        eventually("the process group is gone", || is_gone(process));
    }
    assert_eq!(ipguard::profiles::Profile::all()[0].chores.as_ref().map(|chores| chores.hook_seconds), Some(120));
}

fn environment() -> Vec<(OsString, OsString)> {
    vec![("PATH".into(), "/usr/bin:/bin".into())]
}

#[test]
fn a_stop_ends_the_hook_with_all_it_started_and_runs_no_other() {
    let node = Node::new();
    let started = node.0.join("started");
    node.hook(
        "10-long",
        0o755,
        &format!("sleep 1000 & echo $! $$ > '{0}.new'; mv '{0}.new' '{0}'; wait", started.display()),
    );
    node.hook("20-next", 0o755, "");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let _ = fs::remove_file(&started);
        let child = node.command().env("PATH", "/usr/bin:/bin").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.expect("the program runs");
        eventually("the hook runs", || started.exists());
        kill(Pid::from_raw(i32::try_from(child.id()).expect("a process number")), signal).expect("it is ours");
        let ran = Ran::from(child.wait_with_output().expect("it ends"));
        assert_eq!(ran.status, Some(1));
        assert!(ran.stderr.contains("hook 10-long: ended, because we were told to stop"), "{}", ran.stderr);
        for process in fs::read_to_string(&started).expect("it is there").split_whitespace() {
            eventually("the process group is gone", || is_gone(process));
        }
    }
    assert_eq!(node.ran(), ["10-long", "10-long"]);
}

/// A kubectl that writes down how it was called, and answers with a file.
fn kubectl(node: &Node, script: &str) {
    let program = node.0.join("snap/microk8s/current/kubectl");
    let log = node.0.join("asked");
    script_file(
        &program,
        0o755,
        &format!("printf '%s ' \"$@\" | tr '\\n' '~' >> '{0}'; echo >> '{0}'\n{script}", log.display()),
    );
}

#[test]
fn the_registry_note_is_made_once_for_each_boot_and_cluster() {
    let node = Node::new();
    let asked = || {
        let lines = lines(&node.0.join("asked"));
        let _ = fs::remove_file(node.0.join("asked"));
        lines
    };
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let number = port.local_addr().expect("it is bound").port();
    fs::write(node.data().join("args/kube-apiserver"), format!("--secure-port={number}\n")).expect("it is ours");
    file(&node.backend().join("cluster.crt"), 0o660);
    node.configure("[chores]\npermissions = false\n");

    kubectl(&node, "exit 9");
    let ran = node.run();
    assert_eq!((ran.status, asked().len()), (Some(1), 1));
    assert!(
        ran.stderr.contains("the note about local registries: ") && ran.stderr.contains("exit status: 9"),
        "{}",
        ran.stderr
    );

    kubectl(&node, "");
    node.run().is_quiet();
    assert_eq!(asked().len(), 1, "too early, so asked again");

    kubectl(&node, "case \"$*\" in *get*) echo namespace/kube-public;; esac");
    let ran = node.run();
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    assert_eq!(ran.stdout, "made kube-public/local-registry-hosting, the note about local registries\n");
    let calls = asked();
    let common = format!(
        "--kubeconfig={} --cache-dir={} --request-timeout=10s --namespace=kube-public ",
        node.data().join("credentials/client.config").display(),
        node.0.join("var/lib/ipguard/kubectl").display()
    );
    let get = "get namespace/kube-public configmap/local-registry-hosting --ignore-not-found --output=name ";
    let create = "create configmap local-registry-hosting --from-literal=localRegistryHosting.v1=help: \
                  \"https://microk8s.io/docs/registry-built-in\"~ ";
    assert_eq!(calls, [format!("{common}{get}"), format!("{common}{create}")]);

    node.run().is_quiet();
    assert!(asked().is_empty(), "it is remembered");
    kubectl(&node, "echo namespace/kube-public; echo configmap/local-registry-hosting");
    node.write("proc/sys/kernel/random/boot_id", "second\n");
    node.run().is_quiet();
    assert_eq!(asked().len(), 1, "another boot asks, and leaves alone what is there");
    node.run().is_quiet();
    assert!(asked().is_empty());
    fs::remove_file(node.backend().join("cluster.crt")).expect("it is ours");
    file(&node.backend().join("cluster.crt"), 0o660);
    node.run().is_quiet();
    assert_eq!(asked().len(), 1, "another cluster asks");
    fs::remove_file(node.0.join("var/lib/ipguard/registry-note")).expect("it was written");
    node.run().is_quiet();
    assert_eq!(asked().len(), 1, "asked by hand");

    node.write("proc/sys/kernel/random/boot_id", "third\n");
    node.configure("[chores]\npermissions = false\nregistry = false\n");
    node.run().is_quiet();
    node.configure("[chores]\npermissions = false\n");
    drop(port);
    node.run().is_quiet();
    assert!(asked().is_empty(), "switched off, and nobody listens");
}

#[test]
fn while_another_loop_runs_it_does_the_work_unless_it_started_us() {
    let node = Node::new();
    node.hook("10-hook", 0o755, "");
    let members = "sys/fs/cgroup/system.slice/snap.microk8s.daemon-apiserver-kicker.service/cgroup.procs";
    node.write(members, "999999999\n");
    node.run().is_quiet();
    assert!(node.ran().is_empty());
    // This process is the parent of the one that runs.
    node.write(members, &format!("{}\n", std::process::id()));
    node.run().is_quiet();
    node.write(members, "");
    node.run().is_quiet();
    assert_eq!(node.ran(), ["10-hook", "10-hook"]);
}

#[test]
fn one_pass_at_a_time() {
    let node = Node::new();
    node.hook("10-hook", 0o755, "");
    node.run().is_quiet();
    let folder = fs::File::open(node.0.join("var/lib/ipguard")).expect("the pass made it");
    assert_eq!(folder.metadata().expect("it is open").mode() & 0o777, 0o700);
    let locked = Flock::lock(folder, FlockArg::LockExclusiveNonblock).expect("nobody has it");
    let ran = node.run();
    assert_eq!((ran.status, &*ran.stdout, node.ran().len()), (Some(0), "", 1));
    drop(locked);
    node.run().is_quiet();
    assert_eq!(node.ran().len(), 2);
}

/// Inside MicroK8s' snap its variables name the folders; started that way on the host, the state stays ipguard's.
#[test]
fn in_the_environment_of_the_snap_its_folders_are_those_of_its_variables() {
    let node = Node::new();
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let number = port.local_addr().expect("it is bound").port();
    fs::write(node.data().join("args/kube-apiserver"), format!("--secure-port={number}\n")).expect("it is ours");
    fs::rename(node.0.join("snap/microk8s/current"), node.0.join("snap/microk8s/x7")).expect("it is ours");
    script_file(&node.0.join("snap/microk8s/x7/kubectl"), 0o755, "echo configmap/local-registry-hosting");
    fs::remove_dir(node.0.join("var/lib/ipguard")).expect("nothing is in it");
    let run = || {
        let mut command = node.command();
        command.env("SNAP", "/snap/microk8s/x7");
        Ran::from(command.output().expect("the program runs")).is_quiet();
    };
    run();
    let inside = node.common().join("ipguard");
    assert!(inside.join("registry-note").exists());
    assert_eq!(group_and_mode(&inside).1, 0o700);
    fs::remove_dir_all(&inside).expect("it is ours");
    fs::create_dir_all(node.0.join("var/lib/ipguard")).expect("it is ours");
    run();
    assert!(node.0.join("var/lib/ipguard/registry-note").exists() && !inside.exists());
}

#[test]
fn without_microk8s_there_is_nothing_to_do_and_a_refresh_is_waited_out() {
    let node = Node::new();
    fs::remove_file(node.0.join("var/snap/microk8s/current")).expect("it is ours");
    let ran = Ran::from(node.bare_command().output().expect("the program runs"));
    assert_eq!((ran.status, &*ran.stdout), (Some(1), ""));
    assert!(ran.stderr.contains("there are no chores here"), "{}", ran.stderr);
    symlink("2", node.0.join("var/snap/microk8s/current")).expect("it is ours");
    Ran::from(node.bare_command().output().expect("the program runs")).is_quiet();
}

/// A hook that removes `$SNAP_DATA/var/lock/something` would remove it from the host's own `/var/lock`.
#[test]
fn without_the_environment_of_the_snap_no_hook_runs_and_the_rest_is_done() {
    let node = Node::new();
    Ran::from(node.bare_command().output().expect("the program runs")).is_quiet();
    node.hook("10-hook", 0o755, "");
    for missing in ["SNAP_INSTANCE_NAME", "SNAP", "SNAP_DATA", "SNAP_COMMON"] {
        let ran = Ran::from(node.command().env_remove(missing).output().expect("the program runs"));
        assert_eq!((ran.status, &*ran.stdout), (Some(1), ""), "{missing}");
        assert!(ran.stderr.contains("were not run: they need the environment of the snap microk8s"), "{}", ran.stderr);
    }
    assert!(node.ran().is_empty());
    node.run().is_quiet();
    assert_eq!(node.ran(), ["10-hook"]);
}
