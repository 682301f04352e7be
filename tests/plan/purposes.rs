//! A CA for one end of a connection alone, and what it holds.

use super::*;
use crate::certificates::{NAMES, ca, complete, dates, order_of};
use ipguard::facts::certificate::Purpose;

/// The CA is read for what the certificate is for: front-proxy-client's signs for clients.
#[test]
fn a_ca_for_one_end_alone_holds_what_is_for_the_other() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    for (usage, held) in [(ServerAuth, &["front-proxy-client"][..]), (ClientAuth, &["server", "kubelet"])] {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.extended_key_usages = vec![usage.clone()];
        let made = params.self_signed(&rcgen::KeyPair::generate().expect("P-256")).expect("it can be built");
        let der = [made.der().to_vec()];
        for (index, name) in NAMES.iter().enumerate() {
            let plan = complete(|h| {
                let facts = &mut h.cluster.certificates[index];
                let read = ipguard::observe::certificate::authority(&der, None, facts.role.purpose(), h.now.wall)
                    .expect("a CA");
                ca(facts).cannot_sign = read.certificates[0].cannot_sign;
                dates(facts, h.now.wall - DAY, 30, 0);
            })
            .plan();
            let expected: &[&str] = if held.contains(name) { &["ca-cannot-sign"] } else { &[] };
            assert_eq!(reasons(&plan), ["expired"], "{usage:?}: {name}");
            assert_eq!(holds(&plan), expected, "{usage:?}: {name}");
            let order = order_of(&plan, name).map(|order| order.purpose);
            let purpose = if *name == "front-proxy-client" { Purpose::Client } else { Purpose::Server };
            assert_eq!(order, expected.is_empty().then_some(purpose), "{usage:?}: {name}");
        }
    }
}
