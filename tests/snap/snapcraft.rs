//! `snapcraft.yaml` and the part for MicroK8s: known fields, and everything they name is there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::repository;
use crate::yaml::{Yaml, parse};

/// Fields of snapcraft.yaml for base core22, as far as a snap like this may need them.
const TOP: [&str; 12] = [
    "name",
    "version",
    "base",
    "grade",
    "confinement",
    "license",
    "summary",
    "description",
    "apps",
    "parts",
    "architectures",
    "environment",
];
/// Fields of an app.
const APP: [&str; 9] = [
    "command",
    "daemon",
    "restart-condition",
    "stop-timeout",
    "after",
    "before",
    "environment",
    "install-mode",
    "refresh-mode",
];
/// Fields of a part with the rust plugin.
const PART: [&str; 8] = [
    "plugin",
    "source",
    "source-tag",
    "after",
    "build-packages",
    "build-environment",
    "override-build",
    "rust-channel",
];
/// Hooks that snapd runs.
const HOOKS: [&str; 7] =
    ["install", "configure", "default-configure", "pre-refresh", "post-refresh", "remove", "check-health"];

fn document(path: &str) -> Yaml {
    parse(&fs::read_to_string(repository(path)).expect("it is there"))
}

fn known(what: &str, map: &Yaml, fields: &[&str]) {
    for field in map.map().keys() {
        assert!(fields.contains(&field.as_str()), "{what} has the unknown field {field}");
    }
}

/// The files that a part puts into the snap: what its script installs. Each comes from cargo or from this repository.
fn installed(part: &Yaml) -> BTreeSet<String> {
    let script = part.text("override-build");
    let mut found = BTreeSet::new();
    for line in script.lines().filter(|line| line.starts_with("install ")) {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, "-D", "-m", mode, from, to] = words[..] else { panic!("not understood: {line}") };
        let to = to.trim_matches('"').strip_prefix("${CRAFT_PART_INSTALL}/").expect("into the part");
        if from != "\"target/${target}/release/ipguard\"" {
            let mode_there = fs::metadata(repository(from)).expect(from).permissions().mode();
            assert_eq!(mode_there & 0o111 != 0, mode == "0755", "{from}");
        }
        found.insert(to.to_owned());
    }
    assert!(found.contains("bin/ipguard"));
    found
}

#[test]
fn the_snap_is_what_snapcraft_takes_and_names_what_is_there() {
    let snap = document("snap/snapcraft.yaml");
    known("the snap", &snap, &TOP);
    for (field, value) in
        [("name", "ipguard"), ("base", "core22"), ("confinement", "classic"), ("license", "Apache-2.0")]
    {
        assert_eq!(snap.text(field), value);
    }
    assert_eq!(snap.text("version"), env!("CARGO_PKG_VERSION"));
    assert!(["stable", "devel"].contains(&snap.text("grade")));
    assert!(snap.text("summary").len() < 79, "snapcraft's own limit");
    assert!(snap.text("description").len() <= 4096, "snapcraft's own limit");
    let mut files = BTreeSet::new();
    for (name, part) in snap.map()["parts"].map() {
        known(name, part, &PART);
        assert_eq!(part.text("plugin"), "rust");
        files.extend(installed(part));
    }
    let apps = snap.map()["apps"].map();
    // `ipguard takeover` turns on the service of this name.
    assert_eq!(apps.keys().collect::<Vec<_>>(), ["chores", "daemon", "ipguard"]);
    for (name, app) in apps {
        known(name, app, &APP);
        let command = app.text("command").split(' ').next().unwrap_or_default();
        assert!(files.contains(command), "{name} runs {command}, which no part installs");
        if app.map().contains_key("daemon") {
            assert!(["simple", "notify", "oneshot"].contains(&app.text("daemon")));
            let conditions = ["always", "on-failure", "never", "on-success", "on-abnormal", "on-abort"];
            assert!(conditions.contains(&app.text("restart-condition")));
        }
    }
    assert!(!apps["ipguard"].map().contains_key("daemon"));
}

#[test]
fn hooks_are_those_of_snapd_and_can_be_run() {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(repository("snap/hooks")).expect("it is there") {
        let path = entry.expect("it can be listed").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name").to_owned();
        assert!(HOOKS.contains(&name.as_str()), "snapd knows no hook {name}");
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o111, 0o111, "{name}");
        assert!(fs::read_to_string(&path).expect("text").starts_with("#!/bin/sh\n"), "{name}");
        names.insert(name);
    }
    assert_eq!(names, ["configure", "install", "post-refresh", "remove"].map(str::to_owned).into());
}

#[test]
fn the_part_for_microk8s_installs_what_its_readme_promises() {
    let part = document("snap/local/microk8s/part.yaml");
    let [(name, part)] = &part.map().iter().collect::<Vec<_>>()[..] else { panic!("one part") };
    assert_eq!(*name, "ipguard");
    known(name, part, &PART);
    let readme = fs::read_to_string(repository("snap/local/microk8s/README.md")).expect("it is there");
    for file in installed(part) {
        assert!(readme.contains(&file), "the README does not say what {file} is");
    }
    // One way to build it.
    let build = |part: &Yaml| part.text("override-build").lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    let own = document("snap/snapcraft.yaml");
    assert_eq!(build(part), build(&own.map()["parts"].map()["ipguard"]));
}

#[test]
fn what_is_no_such_yaml_is_refused() {
    for wrong in ["a: 1\na: 2", "a:\n  b: 1\n c: 2", "a: [b]", "just words", "a: \"open", "a: b # comment"] {
        assert!(std::panic::catch_unwind(|| parse(wrong)).is_err(), "{wrong:?}");
    }
}
