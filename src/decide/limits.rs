//! How often something may be done.
//!
//! In: the log of when it was done, `now`. Out: when it may be done again, or nothing where that is now. The rule of this
//! file: a limit that is used up makes work wait, it never makes it forgotten; entries that seem to lie ahead (the clock was
//! set back) count as recent.

use std::time::Duration;

use crate::config::RestartConfig;
use crate::decide::state::{State, back_off};
use crate::facts::time::Timestamp;

/// The first pause behind a restart once the limit has been used up; it doubles up to an hour.
const FIRST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// When a limit of `limit` per `window` allows the next one; `None` when it does now. An entry from the future (the clock
/// was set back) counts as recent.
pub(crate) fn exhausted(
    log: impl Iterator<Item = Timestamp>,
    limit: u32,
    window: Duration,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut recent: Vec<Timestamp> = log.filter(|at| now.since(*at) < window).collect();
    recent.sort_unstable();
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let oldest_that_counts = recent.len().checked_sub(limit)?;
    // With a limit of zero nothing is ever allowed; the configuration does not admit it.
    recent.get(oldest_that_counts).map(|at| *at + window)
}

/// When the API server may be restarted again. A log that was lost is one that was used up: a file that somebody damages
/// is no way around the limit.
pub(crate) fn of_restarts(state: &State, config: &RestartConfig, now: Timestamp) -> Option<Timestamp> {
    let limit = usize::try_from(config.limit).unwrap_or(usize::MAX);
    let lost = state.restarts_lost.into_iter().flat_map(|at| std::iter::repeat_n(at, limit));
    let log: Vec<Timestamp> = lost.chain(state.restarts.iter().map(|r| r.at)).collect();
    next_restart(&log, config.limit, config.window, now)
}

/// When the API server may be restarted again: `limit` times per `window`, and once that was used up with pauses that
/// double up to an hour, until two windows have gone by without a restart. A node that changes its address every twenty
/// minutes all day must not lose its API server as often.
pub(crate) fn next_restart(log: &[Timestamp], limit: u32, window: Duration, now: Timestamp) -> Option<Timestamp> {
    let mut log = log.to_vec();
    log.sort_unstable();
    let last = *log.last()?;
    let calm = window * 2;
    let unbroken = log.windows(2).rev().take_while(|pair| pair[1].since(pair[0]) < calm).count() + 1;
    let limit_used_up = u32::try_from(unbroken).unwrap_or(u32::MAX).checked_sub(limit);
    let after_calm = now.since(last) >= calm;
    let pause = limit_used_up.filter(|_| !after_calm).map(|excess| last + back_off(FIRST_PAUSE, excess + 1));
    let by_window = exhausted(log.iter().copied(), limit, window, now);
    by_window.max(pause.filter(|until| *until > now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_ends_when_its_oldest_entry_leaves_the_window() {
        let at = Timestamp::from_seconds;
        let window = Duration::from_secs(100);
        let log = |times: &[i64], now| exhausted(times.iter().map(|t| at(*t)), 3, window, at(now));
        assert_eq!(log(&[10, 20], 30), None);
        assert_eq!(log(&[10, 20, 30], 40), Some(at(110)));
        assert_eq!(log(&[10, 20, 30], 110), None);
        assert_eq!(log(&[30, 10, 20, 25], 40), Some(at(120)));
        // The clock was set back: what seems to lie ahead counts.
        assert_eq!(log(&[500, 600, 700], 40), Some(at(600)));
    }

    #[test]
    fn a_limit_that_was_used_up_brings_longer_and_longer_pauses() {
        let minutes = |n: i64| Timestamp::from_seconds(n * 60);
        let hour = Duration::from_secs(3600);
        let next = |log: &[i64], now| {
            let log: Vec<Timestamp> = log.iter().map(|n| minutes(*n)).collect();
            next_restart(&log, 3, hour, minutes(now)).map(|until| until.seconds() / 60)
        };
        assert_eq!(next(&[], 0), None);
        assert_eq!(next(&[0, 1], 2), None, "the first three are free");
        assert_eq!(next(&[0, 1, 2], 3), Some(60), "three an hour");
        assert_eq!(next(&[0, 1, 2, 60], 61), Some(70), "the window would allow it at 61");
        assert_eq!(next(&[0, 1, 2, 60, 70], 71), Some(90));
        assert_eq!(next(&[0, 1, 2, 60, 70, 90], 91), Some(130));
        assert_eq!(next(&[0, 1, 2, 60, 70, 90, 130], 131), Some(190), "never longer than an hour");
        assert_eq!(next(&[0, 1, 2, 60, 70, 90, 130, 190], 191), Some(250));
        // Two quiet hours, and it starts anew.
        assert_eq!(next(&[0, 1, 2, 60, 70], 190), None);
        assert_eq!(next(&[0, 1, 2, 190], 191), None);
        assert_eq!(next(&[0, 1, 2, 190, 191, 192], 193), Some(250));
    }

    #[test]
    fn a_log_that_was_lost_is_used_up() {
        let minutes = |n: i64| Timestamp::from_seconds(n * 60);
        let config = crate::config::Config::default().restart;
        let next = |restarts: &[i64], now| {
            let mut state = State::lost(minutes(10));
            for at in restarts {
                assert!(state.claim_restart("kubelite", crate::decide::plan::ReasonCode::ServedStale, minutes(*at)));
            }
            of_restarts(&state, &config, minutes(now)).map(|until| until.seconds() / 60)
        };
        assert_eq!(next(&[], 11), Some(70), "three an hour");
        assert_eq!(next(&[], 70), None);
        assert_eq!(next(&[70], 71), Some(80), "and used up is used up: the pauses grow");
        assert_eq!(next(&[70, 80], 81), Some(100));
        assert_eq!(next(&[], 200), None);
        assert_eq!(next(&[200], 201), None, "two quiet hours, and it starts anew");
    }

    #[test]
    fn the_largest_limit_can_be_used_up() {
        let config = RestartConfig { limit: 1000, ..crate::config::Config::default().restart };
        let mut state = State::default();
        for n in 0..1001 {
            // Each is long enough behind the last one not to be taken for the same.
            let at = Timestamp::from_seconds(n * 181);
            let window = Duration::from_secs(1_000_000);
            let config = RestartConfig { window, ..config.clone() };
            assert_eq!(of_restarts(&state, &config, at).is_some(), n == 1000, "restart {n}");
            assert!(state.claim_restart("kubelite", crate::decide::plan::ReasonCode::ServedStale, at));
        }
    }
}
