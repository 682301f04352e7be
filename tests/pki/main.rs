//! Certificates of every kind of CA and key: what is made, what is refused, and what is never shown.

mod cases;
mod forge;
mod go;
mod matrix;
mod names;
mod purposes;
mod refusals;
mod secrets;
#[path = "../skipped/mod.rs"]
mod skipped;
mod state;
mod templates;
#[path = "../stage/traces.rs"]
mod traces;
mod tree;
