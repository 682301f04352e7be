//! README.md against the program: its tables are complete and name nothing that does not exist, and its commands parse.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::Parser as _;
use ipguard::cli::{Arguments, Status};
use ipguard::decide::classify::LABELS;

const README: &str = include_str!("../README.md");
const PLAN: &str = include_str!("../src/decide/plan.rs");

/// The lines between a heading and the next one of its level.
fn section(heading: &str) -> Vec<&'static str> {
    let title = format!("## {heading}");
    let lines = README.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.starts_with("## "));
    let lines: Vec<&str> = lines.collect();
    assert!(!lines.is_empty(), "README.md has no section {title:?}");
    lines
}

/// The rows of the section's table whose heading begins with this cell, without the heading.
fn table(heading: &str, first_cell: &str) -> Vec<Vec<&'static str>> {
    let begin = format!("| {first_cell} |");
    let rows = section(heading).into_iter().skip_while(|line| !line.starts_with(&begin)).skip(2);
    let rows: Vec<Vec<&str>> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "no table {first_cell:?} in section {heading:?}");
    rows
}

/// A word in backticks, without them.
fn plain(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// A column of words in backticks; none may be there twice.
fn column(rows: &[Vec<&'static str>], index: usize) -> BTreeSet<String> {
    let words: BTreeSet<String> = rows.iter().map(|row| plain(row[index]).to_owned()).collect();
    assert_eq!(words.len(), rows.len(), "a row is there twice");
    words
}

/// The variants of an enum of `plan.rs`, as serde and the reports spell them.
fn codes(name: &str) -> BTreeSet<String> {
    let head = format!("pub enum {name} {{");
    let body = PLAN.split_once(&head).and_then(|(_, rest)| rest.split_once("\n}")).expect("the enum is in plan.rs").0;
    let variants = body.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    variants
        .map(|variant| {
            let mut kebab = String::new();
            for c in variant.trim_end_matches(',').chars() {
                if c.is_ascii_uppercase() && !kebab.is_empty() {
                    kebab.push('-');
                }
                kebab.push(c.to_ascii_lowercase());
            }
            kebab
        })
        .collect()
}

#[test]
fn every_hold_and_every_reason_is_explained_and_no_other() {
    let rows = table("What holds it back", "hold");
    assert_eq!(column(&rows, 0), codes("HoldCode"));
    let rows = table("When it makes a certificate", "reason");
    assert_eq!(column(&rows, 0), codes("ReasonCode"));
}

/// What is called reserved is what nothing raises.
#[test]
fn holds_that_nothing_raises_are_called_reserved() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/decide");
    let mut decide = String::new();
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        if !path.ends_with("plan.rs") {
            decide += &std::fs::read_to_string(path).expect("it is text");
        }
    }
    for row in table("What holds it back", "hold") {
        let variant: String =
            plain(row[0]).split('-').map(|word| format!("{}{}", word[..1].to_uppercase(), &word[1..])).collect();
        let raised = decide.contains(&format!("HoldCode::{variant}"));
        assert_eq!(raised, !row[2].starts_with("reserved"), "{}", row[0]);
    }
}

#[test]
fn every_rule_is_in_the_table_of_addresses_in_the_order_of_the_code() {
    let rows = table("Address you see, what ipguard makes of it, and why", "address you see");
    let places: Vec<usize> =
        rows.iter().map(|row| LABELS.iter().position(|label| *label == plain(row[2])).expect(row[2])).collect();
    assert!(places.is_sorted(), "{places:?}");
    let listed: BTreeSet<usize> = places.into_iter().collect();
    assert_eq!(listed, (0..LABELS.len()).collect(), "rules without a row: {LABELS:?}");
}

/// Each row says a class that `tests/classify.rs` proves its rule to give.
#[test]
fn every_class_in_the_table_of_addresses_is_one_that_its_rule_gives() {
    let tested = include_str!("classify.rs");
    let words: Vec<&str> = tested.split([',', '(', ')']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let proven: BTreeSet<(String, String)> = words
        .windows(2)
        .filter(|pair| pair[1].starts_with('"'))
        .map(|pair| {
            let class = if pair[0] == "LbOwned" { "lb-owned".to_owned() } else { pair[0].to_lowercase() };
            (class, pair[1].trim_matches('"').to_owned())
        })
        .collect();
    for row in table("Address you see, what ipguard makes of it, and why", "address you see") {
        let (class, rule) = (row[1].to_owned(), plain(row[2]).to_owned());
        assert!(rule == "operator-rule" || proven.contains(&(class, rule)), "no test of {} by {}", row[1], row[2]);
    }
}

/// The keys of a document with their values as TOML writes them; those of tables in arrays without a value.
fn keys(table: &toml::Table, prefix: &str, found: &mut BTreeMap<String, Option<String>>) {
    for (key, value) in table {
        let full = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => {
                if inner.is_empty() {
                    found.insert(full.clone(), None);
                }
                keys(inner, &full, found);
            }
            toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
                found.insert(full.clone(), None);
                let mut inside = BTreeMap::new();
                items.iter().filter_map(toml::Value::as_table).for_each(|item| keys(item, &full, &mut inside));
                found.extend(inside.into_keys().map(|key| (key, None)));
            }
            toml::Value::Array(items) if items.is_empty() => _ = found.insert(full, Some("[]".to_owned())),
            toml::Value::String(text) => _ = found.insert(full, Some(format!("{text:?}"))),
            toml::Value::Integer(number) => _ = found.insert(full, Some(number.to_string())),
            toml::Value::Boolean(truth) => _ = found.insert(full, Some(truth.to_string())),
            _ => _ = found.insert(full, None),
        }
    }
}

#[test]
fn every_key_is_in_the_reference_with_its_default_and_no_other() {
    let default = ipguard::config::print::default_text();
    // What stands behind `#` without a space is an example to be taken over.
    let uncommented: String = default
        .lines()
        .map(|line| {
            line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| !c.is_whitespace())).unwrap_or(line)
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let mut expected = BTreeMap::new();
    for text in [include_str!("../fixtures/config/valid/everything.toml"), &uncommented, &default] {
        // The later document has the defaults; only its values count.
        expected.values_mut().for_each(|value| *value = None);
        keys(&text.parse().expect("TOML"), "", &mut expected);
    }
    let rows = table("Configuration", "key");
    let listed: BTreeMap<String, &str> = rows.iter().map(|row| (plain(row[0]).to_owned(), row[2])).collect();
    assert_eq!(listed.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, value) in expected {
        if let Some(value) = value {
            assert_eq!(plain(listed[&key]), value, "the default of {key}");
        }
    }
}

#[test]
fn exit_statuses_are_those_of_the_program() {
    let rows = table("Command line", "exit status");
    let all = [Status::Done, Status::Failed, Status::ChangeNeeded, Status::Usage];
    for status in all {
        // A new one does not compile here before it is in the list above.
        match status {
            Status::Done | Status::Failed | Status::ChangeNeeded | Status::Usage => {}
        }
    }
    assert_eq!(column(&rows, 0), all.iter().map(|status| (*status as u8).to_string()).collect());
}

/// Every command line of ipguard: in blocks and in running text.
fn command_lines() -> Vec<Vec<String>> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in README.lines() {
        if line.starts_with("```") {
            inside = !inside;
            continue;
        }
        let candidates: Vec<&str> = if inside { vec![line] } else { line.split('`').skip(1).step_by(2).collect() };
        for candidate in candidates {
            let text = candidate.trim_start_matches("$ ").trim_start_matches("sudo ");
            let Some(arguments) = text.strip_prefix("ipguard ") else { continue };
            // In the synopsis two spaces end the command line; what is in brackets may be given or left out.
            let synopsis = arguments.split("  ").next().unwrap_or_default();
            let words = |keep: bool| {
                let words = synopsis.split(' ').filter(|word| keep || !word.starts_with('['));
                let words = words.map(|word| word.trim_matches(['[', ']']).replace("ADDRESS", "192.0.2.100"));
                // `N` is a number, and `CERT` any name.
                let words = words.map(|word| if word == "N" { "1".to_owned() } else { word });
                std::iter::once("ipguard".to_owned()).chain(words).collect::<Vec<_>>()
            };
            for words in [words(true), words(false)] {
                // `show|check|default` are three command lines.
                let alternatives = words.iter().map(|word| word.split('|').count()).max().unwrap_or(1);
                found.extend((0..alternatives).map(|choice| {
                    let choose = |word: &String| word.split('|').nth(choice).unwrap_or(word).to_owned();
                    words.iter().map(choose).collect::<Vec<_>>()
                }));
            }
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

#[test]
fn every_command_line_parses() {
    for words in command_lines() {
        if let Err(error) = Arguments::try_parse_from(&words) {
            panic!("{}: {error}", words.join(" "));
        }
    }
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Those that only look are run, on a host without Kubernetes.
#[test]
fn what_only_looks_works_anywhere() {
    let root = Folder(std::env::temp_dir().join(format!("ipguard-readme-{}", std::process::id())));
    std::fs::create_dir(&root.0).expect("the temporary folder is writable");
    let harmless = |words: &[String]| {
        let first = words.get(1).map_or("", String::as_str);
        matches!(first, "explain" | "ips" | "config" | "check")
            && !words.iter().any(|word| word == "--apply" || word.starts_with("192.0.2"))
    };
    for words in command_lines().iter().filter(|words| harmless(words)) {
        let ran = Command::new(env!("CARGO_BIN_EXE_ipguard"))
            .args(&words[1..])
            .arg("--root")
            .arg(&root.0)
            .env_clear()
            .stdin(Stdio::null())
            .output()
            .expect("the program runs");
        assert!(ran.status.success(), "{}: {}", words.join(" "), String::from_utf8_lossy(&ran.stderr));
        assert!(!ran.stdout.is_empty(), "{} prints nothing", words.join(" "));
    }
    let left: Vec<_> = std::fs::read_dir(&root.0).expect("it is there").collect();
    assert!(left.is_empty(), "looking wrote {left:?}");
}

/// Whether something that shows a promise exists: `TARGET NAME`, where the target is a file of `tests/`, a bed, or CI.
fn is_there(reference: &str) -> bool {
    let Some((target, name)) = reference.split_once(' ') else { return false };
    let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let has = |path: &str, text: &str| {
        std::fs::read_to_string(repository.join(path)).is_ok_and(|content| content.contains(text))
    };
    match target {
        "scenarios" => repository.join(format!("fixtures/scenarios/{name}.json")).is_file(),
        "ci" => has(".ci/run", &format!("stage \"{name}\" ")),
        "snapd-bed" => has("tests/beds/snapd/play", &format!("step \"{name}\" ")),
        "kube-apiserver-bed" => has("tests/beds/kube-apiserver/play", &format!("step \"{name}\" ")),
        "systemd-bed" => has("tests/beds/systemd/play", &format!("step \"{name}\" ")),
        _ => {
            let tests = repository.join("tests");
            let beside =
                std::fs::read_dir(tests.join(target)).into_iter().flatten().flatten().map(|entry| entry.path());
            let files = beside.chain([tests.join(format!("{target}.rs"))]);
            let (test, case) = (format!("fn {name}("), format!("Case {{ name: \"{name}\","));
            files.filter_map(|path| std::fs::read_to_string(path).ok()).any(|text| {
                let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
                // libtest's, or a case of the other harness.
                lines.windows(2).any(|pair| pair[0] == "#[test]" && pair[1].starts_with(&test)) || text.contains(&case)
            })
        }
    }
}

#[test]
fn every_promise_is_shown_by_something_that_exists() {
    for row in table("What ipguard guarantees", "promise") {
        let references: Vec<&str> = row[1].split(", `").map(|cell| cell.trim_matches('`')).collect();
        assert!(!references.is_empty() && row.len() == 2, "{row:?}");
        for reference in references {
            assert!(is_there(reference), "nothing is called {reference:?}");
        }
    }
}

#[test]
fn what_does_not_exist_shows_nothing() {
    for nothing in [
        "",
        "plan",
        "plan limit",
        "plan table",
        "nowhere limits",
        "scenarios L02",
        "robustness kills::at-many-moments",
        "systemd-bed boot",
        "snapd-bed boot with a changed address",
        "ci unit",
    ] {
        assert!(!is_there(nothing), "{nothing:?}");
    }
}

/// `.ci/run` takes the commands from the block behind this comment.
#[test]
fn the_two_commands_are_where_ci_looks_for_them() {
    let mut lines = README.lines().skip_while(|line| !line.starts_with("<!-- CI runs"));
    assert_eq!((lines.nth(1), lines.next()), (Some("```sh"), Some("cargo run --release --example demo")));
    assert_eq!((lines.next(), lines.next()), (Some("cargo test"), Some("```")));
}
