//! `explain`: every address with its class, the rule that decided and what the rule saw.
//!
//! In: a plan and the names of the certificate. Out: an aligned table, or the JSON document. The rule of this file: a
//! verdict is shown as it was made; nothing is left out for being uninteresting.

use std::net::IpAddr;

use serde::Serialize;

use crate::decide::plan::Plan;
use crate::decide::verdict::{Class, Verdict};
use crate::facts::network::Family;
use crate::facts::san::{San, SanSet};
use crate::report::{Paint, VERSION, json, printable};

const HEADINGS: [&str; 6] = ["ADDRESS", "INTERFACE", "CLASS", "RULE", "IN CERTIFICATE", "WHY"];
/// The column of the class, for its colour.
const CLASS: usize = 2;

/// Every address, as a table: primary ones first, then by link and value. Lines are as long as their evidence.
pub fn table(plan: &Plan, in_certificate: &SanSet, colour: bool) -> String {
    let verdicts = sorted(plan);
    if verdicts.is_empty() {
        return "no addresses\n".to_owned();
    }
    let rows: Vec<[String; 6]> = verdicts.iter().map(|verdict| row(plan, in_certificate, verdict)).collect();
    let mut widths = HEADINGS.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }

    let mut text = String::new();
    line(&mut text, &HEADINGS.map(str::to_owned), &widths, |_, cell| Paint::Bold.on(cell, colour));
    for (row, verdict) in rows.iter().zip(&verdicts) {
        line(&mut text, row, &widths, |column, cell| match column {
            CLASS => paint(verdict.class).on(cell, colour),
            _ => cell.to_owned(),
        });
    }
    if verdicts.iter().any(|verdict| is_node_address(plan, verdict.address)) {
        text.push_str("\n* the node address of its family\n");
    }
    text
}

fn row(plan: &Plan, in_certificate: &SanSet, verdict: &Verdict) -> [String; 6] {
    let mark = if is_node_address(plan, verdict.address) { " *" } else { "" };
    let (address, interface) = if verdict.interface.is_empty() {
        // Pinned, and not on the host: there is no prefix either.
        (format!("{}{mark}", verdict.address), "-".to_owned())
    } else {
        (format!("{}/{}{mark}", verdict.address, verdict.prefix_len), printable(&verdict.interface).into_owned())
    };
    let known = if in_certificate.contains(&San::ip(verdict.address)) { "yes" } else { "no" };
    let why = printable(&verdict.evidence).into_owned();
    [address, interface, name(verdict.class).to_owned(), verdict.rule.to_owned(), known.to_owned(), why]
}

/// One line of the table. The last column is not padded, so that no line ends in spaces.
fn line(out: &mut String, cells: &[String; 6], widths: &[usize; 6], paint: impl Fn(usize, &str) -> String) {
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        out.push_str(&paint(column, cell));
        if column + 1 < cells.len() {
            out.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// The JSON document.
pub fn document(plan: &Plan, in_certificate: &SanSet) -> String {
    render(plan, in_certificate, &sorted(plan))
}

/// The JSON document with one address only; `None` when that one is neither on the host nor pinned.
pub fn document_of(plan: &Plan, in_certificate: &SanSet, address: IpAddr) -> Option<String> {
    let address = address.to_canonical();
    let verdict = plan.addresses.iter().find(|verdict| verdict.address == address)?;
    Some(render(plan, in_certificate, &[verdict]))
}

fn render(plan: &Plan, in_certificate: &SanSet, verdicts: &[&Verdict]) -> String {
    let row = |verdict: &&'_ Verdict| Row {
        address: verdict.address,
        prefix_len: verdict.prefix_len,
        interface: Some(verdict.interface.clone()).filter(|name| !name.is_empty()),
        link_kind: verdict.link_kind.clone(),
        class: verdict.class,
        rule: verdict.rule,
        evidence: verdict.evidence.clone(),
        in_certificate: in_certificate.contains(&San::ip(verdict.address)),
        node_address: is_node_address(plan, verdict.address),
    };
    let node = |family| plan.node_address.get(&family).copied();
    json(&Document {
        version: VERSION,
        addresses: verdicts.iter().map(row).collect(),
        node_address: NodeAddress { ipv4: node(Family::Ipv4), ipv6: node(Family::Ipv6) },
    })
}

#[derive(Serialize)]
struct Document {
    version: u32,
    addresses: Vec<Row>,
    node_address: NodeAddress,
}

#[derive(Serialize)]
struct Row {
    address: IpAddr,
    prefix_len: u8,
    /// Null for a pinned address that is not on the host.
    interface: Option<String>,
    link_kind: Option<String>,
    class: Class,
    rule: &'static str,
    evidence: String,
    in_certificate: bool,
    node_address: bool,
}

#[derive(Serialize)]
struct NodeAddress {
    ipv4: Option<IpAddr>,
    ipv6: Option<IpAddr>,
}

/// By class in the order of what matters, then by link and value: the kernel's order changes, this one does not.
fn sorted(plan: &Plan) -> Vec<&Verdict> {
    let mut verdicts: Vec<&Verdict> = plan.addresses.iter().collect();
    verdicts.sort_by(|a, b| {
        (a.class, &a.interface, a.address, a.prefix_len).cmp(&(b.class, &b.interface, b.address, b.prefix_len))
    });
    verdicts
}

pub(super) fn is_node_address(plan: &Plan, address: IpAddr) -> bool {
    plan.node_address.values().any(|node| *node == address)
}

pub(super) const fn name(class: Class) -> &'static str {
    match class {
        Class::Primary => "primary",
        Class::Secondary => "secondary",
        Class::LbOwned => "lb-owned",
        Class::Ignored => "ignored",
        Class::Unsettled => "unsettled",
    }
}

pub(super) const fn paint(class: Class) -> Paint {
    match class {
        Class::Primary => Paint::Green,
        Class::Secondary => Paint::Yellow,
        Class::LbOwned => Paint::Cyan,
        Class::Ignored => Paint::Dim,
        Class::Unsettled => Paint::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{ip, node, plan, sans, verdict};

    #[test]
    fn the_table_is_aligned_and_sorted_and_ends_no_line_in_spaces() {
        let expected = "\
ADDRESS           INTERFACE  CLASS      RULE         IN CERTIFICATE  WHY
203.0.113.50      -          primary    pinned       no              evidence of pinned
192.0.2.10/24 *   eth0       primary    incumbent    yes             evidence of incumbent
2001:db8::2/64 *  eth0       primary    uplink       no              evidence of uplink
198.51.100.2/24   eth1       primary    uplink       no              evidence of uplink
192.0.2.77/32     eth0       secondary  host-prefix  no              renamed to eth\\u{1b}[2J
192.0.2.240/32    kube-lb0   lb-owned   known-link   yes             evidence of known-link
2001:db8::10/64   eth0       unsettled  tentative    no              evidence of tentative
127.0.0.1/8       lo         ignored    by-value     no              evidence of by-value

* the node address of its family
";
        assert_eq!(table(&node(), &sans(&["kubernetes", "192.0.2.10", "192.0.2.240"]), false), expected);
    }

    #[test]
    fn colour_changes_no_column() {
        let (plan, known) = (node(), sans(&["192.0.2.10"]));
        let coloured = table(&plan, &known, true);
        assert!(coloured.contains("\u{1b}[32mprimary\u{1b}[0m    incumbent"), "{coloured}");
        let mut plain = coloured;
        for code in [1, 2, 31, 32, 33, 36, 0] {
            plain = plain.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(plain, table(&plan, &known, false));
    }

    #[test]
    fn a_host_without_addresses_has_no_table() {
        assert_eq!(table(&plan(), &SanSet::new(), false), "no addresses\n");
    }

    #[test]
    fn long_evidence_stays_on_its_line_and_an_empty_one_leaves_no_space() {
        let mut plan = plan();
        plan.addresses = vec![verdict("192.0.2.10", 24, "eth0", Class::Primary, "uplink")];
        plan.addresses[0].evidence = "x".repeat(500);
        assert_eq!(table(&plan, &SanSet::new(), false).lines().count(), 2);
        plan.addresses[0].evidence.clear();
        assert!(table(&plan, &SanSet::new(), false).ends_with("  no\n"));
    }

    #[test]
    fn the_document_has_exactly_the_stable_fields() {
        let mut plan = node();
        plan.addresses.truncate(2);
        plan.addresses.push(verdict("203.0.113.50", 32, "", Class::Primary, "pinned"));
        plan.node_address.remove(&Family::Ipv6);
        let expected = r#"{
  "version": 1,
  "addresses": [
    {
      "address": "203.0.113.50",
      "prefix_len": 32,
      "interface": null,
      "link_kind": null,
      "class": "primary",
      "rule": "pinned",
      "evidence": "evidence of pinned",
      "in_certificate": false,
      "node_address": false
    },
    {
      "address": "192.0.2.10",
      "prefix_len": 24,
      "interface": "eth0",
      "link_kind": null,
      "class": "primary",
      "rule": "incumbent",
      "evidence": "evidence of incumbent",
      "in_certificate": true,
      "node_address": true
    },
    {
      "address": "127.0.0.1",
      "prefix_len": 8,
      "interface": "lo",
      "link_kind": null,
      "class": "ignored",
      "rule": "by-value",
      "evidence": "evidence of by-value",
      "in_certificate": false,
      "node_address": false
    }
  ],
  "node_address": {
    "ipv4": "192.0.2.10",
    "ipv6": null
  }
}
"#;
        assert_eq!(document(&plan, &sans(&["192.0.2.10"])), expected);
    }

    #[test]
    fn the_document_of_one_address_has_only_that_one() {
        let plan = node();
        let one = document_of(&plan, &SanSet::new(), ip("::ffff:192.0.2.240")).expect("it is there");
        assert_eq!(one.matches("\"address\":").count(), 1);
        assert!(one.contains("\"link_kind\": \"dummy\""));
        assert_eq!(document_of(&plan, &SanSet::new(), ip("192.0.2.11")), None);
    }
}
