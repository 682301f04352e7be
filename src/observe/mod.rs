//! Observe: reads the world and returns plain values; decides nothing.
//!
//! In: the kernel, files, services. Out: the types of [`crate::facts`]. The rule of this folder: what something *is*
//! is told here, what it *means* is told in [`crate::decide`].

pub mod network;
pub mod polling;
pub mod rtnetlink;
