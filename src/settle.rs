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
    /// The first change that a pass has taken in without a conclusion so far.
    undecided: Option<Instant>,
    /// A boot is under way and the network with it: whatever happens, there is a pass at this moment.
    pub at_the_latest: Option<Instant>,
}

impl Settle {
    /// Something has changed.
    pub fn mark(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// A pass takes in all that has changed until now. Since when there is something to decide, for [`Settle::undecided`].
    pub fn take_in(&mut self) -> Option<Instant> {
        let since = self.undecided.take().or(self.first);
        (self.first, self.last) = (None, None);
        since
    }

    /// The pass has to ask before it can conclude. What changes meanwhile settles first, and then it asks again - but `max`
    /// goes on counting from the change that it was made for: changes that come faster than answers, a storm of veths on a
    /// slow machine, would put the conclusion off for ever.
    pub const fn undecided(&mut self, since: Option<Instant>) {
        self.undecided = since;
    }

    /// Whether something has changed that no pass has taken in.
    pub const fn pending(&self) -> bool {
        self.first.is_some()
    }

    /// When the pass for it is due.
    pub fn due(&self, config: &SettleConfig) -> Option<Instant> {
        let due = (self.last? + config.quiet).min(self.undecided.or(self.first)? + config.max);
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
        assert_eq!(settle.take_in(), Some(begin));
        assert_eq!(settle.due(&config), None);
    }

    #[test]
    fn changes_that_come_faster_than_answers_put_no_conclusion_off() {
        let config = Config::default().settle;
        let (begin, moment) = (Instant::now(), Duration::from_millis(10));
        let mut settle = Settle::default();
        settle.mark(begin);
        let since = settle.take_in();
        settle.undecided(since);
        settle.mark(begin + config.max - moment);
        assert_eq!(settle.due(&config), Some(begin + config.max), "counted from the change that the question is about");
        let since = settle.take_in();
        assert_eq!(since, Some(begin), "over any number of questions");
        settle.undecided(since);
        settle.mark(begin + config.max + moment);
        assert!(settle.due(&config) < Some(begin + config.max + moment), "the answer is taken as it comes");
        // A conclusion ends it.
        settle.take_in();
        settle.mark(begin + config.max * 2);
        assert_eq!(settle.due(&config), Some(begin + config.max * 2 + config.quiet));
    }
}
