//! No core dump of a process that reads private keys.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

/// From now on the kernel writes no core dump of this process, not even to a program that collects them, and nobody but
/// root may attach to it. What it starts inherits the limit alone.
pub(super) fn start() {
    if let Err(error) = prctl::set_dumpable(false) {
        tracing::warn!(%error, "a core dump of this process is not ruled out");
    }
    // A collector that ignores the flag is still given nothing.
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        tracing::warn!(%error, "the size of core dumps is not limited");
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::resource::getrlimit;

    use super::*;

    #[test]
    fn this_process_is_never_dumped() {
        start();
        assert_eq!(prctl::get_dumpable(), Ok(false));
        assert_eq!(getrlimit(Resource::RLIMIT_CORE), Ok((0, 0)));
    }
}
