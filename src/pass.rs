//! One pass: observe, decide - the one path of the daemon, the one-shots and the hook.
//!
//! In: a [`Site`] and something that watches the network. Out: a plan, and what is needed to carry it out. The rule of
//! this file: it has no opinion of its own.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use crate::act::execution::{Host, Pace};
use crate::act::issue;
use crate::act::lock::Lock;
use crate::chain::chain;
use crate::decide::plan::{IssueOrder, Plan};
use crate::decide::state::State;
use crate::decide::{self, Mode};
use crate::facts::Observed;
use crate::facts::certificate::Fingerprint;
use crate::facts::time::{Now, Timestamp};
use crate::observe::network::{NetworkError, NetworkSource};
use crate::observe::private_key::KeyCache;
use crate::observe::{cluster, file};
use crate::site::Site;

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
        let (cluster, data_missing) = match site.profile().map(|profile| (profile, site.data(profile))) {
            None => (None, None),
            Some((profile, Ok(data))) => (Some(cluster::read(profile, &data, &site.root, &mut self.keys)), None),
            Some((profile, Err(error))) => (None, Some(format!("{}: {error}", profile.data.display()))),
        };
        let boot_id = file::read_text(std::path::Path::new("/proc/sys/kernel/random/boot_id"));
        Ok(Observed {
            network,
            cluster,
            data_missing,
            boot_id: boot_id.map(|text| text.trim().to_owned()).unwrap_or_default(),
            lineage: lineage(),
            ..Observed::default()
        })
    }
}

/// Our own process and its ancestors. In a container the list ends where its view does.
fn lineage() -> Vec<u32> {
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

/// Where the steps of a plan are carried out.
pub fn host(site: &Site, observed: &Observed, lock_wait: Duration) -> Host {
    let certificates = observed
        .cluster
        .iter()
        .flat_map(|cluster| &cluster.certificates)
        .filter_map(|facts| Some((facts.name.clone(), facts.leaf.as_ref().ok()?.fingerprint)))
        .collect();
    let site_of_issue = site.clone();
    Host {
        root: site.root.clone(),
        manager: site.manager(),
        services: site.services(),
        certificates,
        issue: Box::new(move |order| issue(&site_of_issue, order, lock_wait)),
        pace: Pace::default(),
    }
}

/// Makes one certificate, with its paths resolved and the lock held for just as long as it takes.
fn issue(site: &Site, order: &IssueOrder, lock_wait: Duration) -> Result<Fingerprint, String> {
    let profile = site.profile().ok_or("there is no distribution to make a certificate for")?;
    let data: PathBuf = site.data(profile).map_err(|error| format!("{}: {error}", profile.data.display()))?;
    let files = site
        .certificate_files(profile, &data, &order.certificate)
        .ok_or_else(|| format!("the profile {} has no certificate {}", profile.name, order.certificate))?;
    let lock = Lock::acquire(&site.state_dir(), lock_wait).map_err(|error| chain(&error))?;
    let issued = issue::issue(order, &files, &lock, wall_clock()).map_err(|error| chain(&error))?;
    Ok(issued.fingerprint)
}
