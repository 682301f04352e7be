//! What the operator may say about addresses: pins, and the conditions of `[[addresses.rule]]`.
//!
//! In: one value as written. Out: the checked value, or the rest of the sentence "`addresses.pin` …" that says what is
//! wrong and what to write instead. The rule of this file: a condition that could never match is a mistake, not a rule.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::suggest::nearest;

/// Managers that mark their addresses (`IFA_PROTO`, Linux 5.18), by the values they write. The kernel's own 1 to 3
/// (`IFAPROT_KERNEL_LO`, `_RA`, `_LL`) say nothing about an owner and are written as numbers if need be.
const PROTOCOLS: [(&str, u8); 2] = [("keepalived", 18), ("ovn", 85)];

/// What a protocol is, for messages.
pub(super) const PROTOCOL_MUST: &str = "must be a number from 1 to 255, \"keepalived\" or \"ovn\"";

/// `IFNAMSIZ` less the closing zero.
const LONGEST_NAME: usize = 15;

/// An address to pin.
pub(super) fn pin(text: &str) -> Result<IpAddr, String> {
    let value = address(text)?;
    match refused_as_pin(value) {
        Some(why) => Err(format!("must hold addresses that a node can have: {value} is {why}")),
        None => Ok(value),
    }
}

/// Why a value cannot be a node's address, whatever the operator says: what kubelet refuses as `--node-ip`, for the
/// same reasons. Such a value can still be one of `extra_sans`.
pub const fn refused_as_pin(value: IpAddr) -> Option<&'static str> {
    if value.is_unspecified() {
        return Some("the unspecified address");
    }
    if value.is_loopback() {
        return Some("a loopback address");
    }
    if value.is_multicast() {
        return Some("a multicast address");
    }
    match value {
        IpAddr::V4(v4) if v4.is_broadcast() => Some("the broadcast address"),
        // RFC 1122 section 3.2.1.3: "this host on this network".
        IpAddr::V4(v4) if v4.octets()[0] == 0 => Some("in 0.0.0.0/8, which is no host's address"),
        IpAddr::V4(v4) if v4.is_link_local() => Some("a link-local address"),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Some("a link-local address"),
        _ => None,
    }
}

/// One address, without prefix length or zone.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    let Ok(value) = text.parse::<IpAddr>() else {
        let hint = match text.split_once(['/', '%']) {
            Some((head, _)) if head.parse::<IpAddr>().is_ok() => format!("; write {head}"),
            _ => String::new(),
        };
        return Err(format!("must hold IP addresses, such as 192.0.2.10 or 2001:db8::10, not {}{hint}", quoted(text)));
    };
    match value.to_canonical() {
        canonical if canonical == value => Ok(value),
        // No link ever carries the mapped form, and Go refuses a certificate that does.
        canonical => Err(format!("holds {value}, an IPv4 address in IPv6 form; write {canonical}")),
    }
}

/// A network, with no bit set beyond its prefix.
pub(super) fn network(text: &str) -> Result<IpNet, String> {
    let Ok(net) = text.parse::<IpNet>() else {
        let hint = if text.parse::<IpAddr>().is_ok() { " (one address goes into `address`)" } else { "" };
        return Err(format!("must be a network, such as 192.0.2.0/24 or 2001:db8::/64, not {}{hint}", quoted(text)));
    };
    if net != net.trunc() {
        return Err(format!(
            "has bits set beyond its prefix: {net}; write {}, or use `address` for the one address",
            net.trunc()
        ));
    }
    match net {
        IpNet::V6(v6) if v6.network().to_ipv4_mapped().is_some() => {
            Err(format!("holds {net}, IPv4 addresses in IPv6 form; write them as IPv4"))
        }
        _ => Ok(net),
    }
}

/// A link name, perhaps with `*` and `?`, that a link could have (`dev_valid_name` in net/core/dev.c).
pub(super) fn interface(text: &str) -> Result<String, String> {
    let fixed = text.chars().filter(|c| *c != '*').map(char::len_utf8).sum::<usize>();
    if text.is_empty() {
        Err("must be an interface name, such as eth0 or enp*, and is empty".to_owned())
    } else if text.contains(':') {
        Err(format!("must be an interface name; {} is a label, and labels are not identity", quoted(text)))
    } else if text.contains(|c: char| c == '/' || c.is_whitespace() || c.is_control()) {
        Err(format!("must be an interface name, such as eth0 or enp*, not {}", quoted(text)))
    } else if fixed > LONGEST_NAME {
        Err(format!("is {}, longer than the {LONGEST_NAME} bytes an interface name can have", quoted(text)))
    } else {
        Ok(text.to_owned())
    }
}

/// A link kind as `ip -d link` prints it.
pub(super) fn kind(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
    {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "must be a link kind as `ip -d link` prints it, such as dummy, bridge or physical, not {}",
            quoted(text)
        ))
    }
}

/// `IFA_PROTO` by name or as a number in quotes.
pub(super) fn protocol_name(text: &str) -> Result<u8, String> {
    if let Some((_, value)) = PROTOCOLS.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    if let Ok(number) = text.parse::<i64>() {
        return protocol_number(number);
    }
    let hint = match nearest(text, PROTOCOLS.map(|(name, _)| name)) {
        Some(name) => format!("; did you mean {name:?}?"),
        None => String::new(),
    };
    Err(format!("{PROTOCOL_MUST}, not {}{hint}", quoted(text)))
}

/// `IFA_PROTO` as a number. Zero is `IFAPROT_UNSPEC`: what every address without a manager has.
pub(super) fn protocol_number(number: i64) -> Result<u8, String> {
    u8::try_from(number).ok().filter(|value| *value != 0).ok_or_else(|| format!("{PROTOCOL_MUST}, not {number}"))
}

/// A text of the file in a message: quoted, escaped, and cut before it fills the screen.
pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_an_address_a_node_can_have() {
        for good in ["192.0.2.10", "2001:db8::10", "fd00::1", "10.1.2.3", "100.64.0.1"] {
            assert_eq!(pin(good).map(|v| v.to_string()).as_deref(), Ok(good));
        }
        for (bad, why) in [
            ("0.0.0.0", "the unspecified address"),
            ("::", "the unspecified address"),
            ("127.0.0.1", "a loopback address"),
            ("::1", "a loopback address"),
            ("224.0.0.18", "a multicast address"),
            ("ff02::12", "a multicast address"),
            ("255.255.255.255", "the broadcast address"),
            ("0.1.2.3", "in 0.0.0.0/8, which is no host's address"),
            ("169.254.169.254", "a link-local address"),
            ("fe80::1", "a link-local address"),
            ("febf::1", "a link-local address"),
        ] {
            let expected = format!("must hold addresses that a node can have: {bad} is {why}");
            assert_eq!(pin(bad), Err(expected));
        }
    }

    #[test]
    fn an_address_in_another_form_says_which_form_to_write() {
        assert_eq!(
            pin("::ffff:192.0.2.10").expect_err("mapped"),
            "holds ::ffff:192.0.2.10, an IPv4 address in IPv6 form; write 192.0.2.10"
        );
        assert!(pin("::ffff:127.0.0.1").is_err());
        assert!(pin("192.0.2.10/24").expect_err("a network").ends_with("; write 192.0.2.10"));
        assert!(pin("fe80::1%eth0").expect_err("a zone").ends_with("; write fe80::1"));
        for bad in ["", "eth0", "192.0.2", "192.0.2.010", "1.2.3.4.5", "2001:db8:::1", " 192.0.2.1", "/", "%"] {
            assert!(pin(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_network_is_written_as_one() {
        assert_eq!(network("192.0.2.0/24").map(|n| n.to_string()).as_deref(), Ok("192.0.2.0/24"));
        assert_eq!(network("0.0.0.0/0").map(|n| n.to_string()).as_deref(), Ok("0.0.0.0/0"));
        assert_eq!(network("::/0").map(|n| n.to_string()).as_deref(), Ok("::/0"));
        assert_eq!(
            network("192.0.2.7/24").expect_err("host bits"),
            "has bits set beyond its prefix: 192.0.2.7/24; write 192.0.2.0/24, or use `address` for the one address"
        );
        assert!(network("192.0.2.7").expect_err("no prefix").ends_with("(one address goes into `address`)"));
        for bad in ["192.0.2.0/33", "2001:db8::/129", "192.0.2.0/-1", "10/8", "::ffff:192.0.2.0/120", ""] {
            assert!(network(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_interface_is_a_name_that_a_link_could_have() {
        for good in ["eth0", "*", "enp*s?", "br-0123456789ab", "vlan[1]", "a.b", "***************a"] {
            assert_eq!(interface(good).as_deref(), Ok(good));
        }
        for bad in ["", "eth0:vip", "a b", "a/b", "eth\n0", "abcdefghijklmnop", "????????????????"] {
            assert!(interface(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn protocols_have_names_and_numbers() {
        assert_eq!(protocol_name("keepalived"), Ok(18));
        assert_eq!(protocol_name("ovn"), Ok(85));
        assert_eq!(protocol_name("255"), Ok(255));
        for bad in ["0", "256", "-1", "", "99999999999999999999", "Ovn"] {
            assert!(protocol_name(bad).is_err(), "{bad:?}");
        }
        assert!(protocol_name("keepalive").expect_err("a slip").ends_with("; did you mean \"keepalived\"?"));
        assert!(protocol_number(0).is_err());
        assert!(protocol_number(i64::MIN).is_err());
    }

    #[test]
    fn a_hostile_text_is_escaped_and_cut() {
        let message = kind(&"\u{1b}[2J".repeat(1000)).expect_err("not a kind");
        assert!(message.len() < 400, "{}", message.len());
        assert!(!message.contains('\u{1b}'));
    }
}
