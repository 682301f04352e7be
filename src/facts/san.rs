//! Subject alternative names in one canonical form, so that sets can be compared and text never is.
//!
//! IPv4-mapped IPv6 becomes IPv4 (Go refuses a certificate that holds the mapped form), DNS names become lower-case
//! ASCII letters, digits and hyphens with an optional leading `*.` (RFC 5280 section 4.2.1.6, RFC 5890 LDH).

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One name a certificate is valid for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum San {
    /// A host name, lower case. Ordered before addresses, as the template has them.
    Dns(DnsName),
    /// An address, never IPv4-mapped.
    Ip(IpAddr),
}

/// A DNS name that Go's x509 and OpenSSL both accept. Only [`DnsName::new`] makes one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName(String);

/// A set of names: order and duplicates never matter.
pub type SanSet = BTreeSet<San>;

/// Why a text is no SAN.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither an IP address nor a DNS name: {why}")]
pub struct NotASan {
    /// As written.
    pub text: String,
    /// What a verifier would trip over.
    pub why: &'static str,
}

impl San {
    /// An address in canonical form.
    pub const fn ip(value: IpAddr) -> Self {
        Self::Ip(value.to_canonical())
    }

    /// The address, if it is one.
    pub const fn as_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Ip(value) => Some(*value),
            Self::Dns(_) => None,
        }
    }
}

impl DnsName {
    /// Checks and lower-cases a name.
    ///
    /// # Errors
    /// Says what is wrong: RFC 1123 section 2.1 for the labels, 253 and 63 octets for the lengths.
    pub fn new(text: &str) -> Result<Self, NotASan> {
        let refuse = |why| Err(NotASan { text: text.to_owned(), why });
        let host = text.strip_prefix("*.").unwrap_or(text);
        if host.is_empty() {
            return refuse("it is empty");
        }
        if text.len() > 253 {
            return refuse("it is longer than 253 characters");
        }
        for label in host.split('.') {
            if label.is_empty() {
                return refuse("a label is empty (a leading, trailing or double dot)");
            }
            if label.len() > 63 {
                return refuse("a label is longer than 63 characters");
            }
            // The underscore is outside LDH, but Kubernetes node names and Go's verifier know it.
            if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
                return refuse("only letters, digits, hyphens, dots and a leading *. are allowed");
            }
            if label.starts_with('-') || label.ends_with('-') {
                return refuse("a label starts or ends with a hyphen");
            }
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    /// As text, lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for San {
    type Err = NotASan;
    fn from_str(text: &str) -> Result<Self, NotASan> {
        match text.parse::<IpAddr>() {
            Ok(value) => Ok(Self::ip(value)),
            Err(_) if text.contains(':') => {
                Err(NotASan { text: text.to_owned(), why: "it has a colon but is not an IPv6 address" })
            }
            Err(_) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') => {
                Err(NotASan { text: text.to_owned(), why: "it looks like an IPv4 address but is not one" })
            }
            Err(_) => DnsName::new(text).map(Self::Dns),
        }
    }
}

impl TryFrom<String> for San {
    type Error = NotASan;
    fn try_from(text: String) -> Result<Self, NotASan> {
        text.parse()
    }
}

impl From<San> for String {
    fn from(san: San) -> Self {
        san.to_string()
    }
}

impl fmt::Display for San {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name.as_str()),
            Self::Ip(value) => write!(f, "{value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn san(text: &str) -> Result<String, &'static str> {
        text.parse::<San>().map(|s| s.to_string()).map_err(|e| e.why)
    }

    #[test]
    fn forms_of_one_address_are_one_san() {
        assert_eq!(san("2001:DB8:0001:0:0:0:0:10").as_deref(), Ok("2001:db8:1::10"));
        assert_eq!(san("::ffff:192.0.2.10").as_deref(), Ok("192.0.2.10"));
    }

    #[test]
    fn names_are_lower_case_and_checked() {
        assert_eq!(san("K8s.Example.COM").as_deref(), Ok("k8s.example.com"));
        assert_eq!(san("*.example.com").as_deref(), Ok("*.example.com"));
        for bad in ["", "*.", "a..b", ".a", "a.", "-a", "a-", "müller", "a b", "10.0.0.300", "fe80::zz", "a.*.b"] {
            assert!(san(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(san(&"a".repeat(64)).is_err());
        assert!(san(&["abc"; 70].join(".")).is_err());
    }
}
