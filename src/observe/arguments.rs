//! Component arguments, read the way kubelite reads them.
//!
//! In: the files of the arguments folder. Out: the flags that matter, typed. The rule of this file: what the component
//! would see, we see - quotes are stripped, words are split on single spaces, `#` starts a comment only at the start of a
//! line, the last occurrence of a flag wins, `_` equals `-` - and a value that cannot be parsed is reported, never guessed.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::facts::cluster::{Arguments, FlagAddress};
use crate::facts::{Problem, ReadError};
use crate::observe::file;

/// Flags of one component; the last value of each.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Flags(BTreeMap<String, String>);

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

impl Flags {
    /// Parses the text of an argument file.
    pub fn parse(text: &str) -> Self {
        let mut flags = BTreeMap::new();
        let unquoted: String = text.chars().filter(|c| !matches!(c, '"' | '\'')).collect();
        let mut words = unquoted
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(|line| line.split(' '))
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (flag, words.next_if(|next| !next.starts_with("--")).unwrap_or_default().to_owned()),
            };
            flags.insert(name.replace('_', "-"), value);
        }
        Self(flags)
    }

    /// The value of a flag.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Reads the arguments of the components in `folder`.
pub fn read(folder: &Path, data: &Path, defaults: &Defaults) -> Arguments {
    let mut errors = Vec::new();
    let (server_path, server) = flags_of(folder, "kube-apiserver", data, &mut errors);
    let switches_known = errors.is_empty();
    let mut component = |name: &str| flags_of(folder, name, data, &mut errors);
    let (kubelet_path, kubelet) = component("kubelet");
    let (proxy_path, proxy) = component("kube-proxy");
    let (manager_path, manager) = component("kube-controller-manager");

    let secure_port = match server.value("secure-port").map(str::parse::<u16>) {
        None => defaults.secure_port,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            errors.push(unparsable(&server_path, "secure-port", &server));
            defaults.secure_port
        }
    };
    let service_cidrs = networks(&server, "service-cluster-ip-range", &server_path, &mut errors)
        .unwrap_or_else(|| defaults.service_cidrs.clone());
    let pod_cidrs = networks(&proxy, "cluster-cidr", &proxy_path, &mut errors)
        .or_else(|| networks(&manager, "cluster-cidr", &manager_path, &mut errors))
        .unwrap_or_else(|| defaults.pod_cidrs.clone());
    let node_ips = kubelet.value("node-ip").map_or_else(Vec::new, |text| {
        let mut parsed = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.parse::<IpAddr>() {
                // `::` asks the kubelet to prefer IPv6; it names no address.
                Ok(value) if value.is_unspecified() => {}
                Ok(value) => parsed.push(value.to_canonical()),
                Err(_) => errors.push(unparsable(&kubelet_path, "node-ip", &kubelet)),
            }
        }
        parsed
    });
    Arguments {
        switches_known,
        advertise: address(&server, "advertise-address"),
        bind: address(&server, "bind-address"),
        node_ips,
        service_cidrs,
        pod_cidrs,
        secure_port,
        certificate: server.value("tls-cert-file").filter(|path| !path.is_empty()).map(PathBuf::from),
        errors,
    }
}

/// The flags of one component, and where they are from.
fn flags_of(folder: &Path, name: &str, data: &Path, errors: &mut Vec<ReadError>) -> (PathBuf, Flags) {
    let path = folder.join(name);
    match file::read_bytes(&path) {
        // kubelite cares for no encoding; a stray byte in a comment must not hide the flags.
        Ok(bytes) => (path, Flags::parse(&expand(&String::from_utf8_lossy(&bytes), data))),
        Err(error) => {
            // A component this node does not run has no file; an empty one gives no flags.
            if matches!(error.problem, Problem::Unreadable(_) | Problem::Malformed(_)) {
                errors.push(error);
            }
            (path, Flags::default())
        }
    }
}

fn address(flags: &Flags, name: &str) -> FlagAddress {
    match flags.value(name) {
        None => FlagAddress::Absent,
        Some(text) => match text.parse::<IpAddr>() {
            Ok(value) if value.is_unspecified() => FlagAddress::Wildcard,
            Ok(value) => FlagAddress::Address(value.to_canonical()),
            Err(_) => FlagAddress::Unparsable(text.to_owned()),
        },
    }
}

/// A list of networks; `None` when the flag is absent, or when nothing of it can be parsed.
fn networks(flags: &Flags, name: &str, path: &Path, errors: &mut Vec<ReadError>) -> Option<Vec<IpNet>> {
    let text = flags.value(name)?;
    let mut parsed = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse::<IpNet>() {
            Ok(net) => parsed.push(net),
            Err(_) => errors.push(unparsable(path, name, flags)),
        }
    }
    (!parsed.is_empty()).then_some(parsed)
}

fn unparsable(path: &Path, name: &str, flags: &Flags) -> ReadError {
    let value = flags.value(name).unwrap_or_default();
    ReadError::malformed(path, format!("--{name}={value} cannot be parsed"))
}

/// `$SNAP_DATA` and `${SNAP_DATA}` are the only variables these files use for the paths that matter here.
fn expand(text: &str, data: &Path) -> String {
    let data = data.to_string_lossy();
    text.replace("${SNAP_DATA}", &data).replace("$SNAP_DATA", &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_kubelite_reads_them() {
        let text = "# --bind-address=0.0.0.0\n--secure-port=16443\n--advertise_address=\"192.0.2.7\"\n\
                    --service-cluster-ip-range 10.152.183.0/24 --secure-port='16444'\n  # --node-ip=1.2.3.4\n--v=2 # 4\n";
        let flags = Flags::parse(text);
        assert_eq!(flags.value("bind-address"), None, "a comment is not a flag");
        assert_eq!(flags.value("secure-port"), Some("16444"), "the last one wins, quotes are stripped");
        assert_eq!(flags.value("advertise-address"), Some("192.0.2.7"), "_ equals -");
        assert_eq!(flags.value("service-cluster-ip-range"), Some("10.152.183.0/24"));
        assert_eq!(flags.value("node-ip"), Some("1.2.3.4"), "# is a comment only at the start of a line");
    }

    #[test]
    fn a_stray_byte_hides_no_flag_and_an_unreadable_file_is_known_to_be_one() {
        let folder = std::env::temp_dir().join(format!("ipguard-arguments-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let defaults = Defaults { secure_port: 16443, service_cidrs: Vec::new(), pod_cidrs: Vec::new() };
        let file = folder.join("kube-apiserver");
        std::fs::write(&file, b"# caf\xe9\n--advertise-address=192.0.2.7\n").expect("the folder is ours");
        let read = super::read(&folder, &folder, &defaults);
        assert_eq!(read.advertise.address().map(|a| a.to_string()).as_deref(), Some("192.0.2.7"));
        assert!(read.switches_known && read.errors.is_empty());
        // A folder where the file should be.
        std::fs::remove_file(&file).expect("it is ours");
        assert!(super::read(&folder, &folder, &defaults).switches_known, "no file, no flags");
        std::fs::create_dir(&file).expect("the folder is ours");
        let read = super::read(&folder, &folder, &defaults);
        assert!(!read.switches_known && read.errors.len() == 1);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn wildcards_and_nonsense_pin_nothing() {
        let flags = Flags::parse("--bind-address=::\n--advertise-address=node7\n");
        assert_eq!(address(&flags, "bind-address"), FlagAddress::Wildcard);
        assert_eq!(address(&flags, "advertise-address"), FlagAddress::Unparsable("node7".into()));
        assert_eq!(address(&flags, "other"), FlagAddress::Absent);
    }

    #[test]
    fn an_unparsable_network_is_reported_and_the_default_stands() {
        let mut errors = Vec::new();
        let flags = Flags::parse("--cluster-cidr=10.1.0.0/16,fd00::/48\n--service-cluster-ip-range=10.152.183.0/240\n");
        let both = networks(&flags, "cluster-cidr", Path::new("kube-proxy"), &mut errors);
        assert_eq!(both.map(|nets| nets.len()), Some(2));
        assert_eq!(networks(&flags, "service-cluster-ip-range", Path::new("kube-apiserver"), &mut errors), None);
        assert_eq!(errors.len(), 1);
        assert_eq!(
            errors[0].to_string(),
            "kube-apiserver: --service-cluster-ip-range=10.152.183.0/240 cannot be parsed"
        );
    }
}
