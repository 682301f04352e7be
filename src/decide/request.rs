//! `csr.conf`: the template with more names in the place of its marker.
//!
//! In: the template, the certificate's names. Out: text that `openssl req -config` reads. The rule of this file: the
//! operator's own lines stay byte for byte, and no number is used twice.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::facts::cluster::Template;
use crate::facts::san::{San, SanSet};

/// Renders the request configuration for a set of names.
pub fn render(template: &Template, sans: &SanSet) -> String {
    let Some(place) = template.place.clone().filter(|_| template.marker) else { return template.text.clone() };
    let mut more = String::new();
    for (kind, names) in [("DNS", names_of(sans, template, false)), ("IP", names_of(sans, template, true))] {
        let mut used = numbers(&template.text, kind);
        let mut number = 1;
        for name in names {
            while used.contains(&number) {
                number += 1;
            }
            used.insert(number);
            // Writing to a string cannot fail.
            let _ = writeln!(more, "{kind}.{number} = {name}");
        }
    }
    let (before, after) = (&template.text[..place.start], &template.text[place.end..]);
    // Behind the last name rather than in place of the marker. A text that ends in a backslash goes on with one line.
    let on_a_line_of_its_own = match before {
        _ if !place.is_empty() || more.is_empty() => "",
        unfinished if unfinished.ends_with('\\') => "\n\n",
        _ => "\n",
    };
    format!("{before}{on_a_line_of_its_own}{}{after}", more.trim_end())
}

/// Names that the template does not have itself, or not where OpenSSL sees them.
fn names_of(sans: &SanSet, template: &Template, addresses: bool) -> Vec<String> {
    let seen = |san: &San| {
        let entries = template.sans.iter().filter(|entry| *entry == san).count();
        entries > template.overridden.iter().filter(|entry| *entry == san).count()
    };
    sans.iter().filter(|san| matches!(san, San::Ip(_)) == addresses && !seen(san)).map(San::to_string).collect()
}

/// Numbers already in use: `IP.3` and `IP.30` are two. One in another section or a comment is left out as well.
fn numbers(text: &str, kind: &str) -> BTreeSet<u32> {
    text.lines()
        .filter_map(|line| {
            let entry = line.split_once('=').map_or(line, |(name, _)| name);
            let name = entry.rsplit("::").next().unwrap_or(entry);
            let rest = name.trim_start().strip_prefix(kind)?.strip_prefix('.')?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::cluster::MARKER;

    #[test]
    fn numbers_never_clash_and_the_operators_lines_stay() {
        let text = "[ alt_names ]\nDNS.1 = kubernetes\n  IP.1 = 127.0.0.1\nIP.30 = 203.0.113.7\nIP.3=10.0.0.1\n#MOREIPS\n[ v3 ]\n";
        let sans =
            ["kubernetes", "k8s.example.com", "127.0.0.1", "203.0.113.7", "10.0.0.1", "192.0.2.10", "2001:db8::1"];
        let parse = |list: &[&str]| list.iter().map(|s| s.parse().expect("a name")).collect::<Vec<San>>();
        let template = Template {
            text: text.to_owned(),
            sans: parse(&["kubernetes", "127.0.0.1", "203.0.113.7", "10.0.0.1"]),
            subject: Vec::new(),
            marker: true,
            place: text.find(MARKER).map(|at| at..at + MARKER.len()),
            overridden: Vec::new(),
            validity: None,
        };
        let rendered = render(&template, &parse(&sans).into_iter().collect());
        let expected = "[ alt_names ]\nDNS.1 = kubernetes\n  IP.1 = 127.0.0.1\nIP.30 = 203.0.113.7\nIP.3=10.0.0.1\n\
                        DNS.2 = k8s.example.com\nIP.2 = 192.0.2.10\nIP.4 = 2001:db8::1\n[ v3 ]\n";
        assert_eq!(rendered, expected);
    }
}
