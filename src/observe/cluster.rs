//! What the distribution's files say, gathered for one pass.
//!
//! In: a profile and its data folder of the moment. Out: a [`Cluster`]. The rule of this file: a file that cannot be read
//! is inside the value as the reason why.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::facts::cluster::Cluster;
use crate::facts::time::Timestamp;
use crate::observe::arguments::{self, Defaults};
use crate::observe::private_key::KeyCache;
use crate::observe::{certificate, file, template};
use crate::profiles::Profile;

/// Name of the lock file of a node that is joining.
const JOINING: &str = "join-in-progress";

/// Reads the distribution's files.
pub fn read(profile: &Profile, data: &Path, root: &Path, keys: &mut KeyCache) -> Cluster {
    let locks = locks(&data.join(&profile.files.locks));
    let defaults = Defaults {
        secure_port: profile.defaults.secure_port,
        service_cidrs: profile.defaults.service_cidrs.clone(),
        pod_cidrs: profile.defaults.pod_cidrs.clone(),
    };
    let mut arguments = arguments::read(&data.join(&profile.files.arguments), data, &defaults);
    let certificates: Vec<_> =
        profile.certificates.iter().map(|entry| certificate::read(&entry.name, &entry.paths(data), keys)).collect();
    // The argument file may name the certificate through `current`, through the revision, or not at all.
    let same = |path: &Path| {
        let there = crate::profiles::beneath(root, path);
        certificates.first().is_some_and(|server| there.is_ok_and(|there| there == server.path) || path == server.path)
    };
    if arguments.certificate.as_deref().is_some_and(same) {
        arguments.certificate = None;
    }
    Cluster {
        profile: profile.name.clone(),
        hostname: hostname(root),
        arguments,
        joining: locks.contains_key(JOINING).then(|| join_process(root)).flatten(),
        locks,
        template: profile.files.template.as_ref().map(|path| template::read(&data.join(path))),
        request: profile.files.request.as_ref().map(|path| template::read(&data.join(path))),
        certificates,
    }
}

/// Lock files and when they were last written.
fn locks(folder: &Path) -> BTreeMap<String, Timestamp> {
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let written = entry.metadata().ok()?.modified().ok()?;
            let since = written.duration_since(UNIX_EPOCH).ok()?;
            let millis = i64::try_from(since.as_millis()).ok()?;
            Some((entry.file_name().into_string().ok()?, Timestamp::from_millis(millis)))
        })
        .collect()
}

/// The node's name: an offline image's own, else the running kernel's.
fn hostname(root: &Path) -> String {
    let own = (root != Path::new("/")).then(|| file::read_text(&root.join("etc/hostname")).ok()).flatten();
    own.map(|text| text.trim().to_owned())
        .unwrap_or_else(|| nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default())
}

/// Whether a process runs MicroK8s' join script; `None` when the processes cannot be listed.
fn join_process(root: &Path) -> Option<bool> {
    let processes = std::fs::read_dir(root.join("proc")).ok()?;
    Some(processes.flatten().any(|process| {
        let by_number = process.file_name().to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        by_number
            && std::fs::read(process.path().join("cmdline")).is_ok_and(|line| {
                line.split(|byte| *byte == 0).any(|word| word.ends_with(b"/join.py") || word == b"join.py")
            })
    }))
}
