//! The status as it is stored, printed and read. `fixtures/status` has the formats: they must keep parsing.

use super::*;

const PUBLISHED: &str = include_str!("../../fixtures/status/published.json");
const DOCUMENT: &str = include_str!("../../fixtures/status/document.json");
const TEXT: &str = include_str!("../../fixtures/status/running.txt");
const STALE: &str = include_str!("../../fixtures/status/stale.txt");

fn stored() -> Published {
    serde_json::from_str(PUBLISHED).expect("the stored sample is one")
}

/// Three hours behind the sample.
fn later() -> Timestamp {
    stored().published.0 + Duration::from_secs(3 * 3600)
}

#[test]
fn the_stored_sample_is_read_and_written_alike() {
    assert_eq!(file(&stored()), PUBLISHED);
}

#[test]
fn a_sample_of_a_later_version_with_more_fields_is_read() {
    let more = PUBLISHED.replacen('{', "{\n  \"later\": {\"a\": [1]},", 1);
    assert_eq!(serde_json::from_str::<Published>(&more).expect("fields are only ever added"), stored());
}

#[test]
fn the_document_is_the_stored_one() {
    let document = document(&stored(), true, later(), false);
    assert_eq!(document, DOCUMENT);
    let line = super::document(&stored(), true, later(), true);
    assert_eq!(line.lines().count(), 1);
    let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(parsed(&line), parsed(DOCUMENT));
}

#[test]
fn what_people_read() {
    assert_eq!(text(&stored(), true, later(), false), TEXT);
    assert_eq!(text(&stored(), false, later() + Duration::from_secs(40 * 86_400), false), STALE);
}

#[test]
fn colours_change_no_word() {
    let coloured = text(&stored(), true, later(), true);
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain += before;
        rest = after.split_once('m').expect("SGR ends with m").1;
    }
    assert_eq!(plain + rest, TEXT);
}

#[test]
fn nothing_that_others_wrote_drives_the_terminal() {
    let mut hostile = stored();
    let evil = "\u{1b}[2J\n".to_owned();
    hostile.state = evil.clone();
    hostile.profile = Some(evil.clone());
    hostile.ipguard = evil.clone();
    for certificate in &mut hostile.certificates {
        (certificate.name, certificate.path, certificate.remark) = (evil.clone(), evil.clone(), Some(evil.clone()));
    }
    hostile.holds[0].detail = evil.clone();
    hostile.last_plan.notices = vec![evil.clone()];
    hostile.last_outcome.as_mut().expect("the sample has one").detail = evil;
    assert!(!text(&hostile, false, later(), false).contains('\u{1b}'));
}

#[test]
fn the_moment_is_no_news_and_everything_else_is() {
    let (one, mut other) = (stored(), stored());
    other.published = Moment(later());
    other.last_plan.at = Moment(later());
    assert!(one.says_the_same(&other));
    other.publisher.pid += 1;
    assert!(!one.says_the_same(&other), "another daemon stands behind it");
    assert!(one.concludes_the_same(&other));
    other.last_plan.steps.clear();
    assert!(!one.concludes_the_same(&other));
}

#[test]
fn spans_are_said_in_the_unit_that_fits() {
    for (seconds, said) in
        [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 days")]
    {
        assert_eq!(age(Duration::from_secs(seconds)), said);
    }
}
