//! The `server` of a kubeconfig: where the API server is.
//!
//! In: the URL. Out: host, port and path, or why it cannot be used. The rule of this file: every part can go into a
//! request as it is, so nothing that could end a line or begin another header gets through.

use rustls_pki_types::ServerName;

/// Where an API server is, and by what name it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Name or address, without brackets.
    pub host: String,
    /// 443 where the URL has none.
    pub port: u16,
    /// What stands before every path that is asked for: `/k8s/clusters/c-1`, mostly nothing. No `/` at its end.
    pub path: String,
    /// The name that its certificate must have: `tls-server-name`, else the host.
    pub verified_as: ServerName<'static>,
}

impl Server {
    /// Reads the URL, and the name that replaces its host for the verification.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(super) fn parse(url: &str, tls_server_name: Option<&str>) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("it does not begin with https://")?;
        if scheme.eq_ignore_ascii_case("http") {
            return Err("it is not https, and credentials are not sent in the clear");
        }
        if !scheme.eq_ignore_ascii_case("https") {
            return Err("it does not begin with https://");
        }
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("it has a blank, or a character that is not ASCII");
        }
        if rest.contains(['?', '#', '@', '\\', '"']) {
            return Err("it has more in it than a host, a port and a path");
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((literal, "")) => (literal, None),
            Some((literal, port)) => (literal, Some(port.strip_prefix(':').ok_or("its port makes no sense")?)),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            None => 443,
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().ok().filter(|port| *port != 0).ok_or("its port makes no sense")?
            }
            Some(_) => return Err("its port makes no sense"),
        };
        let of_host = ServerName::try_from(host).map_err(|_| "its host is neither a name nor an address")?;
        let verified_as = match tls_server_name {
            Some(name) => ServerName::try_from(name).map_err(|_| "tls-server-name is neither a name nor an address")?,
            None => of_host,
        };
        Ok(Self {
            host: host.to_owned(),
            port,
            path: path.trim_end_matches('/').to_owned(),
            verified_as: verified_as.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_and_path_are_told_apart() {
        for (url, expected) in [
            ("https://127.0.0.1:16443", ("127.0.0.1", 16443, "")),
            ("https://127.0.0.1:16443/", ("127.0.0.1", 16443, "")),
            ("https://[::1]:6443", ("::1", 6443, "")),
            ("https://[2001:db8::1]", ("2001:db8::1", 443, "")),
            ("HTTPS://K8s.example.com", ("K8s.example.com", 443, "")),
            ("https://rancher.example.com/k8s/clusters/c-1/", ("rancher.example.com", 443, "/k8s/clusters/c-1")),
            ("https://h:65535/a//", ("h", 65535, "/a")),
        ] {
            let server = Server::parse(url, None).expect(url);
            assert_eq!((server.host.as_str(), server.port, server.path.as_str()), expected);
            assert_eq!(server.verified_as, ServerName::try_from(expected.0).expect("a name"));
        }
        let other = Server::parse("https://127.0.0.1:16443", Some("kubernetes.default")).expect("it is one");
        assert_eq!(other.verified_as, ServerName::try_from("kubernetes.default").expect("a name"));
        assert_eq!(other.host, "127.0.0.1");
    }

    #[test]
    fn what_cannot_go_into_a_request_is_refused() {
        for url in [
            "",
            "127.0.0.1:16443",
            "http://127.0.0.1:8080",
            "ftp://h",
            "https://",
            "https://:6443",
            "https://h:0",
            "https://h:65536",
            "https://h:+1",
            "https://h:",
            "https://[::1",
            "https://[::1]6443",
            "https://[fe80::1%eth0]:6443",
            "https://::1:6443",
            "https://user:word@h",
            "https://h/?a=b",
            "https://h/#a",
            "https://h/a b",
            "https://h/\r\nX-Evil: 1",
            "https://h\n",
            "https://h\u{e4}",
            "https://h/\u{0}",
            "https://-/",
            "https://a..b",
        ] {
            assert!(Server::parse(url, None).is_err(), "{url:?}: {:?}", Server::parse(url, None));
        }
        assert!(Server::parse("https://h", Some("a b")).is_err());
        assert!(Server::parse("https://h", Some("")).is_err());
    }
}
