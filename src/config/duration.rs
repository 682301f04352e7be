//! Durations as the configuration writes them: `500ms`, `5s`, `24h`, `365d`, `1h30m`.
//!
//! In: text. Out: a [`Duration`], and text again. The rule of this file: whole numbers with a unit each, largest unit
//! first, so that a duration has one meaning and a bare number has none.

use std::fmt::Write as _;
use std::time::Duration;

/// Units by size, with their length in milliseconds. No months or years: they have no fixed length.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A hundred years: longer is a mistake, and dates stay far from the end of what a certificate can hold.
pub const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

/// How a duration is written, for messages.
pub const EXAMPLES: &str = "5s, 500ms, 24h, 365d or 1h30m";

/// Why a text is no duration; completes the sentence "must be a duration such as 5s: …".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotADuration {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// `5`, or `1h30`.
    #[error("{0} has no unit")]
    NoUnit(String),
    /// `h`, `-5s`, `1.5h`, `5 s`.
    #[error("{0:?} is not a whole number with a unit")]
    NotANumber(String),
    /// `5min`, `1w`.
    #[error("{0:?} is not a unit; units are d, h, m, s and ms")]
    UnknownUnit(String),
    /// `30m1h`, `1h1h`.
    #[error("the units are not in descending order, each at most once")]
    Order,
    /// Longer than [`LONGEST`].
    #[error("it is longer than 36500d")]
    TooLong,
}

/// Reads a duration.
///
/// # Errors
/// Says what is wrong with the text.
pub fn parse(text: &str) -> Result<Duration, NotADuration> {
    if text.is_empty() {
        return Err(NotADuration::Empty);
    }
    let mut rest = text;
    let mut millis: u64 = 0;
    let mut next_unit = 0;
    while !rest.is_empty() {
        let (digits, after) = split_while(rest, |c| c.is_ascii_digit());
        let (unit, after) = split_while(after, |c| c.is_ascii_alphabetic());
        if digits.is_empty() {
            return Err(NotADuration::NotANumber(excerpt(rest)));
        }
        if unit.is_empty() {
            // `1.5h` and `5 s` stop at a sign; `5` and `1h30` at the end.
            return Err(match after {
                "" => NotADuration::NoUnit(excerpt(digits)),
                _ => NotADuration::NotANumber(excerpt(rest)),
            });
        }
        let Some(index) = UNITS.iter().position(|(name, _)| *name == unit) else {
            return Err(NotADuration::UnknownUnit(excerpt(unit)));
        };
        if index < next_unit {
            return Err(NotADuration::Order);
        }
        next_unit = index + 1;
        millis = digits
            .parse::<u64>()
            .ok()
            .and_then(|count| count.checked_mul(UNITS[index].1))
            .and_then(|part| millis.checked_add(part))
            .ok_or(NotADuration::TooLong)?;
        rest = after;
    }
    let duration = Duration::from_millis(millis);
    if duration > LONGEST { Err(NotADuration::TooLong) } else { Ok(duration) }
}

/// The shortest exact form: [`parse`] reads it back. What is finer than a millisecond is cut off; [`parse`] makes none.
pub fn format(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in UNITS {
        if rest >= size {
            write!(text, "{}{unit}", rest / size).expect("writing to a String does not fail");
            rest %= size;
        }
    }
    text
}

fn split_while(text: &str, holds: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !holds(c)).unwrap_or(text.len()))
}

/// Enough to recognise a part of a text that may be a megabyte.
fn excerpt(text: &str) -> String {
    match text.char_indices().nth(20) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_documented_forms() {
        for (text, millis) in [
            ("5s", 5_000),
            ("500ms", 500),
            ("24h", 86_400_000),
            ("365d", 31_536_000_000),
            ("1h30m", 5_400_000),
            ("0s", 0),
            ("90m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        for (text, why) in [
            ("", "it is empty"),
            ("5", "5 has no unit"),
            ("1h30", "30 has no unit"),
            ("s", "\"s\" is not a whole number with a unit"),
            ("-5s", "\"-5s\" is not a whole number with a unit"),
            ("+5s", "\"+5s\" is not a whole number with a unit"),
            ("1.5h", "\"1.5h\" is not a whole number with a unit"),
            ("5 s", "\"5 s\" is not a whole number with a unit"),
            (" 5s", "\" 5s\" is not a whole number with a unit"),
            ("5s ", "\" \" is not a whole number with a unit"),
            ("1h 30m", "\" 30m\" is not a whole number with a unit"),
            ("٥s", "\"٥s\" is not a whole number with a unit"),
            ("5\u{b5}s", "\"5\u{b5}s\" is not a whole number with a unit"),
            ("60min", "\"min\" is not a unit; units are d, h, m, s and ms"),
            ("1w", "\"w\" is not a unit; units are d, h, m, s and ms"),
            ("5S", "\"S\" is not a unit; units are d, h, m, s and ms"),
            ("30m1h", "the units are not in descending order, each at most once"),
            ("1h1h", "the units are not in descending order, each at most once"),
            ("36501d", "it is longer than 36500d"),
            ("36500d1ms", "it is longer than 36500d"),
            ("18446744073709551616ms", "it is longer than 36500d"),
            ("213503982335d", "it is longer than 36500d"),
        ] {
            assert_eq!(parse(text).map_err(|e| e.to_string()), Err(why.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_megabyte_of_digits_is_an_error_of_one_line() {
        let error = parse(&"9".repeat(1 << 20)).expect_err("no unit");
        assert_eq!(error, NotADuration::NoUnit("99999999999999999999…".to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(millis in 0..=36_500u64 * 86_400_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9dhms .+-]{0,12}|.{0,12}") {
            let _ = parse(&text);
        }
    }
}
