//! The scenarios from public reports are as they were reported: nobody bends an expectation to what the program does.
//!
//! `fixtures/scenarios/SHA256SUMS` has the sum of each as it first came. Two were given one more line each, for the reason
//! that the README there tells; without that line they are the originals again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use crate::stage::Result;

/// What was added to which file.
const ADDED: [(&str, &str); 2] = [
    ("C06-node-inside-lxd-veth.json", " \"service_started\": \"before-addresses\",\n"),
    ("D09-first-install-no-network.json", "  \"max_reissues\": 2,\n"),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios")
}

fn sum(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The sums as `sha256sum` writes them.
fn sums() -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(folder().join("SHA256SUMS"))?;
    let pairs = text.lines().map(|line| line.split_once("  ").map(|(sum, name)| (name.to_owned(), sum.to_owned())));
    Ok(pairs.collect::<Option<_>>().ok_or("a line is not what sha256sum writes")?)
}

#[test]
fn reported_scenarios_are_as_they_were_reported() -> Result<()> {
    let sums = sums()?;
    assert_eq!(sums.len(), 59, "a report was lost or one of our own was taken for one");
    for (name, expected) in &sums {
        let mut text = fs::read_to_string(folder().join(name)).map_err(|error| format!("{name}: {error}"))?;
        if let Some((_, line)) = ADDED.iter().find(|(changed, _)| changed == name) {
            assert_eq!(text.matches(line).count(), 1, "{name}: the added line");
            // Those two got the line end at the end as well that the original lacks.
            text = text.replace(line, "").trim_end().to_owned();
        }
        assert_eq!(&sum(text.as_bytes()), expected, "{name} is not the original");
    }
    Ok(())
}

#[test]
fn only_our_own_scenarios_are_not_in_the_list() -> Result<()> {
    let sums = sums()?;
    for entry in fs::read_dir(folder())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".json") {
            assert_eq!(sums.contains_key(&name), !name.starts_with('W'), "{name}");
        }
    }
    Ok(())
}

#[test]
fn the_readme_names_what_was_added() -> Result<()> {
    let readme = fs::read_to_string(folder().join("README.md"))?;
    for (name, line) in ADDED {
        let (id, field) = (name.split('-').next().unwrap_or_default(), line.split('"').nth(1).unwrap_or_default());
        let row = readme.lines().find(|row| row.starts_with(&format!("| `{id}` | `{field}`")));
        assert!(row.is_some(), "README.md does not say that {id} was given {field}");
    }
    Ok(())
}
