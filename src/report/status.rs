//! `status`: what a daemon publishes, and what is made of that when somebody asks.
//!
//! In: a plan and the certificates that a pass has seen; later, what was published and the time. Out: [`Published`], which
//! goes to `/run/ipguard/status.json`; text for people, the JSON document. The rule of this file: nothing secret, and
//! nothing that is wrong a day later - ages, days left and used restarts are counted when they are read.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::{Config, duration};
use crate::decide::inventory::{Item, Left, days_left, left, within};
use crate::decide::plan::{Plan, Step};
use crate::facts::process::Process;
use crate::facts::time::{NotAMoment, Timestamp};
use crate::report::{Paint, VERSION, json, printable};

/// What stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Of the format: 1. Fields are only ever added.
    pub version: u32,
    /// Version of the program.
    pub ipguard: String,
    /// Who published it. It is up to date for as long as that process runs.
    pub publisher: Process,
    /// When it changed last.
    pub published: Moment,
    /// Null where no distribution was found.
    pub profile: Option<String>,
    /// The verdict of the last pass: `in-step`, `reissue`, …
    pub state: String,
    /// The node address of each family, IPv4 first.
    pub node_address: Vec<IpAddr>,
    /// All that were seen.
    pub certificates: Vec<Certificate>,
    /// What the last pass concluded.
    pub last_plan: LastPlan,
    /// What became of the last plan that had steps; null where none had.
    pub last_outcome: Option<Outcome>,
    /// What is held back.
    pub holds: Vec<Hold>,
    /// Restarts of the API server.
    pub restarts: Restarts,
}

/// A moment as text, RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Moment(pub Timestamp);

impl From<Moment> for String {
    fn from(moment: Moment) -> Self {
        moment.0.to_string()
    }
}

impl TryFrom<String> for Moment {
    type Error = NotAMoment;

    fn try_from(text: String) -> Result<Self, NotAMoment> {
        text.parse().map(Self)
    }
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// In the profile, or the kubeconfig's.
    pub name: String,
    /// `certificate`, or `kubeconfig` for a client's.
    pub kind: Kind,
    /// The file.
    pub path: String,
    /// Null where there is nothing to read.
    pub not_after: Option<Moment>,
    /// Names.
    pub san: Vec<String>,
    /// Signed by the cluster's current CA; null where that cannot be told.
    pub issuer_ok: Option<bool>,
    /// A kubeconfig that knows the API server by the current CA; null for others, and where that cannot be told.
    pub authority_ok: Option<bool>,
    /// Why there is nothing to read, or what else is to be known.
    pub remark: Option<String>,
}

/// Where a certificate is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// In a file of its own, which ipguard looks after.
    Certificate,
    /// In a kubeconfig, which it does not.
    Kubeconfig,
}

/// The plan of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastPlan {
    /// When a pass came to this conclusion first.
    pub at: Moment,
    /// Why something is to be done.
    pub reasons: Vec<Reason>,
    /// What is to be done.
    pub steps: Vec<String>,
    /// What people should know.
    pub notices: Vec<String>,
}

/// A reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Which kind.
    pub code: String,
    /// Certificate it concerns.
    pub certificate: String,
    /// The evidence.
    pub detail: String,
}

/// A hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Which kind.
    pub code: String,
    /// What is held and what ends it.
    pub detail: String,
    /// When it ends by itself; null where time does not end it.
    pub until: Option<Moment>,
}

/// An outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// When its last step ended.
    pub at: Moment,
    /// Whether every step succeeded.
    pub ok: bool,
    /// One line.
    pub detail: String,
}

/// Restarts of the API server, with their limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// `restart.limit`.
    pub limit: u32,
    /// `restart.window` in seconds.
    pub window_seconds: u64,
    /// When they were.
    pub at: Vec<Moment>,
}

impl Published {
    /// What a pass has to say.
    pub fn new(
        plan: &Plan,
        certificates: Vec<Item>,
        profile: Option<&str>,
        config: &Config,
        publisher: Process,
        now: Timestamp,
    ) -> Self {
        let reason = |reason: &crate::decide::plan::Reason| Reason {
            code: reason.code.to_string(),
            certificate: reason.certificate.clone(),
            detail: reason.detail.clone(),
        };
        let hold = |hold: &crate::decide::plan::Hold| Hold {
            code: hold.code.to_string(),
            detail: hold.detail.clone(),
            until: hold.until.map(Moment),
        };
        Self {
            version: VERSION,
            ipguard: env!("CARGO_PKG_VERSION").to_owned(),
            publisher,
            published: Moment(now),
            profile: profile.map(str::to_owned),
            state: plan.summary.to_string(),
            node_address: plan.node_address.values().copied().collect(),
            certificates: certificates.into_iter().map(Certificate::from).collect(),
            last_plan: LastPlan {
                at: Moment(now),
                reasons: plan.reasons.iter().map(reason).collect(),
                steps: plan.steps.iter().map(Step::to_string).collect(),
                notices: plan.notices.clone(),
            },
            last_outcome: plan.state.last_outcome.as_ref().map(|outcome| Outcome {
                at: Moment(outcome.at),
                ok: outcome.ok,
                detail: outcome.detail.clone(),
            }),
            holds: plan.holds.iter().map(hold).collect(),
            restarts: Restarts {
                limit: config.restart.limit,
                window_seconds: config.restart.window.as_secs(),
                at: plan.state.restarts.iter().map(|restart| Moment(restart.at)).collect(),
            },
        }
    }

    /// Whether it says the same as another; that it is said again is no news.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let plain = |published: &Self| {
            let mut plain = published.clone();
            plain.published = Moment(Timestamp::default());
            plain.last_plan.at = Moment(Timestamp::default());
            plain
        };
        plain(self) == plain(other)
    }

    /// Whether the pass concluded the same as that of another.
    pub fn concludes_the_same(&self, other: &Self) -> bool {
        let (own, others) = (&self.last_plan, &other.last_plan);
        self.state == other.state
            && (&own.reasons, &own.steps, &own.notices) == (&others.reasons, &others.steps, &others.notices)
    }

    fn used(&self, now: Timestamp) -> usize {
        let at: Vec<Timestamp> = self.restarts.at.iter().map(|at| at.0).collect();
        within(&at, Duration::from_secs(self.restarts.window_seconds), now)
    }

    fn window(&self) -> String {
        duration::format(Duration::from_secs(self.restarts.window_seconds))
    }
}

impl From<Item> for Certificate {
    fn from(listed: Item) -> Self {
        Self {
            name: listed.name,
            kind: if listed.in_kubeconfig { Kind::Kubeconfig } else { Kind::Certificate },
            path: listed.path.display().to_string(),
            not_after: listed.not_after.map(Moment),
            san: listed.san,
            issuer_ok: listed.issuer_ok,
            authority_ok: listed.authority_ok,
            remark: listed.remark,
        }
    }
}

/// What goes into the file.
pub fn file(published: &Published) -> String {
    json(published)
}

/// The JSON document; on one line where several follow each other.
pub fn document(published: &Published, running: bool, now: Timestamp, one_line: bool) -> String {
    let certificates = published
        .certificates
        .iter()
        .map(|certificate| Dated { certificate, days_left: certificate.not_after.map(|end| days_left(end.0, now)) });
    let document = Document {
        version: VERSION,
        ipguard: &published.ipguard,
        running,
        pid: published.publisher.pid,
        published: published.published,
        age_seconds: now.since(published.published.0).as_secs(),
        profile: published.profile.as_deref(),
        state: &published.state,
        node_address: &published.node_address,
        certificates: certificates.collect(),
        last_plan: &published.last_plan,
        last_outcome: published.last_outcome.as_ref(),
        holds: &published.holds,
        restarts: Used { used: published.used(now), limit: published.restarts.limit, window: published.window() },
    };
    if one_line {
        serde_json::to_string(&document).expect("plain values with string keys serialise") + "\n"
    } else {
        json(&document)
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    ipguard: &'a str,
    running: bool,
    pid: u32,
    published: Moment,
    age_seconds: u64,
    profile: Option<&'a str>,
    state: &'a str,
    node_address: &'a [IpAddr],
    certificates: Vec<Dated<'a>>,
    last_plan: &'a LastPlan,
    last_outcome: Option<&'a Outcome>,
    holds: &'a [Hold],
    restarts: Used,
}

#[derive(Serialize)]
struct Dated<'a> {
    #[serde(flatten)]
    certificate: &'a Certificate,
    days_left: Option<i64>,
}

#[derive(Serialize)]
struct Used {
    used: usize,
    limit: u32,
    window: String,
}

/// For people.
pub fn text(published: &Published, running: bool, now: Timestamp, colour: bool) -> String {
    let mut out = String::new();
    write_text(&mut out, published, running, now, colour).expect("writing to a String does not fail");
    out
}

fn write_text(
    out: &mut String,
    published: &Published,
    running: bool,
    now: Timestamp,
    colour: bool,
) -> std::fmt::Result {
    let paint = match published.state.as_str() {
        "in-step" => Paint::Green,
        "hold" => Paint::Cyan,
        "reissue" => Paint::Yellow,
        _ => Paint::Red,
    };
    let age = age(now.since(published.published.0));
    let state = paint.on(&printable(&published.state), colour);
    if running {
        writeln!(out, "{state}, unchanged for {age}")?;
    } else {
        let stale = Paint::Red.on("stale", colour);
        let pid = published.publisher.pid;
        writeln!(out, "{stale}: {state} {age} ago; process {pid}, which said so, does not run any more")?;
    }
    let addresses: Vec<String> = published.node_address.iter().map(IpAddr::to_string).collect();
    let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(" ") };
    writeln!(out, "node address: {addresses}")?;
    writeln!(out, "profile: {}", printable(published.profile.as_deref().unwrap_or("none")))?;
    writeln!(out, "restarts: {} of {} within {}", published.used(now), published.restarts.limit, published.window())?;
    writeln!(out, "ipguard: {}, since {}", printable(&published.ipguard), published.published.0)?;

    let heading = |title: &str| format!("\n{}\n", Paint::Bold.on(title, colour));
    if !published.certificates.is_empty() {
        out.push_str(&heading("certificates"));
        let wide = published.certificates.iter().map(|c| printable(&c.name).chars().count()).max().unwrap_or(0);
        for certificate in &published.certificates {
            let name = printable(&certificate.name);
            let (paint, end) = end(certificate, now);
            let paint = if certificate.issuer_ok == Some(false) || certificate.authority_ok == Some(false) {
                Some(Paint::Red)
            } else {
                paint
            };
            let end = paint.map_or_else(|| end.clone(), |paint| paint.on(&end, colour));
            writeln!(out, "  {name:wide$}  {end}  {}", Paint::Dim.on(&printable(&certificate.path), colour))?;
        }
    }
    let plan = &published.last_plan;
    for (title, lines) in [
        ("reasons", plan.reasons.iter().map(|r| format!("{} ({}): {}", r.code, r.certificate, r.detail)).collect()),
        ("steps", plan.steps.clone()),
        ("holds", published.holds.iter().map(held).collect::<Vec<String>>()),
        ("notices", plan.notices.clone()),
    ] {
        if !lines.is_empty() {
            out.push_str(&heading(title));
            lines.iter().try_for_each(|line| writeln!(out, "  {}", printable(line)))?;
        }
    }
    if let Some(outcome) = &published.last_outcome {
        out.push_str(&heading("last outcome"));
        let paint = if outcome.ok { Paint::Green } else { Paint::Red };
        let word = paint.on(if outcome.ok { "done" } else { "failed" }, colour);
        writeln!(out, "  {word} {}: {}", outcome.at.0, printable(&outcome.detail))?;
    }
    Ok(())
}

fn held(hold: &Hold) -> String {
    let until = hold.until.map(|until| format!(" (until {})", until.0)).unwrap_or_default();
    format!("{}{until}: {}", hold.code, hold.detail)
}

/// When a certificate ends, and what is wrong with it.
fn end(certificate: &Certificate, now: Timestamp) -> (Option<Paint>, String) {
    let (paint, mut text) = match certificate.not_after.map(|end| end.0) {
        None => (Some(Paint::Yellow), "no certificate".to_owned()),
        Some(end) => {
            let (days, date) = (days_left(end, now), end);
            match left(end, now) {
                Left::Over => (Some(Paint::Red), format!("expired {date}")),
                Left::Little => (Some(Paint::Yellow), format!("{days} days left, until {date}")),
                Left::Enough => (None, format!("{days} days left, until {date}")),
            }
        }
    };
    if certificate.issuer_ok == Some(false) {
        text += ", not issued by the current CA";
    }
    if certificate.authority_ok == Some(false) {
        text += ", knows the API server by another CA than the current one";
    }
    if let Some(remark) = &certificate.remark {
        text += &format!(": {}", printable(remark));
    }
    (paint, text)
}

/// A span as people say it.
fn age(span: Duration) -> String {
    let seconds = span.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "s"),
        60..7200 => (seconds / 60, "min"),
        7200..172_800 => (seconds / 3600, "h"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit}")
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
