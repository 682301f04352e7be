//! observe reads the world and returns plain values.
//!
//! In: kernel, disk, services, ports. Out: [`crate::facts`]. The rule of this folder: it decides nothing, and what cannot
//! be read is a fact too.

pub mod arguments;
pub mod certificate;
pub mod chores;
pub mod clock_set;
pub mod cluster;
pub mod der;
pub mod enabled;
pub mod file;
pub mod flags;
pub mod join_tokens;
pub mod kubeconfig;
pub mod network;
pub mod openssl_conf;
pub mod pem;
pub mod places;
pub mod polling;
pub mod private_key;
pub mod process;
mod rsa;
pub mod rtnetlink;
pub mod template;
pub mod unit;
pub mod usage;
pub mod watch;
