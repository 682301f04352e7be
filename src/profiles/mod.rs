//! Profiles: where a Kubernetes distribution keeps its files, and which services it has.
//!
//! In: the TOML files of this folder, compiled in; the choice of the operator; the disk. Out: a [`Profile`]. The rule
//! of this folder: what differs between distributions is data. A path is below `--root` and resolved at each use: a
//! snap's `current` moves to another revision with every refresh, and a path kept from before writes into the old one.

mod chores;
mod resolve;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ipnet::IpNet;
use serde::Deserialize;

use crate::config::ProfileChoice;
use crate::facts::certificate::CertificateRole;
use crate::facts::cluster::Service;

pub use chores::Chores;
pub use resolve::beneath;

/// The files of this folder.
const EMBEDDED: [(&str, &str); 1] = [("microk8s", include_str!("microk8s.toml"))];

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let read = |(_, text): &(&str, &str)| toml::from_str(text).expect("the compiled-in profiles are valid");
    EMBEDDED.iter().map(read).collect()
});

/// A Kubernetes distribution.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    /// What the operator calls it: `microk8s`.
    pub name: String,
    /// Its data folder, absolute, without `--root`. Ask [`Profile::data_folder`] for the one of the moment.
    pub data: PathBuf,
    /// Files and folders below the data folder.
    pub files: Files,
    /// The certificates, `server` first.
    #[serde(rename = "certificate")]
    pub certificates: Vec<CertificateEntry>,
    /// Used where the argument files do not say otherwise.
    pub defaults: Defaults,
    /// Variables that argument files use; `{data}` stands for the data folder, `{revision}` for its last part.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// The services.
    #[serde(rename = "service")]
    pub services: Vec<Service>,
    /// Its upkeep besides certificates, where it has any that is ours to do.
    #[serde(default)]
    pub chores: Option<Chores>,
}

/// Where files are, below the data folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Files {
    /// Folder of certificates and keys: the only one ipguard writes certificates to.
    pub certificates: PathBuf,
    /// Folder of argument files.
    pub arguments: PathBuf,
    /// Folder of lock and marker files.
    pub locks: PathBuf,
    /// The certificate request template, where the distribution has one.
    #[serde(default)]
    pub template: Option<PathBuf>,
    /// The request made from it.
    #[serde(default)]
    pub request: Option<PathBuf>,
    /// The administrator's kubeconfig, by which the API server is asked what it advertises.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Tokens by which nodes join; who holds one holds the fingerprint of the server certificate with it.
    #[serde(default)]
    pub join_tokens: Vec<PathBuf>,
    /// Kubeconfigs whose certificates nobody renews with those of the node; `*` and `?` in the name of the file.
    #[serde(default)]
    pub kubeconfigs: Vec<PathBuf>,
}

/// A certificate with what it is made from, below the data folder.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CertificateEntry {
    /// Name used in plans and logs: `server`.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub role: CertificateRole,
    /// Attributes of the subject where there is neither a template nor a certificate to take it from; `{hostname}` stands
    /// for the node's name.
    #[serde(default)]
    pub subject: Vec<(String, String)>,
    /// The leaf.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The CA bundle.
    pub authority: PathBuf,
    /// The CA's key.
    pub authority_key: PathBuf,
    /// The flag by which a component is told another leaf.
    #[serde(default)]
    pub certificate_flag: Option<ComponentFlag>,
    /// The same for its key.
    #[serde(default)]
    pub key_flag: Option<ComponentFlag>,
    /// The same for the CA bundle that its clients trust.
    #[serde(default)]
    pub authority_flag: Option<ComponentFlag>,
    /// The same for the CA's key.
    #[serde(default)]
    pub authority_key_flag: Option<ComponentFlag>,
}

/// A flag of a component: `kube-apiserver --tls-cert-file`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentFlag {
    /// Name of its argument file.
    pub component: String,
    /// Without the dashes.
    pub flag: String,
}

/// What a distribution ships, for what its argument files leave out.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Defaults {
    /// kube-apiserver `--secure-port`.
    pub secure_port: u16,
    /// kube-apiserver `--service-cluster-ip-range`.
    #[serde(deserialize_with = "networks")]
    pub service_cidrs: Vec<IpNet>,
    /// kube-proxy or controller-manager `--cluster-cidr`.
    #[serde(deserialize_with = "networks")]
    pub pod_cidrs: Vec<IpNet>,
}

/// What snapd says to a process inside a snap. Read once, in `main`, and passed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snap {
    /// `SNAP_INSTANCE_NAME`.
    pub instance_name: Option<String>,
    /// `SNAP_DATA`: the data folder of this revision.
    pub data: Option<PathBuf>,
    /// `SNAP_COMMON`: the data folder of all revisions.
    pub common: Option<PathBuf>,
    /// `SNAP`: the files of this revision.
    pub files: Option<PathBuf>,
}

/// A profile, and what speaks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The profile.
    pub profile: &'static Profile,
    /// For people: why this one.
    pub why: String,
}

/// Why no profile could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The operator named one that does not exist.
    #[error("there is no profile {name:?}: known are \"auto\", {known}")]
    Unknown {
        /// As written.
        name: String,
        /// Those that exist.
        known: String,
    },
    /// Whether the distribution is there cannot be told.
    #[error("looking for {profile} at {path}", path = path.display())]
    Look {
        /// Which profile.
        profile: String,
        /// Its data folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Profile {
    /// Every profile there is.
    pub fn all() -> &'static [Self] {
        &PROFILES
    }

    /// The profile that was chosen; with `auto` the first whose data folder is on the disk. `None` where there is no
    /// Kubernetes distribution, which is enough to explain addresses.
    ///
    /// # Errors
    /// A profile was named that does not exist, or the disk cannot be looked at.
    pub fn find(choice: &ProfileChoice, root: &Path, snap: &Snap) -> Result<Option<Found>, ProfileError> {
        match choice {
            ProfileChoice::Named(name) => match Self::all().iter().find(|profile| profile.name == *name) {
                Some(profile) => Ok(Some(Found { profile, why: "named by the operator".to_owned() })),
                None => Err(ProfileError::Unknown { name: name.clone(), known: quoted_names() }),
            },
            ProfileChoice::Auto => Self::detect(root, snap),
        }
    }

    fn detect(root: &Path, snap: &Snap) -> Result<Option<Found>, ProfileError> {
        for profile in Self::all() {
            if profile.own_snap_data(snap).is_some() {
                return Ok(Some(Found { profile, why: format!("running inside the snap {}", profile.name) }));
            }
            let path = beneath(root, profile.data.parent().unwrap_or(&profile.data))
                .map(|folder| folder.join(profile.data.file_name().unwrap_or_default()));
            // The link itself, not what it leads to: for a moment of each refresh it leads nowhere, and a distribution
            // that is being refreshed is there.
            let looked = path.and_then(|path| path.symlink_metadata().map(|_| path));
            match looked {
                Ok(path) => return Ok(Some(Found { profile, why: format!("{} exists", path.display()) })),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(source) => {
                    let path = resolve::prefixed(root, &profile.data);
                    return Err(ProfileError::Look { profile: profile.name.clone(), path, source });
                }
            }
        }
        Ok(None)
    }

    /// The data folder as it is now: links are followed, below `root`. Never keep the answer across passes.
    ///
    /// # Errors
    /// A part of the path is missing or cannot be read, or its links go round in circles.
    pub fn data_folder(&self, root: &Path, snap: &Snap) -> io::Result<PathBuf> {
        beneath(root, self.own_snap_data(snap).unwrap_or(&self.data))
    }

    /// `$SNAP_DATA`, inside this distribution's own snap. In every other snap, ipguard's own included, it is somebody
    /// else's folder.
    fn own_snap_data<'s>(&self, snap: &'s Snap) -> Option<&'s Path> {
        let own = snap.instance_name.as_deref() == Some(&self.name);
        snap.data.as_deref().filter(|data| own && data.is_absolute())
    }
}

impl Snap {
    /// From the environment of this process. An empty variable is one that is not set.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            instance_name: variable("SNAP_INSTANCE_NAME").and_then(|name| name.into_string().ok()),
            data: variable("SNAP_DATA").map(PathBuf::from),
            common: variable("SNAP_COMMON").map(PathBuf::from),
            files: variable("SNAP").map(PathBuf::from),
        }
    }

    /// Whether this process runs inside the snap of that name.
    pub fn is_inside(&self, name: &str) -> bool {
        self.instance_name.as_deref() == Some(name)
    }
}

impl CertificateEntry {
    /// The files below a data folder of the moment.
    pub fn paths(&self, data: &Path) -> crate::facts::cluster::CertificatePaths {
        crate::facts::cluster::CertificatePaths {
            certificate: data.join(&self.certificate),
            key: data.join(&self.key),
            authority: data.join(&self.authority),
            authority_key: data.join(&self.authority_key),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.profile.name, self.why)
    }
}

/// ipnet's own serde support would bring that feature into the whole crate for these two lists.
fn networks<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn quoted_names() -> String {
    Profile::all().iter().map(|profile| format!("{:?}", profile.name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::{env, fs};

    use super::*;
    use crate::facts::cluster::Role;

    /// A folder that goes away with the test.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> io::Result<Self> {
            let path = env::temp_dir().join(format!("ipguard-profiles-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("var/snap/microk8s"))?;
            Ok(Self(path))
        }

        fn current(&self) -> PathBuf {
            self.0.join("var/snap/microk8s/current")
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn inside(name: &str, data: &str) -> Snap {
        Snap { instance_name: Some(name.to_owned()), data: Some(data.into()), ..Snap::default() }
    }

    fn microk8s() -> &'static Profile {
        Profile::all().iter().find(|profile| profile.name == "microk8s").expect("it is compiled in")
    }

    #[test]
    fn every_embedded_profile_parses_and_is_sound() -> Result<(), toml::de::Error> {
        for (file, text) in EMBEDDED {
            let profile: Profile = toml::from_str(text)?;
            assert_eq!(profile.name, file);
            assert!(profile.data.is_absolute());
            assert_eq!(profile.certificates[0].name, "server");
            let names: BTreeSet<&str> = profile.services.iter().map(|service| service.name.as_str()).collect();
            assert_eq!(names.len(), profile.services.len(), "{file}: two services of one name");
            assert_eq!(profile.services.iter().filter(|service| service.role == Role::ApiServer).count(), 1);
            for entry in &profile.certificates {
                for path in [&entry.certificate, &entry.key, &entry.authority, &entry.authority_key] {
                    assert!(path.starts_with(&profile.files.certificates), "{file}: {}", path.display());
                }
            }
        }
        Ok(())
    }

    #[test]
    fn every_toml_file_of_the_folder_is_embedded() -> io::Result<()> {
        let mut files = BTreeSet::new();
        for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/profiles"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                files.insert(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
            }
        }
        assert_eq!(files, EMBEDDED.iter().map(|(name, _)| (*name).to_owned()).collect());
        Ok(())
    }

    #[test]
    fn a_key_the_profile_does_not_know_is_refused() {
        let text = EMBEDDED[0].1.replace("[defaults]", "[defaults]\nsecure-prot = 1");
        assert!(toml::from_str::<Profile>(&text).is_err());
    }

    #[test]
    fn auto_takes_what_is_on_the_disk() -> Result<(), Box<dyn std::error::Error>> {
        let root = Root::new("auto")?;
        let auto = || Profile::find(&ProfileChoice::Auto, &root.0, &Snap::default());
        assert_eq!(auto()?, None);
        // Between two revisions `current` leads nowhere for a moment; the distribution is still there.
        symlink("1234", root.current())?;
        let found = auto()?.ok_or("not found")?;
        assert_eq!(found.to_string(), format!("microk8s ({} exists)", root.current().display()));
        assert!(Profile::find(&ProfileChoice::Auto, Path::new("/dev/null"), &Snap::default())?.is_none());
        Ok(())
    }

    #[test]
    fn a_folder_that_cannot_be_looked_into_is_not_taken_for_absent() -> Result<(), Box<dyn std::error::Error>> {
        let root = Root::new("closed")?;
        let folder = root.0.join("var/snap/microk8s");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o000))?;
        let found = Profile::find(&ProfileChoice::Auto, &root.0, &Snap::default());
        // Root may look into every folder: then there is nothing in this one.
        assert!(if nix::unistd::geteuid().is_root() { matches!(found, Ok(None)) } else { found.is_err() });
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        fs::remove_dir(&folder)?;
        symlink("microk8s", &folder)?;
        let error =
            Profile::find(&ProfileChoice::Auto, &root.0, &Snap::default()).err().ok_or("a loop was followed")?;
        assert!(error.to_string().starts_with("looking for microk8s at "), "{error}");
        Ok(())
    }

    #[test]
    fn an_unknown_profile_is_told_which_exist() {
        let error = Profile::find(&ProfileChoice::Named("k8s".into()), Path::new("/"), &Snap::default());
        let error = error.expect_err("there is none of that name");
        assert_eq!(error.to_string(), "there is no profile \"k8s\": known are \"auto\", \"microk8s\"");
    }

    #[test]
    fn the_data_folder_follows_every_refresh() -> io::Result<()> {
        let root = Root::new("refresh")?;
        let folder = root.0.join("var/snap/microk8s");
        fs::create_dir(folder.join("1234"))?;
        fs::create_dir(folder.join("1235"))?;
        symlink("1234", root.current())?;
        let data = || microk8s().data_folder(&root.0, &Snap::default());
        assert_eq!(data()?, folder.join("1234"));
        fs::remove_file(root.current())?;
        assert_eq!(data().expect_err("no link").kind(), io::ErrorKind::NotFound);
        symlink("/var/snap/microk8s/1235", root.current())?;
        assert_eq!(data()?, folder.join("1235"), "an absolute target starts at the root");
        Ok(())
    }

    #[test]
    fn no_link_leads_out_of_the_root() -> io::Result<()> {
        let root = Root::new("escape")?;
        fs::create_dir(root.0.join("etc"))?;
        symlink("../../../../../../../../../../etc", root.current())?;
        let data = || microk8s().data_folder(&root.0, &Snap::default());
        assert_eq!(data()?, root.0.join("etc"));
        fs::remove_file(root.current())?;
        symlink("current", root.current())?;
        assert_eq!(data().expect_err("a loop").raw_os_error(), Some(nix::libc::ELOOP));
        Ok(())
    }

    #[test]
    fn snap_data_counts_inside_the_distributions_own_snap_only() -> Result<(), Box<dyn std::error::Error>> {
        let root = Root::new("snap")?;
        let folder = root.0.join("var/snap/microk8s");
        fs::create_dir(folder.join("7"))?;
        fs::create_dir(folder.join("8"))?;
        symlink("7", root.current())?;
        let data = |snap: &Snap| microk8s().data_folder(&root.0, snap);
        assert_eq!(data(&inside("microk8s", "/var/snap/microk8s/8"))?, folder.join("8"));
        assert_eq!(data(&inside("ipguard", "/var/snap/ipguard/3"))?, folder.join("7"));
        assert_eq!(data(&inside("microk8s", "relative"))?, folder.join("7"));
        let found = Profile::find(&ProfileChoice::Auto, Path::new("/nonexistent"), &inside("microk8s", "/x"))?;
        assert_eq!(found.ok_or("not found")?.why, "running inside the snap microk8s");
        Ok(())
    }
}
