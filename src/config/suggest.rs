//! The known word nearest to one that is not known.
//!
//! In: a word as written and the words that would have been right. Out: at most one of them. The rule of this file: a
//! suggestion that is not close is worse than none.

/// Nothing that long is a typing error, and the distance costs the product of both lengths.
const LONGEST: usize = 40;

/// The candidate that differs least from `word`, if it differs by no more than a third of its letters. Case, and `-`
/// where `_` is meant, do not count; of two that are equally near, the first.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = letters(word);
    if word.is_empty() || word.len() > LONGEST {
        return None;
    }
    let mut best = None;
    for candidate in candidates {
        let known = letters(candidate);
        let distance = distance(&word, &known);
        let allowed = (word.len().max(known.len()) / 3).max(1);
        // One letter of one or two is another word, not a slip.
        if distance <= allowed && distance < known.len().min(word.len()) && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, candidate));
        }
        // Written the other way round is not a difference at all, whatever its length.
        if word == known {
            return Some(candidate);
        }
    }
    best.map(|(_, candidate)| candidate)
}

fn letters(word: &str) -> Vec<char> {
    word.chars().take(LONGEST + 1).map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other (optimal string
/// alignment): the four slips of a keyboard.
fn distance(a: &[char], b: &[char]) -> usize {
    // Three rows of the table: the swap looks two rows back.
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    let mut row = vec![0; b.len() + 1];
    for i in 1..=a.len() {
        row[0] = i;
        for j in 1..=b.len() {
            let substituted = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = substituted.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        std::mem::swap(&mut before, &mut above);
        std::mem::swap(&mut above, &mut row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(word: &str) -> Option<&'static str> {
        nearest(word, ["quiet", "max", "promotion_hold", "pin"])
    }

    #[test]
    fn every_slip_of_the_keyboard_is_one_step() {
        for slip in ["quite", "quit", "quiett", "qujet", "Quiet"] {
            assert_eq!(near(slip), Some("quiet"), "{slip}");
        }
        assert_eq!(near("promotion-hold"), Some("promotion_hold"));
        assert_eq!(near("promtoin_hld"), Some("promotion_hold"));
        assert_eq!(near("pins"), Some("pin"));
    }

    #[test]
    fn a_word_that_is_not_close_gets_no_suggestion() {
        for other in ["", "x", "loud", "addresses", "mn", "ünïcödé"] {
            assert_eq!(near(other), None, "{other}");
        }
    }

    #[test]
    fn a_very_long_word_costs_nothing() {
        assert_eq!(near(&"quiet".repeat(200_000)), None);
    }

    #[test]
    fn the_distance_is_symmetric_and_zero_only_for_equals() {
        let words = ["quiet", "quite", "", "max", "mxa", "promotion_hold"];
        for a in words {
            for b in words {
                let (x, y) = (letters(a), letters(b));
                assert_eq!(distance(&x, &y), distance(&y, &x), "{a} {b}");
                assert_eq!(distance(&x, &y) == 0, a == b, "{a} {b}");
            }
        }
        assert_eq!(distance(&letters("max"), &letters("mxa")), 1);
        assert_eq!(distance(&letters(""), &letters("max")), 3);
    }
}
