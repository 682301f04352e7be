//! The one line that `systemctl status` shows.
//!
//! In: the last plan, what is under way, what was refused. Out: one line in plain words: what is watched, what was decided
//! last, what holds it and until when, what needs somebody. The rule of this file: what lasts stays in the line for as long
//! as it lasts, and the most pressing of several stands for all of them.

use crate::decide::plan::{Hold, HoldCode, Plan, Summary};
use crate::report::printable;

/// What the line is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct Line<'a> {
    /// Name of the profile, where there is a distribution.
    pub profile: Option<&'a str>,
    /// The last pass; `None` before the first.
    pub concluded: Option<&'a Concluded>,
    /// Nothing is touched.
    pub observe: bool,
    /// The step that is under way.
    pub doing: Option<&'a str>,
    /// Why the configuration in the file is not in force.
    pub refused: Option<&'a str>,
    /// What the first pass waits for.
    pub waits_for: Option<&'a str>,
}

/// What a pass concluded, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concluded {
    node: String,
    decided: String,
    held: Option<String>,
    attention: Option<String>,
}

/// systemd cuts nothing off, but a person reads this in a terminal.
const LONGEST_DETAIL: usize = 200;

/// The line.
pub fn line(about: &Line<'_>) -> String {
    let mut parts = vec![watched(about)];
    if let Some(waits_for) = about.waits_for {
        parts.push(format!("waiting for {waits_for}"));
    }
    if let Some(concluded) = about.concluded {
        parts.push(concluded.decided.clone());
    }
    if let Some(doing) = about.doing {
        parts.push(format!("now: {}", cut(doing)));
    }
    if let Some(concluded) = about.concluded {
        parts.extend(concluded.held.clone());
        parts.extend(concluded.attention.clone());
    }
    if let Some(refused) = about.refused {
        parts.push(format!("configuration refused, the one before stays in force: {}", cut(refused)));
    }
    printable(&parts.join("; ")).into_owned()
}

fn watched(about: &Line<'_>) -> String {
    let observing = if about.observe { " (observing only)" } else { "" };
    let Some(profile) = about.profile else {
        return format!("watching addresses{observing}, no Kubernetes distribution found");
    };
    let node = about.concluded.map(|concluded| concluded.node.as_str()).unwrap_or_default();
    format!("watching addresses and certificates of {profile}{observing}{node}")
}

impl Concluded {
    /// Of a plan.
    pub fn of(plan: &Plan) -> Self {
        let node: Vec<String> = plan.node_address.values().map(ToString::to_string).collect();
        let node = if node.is_empty() { String::new() } else { format!(", node address {}", node.join(" and ")) };
        Self { node, decided: decided(plan), held: held(plan), attention: attention(plan) }
    }
}

fn decided(plan: &Plan) -> String {
    let what = match plan.summary {
        Summary::InStep => "in step",
        Summary::Hold => "something is to be done, and waits",
        Summary::Reissue => "to be done: make a certificate",
        Summary::ReissueAndRestart => "to be done: make a certificate and restart the API server",
        Summary::Restart => "to be done: restart the API server",
    };
    let why = plan.reasons.first().filter(|_| plan.summary != Summary::InStep);
    why.map_or_else(|| what.to_owned(), |reason| format!("{what} ({}: {})", reason.code, cut(&reason.detail)))
}

/// The first hold that somebody should know of; the usual waits stand back.
fn held(plan: &Plan) -> Option<String> {
    let usual =
        |hold: &Hold| matches!(hold.code, HoldCode::Settling | HoldCode::RestartJitter | HoldCode::RestartUnderWay);
    let first = plan.holds.iter().find(|hold| !usual(hold)).or_else(|| plan.holds.first())?;
    let until = first.until.map_or_else(String::new, |until| format!(" until {until}"));
    Some(format!("held{until} by {}: {}{}", first.code, cut(&first.detail), more(plan.holds.len())))
}

fn attention(plan: &Plan) -> Option<String> {
    plan.notices.first().map(|first| format!("attention: {}{}", cut(first), more(plan.notices.len())))
}

fn more(count: usize) -> String {
    if count > 1 { format!(" (and {} more)", count - 1) } else { String::new() }
}

fn cut(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(LONGEST_DETAIL) {
        Some((at, _)) => format!("{} …", &one_line[..at]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Line<'static> {
        Line::default()
    }

    #[test]
    fn it_is_one_line_whatever_others_wrote() {
        let refused = "a.toml:1:2: x\na.toml:2:1: \u{1b}[2Jy\u{202e}";
        let text = line(&Line { profile: Some("microk8s"), refused: Some(refused), observe: true, ..nothing() });
        assert_eq!(
            text,
            "watching addresses and certificates of microk8s (observing only); configuration refused, the one before \
             stays in force: a.toml:1:2: x a.toml:2:1: \\u{1b}[2Jy\\u{202e}"
        );
        let long = "ä".repeat(5000);
        assert!(line(&Line { doing: Some(&long), ..nothing() }).len() < 1000);
    }

    #[test]
    fn before_the_first_pass_it_says_what_is_waited_for() {
        let text = line(&Line { waits_for: Some("a default route"), profile: Some("microk8s"), ..nothing() });
        assert_eq!(text, "watching addresses and certificates of microk8s; waiting for a default route");
        assert_eq!(line(&nothing()), "watching addresses, no Kubernetes distribution found");
    }
}
