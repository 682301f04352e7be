//! Component arguments, typed.
//!
//! In: the files of the arguments folder. Out: the flags that matter. The rule of this file: a value that cannot be parsed
//! is reported, never guessed; the distribution's own value stands only where a flag is not given.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::facts::cluster::{Arguments, FlagAddress};
use crate::facts::{Problem, ReadError};
use crate::observe::file;
use crate::observe::flags::{Flags, Variables};

/// Where the kubelet listens unless it is told otherwise.
const KUBELET_PORT: u16 = 10250;

/// Where the defaults of the distribution come in.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// API server port.
    pub secure_port: u16,
    /// Service networks.
    pub service_cidrs: Vec<IpNet>,
    /// Pod networks.
    pub pod_cidrs: Vec<IpNet>,
}

/// The argument files of the components.
#[derive(Debug)]
pub struct Components {
    folder: PathBuf,
    flags: BTreeMap<&'static str, Flags>,
    errors: Vec<ReadError>,
    switches_known: bool,
}

const API_SERVER: &str = "kube-apiserver";
const KUBELET: &str = "kubelet";
const PROXY: &str = "kube-proxy";
const MANAGER: &str = "kube-controller-manager";

impl Components {
    /// Reads the files in `folder`.
    pub fn read(folder: &Path, variables: &Variables) -> Self {
        let mut errors = Vec::new();
        let mut switches_known = true;
        let mut flags = BTreeMap::new();
        for name in [API_SERVER, KUBELET, PROXY, MANAGER] {
            let path = folder.join(name);
            let read = file::read_bytes(&path)
                .and_then(|bytes| Flags::read(&bytes, variables).map_err(|why| ReadError::malformed(&path, why)));
            match read {
                Ok(read) => _ = flags.insert(name, read),
                // A component this node does not run has no file; an empty one gives no flags.
                Err(error) if matches!(error.problem, Problem::Missing | Problem::Empty) => {}
                Err(error) => {
                    switches_known &= name != API_SERVER;
                    errors.push(error);
                }
            }
        }
        Self { folder: folder.to_owned(), flags, errors, switches_known }
    }

    /// The value of a component's flag.
    pub fn value(&self, component: &str, flag: &str) -> Option<&str> {
        self.flags.get(component)?.value(flag)
    }

    /// The flags that matter.
    pub fn typed(mut self, defaults: &Defaults) -> Arguments {
        let secure_port = self.port(API_SERVER, "secure-port").unwrap_or(defaults.secure_port);
        let kubelet_port = self.port(KUBELET, "port").unwrap_or(KUBELET_PORT);
        let service_cidrs = self.networks(API_SERVER, "service-cluster-ip-range");
        let pod_cidrs = self
            .networks(PROXY, "cluster-cidr")
            .into_iter()
            .chain(self.networks(MANAGER, "cluster-cidr"))
            .find(|nets| !nets.is_empty());
        let node_ips = self.node_ips();
        let text = |component, flag| self.value(component, flag).map(str::trim).filter(|text| !text.is_empty());
        Arguments {
            switches_known: self.switches_known,
            advertise: address(self.value(API_SERVER, "advertise-address")),
            bind: address(self.value(API_SERVER, "bind-address")),
            kubelet_address: address(self.value(KUBELET, "address")),
            verifies_kubelets: text(API_SERVER, "kubelet-certificate-authority").is_some(),
            endpoints_are_others: text(API_SERVER, "endpoint-reconciler-type") == Some("none"),
            node_ips,
            hostname_override: text(KUBELET, "hostname-override").map(str::to_lowercase),
            // One that is given and makes no sense names no network, and least of all the distribution's.
            service_cidrs: service_cidrs.unwrap_or_else(|| defaults.service_cidrs.clone()),
            pod_cidrs: pod_cidrs.unwrap_or_else(|| defaults.pod_cidrs.clone()),
            secure_port,
            kubelet_port,
            errors: self.errors,
        }
    }

    fn port(&mut self, component: &'static str, flag: &str) -> Option<u16> {
        let port = self.value(component, flag)?.parse().ok();
        if port.is_none() {
            self.report(component, flag);
        }
        port
    }

    fn node_ips(&mut self) -> Vec<IpAddr> {
        let text = self.value(KUBELET, "node-ip").unwrap_or_default().to_owned();
        let mut parsed = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<IpAddr>() {
                // `::` asks the kubelet to prefer IPv6; it names no address.
                Ok(value) if value.is_unspecified() => {}
                Ok(value) => parsed.push(value.to_canonical()),
                Err(_) => self.report(KUBELET, "node-ip"),
            }
        }
        parsed
    }

    /// A list of networks, as far as they can be parsed; `None` when the flag is absent.
    fn networks(&mut self, component: &'static str, flag: &str) -> Option<Vec<IpNet>> {
        let text = self.value(component, flag)?.to_owned();
        let mut parsed = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<IpNet>() {
                Ok(net) => parsed.push(net),
                Err(_) => self.report(component, flag),
            }
        }
        Some(parsed)
    }

    fn report(&mut self, component: &str, flag: &str) {
        let value = self.value(component, flag).unwrap_or_default();
        let error = ReadError::malformed(&self.folder.join(component), format!("--{flag}={value} cannot be parsed"));
        self.errors.push(error);
    }
}

fn address(text: Option<&str>) -> FlagAddress {
    match text {
        None => FlagAddress::Absent,
        Some(text) => match text.parse::<IpAddr>() {
            Ok(value) if value.is_unspecified() => FlagAddress::Wildcard,
            Ok(value) => FlagAddress::Address(value.to_canonical()),
            Err(_) => FlagAddress::Unparsable(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes away with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ipguard-arguments-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a temporary folder");
            Self(path)
        }

        fn write(&self, component: &str, content: &[u8]) {
            std::fs::write(self.0.join(component), content).expect("the folder is ours");
        }

        fn read(&self) -> Arguments {
            Components::read(&self.0, &Variables::new()).typed(&defaults())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn defaults() -> Defaults {
        let nets = |text: &str| vec![text.parse().expect("a network")];
        Defaults { secure_port: 16443, service_cidrs: nets("10.152.183.0/24"), pod_cidrs: nets("10.1.0.0/16") }
    }

    fn texts(nets: &[IpNet]) -> Vec<String> {
        nets.iter().map(IpNet::to_string).collect()
    }

    #[test]
    fn what_is_not_given_is_the_distributions() {
        let folder = Folder::new("none");
        let read = folder.read();
        assert!(read.switches_known && read.errors.is_empty(), "no file, no flags");
        assert_eq!((read.secure_port, read.kubelet_port), (16443, 10250));
        assert!(!read.verifies_kubelets);
        assert_eq!(texts(&read.service_cidrs), ["10.152.183.0/24"]);
        assert_eq!(texts(&read.pod_cidrs), ["10.1.0.0/16"]);
    }

    #[test]
    fn flags_of_every_component_are_typed() {
        let folder = Folder::new("all");
        folder.write(API_SERVER, b"--service-cluster-ip-range=10.94.0.0/16,fd98::/108\n--secure-port 6443\n--advertise_address=::ffff:192.0.2.7\n--kubelet-certificate-authority=/ca.crt\n");
        folder.write(
            KUBELET,
            b"--node-ip=192.0.2.7,2001:db8::7\n--hostname-override=Node-7\n--port=10260\n--address=127.0.0.1\n",
        );
        folder.write(MANAGER, b"--cluster-cidr=10.5.0.0/16,fd05::/48\n");
        let read = folder.read();
        assert_eq!(texts(&read.service_cidrs), ["10.94.0.0/16", "fd98::/108"]);
        assert_eq!(texts(&read.pod_cidrs), ["10.5.0.0/16", "fd05::/48"], "kube-proxy says nothing");
        assert_eq!(read.advertise.address().map(|a| a.to_string()).as_deref(), Some("192.0.2.7"));
        assert_eq!(read.hostname_override.as_deref(), Some("node-7"), "node names are lower-case");
        assert_eq!((read.secure_port, read.kubelet_port), (6443, 10260));
        assert_eq!(read.kubelet_address.address().map(|a| a.to_string()).as_deref(), Some("127.0.0.1"));
        assert_eq!(read.node_ips.len(), 2);
        assert!(read.verifies_kubelets && !read.endpoints_are_others);
        folder.write(API_SERVER, b"--endpoint-reconciler-type none\n");
        assert!(folder.read().endpoints_are_others);
        folder.write(API_SERVER, b"--endpoint-reconciler-type=lease\n");
        assert!(!folder.read().endpoints_are_others);
        folder.write(PROXY, b"--cluster-cidr=10.6.0.0/16\n");
        assert_eq!(texts(&folder.read().pod_cidrs), ["10.6.0.0/16"], "kube-proxy comes first");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_known_to_be_one() {
        let folder = Folder::new("unreadable");
        // A folder where the file should be.
        std::fs::create_dir(folder.0.join(API_SERVER)).expect("the folder is ours");
        let read = folder.read();
        assert!(!read.switches_known && read.errors.len() == 1);
        std::fs::remove_dir(folder.0.join(API_SERVER)).expect("it is ours");
        for (content, known) in [
            (vec![b'#'; 64 * 1024], false),
            // A whole mebibyte of comments is read, more is not.
            ([vec![b'\n'; (1 << 20) - 9], b"--port=1\n".to_vec()].concat(), true),
            (vec![b'\n'; (1 << 20) + 1], false),
            (b"\0\0\0".to_vec(), true),
        ] {
            folder.write(API_SERVER, &content);
            assert_eq!(folder.read().switches_known, known, "{} bytes", content.len());
        }
        folder.write(API_SERVER, b"");
        folder.write(PROXY, &[b'x'; 64 * 1024]);
        let read = folder.read();
        assert!(read.switches_known, "another component's file switches nothing off");
        assert_eq!(read.errors.len(), 1);
    }

    #[test]
    fn nonsense_is_reported_and_stands_for_nothing() {
        let folder = Folder::new("nonsense");
        folder.write(API_SERVER, b"--bind-address=::\n--advertise-address=node7\n--secure-port=16443x\n--service-cluster-ip-range=10.152.183.0/240\n");
        folder.write(KUBELET, b"--node-ip=::,192.0.2.300\n--port=\n");
        folder.write(PROXY, b"--cluster-cidr=${POD_NETWORK}\n");
        let read = folder.read();
        assert_eq!(read.bind, FlagAddress::Wildcard);
        assert_eq!(read.advertise, FlagAddress::Unparsable("node7".into()));
        assert_eq!(texts(&read.service_cidrs), [""; 0], "least of all the network that MicroK8s ships");
        assert_eq!(texts(&read.pod_cidrs), ["10.1.0.0/16"]);
        assert_eq!((read.secure_port, read.kubelet_port, read.node_ips.len()), (16443, 10250, 0));
        let mut said: Vec<String> = read.errors.iter().map(ToString::to_string).collect();
        said.sort();
        let path = |rest: &str| format!("{}/{rest} cannot be parsed", folder.0.display());
        let mut expected = [
            "kube-apiserver: --secure-port=16443x",
            "kube-apiserver: --service-cluster-ip-range=10.152.183.0/240",
            "kube-proxy: --cluster-cidr=${POD_NETWORK}",
            "kubelet: --node-ip=::,192.0.2.300",
            "kubelet: --port=",
        ]
        .map(path);
        expected.sort();
        assert_eq!(said, expected);
    }
}
