//! Certificates: names go in and come out.

use std::collections::BTreeSet;

use rcgen::KeyPair;

use crate::stage::Result;
use crate::stage::authority::{Authority, canonical, names_of};

#[test]
fn a_signed_certificate_has_exactly_the_names_asked_for() -> Result<()> {
    let sans = ["DNS:kubernetes", "127.0.0.1", "2001:DB8:0:0::10"].map(str::to_owned);
    let pem = Authority::new()?.sign(&KeyPair::generate()?, &sans)?;
    let expected: BTreeSet<_> = ["DNS:kubernetes", "127.0.0.1", "2001:db8::10"].map(str::to_owned).into();
    assert_eq!(names_of(pem.as_bytes())?, expected);
    Ok(())
}

#[test]
fn text_forms_of_one_address_are_one_name() {
    assert_eq!(canonical("::ffff:192.0.2.10"), "192.0.2.10");
    assert_eq!(canonical("DNS:K8S.example.com"), "DNS:k8s.example.com");
}
