//! The context that a client takes: `current-context`, and the cluster and user that it names.
//!
//! In: a document. Out: a [`Context`]. The rule of this file: what is said of a field names it as its file does, and never
//! repeats its value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Fault;
use super::source::Source;
use super::yaml::Node;

/// The current context with what it names.
pub(super) struct Context {
    /// The cluster's fields.
    pub(super) cluster: Fields,
    /// The user's fields.
    pub(super) user: Fields,
    /// The user entry's name.
    pub(super) user_name: String,
    /// The kubeconfig's folder, below the root.
    folder: PathBuf,
    root: PathBuf,
}

/// How a user says who it is.
pub(super) enum Way<'a> {
    /// By a certificate.
    Certificate(Source<'a>),
    /// By a token; `None` where it was withheld.
    Token(Option<Source<'a>>),
    /// In a way that is not gone here.
    Refused(Fault),
    /// Not at all.
    Nobody,
}

/// Fields of a mapping.
pub(super) struct Fields {
    /// What the mapping is, for messages: `user admin`.
    of: String,
    entries: BTreeMap<String, Node>,
}

/// What a user entry may ask for, and why that is not done.
const REFUSED: [(&str, &str); 8] = [
    ("exec", "it names a program to run for the credentials"),
    ("auth-provider", "it names a plugin to ask for the credentials"),
    ("username", "API servers take no passwords since Kubernetes 1.19"),
    ("password", "API servers take no passwords since Kubernetes 1.19"),
    ("as", "it acts in the name of somebody else"),
    ("as-uid", "it acts in the name of somebody else"),
    ("as-groups", "it acts in the name of somebody else"),
    ("as-user-extra", "it acts in the name of somebody else"),
];

impl Context {
    /// Finds it.
    pub(super) fn current(document: Node, path: &Path, root: &Path) -> Result<Self, Fault> {
        let mut document = Fields::new(String::new(), document)?;
        for (field, only) in [("kind", "Config"), ("apiVersion", "v1")] {
            if document.text(field)?.is_some_and(|value| value != only) {
                return Err(document.malformed(field, format!("no kubeconfig has another than {only}")));
            }
        }
        let name = document.text("current-context")?.ok_or_else(|| document.missing("current-context"))?.to_owned();
        let context = document.named("contexts", "context", &name)?;
        let needed = |field| context.text(field)?.ok_or_else(|| context.missing(field));
        let (cluster, user) = (needed("cluster")?.to_owned(), needed("user")?.to_owned());
        Ok(Self {
            cluster: document.named("clusters", "cluster", &cluster)?,
            user: document.named("users", "user", &user)?,
            user_name: user,
            folder: path.parent().unwrap_or_else(|| Path::new("")).to_owned(),
            root: root.to_owned(),
        })
    }

    /// How the user says who it is. A certificate comes first, as it does for the API server.
    pub(super) fn way(&self) -> Result<Way<'_>, Fault> {
        if let Some(source) = self.source(&self.user, "client-certificate")? {
            return Ok(Way::Certificate(source));
        }
        if let Some(fault) = self.refusal() {
            return Ok(Way::Refused(fault));
        }
        // A file comes before what is embedded here, and only here (client-go, `rest.Config.BearerTokenFile`).
        if let Some(file) = self.user.text("tokenFile")? {
            return Ok(Way::Token(Some(self.file(&self.user, "tokenFile", file))));
        }
        if self.user.is_withheld("token") {
            return Ok(Way::Token(None));
        }
        Ok(match self.user.text("token")? {
            Some(token) => Way::Token(Some(Source::plain(self.user.name("token"), token))),
            None => Way::Nobody,
        })
    }

    /// What the user asks for and is not done.
    pub(super) fn refusal(&self) -> Option<Fault> {
        let (field, why) = REFUSED.iter().find(|(field, _)| self.user.is_given(field))?;
        Some(Fault::Refused { field: self.user.name(field), why })
    }

    /// Whether any public part may be in another file.
    pub(super) fn names_files(&self) -> bool {
        self.user.is_given("client-certificate") || self.cluster.is_given("certificate-authority")
    }

    /// The CAs by which the server is known.
    pub(super) fn authority(&self) -> Result<Option<Source<'_>>, Fault> {
        self.source(&self.cluster, "certificate-authority")
    }

    /// `NAME-data` or the file `NAME`; what is embedded comes first.
    pub(super) fn source<'a>(&self, fields: &'a Fields, name: &str) -> Result<Option<Source<'a>>, Fault> {
        let embedded = format!("{name}-data");
        if let Some(text) = fields.text(&embedded)? {
            return Ok(Some(Source::embedded(fields.name(&embedded), text)));
        }
        Ok(fields.text(name)?.map(|file| self.file(fields, name, file)))
    }

    fn file<'a>(&self, fields: &Fields, name: &str, file: &str) -> Source<'a> {
        Source::file(fields.name(name), Path::new(file), &self.folder, &self.root)
    }
}

impl Fields {
    /// The fields of a mapping; nothing where there is none.
    fn new(of: String, node: Node) -> Result<Self, Fault> {
        match node {
            Node::Map(entries) => Ok(Self { of, entries }),
            node if node.is_nothing() => Ok(Self { of, entries: BTreeMap::new() }),
            _ if of.is_empty() => Err(Fault::Document { line: 1, why: "it is no mapping, so it is no kubeconfig" }),
            _ => Err(Fault::Malformed { field: of, why: "it is no mapping".to_owned() }),
        }
    }

    /// The entry of a list that has a name, as the fields of `inner`. client-go refuses a name twice.
    fn named(&mut self, list: &str, inner: &str, name: &str) -> Result<Self, Fault> {
        let of = format!("{inner} {name}");
        let items = match self.entries.get_mut(list) {
            Some(Node::List(items)) => items,
            None => return Err(Fault::Missing { field: of }),
            Some(node) if node.is_nothing() => return Err(Fault::Missing { field: of }),
            Some(_) => return Err(self.malformed(list, "it is no list".to_owned())),
        };
        let is_named = |item: &Node| {
            let Node::Map(entries) = item else { return false };
            matches!(entries.get("name"), Some(Node::Scalar { text, .. }) if text.as_str() == name)
        };
        let mut fitting = items.iter_mut().filter(|item| is_named(item));
        let found = fitting.next().ok_or_else(|| Fault::Missing { field: of.clone() })?;
        if fitting.next().is_some() {
            return Err(Fault::Malformed { field: of, why: "there are two of that name".to_owned() });
        }
        let Node::Map(entries) = found else { return Err(Fault::Missing { field: of }) };
        match entries.remove(inner) {
            Some(node) => Self::new(of, node),
            None => Ok(Self { of, entries: BTreeMap::new() }),
        }
    }

    /// A text that is not empty; `null` is none.
    pub(super) fn text(&self, field: &str) -> Result<Option<&str>, Fault> {
        match self.entries.get(field) {
            None => Ok(None),
            Some(node) if node.is_nothing() => Ok(None),
            Some(Node::Scalar { text, .. }) => Ok(Some(text)),
            Some(Node::Withheld) => Ok(None),
            Some(Node::List(_) | Node::Map(_)) => Err(self.malformed(field, "it is no text".to_owned())),
        }
    }

    /// A yes or no; no where there is none.
    pub(super) fn flag(&self, field: &str) -> Result<bool, Fault> {
        match self.entries.get(field) {
            None => Ok(false),
            Some(Node::Scalar { text, plain: true }) if text.as_str() == "true" => Ok(true),
            Some(Node::Scalar { text, plain: true }) if text.as_str() == "false" => Ok(false),
            Some(node) if node.is_nothing() => Ok(false),
            Some(_) => Err(self.malformed(field, "it is neither true nor false".to_owned())),
        }
    }

    /// Whether there is anything but nothing, a withheld value included.
    pub(super) fn is_given(&self, field: &str) -> bool {
        self.entries.get(field).is_some_and(|node| !node.is_nothing())
    }

    fn is_withheld(&self, field: &str) -> bool {
        matches!(self.entries.get(field), Some(Node::Withheld))
    }

    /// Its name in messages.
    pub(super) fn name(&self, field: &str) -> String {
        if self.of.is_empty() { field.to_owned() } else { format!("{}: {field}", self.of) }
    }

    /// It is needed and not there.
    pub(super) fn missing(&self, field: &str) -> Fault {
        Fault::Missing { field: self.name(field) }
    }

    /// It makes no sense.
    pub(super) fn malformed(&self, field: &str, why: String) -> Fault {
        Fault::Malformed { field: self.name(field), why }
    }
}
