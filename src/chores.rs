//! One pass of the distribution's upkeep besides certificates: what MicroK8s' own loop does every five seconds.
//!
//! In: a [`Site`] and the environment. Out: a [`Report`]. The rule of this file: a program of its own, never a part of the
//! daemon, so that the daemon's sandbox need not allow foreign programs and foreign folders, and nothing here can delay
//! or fail what is done for certificates. With nothing wrong and no hooks it starts no process and writes nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use crate::act::chores::registry::{self, Kubectl, Registered};
use crate::act::chores::tree::{self, Task};
use crate::act::chores::wait::StopSignals;
use crate::act::chores::{Report, hooks, shown};
use crate::act::lock::{LockError, lock_folder};
use crate::act::store::{Folder, StoreError};
use crate::chain::chain;
use crate::decide::chores::{Wanted, gate, is_shared_with_group};
use crate::facts::cluster::Role;
use crate::observe::{chores, cluster, file};
use crate::profiles::{Chores, Profile, beneath};
use crate::site::Site;

/// Says for which cluster the note about its registry was seen.
const SEEN: &str = "registry-note";

/// Why there was no pass.
#[derive(Debug, thiserror::Error)]
pub enum ChoresError {
    /// Nothing here has chores.
    #[error("there are no chores here: no MicroK8s was found; name it with --profile, or --root for one elsewhere")]
    NoDistribution,
    /// Our own folder cannot be used.
    #[error("the chores need a folder of their own; run as root")]
    Folder(#[from] LockError),
    /// The kernel gives no descriptor for signals.
    #[error("listening for signals")]
    Signals(#[source] Errno),
}

/// Does what is to be done.
///
/// # Errors
/// Nothing was looked at. What failed of a pass is in the report.
pub fn run(site: &Site, environment: &[(OsString, OsString)]) -> Result<Report, ChoresError> {
    let (profile, places) = site
        .profile()
        .and_then(|profile| Some((profile, profile.chores.as_ref()?)))
        .ok_or(ChoresError::NoDistribution)?;
    let mut report = Report::default();
    let Ok(data) = site.data(profile) else {
        tracing::debug!("no data folder, as for a moment of each refresh: nothing done");
        return Ok(report);
    };
    let locks = match cluster::locks(&data.join(&profile.files.locks)) {
        Ok(locks) => locks,
        Err(error) => {
            report.failed(format!("{error}; what the lock files forbid is not known, so nothing is done"));
            return Ok(report);
        }
    };
    let guards = profile.services.iter().filter(|service| service.role == Role::OtherGuard);
    let lineage = crate::pass::lineage();
    let other_guard_runs = guards.into_iter().any(|guard| chores::runs_beside(&site.root, &guard.unit, &lineage));
    if let Some(why) = gate(&locks, other_guard_runs) {
        tracing::debug!("nothing done: {why}");
        return Ok(report);
    }
    let node = Node { site, profile, places, data };
    let enabled = site.config.chores;
    if site.config.observe {
        if enabled.permissions && is_shared_with_group(&locks) {
            node.permissions(&mut report);
        }
        return Ok(report);
    }
    let _one_at_a_time = match lock_folder(&node.folder()) {
        Err(error @ LockError::Busy { .. }) => {
            tracing::info!("nothing done: {}", chain(&error));
            return Ok(report);
        }
        other => other?,
    };
    let signals = StopSignals::take().map_err(ChoresError::Signals)?;
    if enabled.permissions && is_shared_with_group(&locks) {
        node.permissions(&mut report);
    }
    // Before the hooks, which may take minutes.
    if enabled.registry && !node.registry(&signals, &mut report) {
        return Ok(report);
    }
    if enabled.hooks {
        node.hooks(environment, &signals, &mut report);
    }
    Ok(report)
}

/// The node as this pass found it.
struct Node<'a> {
    site: &'a Site,
    profile: &'a Profile,
    places: &'a Chores,
    data: PathBuf,
}

impl Node<'_> {
    fn permissions(&self, report: &mut Report) {
        let strict = self.snap().is_some_and(|snap| chores::is_strict(&snap));
        let name = if strict { &self.places.strict_group } else { &self.places.group };
        let Some(group) = chores::group(&self.site.root, name) else {
            tracing::debug!("there is no group {name}: permissions stay as they are");
            return;
        };
        let observe = self.site.config.observe;
        let task = |wanted| Task { group, wanted, observe };
        tree::correct(&self.data, &self.places.backend, task(Wanted::GroupAndMode), report);
        if let Some(common) = self.common() {
            tree::correct(&common, &self.places.socket, task(Wanted::Group), report);
        }
    }

    /// `false` when we are to stop.
    ///
    /// kubectl is a large program, so it is run until the note was seen, and then no more: what was seen is remembered
    /// for this boot and this cluster. Another boot asks again, as MicroK8s' own loop does whenever it starts; so does a
    /// node that joined, left or was reset, whose data store is made anew. Somebody who removes the note keeps it
    /// removed until then. Removing the file that remembers it asks at once.
    fn registry(&self, signals: &StopSignals, report: &mut Report) -> bool {
        let folder = self.folder();
        let seen = folder.join(SEEN);
        let identity = chores::identity(&self.site.root, &self.data, &self.places.identity);
        if file::read_text(&seen).is_ok_and(|text| text == identity) {
            return true;
        }
        let Some(snap) = self.snap() else { return true };
        if !registry::answers(self.port()) {
            return true;
        }
        let cache = folder.join("kubectl");
        let kubectl = Kubectl {
            program: snap.join(&self.places.kubectl),
            kubeconfig: self.data.join(&self.places.kubeconfig),
            cache: cache.clone(),
        };
        let registered = kubectl.register(signals);
        // Ours alone, and made anew when it is needed: it would only be one more thing to leave behind.
        let _ = std::fs::remove_dir_all(cache);
        let registered = match registered {
            Ok(registered) => registered,
            Err(error) => {
                report.failed(format!("the note about local registries: {}", chain(&error)));
                return true;
            }
        };
        if matches!(registered, Registered::Before | Registered::Now) {
            if registered == Registered::Now {
                report.done("made kube-public/local-registry-hosting, the note about local registries".to_owned());
            }
            if let Err(error) = remember(&folder, &seen, &identity) {
                report.failed(format!("the note about local registries is looked for again: {}", chain(&error)));
            }
        }
        registered != Registered::Stopped
    }

    /// Our own folder. On the host this runs in the environment of MicroK8s' snap, as if it were a part of it; but the
    /// daemon beside it does not, and where it keeps its state is the folder that goes with ipguard.
    fn folder(&self) -> PathBuf {
        let of_host = self.site.root.join("var/lib/ipguard");
        if of_host.is_dir() { of_host } else { self.site.state_dir() }
    }

    /// Hooks put `$SNAP_DATA` and its kind in front of the files that they change: without those they would change others.
    fn hooks(&self, environment: &[(OsString, OsString)], signals: &StopSignals, report: &mut Report) {
        let Some(folder) = self.common().map(|common| common.join(&self.places.hooks)) else { return };
        let snap = &self.site.snap;
        let promised = snap.files.is_some() && snap.data.is_some() && snap.common.is_some();
        if promised && snap.is_inside(&self.profile.name) {
            hooks::run(&folder, Duration::from_secs(self.places.hook_seconds), environment, signals, report);
        } else if hooks::any(&folder) {
            let name = &self.profile.name;
            report.failed(format!(
                "the hooks in {} were not run: they need the environment of the snap {name}, which the unit \
                 ipguard-{name}-chores.service and `snap run --shell {name}` give",
                shown(&folder)
            ));
        }
    }

    fn port(&self) -> u16 {
        cluster::arguments(self.profile, &self.data, &self.site.root).secure_port
    }

    /// The data folder of all revisions; `None` where it is not there.
    fn common(&self) -> Option<PathBuf> {
        self.place(self.site.snap.common.as_deref(), &self.places.common)
    }

    /// The files of the snap; `None` where they are not there.
    fn snap(&self) -> Option<PathBuf> {
        self.place(self.site.snap.files.as_deref(), &self.places.snap)
    }

    fn place(&self, own: Option<&Path>, usual: &Path) -> Option<PathBuf> {
        let own = own.filter(|_| self.site.snap.is_inside(&self.profile.name));
        beneath(&self.site.root, own.unwrap_or(usual)).ok()
    }
}

fn remember(folder: &Path, seen: &Path, identity: &str) -> Result<(), StoreError> {
    Folder::open(folder)?.place(seen)?.replace(identity.as_bytes(), 0o600).map(drop)
}
