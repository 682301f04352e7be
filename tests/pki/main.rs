//! Certificates of every kind of CA and key: what is made, what is refused, and what is never shown.

mod cases;
mod forge;
mod go;
mod matrix;
mod names;
mod purposes;
mod refusals;
mod secrets;
mod state;
mod templates;
mod tree;
