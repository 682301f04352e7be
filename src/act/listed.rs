//! Asks an API server which addresses the `kubernetes` Service lists: whether it is ready, then the list, once.
//!
//! In: where, who we are, the leaf in place. Out: the addresses, or why nobody said them. The rule of this file: credentials
//! go to nobody but a server that the kubeconfig's CAs know by the address that is asked, or that holds the certificate in
//! place; and what is read is the API's own object, or nothing. Only one that is ready is listened to: before that it is not
//! on its own list (`pkg/controlplane`, `RunKubernetesService`), and on a small board that takes minutes.
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

use crate::act::execution::ReadCredentials;
use crate::act::probe::{Identity, ProbeError, Trust, client_that_trusts};
use crate::act::ready::reason;
use crate::act::request::Request;
use crate::chain::chain;
use crate::facts::certificate::Fingerprint;
use crate::observe::kubeconfig::{ClientCredentials, Credentials};

/// An API server older than 1.16 has none, which is as good as a yes.
const READY: &str = "/readyz";
const LIST: &str = "/api/v1/namespaces/default/endpoints/kubernetes";

/// The questions, under way.
pub(crate) struct Listed {
    address: SocketAddr,
    in_place: Option<Fingerprint>,
    /// Read for each connection, so that no key is kept in between.
    credentials: Arc<ReadCredentials>,
    deadline: Instant,
    path: &'static str,
    /// `Err` when it could not even be asked.
    request: Result<Box<Request>, Option<String>>,
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
        credentials: Arc<ReadCredentials>,
        deadline: Instant,
    ) -> Self {
        let request = Err(None);
        let mut listed = Self { address, in_place, credentials, deadline, path: READY, request };
        listed.begin(READY);
        listed
    }

    fn begin(&mut self, path: &'static str) {
        self.path = path;
        let begun = (self.credentials)().map(|who| request(self.address, path, self.in_place, who, self.deadline));
        self.request = begun.map(Box::new).map_err(Some);
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
        match answer {
            Ok((200 | 404, _)) if self.path == READY => {
                self.begin(LIST);
                None
            }
            Ok((200, body)) => Some(addresses(&body)),
            Ok((status, body)) => Some(Err(reason(status, &body))),
            Err(why) => Some(Err(why)),
        }
    }
}

/// The keys are nobody's business.
impl std::fmt::Debug for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listed").field("address", &self.address).field("path", &self.path).finish_non_exhaustive()
    }
}

fn request(
    address: SocketAddr,
    path: &str,
    in_place: Option<Fingerprint>,
    credentials: Credentials,
    deadline: Instant,
) -> Request {
    // HTTP/1.0: to a client of 1.1 Go sends long answers in chunks.
    let mut text = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n");
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
