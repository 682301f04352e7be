//! YAML as kubeconfigs use it: mappings, lists, scalars. JSON is YAML.
//!
//! In: text. Out: a [`Node`] tree. The rule of this file: no document takes more time, depth or memory than its bounds
//! say, and what is withheld is not kept for a moment. Whatever could mean two things (a key twice, an alias, a merge, a
//! tag, a second document) is refused instead of interpreted, for readers differ in exactly these.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use zeroize::Zeroizing;

/// A kubeconfig is five deep; what extensions put into it has room.
const DEEPEST: usize = 32;

/// A kubeconfig of a thousand clusters has twenty thousand.
const MOST_NODES: usize = 50_000;

/// The byte order mark some editors put before UTF-8 text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// A value.
pub(super) enum Node {
    /// Text, number or flag; wiped when it is dropped, for any may be a secret.
    Scalar {
        /// Escapes and folding undone.
        text: Zeroizing<String>,
        /// Written without quotes, so that `null` is none.
        plain: bool,
    },
    /// A list.
    List(Vec<Self>),
    /// A mapping.
    Map(BTreeMap<String, Self>),
    /// There is a value, and the caller did not want to have it.
    Withheld,
}

impl Node {
    /// What stands for no value: `null`, `~`, nothing, and an empty text, list or mapping.
    pub(super) fn is_nothing(&self) -> bool {
        match self {
            Self::Scalar { text, plain } => {
                text.is_empty() || *plain && matches!(text.as_str(), "null" | "Null" | "NULL" | "~")
            }
            Self::List(items) => items.is_empty(),
            Self::Map(entries) => entries.is_empty(),
            Self::Withheld => false,
        }
    }
}

/// Why text is no document of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// From 1.
    pub(super) line: usize,
    /// Words of ours: the parser's own may quote the text, which may be a key.
    pub(super) why: &'static str,
}

/// A container that is being filled.
enum Open {
    List(Vec<Node>),
    Map { entries: BTreeMap<String, Node>, key: Option<String> },
}

/// Reads a document. The values of the keys in `withheld` are skipped, wherever these stand.
pub(super) fn parse(text: &str, withheld: &[&str]) -> Result<Node, Fault> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    // NUL is the end of the text for the parser, and no YAML at all (YAML 1.2.2 section 5.1).
    if let Some(position) = text.find('\0') {
        let line = 1 + text[..position].matches('\n').count();
        return Err(Fault { line, why: "a NUL byte, so it is no text" });
    }
    let mut reader = Reader { stack: Vec::new(), root: None, nodes: 0, withheld, skipping: 0 };
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| Fault { line: error.marker().line(), why: "from here on it is neither YAML nor JSON" })?;
        reader.take(event).map_err(|why| Fault { line: span.start.line(), why })?;
    }
    reader.root.ok_or(Fault { line: 1, why: "there is nothing in it" })
}

struct Reader<'a> {
    stack: Vec<Open>,
    root: Option<Node>,
    nodes: usize,
    withheld: &'a [&'a str],
    /// How many containers of a withheld value are open.
    skipping: usize,
}

impl Reader<'_> {
    fn take(&mut self, event: Event<'_>) -> Result<(), &'static str> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) if self.root.is_some() => Err("a second document begins"),
            Event::DocumentStart(_) => Ok(()),
            Event::Alias(_) => Err("an alias, which is not followed here"),
            Event::Scalar(.., Some(_)) | Event::SequenceStart(_, Some(_)) | Event::MappingStart(_, Some(_)) => {
                Err("a tag, which is not understood here")
            }
            Event::Scalar(text, style, ..) => {
                self.count()?;
                self.scalar(&text, style == ScalarStyle::Plain)
            }
            Event::SequenceStart(..) => self.open(Open::List(Vec::new())),
            Event::MappingStart(..) => self.open(Open::Map { entries: BTreeMap::new(), key: None }),
            Event::SequenceEnd | Event::MappingEnd => self.close(),
        }
    }

    fn count(&mut self) -> Result<(), &'static str> {
        self.nodes += 1;
        if self.nodes > MOST_NODES { Err("more values than any kubeconfig has") } else { Ok(()) }
    }

    /// Whether the value that comes now is one that nobody wants.
    fn is_withheld(&self) -> bool {
        let key = self.stack.last().and_then(|open| match open {
            Open::Map { key, .. } => key.as_deref(),
            Open::List(_) => None,
        });
        key.is_some_and(|key| self.withheld.contains(&key))
    }

    fn scalar(&mut self, text: &str, plain: bool) -> Result<(), &'static str> {
        if self.skipping > 0 {
            return Ok(());
        }
        if let Some(Open::Map { entries, key: key @ None }) = self.stack.last_mut() {
            if text == "<<" && plain {
                return Err("a merge, which is not followed here");
            }
            if entries.contains_key(text) {
                return Err("a key that was there before: which of the two counts is not for us to guess");
            }
            *key = Some(text.to_owned());
            return Ok(());
        }
        let node = Node::Scalar { text: Zeroizing::new(text.to_owned()), plain };
        // That there is nothing is worth to know and no secret.
        self.put(if self.is_withheld() && !node.is_nothing() { Node::Withheld } else { node })
    }

    fn open(&mut self, open: Open) -> Result<(), &'static str> {
        self.count()?;
        if self.stack.len() + self.skipping >= DEEPEST {
            return Err("deeper than any kubeconfig is");
        }
        if self.skipping > 0 || self.is_withheld() {
            self.skipping += 1;
            return Ok(());
        }
        if let Some(Open::Map { key: None, .. }) = self.stack.last() {
            return Err("a key that is no text");
        }
        self.stack.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), &'static str> {
        if self.skipping > 0 {
            self.skipping -= 1;
            return if self.skipping == 0 { self.put(Node::Withheld) } else { Ok(()) };
        }
        match self.stack.pop() {
            Some(Open::List(items)) => self.put(Node::List(items)),
            Some(Open::Map { entries, .. }) => self.put(Node::Map(entries)),
            None => Err("an end without a beginning"),
        }
    }

    fn put(&mut self, node: Node) -> Result<(), &'static str> {
        match self.stack.last_mut() {
            Some(Open::List(items)) => items.push(node),
            Some(Open::Map { entries, key }) => {
                let key = key.take().ok_or("a value without a key")?;
                entries.insert(key, node);
            }
            None => self.root = Some(node),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// The tree as text, for comparison.
    fn shown(node: &Node) -> String {
        match node {
            Node::Scalar { text, plain: true } => text.to_string(),
            Node::Scalar { text, plain: false } => format!("{:?}", text.as_str()),
            Node::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
            Node::Map(entries) => {
                let entries: Vec<String> = entries.iter().map(|(key, node)| format!("{key}={}", shown(node))).collect();
                format!("{{{}}}", entries.join(" "))
            }
            Node::Withheld => "-".to_owned(),
        }
    }

    fn tree(text: &str) -> String {
        parse(text, &["key", "exec"]).map_or_else(|fault| format!("{}: {}", fault.line, fault.why), |node| shown(&node))
    }

    #[test]
    fn yaml_and_json_give_the_same_tree() {
        let yaml = "# a comment\n---\na: b # c\nlist:\n- x\n- {y: 'z'}\nempty: {}\n...\n";
        assert_eq!(tree(yaml), "{a=b empty={} list=[x {y=\"z\"}]}");
        let json = r#"{"a":"b","list":["x",{"y":"z"}],"empty":{}}"#;
        assert_eq!(tree(json), r#"{a="b" empty={} list=["x" {y="z"}]}"#);
        assert_eq!(tree("\u{feff}a: b\r\n"), "{a=b}");
        assert_eq!(tree("a: |\n  one\n  two\nb: >-\n  three\n  four\n"), "{a=\"one\\ntwo\\n\" b=\"three four\"}");
    }

    #[test]
    fn what_is_withheld_is_there_and_not_kept() {
        assert_eq!(tree("key: secret\nother: {key: secret, a: b}\n"), "{key=- other={a=b key=-}}");
        assert_eq!(tree("exec:\n  command: x\n  env: [{name: A, value: B}]\nafter: c\n"), "{after=c exec=-}");
        assert_eq!(tree("exec: []\nafter: c\n"), "{after=c exec=-}");
        assert_eq!(tree("exec: null\nkey: ''\n"), "{exec=null key=\"\"}");
    }

    #[test]
    fn what_could_mean_two_things_is_refused() {
        for (text, fault) in [
            ("a: 1\nb: 2\na: 3\n", "3: a key that was there before"),
            (r#"{"a": 1, "a": 2}"#, "1: a key that was there before"),
            ("a: &x b\nc: *x\n", "2: an alias"),
            ("a: &x {b: c}\nd:\n  <<: *x\n", "3: a merge"),
            ("a: !!binary Zm9v\n", "1: a tag"),
            ("a: !secret {b: c}\n", "1: a tag"),
            ("a: b\n---\na: c\n", "2: a second document"),
            ("? {a: b}\n: c\n", "1: a key that is no text"),
            ("? [a]\n: c\n", "1: a key that is no text"),
            ("a: b\nc: \u{0}\n", "2: a NUL byte"),
            ("a: [b\n", "from here on"),
            ("a: 'b\n", "from here on"),
            ("a: b: c\n", "from here on"),
            ("", "1: there is nothing in it"),
            ("# only a comment\n", "1: there is nothing in it"),
        ] {
            let said = tree(text);
            assert!(said.contains(fault), "{text:?}: {said}");
        }
    }

    #[test]
    fn bombs_end_early() {
        let laughs = (1..40).fold("a0: &a0 [x, x]\n".to_owned(), |text, n| {
            text + &format!("a{n}: &a{n} [*a{0}, *a{0}, *a{0}]\n", n - 1)
        });
        let size = 1024 * 1024;
        for (name, text) in [
            ("laughs", laughs),
            ("nested lists", "[".repeat(size)),
            ("nested maps", "{a: ".repeat(size / 4)),
            ("nested blocks", (0..700).map(|n| format!("{}a:\n", " ".repeat(n))).collect()),
            ("nested dashes", "- ".repeat(size / 2)),
            ("nested in what is skipped", "exec: ".to_owned() + &"[".repeat(size)),
            ("questions", "? ".repeat(size / 2)),
            ("many values", "a,".repeat(size / 2) + "[" + &"a,".repeat(size / 2)),
            ("a list of many", "[".to_owned() + &"a,".repeat(size / 2) + "]"),
            ("many keys", (0..100_000).map(|n| format!("k{n}: v\n")).collect()),
            ("one long line", "a".repeat(size)),
            ("one long quote", "\"".to_owned() + &"a\\n".repeat(size / 3)),
            ("anchors", (0..80_000).map(|n| format!("- &a{n} x\n")).collect()),
            ("tags", "%TAG !a! tag:x,2000:\n".repeat(size / 22)),
            ("documents", "---\n".repeat(size / 4)),
            ("comments", "#\n".repeat(size / 2)),
            ("blanks", " ".repeat(size)),
            ("lines", "\n".repeat(size)),
            ("colons", ":".repeat(size)),
            ("flow colons", "{".to_owned() + &"a:".repeat(size / 2)),
            ("commas", "[".to_owned() + &",".repeat(size)),
            ("block scalar", "a: |\n".to_owned() + &" \n".repeat(size / 2)),
        ] {
            let began = Instant::now();
            let said = tree(&text);
            let took = began.elapsed();
            // Without optimisation a megabyte takes up to a second; what is quadratic takes minutes.
            assert!(took < Duration::from_secs(20), "{name}: {took:?}: {}", &said[..said.len().min(80)]);
        }
        assert!(tree(&"[".repeat(100)).contains("deeper"), "{}", tree(&"[".repeat(100)));
        let many = (0..MOST_NODES).map(|n| format!("- {n}\n")).collect::<String>();
        assert!(tree(&many).contains("more values"));
    }
}
