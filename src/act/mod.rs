//! Acting: carries out the steps of a plan, in order.
//!
//! In: a [`crate::decide::plan::Plan`]. Out: a [`crate::decide::outcome::StepOutcome`] for each step. The rule of this
//! folder: no behaviour that could live in `decide/`; an order is complete, or it is refused.

pub mod distinguished_name;
pub mod issue;
pub mod leaf;
pub mod lock;
pub mod self_check;
pub mod store;

#[cfg(test)]
mod test_tree;
