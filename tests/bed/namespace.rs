//! Words of `ip` commands.

use crate::stage::namespace::through_ipv6;

#[test]
fn only_plain_ipv6_routes_get_the_family_option() {
    let is_ipv6 = |text: &str| through_ipv6(&text.split_whitespace().collect::<Vec<_>>());
    assert!(is_ipv6("route add default via fe80::1 dev eth0 proto ra metric 1024"));
    assert!(!is_ipv6("route add default proto bgp src 10.20.0.7 nexthop via inet6 fe80::1 dev eth0"));
    assert!(!is_ipv6("addr add 2001:db8::1/64 dev eth0"));
    assert!(!is_ipv6("route add default via 192.0.2.1 dev eth0"));
}
