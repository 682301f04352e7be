//! Trees by their request templates. What openssl makes of the request files is judged for every row (`play.rs`), and for
//! many more shapes in `tests/pki/templates.rs`.

use std::fs;

use crate::play::{NODE, Row, SECOND, SHIPPED, play};
use crate::runner::Case;
use crate::stage::age::Age;
use crate::stage::tree::{MARKER, template};

pub(crate) const CASES: &[Case] = &[
    Case {
        name: "templates::a-users-ip-3",
        play: |t| play(&names(&["IP.3 = 203.0.113.3", "DNS.6 = k8s.example.com"]), t),
        patience: 60,
    },
    Case {
        name: "templates::numbers-that-clash",
        play: |t| play(&names(&["IP.2 = 203.0.113.3", "DNS.1 = k8s.example.com"]), t),
        patience: 60,
    },
    Case {
        name: "templates::the-marker-first",
        play: |t| play(&names(&[MARKER, " IP.30 = 203.0.113.3", "\tDNS.x=k8s.example.com"]), t),
        patience: 60,
    },
    Case { name: "templates::without-the-marker", play: |t| play(&manual(), t), patience: 60 },
    Case { name: "templates::without-the-marker-and-a-name-more", play: |t| play(&manual_name(), t), patience: 60 },
    Case { name: "templates::a-line-without-sense", play: |t| play(&broken(), t), patience: 60 },
    Case { name: "templates::a-line-without-sense-in-step", play: |t| play(&broken_in_step(), t), patience: 60 },
    Case { name: "templates::gone", play: |t| play(&gone(), t), patience: 60 },
    Case { name: "templates::ninety-days", play: |t| play(&ninety_days(), t), patience: 60 },
];

/// Two names more, whatever numbers they have: one certificate for them and the address.
fn names(lines: &[&str]) -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.args.insert("csr.conf.template".to_owned(), lines.iter().map(|line| (*line).to_owned()).collect());
    row.reasons = vec![("configured-san-missing", "server"), ("address-missing", "server")];
    row.steps[0] = "reissue server with 11 names (adding 198.51.100.7)".to_owned();
    row.names.iter_mut().for_each(|names| names.extend(["203.0.113.3", "DNS:k8s.example.com"].map(str::to_owned)));
    row
}

/// The names are all there are, and that is said.
fn manual() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.args.insert("csr.conf.template".to_owned(), vec![format!("(no {MARKER})"), format!("IP.3 = {NODE}")]);
    let mut row = row.held(&["manual-template"]);
    row.reasons.clear();
    row.said = "198.51.100.7 is not among them";
    row
}

/// Exactly the template's names: the address that the certificate had goes, for nobody asks for it here.
fn manual_name() -> Row {
    let mut row = Row::of(Age::V1_28);
    let lines = [format!("(no {MARKER})"), "DNS.6 = k8s.example.com".to_owned()];
    row.spec.args.insert("csr.conf.template".to_owned(), lines.into());
    row.reasons = vec![("configured-san-missing", "server")];
    row.holds = vec!["manual-template"];
    row.steps[0] = format!("reissue server with 8 names (dropping {NODE})");
    // The request file has been the template all the time.
    row.written = vec![("certs/server.crt", 0o660)];
    row.names = Some(SHIPPED.iter().copied().chain(["DNS:k8s.example.com"]).map(str::to_owned).collect());
    row
}

/// Addresses are followed with the names that are there; the request file waits for its template.
fn broken() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.prepare = |tree| Ok(fs::write(tree.data("certs/csr.conf.template"), template(&["IP.3 192.0.2.3".to_owned()]))?);
    row.holds = vec!["template-unreadable"];
    row.said = "line 27: neither a section nor key = value";
    row.written = vec![("certs/server.crt", 0o660)];
    row
}

fn broken_in_step() -> Row {
    let mut row = broken();
    row.spec.sans.push(SECOND.to_owned());
    row.reasons.clear();
    let names = row.names.take();
    let mut row = row.held(&["template-unreadable"]);
    row.names = names;
    row
}

fn gone() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.prepare = |tree| Ok(fs::remove_file(tree.data("certs/csr.conf.template"))?);
    row.written = vec![("certs/server.crt", 0o660)];
    row
}

/// The validity that the template asks for, where the configuration says nothing.
fn ninety_days() -> Row {
    let mut row = Row::of(Age::V1_28);
    row.spec.template =
        Some(template(&[]).replace("default_bits = 2048\n", "default_bits = 2048\ndefault_days = 90\n"));
    row.days = Some(90);
    row
}
