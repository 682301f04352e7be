//! The search for keys finds one.

use crate::stage::Result;
use crate::stage::secrets::stay_secret;
use crate::stage::timeline::Timeline;
use crate::stage::tree::{Tree, TreeSpec};

#[test]
fn a_key_that_is_said_or_written_is_found() -> Result<()> {
    let tree = Tree::create(&TreeSpec::default(), false)?;
    let timeline = Timeline::start();
    stay_secret(&tree, &timeline)?;
    let key = std::fs::read_to_string(tree.data("certs/ca.key"))?;
    let line = key.lines().nth(1).ok_or("a key has lines")?;
    // Under ipguard's own folder.
    std::fs::create_dir_all(tree.path("var/lib/ipguard/generations/server/1"))?;
    let copy = tree.path("var/lib/ipguard/generations/server/1/note");
    std::fs::write(&copy, format!("made with {line}"))?;
    assert!(stay_secret(&tree, &timeline).is_err(), "a key in a file was missed");
    std::fs::remove_file(&copy)?;
    stay_secret(&tree, &timeline)?;
    timeline.note("ipguard", format!("TRACE {line}"));
    assert!(stay_secret(&tree, &timeline).is_err(), "a key in the log was missed");
    Ok(())
}
