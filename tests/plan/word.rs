//! The API server's own word: when it is asked what it advertises, and what its answer changes.

use super::*;

use ipguard::decide::word::Word;

const SECONDS: Duration = Duration::from_secs(1);

/// A daemon on a host with a kubeconfig, whose API server has been running for long.
fn asked(change: impl FnOnce(&mut Host)) -> Host {
    changed(|host| {
        host.credentials = true;
        change(host);
    })
}

/// The API server lists these in this pass; nothing is listed in the passes after it.
fn says(host: &mut Host, listed: &[&str]) -> Plan {
    host.listed = Some(Ok(listed.iter().map(|address| ip(address)).collect()));
    let plan = host.settle();
    host.listed = None;
    plan
}

/// It gives no answer.
fn fails(host: &mut Host) -> Plan {
    host.listed = Some(Err("192.0.2.10:16443: connection refused".to_owned()));
    let plan = host.settle();
    host.listed = None;
    plan
}

fn word(host: &Host) -> &Word {
    host.state.word.as_ref().expect("it was asked")
}

fn asks(host: &Host) -> bool {
    host.plan().needs_listed.is_some()
}

fn warned(plan: &Plan, words: &str) -> bool {
    plan.notices.iter().any(|notice| notice.contains(words))
}

/// Another address, to which everything but the API server has been told: nothing is remembered of the one before, and the
/// certificate names only the new one.
fn unrecorded() -> Host {
    asked(|host| {
        host.remove("192.0.2.10");
        host.add("eth0", "192.0.2.20/24");
        host.certificate(&["192.0.2.20"]);
        host.state = ipguard::decide::state::State::default();
        host.settle();
        host.pass_time(MINUTE);
    })
}

#[test]
fn it_is_asked_once_and_not_again_for_noise() {
    let mut host = asked(|_| {});
    let question = host.plan().needs_listed.expect("a question");
    assert_eq!((question.certificate.as_str(), question.host, question.port), ("server", ip("127.0.0.1"), 16443));
    assert!(host.plan().needs_services, "how old it is has to be known too");
    let plan = says(&mut host, &["192.0.2.10"]);
    assert_eq!((steps(&plan), holds(&plan), plan.notices, word(&host).unclear), (vec![], vec![], vec![], 0));
    assert!(!asks(&host));
    // A day of a load balancer's addresses, of lifetimes, of a second NIC.
    for round in 0..24 {
        host.pass_time(HOUR);
        host.add("eth0", &format!("192.0.2.{}/32", 100 + round));
        host.settle();
        assert!(!asks(&host), "{round}");
    }
    host.link("eth1", None);
    host.add("eth1", "203.0.113.7/24");
    host.settle();
    assert!(!asks(&host));
    // The process of another boot is another one.
    host.boot_id = "the-next-boot".to_owned();
    assert!(asks(&host));
}

#[test]
fn nobody_is_asked_without_need_or_means() {
    assert!(asks(&asked(|_| {})));
    for (why, change) in [
        ("no kubeconfig", (|host| host.credentials = false) as fn(&mut Host)),
        ("a hook must not wait", |host| host.mode = Mode::Hook),
        ("it advertises what it is told", |host| {
            host.cluster.arguments.advertise = FlagAddress::Address(ip("192.0.2.10"));
        }),
        ("somebody else writes the list", |host| host.cluster.arguments.endpoints_are_others = true),
        ("a node joins", |host| lock(host, "join-in-progress", MINUTE)),
        ("there is no address to ask about", |host| {
            host.remove("192.0.2.10");
            host.settle();
            host.pass_time(MINUTE);
        }),
    ] {
        assert!(!asks(&asked(change)), "{why}");
    }
    // Whoever looks once wants to know it now.
    let mut host = asked(|_| {});
    says(&mut host, &["192.0.2.10"]);
    host.mode = Mode::OneShot;
    assert!(asks(&host));
}

#[test]
fn a_failed_question_changes_nothing_and_is_repeated_ever_less_often() {
    let mut host = asked(|_| {});
    let before = host.state.advertised.clone();
    let mut pauses = Vec::new();
    for _ in 0..10 {
        assert!(asks(&host));
        let plan = fails(&mut host);
        assert_eq!((steps(&plan), holds(&plan)), (vec![], vec![]));
        assert_eq!(host.state.advertised, before);
        let next = plan.look_again.expect("time makes it due");
        pauses.push(next.since(host.now.wall).as_secs());
        host.pass_time(next.since(host.now.wall) - SECONDS);
        assert!(!asks(&host));
        host.pass_time(SECONDS);
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]);
    // One that is only starting is no news.
    assert!(warned(&host.plan(), "connection refused"));
    let mut host = asked(|_| {});
    fails(&mut host);
    assert!(host.plan().notices.is_empty());
}

#[test]
fn a_failed_question_leaves_a_restart_to_the_record() {
    let mut host = renumbered(|host| host.credentials = true);
    host.services.clear();
    let plan = host.plan();
    assert!(plan.needs_services && plan.needs_listed.is_some());
    host.service_since(HOUR);
    let plan = fails(&mut host);
    assert_eq!(steps(&plan), REISSUE_AND_RESTART);
}

#[test]
fn what_it_advertises_and_is_gone_is_a_reason_to_restart() {
    let mut host = unrecorded();
    // Without its word nobody knows.
    assert_eq!(steps(&Host { credentials: false, ..host.clone() }.plan()), NONE);
    assert!(asks(&host));
    let plan = says(&mut host, &["192.0.2.10"]);
    assert_eq!(
        (steps(&plan), plan.summary.to_string()),
        (vec![], "in-step".to_owned()),
        "it may have just been started"
    );
    host.pass_time(30 * SECONDS);
    assert!(asks(&host));
    let plan = says(&mut host, &["192.0.2.10"]);
    assert_eq!(reasons(&plan), ["node-address-replaced"]);
    assert_eq!(steps(&plan), ["restart kubelite", "confirm", "ready"]);
    assert!(plan.reasons[0].detail.contains("advertises 192.0.2.10, the node address is 192.0.2.20"));
}

#[test]
fn such_a_restart_passes_every_gate() {
    let gated = |change: fn(&mut Host)| {
        let mut host = unrecorded();
        says(&mut host, &["192.0.2.10"]);
        host.pass_time(30 * SECONDS);
        change(&mut host);
        let plan = says(&mut host, &["192.0.2.10"]);
        assert_eq!(steps(&plan), NONE);
        holds(&plan)
    };
    assert_eq!(gated(|host| host.config.restart.policy = RestartPolicy::Never), ["restart-disabled"]);
    assert_eq!(gated(|host| lock(host, "no-cert-reissue", DAY)), ["reissue-disabled"]);
    assert_eq!(gated(|host| host.config.restart.jitter = HOUR), ["restart-jitter"]);
    assert_eq!(
        gated(|host| {
            // The kernel lists a virtual address first, so that is what it would advertise then.
            let virtual_address = host.add("eth0", "192.0.2.9/32").clone();
            host.network.addresses.pop();
            host.network.addresses.insert(0, virtual_address);
        }),
        ["would-advertise-other"]
    );
    assert_eq!(
        gated(|host| {
            let at = host.now.wall - MINUTE;
            let (service, reason) = ("kubelite".to_owned(), "served-stale".to_owned());
            host.state.restarts = vec![Restart { at, service, reason, open: false }; 3];
        }),
        ["restart-limit"]
    );
    // A node that is down is not restarted.
    let mut host = unrecorded();
    says(&mut host, &["192.0.2.10"]);
    host.pass_time(30 * SECONDS);
    host.services.get_mut("kubelite").expect("asked").active = Some(false);
    assert_eq!(steps(&says(&mut host, &["192.0.2.10"])), NONE);
}

/// Half a minute of a clock that was set is none.
#[test]
fn a_clock_that_is_set_does_not_make_it_wait_or_hurry() {
    for (forward, by) in [(true, DAY), (false, HOUR)] {
        let mut host = unrecorded();
        says(&mut host, &["192.0.2.10"]);
        host.pass_time(2 * SECONDS);
        host.now.wall = if forward { host.now.wall + by } else { host.now.wall - by };
        assert!(!asks(&host));
        assert_eq!(steps(&says(&mut host, &["192.0.2.10"])), NONE);
        host.pass_time(60 * SECONDS);
        assert!(asks(&host), "forward: {forward}");
        assert_eq!(reasons(&says(&mut host, &["192.0.2.10"])), ["node-address-replaced"]);
    }
}

/// A jitter or another hold stands between the answer and the restart: the answer is not forgotten meanwhile, even where
/// the record would have it otherwise.
#[test]
fn the_word_lasts_through_a_hold() {
    let mut host = unrecorded();
    says(&mut host, &["192.0.2.10"]);
    host.pass_time(30 * SECONDS);
    host.config.restart.jitter = 20 * SECONDS;
    let plan = says(&mut host, &["192.0.2.10"]);
    assert_eq!(holds(&plan), ["restart-jitter"]);
    host.pass_time(plan.look_again.expect("the jitter ends").since(host.now.wall));
    host.services.clear();
    assert!(asks(&host));
    host.service_since(HOUR);
    assert_eq!(steps(&says(&mut host, &["192.0.2.10"])), ["restart kubelite", "confirm", "ready"]);
}

#[test]
fn other_control_planes_are_none_of_ours() {
    // On a cluster of three: all there, one that has left, one that has another address now.
    for listed in [
        &["192.0.2.10", "192.0.2.11", "192.0.2.12"][..],
        &["192.0.2.10", "192.0.2.11"],
        &["192.0.2.10", "192.0.2.11", "192.0.2.99"],
    ] {
        let mut host = asked(|_| {});
        for _ in 0..3 {
            let plan = says(&mut host, listed);
            assert_eq!((steps(&plan), plan.notices), (vec![], vec![]), "{listed:?}");
            host.pass_time(HOUR);
        }
        assert!(!asks(&host));
    }
    // Ours is not on the list, and none of those on it was ever ours: they are others', and that is reported.
    let mut host = asked(|_| {});
    for _ in 0..10 {
        let plan = says(&mut host, &["192.0.2.11", "192.0.2.12"]);
        assert_eq!(steps(&plan), NONE);
        host.pass_time(HOUR);
    }
    assert!(warned(&host.plan(), "list no address of this node"));
    // An empty list: every API server has just stopped.
    let mut host = asked(|_| {});
    for _ in 0..3 {
        assert_eq!(steps(&says(&mut host, &[])), NONE);
        host.pass_time(HOUR);
    }
}

/// A node that joins lists the other's address only, until its own API server has come up and put itself beside it.
#[test]
fn the_other_of_two_is_not_taken_for_ours_while_ours_starts() {
    let mut host = asked(|host| host.service_since(host.now.uptime - 5 * SECONDS));
    assert_eq!(steps(&says(&mut host, &["192.0.2.11"])), NONE);
    host.pass_time(20 * SECONDS);
    assert_eq!(steps(&says(&mut host, &["192.0.2.11"])), NONE);
    host.pass_time(40 * SECONDS);
    let plan = says(&mut host, &["192.0.2.10", "192.0.2.11"]);
    assert_eq!((steps(&plan), word(&host).unclear, word(&host).unlisted_since), (vec![], 0, None));
}

/// Somebody restarts it between two looks: what the process before was not listed for is forgotten.
#[test]
fn half_a_minute_of_two_processes_is_none() {
    let mut host = unrecorded();
    says(&mut host, &["192.0.2.10"]);
    host.pass_time(30 * SECONDS);
    fails(&mut host);
    host.pass_time(MINUTE);
    assert_eq!(steps(&says(&mut host, &["192.0.2.10"])), NONE);
    host.pass_time(30 * SECONDS);
    assert_eq!(reasons(&says(&mut host, &["192.0.2.10"])), ["node-address-replaced"]);
}

#[test]
fn among_others_an_address_of_ours_that_is_gone_is_told_by_the_record() {
    for (whose, change) in [
        (
            "lost",
            (|host: &mut Host| {
                host.add("eth0", "192.0.2.20/24");
                host.settle();
                host.remove("192.0.2.20");
                host.settle();
            }) as fn(&mut Host),
        ),
        ("certificate", |host| host.certificate(&["192.0.2.10", "192.0.2.20"])),
    ] {
        let mut host = asked(change);
        if whose == "lost" && !host.state.lost.iter().any(|lost| lost.address == ip("192.0.2.20")) {
            // In the subnet of the node's own it was never primary: of a second NIC it is.
            continue;
        }
        says(&mut host, &["192.0.2.11", "192.0.2.20"]);
        host.pass_time(30 * SECONDS);
        let plan = says(&mut host, &["192.0.2.11", "192.0.2.20"]);
        assert_eq!(reasons(&plan), ["node-address-replaced"], "{whose}");
        // Once ours lists an address of the host, an old one beside it is no reason.
        let mut host = asked(change);
        for _ in 0..5 {
            let plan = says(&mut host, &["192.0.2.10", "192.0.2.11", "192.0.2.20"]);
            assert_eq!(steps(&plan), NONE, "{whose}");
            host.pass_time(HOUR);
        }
        assert!(warned(&host.plan(), "still list 192.0.2.20"), "{whose}");
    }
}

/// Nodes that swap their addresses: what ours advertises is another's now. Both lists are right as a whole, and only the
/// record knows that it is the wrong process that keeps the entry.
#[test]
fn where_both_are_listed_the_record_decides() {
    let mut host = renumbered(|host| {
        host.credentials = true;
        host.service_since(HOUR);
    });
    let plan = says(&mut host, &["192.0.2.10", "192.0.2.20"]);
    assert_eq!(steps(&plan), REISSUE_AND_RESTART);
}

#[test]
fn an_api_server_that_has_it_already_is_not_restarted() {
    // It was started anew by somebody, which a polling daemon without times would not know.
    let mut host = renumbered(|host| {
        host.credentials = true;
        host.services.get_mut("kubelite").expect("there").started = None;
    });
    let before = host.clone();
    assert_eq!(steps(&before.plan()), REISSUE_AND_RESTART);
    let plan = says(&mut host, &["192.0.2.20", "192.0.2.11"]);
    assert_eq!(steps(&plan), RELOAD);
    assert_eq!(host.state.advertised.as_ref().and_then(|a| a.address), Some(ip("192.0.2.20")));
}

/// A restart that did not help is reported, not repeated: the list may be kept by somebody else.
#[test]
fn one_restart_for_one_address() {
    let mut host = unrecorded();
    says(&mut host, &["192.0.2.10"]);
    host.pass_time(30 * SECONDS);
    host.listed = Some(Ok([ip("192.0.2.10")].into()));
    assert_eq!(steps(&carry_out(&mut host, &[])), ["restart kubelite", "confirm", "ready"]);
    host.listed = None;
    assert_eq!(host.state.restarted_for, Some(ip("192.0.2.10")));
    host.service_since(host.now.uptime);
    // What comes up is asked, whatever was heard before.
    assert!(asks(&host));
    for _ in 0..30 {
        let plan = says(&mut host, &["192.0.2.10"]);
        assert_eq!((steps(&plan), holds(&plan)), (vec![], vec![]));
        host.pass_time(HOUR);
    }
    assert!(warned(&host.plan(), "still list 192.0.2.10"));
}

#[test]
fn behind_a_restart_the_old_one_is_to_be_gone() {
    let restarted = || {
        let mut host = renumbered(|host| host.credentials = true);
        host.listed = Some(Ok([ip("192.0.2.10")].into()));
        assert_eq!(steps(&carry_out(&mut host, &[])), REISSUE_AND_RESTART);
        host.listed = None;
        host.service_since(host.now.uptime);
        host.pass_time(5 * SECONDS);
        host
    };
    // Its lease lasts fifteen seconds: nothing is wrong yet.
    let mut host = restarted();
    assert!(asks(&host));
    let plan = says(&mut host, &["192.0.2.10", "192.0.2.20"]);
    assert_eq!((steps(&plan), plan.notices), (vec![], vec![]));
    host.pass_time(30 * SECONDS);
    assert!(asks(&host));
    let mut gone = host.clone();
    let plan = says(&mut gone, &["192.0.2.20"]);
    assert_eq!((steps(&plan), plan.notices, word(&gone).unclear, gone.state.restarted_for), (vec![], vec![], 0, None));
    // It stays (k3s-io/k3s#14594): reported, and looked at again until it is gone.
    let plan = says(&mut host, &["192.0.2.10", "192.0.2.20"]);
    assert_eq!((steps(&plan), holds(&plan)), (vec![], vec![]));
    assert!(warned(&plan, "still list 192.0.2.10"));
    host.pass_time(MINUTE);
    assert!(asks(&host) && warned(&host.plan(), "still list 192.0.2.10"));
    let plan = says(&mut host, &["192.0.2.20"]);
    assert!(plan.notices.is_empty() && !asks(&host));
}

/// An address of the host that is no one's own: an API server that was started while it was first in line may advertise it.
#[test]
fn a_virtual_address_that_is_listed_causes_nothing() {
    let mut host = asked(|host| {
        host.add("eth0", "192.0.2.100/32");
    });
    for _ in 0..3 {
        let plan = says(&mut host, &["192.0.2.100"]);
        assert_eq!((steps(&plan), holds(&plan)), (vec![], vec![]));
        host.pass_time(HOUR);
    }
    assert_eq!(host.state.advertised.as_ref().and_then(|a| a.address), Some(ip("192.0.2.10")));
}
