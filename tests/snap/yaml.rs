//! The part of YAML that our descriptions are written in: nested mappings by two blanks, lists of plain words, plain and
//! quoted scalars, literal blocks, comments on lines of their own. Anything else fails the test that reads it.

use std::collections::BTreeMap;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Yaml {
    /// A scalar or a literal block.
    Text(String),
    /// A list of scalars.
    List(Vec<String>),
    /// A mapping.
    Map(BTreeMap<String, Self>),
}

impl Yaml {
    /// The mapping; a test that asks for one expects one.
    pub(crate) fn map(&self) -> &BTreeMap<String, Self> {
        let Self::Map(map) = self else { panic!("a mapping is expected, not {self:?}") };
        map
    }

    /// The text of a key.
    pub(crate) fn text(&self, key: &str) -> &str {
        let Some(Self::Text(text)) = self.map().get(key) else { panic!("{key} must be a text: {self:?}") };
        text
    }
}

/// Reads a document.
pub(crate) fn parse(text: &str) -> Yaml {
    let lines: Vec<&str> = text.lines().collect();
    let mut at = 0;
    let document = mapping(&lines, &mut at, 0);
    assert_eq!(at, lines.len(), "line {} belongs to nothing", at + 1);
    document
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn skip(lines: &[&str], at: &mut usize) {
    while lines.get(*at).is_some_and(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        *at += 1;
    }
}

fn mapping(lines: &[&str], at: &mut usize, depth: usize) -> Yaml {
    let mut map = BTreeMap::new();
    loop {
        skip(lines, at);
        let Some(line) = lines.get(*at).filter(|line| indent(line) == depth && !line.trim_start().starts_with("- "))
        else {
            return Yaml::Map(map);
        };
        let (key, rest) = line.trim().split_once(':').unwrap_or_else(|| panic!("line {}: no key", *at + 1));
        *at += 1;
        let value = match rest.trim() {
            "|" => Yaml::Text(block(lines, at, depth + 2)),
            "" => nested(lines, at, depth),
            scalar => Yaml::Text(plain(scalar, *at)),
        };
        assert!(map.insert(key.to_owned(), value).is_none(), "line {}: {key} is there twice", *at);
    }
}

fn nested(lines: &[&str], at: &mut usize, depth: usize) -> Yaml {
    skip(lines, at);
    let below = depth + 2;
    if !lines.get(*at).is_some_and(|line| line.trim_start().starts_with("- ")) {
        return mapping(lines, at, below);
    }
    let mut items = Vec::new();
    while let Some(item) = lines.get(*at).filter(|line| indent(line) == below).and_then(|l| l.trim().strip_prefix("- "))
    {
        *at += 1;
        items.push(plain(item, *at));
    }
    Yaml::List(items)
}

fn block(lines: &[&str], at: &mut usize, depth: usize) -> String {
    let mut text = String::new();
    while let Some(line) = lines.get(*at).filter(|line| line.trim().is_empty() || indent(line) >= depth) {
        text += line.get(depth..).unwrap_or_default();
        text.push('\n');
        *at += 1;
    }
    text.trim_end().to_owned() + "\n"
}

fn plain(scalar: &str, line: usize) -> String {
    if let Some(quoted) = scalar.strip_prefix('"') {
        return quoted.strip_suffix('"').unwrap_or_else(|| panic!("line {line}: a quote is open")).to_owned();
    }
    assert!(!scalar.starts_with(['[', '{', '&', '*', '!', '>', '\'', '%', '@', '`']), "line {line}: {scalar}");
    assert!(!scalar.contains(": ") && !scalar.contains(" #"), "line {line}: {scalar}");
    scalar.to_owned()
}
