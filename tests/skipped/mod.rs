//! How a test of libtest says that it was skipped, or a part of it.
//!
//! In: why. Out: the line `skipped: NAME: REASON` on standard error itself: libtest hides what `eprintln!` says of a test
//! that passes, so that a skipped one looked like one that had shown something. `.ci/run` fails on such a line.

use std::io::Write as _;

/// Says that this test is skipped here, and why.
pub(crate) fn skipped(reason: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a part of a test");
    // One write for one line: others write at the same time. Nobody is left to be told when standard error is gone.
    let _ = std::io::stderr().write_all(format!("skipped: {name}: {reason}\n").as_bytes());
}
