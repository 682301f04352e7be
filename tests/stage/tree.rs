//! A folder that looks like a MicroK8s host to `--root`: certificates, argument files, locks, request template.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rcgen::{DnType, KeyPair};

use super::Result;
use super::age::{Age, KubeletCertificate};
use super::authority::Authority;

/// Marker in the request template where the node's addresses go.
pub(crate) const MARKER: &str = "#MOREIPS";

/// What the tree contains besides the usual.
#[derive(Debug, Default)]
pub(crate) struct TreeSpec {
    /// Extra lines by argument file; `csr.conf.template` stands for lines of the request template.
    pub(crate) args: BTreeMap<String, Vec<String>>,
    /// Files in `var/lock`.
    pub(crate) locks: Vec<String>,
    /// Names of the server certificate.
    pub(crate) sans: Vec<String>,
    /// What became of it.
    pub(crate) certificate: CertificateState,
    /// The front-proxy CA with its client certificate, and the kubelet's, as new nodes have them. They name the host and
    /// this address.
    pub(crate) beside: Option<String>,
    /// Argument files, marker files and certificates of this age instead of the usual.
    pub(crate) age: Option<Age>,
    /// Whose CA it is.
    pub(crate) authority: AuthorityKind,
    /// The whole request template.
    pub(crate) template: Option<String>,
}

/// Whose CA signs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorityKind {
    /// The one that MicroK8s makes.
    #[default]
    Own,
    /// One of this name, brought by the operator.
    Named(&'static str),
    /// One beneath the operator's root; the file has both.
    Intermediate,
}

/// State of the server certificate at the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CertificateState {
    /// Good, signed by the CA.
    #[default]
    Valid,
    /// Not there: a first installation. CA and keys are there, they are made before.
    Missing,
    /// Zero bytes: an interrupted write in place.
    EmptyFile,
    /// Good, but signed by a CA of the same name with another key.
    SignedByOther,
}

/// The tree; the folder is removed when it is dropped, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    keep: bool,
}

impl Tree {
    /// Makes the tree in a new folder of the machine's temporary folder. The path is short: it holds a socket, whose
    /// name may have 107 bytes.
    pub(crate) fn create(spec: &TreeSpec, keep: bool) -> Result<Self> {
        // Process ids come again; a folder that a killed run left behind must not be in the way.
        let nanos = super::timeline::monotonic().subsec_nanos();
        let root = std::env::temp_dir().join(format!("ipguard-stage-{}-{nanos}", std::process::id()));
        fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        let tree = Self { root, keep };
        tree.fill(spec)?;
        Ok(tree)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the root.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// `$SNAP_DATA`, by the link that a refresh moves.
    pub(crate) fn data(&self, below: &str) -> PathBuf {
        self.root.join("var/snap/microk8s/current").join(below)
    }

    pub(crate) fn server_certificate(&self) -> PathBuf {
        self.data("certs/server.crt")
    }

    /// Adds lines to the names of the request template, as somebody with an editor does.
    pub(crate) fn template_add(&self, lines: &[String]) -> Result<()> {
        let path = self.data("certs/csr.conf.template");
        let text = fs::read_to_string(&path)?;
        let place = text.find(MARKER).or_else(|| text.find("\n[ v3_ext ]")).ok_or("no place in the template")?;
        let (before, after) = text.split_at(place);
        Ok(fs::write(&path, format!("{before}{}\n{after}", lines.join("\n")))?)
    }

    pub(crate) fn lock_del(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.data("var/lock").join(name))?)
    }

    fn fill(&self, spec: &TreeSpec) -> Result<()> {
        // The revision's folder has a number, everybody uses the link beside it.
        let revision = self.root.join("var/snap/microk8s/7400");
        for folder in ["certs", "args", "credentials", "var/lock"] {
            fs::create_dir_all(revision.join(folder))?;
        }
        symlink("7400", self.root.join("var/snap/microk8s/current"))?;
        for folder in ["etc/ipguard", "usr/bin", "run", "var/lib", "state"] {
            fs::create_dir_all(self.root.join(folder))?;
        }
        self.write_arguments(spec)?;
        // Without it kubelite does not start.
        let usual = spec.age.map_or(&["lite.lock"][..], Age::locks);
        let of_age = usual.iter().map(|lock| (*lock).to_owned());
        for lock in of_age.chain(spec.locks.iter().cloned()) {
            fs::write(self.data("var/lock").join(lock), "")?;
        }
        self.write_certificates(spec)
    }

    fn write_arguments(&self, spec: &TreeSpec) -> Result<()> {
        if let Some(age) = spec.age {
            for (file, lines) in age.arguments() {
                self.write_argument_file(spec, file, &lines)?;
            }
            return Ok(());
        }
        for (file, usual) in [
            (
                "kube-apiserver",
                &[
                    "--cert-dir=${SNAP_DATA}/certs",
                    "--service-cluster-ip-range=10.152.183.0/24",
                    "--authorization-mode=RBAC,Node",
                    "--client-ca-file=${SNAP_DATA}/certs/ca.crt",
                    "--tls-cert-file=${SNAP_DATA}/certs/server.crt",
                    "--tls-private-key-file=${SNAP_DATA}/certs/server.key",
                    "--secure-port=16443",
                ][..],
            ),
            (
                "kubelet",
                &[
                    "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config",
                    "--cert-dir=${SNAP_DATA}/certs",
                    "--client-ca-file=${SNAP_DATA}/certs/ca.crt",
                    "--cluster-domain=cluster.local",
                ],
            ),
            ("kube-proxy", &["--kubeconfig=${SNAP_DATA}/credentials/proxy.config", "--cluster-cidr=10.1.0.0/16"]),
        ] {
            self.write_argument_file(spec, file, usual)?;
        }
        Ok(())
    }

    fn write_argument_file(&self, spec: &TreeSpec, file: &str, usual: &[&str]) -> Result<()> {
        let mut lines = usual.to_vec();
        lines.extend(spec.args.get(file).into_iter().flatten().map(String::as_str));
        Ok(fs::write(self.data("args").join(file), lines.join("\n") + "\n")?)
    }

    fn write_certificates(&self, spec: &TreeSpec) -> Result<()> {
        let extra = spec.args.get("csr.conf.template").map_or(&[][..], Vec::as_slice);
        let template = spec.template.clone().unwrap_or_else(|| template(extra));
        let authority = match spec.authority {
            AuthorityKind::Own => Authority::new()?,
            AuthorityKind::Named(name) => Authority::named(name)?,
            AuthorityKind::Intermediate => Authority::named("Example Root")?.beneath("Example Issuing CA")?,
        };
        let key = KeyPair::generate()?;
        if let Some(address) = &spec.beside {
            self.write_beside(&authority, address, spec.age)?;
        }
        self.write("ca.crt", &authority.certificate_pem)?;
        self.write("ca.key", &authority.key_pem)?;
        self.write("server.key", &key.serialize_pem())?;
        self.write("csr.conf.template", &template)?;
        match spec.certificate {
            CertificateState::Missing => return Ok(()),
            CertificateState::Valid => self.write("server.crt", &authority.sign(&key, &spec.sans)?)?,
            CertificateState::SignedByOther => self.write("server.crt", &Authority::new()?.sign(&key, &spec.sans)?)?,
            CertificateState::EmptyFile => self.write("server.crt", "")?,
        }
        self.write("csr.conf", &rendered(&template, &spec.sans))
    }

    fn write_beside(&self, authority: &Authority, address: &str, age: Option<Age>) -> Result<()> {
        fs::write(self.root.join("etc/hostname"), "node-1\n")?;
        if age.is_none_or(Age::has_front_proxy) {
            self.write_front_proxy()?;
        }
        match age.map_or(KubeletCertificate::Cluster, Age::kubelet_certificate) {
            KubeletCertificate::None => Ok(()),
            KubeletCertificate::Cluster => {
                let subject = [(DnType::CommonName, "system:node:node-1"), (DnType::OrganizationName, "system:nodes")];
                self.write_kubelet(authority, &subject, address)
            }
            KubeletCertificate::Own => {
                let own = Authority::named("node-1-ca@1700000000")?;
                self.write_kubelet(&own, &[(DnType::CommonName, "node-1@1700000000")], address)
            }
        }
    }

    fn write_front_proxy(&self) -> Result<()> {
        let front_proxy = Authority::named("front-proxy-ca")?;
        self.write("front-proxy-ca.crt", &front_proxy.certificate_pem)?;
        self.write("front-proxy-ca.key", &front_proxy.key_pem)?;
        let key = KeyPair::generate()?;
        let subject = [(DnType::CommonName, "front-proxy-client")];
        let names = ["DNS:kubernetes".to_owned()];
        self.write("front-proxy-client.key", &key.serialize_pem())?;
        self.write("front-proxy-client.crt", &front_proxy.sign_for(&subject, &key, &names, (-10, 355))?)
    }

    fn write_kubelet(&self, authority: &Authority, subject: &[(DnType, &str)], address: &str) -> Result<()> {
        let key = KeyPair::generate()?;
        let names = ["DNS:node-1".to_owned(), address.to_owned()];
        self.write("kubelet.key", &key.serialize_pem())?;
        self.write("kubelet.crt", &authority.sign_for(subject, &key, &names, (-10, 355))?)
    }

    /// Mode as the configure hook leaves it: the group may write.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.data("certs").join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o660))?)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept: {}", self.root.display());
        } else {
            // What cannot be removed is left in the temporary folder, where it does no harm.
            let _ = fs::remove_dir_all(&self.root);
        }
    }
}

/// The request template. Extra lines go before the marker, unless they show the marker's place themselves;
/// `(no #MOREIPS)` takes the marker away.
pub(crate) fn template(extra: &[String]) -> String {
    let removed = format!("(no {MARKER})");
    let mut names: Vec<&str> = extra.iter().map(String::as_str).filter(|line| *line != removed).collect();
    if names.len() == extra.len() && !names.contains(&MARKER) {
        names.push(MARKER);
    }
    let names = names.join("\n");
    format!(
        "[ req ]\nprompt = no\ndefault_bits = 2048\ndefault_md = sha256\ndistinguished_name = dn\n\
         req_extensions = req_ext\n\n\
         [ dn ]\nC = GB\nST = Canonical\nL = Canonical\nO = Canonical\nOU = Canonical\nCN = 127.0.0.1\n\n\
         [ req_ext ]\nsubjectAltName = @alt_names\n\n\
         [ alt_names ]\nDNS.1 = kubernetes\nDNS.2 = kubernetes.default\nDNS.3 = kubernetes.default.svc\n\
         DNS.4 = kubernetes.default.svc.cluster\nDNS.5 = kubernetes.default.svc.cluster.local\n\
         IP.1 = 127.0.0.1\nIP.2 = 10.152.183.1\n{names}\n\n\
         [ v3_ext ]\nbasicConstraints = CA:FALSE\nauthorityKeyIdentifier = keyid,issuer:always\n\
         keyUsage = digitalSignature,keyEncipherment,dataEncipherment\nextendedKeyUsage = serverAuth,clientAuth\n\
         subjectAltName = @alt_names\n"
    )
}

/// The request file beside it, as the kicker left it: the marker replaced by the addresses it knew.
pub(crate) fn rendered(template: &str, sans: &[String]) -> String {
    let known = sans.iter().filter(|san| !san.starts_with("DNS:") && !template.contains(&format!(" = {san}\n")));
    let lines: Vec<String> = (3..).zip(known).map(|(n, san)| format!("IP.{n} = {san}")).collect();
    template.replace(MARKER, &lines.join("\n"))
}
