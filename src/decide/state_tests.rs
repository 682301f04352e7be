//! Back-off, and what a state file of another version means.

use super::*;

#[test]
fn back_off_doubles_up_to_an_hour() {
    let first = Duration::from_secs(10);
    let steps: Vec<u64> = (1..=12).map(|n| back_off(first, n).as_secs()).collect();
    assert_eq!(steps, [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600]);
    assert_eq!(back_off(first, u32::MAX), Duration::from_secs(3600));
}

#[test]
fn the_moment_of_writing_is_no_news() {
    let before = State { version: 1, ..State::default() };
    let after = State { written: Timestamp::from_seconds(9), ..before.clone() };
    assert!(before.says_the_same(&after));
    assert!(!before.says_the_same(&State { boot_id: "other".into(), ..before.clone() }));
}

#[test]
fn an_older_or_newer_file_is_read() {
    let older: State = serde_json::from_str(r#"{"version":1}"#).expect("fields have defaults");
    assert!(older.is_known());
    let newer = r#"{"version":7,"a_field_of_tomorrow":[1,2],"node_address":{"ipv4":"192.0.2.10"}}"#;
    let newer: State = serde_json::from_str(newer).expect("unknown fields are ignored");
    assert_eq!(newer.node_address[&Family::Ipv4].to_string(), "192.0.2.10");
}
