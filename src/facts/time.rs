//! Time values. Reading a clock is not done here: `now` is an argument wherever a decision needs it.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 1970-01-01 UTC. Signed: certificates carry dates before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

/// The moment of a pass, on both clocks that matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Wall clock: certificate dates and everything that must survive a reboot.
    pub wall: Timestamp,
    /// `CLOCK_MONOTONIC`: what the kernel's address time stamps and systemd's start times count in. It does not
    /// advance in suspend, and starts anew with each boot.
    pub uptime: Duration,
}

impl Timestamp {
    /// From whole seconds since 1970, as X.509 has them.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// From milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// How long ago `earlier` was; zero when it lies ahead (the clock was set back).
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(span.as_millis()).unwrap_or(i64::MAX)))
    }
}

/// RFC 3339 in UTC, whole seconds: the one form in every output.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = time::OffsetDateTime::from_unix_timestamp(self.seconds())
            .ok()
            .and_then(|t| t.format(&time::format_description::well_known::Rfc3339).ok());
        match text {
            Some(text) => f.write_str(&text),
            // Beyond the year 9999: nothing a certificate can hold, still not a reason to fail.
            None => write!(f, "@{}", self.seconds()),
        }
    }
}

/// What [`Timestamp`] displays as.
impl FromStr for Timestamp {
    type Err = NotAMoment;

    fn from_str(text: &str) -> Result<Self, NotAMoment> {
        let parsed = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
        let seconds = parsed.map(time::OffsetDateTime::unix_timestamp).map_err(|_| NotAMoment);
        seconds
            .or_else(|error| text.strip_prefix('@').and_then(|text| text.parse().ok()).ok_or(error))
            .map(Self::from_seconds)
    }
}

/// Text that is no moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a time such as 2026-12-01T03:00:00Z")]
pub struct NotAMoment;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_is_read() {
        for seconds in [0, -1, 1_796_094_000, -62_135_596_800, 253_402_300_799, 253_402_300_800, i64::MAX / 1000] {
            let moment = Timestamp::from_seconds(seconds);
            assert_eq!(moment.to_string().parse(), Ok(moment), "{moment}");
        }
        for text in ["", "now", "2026-12-01", "2026-13-01T00:00:00Z", "@", "@x"] {
            assert_eq!(text.parse::<Timestamp>(), Err(NotAMoment), "{text}");
        }
    }

    #[test]
    fn displays_as_utc() {
        assert_eq!(Timestamp::from_seconds(1_796_094_000).to_string(), "2026-12-01T03:00:00Z");
        assert_eq!(Timestamp::from_millis(i64::MAX).to_string(), "@9223372036854775");
    }

    #[test]
    fn a_clock_set_back_gives_no_negative_age() {
        let earlier = Timestamp::from_seconds(100);
        assert_eq!(Timestamp::from_seconds(40).since(earlier), Duration::ZERO);
        assert_eq!((earlier + Duration::from_secs(60)).since(earlier), Duration::from_secs(60));
    }
}
