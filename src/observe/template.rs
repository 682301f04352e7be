//! The certificate request template: an OpenSSL request configuration (`openssl-req(1)`, config(5)).
//!
//! In: its text. Out: a [`Template`], or the line that makes no sense. The rule of this file: only what decides names and
//! subject is understood; everything else is the operator's and stays as it is.

use std::path::Path;

use crate::facts::cluster::{MARKER, Template};
use crate::facts::san::San;
use crate::facts::{Read, ReadError};
use crate::observe::file;

/// Reads and parses a template.
///
/// # Errors
/// The file cannot be read, or a line of the sections that matter cannot be parsed; the text names the line.
pub fn read(path: &Path) -> Read<Template> {
    let text = file::read_text(path)?;
    parse(&text).map_err(|why| ReadError::malformed(path, why))
}

/// A `key = value` line with its section and number.
struct Entry<'a> {
    section: &'a str,
    key: &'a str,
    value: &'a str,
    line: usize,
}

/// Parses a template's text.
///
/// # Errors
/// Says which line is wrong.
pub fn parse(text: &str) -> Result<Template, String> {
    let entries = entries(text)?;
    let value =
        |section: &str, key: &str| entries.iter().rev().find(|e| e.section == section && e.key == key).map(|e| e.value);
    let subject_section = value("req", "distinguished_name").unwrap_or("dn");
    let subject = entries
        .iter()
        .filter(|e| e.section == subject_section)
        // `0.OU = …` and `1.OU = …` are how OpenSSL writes an attribute twice.
        .map(|e| (e.key.split_once('.').map_or(e.key, |(_, name)| name).to_owned(), e.value.to_owned()))
        .collect();
    let names_section = entries
        .iter()
        .filter(|e| e.key == "subjectAltName")
        .find_map(|e| e.value.strip_prefix('@'))
        .unwrap_or("alt_names");
    let mut sans = Vec::new();
    for entry in entries.iter().filter(|e| e.section == names_section) {
        let kind = entry.key.split_once('.').map_or(entry.key, |(kind, _)| kind);
        let san: San = entry.value.parse().map_err(|error| format!("line {}: {error}", entry.line))?;
        match (kind, &san) {
            ("DNS", San::Dns(_)) | ("IP", San::Ip(_)) => sans.push(san),
            // OpenSSL would sign `DNS = 192.0.2.1` as a host name that no client ever asks for.
            _ => return Err(format!("line {}: {} is not a {kind} name", entry.line, entry.value)),
        }
    }
    let marker = text.lines().any(|line| line.trim() == MARKER);
    Ok(Template { text: text.to_owned(), sans, subject, marker })
}

fn entries(text: &str) -> Result<Vec<Entry<'_>>, String> {
    let mut section = "default";
    let mut entries = Vec::new();
    for (index, raw) in text.lines().enumerate() {
        let content = raw.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        if let Some(name) = content.strip_prefix('[') {
            section = name.strip_suffix(']').ok_or_else(|| format!("line {}: [ without ]", index + 1))?.trim();
            continue;
        }
        let (key, value) =
            content.split_once('=').ok_or_else(|| format!("line {}: neither a section nor key = value", index + 1))?;
        entries.push(Entry { section, key: key.trim(), value: unquote(value.trim()), line: index + 1 });
    }
    Ok(entries)
}

fn unquote(value: &str) -> &str {
    value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[ req ]\ndefault_bits = 2048\ndistinguished_name = dn\nreq_extensions = ext\n\n[ dn ]\nC = GB\n\
        O = Canonical # the maker\n0.OU = one\n1.OU = two\nCN = 127.0.0.1\n\n[ ext ]\nsubjectAltName = @names\n\n\
        [ names ]\nDNS.1 = kubernetes\n   IP.1 = 127.0.0.1\nIP.99=2001:DB8::7\n#MOREIPS\n";

    #[test]
    fn names_and_subject_are_found_through_their_sections() {
        let template = parse(TEXT).expect("a good template");
        let sans: Vec<String> = template.sans.iter().map(San::to_string).collect();
        assert_eq!(sans, ["kubernetes", "127.0.0.1", "2001:db8::7"]);
        let subject: Vec<String> = template.subject.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(subject, ["C=GB", "O=Canonical", "OU=one", "OU=two", "CN=127.0.0.1"]);
        assert!(template.marker);
        assert!(!parse(&TEXT.replace("#MOREIPS", "# MOREIPS, no more")).expect("good").marker);
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = |from: &str, to: &str| parse(&TEXT.replace(from, to)).expect_err("a bad template");
        assert_eq!(error("DNS.1 = kubernetes", "DNS.1 kubernetes"), "line 17: neither a section nor key = value");
        assert!(error("IP.1 = 127.0.0.1", "IP.1 = 127.0.0.300").starts_with("line 18: "));
        assert_eq!(error("IP.1 = 127.0.0.1", "DNS.2 = 127.0.0.1"), "line 18: 127.0.0.1 is not a DNS name");
        assert_eq!(error("[ names ]", "[ names "), "line 16: [ without ]");
    }
}
