//! The certificate request template: an OpenSSL request configuration (`openssl-req(1)`, config(5)).
//!
//! In: its text. Out: a [`Template`], or the line that makes no sense. The rule of this file: only what decides names,
//! subject and validity is understood; everything else is the operator's and stays as it is.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use crate::facts::cluster::{MARKER, Template};
use crate::facts::san::San;
use crate::facts::{Read, ReadError};
use crate::observe::file;
use crate::observe::openssl_conf::{BLANK, Conf};

/// The section whose extensions MicroK8s signs with (`openssl x509 -extensions v3_ext`).
const SIGNED_WITH: &str = "v3_ext";

/// Reads and parses a template.
///
/// # Errors
/// The file cannot be read, or a line of the sections that matter cannot be parsed; the text names the line.
pub fn read(path: &Path) -> Read<Template> {
    let text = file::read_text(path)?;
    parse(&text).map_err(|why| ReadError::malformed(path, why))
}

/// Parses a template's text.
///
/// # Errors
/// Says which line is wrong.
pub fn parse(text: &str) -> Result<Template, String> {
    let conf = Conf::parse(text)?;
    let subject_section = conf.value_of("req", "distinguished_name").unwrap_or("dn");
    let subject = conf
        .entries
        .iter()
        .filter(|e| e.section == subject_section)
        // `0.OU = …` and `1.OU = …` are how OpenSSL writes an attribute twice.
        .map(|e| (e.name.split_once('.').map_or(e.name.as_str(), |(_, name)| name).to_owned(), e.value.clone()))
        .collect();
    let (names_section, mut sans) = alternative_names(&conf)?;
    let mut overridden = Vec::new();
    for (index, entry) in conf.entries.iter().enumerate().filter(|(_, e)| Some(&e.section) == names_section.as_ref()) {
        let kind = entry.name.split_once('.').map_or(entry.name.as_str(), |(kind, _)| kind);
        let san = name(kind, &entry.value).map_err(|why| format!("line {}: {why}", entry.line))?;
        if conf.is_overridden(index) { overridden.push(san) } else { sans.push(san) }
    }
    let marks: Vec<Mark> = marks(text).collect();
    if !marks.is_empty() {
        // Whoever wrote two lines with one number means both, and where names may be added, both can be had.
        sans.extend(overridden.iter().cloned());
    }
    // Saved half-way, most likely; nothing can be served by what it asks for.
    if sans.is_empty() && marks.is_empty() {
        return Err(format!("it has no name and no {MARKER} line"));
    }
    let validity = conf.value_of("req", "default_days").and_then(|days| days.trim().parse().ok());
    Ok(Template {
        text: text.to_owned(),
        sans,
        subject,
        marker: !marks.is_empty(),
        place: names_section.and_then(|section| place(text, &conf, &section, &marks)),
        overridden,
        validity: validity.filter(|days| *days > 0).map(|days: u32| Duration::from_secs(u64::from(days) * 86_400)),
    })
}

/// The section of the names, or the names that stand in `subjectAltName` itself.
fn alternative_names(conf: &Conf) -> Result<(Option<String>, Vec<San>), String> {
    let named = |section: &str| conf.entries.iter().rev().find(|e| e.section == section && e.name == "subjectAltName");
    let of_request = conf.value_of("req", "req_extensions").and_then(named);
    let any = || conf.entries.iter().find(|e| e.name == "subjectAltName");
    let Some(entry) = named(SIGNED_WITH).or(of_request).or_else(any) else {
        return Ok((Some("alt_names".to_owned()), Vec::new()));
    };
    let value = entry.value.strip_prefix("critical,").unwrap_or(&entry.value).trim();
    let at_line = |why: String| format!("line {}: {why}", entry.line);
    if let Some(section) = value.strip_prefix('@') {
        // OpenSSL takes all that follows for the name of the section, commas too.
        if !conf.lines.iter().any(|line| line.section == section) {
            return Err(at_line(format!("there is no section {section}")));
        }
        return Ok((Some(section.to_owned()), Vec::new()));
    }
    let inline = value.split(',').map(|part| match part.split_once(':') {
        Some((kind, value)) => name(kind.trim(), value.trim()).map_err(at_line),
        // OpenSSL does not take a section among names either.
        None => Err(at_line(format!("{} is no name", part.trim()))),
    });
    Ok((None, inline.collect::<Result<_, _>>()?))
}

fn name(kind: &str, value: &str) -> Result<San, String> {
    let san: San = value.parse().map_err(|error: crate::facts::san::NotASan| error.to_string())?;
    match (kind, &san) {
        ("DNS", San::Dns(_)) | ("IP", San::Ip(_)) => Ok(san),
        // OpenSSL would sign `DNS = 192.0.2.1` as a host name that no client ever asks for.
        _ => Err(format!("{value} is not a {kind} name")),
    }
}

/// The marker at one place: the line it is on, and its bytes.
struct Mark {
    line: usize,
    bytes: Range<usize>,
}

/// Every marker: alone on its line, or behind an entry. One within a comment is talked about, and is none.
fn marks(text: &str) -> impl Iterator<Item = Mark> {
    lines(text).enumerate().filter_map(|(line, (start, content))| {
        let at = content.find(MARKER)?;
        let end = at + MARKER.len();
        let alone = content[..at].trim_matches(BLANK).is_empty();
        let behind_an_entry = !content[..at].contains('#') && content[..at].ends_with(BLANK);
        let ends = content[end..].chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '_');
        let bytes = start + at..start + if alone { content.trim_end().len() } else { end };
        ((alone || behind_an_entry) && ends).then_some(Mark { line, bytes })
    })
}

/// Where more names go. They count only in the section of names, wherever the marker is.
fn place(text: &str, conf: &Conf, section: &str, marks: &[Mark]) -> Option<Range<usize>> {
    let inside = |line: usize| conf.lines.get(line).is_some_and(|line| line.section == section);
    // Lines that backslashes make one are not taken apart.
    let whole = |line: usize| conf.lines.get(line).map_or((line, line), |line| line.whole);
    let all: Vec<(usize, &str)> = lines(text).collect();
    let at_end = |line: usize| {
        let (start, content) = all[whole(line).1];
        let end = start + content.len();
        end..end
    };
    if let Some(mark) = marks.iter().find(|mark| inside(mark.line)) {
        let alone = text[all[mark.line].0..mark.bytes.start].trim_matches(BLANK).is_empty();
        let alone = alone && whole(mark.line) == (mark.line, mark.line);
        return Some(if alone { mark.bytes.clone() } else { at_end(mark.line) });
    }
    (0..all.len()).rev().find(|line| inside(*line) && !all[*line].1.trim().is_empty()).map(at_end)
}

/// Lines with where they start, without their ends.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    text.split_inclusive('\n').map(move |line| {
        let at = start;
        start += line.len();
        (at, line.trim_end_matches(['\n', '\r']))
    })
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
    }

    /// A template with this for its section of names.
    fn with_names(names: &str) -> Template {
        parse(&TEXT.replace("#MOREIPS\n", &format!("{names}\n"))).expect("a good template")
    }

    fn texts(sans: &[San]) -> Vec<String> {
        sans.iter().map(San::to_string).collect()
    }

    #[test]
    fn the_marker_is_a_mark_and_not_a_word_in_a_comment() {
        for (names, marker) in [
            ("#MOREIPS", true),
            ("\t #MOREIPS \r", true),
            ("#MOREIPS (the node's own)", true),
            ("IP.7 = 192.0.2.7 #MOREIPS", true),
            ("# MOREIPS, no more", false),
            ("# the line #MOREIPS was taken out", false),
            ("#MOREIPSX", false),
            ("#moreips", false),
        ] {
            assert_eq!(with_names(names).marker, marker, "{names}");
        }
    }

    #[test]
    fn more_names_go_where_names_count() {
        let place = |text: &str| {
            let template = parse(text).expect("a good template");
            let place = template.place.expect("it has a section of names");
            (text[..place.start].lines().count(), text[place].to_owned())
        };
        assert_eq!(place(TEXT), (19, "#MOREIPS".to_owned()));
        let elsewhere = format!("#MOREIPS\n{}", TEXT.replace("#MOREIPS\n", "\n[ more ]\nx = y\n"));
        assert_eq!(place(&elsewhere), (20, String::new()), "behind the last name");
        let talked_about = TEXT.replacen("[ dn ]", "# not here: #MOREIPS\n[ dn ]", 1);
        assert_eq!(place(&talked_about), (20, "#MOREIPS".to_owned()));
        let none = "[ req ]\ndistinguished_name = dn\n#MOREIPS\n";
        assert_eq!(parse(none).expect("a good template").place, None);
    }

    /// OpenSSL takes the last of two entries with one number.
    #[test]
    fn two_names_with_one_number_are_both_meant_where_both_can_be_had() {
        let template = with_names("IP.1 = 192.0.2.1\n#MOREIPS");
        assert_eq!(texts(&template.sans), ["kubernetes", "2001:db8::7", "192.0.2.1", "127.0.0.1"]);
        assert_eq!(texts(&template.overridden), ["127.0.0.1"]);
        let manual = with_names("IP.1 = 192.0.2.1");
        assert_eq!(texts(&manual.sans), ["kubernetes", "2001:db8::7", "192.0.2.1"]);
    }

    #[test]
    fn names_of_the_section_that_is_signed_with() {
        let names = |extensions: &str| {
            let text = format!(
                "[ req ]\nreq_extensions = ext\n{extensions}\n[ a ]\nDNS.1 = a.example\n[ b ]\nDNS.1 = b.example\n"
            );
            parse(&text).map(|template| texts(&template.sans))
        };
        assert_eq!(
            names("[ ext ]\nsubjectAltName = @a\n[ v3_ext ]\nsubjectAltName = @b"),
            Ok(vec!["b.example".into()])
        );
        assert_eq!(names("[ other ]\nsubjectAltName = @b\n[ ext ]\nsubjectAltName = @a"), Ok(vec!["a.example".into()]));
        let inline = names("[ ext ]\nsubjectAltName = critical, DNS:c.example, IP:192.0.2.1");
        assert_eq!(inline, Ok(vec!["c.example".into(), "192.0.2.1".into()]));
        assert_eq!(names("[ ext ]\nsubjectAltName = critical,@a"), Ok(vec!["a.example".into()]));
        assert_eq!(names("[ ext ]\nsubjectAltName = DNS:c.example,@a"), Err("line 4: @a is no name".into()));
        assert_eq!(
            names("[ ext ]\nsubjectAltName = @a,DNS:c.example"),
            Err("line 4: there is no section a,DNS:c.example".into())
        );
        assert_eq!(names("[ ext ]\nsubjectAltName = @c"), Err("line 4: there is no section c".into()));
        for nameless in ["", "[ req ]\n", "[ req ]\ndistinguished_name = dn\n[ dn ]\nC = GB\n"] {
            assert_eq!(
                parse(nameless).map(|t| texts(&t.sans)),
                Err("it has no name and no #MOREIPS line".into()),
                "{nameless:?}"
            );
        }
        assert_eq!(names("[ ext ]\nsubjectAltName = email:copy"), Err("line 4: copy is not a email name".into()));
        assert_eq!(names("[ ext ]\nsubjectAltName = a"), Err("line 4: a is no name".into()));
    }

    #[test]
    fn validity() {
        let days = |text: &str| {
            let template = parse(&TEXT.replacen("default_bits = 2048", text, 1)).expect("a good template");
            template.validity.map(|validity| validity.as_secs() / 86_400)
        };
        assert_eq!(days("default_days = 90"), Some(90));
        assert_eq!(days("default_days = 0"), None);
        assert_eq!(days("default_days = soon"), None);
        assert_eq!(days("x = y"), None);
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
