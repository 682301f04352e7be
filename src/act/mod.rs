//! act carries out the steps of a Plan in order; no behaviour that could live in decide/.
//!
//! In: [`crate::decide::plan::Step`]s and where to carry them out. Out: [`crate::decide::outcome::StepOutcome`]s. The
//! rule of this folder: nothing here waits by itself. Children and sockets are descriptors of the one poll(2) loop of
//! whoever owns the [`execution::Execution`], so a restart that takes minutes delays no event and no signal.

pub(crate) mod ask;
pub mod child;
pub mod chores;
mod confirm;
pub mod distinguished_name;
pub mod execution;
pub mod extensions;
pub mod generations;
mod inquiry;
pub mod issue;
pub mod leaf;
mod listed;
pub mod lock;
mod pace;
pub mod probe;
mod ready;
mod request;
mod restart;
pub mod self_check;
pub mod services;
pub mod store;
pub mod switch;

#[cfg(test)]
mod test_tree;
