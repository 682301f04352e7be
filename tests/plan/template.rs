//! The template: what is held while it makes no sense, and the validity that it may ask for.

use super::*;

fn set_template(h: &mut Host, problem: Problem) {
    h.cluster.template = Some(Err(ReadError { path: "certs/csr.conf.template".into(), problem }));
}

#[test]
fn a_template_that_makes_no_sense_is_held_with_its_line() {
    let bad = || Problem::Malformed("line 17: neither a section nor key = value".to_owned());
    let mut host = changed(|h| set_template(h, bad()));
    let plan = host.settle();
    assert_eq!((holds(&plan), steps(&plan)), (vec!["template-unreadable".to_owned()], vec![]));
    let detail = &plan.holds[0].detail;
    assert!(detail.starts_with("certs/csr.conf.template: line 17: neither"), "{detail}");
    // Whatever does not depend on it goes on, and drops nothing.
    host.certificate(&["192.0.2.10", "203.0.113.7"]);
    host.link("eth1", None);
    host.add("eth1", "10.7.0.4/24");
    let plan = host.settle();
    assert_eq!((holds(&plan), steps(&plan)[0].as_str()), (vec!["template-unreadable".to_owned()], "issue server"));
    let Step::Issue(order) = &plan.steps[0] else { panic!("the first step issues") };
    assert!(order.dropped.is_empty() && order.request.is_none());
    // A first certificate waits, and says it once.
    let mut host = changed(|h| {
        set_template(h, bad());
        h.cluster.certificates[0].leaf = Err(broken("certs/server.crt"));
    });
    let plan = host.settle();
    assert_eq!((holds(&plan), steps(&plan)), (vec!["template-unreadable".to_owned()], vec![]));
    // One that an editor takes away for a moment is only missed.
    let plan = changed(|h| set_template(h, Problem::Missing)).plan();
    assert_eq!(holds(&plan), NONE);
    assert!(plan.notices.iter().any(|n| n.contains("no such file")), "{:?}", plan.notices);
}

#[test]
fn its_validity_counts_where_the_configuration_says_nothing() {
    let lasts = |change: fn(&mut Host)| {
        let mut host = changed(|h| {
            h.cluster.template.as_mut().expect("there").as_mut().expect("readable").validity = Some(DAY * 90);
            template_names(h, &["api.example.com"]);
        });
        change(&mut host);
        let plan = host.settle();
        let Step::Issue(order) = &plan.steps[0] else { panic!("the first step issues") };
        order.not_after.since(host.now.wall).as_secs() / 86_400
    };
    assert_eq!(lasts(|_| {}), 90);
    assert_eq!(lasts(|h| h.config.certificate.validity = DAY * 200), 200);
    assert_eq!(lasts(|h| h.config.certificate.renew_before = Some(DAY * 30)), 90);
    assert_eq!(lasts(|h| h.config.certificate.renew_before = Some(DAY * 90)), 365, "it would be renewed at once");
    // A year's certificate does not end by that; from then on a third of ninety days is what is left at the renewal.
    let mut host = changed(|h| {
        h.cluster.template.as_mut().expect("there").as_mut().expect("readable").validity = Some(DAY * 90);
    });
    let leaf = host.cluster.certificates[0].leaf.as_mut().expect("readable");
    (leaf.not_before, leaf.not_after) = (host.now.wall - DAY * 300, host.now.wall + DAY * 31);
    let plan = host.settle();
    assert_eq!(steps(&plan), NONE);
    host.pass_time(plan.look_again.expect("the day is known").since(host.now.wall) + MINUTE);
    assert_eq!(reasons(&host.plan()), ["near-expiry"]);
}
