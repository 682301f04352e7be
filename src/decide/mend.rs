//! What an interrupted write left to be finished beside a certificate that is in step.
//!
//! In: the files as they were read, and whether a writer died. Out: a [`Mend`], or nothing. The rule of this file: it
//! never touches a certificate or a key, and a request file that somebody wrote with sense in it stays as it is.

use crate::decide::request;
use crate::facts::Problem;
use crate::facts::cluster::Cluster;

/// Small work in the certificate folder, done under the lock before the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// The certificate that is in step.
    pub certificate: String,
    /// What its request file has to say; `None` when it is right, and only leftovers are removed.
    pub request: Option<String>,
    /// What happened, for people.
    pub why: String,
}

/// What is to be finished, if anything. `interrupted`: a writer of the certificate died before it could say that it was
/// done. The request file is its last write, so the certificate in step says nothing about it.
pub fn owed(cluster: &Cluster, interrupted: bool) -> Option<Mend> {
    let server = cluster.certificates.first()?;
    let names = &server.leaf.as_ref().ok()?.sans;
    let unfit = cluster.request.as_ref().and_then(|request| match request {
        Ok(request) if request.sans.is_empty() => Some("it names nothing".to_owned()),
        Ok(_) => None,
        Err(error) => match &error.problem {
            Problem::Empty | Problem::Malformed(_) => Some(error.problem.to_string()),
            // Who removed it or closed it to us may have had a reason; it comes with the next certificate.
            Problem::Missing | Problem::Unreadable(_) => None,
        },
    });
    let template = cluster.template.as_ref().and_then(|template| template.as_ref().ok());
    let request = template.filter(|_| interrupted || unfit.is_some()).map(|template| request::render(template, names));
    let why = match unfit {
        Some(unfit) if request.is_some() => format!("the request file is written anew: {unfit}"),
        _ if interrupted => "an interrupted write is finished".to_owned(),
        _ => return None,
    };
    Some(Mend { certificate: server.name.clone(), request, why })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::facts::ReadError;
    use crate::facts::certificate::{CertificateFacts, CertificateRole, Fingerprint, Leaf, PublicKey, Usage};
    use crate::facts::cluster::{Arguments, MARKER, Template};
    use crate::facts::time::Timestamp;

    fn template(text: &str, sans: &[&str]) -> Template {
        let sans = sans.iter().map(|san| san.parse().expect("a name")).collect();
        Template {
            text: text.to_owned(),
            sans,
            subject: Vec::new(),
            marker: true,
            place: text.find(MARKER).map(|at| at..at + MARKER.len()),
            overridden: Vec::new(),
            validity: None,
        }
    }

    fn missing() -> ReadError {
        ReadError { path: "csr.conf".into(), problem: Problem::Missing }
    }

    fn cluster(request: Option<Result<Template, ReadError>>) -> Cluster {
        let leaf = Leaf {
            sans: ["kubernetes", "192.0.2.10"].iter().map(|san| san.parse().expect("a name")).collect(),
            refused_sans: Vec::new(),
            other_names: Vec::new(),
            subject: Vec::new(),
            issuer: Vec::new(),
            public_key: PublicKey(Vec::new()),
            not_before: Timestamp::from_seconds(0),
            not_after: Timestamp::from_seconds(1),
            usage: Usage { server_auth: true, client_auth: true, digital_signature: true, is_ca: false },
            refused_signature: None,
            authority_key_id: None,
            authority_serial: None,
            fingerprint: Fingerprint([7; 32]),
        };
        Cluster {
            profile: "microk8s".to_owned(),
            hostname: "node-1".to_owned(),
            arguments: Arguments::default(),
            locks: BTreeMap::new(),
            locks_unreadable: None,
            joining: None,
            template: Some(Ok(template("DNS.1 = kubernetes\n#MOREIPS\n", &["kubernetes"]))),
            request,
            host_access: None,
            join_tokens: crate::facts::cluster::JoinTokens::default(),
            foreign_unreadable: None,
            certificates: vec![CertificateFacts {
                name: "server".to_owned(),
                path: "server.crt".into(),
                leaf: Ok(leaf),
                key: Err(missing()),
                authority: Err(missing()),
                authority_key: Err(missing()),
                issued_by_authority: None,
                issued_by_foreign: false,
                elsewhere: None,
                role: CertificateRole::ApiServer,
                subject: Vec::new(),
            }],
        }
    }

    #[test]
    fn only_what_makes_no_sense_is_written_anew() {
        let written = |request, interrupted| owed(&cluster(request), interrupted).map(|mend| mend.request);
        let text = Some("DNS.1 = kubernetes\nIP.1 = 192.0.2.10\n".to_owned());
        let malformed = || Err(ReadError::malformed(std::path::Path::new("csr.conf"), "changeme"));
        let theirs = || Ok(template("theirs", &["example.org"]));
        assert_eq!(written(Some(malformed()), false), Some(text.clone()));
        assert_eq!(written(Some(Ok(template("", &[]))), false), Some(text.clone()));
        assert_eq!(written(Some(theirs()), false), None);
        assert_eq!(written(Some(Err(missing())), false), None);
        assert_eq!(written(None, false), None);
        // Behind a writer that died nobody knows whose text it is.
        assert_eq!(written(Some(theirs()), true), Some(text.clone()));
        assert_eq!(written(Some(Err(missing())), true), Some(text));
    }

    #[test]
    fn without_a_template_only_leftovers_are_removed() {
        let mut cluster = cluster(Some(Err(missing())));
        cluster.template = None;
        assert_eq!(owed(&cluster, false), None);
        assert_eq!(owed(&cluster, true).map(|mend| mend.request), Some(None));
    }
}
