//! Stand-ins for the service manager's commands, below a temporary root.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use ipguard::act::execution::{Host, Pace};
use ipguard::act::services::Manager;
use ipguard::facts::cluster::{Role, Service};

/// A root of its own, removed at the end.
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("acting-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(path.join("usr/bin")).expect("the target folder is writable");
        Self(path)
    }

    /// Makes a command of a shell script, in which `$R` is this root. Each call is noted first.
    pub(crate) fn command(&self, name: &str, script: &str) {
        let path = self.0.join("usr/bin").join(name);
        let root = self.0.display();
        let text = format!("#!/bin/sh\nR='{root}'\necho \"{name} $*\" >>\"$R/calls\"\n{script}\n");
        // Written by another process: a descriptor of ours that is open for writing may be inherited by a child that
        // another test starts at this moment, and the kernel does not execute a file that is open for writing.
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh can be started");
        writer.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("cat reads it");
        assert!(writer.wait().expect("it ends").success());
    }

    /// A systemctl that tells of two running services, or what the file `state` says of both.
    pub(crate) fn systemctl(&self) {
        self.write("state", "active");
        self.command(
            "systemctl",
            r#"[ "$1" = show ] || exit 0
            shift 2
            for unit; do
                printf 'Id=%s\nActiveState=%s\nSubState=x\nExecMainStartTimestampMonotonic=7000000\n\n' "$unit" "$(cat "$R/state")"
            done"#,
        );
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("the target folder is writable");
    }

    /// What was called, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// The calls that could have changed something.
    pub(crate) fn changes(&self) -> Vec<String> {
        let asks = |call: &String| call.starts_with("systemctl show") || call.starts_with("snapctl services");
        self.calls().into_iter().filter(|call| !asks(call)).collect()
    }

    pub(crate) fn host(&self, manager: Manager) -> Host {
        Host {
            root: self.0.clone(),
            manager,
            services: services(),
            certificates: BTreeMap::new(),
            in_place_since: None,
            issue: Box::new(|order| Err(format!("nobody asked for {}", order.certificate).into())),
            identify: std::sync::Arc::new(|_| None),
            claim: Box::new(|_, _, _| Ok(())),
            credentials: std::sync::Arc::new(|| Err("nobody asks".to_owned())),
            put_back: Box::new(|certificate, leaf, cause| Err(format!("{certificate} {leaf} ({cause}) is not kept"))),
            pace: Pace::default(),
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// As MicroK8s has them, and a plain unit.
pub(crate) fn services() -> Vec<Service> {
    let service = |name: &str, role, unit: &str, snap: Option<&str>| Service {
        name: name.to_owned(),
        role,
        unit: unit.to_owned(),
        snap: snap.map(str::to_owned),
        ready: None,
    };
    vec![
        service("kubelite", Role::ApiServer, "snap.microk8s.daemon-kubelite.service", Some("microk8s.daemon-kubelite")),
        service(
            "cluster-agent",
            Role::LoadsCertificateOnce,
            "snap.microk8s.daemon-cluster-agent.service",
            Some("microk8s.daemon-cluster-agent"),
        ),
        service("k3s", Role::ApiServer, "k3s.service", None),
    ]
}
