//! Asks an API server which addresses the `kubernetes` Service lists: one request, once.
//!
//! In: where, who we are, the leaf in place. Out: the addresses, or why nobody said them. The rule of this file: credentials
//! go to nobody but a server that the kubeconfig's CAs know by the address that is asked, or that holds the certificate in
//! place; and what is read is the API's own object, or nothing.
//!
//! Endpoints (`v1`) and not EndpointSlices: the reconciler of the API server writes both, and only this one is in every
//! version - deprecated from 1.33 on, and still served.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use nix::poll::PollFd;
use rustls_pki_types::CertificateDer;
use serde::Deserialize;

use crate::act::probe::{Identity, ProbeError, Trust, client_that_trusts};
use crate::act::ready::reason;
use crate::act::request::Request;
use crate::chain::chain;
use crate::facts::certificate::Fingerprint;
use crate::observe::kubeconfig::{ClientCredentials, Credentials};

const PATH: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

/// The question, under way.
pub(crate) struct Listed {
    /// `Err` when it could not even be asked.
    request: Result<Box<Request>, Option<String>>,
    deadline: Instant,
}

/// `v1.Endpoints`, as far as it matters.
#[derive(Deserialize)]
struct Endpoints {
    kind: String,
    #[serde(default)]
    subsets: Option<Vec<Subset>>,
}

#[derive(Deserialize)]
struct Subset {
    #[serde(default)]
    addresses: Option<Vec<Address>>,
}

#[derive(Deserialize)]
struct Address {
    ip: IpAddr,
}

impl Listed {
    /// Asks. `in_place` is the server's certificate on disk.
    pub(crate) fn new(
        address: SocketAddr,
        in_place: Option<Fingerprint>,
        credentials: Result<Credentials, String>,
        deadline: Instant,
    ) -> Self {
        let request = credentials.map_err(Some).map(|credentials| request(address, in_place, credentials, deadline));
        Self { request: request.map(Box::new), deadline }
    }

    pub(crate) fn poll_fds(&self) -> Vec<PollFd<'_>> {
        self.request.as_ref().map_or_else(|_| Vec::new(), |request| request.poll_fds())
    }

    pub(crate) fn deadline(&self) -> Instant {
        if self.request.is_ok() { self.deadline } else { Instant::now() }
    }

    /// Never waits. `Some` once, when it is over.
    pub(crate) fn advance(&mut self) -> Option<Result<BTreeSet<IpAddr>, String>> {
        let answer = match &mut self.request {
            Ok(request) => request.advance()?,
            Err(why) => Err(why.take().unwrap_or_default()),
        };
        Some(match answer {
            Ok((200, body)) => addresses(&body),
            Ok((status, body)) => Err(reason(status, &body)),
            Err(why) => Err(why),
        })
    }
}

/// The keys are nobody's business.
impl std::fmt::Debug for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listed").finish_non_exhaustive()
    }
}

fn request(address: SocketAddr, in_place: Option<Fingerprint>, credentials: Credentials, deadline: Instant) -> Request {
    // HTTP/1.0: to a client of 1.1 Go sends long answers in chunks.
    let mut text = format!("GET {PATH} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n");
    let identity = match credentials.client {
        ClientCredentials::Certificate { chain, key } => {
            let chain = chain.into_iter().map(CertificateDer::from).collect();
            Some(Identity { chain, key: key.to_tls() })
        }
        ClientCredentials::Token(token) => {
            text.push_str("Authorization: Bearer ");
            text.push_str(&token);
            text.push_str("\r\n");
            None
        }
    };
    text.push_str("\r\n");
    Request::new(address, None, text, deadline, |leaf| {
        let authority = credentials.authority.into_iter().map(CertificateDer::from).collect();
        client_that_trusts(address, Arc::clone(&leaf), Trust { authority, in_place }, identity)
            .map_err(|source| chain(&ProbeError::Tls { address, source }))
    })
}

/// The addresses of an `Endpoints` object. Those that are not ready are not listed to anybody either.
fn addresses(body: &str) -> Result<BTreeSet<IpAddr>, String> {
    let endpoints: Endpoints =
        serde_json::from_str(body).map_err(|error| format!("the answer is no Endpoints object: {error}"))?;
    if endpoints.kind != "Endpoints" {
        return Err("the answer is no Endpoints object".to_owned());
    }
    let subsets = endpoints.subsets.unwrap_or_default();
    let addresses = subsets.into_iter().flat_map(|subset| subset.addresses.unwrap_or_default());
    Ok(addresses.map(|address| address.ip.to_canonical()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_read_and_nothing_else() {
        let read = |body: &str| addresses(body).map(|set| set.iter().map(ToString::to_string).collect::<Vec<_>>());
        let listed = |list: &[&str]| Ok(list.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        let whole = r#"{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"kubernetes"},"subsets":[
            {"addresses":[{"ip":"192.0.2.10"},{"ip":"192.0.2.11","nodeName":"b"}],"ports":[{"port":16443}],
             "notReadyAddresses":[{"ip":"192.0.2.12"}]},{"addresses":[{"ip":"2001:db8::1"}]}]}"#;
        assert_eq!(read(whole), listed(&["192.0.2.10", "192.0.2.11", "2001:db8::1"]));
        assert_eq!(read(r#"{"kind":"Endpoints"}"#), listed(&[]));
        assert_eq!(read(r#"{"kind":"Endpoints","subsets":null}"#), listed(&[]));
        assert_eq!(read(r#"{"kind":"Endpoints","subsets":[{"addresses":null}]}"#), listed(&[]));
        for nonsense in [
            "",
            "ok",
            "null",
            "[]",
            r#"{"kind":"Status","message":"no"}"#,
            r#"{"subsets":[]}"#,
            r#"{"kind":"Endpoints","subsets":[{"addresses":[{"ip":"everywhere"}]}]}"#,
            &whole[..whole.len() - 3],
        ] {
            assert!(read(nonsense).is_err(), "{nonsense}");
        }
    }
}
