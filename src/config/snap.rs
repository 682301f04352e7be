//! The configuration as snapd keeps it: what `snap set ipguard KEY=VALUE` was told.
//!
//! In: the JSON document of `snapctl get -d`. Out: a configuration file, or every reason why there is none. The rule of
//! this file: it knows no key. Names come from the table that reads the file, and values are judged by the same reader,
//! so that a key which is new there can be set here too.

use serde_json::{Map, Value};

use crate::config::file;
use crate::config::print::string;
use crate::config::table::TABLES;

/// Why what snapd keeps is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SnapConfigError {
    /// `snapctl` failed, most likely: then there is no document at all.
    #[error("what snapctl printed is not the JSON document of `snapctl get -d`")]
    NoDocument(#[from] serde_json::Error),
    /// A value is wrong; each reason is a line.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
}

/// The keys to ask snapd for: snapctl gives nothing that it was not asked for by name.
pub fn keys() -> Vec<String> {
    let takes_keys = |key: &str| heading(key).is_none_or(|heading| !known(heading).is_empty());
    known("").iter().filter(|key| takes_keys(key)).map(|key| dashed(key)).collect()
}

/// The configuration file that says the same.
///
/// # Errors
/// There is no document, or the reader of the file refuses what it says.
pub fn to_toml(document: &str) -> Result<String, SnapConfigError> {
    let document: Map<String, Value> = serde_json::from_str(document)?;
    let lines = document.iter().filter(|(_, value)| !value.is_null());
    let text: String = lines.map(|(key, value)| format!("{}\n", pair("", key, value))).collect();
    match file::parse(&text) {
        // Only what was set: a default written down would change its meaning with the next version.
        Ok(_) => Ok(format!("# Written by the snap: change it by `snap set`, what is edited here is lost.\n{text}")),
        // Lines and columns are those of a text that nobody has seen.
        Err(faults) => Err(SnapConfigError::Refused(faults.iter().map(|fault| as_set(&fault.message)).collect())),
    }
}

/// `key = value`, at a place of the file.
fn pair(place: &str, key: &str, value: &Value) -> String {
    let known = heading(place).map_or(&[][..], known);
    // snapd allows dashes in keys and no underscores.
    let name = known.iter().find(|name| dashed(name) == key);
    // What is not known is quoted, to be refused as the one key that it is.
    let written = name.map_or_else(|| string(key), |name| (*name).to_owned());
    let name = name.map_or(key, |name| *name);
    let below = if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    format!("{written} = {}", toml(&below, value))
}

fn toml(place: &str, value: &Value) -> String {
    match value {
        // Only inside lists: as the value of a key it is one that is not set.
        Value::Null => string(""),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| toml(place, item)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            let fields: Vec<String> = fields.map(|(key, value)| pair(place, key, value)).collect();
            format!("{{ {} }}", fields.join(", "))
        }
    }
}

/// The heading of a table by its path.
fn heading(place: &str) -> Option<&'static str> {
    TABLES.iter().map(|(heading, _)| *heading).find(|heading| heading.trim_matches(['[', ']']) == place)
}

fn known(heading: &str) -> &'static [&'static str] {
    TABLES.iter().find(|(other, _)| *other == heading).map_or(&[], |(_, keys)| keys)
}

fn dashed(key: &str) -> String {
    key.replace('_', "-")
}

/// A message with the names of keys as they are set.
fn as_set(message: &str) -> String {
    let keys = TABLES.iter().flat_map(|(_, keys)| *keys).filter(|key| key.contains('_'));
    keys.fold(message.to_owned(), |text, key| text.replace(key, &dashed(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// TOML as snapd would keep it.
    fn kept(value: &toml::Value) -> Value {
        match value {
            toml::Value::String(text) => Value::from(text.as_str()),
            toml::Value::Integer(number) => Value::from(*number),
            toml::Value::Boolean(truth) => Value::from(*truth),
            toml::Value::Array(items) => items.iter().map(kept).collect(),
            toml::Value::Table(table) => {
                Value::Object(table.iter().map(|(key, value)| (dashed(key), kept(value))).collect())
            }
            other => panic!("the configuration has no such value: {other:?}"),
        }
    }

    fn refused(document: &str) -> String {
        to_toml(document).expect_err("it is wrong").to_string()
    }

    #[test]
    fn every_key_of_the_file_can_be_set() {
        let text = include_str!("../../fixtures/config/valid/everything.toml");
        let tree: toml::Table = text.parse().expect("it is TOML");
        // The fixture has them all, or this test would prove nothing about a new one.
        let mut there = Vec::new();
        collect("", &tree, &mut there);
        for (heading, keys) in TABLES {
            for key in keys {
                let place = heading.trim_matches(['[', ']']);
                assert!(there.contains(&(place.to_owned(), (*key).to_owned())), "everything.toml has no {place} {key}");
            }
        }
        let Value::Object(mut document) = kept(&toml::Value::Table(tree)) else { panic!("a table is an object") };
        // Asked for by name, so what `keys` leaves out is never there.
        document.retain(|key, _| keys().contains(key));
        assert_eq!(document.len(), keys().len());
        let written = to_toml(&serde_json::to_string(&document).expect("plain values")).expect("all of it is right");
        assert_eq!(file::parse(&written), file::parse(text));
        assert_ne!(file::parse(&written), Ok(Config::default()));
    }

    /// Every key with the table it is in.
    fn collect(place: &str, table: &toml::Table, found: &mut Vec<(String, String)>) {
        for (key, value) in table {
            found.push((place.to_owned(), key.clone()));
            let below = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
            let items = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
            items.iter().filter_map(toml::Value::as_table).for_each(|table| collect(&below, table, found));
        }
    }

    #[test]
    fn nothing_set_is_the_defaults() {
        for document in ["{}", "{\"profile\": null, \"settle\": {\"quiet\": null}}"] {
            assert_eq!(file::parse(&to_toml(document).expect("nothing is wrong")), Ok(Config::default()));
        }
        assert!(keys().contains(&"settle".to_owned()) && !keys().contains(&"metrics".to_owned()));
        assert!(keys().iter().all(|key| !key.contains('_')));
    }

    #[test]
    fn only_what_was_set_is_written() {
        let written = to_toml(r#"{"settle": {"promotion-hold": "9s"}, "observe": true}"#).expect("nothing is wrong");
        let lines: Vec<&str> = written.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(lines, ["observe = true", "settle = { promotion_hold = \"9s\" }"]);
        assert_eq!(file::meaning(&written), file::meaning("[settle]\npromotion_hold = \"9s\"\n"));
    }

    #[test]
    fn a_wrong_value_is_refused_with_the_words_of_the_reader_and_the_names_of_snapd() {
        assert_eq!(
            refused(r#"{"settle": {"promotion-hold": 5}, "certificate": {"extra-sans": "a.example"}}"#),
            "`certificate.extra-sans` must be an array of strings, not a string\n\
             `settle.promotion-hold` must be a duration such as 5s, 500ms, 24h, 365d or 1h30m: the number 5 has no unit"
        );
        assert!(refused(r#"{"settle": {"quite": "5s"}}"#).contains("did you mean `quiet`?"));
        assert!(refused(r#"{"restart": {"limit": 1.5}}"#).contains("`restart.limit` must be a number"));
        assert!(refused(r#"{"observe": "yes"}"#).contains("`observe` must be true or false, not a string"));
        assert!(refused(r#"{"addresses": {"rule": {"class": "primary"}}}"#).contains("in double brackets"));
        assert!(refused(r#"{"addresses": {"pin": [null]}}"#).contains("`addresses.pin`"));
    }

    #[test]
    fn what_is_no_document_is_no_configuration() {
        for document in ["", "null", "[]", "settle.quiet 5s", "{\"settle\":"] {
            assert!(matches!(to_toml(document), Err(SnapConfigError::NoDocument(_))), "{document:?}");
        }
    }

    #[test]
    fn no_value_breaks_out_of_its_quotes() {
        let hostile = "x\"\n[settle]\nquiet = \"1ms";
        let document = serde_json::json!({ "profile": hostile, "a\"\n\nobserve = true #": 1 }).to_string();
        let said = refused(&document);
        assert!(said.contains("`profile` must not have control characters") && said.contains("unknown key"), "{said}");
    }
}
