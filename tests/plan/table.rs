//! Row by row: one host each, and the reasons, holds and steps of its plan.

use super::*;

/// A host, and the reasons, holds and steps of its plan, in order.
struct Row {
    title: &'static str,
    host: fn() -> Host,
    reasons: &'static [&'static str],
    holds: &'static [&'static str],
    steps: &'static [&'static str],
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
        steps: &["restart kubelite", "confirm", "ready"],
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
        steps: &["restart kubelite", "confirm", "ready"],
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
        holds: &["manual-template"],
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
