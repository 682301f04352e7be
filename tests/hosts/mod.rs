//! Hosts as values: the shortest way to say what is on a machine, and to ask what ipguard makes of it.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipguard::config::Config;
use ipguard::decide::case::Grounds;
use ipguard::decide::classify::classify;
use ipguard::decide::plan::Plan;
use ipguard::decide::state::State;
use ipguard::decide::verdict::{Class, Classification};
use ipguard::decide::{self, Mode};
use ipguard::facts::Observed;
use ipguard::facts::certificate::{
    Authority, AuthorityCertificate, CertificateFacts, CertificateRole, Fingerprint, Leaf, PublicKey, Usage,
};
use ipguard::facts::cluster::{Arguments, Cluster, JoinTokens, Role, Service, ServiceState, Template};
use ipguard::facts::network::{Address, DefaultRoute, Family, Flags, Link, LinkName, MAIN_TABLE, Network, NextHop};
use ipguard::facts::san::SanSet;
use ipguard::facts::time::{Now, Timestamp};
use ipnet::IpNet;

/// A machine: its network, its certificate, its services, and what ipguard remembers of it.
#[derive(Debug, Clone)]
pub struct Host {
    pub network: Network,
    pub config: Config,
    pub state: State,
    pub now: Now,
    pub cluster: Cluster,
    pub services: BTreeMap<String, ServiceState>,
    pub mode: Mode,
    pub boot_id: String,
    /// Since when a daemon has followed every change; `None` for a look from outside.
    pub watched_since: Option<Timestamp>,
    /// What the kernel says about its clock.
    pub clock_synchronised: Option<bool>,
    /// Certificates that a person asked for.
    pub forced: BTreeSet<String>,
    /// There is a kubeconfig.
    pub credentials: bool,
    /// What the API server said.
    pub listed: Option<Result<BTreeSet<IpAddr>, String>>,
}

/// Flag bits, by the names iproute2 prints.
pub const SECONDARY: u32 = 0x01;
pub const TEMPORARY: u32 = 0x01;
pub const DADFAILED: u32 = 0x08;
pub const DEPRECATED: u32 = 0x20;
pub const TENTATIVE: u32 = 0x40;
pub const PERMANENT: u32 = 0x80;

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn sans(list: &[&str]) -> SanSet {
    list.iter().map(|text| text.parse().expect("a name")).collect()
}

impl Host {
    /// A machine that has been up for a day, with a MicroK8s whose certificate names what every one does.
    pub fn new() -> Self {
        let day = Duration::from_secs(86_400);
        let now = Now { wall: Timestamp::from_seconds(1_800_000_000), uptime: day };
        let mut host = Self {
            network: Network { complete: true, ..Network::default() },
            config: Config::default(),
            state: State::default(),
            now,
            cluster: cluster(now),
            services: BTreeMap::new(),
            mode: Mode::Daemon,
            boot_id: "this-boot".to_owned(),
            watched_since: None,
            clock_synchronised: None,
            forced: BTreeSet::new(),
            credentials: false,
            listed: None,
        };
        host.config.restart.jitter = Duration::ZERO;
        host.link("lo", None);
        host.link_mut("lo").loopback = true;
        host.add("lo", "127.0.0.1/8");
        host.service_since(Duration::from_secs(3_600));
        host
    }

    /// One NIC, one address, one default route, named by the certificate.
    pub fn usual() -> Self {
        let mut host = Self::new();
        host.link("eth0", None);
        host.add("eth0", "192.0.2.10/24");
        host.default_via("eth0", Some("192.0.2.1"));
        host.certificate(&["192.0.2.10"]);
        host
    }

    pub fn link(&mut self, name: &str, kind: Option<&str>) -> &mut Link {
        let index = u32::try_from(self.network.links.len()).expect("few links") + 1;
        self.network.links.entry(index).or_insert_with(|| Link {
            index,
            name: LinkName::from(name),
            kind: kind.map(str::to_owned),
            master: None,
            up: true,
            carrier: true,
            loopback: false,
        })
    }

    pub fn link_mut(&mut self, name: &str) -> &mut Link {
        self.network.links.values_mut().find(|l| l.name == LinkName::from(name)).expect("a link of that name")
    }

    pub fn index(&self, name: &str) -> u32 {
        self.network.links.values().find(|l| l.name == LinkName::from(name)).expect("a link of that name").index
    }

    pub fn enslave(&mut self, port: &str, bridge: &str) {
        let bridge = self.index(bridge);
        self.link_mut(port).master = Some(bridge);
    }

    /// Adds an address the way the kernel does: after the primaries of its link, flagged when it comes second in its
    /// subnet.
    pub fn add(&mut self, link: &str, cidr: &str) -> &mut Address {
        let cidr: IpNet = cidr.parse().expect("address/prefix");
        let index = self.index(link);
        let net = cidr.trunc();
        let second = cidr.addr().is_ipv4()
            && self.network.addresses.iter().any(|a| {
                a.link == index && a.prefix_len == cidr.prefix_len() && !a.flags.secondary() && net.contains(&a.value)
            });
        let created = u32::try_from(self.now.uptime.as_millis() / 10).expect("not up for that long");
        let link_local = matches!(cidr.addr(), IpAddr::V6(v6) if v6.is_unicast_link_local());
        self.network.addresses.push(Address {
            value: cidr.addr(),
            prefix_len: cidr.prefix_len(),
            link: index,
            peer: None,
            scope: if cidr.addr().is_loopback() {
                254
            } else if link_local {
                253
            } else {
                0
            },
            flags: Flags(PERMANENT | if second { SECONDARY } else { 0 }),
            label: None,
            protocol: None,
            valid: None,
            preferred: None,
            created: Some(created),
            updated: Some(created),
        });
        self.network.addresses.last_mut().expect("just pushed")
    }

    /// Adds an address with a finite lifetime, as DHCP and SLAAC do.
    pub fn lease(&mut self, link: &str, cidr: &str, seconds: u64) -> &mut Address {
        let address = self.add(link, cidr);
        address.flags.0 &= !PERMANENT;
        address.valid = Some(Duration::from_secs(seconds));
        address.preferred = Some(Duration::from_secs(seconds));
        address
    }

    /// Removes every copy of a value; with promote_secondaries=1 the next in its subnet becomes first.
    pub fn remove(&mut self, value: &str) {
        let value = ip(value);
        let gone: Vec<Address> = self.network.addresses.iter().filter(|a| a.value == value).cloned().collect();
        self.network.addresses.retain(|a| a.value != value);
        for gone in gone.iter().filter(|a| !a.flags.secondary() && a.value.is_ipv4()) {
            let net = IpNet::new(gone.value, gone.prefix_len).expect("a prefix length");
            let next = self
                .network
                .addresses
                .iter_mut()
                .find(|a| a.link == gone.link && a.prefix_len == gone.prefix_len && net.contains(&a.value));
            if let Some(next) = next {
                next.flags.0 &= !SECONDARY;
            }
        }
    }

    pub fn default_via(&mut self, link: &str, gateway: Option<&str>) -> &mut DefaultRoute {
        let link = self.index(link);
        let gateway = gateway.map(ip);
        let family = gateway.map_or(Family::Ipv4, Family::of);
        self.network.default_routes.push(DefaultRoute {
            family,
            table: MAIN_TABLE,
            metric: 100,
            preferred_source: None,
            hops: vec![NextHop { link, gateway }],
            protocol: 4,
        });
        self.network.default_routes.last_mut().expect("just pushed")
    }

    /// The certificate names these besides the configured ones.
    pub fn certificate(&mut self, names: &[&str]) {
        let facts = &mut self.cluster.certificates[0];
        let leaf = facts.leaf.as_mut().expect("a readable certificate");
        leaf.sans = sans(names);
        leaf.sans.extend(sans(CONFIGURED));
    }

    /// The API server has been running since that uptime.
    pub fn service_since(&mut self, started: Duration) {
        for name in ["kubelite", "cluster-agent"] {
            let state = ServiceState {
                active: Some(true),
                started: Some(started),
                main_process: Some(77),
                standing: Default::default(),
                detail: "active".to_owned(),
            };
            self.services.insert(name.to_owned(), state);
        }
    }

    pub fn pass_time(&mut self, span: Duration) {
        self.now.wall = self.now.wall + span;
        self.now.uptime += span;
    }

    pub fn observed(&self) -> Observed {
        Observed {
            network: self.network.clone(),
            cluster: Some(self.cluster.clone()),
            data_missing: None,
            services: self.services.clone(),
            boot_id: self.boot_id.clone(),
            watched_since: self.watched_since,
            lineage: vec![4242, 1],
            clock_synchronised: self.clock_synchronised,
            forced: self.forced.clone(),
            credentials: self.credentials,
            listed: self.listed.clone(),
            ..Observed::default()
        }
    }

    pub fn plan(&self) -> Plan {
        decide::plan(&self.observed(), &profile(), &self.config, &self.state, self.now, self.mode)
    }

    /// One settled pass that carries nothing out, remembered.
    pub fn settle(&mut self) -> Plan {
        let plan = self.plan();
        self.state = plan.state.clone();
        plan
    }

    pub fn classify(&self) -> Classification {
        let configured = sans(CONFIGURED);
        let certificate_ips: BTreeSet<IpAddr> = self.cluster.certificates[0]
            .leaf
            .as_ref()
            .map(|leaf| leaf.sans.difference(&configured).filter_map(|s| s.as_ip()).collect())
            .unwrap_or_default();
        let pins: BTreeMap<IpAddr, String> =
            self.cluster.arguments.node_ips.iter().map(|pin| (*pin, "--node-ip".to_owned())).collect();
        classify(&Grounds {
            network: &self.network,
            config: &self.config,
            state: &self.state,
            now: self.now,
            pins: &pins,
            cluster_cidrs: &["10.1.0.0/16".parse().expect("a net"), "10.152.183.0/24".parse().expect("a net")],
            certificate_ips: &certificate_ips,
            configured_ips: &BTreeSet::new(),
        })
    }

    /// The primary values as a pass finds them.
    pub fn planned_primary(&self) -> Vec<String> {
        let plan = self.plan();
        plan.addresses.iter().filter(|v| v.class == Class::Primary).map(|v| v.address.to_string()).collect()
    }

    /// Class and rule of a value.
    pub fn verdict(&self, value: &str) -> (Class, &'static str) {
        let classes = self.classify();
        let verdict = classes.verdict(ip(value)).expect("the address is on the host");
        (verdict.class, verdict.rule)
    }

    pub fn primary(&self) -> Vec<String> {
        self.classify().primary().iter().map(ToString::to_string).collect()
    }
}

/// What every MicroK8s certificate names.
pub const CONFIGURED: &[&str] = &["kubernetes", "127.0.0.1", "10.152.183.1"];

pub fn profile() -> Vec<Service> {
    let service = |name: &str, role| Service {
        name: name.to_owned(),
        role,
        unit: format!("snap.microk8s.daemon-{name}.service"),
        snap: Some(format!("microk8s.daemon-{name}")),
        ready: (role == Role::ApiServer).then(|| "/readyz".to_owned()),
    };
    vec![service("kubelite", Role::ApiServer), service("cluster-agent", Role::LoadsCertificateOnce)]
}

fn cluster(now: Now) -> Cluster {
    let year = Duration::from_secs(365 * 86_400);
    let key = PublicKey(vec![1]);
    let authority_key = PublicKey(vec![2]);
    let leaf = Leaf {
        sans: sans(CONFIGURED),
        refused_sans: Vec::new(),
        other_names: Vec::new(),
        subject: b"GB Canonical 127.0.0.1".to_vec(),
        issuer: b"ca".to_vec(),
        public_key: key.clone(),
        usage: Usage { server_auth: true, client_auth: true, digital_signature: true, is_ca: false },
        refused_signature: None,
        authority_key_id: None,
        authority_serial: None,
        not_before: now.wall - Duration::from_secs(86_400),
        not_after: now.wall + year / 2,
        fingerprint: Fingerprint([7; 32]),
    };
    let authority = AuthorityCertificate {
        subject: b"ca".to_vec(),
        public_key: authority_key.clone(),
        not_before: now.wall - year,
        not_after: now.wall + year * 9,
        self_signed: true,
        key_id: Some(b"ca key".to_vec()),
        serial: vec![1],
        cannot_sign: None,
    };
    Cluster {
        profile: "microk8s".to_owned(),
        hostname: "node-1".to_owned(),
        arguments: Arguments {
            switches_known: true,
            service_cidrs: vec!["10.152.183.0/24".parse().expect("a net")],
            pod_cidrs: vec!["10.1.0.0/16".parse().expect("a net")],
            secure_port: 16443,
            kubelet_port: 10250,
            ..Arguments::default()
        },
        locks: BTreeMap::new(),
        locks_unreadable: None,
        joining: None,
        host_access: None,
        template: Some(Ok(Template {
            text: "#MOREIPS\n".to_owned(),
            sans: sans(CONFIGURED).into_iter().collect(),
            subject: vec![("C".to_owned(), "GB".to_owned()), ("CN".to_owned(), "127.0.0.1".to_owned())],
            marker: true,
            place: Some(0.."#MOREIPS".len()),
            overridden: Vec::new(),
            validity: None,
        })),
        request: None,
        join_tokens: JoinTokens::default(),
        foreign_unreadable: None,
        certificates: vec![CertificateFacts {
            name: "server".to_owned(),
            path: "certs/server.crt".into(),
            leaf: Ok(leaf),
            key: Ok(key),
            authority: Ok(Authority { certificates: vec![authority], signer: Some(0) }),
            authority_key: Ok(authority_key),
            issued_by_authority: Some(true),
            issued_by_foreign: false,
            elsewhere: None,
            role: CertificateRole::ApiServer,
            subject: Vec::new(),
        }],
    }
}
