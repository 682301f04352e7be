//! Every reason and every fault of a CA, for each of the three certificates.

use super::*;
use ipguard::decide::plan::{IssueOrder, Subject};
use ipguard::facts::certificate::{AuthorityCertificate, CertificateFacts, Leaf};
use ipguard::facts::time::Timestamp;

pub(crate) const NAMES: [&str; 3] = ["server", "front-proxy-client", "kubelet"];

/// A host in step that has all three.
pub(crate) fn complete(change: impl FnOnce(&mut Host)) -> Host {
    changed(|h| {
        for (name, role, names, subject) in [
            (
                "front-proxy-client",
                CertificateRole::ProxyClient,
                &["kubernetes"][..],
                &[("CN", "front-proxy-client")][..],
            ),
            (
                "kubelet",
                CertificateRole::Kubelet,
                &["node-1", "192.0.2.10"],
                &[("CN", "system:node:node-1"), ("O", "system:nodes")],
            ),
        ] {
            let mut facts = h.cluster.certificates[0].clone();
            facts.name = name.to_owned();
            facts.path = format!("certs/{name}.crt").into();
            facts.role = role;
            facts.subject = subject.iter().map(|(kind, value)| ((*kind).to_owned(), (*value).to_owned())).collect();
            let leaf = facts.leaf.as_mut().expect("readable");
            leaf.sans = sans(names);
            leaf.subject = subject.iter().map(|(_, value)| *value).collect::<Vec<_>>().join(" ").into_bytes();
            leaf.fingerprint = Fingerprint([u8::try_from(name.len()).expect("short"); 32]);
            h.cluster.certificates.push(facts);
        }
        change(h);
    })
}

pub(crate) fn leaf(facts: &mut CertificateFacts) -> &mut Leaf {
    facts.leaf.as_mut().expect("readable")
}

pub(crate) fn ca(facts: &mut CertificateFacts) -> &mut AuthorityCertificate {
    &mut facts.authority.as_mut().expect("readable").certificates[0]
}

fn read_error(problem: Problem) -> ReadError {
    ReadError { path: "a file".into(), problem }
}

/// What happens to one certificate, at this moment.
type Change = fn(&mut CertificateFacts, Timestamp);

/// What is done to one certificate, and what its plan says then.
struct Row {
    title: &'static str,
    change: Change,
    reasons: &'static [&'static str],
    holds: &'static [&'static str],
    issues: bool,
}

const fn row(title: &'static str, change: Change, reason: &'static [&'static str]) -> Row {
    Row { title, change, reasons: reason, holds: NONE, issues: true }
}

const fn held(
    title: &'static str,
    change: Change,
    reason: &'static [&'static str],
    holds: &'static [&'static str],
) -> Row {
    Row { title, change, reasons: reason, holds, issues: false }
}

const fn quiet(title: &'static str, change: Change) -> Row {
    Row { title, change, reasons: NONE, holds: NONE, issues: false }
}

/// Life and what is left of it.
pub(crate) fn dates(facts: &mut CertificateFacts, now: Timestamp, life: u32, left: u32) {
    let leaf = leaf(facts);
    (leaf.not_before, leaf.not_after) = (now + DAY * left - DAY * life, now + DAY * left);
}

const REASONS: &[Row] = &[
    quiet("nothing", |_, _| {}),
    quiet("a superset", |f, _| leaf(f).sans.extend(sans(&["extra.example.com", "203.0.113.77"]))),
    row("empty", |f, _| f.leaf = Err(read_error(Problem::Empty)), &["certificate-unusable"]),
    row(
        "refused by the kernel",
        |f, _| f.leaf = Err(read_error(Problem::Unreadable("no".into()))),
        &["certificate-unusable"],
    ),
    row("means nothing", |f, _| f.leaf = Err(read_error(Problem::Malformed("no".into()))), &["certificate-unusable"]),
    row("no key", |f, _| f.key = Err(read_error(Problem::Missing)), &["key-unusable"]),
    row("another key", |f, _| f.key = Ok(PublicKey(vec![9])), &["key-mismatch"]),
    row("a name that Go refuses", |f, _| leaf(f).refused_sans.push("IP of 5 bytes".into()), &["san-refused"]),
    row("SHA-1", |f, _| leaf(f).refused_signature = Some("SHA-1 with RSA".into()), &["signature-refused"]),
    row(
        "for nothing",
        |f, _| (leaf(f).usage.server_auth, leaf(f).usage.client_auth) = (false, false),
        &["wrong-usage"],
    ),
    row("no digitalSignature", |f, _| leaf(f).usage.digital_signature = false, &["wrong-usage"]),
    row("CA:TRUE", |f, _| leaf(f).usage.is_ca = true, &["wrong-usage"]),
    row("another CA of that name", |f, _| f.issued_by_authority = Some(false), &["issuer-mismatch"]),
    row("it points to another key", |f, _| leaf(f).authority_key_id = Some(b"another".to_vec()), &["issuer-mismatch"]),
    row("it points to another serial", |f, _| leaf(f).authority_serial = Some(vec![2]), &["issuer-mismatch"]),
    quiet("it points to the CA's key and serial", |f, _| {
        leaf(f).authority_key_id = Some(b"ca key".to_vec());
        leaf(f).authority_serial = Some(vec![1]);
    }),
    quiet("the CA was renewed with its key, and the old one is in the bundle", |f, _| {
        let old = AuthorityCertificate { serial: vec![2], ..ca(f).clone() };
        f.authority.as_mut().expect("readable").certificates.push(old);
        leaf(f).authority_serial = Some(vec![2]);
    }),
    row("over", |f, now| dates(f, now - DAY * 3, 365, 0), &["expired"]),
    row("not begun", |f, now| leaf(f).not_before = now + DAY, &["not-yet-valid"]),
    quiet("a little more than a third is left", |f, now| dates(f, now, 90, 31)),
    row("less than a third is left", |f, now| dates(f, now, 90, 29), &["near-expiry"]),
    quiet("ten years of life, two left", |f, now| dates(f, now, 3_650, 730)),
    row("ten years of life, four months left", |f, now| dates(f, now, 3_650, 120), &["near-expiry"]),
    held(
        "clamped to a dying CA: a new one would end no later",
        |f, now| {
            dates(f, now, 30, 5);
            ca(f).not_after = now + DAY * 5;
        },
        NONE,
        &["ca-expiring"],
    ),
    held(
        "nor by a tenth",
        |f, now| {
            dates(f, now, 30, 5);
            ca(f).not_after = now + DAY * 7;
        },
        NONE,
        &["ca-expiring"],
    ),
    row(
        "by a tenth",
        |f, now| {
            dates(f, now, 30, 5);
            ca(f).not_after = now + DAY * 8;
        },
        &["near-expiry"],
    ),
    row(
        "over, and the CA nearly",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            ca(f).not_after = now + HOUR;
        },
        &["expired"],
    ),
    row(
        "several at once",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            f.key = Ok(PublicKey(vec![9]));
            leaf(f).usage.is_ca = true;
            f.issued_by_authority = Some(false);
        },
        &["key-mismatch", "wrong-usage", "issuer-mismatch", "expired"],
    ),
    // The CA.
    held(
        "no CA",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            f.authority = Err(read_error(Problem::Missing));
        },
        &["expired"],
        &["ca-missing"],
    ),
    held(
        "no CA key",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            f.authority.as_mut().expect("readable").signer = None;
            f.authority_key = Err(read_error(Problem::Missing));
        },
        &["expired"],
        &["ca-key-missing"],
    ),
    held(
        "another CA key",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            f.authority.as_mut().expect("readable").signer = None;
        },
        &["expired"],
        &["ca-key-missing"],
    ),
    held(
        "a CA that is over",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            ca(f).not_after = now - DAY;
        },
        &["expired"],
        &["ca-not-valid"],
    ),
    held(
        "a CA that has not begun",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            ca(f).not_before = now + DAY;
        },
        &["expired"],
        &["ca-not-valid"],
    ),
    held(
        "a CA that is none",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            ca(f).cannot_sign = Some("its basicConstraints say that it is no CA");
        },
        &["expired"],
        &["ca-cannot-sign"],
    ),
    held(
        "by a CA of the operator's bundle",
        |f, _| {
            f.issued_by_authority = Some(false);
            f.issued_by_foreign = true;
        },
        &["issuer-mismatch"],
        &["foreign-issuer"],
    ),
    row(
        "somebody else's certificate that is over",
        |f, now| {
            dates(f, now - DAY, 30, 0);
            f.issued_by_authority = Some(false);
            leaf(f).issuer = b"a company".to_vec();
            leaf(f).subject = b"api.example.com".to_vec();
        },
        &["issuer-mismatch", "expired"],
    ),
    held(
        "somebody else's certificate",
        |f, _| {
            f.issued_by_authority = Some(false);
            leaf(f).issuer = b"a company".to_vec();
            leaf(f).subject = b"api.example.com".to_vec();
        },
        &["issuer-mismatch"],
        &["foreign-issuer"],
    ),
];

pub(crate) fn order_of(plan: &Plan, name: &str) -> Option<IssueOrder> {
    plan.steps.iter().find_map(|step| match step {
        Step::Issue(order) if order.certificate == name => Some(order.clone()),
        _ => None,
    })
}

#[test]
fn every_reason_for_each_certificate() {
    let mut wrong = Vec::new();
    for row in REASONS {
        for (index, name) in NAMES.iter().enumerate() {
            let plan = complete(|h| (row.change)(&mut h.cluster.certificates[index], h.now.wall)).plan();
            let others = plan.reasons.iter().filter(|reason| reason.certificate != *name).count();
            let got = (reasons(&plan), holds(&plan), order_of(&plan, name).is_some());
            if got.0 != row.reasons || got.1 != row.holds || got.2 != row.issues || others != 0 {
                wrong.push(format!("{} ({name}): {got:?}", row.title));
            }
            let issued = plan.steps.iter().filter(|step| matches!(step, Step::Issue(_))).count();
            assert_eq!(issued, usize::from(row.issues), "{} ({name})", row.title);
            let restarts = plan.steps.iter().any(|step| matches!(step, Step::Restart { .. }));
            assert_eq!(restarts, row.issues && index == 0, "{} ({name}): {:?}", row.title, plan.steps);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A certificate made anew gives no reason in the next pass: nothing goes round in circles.
#[test]
fn what_was_made_anew_is_in_step() {
    for row in REASONS.iter().filter(|row| row.issues) {
        for (index, name) in NAMES.iter().enumerate() {
            let mut host = complete(|h| (row.change)(&mut h.cluster.certificates[index], h.now.wall));
            let order = order_of(&host.settle(), name).expect("it is made");
            let facts = &mut host.cluster.certificates[index];
            let made = complete(|_| {}).cluster.certificates[index].clone();
            let key = facts.key.clone().or_else(|_| made.key.clone()).expect("kept or made");
            facts.key = Ok(key.clone());
            facts.issued_by_authority = Some(true);
            let dates = (order.not_before, order.not_after);
            let mut new = made.leaf.expect("readable");
            (new.not_before, new.not_after, new.sans, new.public_key) = (dates.0, dates.1, order.sans, key);
            facts.leaf = Ok(new);
            for days in [0, 1, 2, 3] {
                let later = Host { now: Now { wall: host.now.wall + DAY * days, ..host.now }, ..host.clone() };
                let plan = later.plan();
                let over = later.cluster.certificates[index].leaf.as_ref().is_ok_and(|l| later.now.wall >= l.not_after);
                assert!(plan.reasons.is_empty() || over, "{} ({name}), {days} days on: {:?}", row.title, plan.reasons);
                assert!(plan.steps.iter().all(|step| !matches!(step, Step::Issue(_))), "{} ({name})", row.title);
            }
        }
    }
}

#[test]
fn the_operator_says_how_long_before_the_end() {
    for (left, due) in [(29, true), (31, false)] {
        let plan = complete(|h| {
            h.config.certificate.renew_before = Some(DAY * 30);
            let now = h.now.wall;
            h.cluster.certificates.iter_mut().for_each(|facts| dates(facts, now, 365, left));
        })
        .plan();
        let expected = if due { vec!["near-expiry"; 3] } else { Vec::new() };
        assert_eq!(reasons(&plan), expected, "{left} days are left");
    }
}

/// Time alone makes it due, and the daemon knows when.
#[test]
fn renewal_needs_no_event() {
    let mut host = complete(|_| {});
    let at = host.settle().look_again.expect("the day of the renewal is known");
    host.pass_time(at.since(host.now.wall) - MINUTE);
    assert_eq!(reasons(&host.plan()), NONE);
    host.pass_time(MINUTE * 2);
    let plan = host.plan();
    assert_eq!(reasons(&plan), ["near-expiry"; 3]);
    assert_eq!(
        steps(&plan),
        [
            "issue server",
            "issue front-proxy-client",
            "issue kubelet",
            "confirm",
            "restart cluster-agent",
            "confirm kubelet"
        ]
    );
}

#[test]
fn forced_is_a_reason_of_those_named() {
    let mut host = complete(|_| {});
    host.forced = ["server", "kubelet"].map(str::to_owned).into();
    let plan = host.plan();
    assert_eq!(plan.reasons.iter().map(|r| r.certificate.as_str()).collect::<Vec<_>>(), ["server", "kubelet"]);
    assert_eq!(reasons(&plan), ["forced"; 2]);
    // The addresses' holds do not stop it.
    lock(&mut host, "no-cert-reissue", DAY);
    assert_eq!(
        steps(&host.plan()),
        ["issue server", "issue kubelet", "confirm", "restart cluster-agent", "confirm kubelet"]
    );
}

/// Names of kinds that no client looks for are not carried over, and whoever put them there hears of it when it happens.
#[test]
fn names_that_are_not_kept_are_said() {
    let other = |h: &mut Host| leaf(&mut h.cluster.certificates[0]).other_names.push("URI spiffe://example/api".into());
    assert!(complete(other).plan().notices.is_empty(), "nothing is made");
    let plan = complete(|h| {
        other(h);
        near_expiry(h);
    })
    .plan();
    let said = plan.notices.iter().filter(|notice| notice.contains("server") && notice.contains("spiffe")).count();
    assert_eq!(said, 1, "{:?}", plan.notices);
}

#[test]
fn a_usage_that_one_of_them_needs() {
    let usages: [fn(&mut Leaf); 2] = [|l| l.usage.server_auth = false, |l| l.usage.client_auth = false];
    for (usage, wrong) in usages.into_iter().zip([&["server", "kubelet"][..], &["front-proxy-client"]]) {
        let plan = complete(|h| h.cluster.certificates.iter_mut().for_each(|facts| usage(leaf(facts)))).plan();
        assert_eq!(plan.reasons.iter().map(|r| r.certificate.as_str()).collect::<Vec<_>>(), wrong);
    }
}

/// Nothing has to be signed yet: what holds the next certificate is said before that one is due, and nothing is done.
#[test]
fn faults_of_a_ca_hold_before_they_matter() {
    let faults: [(Change, &str, &str); 5] = [
        (|f, now| ca(f).not_after = now - DAY, "ca-not-valid", "the CA expired at"),
        (|f, _| ca(f).cannot_sign = Some("it has no basicConstraints"), "ca-cannot-sign", "it has no basicConstraints"),
        (
            |f, _| f.authority.as_mut().expect("readable").signer = None,
            "ca-key-missing",
            "belongs to none of the CA certificates",
        ),
        (|f, now| ca(f).not_after = now + DAY * 90, "ca-expiring", "before the certificate does"),
        (
            |f, now| {
                ca(f).not_after = now + DAY * 100;
                dates(f, now, 100, 100);
            },
            "ca-expiring",
            "expires at",
        ),
    ];
    for (fault, code, told) in faults {
        for (index, name) in NAMES.iter().enumerate() {
            let plan = complete(|h| fault(&mut h.cluster.certificates[index], h.now.wall)).plan();
            assert_eq!((reasons(&plan), holds(&plan)), (vec![], vec![code.to_owned()]), "{told}");
            assert!(plan.steps.is_empty() && plan.notices.is_empty(), "{name}: {told}");
            let detail = &plan.holds[0].detail;
            assert!(detail.contains(name) && detail.contains(told), "{name}: {told}: {detail}");
        }
    }
}

/// Old nodes have no kubelet certificate, and a tree without a front-proxy CA has no use for a client of it.
#[test]
fn a_certificate_that_is_not_there() {
    let missing = |index: usize, authority: bool| {
        complete(|h| {
            let facts = &mut h.cluster.certificates[index];
            facts.leaf = Err(read_error(Problem::Missing));
            facts.key = Err(read_error(Problem::Missing));
            if !authority {
                facts.authority = Err(read_error(Problem::Missing));
                facts.authority_key = Err(read_error(Problem::Missing));
            }
        })
        .plan()
    };
    for (index, authority, made) in [(1, true, true), (1, false, false), (2, true, false), (2, false, false)] {
        let plan = missing(index, authority);
        let expected = if made { vec!["certificate-unusable", "key-unusable"] } else { Vec::new() };
        assert_eq!(
            (reasons(&plan), holds(&plan)),
            (expected.into_iter().map(str::to_owned).collect(), vec![]),
            "{}",
            NAMES[index]
        );
        assert!(made || plan.notices.is_empty(), "{:?}", plan.notices);
        if made {
            let order = order_of(&plan, NAMES[index]).expect("it is made");
            let subject = Subject::Attributes(vec![("CN".to_owned(), "front-proxy-client".to_owned())]);
            assert_eq!((order.subject, order.new_key, order.served), (subject, true, false));
            // MicroK8s makes it from the server's request.
            assert!(order.sans.is_superset(&sans(hosts::CONFIGURED)), "{:?}", order.sans);
        }
    }
}

#[test]
fn the_kubelet_names_the_node_and_what_leads_to_it() {
    type Change = fn(&mut Host);
    let cases: [(&str, Change, &[&str], &[&str]); 6] = [
        ("the host was renamed", |h| h.cluster.hostname = "node-2".into(), &["configured-san-missing"], &["node-2"]),
        ("host access", |h| h.cluster.host_access = Some(ip("10.0.1.1")), &["configured-san-missing"], &["10.0.1.1"]),
        ("host access that it has", |h| h.cluster.host_access = Some(ip("192.0.2.10")), &[], &[]),
        ("a name that is none", |h| h.cluster.hostname = "not a name".into(), &[], &[]),
        (
            "a second address, for the server alone",
            |h| {
                h.add("eth0", "198.51.100.9/24");
                h.certificate(&["192.0.2.10", "198.51.100.9"]);
            },
            &[],
            &[],
        ),
        (
            "the node address is another",
            |h| {
                h.remove("192.0.2.10");
                h.add("eth0", "192.0.2.20/24");
                h.certificate(&["192.0.2.10", "192.0.2.20"]);
                h.settle();
                h.pass_time(MINUTE);
                h.service_since(h.now.uptime - Duration::from_secs(10));
            },
            &["address-missing"],
            &["192.0.2.20"],
        ),
    ];
    for (title, change, expected, added) in cases {
        let plan = complete(change).plan();
        let of_kubelet: Vec<String> =
            plan.reasons.iter().filter(|r| r.certificate == "kubelet").map(|r| r.code.to_string()).collect();
        assert_eq!(
            (of_kubelet, plan.reasons.len()),
            (expected.iter().map(|c| (*c).to_owned()).collect(), expected.len()),
            "{title}"
        );
        let Some(order) = order_of(&plan, "kubelet") else {
            assert!(expected.is_empty(), "{title}: {:?}", plan.holds);
            continue;
        };
        assert!(
            order.sans.is_superset(&sans(added)) && order.sans.is_superset(&sans(&["node-1", "192.0.2.10"])),
            "{title}"
        );
        assert_eq!((order.request, order.served), (None, false), "{title}");
        // The subject follows the host's name and nothing else.
        assert_eq!(matches!(order.subject, Subject::Attributes(_)), title.contains("renamed"), "{title}");
        assert_eq!(steps(&plan), ["issue kubelet", "confirm kubelet"], "{title}");
        assert!(!plan.notices.iter().any(|n| n.starts_with("kubelet: ")), "{:?}", plan.notices);
    }
    // Addresses are not followed under the lock; the host's name is.
    let plan = complete(|h| {
        h.remove("192.0.2.10");
        h.add("eth0", "192.0.2.20/24");
        h.certificate(&["192.0.2.10", "192.0.2.20"]);
        h.settle();
        h.pass_time(MINUTE);
        h.service_since(h.now.uptime - Duration::from_secs(10));
        lock(h, "no-cert-reissue", DAY);
    })
    .plan();
    assert_eq!((steps(&plan), holds(&plan)[0].as_str()), (vec![], "reissue-disabled"));
}

/// A certificate beside the server's that cannot be made must not keep the server's back.
#[test]
fn one_that_fails_holds_up_no_other() {
    let mut host = complete(|h| {
        leaf(&mut h.cluster.certificates[2]).usage.is_ca = true;
    });
    assert_eq!(steps(&carry_out(&mut host, &["issue kubelet"])), ["issue kubelet", "confirm kubelet"]);
    template_names(&mut host, &["api.example.com"]);
    let plan = carry_out(&mut host, &[]);
    assert_eq!(
        (steps(&plan), holds(&plan)),
        (RELOAD.iter().map(|s| (*s).to_owned()).collect(), vec!["failed-before".to_owned()])
    );
    assert_eq!(host.state.failures.as_ref().map(|f| f.count), Some(1));
}
