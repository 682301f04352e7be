//! `check`: the plan of one pass, and what became of it.
//!
//! In: a plan, and with `--apply` the outcomes of its steps. Out: text for people, the JSON document, or the one digit
//! that MicroK8s' `produce_certs` and hooks wait for. The rule of this file: everything the plan says is shown, the
//! reasons for doing nothing no less than the others.

use std::fmt::Write as _;

use serde::Serialize;

use crate::decide::outcome::{StepOutcome, StepResult, lasting_failures};
use crate::decide::plan::{Hold, Plan, Reason, Step, Summary};
use crate::facts::san::SanSet;
use crate::report::{Paint, VERSION, json, printable};

/// The plan, for people.
pub fn text(plan: &Plan, profile: Option<&str>, colour: bool) -> String {
    let mut out = String::new();
    write_text(&mut out, plan, profile, colour).expect("writing to a String does not fail");
    out
}

fn write_text(out: &mut String, plan: &Plan, profile: Option<&str>, colour: bool) -> std::fmt::Result {
    let (paint, meaning) = match plan.summary {
        Summary::InStep => (Paint::Green, "nothing to do"),
        Summary::Reissue => (Paint::Yellow, "make certificates anew; the API server is not restarted"),
        Summary::ReissueAndRestart => (Paint::Red, "make certificates anew and restart the API server"),
        Summary::Restart => (Paint::Red, "restart the API server"),
        Summary::Hold => (Paint::Cyan, "something to do, and a reason to wait"),
    };
    writeln!(out, "{}: {meaning}", paint.on(&plan.summary.to_string(), colour))?;
    writeln!(out, "profile: {}", profile.unwrap_or("none"))?;

    let heading = |title: &str| format!("\n{}\n", Paint::Bold.on(title, colour));
    if !plan.reasons.is_empty() {
        out.push_str(&heading("reasons"));
        for reason in &plan.reasons {
            writeln!(out, "  {} ({}): {}", reason.code, printable(&reason.certificate), printable(&reason.detail))?;
        }
    }
    if !plan.holds.is_empty() {
        out.push_str(&heading("holds"));
        for hold in &plan.holds {
            let until = hold.until.map(|until| format!(" (until {until})")).unwrap_or_default();
            writeln!(out, "  {}{until}: {}", hold.code, printable(&hold.detail))?;
        }
    }
    let san = &plan.san;
    let changes: [(&SanSet, &str, &str); 4] = [
        (&san.missing, "+", "missing"),
        (&san.dropped, "-", "dropped by the next reissue"),
        (&san.left_out, "!", "left out: too many names"),
        (&san.extra, " ", "not demanded, kept"),
    ];
    out.push_str(&heading("names"));
    writeln!(out, "  {} in the certificate, {} demanded", san.certificate.len(), san.desired.len())?;
    for (names, sign, meaning) in changes {
        // A name that is dropped is also an extra one; it is listed once, with what happens to it.
        let listed = names.iter().filter(|name| sign != " " || !san.dropped.contains(name));
        for name in listed {
            writeln!(out, "  {sign} {name} ({meaning})")?;
        }
    }
    if !plan.steps.is_empty() {
        out.push_str(&heading("steps"));
        for (number, step) in (1..).zip(&plan.steps) {
            writeln!(out, "  {number}. {}", printable(&step.to_string()))?;
        }
    }
    if !plan.notices.is_empty() {
        out.push_str(&heading("notices"));
        for notice in &plan.notices {
            writeln!(out, "  {}", printable(notice))?;
        }
    }
    Ok(())
}

/// What became of the steps, for people.
pub fn outcomes(outcomes: &[StepOutcome], colour: bool) -> String {
    if outcomes.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", Paint::Bold.on("outcome", colour));
    for (number, outcome) in (1..).zip(outcomes) {
        let (paint, word, detail) = match &outcome.result {
            StepResult::Issued { fingerprint } => (Paint::Green, "issued", format!("certificate {fingerprint}")),
            StepResult::Confirmed => (Paint::Green, "confirmed", String::new()),
            StepResult::Stale { served } => (Paint::Red, "stale", format!("the port still serves {served}")),
            StepResult::Unanswered(how) => (Paint::Yellow, "unanswered", how.clone()),
            StepResult::Unusable(how) => (Paint::Red, "unusable", how.clone()),
            StepResult::Ready => (Paint::Green, "ready", String::new()),
            StepResult::NotReady(why) => (Paint::Red, "not ready", why.clone()),
            StepResult::Restarted => (Paint::Green, "restarted", String::new()),
            StepResult::Disabled => (Paint::Green, "stopped and disabled", String::new()),
            StepResult::Skipped(why) => (Paint::Yellow, "skipped", why.clone()),
            StepResult::NotTried(why) => (Paint::Yellow, "not tried", why.clone()),
            StepResult::Begun => (Paint::Yellow, "begun", "not waited for".to_owned()),
            StepResult::Failed(why) => (Paint::Red, "failed", why.clone()),
        };
        let detail = outcome.remark().map_or_else(|| detail.clone(), |remark| format!("{detail}; {remark}"));
        let detail = if detail.is_empty() { detail } else { format!(": {}", printable(&detail)) };
        writeln!(out, "  {number}. {}{detail}", paint.on(word, colour)).expect("writing to a String does not fail");
    }
    out
}

/// The steps that failed, one line each.
pub fn failures(outcomes: &[StepOutcome]) -> impl Iterator<Item = String> {
    lasting_failures(outcomes).filter_map(|outcome| match &outcome.result {
        StepResult::Failed(why) => Some(format!("{}: {}", outcome.step, printable(why))),
        StepResult::Stale { served } => Some(format!("{}: the port still serves {served}", outcome.step)),
        StepResult::Unusable(_) | StepResult::NotReady(_) => {
            Some(format!("{}: {}", outcome.step, printable(&outcome.result.to_string())))
        }
        _ => None,
    })
}

/// The JSON document.
pub fn document(plan: &Plan, profile: Option<&str>) -> String {
    json(&Document {
        version: VERSION,
        profile,
        verdict: plan.summary,
        reasons: &plan.reasons,
        holds: &plan.holds,
        san: Names {
            desired: &plan.san.desired,
            certificate: &plan.san.certificate,
            missing: &plan.san.missing,
            extra: &plan.san.extra,
        },
        steps: plan.steps.iter().map(Step::to_string).collect(),
    })
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    /// Null where no distribution was found.
    profile: Option<&'a str>,
    verdict: Summary,
    reasons: &'a [Reason],
    holds: &'a [Hold],
    san: Names<'a>,
    steps: Vec<String>,
}

#[derive(Serialize)]
struct Names<'a> {
    desired: &'a SanSet,
    certificate: &'a SanSet,
    missing: &'a SanSet,
    extra: &'a SanSet,
}

/// The whole standard output of `--format microk8s`: the shell reads it as a number.
pub const fn digit(caller_must_restart: bool) -> &'static str {
    if caller_must_restart { "1\n" } else { "0\n" }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::AuthorityKeyId;
    use crate::decide::plan::{HoldCode, IssueOrder, ReasonCode, SanPlan, Subject};
    use crate::facts::certificate::{Fingerprint, Purpose};
    use crate::facts::time::Timestamp;
    use crate::report::tests::{plan, sans};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_796_094_000 + seconds)
    }

    fn issue(certificate: &str) -> Step {
        Step::Issue(IssueOrder {
            certificate: certificate.to_owned(),
            purpose: Purpose::Server,
            sans: sans(&["kubernetes", "192.0.2.10", "192.0.2.11"]),
            added: sans(&["192.0.2.11"]),
            dropped: [].into(),
            subject: Subject::Attributes(Vec::new()),
            not_before: at(0),
            not_after: at(86_400),
            new_key: false,
            authority_key_id: AuthorityKeyId::KeyId,
            request: None,
            address_caused: true,
            served: true,
            shown_by_kubelet: false,
        })
    }

    fn reason(code: ReasonCode, certificate: &str, detail: &str) -> Reason {
        Reason { code, certificate: certificate.to_owned(), detail: detail.to_owned() }
    }

    /// A plan in which every part is there.
    fn full() -> Plan {
        let mut plan = plan();
        plan.summary = Summary::Reissue;
        plan.reasons = vec![reason(ReasonCode::AddressMissing, "server", "192.0.2.11 on eth1 is primary")];
        plan.holds = vec![
            Hold { code: HoldCode::RestartLimit, detail: "3 in 1h".to_owned(), until: Some(at(60)) },
            Hold { code: HoldCode::Stopped, detail: "until `microk8s start`\u{1b}[2J".to_owned(), until: None },
        ];
        plan.notices = vec!["the CA ends in 20 days".to_owned()];
        plan.steps = vec![
            issue("server"),
            Step::ConfirmServed {
                shown_by_kubelet: false,
                certificate: "server".to_owned(),
                port: 16443,
                host: "2001:db8::10".parse().expect("an address"),
                deadline: at(70),
            },
            Step::Restart { service: "cluster-agent".to_owned(), reason: ReasonCode::LoadedOnce },
        ];
        plan.san = SanPlan {
            desired: sans(&["kubernetes", "192.0.2.10", "192.0.2.11", "192.0.2.99"]),
            certificate: sans(&["kubernetes", "192.0.2.10", "old.example.com", "203.0.113.9"]),
            missing: sans(&["192.0.2.11"]),
            extra: sans(&["old.example.com", "203.0.113.9"]),
            dropped: sans(&["203.0.113.9"]),
            left_out: sans(&["192.0.2.99"]),
        };
        plan
    }

    #[test]
    fn the_text_shows_everything_the_plan_says() {
        let expected = "\
reissue: make certificates anew; the API server is not restarted
profile: microk8s

reasons
  address-missing (server): 192.0.2.11 on eth1 is primary

holds
  restart-limit (until 2026-12-01T03:01:00Z): 3 in 1h
  stopped: until `microk8s start`\\u{1b}[2J

names
  4 in the certificate, 4 demanded
  + 192.0.2.11 (missing)
  - 203.0.113.9 (dropped by the next reissue)
  ! 192.0.2.99 (left out: too many names)
    old.example.com (not demanded, kept)

steps
  1. reissue server with 3 names (adding 192.0.2.11)
  2. confirm that [2001:db8::10]:16443 serves the server certificate
  3. restart cluster-agent (loaded-once)

notices
  the CA ends in 20 days
";
        assert_eq!(text(&full(), Some("microk8s"), false), expected);
    }

    #[test]
    fn a_quiet_plan_is_short() {
        let expected = "in-step: nothing to do\nprofile: none\n\nnames\n  0 in the certificate, 0 demanded\n";
        assert_eq!(text(&plan(), None, false), expected);
        assert!(text(&plan(), None, true).starts_with("\u{1b}[32min-step\u{1b}[0m: nothing to do\n"));
    }

    #[test]
    fn the_document_has_exactly_the_stable_fields() {
        let expected = r#"{
  "version": 1,
  "profile": "microk8s",
  "verdict": "reissue",
  "reasons": [
    {
      "code": "address-missing",
      "certificate": "server",
      "detail": "192.0.2.11 on eth1 is primary"
    }
  ],
  "holds": [
    {
      "code": "restart-limit",
      "detail": "3 in 1h",
      "until": "2026-12-01T03:01:00Z"
    },
    {
      "code": "stopped",
      "detail": "until `microk8s start`\u001b[2J",
      "until": null
    }
  ],
  "san": {
    "desired": [
      "kubernetes",
      "192.0.2.10",
      "192.0.2.11",
      "192.0.2.99"
    ],
    "certificate": [
      "kubernetes",
      "old.example.com",
      "192.0.2.10",
      "203.0.113.9"
    ],
    "missing": [
      "192.0.2.11"
    ],
    "extra": [
      "old.example.com",
      "203.0.113.9"
    ]
  },
  "steps": [
    "reissue server with 3 names (adding 192.0.2.11)",
    "confirm that [2001:db8::10]:16443 serves the server certificate",
    "restart cluster-agent (loaded-once)"
  ]
}
"#;
        assert_eq!(document(&full(), Some("microk8s")), expected);
        let empty = r#"{
  "version": 1,
  "profile": null,
  "verdict": "in-step",
  "reasons": [],
  "holds": [],
  "san": {
    "desired": [],
    "certificate": [],
    "missing": [],
    "extra": []
  },
  "steps": []
}
"#;
        assert_eq!(document(&plan(), None), empty);
    }

    fn outcome(result: StepResult) -> StepOutcome {
        StepOutcome { step: issue("server"), result, began: at(0), took: Duration::from_millis(20) }
    }

    #[test]
    fn every_outcome_is_told() {
        let results = [
            StepResult::Issued { fingerprint: Fingerprint([0xab; 32]) },
            StepResult::Confirmed,
            StepResult::Stale { served: Fingerprint([0x01; 32]) },
            StepResult::Unanswered("connection refused".to_owned()),
            StepResult::Restarted,
            StepResult::Disabled,
            StepResult::Skipped("not running".to_owned()),
            StepResult::Failed("writing server.crt: no space".to_owned()),
        ];
        let expected = "
outcome
  1. issued: certificate abababababababab
  2. confirmed
  3. stale: the port still serves 0101010101010101
  4. unanswered: connection refused
  5. restarted
  6. stopped and disabled
  7. skipped: not running
  8. failed: writing server.crt: no space
";
        assert_eq!(outcomes(&results.clone().map(outcome), false), expected);
        assert_eq!(outcomes(&[], false), "");
        let failed: Vec<String> = failures(&results.map(outcome)).collect();
        assert_eq!(
            failed,
            [
                "reissue server with 3 names (adding 192.0.2.11): the port still serves 0101010101010101",
                "reissue server with 3 names (adding 192.0.2.11): writing server.crt: no space",
            ]
        );
    }
}
