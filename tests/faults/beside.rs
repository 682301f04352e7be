//! A reissue of the two certificates beside the server's, broken at its system calls: each pair is the old one or the new
//! one, the one that was missing is missing or whole, and the server's is not touched.

use std::fs;

use crate::back::REFUSED;
use crate::bed::{self, Bed, Files, Host, text};
use crate::calls::{Written, kill, refuse, write_path};
use crate::runner::Case;
use crate::stage::timeline::Timeline;
use crate::stage::tree::Tree;
use crate::stage::{Result, authority};

pub(crate) const CASES: &[Case] = &[
    Case { name: "beside::killed", play: killed, patience: 170 },
    Case { name: "beside::refused", play: refused, patience: 170 },
];

/// What the kubelet's certificate has to cover once host access is on.
const HOST_ACCESS: &str = "10.0.1.1";

/// Takes the proxy's certificate away and switches on the add-on that the kubelet's has to follow.
pub(crate) fn make_due(tree: &Tree) -> Result<()> {
    fs::remove_file(tree.data("certs/front-proxy-client.crt"))?;
    Ok(fs::write(tree.data("var/lock/host-access-enabled"), format!("{HOST_ACCESS}\n"))?)
}

struct Beside {
    /// The server's certificate is in step.
    bed: Bed,
    kubelet: Vec<u8>,
    keys: [Vec<u8>; 2],
}

fn keys(certs: impl Fn(&str) -> std::path::PathBuf) -> Result<[Vec<u8>; 2]> {
    Ok([fs::read(certs("front-proxy-client.key"))?, fs::read(certs("kubelet.key"))?])
}

impl Beside {
    fn new() -> Result<Self> {
        let (mut kubelet, mut kept) = (Vec::new(), Default::default());
        let bed = Bed::complete(|tree| {
            bed::reissue(tree)?;
            kubelet = fs::read(tree.data("certs/kubelet.crt"))?;
            kept = keys(|name| tree.data("certs").join(name))?;
            make_due(tree)
        })?;
        Ok(Self { bed, kubelet, keys: kept })
    }

    fn is_whole(&self, host: &Host) -> Result<()> {
        if Files::of(&host.root) != self.bed.old {
            return Err("a file of the server was changed".into());
        }
        host.pair_is_servable()?;
        if keys(|name| host.certs(name))? != self.keys {
            return Err("a key is another one".into());
        }
        if host.certs("front-proxy-client.crt").exists() {
            client(host)?;
        }
        host.pair_loads("kubelet")?;
        if fs::read(host.certs("kubelet.crt"))? == self.kubelet { Ok(()) } else { kubelet(host) }
    }
}

fn client(host: &Host) -> Result<()> {
    host.pair_loads("front-proxy-client").map_err(|error| format!("front-proxy-client: {error}").into())
}

fn kubelet(host: &Host) -> Result<()> {
    host.pair_loads("kubelet")?;
    let names = authority::names(&host.certs("kubelet.crt"))?;
    if [HOST_ACCESS, bed::NODE, "DNS:node-1"].iter().all(|name| names.contains(*name)) {
        return Ok(());
    }
    Err(format!("the kubelet's certificate names {names:?}").into())
}

impl Written for Beside {
    fn bed(&self) -> &Bed {
        &self.bed
    }

    fn is_done(&self, host: &Host) -> Result<()> {
        self.is_whole(host)?;
        client(host)?;
        kubelet(host)
    }

    fn judge(&self, host: &Host, _: usize) -> Result<()> {
        self.is_whole(host)?;
        let output = host.apply(&[])?;
        let done = self.is_done(host).and_then(|()| host.is_at_rest());
        match done {
            Ok(()) if output.status.success() => Ok(()),
            Ok(()) => Err(format!("the second run failed: {}", text(&output)).into()),
            Err(error) => Err(format!("after the second run: {error}\n{}", text(&output)).into()),
        }
    }
}

fn killed(_: &Timeline) -> Result<()> {
    let path = Beside::new()?;
    kill("front-proxy-client and kubelet", &path, &write_path(&path)?, 4)
}

fn refused(_: &Timeline) -> Result<()> {
    let path = Beside::new()?;
    refuse("front-proxy-client and kubelet", &path, &write_path(&path)?, &REFUSED, 2)
}
