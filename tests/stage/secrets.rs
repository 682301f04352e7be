//! No private key in anything that is said or written, whatever was played.

use std::fs;
use std::path::Path;

use super::traces::Traces;
use crate::stage::Result;
use crate::stage::timeline::Timeline;
use crate::stage::tree::Tree;

/// Fails when a private key of the certificate folder stands, in whatever form, in the timeline (which has all that ipguard
/// printed) or in a file of the tree that is none of the keys' own.
pub(crate) fn stay_secret(tree: &Tree, timeline: &Timeline) -> Result<()> {
    let mut traces = Traces::default();
    for entry in fs::read_dir(tree.data("certs")).into_iter().flatten().flatten() {
        if is_a_key_file(&entry.path()) {
            // A key file that a case has damaged has no secret.
            traces.add(&fs::read(entry.path()).unwrap_or_default());
        }
    }
    if traces.find(timeline.words().as_bytes()).is_some() {
        return Err("a private key stands in the timeline".into());
    }
    search(tree.root(), &traces)
}

fn is_a_key_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "key")
}

/// Key files; and a copy of the program, which nobody wrote anything into and which is long.
fn is_no_place(path: &Path) -> bool {
    is_a_key_file(path) || path.ends_with("usr/bin/ipguard")
}

fn search(folder: &Path, traces: &Traces) -> Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            search(&path, traces)?;
        } else if kind.is_file() && !is_no_place(&path) && traces.find(&fs::read(&path).unwrap_or_default()).is_some() {
            return Err(format!("a private key stands in {}", path.display()).into());
        }
    }
    Ok(())
}
