//! Trees that somebody else has damaged: the kicker, when it is killed between two of its lines, and others.

use std::fs;
use std::os::unix::fs::symlink;

use crate::bed::{Bed, Host, all, put, text};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[Case { name: "damage::heals-in-one-pass", play: heals, patience: 60 }];

type Damage = (&'static str, fn(&Host) -> Result<()>);

/// What the kicker leaves behind when it is killed half-way.
const DAMAGES: [Damage; 5] = [
    ("0-byte server.crt", |host| put(&host.certs("server.crt"), "")),
    ("empty ca.srl", |host| put(&host.certs("ca.srl"), "")),
    ("csr.conf: changeme", |host| put(&host.certs("csr.conf"), "changeme\n")),
    ("0-byte csr.conf", |host| put(&host.certs("csr.conf"), "")),
    ("missing server.crt", |host| Ok(fs::remove_file(host.certs("server.crt"))?)),
];

/// Each alone, each with each, and all at once; with a reissue due, and in step before.
fn heals(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|_| Ok(()))?;
    let due = (1_u32..1 << DAMAGES.len()).flat_map(|chosen| [(chosen, false), (chosen, true)]);
    let trees: Vec<(u32, bool)> = due.collect();
    all(&trees, |(chosen, in_step)| {
        let host = bed.host()?;
        if *in_step {
            host.apply(&[])?;
        }
        let mut done = Vec::new();
        for (_, (name, damage)) in DAMAGES.iter().enumerate().filter(|(number, _)| chosen & (1 << number) != 0) {
            damage(&host).map_err(|error| format!("{name}: {error}"))?;
            done.push(*name);
        }
        bed.heals(&host).map_err(|error| format!("{}: {error}", done.join(", ")))?;
        if done.contains(&"empty ca.srl") && !fs::read(host.certs("ca.srl"))?.is_empty() {
            return Err("ca.srl was written, which is nobody's business here".into());
        }
        Ok(())
    })?;
    println!("damaged by a killed kicker: {0} of {0} trees healed in one pass", trees.len());
    not_ours(&bed)
}

/// A request file that makes sense stays as somebody wrote it, and a link in its place is said and left.
fn not_ours(bed: &Bed) -> Result<()> {
    let host = bed.host()?;
    host.apply(&[])?;
    let theirs = bed.new_request.replace("OU = Canonical", "OU = Somebody");
    put(&host.certs("csr.conf"), &theirs)?;
    host.apply(&[])?;
    if fs::read_to_string(host.certs("csr.conf"))? != theirs {
        return Err("a request file that makes sense was replaced".into());
    }
    let elsewhere = host.root.join("state/elsewhere");
    put(&elsewhere, "changeme\n")?;
    fs::remove_file(host.certs("csr.conf"))?;
    symlink(&elsewhere, host.certs("csr.conf"))?;
    let output = host.apply(&[])?;
    let said = text(&output);
    if fs::read(&elsewhere)? == b"changeme\n" && said.contains("symbolic link") && output.status.success() {
        return Ok(());
    }
    Err(format!("a link in the place of csr.conf: {said}").into())
}
