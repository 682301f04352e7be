//! `csr.conf`: the template with the marker replaced by the node's addresses.
//!
//! In: the template, the certificate's names. Out: text that `openssl req -config` reads. The rule of this file: the
//! operator's own lines stay byte for byte, and no number is used twice.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::facts::cluster::{MARKER, Template};
use crate::facts::san::{San, SanSet};

/// Renders the request configuration for a set of names.
pub fn render(template: &Template, sans: &SanSet) -> String {
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
    template.text.replacen(MARKER, more.trim_end(), 1)
}

/// Names that the template does not have itself.
fn names_of(sans: &SanSet, template: &Template, addresses: bool) -> Vec<String> {
    sans.iter()
        .filter(|san| matches!(san, San::Ip(_)) == addresses && !template.sans.contains(san))
        .map(San::to_string)
        .collect()
}

/// Numbers already in use: `IP.3` and `IP.30` are two.
fn numbers(text: &str, kind: &str) -> BTreeSet<u32> {
    text.lines()
        .filter_map(|line| {
            let rest = line.trim_start().strip_prefix(kind)?.strip_prefix('.')?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        let rendered = render(&template, &parse(&sans).into_iter().collect());
        let expected = "[ alt_names ]\nDNS.1 = kubernetes\n  IP.1 = 127.0.0.1\nIP.30 = 203.0.113.7\nIP.3=10.0.0.1\n\
                        DNS.2 = k8s.example.com\nIP.2 = 192.0.2.10\nIP.4 = 2001:db8::1\n[ v3 ]\n";
        assert_eq!(rendered, expected);
    }
}
