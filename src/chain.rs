//! Errors for people: the whole chain of causes on one line.

use std::error::Error;

/// An error and all its causes, joined by colons. No `Display` in this crate repeats its source.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
