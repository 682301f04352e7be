//! The distribution's upkeep besides certificates, carried out.
//!
//! In: folders of the moment, and what [`crate::decide::chores`] makes of what is in them. Out: a [`Report`]. The rule of
//! this folder: nothing that fails here stops anything else, and no certificate, key or lock of a certificate is touched.

pub mod hooks;
pub mod registry;
pub mod tree;
pub mod wait;

use std::path::Path;

/// So many lines are kept: a tree with thousands of wrong files is one finding, not thousands.
const MOST_LINES: usize = 100;

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What was corrected, run and said. Empty when nothing was wrong.
    pub done: Vec<String>,
    /// What did not work, each with its cause.
    pub failed: Vec<String>,
    /// Lines left out of either.
    pub more: usize,
}

impl Report {
    /// Something was corrected or said.
    pub fn done(&mut self, line: String) {
        Self::keep(&mut self.done, line, &mut self.more);
    }

    /// Something did not work.
    pub fn failed(&mut self, line: String) {
        Self::keep(&mut self.failed, line, &mut self.more);
    }

    fn keep(lines: &mut Vec<String>, line: String, more: &mut usize) {
        if lines.len() < MOST_LINES { lines.push(line) } else { *more += 1 }
    }
}

/// A path as a line may show it: names in these folders are chosen by members of a group, who must not drive a terminal
/// or forge a line of a log.
pub(crate) fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}
