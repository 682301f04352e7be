//! Observing: reads the world and returns plain facts.
//!
//! In: paths and sockets. Out: values of [`crate::facts`]. The rule of this folder: it decides nothing and changes
//! nothing; a file that cannot be read is a value too.

pub mod certificate;
pub mod pem;
pub mod private_key;
