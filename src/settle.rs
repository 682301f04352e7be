//! When what has changed has settled, and how long a boot is waited for.
//!
//! In: moments of changes, `[settle]`. Out: when a pass is due. The rule of this file: every wait has an end that no event
//! can put off.

use std::time::Instant;

use crate::config::SettleConfig;

/// The settle timer: due after `quiet` without a further event, at most `max` after the first.
#[derive(Debug, Default)]
pub struct Settle {
    first: Option<Instant>,
    last: Option<Instant>,
    /// A boot is under way and the network with it: whatever happens, there is a pass at this moment.
    pub at_the_latest: Option<Instant>,
}

impl Settle {
    /// Something has changed.
    pub fn mark(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// A pass takes in all that has changed until now.
    pub const fn clear(&mut self) {
        (self.first, self.last) = (None, None);
    }

    /// Whether something has changed that no pass has taken in.
    pub const fn pending(&self) -> bool {
        self.first.is_some()
    }

    /// When the pass for it is due.
    pub fn due(&self, config: &SettleConfig) -> Option<Instant> {
        let due = (self.last? + config.quiet).min(self.first? + config.max);
        Some(self.at_the_latest.map_or(due, |latest| due.min(latest)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    #[test]
    fn no_event_puts_a_pass_off_for_longer_than_max_or_beyond_the_end_of_a_boot() {
        let config = Config::default().settle;
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut settle = Settle::default();
        assert_eq!(settle.due(&config), None);
        for n in 0..100 {
            settle.mark(begin + second * n);
            let due = settle.due(&config);
            assert_eq!(due, Some(begin + (second * n + config.quiet).min(config.max)), "after {n} s");
        }
        settle.at_the_latest = Some(begin + second * 7);
        assert_eq!(settle.due(&config), Some(begin + second * 7));
        settle.clear();
        assert_eq!(settle.due(&config), None);
    }
}
