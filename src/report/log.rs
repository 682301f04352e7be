//! Log lines about plans and outcomes.
//!
//! In: a plan or outcomes. Out: one line for each thing that a person would want to know at night. The rule of this file:
//! a quiet pass is silent, and nothing secret is ever in a line.

use crate::decide::outcome::StepOutcome;
use crate::decide::plan::{HoldCode, Plan};
use crate::facts::san::San;

/// What a plan says, as text: the same for two passes that conclude the same.
pub fn summary(plan: &Plan) -> String {
    let mut lines = vec![plan.summary.to_string()];
    lines.extend(plan.reasons.iter().map(|r| format!("{} {}: {}", r.code, r.certificate, r.detail)));
    lines.extend(plan.holds.iter().map(|h| {
        let until = h.until.map_or_else(String::new, |until| format!(" (until {until})"));
        format!("hold {}: {}{until}", h.code, h.detail)
    }));
    lines.extend(plan.notices.iter().cloned());
    lines.push(format!("names {}", plan.san.desired.iter().map(San::to_string).collect::<Vec<_>>().join(" ")));
    lines.join("\n")
}

/// Logs a plan.
pub fn plan(plan: &Plan, observe: bool) {
    let node = plan.node_address.values().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let primary: Vec<String> = plan
        .addresses
        .iter()
        .filter(|v| v.class == crate::decide::verdict::Class::Primary)
        .map(|v| v.address.to_string())
        .collect();
    tracing::info!(verdict = %plan.summary, primary = primary.join(" "), node_address = node, "decided");
    for reason in &plan.reasons {
        tracing::info!(code = %reason.code, certificate = reason.certificate, "reason: {}", reason.detail);
    }
    for hold in &plan.holds {
        let until = hold.until.map_or_else(|| "it is lifted".to_owned(), |until| until.to_string());
        // Waiting for a settled network is the usual course; the others want somebody to know.
        match hold.code {
            HoldCode::Settling | HoldCode::RestartJitter | HoldCode::RestartUnderWay => {
                tracing::info!(code = %hold.code, until, "hold: {}", hold.detail);
            }
            _ => tracing::warn!(code = %hold.code, until, "hold: {}", hold.detail),
        }
    }
    for notice in &plan.notices {
        tracing::warn!("{notice}");
    }
    if observe {
        for step in &plan.steps {
            tracing::info!("observing only, not done: {step}");
        }
    }
}

/// Logs what is about to be done.
pub fn steps(plan: &Plan) {
    for (number, step) in plan.steps.iter().enumerate() {
        tracing::info!("step {} of {}: {step}", number + 1, plan.steps.len());
    }
}

/// Logs what became of a step.
pub fn outcome(outcome: &StepOutcome) {
    let took_ms = u64::try_from(outcome.took.as_millis()).unwrap_or(u64::MAX);
    if outcome.result.is_failure() {
        tracing::error!(took_ms, "{}: {}", outcome.step, outcome.result);
    } else {
        let remark = outcome.remark().map(|remark| format!("; {remark}")).unwrap_or_default();
        tracing::info!(took_ms, "{}: {}{remark}", outcome.step, outcome.result);
    }
}
