//! What a MicroK8s of a certain age puts into its argument files, lock files and credentials, as far as a reader of the
//! tree may trip over it.

/// A release whose layout differs from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Age {
    /// Every component is a service of its own; docker and etcd, no aggregation layer.
    V1_18,
    /// kubelite and dqlite; the kubelet makes its own serving certificate.
    V1_24,
    /// The cluster's CA signs the kubelet's.
    V1_28,
    /// The API server verifies kubelets by the cluster's CA.
    V1_34,
}

/// Who made the kubelet's serving certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KubeletCertificate {
    None,
    /// The kubelet itself, by a CA that it forgot at once.
    Own,
    Cluster,
}

const BASE: &[&str] = &[
    "--cert-dir=${SNAP_DATA}/certs",
    "--service-cluster-ip-range=10.152.183.0/24",
    "--client-ca-file=${SNAP_DATA}/certs/ca.crt",
    "--tls-cert-file=${SNAP_DATA}/certs/server.crt",
    "--tls-private-key-file=${SNAP_DATA}/certs/server.key",
    "--kubelet-client-certificate=${SNAP_DATA}/certs/server.crt",
    "--secure-port=16443",
];

const AGGREGATION: &[&str] = &[
    "",
    "# Enable the aggregation layer",
    "--requestheader-client-ca-file=${SNAP_DATA}/certs/front-proxy-ca.crt",
    "--requestheader-allowed-names=front-proxy-client",
    "--proxy-client-cert-file=${SNAP_DATA}/certs/front-proxy-client.crt",
    "--proxy-client-key-file=${SNAP_DATA}/certs/front-proxy-client.key",
    "#~Enable the aggregation layer",
];

impl Age {
    pub(crate) fn has_front_proxy(self) -> bool {
        self >= Self::V1_24
    }

    pub(crate) fn kubelet_certificate(self) -> KubeletCertificate {
        match self {
            Self::V1_18 => KubeletCertificate::None,
            Self::V1_24 => KubeletCertificate::Own,
            Self::V1_28 | Self::V1_34 => KubeletCertificate::Cluster,
        }
    }

    /// The argument files, by name.
    pub(crate) fn arguments(self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut server: Vec<&str> = BASE.to_vec();
        server.extend(match self {
            Self::V1_18 => &[
                "--authorization-mode=AlwaysAllow",
                "--basic-auth-file=${SNAP_DATA}/credentials/basic_auth.csv",
                "--etcd-servers='https://127.0.0.1:12379'",
                "--etcd-certfile=${SNAP_DATA}/certs/server.crt",
                "--insecure-port=0",
            ][..],
            _ => &[
                "--authorization-mode=AlwaysAllow",
                "--etcd-servers=\"unix://${SNAP_DATA}/var/kubernetes/backend/kine.sock:12379\"",
                "--allow-privileged=true",
                "--service-account-issuer='https://kubernetes.default.svc'",
            ],
        });
        if self.has_front_proxy() {
            server.extend(AGGREGATION);
        }
        if self >= Self::V1_34 {
            server.extend([
                "--kubelet-certificate-authority=${SNAP_DATA}/certs/ca.crt",
                "--authorization-mode=RBAC,Node",
            ]);
        }
        let mut kubelet = vec![
            "--kubeconfig=${SNAP_DATA}/credentials/kubelet.config",
            "--cert-dir=${SNAP_DATA}/certs",
            "--client-ca-file=${SNAP_DATA}/certs/ca.crt",
            "--root-dir=${SNAP_COMMON}/var/lib/kubelet",
            "--eviction-hard=\"memory.available<100Mi,nodefs.available<1Gi,imagefs.available<1Gi\"",
            "--node-labels=\"microk8s.io/cluster=true\"",
        ];
        kubelet.push(if self == Self::V1_18 { "--network-plugin=kubenet" } else { "--container-runtime=remote" });
        if self.kubelet_certificate() == KubeletCertificate::Cluster {
            kubelet.extend([
                "--tls-cert-file=${SNAP_DATA}/certs/kubelet.crt",
                "--tls-private-key-file=${SNAP_DATA}/certs/kubelet.key",
            ]);
        }
        let manager = match self {
            Self::V1_18 => {
                vec!["--master='http://127.0.0.1:${K8S_API_PORT}'", "--root-ca-file=${SNAP_DATA}/certs/ca.crt"]
            }
            _ => vec![
                "--kubeconfig=${SNAP_DATA}/credentials/controller.config",
                "--root-ca-file=${SNAP_DATA}/certs/ca.crt",
                "--cluster-signing-cert-file=${SNAP_DATA}/certs/ca.crt",
                "--cluster-signing-key-file=${SNAP_DATA}/certs/ca.key",
            ],
        };
        let mut files = vec![
            ("kube-apiserver", server),
            ("kubelet", kubelet),
            ("kube-proxy", vec!["--kubeconfig=${SNAP_DATA}/credentials/proxy.config", "--cluster-cidr=10.1.0.0/16"]),
            ("kube-controller-manager", manager),
        ];
        if self == Self::V1_18 {
            files.push(("docker-daemon.json", vec!["{ \"insecure-registries\": [\"localhost:32000\"] }"]));
        }
        files
    }

    /// Marker files that every node of that age has.
    pub(crate) fn locks(self) -> &'static [&'static str] {
        match self {
            Self::V1_18 => &["installed.lock"],
            _ => &[
                "installed.lock",
                "lite.lock",
                "ha-cluster",
                "no-etcd",
                "no-flanneld",
                "cni-loaded",
                "no-apiserver-proxy",
            ],
        }
    }
}
