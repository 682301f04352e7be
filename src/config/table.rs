//! A table of the configuration file, read key by key, with the place of every value.
//!
//! In: the parsed tree with its spans. Out: values, and every fault found on the way. The rule of this file: reading
//! goes on after a fault, so that the operator sees all of them at once; which keys there are is data ([`TABLES`]).

use std::ops::Range;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use crate::config::address::quoted;
use crate::config::duration;
use crate::config::suggest::nearest;

/// Every table of the file with its keys; the first is the file itself.
pub(super) const TABLES: [(&str, &[&str]); 11] = [
    (
        "",
        &[
            "profile",
            "observe",
            "addresses",
            "certificate",
            "settle",
            "restart",
            "probe",
            "service",
            "chores",
            "log",
            "metrics",
        ],
    ),
    ("[addresses]", &["pin", "secondary", "rule"]),
    ("[[addresses.rule]]", &["name", "address", "cidr", "interface", "kind", "protocol", "class"]),
    (
        "[certificate]",
        &["extra_sans", "validity", "authority_key_id", "renew_before", "foreign_bundle", "retain", "reissue_limit"],
    ),
    ("[settle]", &["quiet", "max", "promotion_hold", "boot"]),
    ("[restart]", &["limit", "window", "jitter", "policy"]),
    ("[probe]", &["reload_timeout"]),
    ("[[service]]", &["name", "role", "unit", "snap"]),
    ("[chores]", &["permissions", "hooks", "registry"]),
    ("[log]", &["level"]),
    ("[metrics]", &[]),
];

/// What is wrong, and the byte of the file where it is.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<(usize, String)>);

impl Faults {
    pub(super) fn add(&mut self, at: usize, message: impl Into<String>) {
        self.0.push((at, message.into()));
    }
}

/// One table, its unknown keys already reported.
#[derive(Debug)]
pub(super) struct Table<'a> {
    heading: &'static str,
    values: &'a DeTable<'a>,
    /// Where the table begins: the place of what is missing from it.
    pub(super) at: usize,
    /// Every key is known: only then is a key that is missing really missing, and not misspelt.
    pub(super) all_known: bool,
}

impl<'a> Table<'a> {
    /// Opens a table of [`TABLES`].
    pub(super) fn open(heading: &'static str, values: &'a DeTable<'a>, at: usize, faults: &mut Faults) -> Self {
        let mut table = Self { heading, values, at, all_known: true };
        let known = table.known();
        for key in values.keys().filter(|key| !known.contains(&&**key.get_ref())) {
            faults.add(key.span().start, unknown_key(heading, known, key.get_ref()));
            table.all_known = false;
        }
        table
    }

    fn known(&self) -> &'static [&'static str] {
        TABLES.iter().find(|(heading, _)| *heading == self.heading).map_or(&[], |(_, keys)| keys)
    }

    fn value(&self, key: &str) -> Option<(Range<usize>, &'a DeValue<'a>)> {
        debug_assert!(self.known().contains(&key), "{key} is not a key of {}", self.heading);
        self.values.get(key).map(|value| (value.span(), value.get_ref()))
    }

    /// Where the value of the first of these keys is, for a fault that concerns them together.
    pub(super) fn place_of(&self, keys: &[&str]) -> usize {
        keys.iter().find_map(|key| self.value(key)).map_or(self.at, |(span, _)| span.start)
    }

    /// Whether the key is written at all, well or badly.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value of a key; `parse` completes the sentence that begins with the key when it refuses.
    pub(super) fn read<T>(
        &self,
        key: &str,
        faults: &mut Faults,
        parse: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        let (span, value) = self.value(key)?;
        parse(value).map_err(|rest| faults.add(span.start, format!("{} {rest}", self.full(key)))).ok()
    }

    /// The strings of an array, each parsed on its own.
    pub(super) fn read_list<T>(
        &self,
        key: &str,
        faults: &mut Faults,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let (span, value) = self.value(key)?;
        let Some(items) = value.as_array() else {
            faults.add(span.start, format!("{} must be an array of strings, not {}", self.full(key), type_of(value)));
            return None;
        };
        let mut read = Vec::with_capacity(items.len());
        for item in items {
            let parsed = match item.get_ref().as_str() {
                Some(text) => parse(text),
                None => Err(format!("must be an array of strings, and has {} in it", type_of(item.get_ref()))),
            };
            match parsed {
                Ok(value) => read.push(value),
                Err(rest) => faults.add(item.span().start, format!("{} {rest}", self.full(key))),
            }
        }
        Some(read)
    }

    /// A table below this one; absent reads like empty.
    pub(super) fn table(&self, key: &str, heading: &'static str, faults: &mut Faults) -> Option<Self> {
        let (span, value) = self.value(key)?;
        if value.as_table().is_none() {
            faults.add(span.start, format!("`{key}` must be a table, written as {heading}, not {}", type_of(value)));
        }
        value.as_table().map(|values| Table::open(heading, values, span.start, faults))
    }

    /// The tables of an array of tables below this one.
    pub(super) fn tables(&self, key: &str, heading: &'static str, faults: &mut Faults) -> Vec<Self> {
        let Some((span, value)) = self.value(key) else {
            return Vec::new();
        };
        let mut tables = Vec::new();
        let wrong = |value: &DeValue<'_>| match value {
            // The common slip: one table where an array of them belongs.
            DeValue::Table(_) => format!("`{key}` must be written as {heading}, in double brackets"),
            other => format!("`{key}` must be written as {heading}, not as {}", type_of(other)),
        };
        match value.as_array() {
            None => faults.add(span.start, wrong(value)),
            Some(items) => {
                for item in items {
                    match item.get_ref().as_table() {
                        Some(values) => tables.push(Table::open(heading, values, item.span().start, faults)),
                        None => faults.add(item.span().start, wrong(item.get_ref())),
                    }
                }
            }
        }
        tables
    }

    /// The key as messages name it: `` `settle.quiet` ``.
    fn full(&self, key: &str) -> String {
        match self.heading.trim_matches(['[', ']']) {
            "" => format!("`{key}`"),
            table => format!("`{table}.{key}`"),
        }
    }
}

fn unknown_key(heading: &str, known: &[&'static str], key: &str) -> String {
    let place = if heading.is_empty() { "at the top of the file".to_owned() } else { format!("in {heading}") };
    let said = format!("unknown key {} {place}", quoted(key));
    if known.is_empty() {
        return format!("{said}: the table is reserved and takes no keys yet");
    }
    if let Some(near) = nearest(key, known.iter().copied()) {
        return format!("{said}: did you mean `{near}`?");
    }
    // A key after a table's heading belongs to that table, which is how `observe` ends up in [settle].
    match TABLES.iter().find(|(_, keys)| keys.contains(&key)) {
        Some(("", _)) => format!("{said}: it belongs at the top of the file, before the first table"),
        Some((other, _)) => format!("{said}: it belongs in {other}"),
        None => format!("{said}: known are {}", listed(known.iter().map(|key| format!("`{key}`")), "and")),
    }
}

/// "a, b and c".
fn listed(words: impl Iterator<Item = String>, last: &str) -> String {
    let words: Vec<String> = words.collect();
    match words.split_last() {
        Some((only, [])) => only.clone(),
        Some((end, others)) => format!("{} {last} {end}", others.join(", ")),
        None => String::new(),
    }
}

/// The type with its article, for "not an integer".
fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

/// `true` or `false`, without quotes.
pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("must be true or false, not {}", type_of(value)))
}

/// A string that prints as one line.
pub(super) fn text<'v>(value: &'v DeValue<'_>) -> Result<&'v str, String> {
    let text = value.as_str().ok_or_else(|| format!("must be a string, not {}", type_of(value)))?;
    match text {
        "" => Err("must not be empty".to_owned()),
        _ if text.contains(char::is_control) => Err(format!("must not have control characters: {}", quoted(text))),
        _ => Ok(text),
    }
}

/// A duration.
pub(super) fn duration(value: &DeValue<'_>) -> Result<Duration, String> {
    let must = format!("must be a duration such as {}", duration::EXAMPLES);
    match value {
        DeValue::String(text) => duration::parse(text).map_err(|why| format!("{must}: {why}")),
        DeValue::Integer(number) => Err(format!("{must}: the number {number} has no unit")),
        other => Err(format!("{must}, not {}", type_of(other))),
    }
}

/// A duration of at least a millisecond.
pub(super) fn positive_duration(value: &DeValue<'_>) -> Result<Duration, String> {
    match duration(value)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        other => Ok(other),
    }
}

/// A whole number, as TOML's 64 bits have it; `must` says what would be right.
pub(super) fn integer(value: &DeValue<'_>, must: &str) -> Result<i64, String> {
    let number = value.as_integer().ok_or_else(|| format!("{must}, not {}", type_of(value)))?;
    i64::from_str_radix(number.as_str(), number.radix()).map_err(|_| format!("{must}, not {number}"))
}

/// A number of times that something may happen in a period: one at least (there are better switches to turn it off),
/// and no more than a limit can be without limiting nothing.
pub(super) fn limit(value: &DeValue<'_>) -> Result<u32, String> {
    let must = "must be a number from 1 to 1000";
    let number = integer(value, must)?;
    match u32::try_from(number) {
        Ok(number @ 1..=1000) => Ok(number),
        _ => Err(format!("{must}, not {number}")),
    }
}

/// One of a closed set of words.
pub(super) fn choice<T: Copy>(value: &DeValue<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let must = format!("must be {}", listed(words.iter().map(|(word, _)| format!("{word:?}")), "or"));
    let Some(text) = value.as_str() else {
        return Err(format!("{must}, not {}", type_of(value)));
    };
    if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
        return Ok(*meaning);
    }
    Err(match nearest(text, words.iter().map(|(word, _)| *word)) {
        Some(near) => format!("{must}, not {}; did you mean {near:?}?", quoted(text)),
        None => format!("{must}, not {}", quoted(text)),
    })
}
