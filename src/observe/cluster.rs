//! What the distribution's files say, gathered for one pass.
//!
//! In: a profile and its data folder of the moment. Out: a [`Cluster`]. The rule of this file: a file that cannot be read
//! is inside the value as the reason why.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::facts::certificate::CertificateFacts;
use crate::facts::cluster::{Arguments, Cluster};
use crate::facts::time::Timestamp;
use crate::facts::{Problem, Read, ReadError};
use crate::observe::arguments::{Components, Defaults};
use crate::observe::places::{self, Places};
use crate::observe::private_key::KeyCache;
use crate::observe::{certificate, file, flags, join_tokens, template};
use crate::profiles::{CertificateEntry, Profile};

/// Name of the lock file of a node that is joining.
const JOINING: &str = "join-in-progress";

/// Name of the lock file of the host-access addon; it holds the address.
const HOST_ACCESS: &str = "host-access-enabled";

/// Reads the distribution's files.
pub fn read(profile: &Profile, data: &Path, root: &Path, keys: &mut KeyCache, now: Timestamp) -> Cluster {
    let (locks, locks_unreadable) = match locks(&data.join(&profile.files.locks)) {
        Ok(locks) => (locks, None),
        Err(error) => (BTreeMap::new(), Some(error)),
    };
    let components = components(profile, data, root);
    let found: Vec<Places> =
        profile.certificates.iter().map(|entry| places::find(entry, profile, data, root, &components)).collect();
    let mut arguments = components.typed(&defaults(profile));
    let hostname = arguments.hostname_override.clone().unwrap_or_else(|| hostname(root));
    let entries = profile.certificates.iter().zip(found);
    let certificates = entries.map(|(entry, places)| facts(entry, places, &hostname, keys, now)).collect();
    let host_access = host_access(&data.join(&profile.files.locks).join(HOST_ACCESS)).unwrap_or_else(|error| {
        arguments.errors.push(error);
        None
    });
    Cluster {
        profile: profile.name.clone(),
        hostname,
        arguments,
        joining: locks.contains_key(JOINING).then(|| join_process(root)).flatten(),
        locks,
        locks_unreadable,
        host_access,
        template: profile.files.template.as_ref().map(|path| template::read(&data.join(path))),
        request: profile.files.request.as_ref().map(|path| template::read(&data.join(path))),
        certificates,
        join_tokens: join_tokens::read(profile.files.join_tokens.iter().map(|path| data.join(path))),
        foreign_unreadable: None,
    }
}

/// Marks the certificates that a CA of the operator's bundle signed; all of them while the bundle cannot be read, for any
/// may rest on it. The error is told.
pub fn find_foreign(cluster: &mut Cluster, others: &Path) {
    let unreadable = certificate::bundle(others).err();
    for facts in &mut cluster.certificates {
        facts.issued_by_foreign = unreadable.is_some() || certificate::is_by(&facts.path, others).unwrap_or(false);
    }
    cluster.foreign_unreadable = unreadable;
}

/// The argument files of the data folder of the moment.
pub fn components(profile: &Profile, data: &Path, root: &Path) -> Components {
    let variables = flags::variables(&profile.variables, data, root);
    Components::read(&data.join(&profile.files.arguments), &variables)
}

/// What the argument files say, with what the profile says where they are silent.
pub fn arguments(profile: &Profile, data: &Path, root: &Path) -> Arguments {
    components(profile, data, root).typed(&defaults(profile))
}

fn defaults(profile: &Profile) -> Defaults {
    Defaults {
        secure_port: profile.defaults.secure_port,
        service_cidrs: profile.defaults.service_cidrs.clone(),
        pod_cidrs: profile.defaults.pod_cidrs.clone(),
    }
}

/// A certificate of the profile, with the node's name put in its subject.
fn facts(
    entry: &CertificateEntry,
    places: Places,
    hostname: &str,
    keys: &mut KeyCache,
    now: Timestamp,
) -> CertificateFacts {
    // Kubernetes' node names are lower-case.
    let node = hostname.to_lowercase();
    let named = |(kind, value): &(String, String)| (kind.clone(), value.replace("{hostname}", &node));
    CertificateFacts {
        subject: entry.subject.iter().map(named).collect(),
        elsewhere: places.elsewhere,
        ..certificate::read(&entry.name, entry.role, &places.paths, keys, now)
    }
}

/// The address in the lock file, where there is one.
fn host_access(path: &Path) -> Read<Option<IpAddr>> {
    match file::read_text(path) {
        Ok(text) => match text.trim() {
            "" => Ok(None),
            text => {
                let address = text.parse::<IpAddr>().map(|address| Some(address.to_canonical()));
                address.map_err(|_| ReadError::malformed(path, "it holds no address"))
            }
        },
        Err(error) if matches!(error.problem, Problem::Missing | Problem::Empty) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lock files and when they were last written. The folder itself may be no link: what lies behind it is not the node's.
pub(crate) fn locks(folder: &Path) -> Read<BTreeMap<String, Timestamp>> {
    let unreadable = |error: std::io::Error| ReadError::from_io(folder, &error);
    let entries = match std::fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => std::fs::read_dir(folder).map_err(unreadable)?,
        Ok(_) => return Err(ReadError::malformed(folder, "it is no folder")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut locks = BTreeMap::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let written = match entry.metadata().and_then(|file| file.modified()) {
            Ok(written) => written,
            // Removed meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error)),
        };
        // A lock forbids whatever its time is: without a clock of its own a host may start before 1970.
        let millis = match written.duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |before| -before),
        };
        if let Ok(name) = entry.file_name().into_string() {
            locks.insert(name, Timestamp::from_millis(millis));
        }
    }
    Ok(locks)
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
