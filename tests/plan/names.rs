//! Names: what freezes them, what is said of those that go, and which address is the node's when several might be.

use super::*;

/// Without the marker the template's names are all; whoever relies on an address of the node hears of it.
#[test]
fn a_template_without_the_marker_freezes_the_names_and_says_so() {
    let mut host = changed(|h| {
        h.cluster.template.as_mut().expect("there").as_mut().expect("readable").marker = false;
        h.link("eth1", None);
        h.add("eth1", "10.7.0.4/24");
    });
    let plan = host.settle();
    assert_eq!(holds(&plan), ["manual-template"]);
    assert!(plan.steps.is_empty());
    assert!(plan.holds[0].detail.ends_with("10.7.0.4 is not among them"), "{}", plan.holds[0].detail);
    // A renewal goes on, with the template's names.
    near_expiry(&mut host);
    let plan = host.plan();
    assert_eq!(steps(&plan)[0], "issue server");
    let Step::Issue(order) = &plan.steps[0] else { panic!("the first step issues") };
    assert_eq!(order.sans, sans(hosts::CONFIGURED));
    assert_eq!(order.dropped, sans(&["192.0.2.10"]));
}

/// A step says which names come and which go.
#[test]
fn a_reissue_says_what_it_adds_and_what_it_drops() {
    let mut host = changed(|h| {
        h.certificate(&["192.0.2.10", "192.0.2.77"]);
        let (san, at) = ("192.0.2.77".parse().expect("a name"), h.now.wall);
        h.state.added.push(Added { san, at, unneeded_since: Some(at) });
    });
    host.settle();
    host.pass_time(DAY * 2);
    host.link("eth1", None);
    host.add("eth1", "10.7.0.4/24");
    let plan = host.settle();
    assert_eq!(plan.steps[0].to_string(), "reissue server with 5 names (adding 10.7.0.4) (dropping 192.0.2.77)");
}

/// Neither the lowest value nor the order of the dump decides while anything else can.
#[test]
fn several_primaries_on_the_uplink() {
    let node = |change: fn(&mut Host)| {
        let mut host = Host::new();
        host.link("eth0", None);
        change(&mut host);
        let plan = host.plan();
        plan.node_address.values().next().expect("there is one").to_string()
    };
    // The prefix that holds the gateway.
    assert_eq!(
        node(|h| {
            h.add("eth0", "10.0.0.4/24");
            h.add("eth0", "192.0.2.10/24");
            h.default_via("eth0", Some("192.0.2.1"));
        }),
        "192.0.2.10"
    );
    // The gateway is on-link outside every prefix: the certificate knows.
    assert_eq!(
        node(|h| {
            h.add("eth0", "10.0.0.4/24");
            h.add("eth0", "192.0.2.10/24");
            h.default_via("eth0", Some("172.31.1.1"));
            h.certificate(&["192.0.2.10"]);
        }),
        "192.0.2.10"
    );
    // Nothing knows: what the API server itself would pick, which any other choice would have to hold back.
    assert_eq!(
        node(|h| {
            h.add("eth0", "192.0.2.10/24");
            h.add("eth0", "10.0.0.4/24");
            h.default_via("eth0", Some("172.31.1.1"));
        }),
        "192.0.2.10"
    );
}

/// Whether addresses are followed is not known while the file that may switch it off cannot be read.
#[test]
fn unreadable_arguments_hold_what_addresses_cause_and_nothing_else() {
    let mut host = changed(|h| {
        h.cluster.arguments.switches_known = false;
        h.link("eth1", None);
        h.add("eth1", "10.7.0.4/24");
    });
    let plan = host.settle();
    assert_eq!((holds(&plan), steps(&plan)), (vec!["args-unreadable".to_owned()], vec![]));
    near_expiry(&mut host);
    assert_eq!(steps(&host.plan())[0], "issue server");
}

/// A pass without the distribution's files knows neither pins nor pod networks: it does nothing and remembers nothing.
#[test]
fn a_pass_in_the_middle_of_a_refresh_teaches_nothing() {
    let mut host = changed(|h| {
        h.link("mycni", Some("bridge"));
        h.add("mycni", "10.1.7.1/24");
    });
    host.settle();
    let mut observed = host.observed();
    observed.cluster = None;
    observed.data_missing = Some("/var/snap/microk8s/current: no such file".to_owned());
    let plan = ipguard::decide::plan(&observed, &hosts::profile(), &host.config, &host.state, host.now, host.mode);
    assert_eq!((holds(&plan), steps(&plan)), (vec!["data-missing".to_owned()], vec![]));
    assert_eq!(plan.state, host.state);
}

/// A node whose operator wrote its own address into the template, with a certificate in which an older guard has put a VIP
/// too: the first run must not take the VIP for the node.
#[test]
fn a_template_that_names_the_node_does_not_make_a_vip_the_node() {
    let host = changed(|h| {
        h.state = ipguard::decide::state::State::default();
        template_names(h, &["192.0.2.10"]);
        h.add("eth0", "192.0.2.100/24");
        h.certificate(&["192.0.2.10", "192.0.2.100"]);
    });
    let plan = host.plan();
    let primary: Vec<String> = plan
        .addresses
        .iter()
        .filter(|v| v.class == ipguard::decide::verdict::Class::Primary)
        .map(|v| v.address.to_string())
        .collect();
    assert_eq!(primary, ["192.0.2.10"]);
    assert_eq!(plan.node_address.values().next(), Some(&ip("192.0.2.10")));
    assert!(plan.steps.is_empty());
}

/// A stand-in holds no subnet: the node's real new address that arrives beside it goes into the certificate.
#[test]
fn the_nodes_new_address_arrives_beside_a_vip_that_stands_in() {
    let mut host = changed(|h| {
        h.add("eth0", "192.0.2.100/24");
        h.settle();
        h.remove("192.0.2.10");
        h.settle();
        h.pass_time(MINUTE);
    });
    carry_out(&mut host, &[]);
    assert_eq!(host.planned_primary(), ["192.0.2.100"], "nothing else was left");
    host.add("eth0", "192.0.2.12/24");
    let plan = carry_out(&mut host, &[]);
    assert_eq!(plan.san.missing, sans(&["192.0.2.12"]));
    host.remove("192.0.2.100");
    carry_out(&mut host, &[]);
    host.pass_time(MINUTE);
    assert_eq!(host.plan().node_address.values().next(), Some(&ip("192.0.2.12")));
}

/// A certificate of a CA that the operator named is left alone for as long as anybody accepts it.
#[test]
fn a_foreign_certificate_that_is_over_is_replaced() {
    let mut host = changed(|h| {
        let facts = &mut h.cluster.certificates[0];
        facts.issued_by_authority = Some(false);
        facts.issued_by_foreign = true;
    });
    let plan = host.plan();
    assert_eq!((holds(&plan), steps(&plan)), (vec!["foreign-issuer".to_owned()], vec![]));
    host.pass_time(DAY * 400);
    let plan = host.plan();
    assert!(!holds(&plan).contains(&"foreign-issuer".to_owned()), "{:?}", holds(&plan));
    assert_eq!(steps(&plan)[0], "issue server");
}
