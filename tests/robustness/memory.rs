//! What is left of a private key in the daemon's memory once it has signed: nothing.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use ipguard::observe::der::{INTEGER, OCTET_STRING, SEQUENCE, element, only};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;

use crate::host::{Host, expect, same};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "memory::no-ec-key-is-left-behind", play: ec, patience: 40 },
    Case { name: "memory::no-new-key-is-left-behind", play: new, patience: 40 },
    Case { name: "memory::no-rsa-key-is-left-behind", play: rsa, patience: 60 },
];

/// A secret number is looked for by pieces of this length: long enough never to be there by chance.
const PIECE: usize = 16;

/// The secret numbers of a key file, big-endian.
fn secrets(pem: &[u8]) -> Result<Vec<Vec<u8>>> {
    let key = PrivateKeyDer::from_pem_slice(pem)?;
    let broken = || "the key is not built as expected";
    let numbers = |der: &[u8]| -> Option<Vec<Vec<u8>>> {
        let (mut rest, mut numbers) = (only(SEQUENCE, der)?, Vec::new());
        while let Some((INTEGER, number, after)) = element(rest) {
            numbers.push(number.to_vec());
            rest = after;
        }
        // The version, the modulus and the public exponent are nobody's secret.
        numbers.drain(..3.min(numbers.len()));
        (!numbers.is_empty()).then_some(numbers)
    };
    Ok(match &key {
        PrivateKeyDer::Pkcs1(key) => numbers(key.secret_pkcs1_der()).ok_or_else(broken)?,
        PrivateKeyDer::Pkcs8(key) => {
            // ECPrivateKey (RFC 5915) in the envelope's OCTET STRING: the version, then the scalar.
            let der = key.secret_pkcs8_der();
            let at = der.windows(5).position(|w| w == [INTEGER, 1, 1, OCTET_STRING, 32]).ok_or_else(broken)?;
            vec![der[at + 5..at + 37].to_vec()]
        }
        _ => return Err(broken().into()),
    })
}

/// Pieces of secrets.
struct Pieces(Vec<Vec<u8>>);

impl Pieces {
    /// As the file has them, as PEM has them, and as big-number libraries keep them: the least significant byte first.
    fn of(pem: &[u8]) -> Result<Self> {
        let mut pieces = Self(Vec::new());
        for number in secrets(pem)? {
            let backwards: Vec<u8> = number.iter().rev().copied().collect();
            for bytes in [&number, &backwards] {
                bytes.chunks_exact(PIECE).for_each(|piece| pieces.add(piece));
            }
        }
        let text = std::str::from_utf8(pem)?;
        // The first lines of a PKCS#8 EC key and of every RSA key hold public numbers too.
        let lines: Vec<&str> = text.lines().filter(|line| line.len() == 64 && !line.starts_with('-')).collect();
        lines.iter().skip(lines.len() / 2).for_each(|line| pieces.add(&line.as_bytes()[40..56]));
        Ok(pieces)
    }

    fn add(&mut self, piece: &[u8]) {
        self.0.push(piece.to_vec());
    }

    fn found_in(&self, bytes: &[u8]) -> usize {
        let mut starts = vec![false; 1 << 16];
        let start = |bytes: &[u8]| usize::from(bytes[0]) << 8 | usize::from(bytes[1]);
        self.0.iter().for_each(|piece| starts[start(piece)] = true);
        let mut found = 0;
        for at in 0..bytes.len().saturating_sub(PIECE) {
            let here = &bytes[at..];
            found += usize::from(starts[start(here)] && self.0.iter().any(|piece| here.starts_with(piece)));
        }
        found
    }
}

/// How often they stand in the writable memory of a process, and how much of that there is.
fn in_memory(process: u32, pieces: &Pieces) -> Result<(usize, usize)> {
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let (mut found, mut searched) = (0, 0);
    for line in fs::read_to_string(format!("/proc/{process}/maps"))?.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(mode)) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-').filter(|_| mode.starts_with("rw")) else { continue };
        let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
        let mut bytes = vec![0; usize::try_from(to - from)?];
        // A stretch that cannot be read (a device's) holds nothing of ours.
        if memory.read_exact_at(&mut bytes, from).is_ok() {
            found += pieces.found_in(&bytes);
            searched += bytes.len();
        }
    }
    Ok((found, searched))
}

/// After the start, where keys are read to be compared, and after a reissue, where they sign.
fn nothing_is_left(host: &Host, timeline: &Timeline) -> Result<()> {
    let daemon = host.daemon()?;
    let process = u32::try_from(daemon.pid().as_raw())?;
    host.await_covered(crate::host::NODE)?;
    let look = |when: &str| -> Result<()> {
        for name in ["ca.key", "server.key"] {
            let pem = fs::read(host.tree.data("certs").join(name))?;
            let pieces = Pieces::of(&pem)?;
            // The very file that was just read here must be found, or the search is blind.
            expect(in_memory(std::process::id(), &pieces)?.0 > 0, "the search finds what is there")?;
            let (found, searched) = in_memory(process, &pieces)?;
            timeline.note("stage", format!("{when}: {found} pieces of {name} in {} KiB", searched / 1024));
            expect(searched > 100_000, format!("only {searched} bytes could be searched"))?;
            same(&format!("pieces of {name} in memory, {when}"), &found, &0)?;
            drop(pem);
        }
        Ok(())
    };
    look("after the start")?;
    host.add("198.51.100.7")?;
    host.await_covered("198.51.100.7")?;
    host.await_said("in-step")?;
    look("after a reissue")?;
    daemon.kill()
}

fn ec(timeline: &Timeline) -> Result<()> {
    nothing_is_left(&Host::new(timeline)?, timeline)
}

/// The server's key is made here.
fn new(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    for file in ["server.key", "server.crt"] {
        fs::remove_file(host.tree.data("certs").join(file))?;
    }
    nothing_is_left(&host, timeline)
}

/// A CA and a server key as MicroK8s makes them.
fn rsa(timeline: &Timeline) -> Result<()> {
    let openssl = |host: &Host, arguments: &str| -> Result<()> {
        let output =
            Command::new("openssl").args(arguments.split(' ')).current_dir(host.tree.data("certs")).output()?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned().into()) }
    };
    if Command::new("openssl").arg("version").output().is_err() {
        return skip("there is no openssl");
    }
    let host = Host::new(timeline)?;
    for key in ["ca.key", "server.key"] {
        openssl(&host, &format!("genrsa -traditional -out {key} 2048"))?;
    }
    openssl(&host, "req -x509 -new -nodes -days 3650 -key ca.key -subj /CN=10.152.183.1 -out ca.crt")?;
    nothing_is_left(&host, timeline)
}
