//! `rollback`: the certificates that can be put back, and the one that was.

use std::fmt::Write as _;

use serde::Serialize;

use crate::act::generations::Generation;
use crate::decide::outcome::StepOutcome;
use crate::facts::san::San;
use crate::report::{VERSION, json, printable};

/// What can be put back, newest first, for people. The first column is what `rollback` takes.
pub fn table(certificate: &str, all: &[Generation]) -> String {
    if all.is_empty() {
        return format!("no earlier certificate of {certificate} is kept\n");
    }
    let mut out = String::from("N  generation  replaced              valid until           names\n");
    for (back, generation) in (1..).zip(all) {
        let (number, replaced, until) = (generation.number, generation.replaced, generation.leaf.not_after);
        let (replaced, until) = (replaced.to_string(), until.to_string());
        writeln!(out, "{back}  {number:<10}  {replaced:<20}  {until:<20}  {}", printable(&names(generation)))
            .expect("writing to a String does not fail");
    }
    out
}

/// The same for programs.
pub fn document(certificate: &str, all: &[Generation]) -> String {
    let generations = (1..).zip(all).map(|(back, generation)| entry(Some(back), generation)).collect();
    json(&List { version: VERSION, certificate, generations })
}

/// What was put back, for people.
pub fn put_back(certificate: &str, generation: &Generation) -> String {
    format!(
        "{certificate} is generation {} again ({}), valid until {}, with {}\n\
         it stays until `ipguard renew` or a changed configuration\n",
        generation.number,
        generation.leaf.fingerprint,
        generation.leaf.not_after,
        printable(&names(generation))
    )
}

/// The same for programs.
pub fn put_back_document(certificate: &str, generation: &Generation, outcomes: &[StepOutcome]) -> String {
    let outcomes = outcomes.iter().map(|outcome| format!("{}: {}", outcome.step, outcome.result)).collect();
    json(&PutBack { version: VERSION, certificate, generation: entry(None, generation), outcomes })
}

fn entry(back: Option<usize>, generation: &Generation) -> Entry {
    Entry {
        back,
        number: generation.number,
        replaced: generation.replaced.to_string(),
        not_before: generation.leaf.not_before.to_string(),
        not_after: generation.leaf.not_after.to_string(),
        fingerprint: generation.leaf.fingerprint.to_hex(),
        names: generation.leaf.sans.iter().map(San::to_string).collect(),
    }
}

fn names(generation: &Generation) -> String {
    generation.leaf.sans.iter().map(San::to_string).collect::<Vec<_>>().join(" ")
}

#[derive(Serialize)]
struct List<'a> {
    version: u32,
    certificate: &'a str,
    generations: Vec<Entry>,
}

#[derive(Serialize)]
struct PutBack<'a> {
    version: u32,
    certificate: &'a str,
    generation: Entry,
    outcomes: Vec<String>,
}

#[derive(Serialize)]
struct Entry {
    /// What `rollback` takes; not there for the one that was put back.
    #[serde(skip_serializing_if = "Option::is_none")]
    back: Option<usize>,
    number: u64,
    replaced: String,
    not_before: String,
    not_after: String,
    fingerprint: String,
    names: Vec<String>,
}
