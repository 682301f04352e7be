//! The scenario format: every fixture is understood, nothing else is.

use crate::scenario::{Scenario, Step, numbered};
use crate::stage::Result;

#[test]
fn every_fixture_is_understood() -> Result<()> {
    let all = Scenario::read_all()?;
    assert!(all.len() >= 59, "{} scenarios", all.len());
    for (_, scenario) in &all {
        let expect = &scenario.expect;
        assert!(!scenario.title.is_empty());
        assert!(expect.restart != Some(true) || expect.max_restarts > 0, "{}", scenario.id);
        let known: Vec<&String> = expect.sans_after.iter().chain(&scenario.cert_sans).collect();
        for name in &expect.must_include {
            assert!(known.contains(&name), "{}: {name} is demanded and not in sans_after", scenario.id);
        }
    }
    Ok(())
}

#[test]
fn rounds_are_numbered() {
    assert_eq!(numbered("link add vs{n} peer name vt{n20}", 3), "link add vs3 peer name vt23");
}

#[test]
fn a_misspelt_step_is_an_error() {
    assert!(serde_json::from_str::<Step>(r#"{"waits": 1}"#).is_err());
    assert!(serde_json::from_str::<Step>(r#"{"ip": "link", "wait_s": 1}"#).is_err());
}
