//! Folders, keys and the openssl command for the tests of certificates.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use ipguard::act::issue::CertificateFiles;
use ipguard::act::lock::Lock;
use ipguard::config::AuthorityKeyId;
use ipguard::decide::plan::{IssueOrder, Subject};
use ipguard::facts::certificate::Purpose;
use ipguard::facts::cluster::CertificatePaths;
use ipguard::facts::time::Timestamp;
use ipguard::observe::private_key::{Owner, PrivateKey};

/// A folder of its own, removed at the end.
#[derive(Debug)]
pub(crate) struct Tree(pub(crate) PathBuf);

impl Tree {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ipguard-pki-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let tree = Self(std::env::temp_dir().join(name));
        std::fs::create_dir_all(tree.certs()).expect("the temporary folder is writable");
        tree
    }

    pub(crate) fn certs(&self) -> PathBuf {
        self.0.join("certs")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.certs().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).expect("it is ours");
    }

    pub(crate) fn files(&self) -> CertificateFiles {
        CertificateFiles {
            paths: CertificatePaths {
                certificate: self.path("server.crt"),
                key: self.path("server.key"),
                authority: self.path("ca.crt"),
                authority_key: self.path("ca.key"),
            },
            folder: self.certs(),
            request: Some(self.path("csr.conf")),
            new_mode: ipguard::act::issue::SHARED,
        }
    }

    pub(crate) fn lock(&self) -> Lock {
        Lock::acquire(&self.0.join("state"), Duration::ZERO).expect("nobody else is here")
    }

    /// Runs openssl in the certificate folder: whether it succeeded, and all that it wrote.
    pub(crate) fn openssl(&self, arguments: &str) -> (bool, String) {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(self.certs()).output();
        let output = output.expect("it was asked for its version before");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the openssl command is there; says "skipped" where it is not.
pub(crate) fn has_openssl() -> bool {
    let found = Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success());
    if !found {
        crate::skipped::skipped("openssl not found");
    }
    found
}

/// A key that openssl made.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) pem: String,
    pub(crate) key: PrivateKey,
}

impl Key {
    /// Makes one by a command that writes to standard output.
    pub(crate) fn make(arguments: &str) -> Self {
        let output = Command::new("openssl").args(arguments.split(' ')).output().expect("it was asked before");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
        let pem = String::from_utf8(output.stdout).expect("PEM is text");
        let key = PrivateKey::from_pem(pem.as_bytes(), &Owner::Server(None)).expect(arguments);
        Self { pem, key }
    }

    pub(crate) fn spki(&self) -> &[u8] {
        &self.key.public().0
    }
}

/// Whole seconds, so that a date can be compared with a certificate's.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later than 1970");
    Timestamp::from_seconds(i64::try_from(since.as_secs()).expect("it is earlier than the end of time"))
}

/// The names of every order, each of its own kind.
pub(crate) const SANS: [&str; 7] = [
    "kubernetes",
    "kubernetes.default.svc.cluster.local",
    "*.wild.example",
    "127.0.0.1",
    "10.152.183.1",
    "192.0.2.10",
    "2001:db8::10",
];

/// MicroK8s' subject.
pub(crate) fn subject() -> Subject {
    let subject = [("C", "GB"), ("ST", "Canonical"), ("L", "Canonical"), ("O", "Canonical"), ("OU", "Canonical")];
    let all = subject.into_iter().chain([("CN", "127.0.0.1")]);
    Subject::Attributes(all.map(|(kind, value)| (kind.to_owned(), value.to_owned())).collect())
}

/// A renewal with MicroK8s' subject that keeps the key.
pub(crate) fn order() -> IssueOrder {
    IssueOrder {
        certificate: "server".to_owned(),
        purpose: Purpose::Server,
        sans: SANS.iter().map(|name| name.parse().expect("all of them are names")).collect(),
        added: ["192.0.2.10".parse().expect("an address")].into(),
        dropped: [].into(),
        subject: subject(),
        not_before: now() - Duration::from_secs(3600),
        not_after: now() + Duration::from_secs(30 * 24 * 3600),
        new_key: false,
        authority_key_id: AuthorityKeyId::KeyId,
        request: None,
        address_caused: true,
        served: true,
        shown_by_kubelet: false,
    }
}

/// An error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
