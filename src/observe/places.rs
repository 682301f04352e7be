//! Where the files of a certificate are: the profile's places, or those that the components were told.
//!
//! In: the profile, the argument files. Out: paths, or the flag that leads elsewhere. The rule of this file: the argument
//! files are writable by a group and what is found here is replaced by root, so a flag is followed to a file that lies in
//! the certificate folder itself and is nobody else's, and no farther.

use std::path::{Path, PathBuf};

use crate::facts::Problem;
use crate::facts::cluster::CertificatePaths;
use crate::observe::arguments::Components;
use crate::observe::certificate;
use crate::profiles::{CertificateEntry, ComponentFlag, Profile, beneath};

/// Where the files of one certificate are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The files.
    pub paths: CertificatePaths,
    /// The flag that names another file, one that is not followed: `kube-apiserver --tls-cert-file=/srv/tls.crt`.
    pub elsewhere: Option<String>,
}

/// Finds the files of a certificate in the data folder of the moment.
pub fn find(entry: &CertificateEntry, profile: &Profile, data: &Path, root: &Path, components: &Components) -> Places {
    let own = entry.paths(data);
    let mut paths = own.clone();
    let folder = data.join(&profile.files.certificates);
    let others = others(entry, profile, data);
    let follow = |flag: &Option<ComponentFlag>, path: &mut PathBuf, may_be: &dyn Fn(&Path) -> bool| {
        let flag = flag.as_ref()?;
        let told = components.value(&flag.component, &flag.flag).filter(|told| !told.is_empty())?;
        match inside(Path::new(told), &folder, root) {
            Some(there) if there == *path || may_be(&there) => *path = there,
            _ => return Some(format!("{} --{}={told}", flag.component, flag.flag)),
        }
        None
    };
    let free = |path: &Path| !others.iter().any(|other| other == path);
    let led_away = [
        follow(&entry.certificate_flag, &mut paths.certificate, &|path| free(path) && may_be_replaced(path)),
        follow(&entry.key_flag, &mut paths.key, &free),
        // These two are only read.
        follow(&entry.authority_flag, &mut paths.authority, &|_| true),
        follow(&entry.authority_key_flag, &mut paths.authority_key, &|_| true),
    ];
    match led_away.into_iter().flatten().next() {
        Some(flag) => Places { paths: own, elsewhere: Some(flag) },
        None => Places { paths, elsewhere: None },
    }
}

/// A file of the certificate folder, by whatever way a path leads to it: through `current`, the revision, or `..`.
fn inside(told: &Path, folder: &Path, root: &Path) -> Option<PathBuf> {
    let above = told.is_absolute().then(|| told.parent()).flatten()?;
    let there = beneath(root, above).ok()?;
    (there == folder).then(|| folder.join(told.file_name().unwrap_or_default()))
}

/// The other files that the profile knows: a slip in an argument file must not cost the cluster its CA.
fn others(of: &CertificateEntry, profile: &Profile, data: &Path) -> Vec<PathBuf> {
    let all = profile.certificates.iter().flat_map(|entry| {
        let leaf = (entry.name != of.name).then_some([&entry.certificate, &entry.key]);
        leaf.into_iter().flatten().chain([&entry.authority, &entry.authority_key])
    });
    let own = [&of.certificate, &of.key];
    all.chain(own).chain(&profile.files.template).chain(&profile.files.request).map(|path| data.join(path)).collect()
}

/// Whether nothing is lost when a leaf is put there: nothing is there, or a leaf.
fn may_be_replaced(path: &Path) -> bool {
    match certificate::first_certificate(path) {
        Ok(der) => certificate::leaf(&der).is_ok_and(|leaf| !leaf.usage.is_ca),
        Err(error) => matches!(error.problem, Problem::Missing | Problem::Empty),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::observe::flags;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("ipguard-places-{name}-{}", std::process::id()));
            for folder in ["certs/sub", "args"] {
                std::fs::create_dir_all(root.join("var/snap/microk8s/7").join(folder)).expect("a temporary folder");
            }
            symlink("7", root.join("var/snap/microk8s/current")).expect("it is ours");
            symlink("../certs", root.join("var/snap/microk8s/7/args/link")).expect("it is ours");
            Self(root)
        }

        fn data(&self) -> PathBuf {
            self.0.join("var/snap/microk8s/7")
        }

        fn find(&self, name: &str, component: &str, arguments: &str) -> Places {
            let profile = Profile::all().iter().find(|p| p.name == "microk8s").expect("it is compiled in");
            std::fs::write(self.data().join("args").join(component), arguments).expect("it is ours");
            let variables = flags::variables(&profile.variables, &self.data(), &self.0);
            let components = Components::read(&self.data().join("args"), &variables);
            let entry = profile.certificates.iter().find(|entry| entry.name == name).expect("it has one");
            find(entry, profile, &self.data(), &self.0, &components)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_of_the_certificate_folder_is_followed_by_whatever_way() {
        let root = Root::new("inside");
        let server = |told: &str| root.find("server", "kube-apiserver", &format!("--tls-cert-file={told}\n"));
        for told in [
            "${SNAP_DATA}/certs/tls.crt",
            "/var/snap/microk8s/current/certs/tls.crt",
            "/var/snap/microk8s/7/certs/tls.crt",
            "/var/snap/microk8s/7/args/../certs/tls.crt",
            "/var/snap/microk8s/7/args/link/tls.crt",
        ] {
            let places = server(told);
            assert_eq!(places.elsewhere, None, "{told}");
            assert_eq!(places.paths.certificate, root.data().join("certs/tls.crt"), "{told}");
            assert_eq!(places.paths.key, root.data().join("certs/server.key"), "{told}");
        }
        assert_eq!(server("${SNAP_DATA}/certs/server.crt").paths.certificate, root.data().join("certs/server.crt"));
        assert_eq!(server("").elsewhere, None);
        let both = "--tls-private-key-file=$SNAP_DATA/certs/tls.key\n--tls-cert-file=$SNAP_DATA/certs/tls.crt\n";
        assert_eq!(root.find("server", "kube-apiserver", both).paths.key, root.data().join("certs/tls.key"));
        let ca = "--root-ca-file=$SNAP_DATA/certs/root.crt\n--cluster-signing-key-file=$SNAP_DATA/certs/root.key\n";
        let places = root.find("server", "kube-controller-manager", ca);
        assert_eq!(places.paths.authority, root.data().join("certs/root.crt"));
        assert_eq!(places.paths.authority_key, root.data().join("certs/root.key"));
    }

    #[test]
    fn nothing_outside_and_nobody_elses_file_is() {
        let root = Root::new("outside");
        let certs = root.data().join("certs");
        std::fs::write(certs.join("serviceaccount.key"), "-----BEGIN PRIVATE KEY-----\n").expect("it is ours");
        let authority = rcgen::KeyPair::generate().and_then(|key| {
            let mut parameters = rcgen::CertificateParams::default();
            parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            parameters.self_signed(&key)
        });
        std::fs::write(certs.join("my-ca.crt"), authority.expect("a CA").pem()).expect("it is ours");
        for told in [
            "/etc/ssl/tls.crt",
            "/var/snap/microk8s/7/certs/sub/tls.crt",
            "/var/snap/microk8s/7/certs",
            "/var/snap/microk8s/7/certs/..",
            "/var/snap/microk8s/8/certs/tls.crt",
            "certs/tls.crt",
            "$ELSEWHERE/tls.crt",
            "$SNAP_DATA/certs/ca.crt",
            "$SNAP_DATA/certs/ca.key",
            "$SNAP_DATA/certs/server.key",
            "$SNAP_DATA/certs/kubelet.crt",
            "$SNAP_DATA/certs/csr.conf.template",
            "$SNAP_DATA/certs/csr.conf",
            "$SNAP_DATA/certs/serviceaccount.key",
            "$SNAP_DATA/certs/my-ca.crt",
        ] {
            let places = root.find("server", "kube-apiserver", &format!("--tls-cert-file={told}\n"));
            let said = places.elsewhere.unwrap_or_default();
            assert!(said.starts_with("kube-apiserver --tls-cert-file=/") || told.contains("tls.crt"), "{told}: {said}");
            assert!(!said.is_empty(), "{told}");
            assert_eq!(places.paths.certificate, certs.join("server.crt"), "{told}");
        }
        let places = root.find("kubelet", "kubelet", "--tls-cert-file=/etc/kubelet.crt\n");
        assert_eq!(places.elsewhere.as_deref(), Some("kubelet --tls-cert-file=/etc/kubelet.crt"));
    }
}
