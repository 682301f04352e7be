//! A scenario as data. In: the JSON files of `fixtures/scenarios`, described in the README there. Out: [`Scenario`],
//! complete: fields that a file leaves out have their documented default. An unknown field is an error, so that a
//! misspelt expectation cannot pass for one that holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::stage::Result;
use crate::stage::api_server::Reloading;
use crate::stage::tree::CertificateState;

/// One situation and what should come of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) id: String,
    pub(crate) title: String,
    #[serde(default)]
    #[allow(dead_code, reason = "for people")]
    pub(crate) source: Vec<String>,
    pub(crate) mode: Modes,
    pub(crate) links: Vec<Link>,
    #[serde(default)]
    pub(crate) addrs: Vec<Address>,
    #[serde(default)]
    pub(crate) routes: Vec<String>,
    #[serde(default)]
    pub(crate) sysctls: Vec<String>,
    #[serde(default)]
    pub(crate) dad: bool,
    #[serde(default)]
    pub(crate) cert_state: CertState,
    pub(crate) cert_sans: Vec<String>,
    #[serde(default)]
    pub(crate) args: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(crate) locks: Vec<String>,
    #[serde(default)]
    pub(crate) service_started: ServiceStarted,
    #[serde(default)]
    pub(crate) api_server: ApiServerKind,
    #[serde(default)]
    pub(crate) config: Vec<String>,
    pub(crate) steps: Vec<Step>,
    pub(crate) expect: Expect,
}

/// Which forms of ipguard play it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Modes {
    Watch,
    Check,
    Both,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "for people")]
    pub(crate) wanted: String,
    pub(crate) up: bool,
    pub(crate) peer: Option<String>,
    pub(crate) master: Option<String>,
    pub(crate) vxlan: Option<String>,
    pub(crate) link: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Address {
    #[serde(rename = "if")]
    pub(crate) interface: String,
    pub(crate) cidr: String,
    #[serde(default)]
    pub(crate) flags: Vec<String>,
    pub(crate) lft: Option<Lifetime>,
    pub(crate) peer: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) scope: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lifetime {
    pub(crate) valid: u32,
    pub(crate) preferred: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CertState {
    #[default]
    Valid,
    Missing,
    EmptyFile,
    SignedByOtherCa,
}

/// Since when the API server runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServiceStarted {
    #[default]
    AfterAddresses,
    BeforeAddresses,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ApiServerKind {
    #[default]
    Reloads,
    LoadsOnce,
    Closed,
}

/// One thing that happens.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum Step {
    Ip { ip: String },
    Wait { wait_s: f64 },
    Repeat { repeat: u32, steps: Vec<Self> },
    Check { check: bool },
    TemplateAdd { template_add: Vec<String> },
    LockDel { lock_del: String },
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    #[serde(default)]
    pub(crate) primary: Vec<String>,
    #[serde(default)]
    pub(crate) secondary: Vec<String>,
    #[serde(default)]
    pub(crate) lb_owned: Vec<String>,
    #[serde(default)]
    pub(crate) ignored: Vec<String>,
    pub(crate) sans_after: Vec<String>,
    #[serde(default)]
    pub(crate) must_include: Vec<String>,
    #[serde(default)]
    pub(crate) must_exclude: Vec<String>,
    pub(crate) reissue: bool,
    #[serde(default = "one")]
    pub(crate) max_reissues: usize,
    pub(crate) restart: Option<bool>,
    pub(crate) max_restarts: usize,
    #[serde(default)]
    #[allow(dead_code, reason = "for people")]
    pub(crate) notes: String,
}

const fn one() -> usize {
    1
}

impl Scenario {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let scenario: Self = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        if path.file_stem().and_then(|stem| stem.to_str()) != Some(&scenario.id) {
            return Err(format!("{}: the id is {}", path.display(), scenario.id).into());
        }
        Ok(scenario)
    }

    /// Every scenario of the folder, by name.
    pub(crate) fn read_all() -> Result<Vec<(PathBuf, Self)>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/scenarios");
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        paths.into_iter().map(|path| Self::read(&path).map(|scenario| (path, scenario))).collect()
    }

    /// Steps with repetitions written out.
    pub(crate) fn flat_steps(&self) -> Vec<Step> {
        let mut flat = Vec::new();
        flatten(&self.steps, None, &mut flat);
        flat
    }

    /// Seconds that the steps take by themselves, before scaling.
    pub(crate) fn waits(&self) -> f64 {
        self.flat_steps().iter().map(|step| if let Step::Wait { wait_s } = step { *wait_s } else { 0.0 }).sum()
    }
}

fn flatten(steps: &[Step], round: Option<u32>, into: &mut Vec<Step>) {
    for step in steps {
        match (step, round) {
            (Step::Repeat { repeat, steps }, _) => {
                for n in 0..*repeat {
                    flatten(steps, Some(n), into);
                }
            }
            (Step::Ip { ip }, Some(n)) => into.push(Step::Ip { ip: numbered(ip, n) }),
            (other, _) => into.push(other.clone()),
        }
    }
}

/// `{n}` is the round, `{n20}` the round plus twenty.
pub(crate) fn numbered(text: &str, round: u32) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{n") {
        let (offset, after) = after.split_once('}').unwrap_or(("", after));
        result.push_str(before);
        result.push_str(&(round + offset.parse::<u32>().unwrap_or(0)).to_string());
        rest = after;
    }
    result + rest
}

impl From<CertState> for CertificateState {
    fn from(state: CertState) -> Self {
        match state {
            CertState::Valid => Self::Valid,
            CertState::Missing => Self::Missing,
            CertState::EmptyFile => Self::EmptyFile,
            CertState::SignedByOtherCa => Self::SignedByOther,
        }
    }
}

impl From<ApiServerKind> for Reloading {
    fn from(kind: ApiServerKind) -> Self {
        match kind {
            ApiServerKind::Reloads => Self::OnChange,
            ApiServerKind::LoadsOnce => Self::AtRestart,
            ApiServerKind::Closed => Self::Closed,
        }
    }
}
