//! A CA for one end alone: what it signs for that end OpenSSL and Go accept, and for the other it is refused.

use ipguard::act::issue::issue;
use ipguard::decide::plan::IssueOrder;
use ipguard::facts::certificate::Purpose;
use serde_json::json;

use crate::forge::{Forged, UTF8, common_name, constraints, identifier, purposes, usage};
use crate::go;
use crate::tree::{Key, Tree, chain, has_openssl, now, order};

#[test]
fn a_ca_for_one_end_alone() {
    if !has_openssl() {
        return;
    }
    let make = || Key::make("ecparam -name prime256v1 -genkey -noout");
    let (authority, leaf) = (make(), make());
    let (mut questions, mut asked) = (Vec::new(), Vec::new());
    // The last numbers of id-kp: serverAuth, clientAuth, emailProtection.
    for (named, good_for) in [(1, Some(Purpose::Server)), (2, Some(Purpose::Client)), (4, None)] {
        let extensions = vec![identifier(&[7; 20]), constraints(&[]), usage(0x06), purposes(&[named])];
        let root = Forged::root(common_name(UTF8, b"ca"), authority.spki()).with(extensions);
        let root = root.signed(authority.spki(), &authority.key);
        for purpose in [Purpose::Server, Purpose::Client] {
            let (tree, case) = (Tree::new(), format!("{purpose} by {named}"));
            tree.write("ca.crt", &root);
            tree.write("ca.key", &authority.pem);
            tree.write("server.key", &leaf.pem);
            tree.write("server.crt", "the certificate before");
            let issued = issue(&IssueOrder { purpose, ..order() }, &tree.files(), &tree.lock(), now());
            let made = std::fs::read_to_string(tree.path("server.crt")).expect("it was written");
            if good_for != Some(purpose) {
                let refused = format!("the CA certificate cannot sign: its extendedKeyUsage does not allow {purpose}");
                let said = issued.err().map(|error| chain(&error)).unwrap_or_default();
                assert!(said.ends_with(&refused), "{case}: {said}");
                assert_eq!(made, "the certificate before", "{case}");
                continue;
            }
            issued.expect(&case);
            let end = if purpose == Purpose::Server { "server" } else { "client" };
            let (accepted, said) = tree.openssl(&format!("verify -CAfile ca.crt -purpose ssl{end} server.crt"));
            assert!(accepted, "{case}: {said}");
            let ours = json!({ "certificate": made, "key": leaf.pem });
            questions.push(json!({
                "trust": root, "signer": root, "signer_key": authority.pem, "reference": ours, "ours": ours, "hosts": ["kubernetes"],
            }));
            asked.push(end);
        }
    }
    let Some(program) = go::program() else { return };
    for (answer, end) in go::judge(program, &questions).iter().zip(asked) {
        let other = if end == "server" { "client" } else { "server" };
        assert_eq!(answer["ours"][end], "", "{end}");
        assert_ne!(answer["ours"][other], "", "{end}: Go takes the CA for what it does not name");
    }
}
