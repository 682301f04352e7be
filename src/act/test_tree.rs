//! A tree of certificates as MicroK8s has it, for the tests of this folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::act::issue::CertificateFiles;
use crate::act::lock::Lock;
use crate::config::AuthorityKeyId;
use crate::decide::plan::{IssueOrder, Subject};
use crate::facts::certificate::Purpose;
use crate::facts::cluster::CertificatePaths;
use crate::facts::time::Timestamp;

/// A folder of its own for each test, removed at the end.
pub(super) struct Tree(pub(super) PathBuf);

/// A CA made in the test.
pub(super) struct Ca {
    pub(super) params: CertificateParams,
    pub(super) key: KeyPair,
    pub(super) der: Vec<u8>,
    pub(super) pem: String,
}

impl Ca {
    /// Self-signed, as MicroK8s makes it, after `change`.
    pub(super) fn root(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        Self::root_of(name, KeyPair::generate().expect("P-256"), change)
    }

    pub(super) fn root_of(name: &str, key: KeyPair, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let params = Self::params(name, change);
        let certificate = params.self_signed(&key).expect("it can be built");
        Self { params, key, der: certificate.der().to_vec(), pem: certificate.pem() }
    }

    /// Signed by another CA.
    pub(super) fn below(&self, name: &str) -> Self {
        self.below_as(name, |_| {})
    }

    pub(super) fn below_as(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let (params, key) = (Self::params(name, change), KeyPair::generate().expect("P-256"));
        let issuer = Issuer::from_params(&self.params, &self.key);
        let certificate = params.signed_by(&key, &issuer).expect("it can be built");
        Self { params, key, der: certificate.der().to_vec(), pem: certificate.pem() }
    }

    fn params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.use_authority_key_identifier_extension = true;
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2100, 1, 1);
        change(&mut params);
        params
    }
}

impl Tree {
    /// An empty certificate folder.
    pub(super) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-act-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("certs")).expect("the temporary folder is writable");
        Self(path)
    }

    /// With a CA, a key for the server, and files to be replaced.
    pub(super) fn with(ca: &Ca) -> Self {
        let tree = Self::new();
        tree.write("ca.crt", &ca.pem);
        tree.write("ca.key", ca.key.serialize_pem());
        tree.write("server.key", KeyPair::generate().expect("P-256").serialize_pem());
        tree.write("server.crt", "the certificate before");
        tree.write("csr.conf", "the request before");
        tree
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join("certs").join(name)
    }

    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("it is ours");
    }

    pub(super) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("it is there")
    }

    /// Names and contents of all files.
    pub(super) fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut all: Vec<_> = std::fs::read_dir(self.0.join("certs"))
            .expect("it was made")
            .map(|entry| entry.expect("readable").path())
            .map(|path| (path.display().to_string(), std::fs::read(&path).expect("readable")))
            .collect();
        all.sort();
        all
    }

    pub(super) fn files(&self) -> CertificateFiles {
        CertificateFiles {
            paths: CertificatePaths {
                certificate: self.path("server.crt"),
                key: self.path("server.key"),
                authority: self.path("ca.crt"),
                authority_key: self.path("ca.key"),
            },
            folder: self.0.join("certs"),
            request: Some(self.path("csr.conf")),
            new_mode: crate::act::issue::SHARED,
        }
    }

    pub(super) fn lock(&self) -> Lock {
        Lock::acquire(&self.0.join("state"), Duration::ZERO).expect("nobody else is here")
    }

    /// Runs openssl in the certificate folder. `None` where it is not installed; a failing command fails the test.
    pub(super) fn openssl(&self, arguments: &str) -> Option<String> {
        openssl_in(&self.0.join("certs"), arguments)
    }
}

fn openssl_in(folder: &Path, arguments: &str) -> Option<String> {
    let Ok(output) = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output() else {
        crate::skipped::skipped("openssl not found");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "openssl {arguments}: {text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The standard order for the CA in a tree that openssl made this moment: not from before it was made.
pub(super) fn order_for(tree: &Tree) -> IssueOrder {
    let bundle = crate::observe::certificate::bundle(&tree.path("ca.crt")).expect("openssl wrote it");
    let authority =
        crate::observe::certificate::authority(&bundle, None, Purpose::Server, now()).expect("it was just parsed");
    let order = order();
    IssueOrder { not_before: order.not_before.max(authority.certificates[0].not_before), ..order }
}

/// Whole seconds, so that a date can be compared with a certificate's.
pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    Timestamp::from_seconds(i64::try_from(since.as_secs()).expect("it is earlier than the end of time"))
}

/// MicroK8s' subject and names, and two addresses.
pub(super) fn order() -> IssueOrder {
    let subject = [("C", "GB"), ("ST", "Canonical"), ("L", "Canonical"), ("O", "Canonical"), ("OU", "Canonical")];
    let mut subject: Vec<_> = subject.iter().map(|(kind, value)| ((*kind).to_owned(), (*value).to_owned())).collect();
    subject.push(("CN".to_owned(), "127.0.0.1".to_owned()));
    let names = "kubernetes kubernetes.default kubernetes.default.svc kubernetes.default.svc.cluster \
                 kubernetes.default.svc.cluster.local 127.0.0.1 10.152.183.1 192.0.2.10 2001:db8::10 *.node_1.example";
    IssueOrder {
        certificate: "server".to_owned(),
        purpose: Purpose::Server,
        sans: names.split_whitespace().map(|name| name.parse().expect("all of them are names")).collect(),
        added: ["192.0.2.10".parse().expect("an address")].into(),
        dropped: [].into(),
        subject: Subject::Attributes(subject),
        not_before: now() - Duration::from_secs(3600),
        not_after: now() + Duration::from_secs(365 * 24 * 3600),
        new_key: false,
        authority_key_id: AuthorityKeyId::KeyId,
        request: Some("the request after".to_owned()),
        address_caused: true,
        served: true,
        shown_by_kubelet: false,
    }
}
