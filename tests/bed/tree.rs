//! The request template and the request made from it.

use crate::stage::tree::{MARKER, rendered, template};

#[test]
fn the_marker_is_where_the_scenario_says() {
    let lines = |extra: &[&str]| {
        let text = template(&extra.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        let names = text.split("[ alt_names ]\n").nth(1).unwrap_or_default();
        names.split("\n\n").next().unwrap_or_default().lines().skip(7).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(lines(&[]), [MARKER]);
    assert_eq!(lines(&["IP.99 = 192.0.2.1"]), ["IP.99 = 192.0.2.1", MARKER]);
    assert_eq!(lines(&["(no #MOREIPS)", "IP.3 = 192.0.2.10"]), ["IP.3 = 192.0.2.10"]);
    assert_eq!(lines(&["IP.3 = 192.0.2.1", MARKER, "DNS.6 = a"]), ["IP.3 = 192.0.2.1", MARKER, "DNS.6 = a"]);
}

#[test]
fn the_rendered_request_has_the_addresses_the_template_has_not() {
    let sans = ["DNS:kubernetes", "127.0.0.1", "10.152.183.1", "192.0.2.10"].map(str::to_owned);
    let text = rendered(&template(&[]), &sans);
    assert!(text.contains("IP.3 = 192.0.2.10\n"));
    assert!(!text.contains(MARKER));
    assert_eq!(text.matches("127.0.0.1").count(), 2, "once as CN, once as IP.1");
}
