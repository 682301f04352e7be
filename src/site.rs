//! Where things are on this host: the prefix of every path, the distribution, its files and services.
//!
//! In: `--root`, the environment of a snap, the configuration. Out: paths, resolved anew at each call, for a snap refresh
//! moves the data folder to another revision under our feet (canonical/microk8s#4734). The rule of this file: nothing is
//! read but links, the argument files for the places of certificates, the names of kubeconfigs, and whether one lock is there.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::act::issue::{CertificateFiles, HARDENED, SHARED};
use crate::act::services::Manager;
use crate::config::Config;
use crate::config::overrides::Source;
use crate::decide::links::glob;
use crate::facts::cluster::{CertificatePaths, Role, Service};
use crate::observe::{cluster, places};
use crate::profiles::{Found, Profile, ProfileError, Snap};
use crate::status_file;

/// Lock file of the CIS addon: the files of the cluster are root's alone.
const HARDENED_LOCK: &str = "cis-hardening";

/// Most kubeconfigs that are looked at. A node has half a dozen, and a folder full of them must not cost a pass its time.
const MOST_KUBECONFIGS: usize = 64;

/// A host and what is installed on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Prefix of every path; `/` on a live host.
    pub root: PathBuf,
    /// The snap this process runs in, if any.
    pub snap: Snap,
    /// The configuration.
    pub config: Config,
    /// Where it was read from, and what the command line changed about it.
    pub source: Source,
    /// The distribution, and what speaks for it.
    pub found: Option<Found>,
}

impl Site {
    /// Looks for the distribution anew.
    ///
    /// # Errors
    /// The configured profile does not exist, or the disk cannot be looked at.
    pub fn look_again(&self) -> Result<Self, ProfileError> {
        let found = Profile::find(&self.config.profile, &self.root, &self.snap)?;
        Ok(Self { found, ..self.clone() })
    }

    /// The distribution's profile.
    pub fn profile(&self) -> Option<&'static Profile> {
        self.found.as_ref().map(|found| found.profile)
    }

    /// The distribution's data folder as it is now.
    ///
    /// # Errors
    /// It is missing, or its link leads nowhere, as for a moment of each refresh.
    pub fn data(&self, profile: &Profile) -> io::Result<PathBuf> {
        profile.data_folder(&self.root, &self.snap)
    }

    /// The profile's services, with those of the configuration; one of the same name replaces it.
    pub fn services(&self) -> Vec<Service> {
        let configured = &self.config.services;
        let of_profile = self.profile().map_or(&[][..], |profile| &profile.services);
        // Inside the distribution's snap nobody else starts us beside its own guard, and snapctl fails as a whole when it is
        // asked about a service that this version of the snap does not have: a snap that has us has no former services.
        let inside = self.is_inside_distribution();
        let kept = of_profile
            .iter()
            .filter(|s| !configured.iter().any(|c| c.name == s.name))
            .filter(|s| !(inside && matches!(s.role, Role::OtherGuard | Role::FormerApiServer)));
        kept.chain(configured).cloned().collect()
    }

    /// Our own folder: state and lock.
    pub fn state_dir(&self) -> PathBuf {
        match &self.snap.common {
            Some(common) if self.is_inside_distribution() => {
                self.root.join(common.strip_prefix("/").unwrap_or(common)).join("ipguard")
            }
            _ => self.root.join("var/lib/ipguard"),
        }
    }

    /// Who restarts services: inside the distribution's own snap only snapctl may.
    pub fn manager(&self) -> Manager {
        if self.is_inside_distribution() { Manager::InsideSnap } else { Manager::Host }
    }

    fn is_inside_distribution(&self) -> bool {
        self.profile().is_some_and(|profile| self.snap.is_inside(&profile.name))
    }

    /// The operator's bundle of other CAs, if there is one.
    pub fn foreign_bundle(&self) -> Option<PathBuf> {
        let bundle = self.config.certificate.foreign_bundle.as_ref()?;
        Some(self.root.join(bundle.strip_prefix("/").unwrap_or(bundle)))
    }

    /// The administrator's kubeconfig, below the data folder of the moment, where the distribution has one.
    pub fn kubeconfig(&self, profile: &Profile, data: &Path) -> Option<PathBuf> {
        Some(data.join(profile.files.kubeconfig.as_ref()?))
    }

    /// The single files that a plan rests on, below the data folder of the moment and elsewhere.
    pub fn files_that_matter(&self, profile: &Profile, data: &Path) -> Vec<PathBuf> {
        let components = cluster::components(profile, data, &self.root);
        let of_certificate =
            |paths: CertificatePaths| [paths.certificate, paths.key, paths.authority, paths.authority_key];
        let certificates = profile.certificates.iter().flat_map(|entry| {
            let found = places::find(entry, profile, data, &self.root, &components);
            of_certificate(found.paths)
        });
        let files = &profile.files;
        let others = files.template.iter().chain(&files.request).chain(&files.join_tokens).map(|path| data.join(path));
        certificates.chain(others).chain(self.foreign_bundle()).collect()
    }

    /// The profile's kubeconfigs that are there, in the order of their names.
    pub fn kubeconfigs(&self, profile: &Profile, data: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for pattern in &profile.files.kubeconfigs {
            let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(OsStr::to_str)) else {
                continue;
            };
            let folder = data.join(folder);
            let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let fitting = entries.map(|entry| entry.file_name()).filter(|file| glob(name, file.as_bytes()));
            found.extend(fitting.map(|file| folder.join(file)));
        }
        found.sort();
        found.dedup();
        found.truncate(MOST_KUBECONFIGS);
        found
    }

    /// Where the status is published. Readable by everybody, gone with the boot.
    pub fn status_dir(&self) -> PathBuf {
        status_file::folder(&self.root)
    }

    /// The files of a certificate, below the data folder of the moment.
    pub fn certificate_files(&self, profile: &Profile, data: &Path, name: &str) -> Option<CertificateFiles> {
        let entry = profile.certificates.iter().find(|entry| entry.name == name)?;
        let components = cluster::components(profile, data, &self.root);
        Some(CertificateFiles {
            paths: places::find(entry, profile, data, &self.root, &components).paths,
            folder: data.join(&profile.files.certificates),
            request: profile.files.request.as_ref().map(|path| data.join(path)),
            new_mode: if data.join(&profile.files.locks).join(HARDENED_LOCK).exists() { HARDENED } else { SHARED },
        })
    }
}
