//! A rollback that is broken at its system calls: the certificate is the one before or the one put back, whole, and it is
//! held if and only if it was put back.

use std::fs;
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use crate::bed::{self, Bed, Files, Host, answered, text};
use crate::calls::{Written, kill, refuse, write_path};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "back::killed", play: killed, patience: 170 },
    Case { name: "back::refused", play: refused, patience: 170 },
];

/// Calls that a disk refuses.
pub(crate) const REFUSED: [&str; 4] = ["openat", "write", "fsync", "renameat"];

struct Rollback {
    /// The reissue is made: `bed.old` is what it left.
    bed: Bed,
    /// What was there before, which a rollback puts back.
    first: Files,
    /// How often what a fault left was held, and was not.
    ends: [AtomicUsize; 2],
}

impl Rollback {
    fn new() -> Result<Self> {
        let mut first = None;
        let bed = Bed::new(|tree| {
            first = Some(Files::of(tree.root()));
            bed::reissue(tree)
        })?;
        let first = first.ok_or("the tree was prepared")?;
        if first.certificate == bed.old.certificate {
            return Err("there was no reissue".into());
        }
        Ok(Self { bed, first, ends: Default::default() })
    }

    /// The certificate before or the one put back, with the only key there is; the request of either.
    fn is_whole(&self, host: &Host) -> Result<()> {
        let (now, old, first) = (Files::of(&host.root), &self.bed.old, &self.first);
        if now.key != old.key {
            return Err("the key is another one".into());
        }
        if ![&old.certificate, &first.certificate].contains(&&now.certificate) {
            return Err("the certificate is neither of the two".into());
        }
        if ![&old.request, &first.request].contains(&&now.request) {
            return Err("csr.conf is neither of the two".into());
        }
        host.pair_is_servable()
    }

    /// A disk that refused to keep the newer certificate stopped no rollback: behind it there is none to go forward to.
    fn has_nothing_to_go_to(&self, host: &Host, output: &Output) -> Result<()> {
        let is_back = Files::of(&host.root).certificate == self.first.certificate;
        let said = text(output).contains("0 earlier certificates of server are kept");
        if is_back && said { answered(output) } else { Err("it failed".into()) }
    }

    /// The state parses, names no writer, and holds the leaf in place or none; whether it holds.
    fn holds(&self, host: &Host) -> Result<bool> {
        let state: Value = serde_json::from_slice(&fs::read(host.root.join("var/lib/ipguard/state.json"))?)?;
        if !state["issuing"].is_null() {
            return Err(format!("a writer is still remembered: {}", state["issuing"]).into());
        }
        let holds = state["rolled_back"].as_array().ok_or("the state has no rollbacks")?;
        let is_first = Files::of(&host.root).certificate == self.first.certificate;
        let leaf = CertificateDer::from_pem_file(host.certs("server.crt"))?;
        let digest = ring::digest::digest(&ring::digest::SHA256, &leaf);
        let fingerprint: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        match holds.as_slice() {
            [] if is_first => Err("it was put back and is not held".into()),
            [] => Ok(false),
            [hold] if hold["certificate"] == "server" && hold["fingerprint"] == fingerprint.as_str() => Ok(true),
            _ => Err(format!("held is what is not in place: {holds:?}").into()),
        }
    }
}

impl Written for Rollback {
    fn bed(&self) -> &Bed {
        &self.bed
    }

    fn arguments(&self) -> &'static [&'static str] {
        &["rollback"]
    }

    fn is_done(&self, host: &Host) -> Result<()> {
        let back = Files::of(&host.root) == self.first;
        if back && self.holds(host)? { Ok(()) } else { Err("the first certificate is not back".into()) }
    }

    /// Behind it a pass or a second rollback, by turns. The second goes forward where the first one got through.
    fn judge(&self, host: &Host, turn: usize) -> Result<()> {
        self.is_whole(host)?;
        let again = turn % 2 == 1;
        let arguments: &[&str] = if again { self.arguments() } else { &["check", "--apply"] };
        let output = host.run(&[], arguments)?;
        let judged = (|| {
            if !output.status.success() {
                self.has_nothing_to_go_to(host, &output)?;
                host.apply(&[])?;
            }
            let held = self.holds(host)?;
            self.ends[usize::from(!held)].fetch_add(1, Ordering::Relaxed);
            if held {
                self.is_whole(host)?;
            } else if again {
                return Err("what was put back is not held".into());
            } else {
                host.is_done()?;
            }
            host.is_at_rest()?;
            // A look changes nothing of that.
            if self.holds(host)? == held { Ok(()) } else { Err("the hold changed".into()) }
        })();
        judged.map_err(|error: crate::stage::Failure| {
            format!("{error}\n{} behind it: {}", arguments.join(" "), text(&output)).into()
        })
    }
}

/// Whether there was something to judge on either side of the write.
fn both(path: Rollback) -> Result<()> {
    let [held, free] = path.ends.map(AtomicUsize::into_inner);
    println!("behind a pass or a second rollback: {held} held, {free} not put back and not held");
    if held > 0 && free > 0 { Ok(()) } else { Err("one of them was never seen".into()) }
}

fn killed(_: &Timeline) -> Result<()> {
    let path = Rollback::new()?;
    kill("rollback", &path, &write_path(&path)?, 4)?;
    both(path)
}

fn refused(_: &Timeline) -> Result<()> {
    let path = Rollback::new()?;
    refuse("rollback", &path, &write_path(&path)?, &REFUSED, 3)?;
    both(path)
}
