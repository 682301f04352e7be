//! report: what people and machines read.
//!
//! In: plans and outcomes. Out: text and JSON. The rule of this folder: it words, it does not decide.

pub mod log;
