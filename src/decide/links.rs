//! Whose link is it: names (and kinds, where a name alone is weak) that load balancers, CNIs, container engines and
//! VPNs give to the links they make.
//!
//! In: a link's name and kind. Out: the owner and what its addresses are. The rule of this file: a table, one owner a
//! line, sources beside it; whether a match counts is for `classify.rs` to say. Configuration extends and overrides it
//! with `[[addresses.rule]]`, which is asked first.
//!
//! Deliberately absent, since the node's own address lives there: `br-ex`, `breth0`, `br0`, `vmbr0`, bonds, VLANs.

use crate::decide::verdict::Class;
use crate::facts::network::Link;

/// A known owner of links.
#[derive(Debug)]
pub struct Owner {
    /// Who makes the link.
    pub name: &'static str,
    /// What its addresses are.
    pub class: Class,
    /// A VPN: its link needs a pin even when it carries the default route, since a tunnel that takes the route over
    /// is not the node moving.
    pub vpn: bool,
    pattern: Pattern,
    /// Kinds the name must come with; empty when the name alone is strong.
    kinds: &'static [&'static str],
}

/// How a link name is recognised.
#[derive(Debug)]
enum Pattern {
    Exact(&'static str),
    Prefix(&'static str),
    /// The prefix and exactly so many lower-case hexadecimal digits.
    Hex(&'static str, usize),
    /// The prefix and decimal digits only, at least one.
    Number(&'static str),
}

const fn owned(name: &'static str, pattern: Pattern, kinds: &'static [&'static str]) -> Owner {
    Owner { name, class: Class::LbOwned, vpn: false, pattern, kinds }
}

const fn container(name: &'static str, pattern: Pattern, kinds: &'static [&'static str]) -> Owner {
    Owner { name, class: Class::Ignored, vpn: false, pattern, kinds }
}

const fn vpn(name: &'static str, pattern: Pattern) -> Owner {
    Owner { name, class: Class::Ignored, vpn: true, pattern, kinds: &[] }
}

use Pattern::{Exact, Hex, Number, Prefix};

/// Every known owner; the first match counts, so a longer name stands before its prefix.
pub static OWNERS: &[Owner] = &[
    // Load balancers and VIP managers.
    owned("PureLB remote pool", Exact("kube-lb0"), &[]),
    owned("kube-proxy IPVS", Exact("kube-ipvs0"), &[]),
    owned("kube-router service addresses", Exact("kube-dummy-if"), &[]),
    owned("NodeLocal DNSCache", Exact("nodelocaldns"), &[]),
    owned("kube-vip DHCP service", Hex("vip-", 8), &["macvlan"]),
    owned("keepalived VMAC", Number("vrrp."), &["macvlan", "ipvlan"]),
    owned("LoxiLB cluster", Number("vxlan"), &["vxlan"]),
    owned("Antrea Egress", Exact("antrea-egress0"), &[]),
    owned("Antrea ServiceExternalIP", Exact("antrea-ingress0"), &[]),
    owned("Antrea external network", Number("antrea-ext."), &[]),
    // CNIs. tunl0 and tun-<hash> stand before the VPNs' tun*.
    owned("Calico VXLAN", Exact("vxlan.calico"), &[]),
    owned("Calico VXLAN IPv6", Exact("vxlan-v6.calico"), &[]),
    owned("Calico IPIP", Exact("tunl0"), &[]),
    owned("Calico WireGuard", Exact("wireguard.cali"), &[]),
    owned("Calico WireGuard IPv6", Exact("wg-v6.cali"), &[]),
    owned("Calico eBPF", Exact("bpfin.cali"), &[]),
    owned("Calico eBPF", Exact("bpfout.cali"), &[]),
    owned("Calico workload", Prefix("cali"), &["veth"]),
    owned("AWS VPC CNI workload", Prefix("eni"), &["veth"]),
    owned("Azure CNI workload", Prefix("azv"), &["veth"]),
    owned("GKE workload", Prefix("gke"), &["veth"]),
    owned("Flannel", Prefix("flannel."), &[]),
    owned("Flannel IPv6", Prefix("flannel-v6."), &[]),
    owned("Flannel WireGuard", Exact("flannel-wg"), &[]),
    owned("Flannel WireGuard IPv6", Exact("flannel-wg-v6"), &[]),
    owned("Flannel UDP", Exact("flannel0"), &[]),
    owned("CNI bridge", Exact("cni0"), &[]),
    owned("kubenet bridge", Exact("cbr0"), &[]),
    owned("kube-router bridge", Exact("kube-bridge"), &[]),
    owned("kube-router tunnel", Prefix("tun-"), &["ipip", "ip6tnl"]),
    owned("Cilium", Prefix("cilium_"), &[]),
    owned("Cilium workload", Prefix("lxc"), &["veth", "netkit"]),
    owned("Kube-OVN", Exact("ovn0"), &[]),
    owned("OVN-Kubernetes management port", Number("ovn-k8s-mp"), &[]),
    owned("Antrea gateway", Exact("antrea-gw0"), &[]),
    owned("Antrea tunnel", Exact("antrea-tun0"), &[]),
    owned("Antrea WireGuard", Exact("antrea-wg0"), &[]),
    owned("Weave bridge", Exact("weave"), &["bridge", "openvswitch"]),
    owned("Weave workload", Prefix("vethwe-"), &[]),
    owned("Weave fast datapath", Exact("datapath"), &["openvswitch"]),
    owned("container workload", Prefix("veth"), &["veth"]),
    // Container engines and virtual machines: the host's end of a private network.
    container("Docker bridge", Exact("docker0"), &[]),
    container("Docker swarm bridge", Exact("docker_gwbridge"), &[]),
    container("Docker network", Hex("br-", 12), &["bridge"]),
    container("Podman CNI bridge", Prefix("cni-podman"), &[]),
    container("Podman bridge", Prefix("podman"), &[]),
    container("libvirt bridge", Prefix("virbr"), &[]),
    container("LXD bridge", Prefix("lxdbr"), &[]),
    container("LXC bridge", Prefix("lxcbr"), &[]),
    container("Incus bridge", Prefix("incusbr"), &[]),
    container("Multipass bridge", Prefix("mpqemubr"), &[]),
    container("macvlan shim", Prefix("mac"), &["macvlan", "ipvlan"]),
    // VPNs.
    vpn("Tailscale", Prefix("tailscale")),
    vpn("ZeroTier", Prefix("zt")),
    vpn("WireGuard", Prefix("wg")),
    vpn("NetBird", Exact("wt0")),
    vpn("Kilo", Exact("kilo0")),
    vpn("tunnel", Prefix("tun")),
    vpn("tunnel", Prefix("tap")),
];

/// The known owner of a link. With `kinds_known` false (polling) a name that needs a kind counts by itself.
pub fn owner(link: &Link, kinds_known: bool) -> Option<&'static Owner> {
    OWNERS.iter().find(|owner| {
        let kind_fits = owner.kinds.is_empty()
            || link.kind.as_deref().is_some_and(|kind| owner.kinds.contains(&kind))
            || !kinds_known;
        kind_fits && owner.pattern.matches(&link.name.0)
    })
}

impl Pattern {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Exact(text) => name == text.as_bytes(),
            Prefix(text) => name.starts_with(text.as_bytes()),
            Hex(text, digits) => name.strip_prefix(text.as_bytes()).is_some_and(|rest| {
                rest.len() == *digits && rest.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
            }),
            Number(text) => name
                .strip_prefix(text.as_bytes())
                .is_some_and(|rest| !rest.is_empty() && rest.iter().all(u8::is_ascii_digit)),
        }
    }
}

/// Whether a name matches a pattern with `*` (any run) and `?` (one byte), as in `[[addresses.rule]] interface`.
pub fn glob(pattern: &str, name: &[u8]) -> bool {
    // Backtracking over the last star only is enough for a pattern language without alternatives.
    let pattern = pattern.as_bytes();
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&b) if b == b'?' || b == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    p = at + 1;
                    n = taken + 1;
                    star = Some((at, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&b| b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::network::LinkName;

    fn owner_of(name: &str, kind: Option<&str>) -> Option<&'static str> {
        let link = Link { name: LinkName::from(name), kind: kind.map(str::to_owned), ..Link::default() };
        owner(&link, true).map(|o| o.name)
    }

    #[test]
    fn names_and_kinds() {
        let cases = [
            ("kube-lb0", Some("dummy"), Some("PureLB remote pool")),
            ("vxlan.calico", Some("vxlan"), Some("Calico VXLAN")),
            ("flannel.1", Some("vxlan"), Some("Flannel")),
            ("tunl0", Some("ipip"), Some("Calico IPIP")),
            ("tun-0a1b2c3d", Some("ipip"), Some("kube-router tunnel")),
            ("tun0", Some("tun"), Some("tunnel")),
            ("br-0123456789ab", Some("bridge"), Some("Docker network")),
            ("br-0123456789abc", Some("bridge"), None),
            ("br-0123456789AB", Some("bridge"), None),
            // The node's own address lives on these.
            ("br-ex", Some("openvswitch"), None),
            ("breth0", Some("openvswitch"), None),
            ("vmbr0", Some("bridge"), None),
            ("eth0", None, None),
            ("eth0", Some("veth"), None),
            ("bond0.100", Some("vlan"), None),
            // A weak name needs its kind: a board may well call its NIC `enibob` or `lxc0`.
            ("eni1234", Some("veth"), Some("AWS VPC CNI workload")),
            ("eni1234", None, None),
            ("lxcbr0", Some("bridge"), Some("LXC bridge")),
            ("macvtap0", None, None),
            ("vip-0badcafe", Some("macvlan"), Some("kube-vip DHCP service")),
            ("vrrp.51", Some("macvlan"), Some("keepalived VMAC")),
            ("vrrp.eth", Some("macvlan"), None),
        ];
        for (name, kind, expected) in cases {
            assert_eq!(owner_of(name, kind), expected, "{name} {kind:?}");
        }
    }

    #[test]
    fn no_owner_is_shadowed_by_an_earlier_one() {
        for (index, owner) in OWNERS.iter().enumerate() {
            let name = match owner.pattern {
                Exact(text) => text.to_owned(),
                Prefix(text) => format!("{text}x"),
                Hex(text, digits) => format!("{text}{}", "a".repeat(digits)),
                Number(text) => format!("{text}7"),
            };
            let link = Link {
                name: LinkName::from(name.as_str()),
                kind: owner.kinds.first().map(|k| (*k).to_owned()),
                ..Link::default()
            };
            let found = super::owner(&link, true).map(std::ptr::from_ref);
            assert_eq!(found, Some(std::ptr::from_ref(&OWNERS[index])), "{name}");
        }
    }

    #[test]
    fn globs() {
        for (pattern, name, expected) in [
            ("eth*", "eth0", true),
            ("*", "", true),
            ("e?h0", "eth0", true),
            ("*.100", "bond0.100", true),
            ("a*b*c", "aXbXbXc", true),
            ("a*b*c", "aXbX", false),
            ("eth", "eth0", false),
        ] {
            assert_eq!(glob(pattern, name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
