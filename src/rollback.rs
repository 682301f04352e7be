//! Putting an earlier certificate back.
//!
//! In: a [`Site`], which certificate, which generation of it. Out: what was put back, under the lock and written down like a reissue.
//! The rule of this file: nothing is put back that a peer would refuse, or that the next pass would replace at once.

use std::path::Path;
use std::time::Duration;

use crate::act::generations::{self, Generation, GenerationError};
use crate::act::lock::{Lock, LockError};
use crate::act::self_check;
use crate::chain::chain;
use crate::decide::Mode;
use crate::decide::plan::Reason;
use crate::decide::rollback::RolledBack;
use crate::decide::state::{InPlace, Issuing, State};
use crate::facts::certificate::{CertificateRole, Fingerprint};
use crate::facts::cluster::CertificatePaths;
use crate::facts::{Observed, ReadError};
use crate::observe::certificate;
use crate::observe::network::NetworkError;
use crate::observe::private_key::KeyCache;
use crate::pass::{self, Eyes};
use crate::site::Site;
use crate::state_file::{self, SaveError};

/// How long somebody else may hold the lock, for whoever has nothing else to do.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Which of the earlier certificates, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// So many certificates back; somebody asked for it.
    Back(usize),
    /// The one with this SHA-256 (hexadecimal), because of what is wrong with the one in place.
    Leaf {
        /// Of the leaf.
        fingerprint: &'a str,
        /// What is wrong.
        cause: &'a str,
    },
}

/// Why nothing was put back. The certificate in place is as it was, unless a file failed while it was written.
#[derive(Debug, thiserror::Error)]
pub enum RollbackError {
    /// There is no distribution, or its data folder cannot be found.
    #[error("there is no certificate here: {0}")]
    NoCluster(String),
    /// A certificate nobody knows.
    #[error("there is no certificate {asked}: there are {known}")]
    UnknownCertificate {
        /// As typed.
        asked: String,
        /// The profile's, separated by commas.
        known: String,
    },
    /// Fewer certificates were replaced than asked back for.
    #[error("number {asked} back is asked for, and {kept} earlier certificates of {certificate} are kept")]
    NoGeneration {
        /// Name of the certificate.
        certificate: String,
        /// How many there are.
        kept: usize,
        /// How far back.
        asked: usize,
    },
    /// The certificate that worked is not kept any more.
    #[error("the certificate {leaf} of {certificate} is not among those that are kept")]
    NotKept {
        /// Name of the certificate.
        certificate: String,
        /// SHA-256 of the leaf, hexadecimal.
        leaf: String,
    },
    /// A client or a server would refuse it, or the next pass would replace it.
    #[error("generation {number} of {certificate} is not put back: {why}")]
    Refused {
        /// Name of the certificate.
        certificate: String,
        /// Its number.
        number: u64,
        /// What speaks against it.
        why: String,
    },
    /// The network cannot be read.
    #[error("reading the network")]
    Network(#[from] NetworkError),
    /// Another writer, or a folder that cannot be used.
    #[error("rolling back needs the lock")]
    Lock(#[from] LockError),
    /// A rollback that is not remembered would be undone by the next pass.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The state cannot be read.
    #[error("the state is not used, so the rollback could not be remembered")]
    State(#[source] ReadError),
    /// The generations cannot be read, or the files not written.
    #[error(transparent)]
    Generation(#[from] GenerationError),
}

/// The certificates of the distribution; the first is the one that the API server serves.
///
/// # Errors
/// There is no distribution.
pub fn certificate_names(site: &Site) -> Result<Vec<&'static str>, RollbackError> {
    let profile = site.profile().ok_or_else(|| RollbackError::NoCluster("no distribution was found".to_owned()))?;
    Ok(profile.certificates.iter().map(|entry| entry.name.as_str()).collect())
}

/// The certificate to work on: the one named, else the one that the API server serves.
///
/// # Errors
/// There is no such certificate, or no distribution.
pub fn certificate_name(site: &Site, asked: Option<&str>) -> Result<String, RollbackError> {
    let known = certificate_names(site)?;
    match asked.or_else(|| known.first().copied()) {
        Some(name) if known.contains(&name) => Ok(name.to_owned()),
        name => Err(RollbackError::UnknownCertificate {
            asked: name.unwrap_or_default().to_owned(),
            known: known.join(", "),
        }),
    }
}

/// The earlier certificates, newest first: the place in the list is how far back one is.
///
/// # Errors
/// They cannot be read.
pub fn list(site: &Site, name: &str) -> Result<Vec<Generation>, RollbackError> {
    let data = site.profile().and_then(|profile| Some((profile, site.data(profile).ok()?)));
    let files = data.and_then(|(profile, data)| site.certificate_files(profile, &data, name));
    earlier(&site.state_dir(), name, files.and_then(|files| in_place(&files.paths)))
}

/// What is in place is not earlier, though it may be kept: it was put back, or a rollback was interrupted.
fn earlier(folder: &Path, name: &str, in_place: Option<Fingerprint>) -> Result<Vec<Generation>, RollbackError> {
    let mut all = generations::list(folder, name)?;
    all.retain(|generation| Some(generation.leaf.fingerprint) != in_place);
    Ok(all)
}

fn in_place(paths: &CertificatePaths) -> Option<Fingerprint> {
    certificate::first_certificate(&paths.certificate).ok().map(|der| certificate::fingerprint(&der))
}

/// Puts an earlier generation in place and holds it there.
///
/// # Errors
/// Says why not.
pub fn put_back(site: &Site, name: &str, which: Which<'_>, lock_wait: Duration) -> Result<Generation, RollbackError> {
    let profile = site.profile().ok_or_else(|| RollbackError::NoCluster("no distribution was found".to_owned()))?;
    let mut observed = Eyes::open()?.observe(site)?;
    let folder = site.state_dir();
    let mut lock = Lock::acquire(&folder, lock_wait)?;
    let no_cluster = |error: std::io::Error| RollbackError::NoCluster(error.to_string());
    let data = site.data(profile).map_err(no_cluster)?;
    if observed.data.as_ref() != Some(&data) {
        return Err(RollbackError::NoCluster("the data folder has moved meanwhile: try again".to_owned()));
    }
    let files = site
        .certificate_files(profile, &data, name)
        .ok_or_else(|| RollbackError::NoCluster(format!("the profile has no certificate {name}")))?;
    lock.also_on(&files.folder, lock_wait);
    let before = in_place(&files.paths);
    let generation = choose(earlier(&folder, name, before)?, name, which)?;
    let (state, unused) = state_file::load(&folder);
    if let Some(error) = unused {
        return Err(RollbackError::State(error));
    }
    let rollback = RolledBack {
        at: pass::now().wall,
        certificate: name.to_owned(),
        fingerprint: generation.leaf.fingerprint.to_hex(),
        configuration: observed.configuration.clone().unwrap_or_default(),
        cause: match which {
            Which::Back(_) => None,
            Which::Leaf { cause, .. } => Some(cause.to_owned()),
        },
    };
    // Looked at as if it were in place already.
    let paths = generation.paths(&files.paths);
    let role = profile.certificates.iter().find(|entry| entry.name == name).map(|entry| entry.role).unwrap_or_default();
    let facts = certificate::read(name, role, &paths, &mut KeyCache::default(), pass::now().wall);
    let key = facts.key.clone();
    let refused = |why: String| RollbackError::Refused { certificate: name.to_owned(), number: generation.number, why };
    if let Some(there) = observed.cluster.iter_mut().flat_map(|c| &mut c.certificates).find(|there| there.name == name)
    {
        *there = facts;
    }
    let against = would_be_replaced(&observed, site, &state, &rollback);
    if !against.is_empty() {
        let lines: Vec<String> = against.iter().map(|reason| format!("{} ({})", reason.detail, reason.code)).collect();
        return Err(refused(lines.join("; ")));
    }
    self_check::by_peer(&paths, role.purpose(), pass::now().wall).map_err(refused)?;
    let now = pass::now().wall;
    let loaded = generation.load()?;
    if let Ok(key) = key
        && let Err(error) = generations::keep(name, &files, &key, &lock, now)
    {
        tracing::warn!("the certificate in place is not kept: {}", chain(&error));
    }
    let served = profile.certificates.first().is_some_and(|first| first.name == name);
    let issuing = Issuing {
        certificate: name.to_owned(),
        before: before.map(Fingerprint::to_hex).unwrap_or_default(),
        at: now,
        added: Vec::new(),
        address_caused: false,
        services: if served { pass::loaded_once(site) } else { Vec::new() },
        served,
        shown_by_kubelet: role == CertificateRole::Kubelet,
        rolled_back: Some(rollback),
    };
    let write = || loaded.put_back(&files, &lock);
    remember_and_write(site, &state, &generation, &issuing, &observed.boot_id, write)?;
    Ok(generation)
}

/// `all` are the earlier ones, newest first.
fn choose(mut all: Vec<Generation>, name: &str, which: Which<'_>) -> Result<Generation, RollbackError> {
    let certificate = name.to_owned();
    match which {
        Which::Back(back) if back == 0 || back > all.len() => {
            Err(RollbackError::NoGeneration { certificate, kept: all.len(), asked: back })
        }
        Which::Back(back) => Ok(all.swap_remove(back - 1)),
        Which::Leaf { fingerprint, .. } => all
            .into_iter()
            .find(|generation| generation.leaf.fingerprint.to_hex() == fingerprint)
            .ok_or_else(|| RollbackError::NotKept { certificate, leaf: fingerprint.to_owned() }),
    }
}

/// The reasons for which a pass would make this certificate anew although it was put back.
fn would_be_replaced(observed: &Observed, site: &Site, state: &State, rollback: &RolledBack) -> Vec<Reason> {
    let mut held = state.clone();
    held.note_rollback(rollback);
    let plan = pass::decide(observed, site, &held, Mode::OneShot);
    let of_it = |reason: &Reason| reason.certificate == rollback.certificate;
    plan.reasons
        .into_iter()
        .filter(|reason| of_it(reason) && reason.code.is_about_certificate() && !reason.code.is_held_by_rollback())
        .collect()
}

/// The note comes first: a rollback that nobody remembers is undone by the next pass, and one whose process was killed is
/// recognised by it.
fn remember_and_write(
    site: &Site,
    state: &State,
    generation: &Generation,
    issuing: &Issuing,
    boot_id: &str,
    write: impl FnOnce() -> Result<(), GenerationError>,
) -> Result<(), RollbackError> {
    let folder = site.state_dir();
    let noted = State { issuing: Some(issuing.clone()), ..state.clone() };
    state_file::save(&folder, &noted)?;
    let written = write();
    pass::write_down(&folder, |state| match &written {
        Ok(()) => {
            let in_place = InPlace { boot_id: boot_id.to_owned(), uptime: Some(pass::now().uptime) };
            state.issued(issuing, generation.leaf.fingerprint, &generation.leaf.sans, in_place);
        }
        Err(_) => state.issuing = None,
    });
    Ok(written?)
}
