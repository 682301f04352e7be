//! No private key in anything that is said or written, whatever was played.

use std::fs;
use std::path::Path;

use crate::stage::Result;
use crate::stage::timeline::Timeline;
use crate::stage::tree::Tree;

/// Fails when a line of a key of the certificate folder stands in the timeline (which has all that ipguard printed), in
/// ipguard's own folder, or among the calls of the service manager.
pub(crate) fn stay_secret(tree: &Tree, timeline: &Timeline) -> Result<()> {
    let mut keys = Vec::new();
    for entry in fs::read_dir(tree.data("certs")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "key") {
            // A key file that a case has damaged has no secret.
            let text = String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
            let body = text.lines().filter(|line| line.len() > 24 && !line.starts_with('-'));
            keys.extend(body.map(str::to_owned));
        }
    }
    let mut places = vec![("the timeline".to_owned(), timeline.render())];
    collect(&tree.path("var/lib/ipguard"), &mut places);
    collect(&tree.path("run"), &mut places);
    places.push(("calls.log".to_owned(), fs::read_to_string(tree.path("calls.log")).unwrap_or_default()));
    for (place, text) in &places {
        if keys.iter().any(|line| text.contains(line.as_str())) {
            return Err(format!("a private key stands in {place}").into());
        }
    }
    Ok(())
}

fn collect(folder: &Path, places: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, places);
        } else if path.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            places.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}
