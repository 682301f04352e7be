//! What triggers what: the table of reasons, holds and steps, row by row, and in every mode.

mod hosts;

use std::time::Duration;

use hosts::{Host, ip, sans};
use ipguard::config::{RestartPolicy, SecondaryPolicy};
use ipguard::decide::Mode;
use ipguard::decide::outcome::{StepOutcome, StepResult};
use ipguard::decide::plan::{Plan, Step};
use ipguard::decide::state::{Added, Restart, Unconfirmed};
use ipguard::facts::certificate::{Fingerprint, PublicKey};
use ipguard::facts::cluster::FlagAddress;
use ipguard::facts::time::Now;
use ipguard::facts::{Problem, ReadError};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// A host, and the reasons, holds and steps of its plan, in order.
struct Row {
    title: &'static str,
    host: fn() -> Host,
    reasons: &'static [&'static str],
    holds: &'static [&'static str],
    steps: &'static [&'static str],
}

const NONE: &[&str] = &[];
const RELOAD: &[&str] = &["issue server", "confirm", "restart cluster-agent"];
const REISSUE_AND_RESTART: &[&str] = &["issue server", "restart cluster-agent", "restart kubelite", "confirm"];

/// A host in step, changed afterwards.
fn changed(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = Host::usual();
    host.settle();
    host.pass_time(MINUTE);
    change(&mut host);
    host
}

/// The node address was replaced and every wait is over.
fn renumbered(change: impl FnOnce(&mut Host)) -> Host {
    let mut host = changed(|h| {
        h.remove("192.0.2.10");
        h.add("eth0", "192.0.2.20/24");
        h.settle();
        h.pass_time(MINUTE);
    });
    change(&mut host);
    host
}

fn broken(path: &str) -> ReadError {
    ReadError { path: path.into(), problem: Problem::Empty }
}

fn lock(host: &mut Host, name: &str, age: Duration) {
    host.cluster.locks.insert(name.to_owned(), host.now.wall - age);
}

fn near_expiry(host: &mut Host) {
    let not_after = host.now.wall + DAY * 10;
    host.cluster.certificates[0].leaf.as_mut().expect("readable").not_after = not_after;
}

const TABLE: &[Row] = &[
    Row { title: "nothing happened", host: || changed(|_| {}), reasons: NONE, holds: NONE, steps: NONE },
    Row {
        title: "addresses that are not the node's come",
        host: || {
            changed(|h| {
                h.add("eth0", "192.0.2.100/24");
                h.add("eth0", "198.51.100.70/32");
                h.link("docker0", Some("bridge"));
                h.add("docker0", "172.17.0.1/16");
                h.link("kube-lb0", Some("dummy"));
                h.add("kube-lb0", "203.0.113.9/32");
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "label, prefix length, lifetime and link name of a known address change",
        host: || {
            changed(|h| {
                h.link_mut("eth0").name = "ens3".into();
                let address = h.network.addresses.last_mut().expect("there");
                address.prefix_len = 25;
                address.label = Some("ens3:2".into());
                address.valid = Some(HOUR);
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "a primary address goes and nothing comes",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
                h.certificate(&["192.0.2.10", "198.51.100.9"]);
                h.settle();
                h.remove("198.51.100.9");
                h.settle();
                h.pass_time(DAY * 3);
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "a second address of the node's own",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
            })
        },
        reasons: &["address-missing"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "a name is added to the template",
        host: || changed(|h| template_names(h, &["api.example.com"])),
        reasons: &["configured-san-missing"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "the node address is replaced, a moment ago",
        host: || {
            changed(|h| {
                h.remove("192.0.2.10");
                h.add("eth0", "192.0.2.20/24");
            })
        },
        reasons: &["address-missing"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "and for longer than the hold",
        host: || renumbered(|_| {}),
        reasons: &["address-missing", "node-address-replaced"],
        holds: NONE,
        steps: REISSUE_AND_RESTART,
    },
    Row {
        title: "replaced by one that the certificate has",
        host: || renumbered(|h| h.certificate(&["192.0.2.10", "192.0.2.20"])),
        reasons: &["node-address-replaced"],
        holds: NONE,
        steps: &["restart kubelite", "confirm"],
    },
    Row {
        title: "kubelite was restarted by somebody else after the new address came",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                h.service_since(h.now.uptime - Duration::from_secs(10));
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "kubelite does not run: it will start with what is there",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                h.services.get_mut("kubelite").expect("asked").active = Some(false);
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "a restart would publish a VIP",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                let vip = h.add("eth0", "192.0.2.100/24").clone();
                h.network.addresses.pop();
                h.network.addresses.insert(0, vip);
                h.settle();
            })
        },
        reasons: &["node-address-replaced"],
        holds: &["would-advertise-other"],
        steps: NONE,
    },
    Row {
        title: "the API server's state cannot be asked for",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                h.services.get_mut("kubelite").expect("asked").active = None;
            })
        },
        reasons: &["node-address-replaced"],
        holds: &["service-inactive"],
        steps: NONE,
    },
    Row {
        title: "restarts are forbidden",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                h.config.restart.policy = RestartPolicy::Never;
            })
        },
        reasons: &["node-address-replaced"],
        holds: &["restart-disabled"],
        steps: NONE,
    },
    Row {
        title: "the operator stopped the node",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                lock(h, "stopped.lock", HOUR);
            })
        },
        reasons: &["node-address-replaced"],
        holds: &["stopped"],
        steps: NONE,
    },
    Row {
        title: "expiry is near",
        host: || changed(near_expiry),
        reasons: &["near-expiry"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "the CA was replaced",
        host: || changed(|h| h.cluster.certificates[0].issued_by_authority = Some(false)),
        reasons: &["issuer-mismatch"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "the key is another one",
        host: || changed(|h| h.cluster.certificates[0].key = Ok(PublicKey(vec![9]))),
        reasons: &["key-mismatch"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "the certificate file is empty",
        host: || changed(|h| h.cluster.certificates[0].leaf = Err(broken("server.crt"))),
        reasons: &["certificate-unusable"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "the key file is empty",
        host: || changed(|h| h.cluster.certificates[0].key = Err(broken("server.key"))),
        reasons: &["key-unusable"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "no-cert-reissue: addresses are not followed, neither by certificate nor by restart",
        host: || renumbered(|h| lock(h, "no-cert-reissue", DAY)),
        reasons: &["address-missing", "node-address-replaced"],
        holds: &["reissue-disabled", "reissue-disabled"],
        steps: NONE,
    },
    Row {
        title: "no-cert-reissue: renewal goes on",
        host: || {
            changed(|h| {
                near_expiry(h);
                lock(h, "no-cert-reissue", DAY);
            })
        },
        reasons: &["near-expiry"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "no-cert-reissue: configured names go on",
        host: || {
            changed(|h| {
                template_names(h, &["api.example.com"]);
                lock(h, "no-cert-reissue", DAY);
            })
        },
        reasons: &["configured-san-missing"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "a wildcard flag is the off switch",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
                h.cluster.arguments.bind = FlagAddress::Wildcard;
            })
        },
        reasons: &["address-missing"],
        holds: &["pinned-args"],
        steps: NONE,
    },
    Row {
        title: "a pinned address must be in the certificate all the same",
        host: || changed(|h| h.cluster.arguments.advertise = FlagAddress::Address(ip("203.0.113.50"))),
        reasons: &["configured-san-missing"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "pinned by its arguments, the API server advertises what it was told: nothing was replaced",
        host: || {
            renumbered(|h| {
                h.certificate(&["192.0.2.20"]);
                h.cluster.arguments.advertise = FlagAddress::Address(ip("192.0.2.20"));
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "a stale certificate is served, and the address is bound: a restart publishes nothing else",
        host: || {
            changed(|h| {
                h.add("eth0", "192.0.2.100/24");
                h.network.addresses.swap(1, 2);
                h.cluster.arguments.bind = FlagAddress::Address(ip("192.0.2.10"));
                served_stale(h);
            })
        },
        reasons: &["served-stale"],
        holds: NONE,
        steps: &["restart kubelite", "confirm"],
    },
    Row {
        title: "the same with a wildcard, which pins nothing",
        host: || {
            changed(|h| {
                h.add("eth0", "192.0.2.100/24");
                h.network.addresses.swap(1, 2);
                h.cluster.arguments.advertise = FlagAddress::Wildcard;
                served_stale(h);
            })
        },
        reasons: &["served-stale"],
        holds: &["would-advertise-other"],
        steps: NONE,
    },
    Row {
        title: "no default route: the certificate stays",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
                h.network.default_routes.clear();
            })
        },
        reasons: &["address-missing"],
        holds: &["no-default-route"],
        steps: NONE,
    },
    Row {
        title: "no default route: a first certificate is made with what there is",
        host: || {
            changed(|h| {
                h.cluster.certificates[0].leaf = Err(broken("server.crt"));
                h.network.default_routes.clear();
            })
        },
        reasons: &["certificate-unusable"],
        holds: NONE,
        steps: RELOAD,
    },
    Row {
        title: "a join is under way: the whole transaction waits, renewal too",
        host: || {
            renumbered(|h| {
                near_expiry(h);
                lock(h, "join-in-progress", MINUTE);
            })
        },
        reasons: &["near-expiry", "address-missing", "node-address-replaced"],
        holds: &["join-in-progress"],
        steps: NONE,
    },
    Row {
        title: "a join that died",
        host: || renumbered(|h| lock(h, "join-in-progress", MINUTE * 16)),
        reasons: &["address-missing", "node-address-replaced"],
        holds: NONE,
        steps: REISSUE_AND_RESTART,
    },
    Row {
        title: "a worker has no API server",
        host: || renumbered(|h| lock(h, "clustered.lock", DAY)),
        reasons: &["address-missing", "node-address-replaced"],
        holds: &["worker"],
        steps: NONE,
    },
    Row {
        title: "a worker with nothing to do says nothing",
        host: || changed(|h| lock(h, "clustered.lock", DAY)),
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "too little memory",
        host: || {
            changed(|h| {
                near_expiry(h);
                lock(h, "low-memory-guard.lock", DAY);
            })
        },
        reasons: &["near-expiry"],
        holds: &["low-memory-guard"],
        steps: NONE,
    },
    Row {
        title: "there is no CA",
        host: || {
            changed(|h| {
                near_expiry(h);
                h.cluster.certificates[0].authority = Err(broken("ca.crt"));
            })
        },
        reasons: &["near-expiry"],
        holds: &["ca-missing"],
        steps: NONE,
    },
    Row {
        title: "there is no CA key",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
                h.cluster.certificates[0].authority.as_mut().expect("readable").signer = None;
                h.cluster.certificates[0].authority_key = Err(broken("ca.key"));
            })
        },
        reasons: &["address-missing"],
        holds: &["ca-key-missing"],
        steps: NONE,
    },
    Row {
        title: "the certificate is the operator's own",
        host: || {
            changed(|h| {
                h.add("eth0", "198.51.100.9/24");
                let facts = &mut h.cluster.certificates[0];
                facts.issued_by_authority = Some(false);
                let leaf = facts.leaf.as_mut().expect("readable");
                leaf.issuer = b"a company".to_vec();
                leaf.subject = b"api.example.com".to_vec();
            })
        },
        reasons: &["issuer-mismatch", "address-missing"],
        holds: &["foreign-issuer"],
        steps: NONE,
    },
    Row {
        title: "a template without a marker: its names and no others",
        host: || {
            changed(|h| {
                h.cluster.template.as_mut().expect("there").as_mut().expect("readable").marker = false;
                h.add("eth0", "198.51.100.9/24");
            })
        },
        reasons: NONE,
        holds: NONE,
        steps: NONE,
    },
    Row {
        title: "no address is the node's own: nothing is done",
        host: || changed(|h| h.remove("192.0.2.10")),
        reasons: NONE,
        holds: &["no-primary-address"],
        steps: NONE,
    },
    Row {
        title: "an interrupted snapshot",
        host: || renumbered(|h| h.network.complete = false),
        reasons: NONE,
        holds: &["snapshot-incomplete"],
        steps: NONE,
    },
];

/// The port still serves the certificate before the one in place.
fn served_stale(host: &mut Host) {
    let fingerprint = host.cluster.certificates[0].leaf.as_ref().expect("readable").fingerprint.to_hex();
    host.state.unconfirmed = Some(Unconfirmed {
        fingerprint,
        since: host.now.wall - MINUTE,
        stale: true,
        restarted: false,
        unanswered: 0,
        asked: Some(host.now.wall),
    });
}

fn template_names(host: &mut Host, names: &[&str]) {
    let template = host.cluster.template.as_mut().expect("there").as_mut().expect("readable");
    template.sans.extend(sans(names));
}

fn steps(plan: &Plan) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::Issue(order) => format!("issue {}", order.certificate),
        Step::ConfirmServed { .. } => "confirm".to_owned(),
        Step::Restart { service, .. } => format!("restart {service}"),
    };
    plan.steps.iter().map(name).collect()
}

fn reasons(plan: &Plan) -> Vec<String> {
    plan.reasons.iter().map(|r| r.code.to_string()).collect()
}

fn holds(plan: &Plan) -> Vec<String> {
    plan.holds.iter().map(|h| h.code.to_string()).collect()
}

#[test]
fn every_row_of_the_table() {
    let mut wrong = Vec::new();
    for row in TABLE {
        let plan = (row.host)().plan();
        let settling = |codes: Vec<String>| codes.into_iter().filter(|c| c != "settling").collect::<Vec<_>>();
        let got = (reasons(&plan), settling(holds(&plan)), steps(&plan));
        if got.0 != row.reasons || got.1 != row.holds || got.2 != row.steps {
            let expected = (row.reasons, row.holds, row.steps);
            wrong.push(format!("{}:\n  got  {got:?}\n  want {expected:?}", row.title));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Somebody else restarted the API server while another address came first: it advertises that one, whatever was
/// believed before.
#[test]
fn what_an_api_server_restarted_by_others_picked() {
    let second_first = |h: &mut Host| {
        let second = h.add("eth0", "198.51.100.9/24").clone();
        h.network.addresses.pop();
        h.network.addresses.insert(0, second);
        h.certificate(&["192.0.2.10", "198.51.100.9"]);
        h.settle();
        h.pass_time(HOUR);
        h.service_since(h.now.uptime);
        h.pass_time(HOUR);
        h.settle();
        h.pass_time(HOUR);
    };
    // The believed one leaves: no restart, the other is still there.
    let mut host = changed(second_first);
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(HOUR);
    assert_eq!(steps(&host.settle()), NONE);
    // The other one leaves: nobody advertises an address that is there.
    let mut host = changed(second_first);
    host.remove("198.51.100.9");
    host.settle();
    host.pass_time(HOUR);
    assert_eq!(steps(&host.settle()), ["restart kubelite", "confirm"]);
}

fn outcome(step: &Step, result: StepResult, host: &Host) -> StepOutcome {
    StepOutcome { step: step.clone(), result, began: host.now.wall, took: Duration::from_secs(1) }
}

/// Carries a plan out: every step named here fails, those after a failed issue are skipped, the others succeed.
fn carry_out(host: &mut Host, failing: &[&str]) -> Plan {
    let plan = host.settle();
    let mut outcomes = Vec::new();
    let mut issue_failed = false;
    for (step, name) in plan.steps.iter().zip(steps(&plan)) {
        let result = if issue_failed {
            StepResult::Skipped("an earlier step failed".to_owned())
        } else if failing.contains(&name.as_str()) {
            issue_failed = matches!(step, Step::Issue(_));
            StepResult::Failed("no luck".to_owned())
        } else {
            match step {
                Step::Issue(order) => {
                    let fingerprint = Fingerprint([42; 32]);
                    let leaf = host.cluster.certificates[0].leaf.as_mut().expect("readable");
                    leaf.sans = order.sans.clone();
                    leaf.fingerprint = fingerprint;
                    StepResult::Issued { fingerprint }
                }
                Step::ConfirmServed { .. } => StepResult::Confirmed,
                Step::Restart { .. } => StepResult::Restarted,
            }
        };
        outcomes.push(outcome(step, result, host));
    }
    host.state.record(&plan, &outcomes);
    plan
}

#[test]
fn an_owed_restart_survives_a_reissue_that_failed() {
    let mut host = changed(|h| h.state.owed_restarts = vec!["cluster-agent".to_owned()]);
    host.add("eth0", "198.51.100.9/24");
    assert_eq!(steps(&carry_out(&mut host, &["issue server"])), RELOAD);
    assert_eq!(host.state.owed_restarts, ["cluster-agent"]);
}

/// A step that fails is tried again after a while that grows; what is asked for meanwhile does not wait for it.
#[test]
fn a_service_that_cannot_be_restarted_holds_up_nothing_else() {
    let mut host = changed(|h| {
        h.add("eth0", "198.51.100.9/24");
    });
    assert_eq!(steps(&carry_out(&mut host, &["restart cluster-agent"])), RELOAD);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let plan = host.settle();
        assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["failed-before".to_owned()]));
        let until = plan.look_again.expect("it is tried again");
        waits.push(until.since(host.now.wall).as_secs());
        host.pass_time(until.since(host.now.wall));
        assert_eq!(steps(&carry_out(&mut host, &["restart cluster-agent"])), ["restart cluster-agent"]);
    }
    assert!(waits.is_sorted() && waits[0] >= 10 && waits[3] >= 80, "{waits:?}");
    // A new address comes while it waits.
    host.add("eth0", "203.0.113.9/24");
    let plan = carry_out(&mut host, &["restart cluster-agent"]);
    assert_eq!(steps(&plan)[..2], ["issue server", "confirm"]);
    // And once the service can be restarted, it is.
    host.pass_time(HOUR);
    assert_eq!(steps(&carry_out(&mut host, &[])), ["restart cluster-agent"]);
    assert!(host.plan().steps.is_empty() && host.plan().holds.is_empty());
}

#[test]
fn a_reissue_that_fails_is_tried_again_after_a_while() {
    let mut host = changed(|h| {
        h.add("eth0", "198.51.100.9/24");
    });
    carry_out(&mut host, &["issue server"]);
    let plan = host.settle();
    assert_eq!((steps(&plan), holds(&plan)), (vec![], vec!["failed-before".to_owned()]));
    host.pass_time(plan.look_again.expect("it is tried again").since(host.now.wall));
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD);
    assert!(host.plan().steps.is_empty() && host.plan().holds.is_empty());
}

/// Nothing tells when a service manager answers again, or when a join ends without removing its lock.
#[test]
fn what_ends_without_an_event_is_looked_at_again() {
    let mut host = renumbered(|h| h.services.get_mut("kubelite").expect("asked").active = None);
    host.certificate(&["192.0.2.20"]);
    let wait = host.settle().look_again.expect("the manager is asked again").since(host.now.wall);
    assert!(wait > Duration::from_secs(10) && wait <= MINUTE * 5, "{wait:?}");

    for age in [MINUTE, HOUR] {
        let mut host = renumbered(|h| lock(h, "join-in-progress", age));
        host.cluster.joining = Some(true);
        let wait = host.settle().look_again.expect("the join is looked at again").since(host.now.wall);
        assert!(wait > Duration::from_secs(10) && wait <= MINUTE * 15, "{wait:?}");
    }
}

#[test]
fn bound_to_the_loopback_the_node_address_is_still_the_nodes() {
    let mut host = changed(|h| h.cluster.arguments.bind = FlagAddress::Address(ip("127.0.0.1")));
    assert_eq!(host.settle().node_address.values().next(), Some(&ip("192.0.2.10")));
}

const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Sets the clock by years and hours while the host runs: what was remembered keeps its age.
#[test]
fn a_clock_that_is_set_makes_nothing_older() {
    let jumps: [fn(&mut Host); 4] = [
        |h| h.now.wall = h.now.wall + YEAR * 50,
        |h| h.now.wall = h.now.wall + HOUR * 3,
        |h| h.now.wall = h.now.wall - HOUR * 3,
        |h| h.now.wall = h.now.wall - YEAR * 5,
    ];
    for jump in jumps {
        let mut host = changed(|h| {
            h.add("eth0", "192.0.2.100/24");
        });
        host.settle();
        host.pass_time(HOUR);
        host.settle();
        host.remove("192.0.2.10");
        host.settle();
        host.pass_time(Duration::from_secs(10));
        jump(&mut host);
        // The VIP does not take the place before the hold has passed, and does then.
        assert!(host.planned_primary().is_empty(), "at {}", host.now.wall);
        host.settle();
        host.pass_time(Duration::from_secs(25));
        assert_eq!(host.planned_primary(), ["192.0.2.100"], "at {}", host.now.wall);
        host.settle();
        host.add("eth0", "192.0.2.10/24");
        assert_eq!(host.planned_primary(), ["192.0.2.10"], "at {}", host.now.wall);
    }
}

/// A state from a clock that ran years ahead, in another boot: no wait is longer than it should be.
#[test]
fn what_lies_ahead_holds_nothing_for_longer_than_a_limit() {
    let mut host = renumbered(|h| {
        for _ in 0..3 {
            let at = h.now.wall;
            h.state.restarts.push(Restart { at, service: "kubelite".to_owned(), reason: "a test".to_owned() });
        }
    });
    host.boot_id = "another boot".to_owned();
    host.now.wall = host.now.wall - YEAR;
    for facts in &mut host.cluster.certificates {
        facts.leaf.as_mut().expect("readable").not_before = host.now.wall - DAY;
    }
    // The wait for the lost address begins anew, and is as long as ever.
    host.settle();
    host.pass_time(MINUTE);
    let plan = host.settle();
    assert!(holds(&plan).contains(&"restart-limit".to_owned()), "{:?}", plan.holds);
    for hold in &plan.holds {
        assert!(hold.until.is_none_or(|at| at <= host.now.wall + HOUR), "{hold:?}");
    }
}

/// A board without a clock of its own starts in the past. Its certificates wait for the clock, and the API server, which
/// was started with the new address, is not restarted.
#[test]
fn a_boot_in_the_past() {
    let mut host = changed(|h| {
        h.pass_time(DAY);
        h.settle();
        h.state.boot_id = "the boot before".to_owned();
    });
    let behind = host.now.wall - DAY;
    host.now = Now { wall: behind, uptime: Duration::from_secs(20) };
    host.network.addresses.retain(|a| a.value.is_loopback());
    host.add("eth0", "192.0.2.20/24");
    host.now.uptime = Duration::from_secs(60);
    host.service_since(Duration::from_secs(40));
    for _ in 0..3 {
        let plan = host.settle();
        assert_eq!((steps(&plan), reasons(&plan)), (vec![], vec!["address-missing".to_owned()]));
        assert!(holds(&plan).contains(&"clock-unsynchronised".to_owned()), "{:?}", holds(&plan));
        host.pass_time(MINUTE);
    }
    // The clock is set.
    host.now.wall = host.now.wall + DAY + MINUTE;
    assert_eq!(steps(&host.settle()), RELOAD);
    host.certificate(&["192.0.2.20"]);
    host.pass_time(HOUR);
    assert_eq!(reasons(&host.settle()), NONE);
}

/// An address that ipguard added, that fell back to secondary long ago and left a moment ago, is kept for `retain` after
/// it left.
#[test]
fn what_has_just_left_is_kept_however_long_it_was_not_needed() {
    let mut host = changed(|h| {
        h.add("eth0", "192.0.2.100/24");
        h.certificate(&["192.0.2.10", "192.0.2.100"]);
        let (san, at) = ("192.0.2.100".parse().expect("a name"), h.now.wall);
        h.state.added.push(Added { san, at, unneeded_since: None });
    });
    host.settle();
    host.pass_time(DAY * 3);
    host.settle();
    host.remove("192.0.2.100");
    host.settle();
    host.pass_time(MINUTE);
    host.add("eth0", "198.51.100.9/24");
    let plan = host.settle();
    assert!(plan.san.dropped.is_empty(), "{:?}", plan.san.dropped);
    host.pass_time(DAY * 2);
    assert_eq!(host.settle().san.dropped, sans(&["192.0.2.100"]));
}

/// What the certificate named is not known any more, but the state knows some of it.
#[test]
fn a_certificate_that_cannot_be_read_is_made_with_what_is_remembered() {
    let mut host = changed(|h| {
        let (san, at) = ("198.51.100.9".parse().expect("a name"), h.now.wall);
        h.state.added.push(Added { san, at, unneeded_since: None });
    });
    host.settle();
    host.remove("192.0.2.10");
    host.settle();
    host.pass_time(MINUTE * 5);
    host.cluster.certificates[0].leaf = Err(broken("server.crt"));
    let names = |plan: &Plan| match &plan.steps[..] {
        [Step::Issue(order), ..] => order.sans.clone(),
        other => panic!("{other:?}"),
    };
    let plan = host.settle();
    assert!(names(&plan).is_superset(&sans(&["192.0.2.10", "198.51.100.9"])), "{:?}", names(&plan));
    // Not for ever, and never against a template that says exactly what.
    host.pass_time(DAY * 2);
    assert!(names(&host.settle()).is_disjoint(&sans(&["192.0.2.10", "198.51.100.9"])));
    let template = host.cluster.template.as_mut().expect("there").as_mut().expect("readable");
    template.marker = false;
    host.add("eth0", "192.0.2.10/24");
    assert_eq!(names(&host.settle()), sans(hosts::CONFIGURED));
}

/// A certificate beside the server's has names of its own, and nobody asks the port for it.
#[test]
fn another_certificate_of_the_profile() {
    let second = |h: &mut Host| {
        let mut facts = h.cluster.certificates[0].clone();
        facts.name = "front-proxy-client".to_owned();
        facts.path = "certs/front-proxy-client.crt".into();
        let leaf = facts.leaf.as_mut().expect("readable");
        leaf.sans = sans(&["front-proxy-client"]);
        leaf.fingerprint = Fingerprint([8; 32]);
        h.cluster.certificates.push(facts);
    };
    let mut host = changed(second);
    assert_eq!(reasons(&host.settle()), NONE);
    // A new address is the server certificate's business.
    host.add("eth0", "198.51.100.9/24");
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD);
    // The other one expires.
    let mut host = changed(second);
    let soon = host.now.wall + DAY;
    host.cluster.certificates[1].leaf.as_mut().expect("readable").not_after = soon;
    let plan = host.settle();
    assert_eq!(steps(&plan), ["issue front-proxy-client"]);
    let Step::Issue(order) = &plan.steps[0] else { panic!("{:?}", plan.steps) };
    assert_eq!((&order.sans, &order.request), (&sans(&["front-proxy-client"]), &None));
    let issued = outcome(&plan.steps[0], StepResult::Issued { fingerprint: Fingerprint([9; 32]) }, &host);
    host.state.record(&plan, &[issued]);
    assert_eq!((&host.state.unconfirmed, host.state.owed_restarts.len()), (&None, 0));
}

/// The hook's caller restarts kubelite, and only when it must; nothing is waited for.
#[test]
fn hook_mode_tells_its_caller() {
    let cases: [(&str, fn() -> Host, bool, &[&str]); 5] = [
        ("in step", || changed(|_| {}), false, NONE),
        ("another address", || changed(|h| h.add("eth0", "198.51.100.9/24").label = None), false, &RELOAD_IN_HOOK),
        ("node address replaced", || renumbered(|_| {}), true, &RELOAD_IN_HOOK),
        (
            "no usable certificate",
            || changed(|h| h.cluster.certificates[0].leaf = Err(broken("server.crt"))),
            true,
            &RELOAD_IN_HOOK,
        ),
        (
            "no usable certificate and no CA",
            || {
                changed(|h| {
                    h.cluster.certificates[0].leaf = Err(broken("server.crt"));
                    h.cluster.certificates[0].authority = Err(broken("ca.crt"));
                })
            },
            false,
            NONE,
        ),
    ];
    for (title, host, restarts, expected) in cases {
        let mut host = host();
        host.mode = Mode::Hook;
        let plan = host.plan();
        assert_eq!((plan.caller_restarts, &steps(&plan)[..]), (restarts, &strings(expected)[..]), "{title}");
    }
}

const RELOAD_IN_HOOK: [&str; 2] = ["issue server", "restart cluster-agent"];

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

/// Six reissues for addresses in an hour, and renewal goes on; three restarts.
#[test]
fn limits() {
    let mut host = changed(|_| {});
    for n in 1..=8 {
        host.add("eth0", &format!("10.{n}.0.4/24"));
        let plan = carry_out(&mut host, &[]);
        assert_eq!(steps(&plan), if n <= 6 { strings(RELOAD) } else { vec![] }, "address {n}");
        host.pass_time(MINUTE);
    }
    assert_eq!(holds(&host.settle()), ["reissue-limit"]);
    let mut expiring = host.clone();
    near_expiry(&mut expiring);
    let plan = carry_out(&mut expiring, &[]);
    assert_eq!(steps(&plan), RELOAD);
    assert!(expiring.plan().san.missing.is_empty(), "what is made anyway has them all");
    let until = host.settle().look_again.expect("it ends");
    host.pass_time(until.since(host.now.wall));
    assert_eq!(steps(&carry_out(&mut host, &[])), RELOAD, "and the rest comes in one");

    let mut host = changed(|_| {});
    for n in 1..=5 {
        let old = host.planned_primary().join(" ");
        host.remove(&old);
        host.add("eth0", &format!("192.0.2.{}/24", 50 + n));
        carry_out(&mut host, &[]);
        host.pass_time(MINUTE);
        let plan = carry_out(&mut host, &[]);
        host.service_since(host.now.uptime);
        host.pass_time(MINUTE);
        assert_eq!(plan.restarts_api_server(), n <= 3, "restart {n}: {:?}", plan.holds);
        if n > 3 {
            assert_eq!(holds(&plan), ["restart-limit"]);
            break;
        }
    }
}

/// Above 256 names the newest addresses are left out, never configured ones, the node's, or what is there.
#[test]
fn a_certificate_has_an_end() {
    let mut host = changed(|h| h.config.addresses.secondary = SecondaryPolicy::Include);
    for n in 0..200 {
        host.add("eth0", &format!("10.{n}.0.4/24"));
    }
    carry_out(&mut host, &[]);
    for n in 0..200 {
        host.add("eth0", &format!("10.{n}.1.4/24"));
        host.add("eth0", &format!("10.{n}.0.100/24"));
    }
    host.config.certificate.extra_sans = sans(&["late.example.com"]).into_iter().collect();
    host.pass_time(MINUTE);
    let plan = carry_out(&mut host, &[]);
    assert_eq!(steps(&plan), RELOAD);
    let Step::Issue(order) = &plan.steps[0] else { panic!("{:?}", plan.steps) };
    assert_eq!(order.sans.len(), 256);
    assert!(order.sans.is_superset(&sans(&["late.example.com", "192.0.2.10", "10.199.0.4", "kubernetes"])));
    assert!(!plan.san.left_out.is_empty() && !plan.notices.is_empty());
    host.pass_time(DAY);
    assert_eq!((reasons(&host.settle()), steps(&host.settle())), (vec![], vec![]), "and it is in step");
}
