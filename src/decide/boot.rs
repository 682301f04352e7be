//! Whether the first pass waits for the network of a host that is just starting.
//!
//! In: the boot of the state, the boot of now, the time since it. Out: yes or no; how long is configuration. The rule of
//! this file: a wait at a boot, never at a restart of our own.
//!
//! At a boot a changed address is to be in the certificate before the API server starts, and whoever orders it behind us
//! (`Before=`) waits for the end of the first pass. A pass before the network is there would conclude nothing: without a
//! default route addresses are not followed. Two witnesses are asked for a boot. The boot id alone would make a daemon
//! wait that was started by hand on a host that has been up for days; the uptime alone would make one wait that is
//! restarted in the first minutes, on a node that has no default route at all. A host that has no state yet has nothing
//! to lose, and its first certificate is made with what there is.

use std::time::Duration;

/// So long a host counts as just starting: systemd gives a unit a minute and a half, and a slow board several of them.
const STARTING: Duration = Duration::from_secs(5 * 60);

/// Whether a network without a default route may still be on its way up.
pub fn network_may_come(boot_of_state: &str, boot_now: &str, uptime: Duration) -> bool {
    !boot_of_state.is_empty() && !boot_now.is_empty() && boot_of_state != boot_now && uptime < STARTING
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_boot_since_the_state_was_written_is_one() {
        let soon = Duration::from_secs(20);
        assert!(network_may_come("before", "now", soon));
        assert!(!network_may_come("now", "now", soon), "the service was restarted");
        assert!(!network_may_come("before", "now", Duration::from_secs(300)), "started by hand, days later");
        assert!(!network_may_come("", "now", soon), "there is no state");
        assert!(!network_may_come("before", "", soon), "nobody knows which boot this is");
    }
}
