//! One pass: observe, decide - the one path of the daemon, the one-shots and the hook.
//!
//! In: a [`Site`] and something that watches the network. Out: a plan, and what is needed to carry it out. The rule of
//! this file: it has no opinion of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use rustls_pki_types::CertificateDer;

use crate::act::execution::{Host, NotIssued, Pace};
use crate::act::issue::{self, CertificateFiles};
use crate::act::lock::{Lock, LockError};
use crate::act::probe::Identity;
use crate::chain::chain;
use crate::config::file::{meaning, parse};
use crate::decide::plan::{IssueOrder, Plan, ReasonCode};
use crate::decide::state::{InPlace, Issuing, State};
use crate::decide::{self, Mode};
use crate::facts::certificate::Fingerprint;
use crate::facts::cluster::{Cluster, Role};
use crate::facts::time::{Now, Timestamp};
use crate::facts::{Observed, Problem};
use crate::observe::kubeconfig::{self, Credentials};
use crate::observe::network::{NetworkError, NetworkSource};
use crate::observe::private_key::{KeyCache, PrivateKey};
use crate::observe::{certificate, cluster, file};
use crate::rollback::Which;
use crate::site::Site;
use crate::{rollback, state_file, sys, takeover};

/// Everything that looks at the world.
#[derive(Debug)]
pub struct Eyes {
    /// The network, by events or by polling.
    pub network: NetworkSource,
    keys: KeyCache,
}

impl Eyes {
    /// Opens them.
    ///
    /// # Errors
    /// Neither rtnetlink nor polling works.
    pub fn open() -> Result<Self, NetworkError> {
        Ok(Self { network: NetworkSource::open()?, keys: KeyCache::default() })
    }

    /// Looks at everything once.
    ///
    /// # Errors
    /// The kernel gives no list of addresses.
    pub fn observe(&mut self, site: &Site) -> Result<Observed, NetworkError> {
        let network = self.network.snapshot()?;
        let (cluster, data, data_missing) = match site.profile().map(|profile| (profile, site.data(profile))) {
            None => (None, None, None),
            Some((profile, Ok(data))) => {
                let mut cluster = cluster::read(profile, &data, &site.root, &mut self.keys, wall_clock());
                if let Some(bundle) = site.foreign_bundle() {
                    cluster::find_foreign(&mut cluster, &bundle);
                }
                (Some(cluster), Some(data), None)
            }
            Some((profile, Err(error))) => (None, None, Some(format!("{}: {error}", profile.data.display()))),
        };
        let kubeconfig = site.profile().zip(data.as_ref()).and_then(|(profile, data)| site.kubeconfig(profile, data));
        let configuration = configuration(site, cluster.as_ref());
        Ok(Observed {
            network,
            cluster,
            data,
            data_missing,
            boot_id: boot_id(),
            lineage: lineage(),
            configuration,
            clock_synchronised: sys::clock_synchronised(),
            takeover: takeover::look(site),
            credentials: kubeconfig.is_some_and(|path| path.symlink_metadata().is_ok_and(|there| there.is_file())),
            ..Observed::default()
        })
    }
}

/// What [`Observed::configuration`] is: the files as they are now, so that it is the same for a daemon that was started
/// before an edit, for a one-shot behind it, and for another version of this program.
fn configuration(site: &Site, cluster: Option<&Cluster>) -> Option<String> {
    let config = match file::read_text(&site.source.path) {
        // What is wrong is not in force, so it asks for nothing new.
        Ok(text) => parse(&text).ok().and_then(|_| meaning(&text))?,
        Err(error) if matches!(error.problem, Problem::Missing | Problem::Empty) => meaning("")?,
        Err(_) => return None,
    };
    let template = match cluster?.template.as_ref() {
        Some(Ok(template)) => template.text.as_str(),
        Some(Err(_)) => return None,
        None => "",
    };
    let text = format!("{config}\n{template}");
    Some(certificate::fingerprint(text.as_bytes()).to_hex())
}

/// The boot that runs now; empty where nobody says.
pub fn boot_id() -> String {
    let text = file::read_text(Path::new("/proc/sys/kernel/random/boot_id"));
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// Our own process and its ancestors. In a container the list ends where its view does.
pub(crate) fn lineage() -> Vec<u32> {
    let parent = |process: u32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok().filter(|parent| *parent != 0)
    };
    std::iter::successors(Some(std::process::id()), |process| parent(*process)).take(64).collect()
}

/// Decides about what was observed.
pub fn decide(observed: &Observed, site: &Site, state: &State, mode: Mode) -> Plan {
    decide::plan(observed, &site.services(), &site.config, state, now(), mode)
}

/// Both clocks, now.
pub fn now() -> Now {
    Now { wall: wall_clock(), uptime: uptime() }
}

fn wall_clock() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn uptime() -> Duration {
    // The clock exists on every kernel this runs on; zero would only make addresses look young.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

/// Services that load the served certificate once, by name.
pub fn loaded_once(site: &Site) -> Vec<String> {
    let services = site.services().into_iter();
    services.filter(|service| service.role == Role::LoadsCertificateOnce).map(|service| service.name).collect()
}

/// Where the steps of a plan are carried out; of no plan, when services are only asked.
pub fn host(site: &Site, observed: &Observed, plan: Option<&Plan>, lock_wait: Duration) -> Host {
    let certificates: BTreeMap<String, Fingerprint> = observed
        .cluster
        .iter()
        .flat_map(|cluster| &cluster.certificates)
        .filter_map(|facts| Some((facts.name.clone(), facts.leaf.as_ref().ok()?.fingerprint)))
        .collect();
    let issuer = Issuer {
        site: site.clone(),
        data: observed.data.clone(),
        before: certificates.clone(),
        services: plan.map(|plan| plan.load_once_services.clone()).unwrap_or_default(),
        boot_id: observed.boot_id.clone(),
        lock_wait,
    };
    let (here, identity, folder, asker) = (site.clone(), site.clone(), site.state_dir(), site.clone());
    Host {
        root: site.root.clone(),
        manager: site.manager(),
        services: site.services(),
        certificates,
        in_place_since: plan.and_then(|plan| plan.state.in_place_since(&observed.boot_id)),
        issue: Box::new(move |order| issuer.issue(order)),
        claim: Box::new(move |service, reason, at| claim(&folder, lock_wait, service, reason, at)),
        identify: Arc::new(move |name| identify(&identity, name)),
        credentials: Arc::new(move || credentials(&asker)),
        put_back: Box::new(move |certificate, fingerprint, cause| {
            let which = Which::Leaf { fingerprint, cause };
            let generation = rollback::put_back(&here, certificate, which, lock_wait).map_err(|error| chain(&error))?;
            Ok(generation.leaf.fingerprint)
        }),
        pace: Pace::default(),
    }
}

/// Writes a restart down before it is handed over: the daemon, a one-shot and a hook may come to it at the same moment,
/// and each of them may be killed behind it.
fn claim(folder: &Path, lock_wait: Duration, service: &str, reason: ReasonCode, at: Timestamp) -> Result<(), String> {
    let _lock = match Lock::acquire(folder, lock_wait) {
        Ok(lock) => lock,
        Err(error @ LockError::Busy { .. }) => return Err(chain(&error)),
        // Where nothing can be remembered the process itself does.
        Err(_) => return Ok(()),
    };
    let mut claimed = true;
    write_down(folder, |state| claimed = state.claim_restart(service, reason, at));
    if claimed { Ok(()) } else { Err("a restart of it is under way already".to_owned()) }
}

/// A certificate of the profile with its key, for a server that asks who we are.
fn identify(site: &Site, name: &str) -> Option<Identity> {
    let profile = site.profile()?;
    let data = site.data(profile).ok()?;
    let paths = site.certificate_files(profile, &data, name)?.paths;
    let chain = certificate::bundle(&paths.certificate).ok()?;
    let key = PrivateKey::load(&paths.key, &certificate::server_owner(&paths.certificate)).ok()?;
    Some(Identity { chain: chain.into_iter().map(CertificateDer::from).collect(), key: key.to_tls() })
}

/// Who asks the API server, by the distribution's own kubeconfig.
fn credentials(site: &Site) -> Result<Credentials, String> {
    let profile = site.profile().ok_or("there is no distribution here")?;
    let data = site.data(profile).map_err(|error| error.to_string())?;
    let path = site.kubeconfig(profile, &data).ok_or("the distribution has no kubeconfig")?;
    kubeconfig::credentials(&path, &site.root).map_err(|error| chain(&error))
}

/// Does what an interrupted write left undone. A failure is said and stops nothing: the certificate is in step, and the
/// next pass finds the same.
pub fn mend(site: &Site, observed: &Observed, plan: &Plan, lock_wait: Duration) {
    let Some(mend) = &plan.mend else { return };
    let Some(profile) = site.profile() else { return };
    let Some(data) = site.data(profile).ok().filter(|data| Some(data) == observed.data.as_ref()) else { return };
    let Some(files) = site.certificate_files(profile, &data, &mend.certificate) else { return };
    let done = Lock::acquire(&site.state_dir(), lock_wait).map_err(|error| chain(&error)).and_then(|mut lock| {
        lock.also_on(&files.folder, lock_wait);
        issue::mend(mend.request.as_deref(), &files, &lock).map_err(|error| chain(&error))
    });
    match done {
        Ok(()) => tracing::info!("{}: done", mend.why),
        Err(error) => tracing::error!("{}: {error}", mend.why),
    }
}

/// Makes certificates for one plan.
struct Issuer {
    site: Site,
    /// The data folder that the plan was made for.
    data: Option<PathBuf>,
    /// The leaves that the plan was made for.
    before: BTreeMap<String, Fingerprint>,
    /// Services to restart for a new one.
    services: Vec<String>,
    boot_id: String,
    lock_wait: Duration,
}

impl Issuer {
    /// Makes one certificate, with its paths resolved and the lock held for just as long as it takes. What is done is
    /// written down before and behind it under the same lock, so that a death in between loses nothing.
    fn issue(&self, order: &IssueOrder) -> Result<Fingerprint, NotIssued> {
        let site = &self.site;
        let profile = site.profile().ok_or_else(|| "there is no distribution to make a certificate for".to_owned())?;
        let now_at = || site.data(profile).ok().filter(|data| Some(data) == self.data.as_ref());
        let data = now_at().ok_or(NotIssued::Moved)?;
        let files = site
            .certificate_files(profile, &data, &order.certificate)
            .ok_or_else(|| format!("the profile {} has no certificate {}", profile.name, order.certificate))?;
        let folder = site.state_dir();
        let mut lock = Lock::acquire(&folder, self.lock_wait).map_err(|error| chain(&error))?;
        lock.also_on(&files.folder, self.lock_wait);
        // Waiting for the lock may have taken a while.
        now_at().ok_or(NotIssued::Moved)?;
        let there = leaf_of(&files);
        let before = self.before.get(&order.certificate).copied();
        if there.is_some() && there != before {
            return Err(NotIssued::Overtaken);
        }
        // Dates ahead of the clock are ordered only where the clock is known to be behind: then theirs is the time.
        let now = wall_clock().max(order.not_before);
        if !order.served && !order.shown_by_kubelet {
            // Nobody is restarted or asked for it, so there is nothing to remember.
            return Ok(said(issue::issue(order, &files, &lock, now).map_err(|error| chain(&error))?));
        }
        let issuing = Issuing::new(order, before, &self.services, wall_clock());
        write_down(&folder, |state| state.issuing = Some(issuing.clone()));
        let issued = issue::issue(order, &files, &lock, now);
        write_down(&folder, |state| match &issued {
            Ok(issued) => {
                let in_place = InPlace { boot_id: self.boot_id.clone(), uptime: Some(uptime()) };
                state.issued(&issuing, issued.fingerprint, &order.sans, in_place);
            }
            // Refused between two files: the leaf is in place, and the next pass goes on as after a death.
            Err(_) if leaf_of(&files).is_some_and(|leaf| Some(leaf) != there) => {}
            Err(_) => state.issuing = None,
        });
        Ok(said(issued.map_err(|error| chain(&error))?))
    }
}

/// The leaf that was made. What could not be kept of the one before is said: somebody may count on it.
fn said(issued: issue::Issued) -> Fingerprint {
    if let Some(error) = issued.not_kept {
        let cause = chain(&error);
        tracing::warn!("the certificate before is not kept, `ipguard rollback` will not find it: {cause}");
    }
    issued.fingerprint
}

/// The leaf on disk, if there is one.
fn leaf_of(files: &CertificateFiles) -> Option<Fingerprint> {
    let der = certificate::first_certificate(&files.paths.certificate).ok()?;
    certificate::leaf(&der).is_ok().then(|| certificate::fingerprint(&der))
}

/// Changes the state on disk, under the lock. A disk that does not take it must not stop a certificate that is needed:
/// what was done is recorded once more at the end, by somebody who can keep it.
pub(crate) fn write_down(folder: &Path, change: impl FnOnce(&mut State)) {
    let (mut state, _) = state_file::load(folder);
    change(&mut state);
    if let Err(error) = state_file::save(folder, &state) {
        tracing::debug!("{}", chain(&error));
    }
}
