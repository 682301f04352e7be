//! The names the server certificate needs, and those it keeps.
//!
//! In: configured names, the primary set, the certificate as it is, the state. Out: a [`SanPlan`]. The rule of this
//! file: compare sets, never text; a superset is in step; a name that ipguard did not put there is kept for ever, one
//! that it added goes only when a certificate is made anyway and nothing has asked for it for `retain`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::config::{Config, SecondaryPolicy};
use crate::decide::plan::SanPlan;
use crate::decide::state::State;
use crate::decide::verdict::{Class, Classification};
use crate::facts::cluster::{Arguments, Cluster, Template};
use crate::facts::san::{San, SanSet};
use crate::facts::time::Now;

/// Most names a certificate gets: every client downloads them in each handshake, and a pod with host network could
/// add addresses without end.
pub const MOST_SANS: usize = 256;

/// Names that configuration asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configured {
    /// Template entries, service addresses, pins, `extra_sans`.
    pub sans: SanSet,
    /// Whether every source could be read. If not, nothing may be dropped.
    pub complete: bool,
    /// The template's names and no others: it has no marker.
    pub manual: bool,
}

/// Collects the configured names.
pub fn configured(cluster: &Cluster, config: &Config) -> Configured {
    let mut sans: SanSet = config.certificate.extra_sans.iter().cloned().collect();
    let template: Option<&Template> = cluster.template.as_ref().and_then(|read| read.as_ref().ok());
    let readable = cluster.template.as_ref().is_none_or(Result::is_ok);
    sans.extend(template.into_iter().flat_map(|t| t.sans.iter().cloned()));
    let manual = template.is_some_and(|t| !t.marker);
    if !manual {
        sans.extend(pins(&cluster.arguments, config).map(|(value, _)| San::ip(value)));
        sans.extend(cluster.arguments.service_cidrs.iter().filter_map(first_host).map(San::ip));
        sans.insert(San::ip(IpAddr::from([127, 0, 0, 1])));
    }
    Configured { sans, complete: readable && cluster.arguments.errors.is_empty(), manual }
}

/// Every pinned address with who pins it.
pub fn pins<'a>(arguments: &'a Arguments, config: &'a Config) -> impl Iterator<Item = (IpAddr, &'static str)> + 'a {
    let flags = [(arguments.advertise.address(), "--advertise-address"), (arguments.bind.address(), "--bind-address")];
    config
        .addresses
        .pin
        .iter()
        .map(|value| (*value, "[addresses] pin"))
        .chain(flags.into_iter().filter_map(|(value, flag)| Some((value?, flag))))
        .chain(arguments.node_ips.iter().map(|value| (*value, "--node-ip")))
        .map(|(value, who)| (value.to_canonical(), who))
        .filter(|(value, _)| !value.is_loopback())
}

/// The first address of a service network: `kubernetes.default` lives there.
fn first_host(cidr: &ipnet::IpNet) -> Option<IpAddr> {
    match cidr {
        ipnet::IpNet::V4(net) => {
            u32::from(net.network()).checked_add(1).map(|n| IpAddr::from(std::net::Ipv4Addr::from(n)))
        }
        ipnet::IpNet::V6(net) => {
            u128::from(net.network()).checked_add(1).map(|n| IpAddr::from(std::net::Ipv6Addr::from(n)))
        }
    }
}

/// Weighs what is demanded against what the certificate has.
pub fn weigh(
    configured: &Configured,
    classes: &Classification,
    node: &BTreeSet<IpAddr>,
    certificate: &SanSet,
    config: &Config,
    state: &State,
    now: Now,
) -> SanPlan {
    let mut desired = configured.sans.clone();
    if !configured.manual {
        desired.extend(classes.primary().into_iter().map(San::ip));
    }
    let left_out = leave_out(&mut desired, configured, node, certificate, state);
    let dropped: SanSet = if configured.complete && !configured.manual {
        certificate.difference(&desired).filter(|san| expired(san, classes, config, state, now)).cloned().collect()
    } else {
        SanSet::new()
    };
    SanPlan {
        missing: desired.difference(certificate).cloned().collect(),
        extra: certificate.difference(&desired).cloned().collect(),
        certificate: certificate.clone(),
        dropped,
        left_out,
        desired,
    }
}

/// Names of the certificate to be made.
pub fn of_new_certificate(
    plan: &SanPlan,
    configured: &Configured,
    classes: &Classification,
    config: &Config,
) -> SanSet {
    let mut sans = plan.desired.clone();
    if configured.manual && configured.complete {
        return sans;
    }
    for san in plan.extra.difference(&plan.dropped) {
        // What the certificate has is kept in any number: dropping it locks out whoever uses it.
        sans.insert(san.clone());
    }
    if config.addresses.secondary == SecondaryPolicy::Include {
        let secondary = classes.verdicts.iter().filter(|v| v.class == Class::Secondary).map(|v| San::ip(v.address));
        for san in secondary {
            if sans.len() < MOST_SANS {
                sans.insert(san);
            }
        }
    }
    sans
}

/// What a certificate that cannot be read any more is known to have named and would still name: the addresses that were
/// lost and the names that were added, as long as they are kept.
pub fn remembered(classes: &Classification, config: &Config, state: &State, now: Now) -> SanSet {
    let lost = classes.memory.lost.iter().map(|lost| San::ip(lost.address));
    let added = state.added.iter().map(|added| &added.san).filter(|san| !expired(san, classes, config, state, now));
    lost.chain(added.cloned()).collect()
}

/// Takes the newest addresses out of a set that is too large: never configured ones, the node's, or what is there.
fn leave_out(
    desired: &mut SanSet,
    configured: &Configured,
    node: &BTreeSet<IpAddr>,
    certificate: &SanSet,
    state: &State,
) -> SanSet {
    let kept_extra = certificate.difference(desired).count();
    let excess = (desired.len() + kept_extra).saturating_sub(MOST_SANS);
    if excess == 0 {
        return SanSet::new();
    }
    let since = |san: &San| {
        let accepted = state.accepted.iter().find(|a| Some(a.address) == san.as_ip());
        // Never seen is newest.
        accepted.map_or(i64::MAX, |a| a.since.millis())
    };
    let mut removable: Vec<San> = desired
        .iter()
        .filter(|san| !configured.sans.contains(san) && !certificate.contains(san))
        .filter(|san| san.as_ip().is_some_and(|ip| !node.contains(&ip)))
        .cloned()
        .collect();
    removable.sort_by_key(|san| (std::cmp::Reverse(since(san)), san.clone()));
    let left_out: SanSet = removable.into_iter().take(excess).collect();
    desired.retain(|san| !left_out.contains(san));
    left_out
}

/// Whether ipguard added the name and nothing has asked for it for `retain`.
fn expired(san: &San, classes: &Classification, config: &Config, state: &State, now: Now) -> bool {
    let on_host = san.as_ip().is_some_and(|ip| classes.verdict(ip).is_some());
    let added = state.added.iter().find(|a| a.san == *san);
    !on_host
        && added.and_then(|a| a.unneeded_since).is_some_and(|since| now.wall.since(since) > config.certificate.retain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_address_of_a_service_network() {
        for (cidr, first) in
            [("10.152.183.0/24", "10.152.183.1"), ("fd98::/108", "fd98::1"), ("10.0.0.7/24", "10.0.0.1")]
        {
            let cidr: ipnet::IpNet = cidr.parse().expect("a network");
            assert_eq!(first_host(&cidr).expect("not the last network").to_string(), first);
        }
    }
}
