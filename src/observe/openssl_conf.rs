//! A configuration file of OpenSSL, config(5), as far as names and subjects are in it.
//!
//! In: text. Out: entries with their section, in file order, or the line that OpenSSL would not read either. The rule of
//! this file: what OpenSSL makes of a line, we make of it - continuations, quotes, escapes, variables, `section::name` - so
//! that the certificate has the names that `openssl req` would put there. What depends on other files or on somebody's
//! environment is not followed, and said with its line.

/// A `name = value` with its section and line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the section; `default` before the first.
    pub section: String,
    /// The name.
    pub name: String,
    /// The value: without quotes and escapes, variables replaced.
    pub value: String,
    /// Number of the line it begins on.
    pub line: usize,
}

/// What a file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conf {
    /// In file order; of two with the same section and name the last one counts.
    pub entries: Vec<Entry>,
    /// What each line of the text belongs to.
    pub lines: Vec<Line>,
}

/// A line of the text, which may be a part of a longer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The section that it is in; a header is in its own.
    pub section: String,
    /// The first and the last of the lines that backslashes make one, counted from 0.
    pub whole: (usize, usize),
}

/// The section before the first header, where variables are looked for last.
const DEFAULT: &str = "default";

/// White space as OpenSSL knows it. A space that a web page has in its place (U+00A0), or a form feed, is none.
pub(crate) const BLANK: [char; 4] = [' ', '\t', '\n', '\r'];

/// What a name is made of besides letters and digits (`IS_ALNUM_PUNCT` of OpenSSL's conf_def.h).
const IN_NAMES: &str = "_!.%&*+,/;?@^~|-";

impl Conf {
    /// Reads a file's text.
    ///
    /// # Errors
    /// Names the line and what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut conf = Self::default();
        let mut section = DEFAULT.to_owned();
        let mut lines = text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate();
        while let Some((index, first)) = lines.next() {
            let number = index + 1;
            let mut logical = first.to_owned();
            let mut more = 0;
            // A backslash at the very end goes on with the next line; behind another one it is meant. That comes before
            // comments do: one that ends in a backslash takes the next line with it.
            while ends_in_continuation(&logical) {
                logical.pop();
                let Some((_, next)) = lines.next() else { break };
                logical.push_str(next);
                more += 1;
            }
            let content = without_comment(&logical).trim_matches(BLANK);
            if let Some(header) = content.strip_prefix('[') {
                let (name, _) = header.split_once(']').ok_or_else(|| format!("line {number}: [ without ]"))?;
                section = name.trim_matches(BLANK).to_owned();
            } else if !content.is_empty() {
                conf.entry(content, &section, number)?;
            }
            let line = Line { section: section.clone(), whole: (index, index + more) };
            conf.lines.extend(std::iter::repeat_n(line, more + 1));
        }
        Ok(conf)
    }

    fn entry(&mut self, content: &str, section: &str, line: usize) -> Result<(), String> {
        let at_line = |why: &str| format!("line {line}: {why}");
        if let Some(directive) = content.strip_prefix('.') {
            let word = directive.split(|c: char| c == '=' || c.is_whitespace()).next().unwrap_or_default();
            return match word {
                "pragma" => Ok(()),
                _ => Err(at_line(&format!(".{word} is not followed: what it names is not known here"))),
            };
        }
        let no_entry = || at_line("neither a section nor key = value");
        let (name, value) = content.split_once('=').ok_or_else(no_entry)?;
        let name = name.trim_end_matches(BLANK);
        let (section, name) = name.split_once("::").unwrap_or((section, name));
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || IN_NAMES.contains(c)) {
            return Err(no_entry());
        }
        let value = self.value(value.trim_matches(BLANK), section).map_err(|why| at_line(&why))?;
        self.entries.push(Entry { section: section.to_owned(), name: name.to_owned(), value, line });
        Ok(())
    }

    /// The value that counts: the last one.
    pub fn value_of(&self, section: &str, name: &str) -> Option<&str> {
        self.entries.iter().rev().find(|e| e.section == section && e.name == name).map(|e| e.value.as_str())
    }

    /// Whether a later entry takes this one's place.
    pub fn is_overridden(&self, index: usize) -> bool {
        let entry = &self.entries[index];
        self.entries[index + 1..].iter().any(|later| later.section == entry.section && later.name == entry.name)
    }

    /// Takes quotes and escapes away and replaces variables.
    fn value(&self, text: &str, section: &str) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text.chars().peekable();
        while let Some(c) = rest.next() {
            match c {
                '"' | '\'' | '`' => {
                    // A quote that nobody closes ends with the value, as OpenSSL has it.
                    while let Some(inner) = rest.next().filter(|inner| *inner != c) {
                        out.push(if inner == '\\' { rest.next().unwrap_or_default() } else { inner });
                    }
                }
                '\\' => out.push(match rest.next() {
                    Some('n') => '\n',
                    Some('r') => '\r',
                    Some('t') => '\t',
                    Some('b') => '\u{8}',
                    Some(other) => other,
                    None => break,
                }),
                '$' => {
                    let close = match rest.peek() {
                        Some('{') => Some('}'),
                        Some('(') => Some(')'),
                        _ => None,
                    };
                    if close.is_some() {
                        rest.next();
                    }
                    let mut name = String::new();
                    while let Some(next) = rest.next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':')) {
                        name.push(next);
                    }
                    if close.is_some_and(|close| rest.next() != Some(close)) {
                        return Err(format!("${name} has no closing brace"));
                    }
                    out.push_str(self.variable(&name, section)?);
                }
                other => out.push(other),
            }
        }
        Ok(out)
    }

    fn variable(&self, name: &str, section: &str) -> Result<&str, String> {
        let found = match name.split_once("::") {
            Some(("ENV", _)) => return Err(format!("${name} is from an environment that is not known here")),
            Some((section, name)) => self.value_of(section, name),
            None => self.value_of(section, name).or_else(|| self.value_of(DEFAULT, name)),
        };
        found.ok_or_else(|| format!("the variable ${name} has no value"))
    }
}

/// The part of a line before its comment. Within quotes and behind a backslash a `#` is one of the value.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match (escaped, c, quote) {
            (true, ..) => escaped = false,
            (false, '\\', _) => escaped = true,
            (false, '#', None) => return &line[..at],
            (false, '"' | '\'' | '`', None) => quote = Some(c),
            (false, c, Some(open)) if c == open => quote = None,
            _ => {}
        }
    }
    line
}

/// OpenSSL looks at two characters only: of three backslashes the last goes on with nothing.
fn ends_in_continuation(line: &str) -> bool {
    line.ends_with('\\') && !line.ends_with("\\\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<String> {
        let conf = Conf::parse(text).expect("OpenSSL reads it");
        conf.entries.into_iter().map(|e| format!("{}.{}={}", e.section, e.name, e.value)).collect()
    }

    #[test]
    fn lines_are_read_as_openssl_reads_them() {
        for (text, expected) in [
            ("a=1\n[ s ]\n  b = 2  # two\n[t] # and on\nc=", &["default.a=1", "s.b=2", "t.c="][..]),
            ("a = one \\\n  two\nb=\\\\\n", &["default.a=one   two", "default.b=\\"]),
            ("# one \\\na = 1\nb = 2 # two \\\nc = 3\n", &["default.b=2"]),
            ("a = 'x\\\ny # z'\n", &["default.a=xy # z"]),
            ("a = \"x # y\" 'z'\nb = \\#1\\n\n", &["default.a=x # y z", "default.b=#1\n"]),
            ("h = x\n[s]\nh = y\na = $h.${h}.$(h).$default::h\n", &["default.h=x", "s.h=y", "s.a=y.y.y.x"]),
            ("[s]\nt::a = 1\n", &["t.a=1"]),
            ("\u{feff}[s]\r\na = 1\r\n", &["s.a=1"]),
            (".pragma = dollarid:true\na = 1", &["default.a=1"]),
            ("# [ not\n#a\n\n", &[]),
            ("a = 'never closed", &["default.a=never closed"]),
        ] {
            assert_eq!(values(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_cannot_be_known_is_said_with_its_line() {
        for (text, why) in [
            ("\n[ s\n", "line 2: [ without ]"),
            ("a = 1\nb\n", "line 2: neither a section nor key = value"),
            ("a = $b\n", "line 1: the variable $b has no value"),
            ("a = ${b\n", "line 1: $b has no closing brace"),
            ("a = $ENV::HOME\n", "line 1: $ENV::HOME is from an environment that is not known here"),
            ("a=1\n.include /etc/x\n", "line 2: .include is not followed: what it names is not known here"),
        ] {
            assert_eq!(Conf::parse(text).expect_err(text), why);
        }
    }
}
