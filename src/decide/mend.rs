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
