//! What a client needs to talk to the API server as the kubeconfig's user.
//!
//! In: a context. Out: [`Credentials`]. The rule of this file: nothing is half usable - a certificate comes with the key
//! that fits it, a token can stand in a header as it is, and the server is known by CAs and never taken on trust.

use std::fmt;

use zeroize::Zeroizing;

use super::Fault;
use super::context::{Context, Way};
use super::server::Server;
use crate::observe::certificate;
use crate::observe::private_key::{Owner, PrivateKey};

/// Where the API server is, how it is known, and who asks.
#[derive(Debug)]
pub struct Credentials {
    /// Where it is.
    pub server: Server,
    /// The CAs that may have signed its certificate, DER, in file order; never empty.
    pub authority: Vec<Vec<u8>>,
    /// Who asks.
    pub client: ClientCredentials,
}

/// Who asks.
pub enum ClientCredentials {
    /// Whoever has the key of this certificate.
    Certificate {
        /// DER, the client's own first; never empty.
        chain: Vec<Vec<u8>>,
        /// Its key; wiped when it is dropped.
        key: PrivateKey,
    },
    /// Whoever knows this, for `Authorization: Bearer`. Visible ASCII; wiped when it is dropped.
    Token(Zeroizing<String>),
}

/// A token is never printed.
impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate { chain, key } => write!(f, "Certificate({} in the chain, {key:?})", chain.len()),
            Self::Token(_) => f.write_str("Token"),
        }
    }
}

/// Reads them.
pub(super) fn of(context: &Context) -> Result<Credentials, Fault> {
    let cluster = &context.cluster;
    let refused = |field: &str, why| Err(Fault::Refused { field: cluster.name(field), why });
    if cluster.flag("insecure-skip-tls-verify")? {
        return refused("insecure-skip-tls-verify", "credentials are sent to a server that is known, or not at all");
    }
    if cluster.is_given("proxy-url") {
        return refused("proxy-url", "the API server is on this node, and nobody stands in between");
    }
    if let Some(fault) = context.refusal() {
        return Err(fault);
    }
    let url = cluster.text("server")?.ok_or_else(|| cluster.missing("server"))?;
    let server = Server::parse(url, cluster.text("tls-server-name")?)
        .map_err(|why| cluster.malformed("server", why.to_owned()))?;
    let source = context.authority()?.ok_or_else(|| cluster.missing("certificate-authority-data"))?;
    let authority = certificate::bundle_in(&source.bytes()?).map_err(|why| source.malformed(why))?;
    Ok(Credentials { server, authority, client: client(context)? })
}

fn client(context: &Context) -> Result<ClientCredentials, Fault> {
    let user = &context.user;
    match context.way()? {
        Way::Certificate(source) => {
            let chain = certificate::bundle_in(&source.bytes()?).map_err(|why| source.malformed(why))?;
            let leaf = certificate::leaf(&chain[0]).map_err(|why| source.malformed(why))?;
            let source = context.source(user, "client-key")?.ok_or_else(|| user.missing("client-key-data"))?;
            let key = PrivateKey::from_pem(&source.bytes()?, &Owner::Server(Some(leaf.public_key.clone())))
                .map_err(|why| source.malformed(why.to_string()))?;
            if *key.public() != leaf.public_key {
                return Err(source.malformed("it is not the key of the client's certificate".to_owned()));
            }
            Ok(ClientCredentials::Certificate { chain, key })
        }
        Way::Token(Some(source)) => {
            let bytes = source.bytes()?;
            let text = bytes.trim_ascii();
            if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
                return Err(source.malformed("it is no token: blanks, line ends or other characters in it".to_owned()));
            }
            let mut token = Zeroizing::new(String::with_capacity(text.len()));
            token.extend(text.iter().copied().map(char::from));
            Ok(ClientCredentials::Token(token))
        }
        Way::Refused(fault) => Err(fault),
        Way::Token(None) | Way::Nobody => Err(user.missing("client-certificate-data")),
    }
}
