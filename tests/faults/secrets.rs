//! Private keys stay where they are through whole runs of the program: not in what it prints at its most talkative, not
//! in its state, not in temporary files of a run that was killed, not in any file but their own.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bed::{Bed, Host, text};
use crate::beside;
use crate::calls::has_strace;
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[Case { name: "secrets::stay-where-they-are", play: stay, patience: 60 }];

/// Their files.
const KEYS: [&str; 5] = ["ca.key", "server.key", "front-proxy-ca.key", "front-proxy-client.key", "kubelet.key"];

/// Far more than a run for three certificates makes.
const MOST_RENAMES: usize = 60;

/// The lines of the keys' bodies, and stretches of them that a wrapped or cut line would still show.
fn traces(host: &Host) -> Result<Vec<String>> {
    let mut traces = Vec::new();
    for name in KEYS {
        let text = fs::read_to_string(host.certs(name))?;
        let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
        // The beginning is the same for all keys of a kind, and the end is the public half, which a certificate has too.
        let private = body.get(48..body.len() / 2).ok_or("a key of this test")?;
        traces.extend(text.lines().filter(|line| !line.starts_with("-----")).take(1).map(str::to_owned));
        traces.extend((0..private.len().saturating_sub(16)).step_by(4).map(|at| private[at..at + 16].to_owned()));
    }
    if traces.len() < 4 { Err("too few traces".into()) } else { Ok(traces) }
}

fn shows<'a>(text: &str, traces: &'a [String]) -> Option<&'a String> {
    traces.iter().find(|trace| text.contains(trace.as_str()))
}

/// No file of the tree but the keys' own has a trace; how many were searched.
fn search(root: &Path, traces: &[String]) -> Result<usize> {
    let mut folders: Vec<PathBuf> = vec![root.to_owned()];
    let mut count = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && !KEYS.contains(&entry.file_name().to_string_lossy().as_ref()) {
                count += 1;
                if shows(&String::from_utf8_lossy(&fs::read(entry.path())?), traces).is_some() {
                    return Err(format!("{} has a private key in it", entry.path().display()).into());
                }
            }
        }
    }
    Ok(count)
}

fn stay(_: &Timeline) -> Result<()> {
    let bed = Bed::complete(beside::make_due)?;
    let damages: [fn(&Host) -> Result<()>; 8] = [
        |_| Ok(()),
        // Where a certificate should be, a key is.
        |host| Ok(fs::copy(host.certs("server.key"), host.certs("server.crt")).map(drop)?),
        |host| Ok(fs::copy(host.certs("ca.key"), host.certs("ca.crt")).map(drop)?),
        |host| Ok(fs::copy(host.certs("ca.key"), host.certs("csr.conf.template")).map(drop)?),
        |host| {
            let arguments = host.root.join("var/snap/microk8s/current/args/kube-apiserver");
            Ok(fs::copy(host.certs("ca.key"), arguments).map(drop)?)
        },
        // Keys that are swapped, so that neither fits.
        |host| {
            let key = fs::read(host.certs("server.key"))?;
            fs::copy(host.certs("ca.key"), host.certs("server.key"))?;
            Ok(fs::write(host.certs("ca.key"), key)?)
        },
        |host| Ok(fs::copy(host.certs("kubelet.key"), host.certs("kubelet.crt")).map(drop)?),
        |host| Ok(fs::copy(host.certs("front-proxy-ca.key"), host.certs("front-proxy-ca.crt")).map(drop)?),
    ];
    let (mut said, mut searched) = (0, 0);
    for (number, damage) in damages.iter().enumerate() {
        let host = bed.host()?;
        let traces = traces(&host)?;
        damage(&host)?;
        // What the damage itself has copied is not of our doing.
        let damaged = search(&host.root, &traces).is_err();
        for words in [&["check"][..], &["check", "--format", "json"], &["check", "--apply"], &["explain"], &["check"]] {
            let words: Vec<&str> = words.iter().copied().chain(["--log-level", "trace"]).collect();
            let through: &[&str] = &[];
            let output = host.run(through, &words)?;
            let printed = text(&output);
            said += printed.len();
            if let Some(trace) = shows(&printed, &traces) {
                return Err(format!("tree {number}: {} shows {trace:?} of a key", words.join(" ")).into());
            }
        }
        if !damaged {
            searched += search(&host.root, &traces)?;
        } else if let Some(trace) =
            shows(&fs::read_to_string(host.root.join("var/lib/ipguard/state.json")).unwrap_or_default(), &traces)
        {
            return Err(format!("tree {number}: the state shows {trace:?} of a key").into());
        }
    }
    let killed = if has_strace() {
        let (runs, files) = killed(&bed)?;
        searched += files;
        format!("; {runs} runs killed at their renames")
    } else {
        println!("skipped: runs killed at their renames: strace not found");
        String::new()
    };
    // The search itself finds what it looks for.
    let host = bed.host()?;
    fs::copy(host.certs("ca.key"), host.root.join("state/copy"))?;
    if search(&host.root, &traces(&host)?).is_ok() {
        return Err("the search is blind".into());
    }
    println!(
        "{} private keys: {said} bytes of output at trace level and {searched} files without a trace of one{killed}",
        KEYS.len()
    );
    Ok(())
}

/// What killed runs leave: state and temporary files as they are at every rename. How many runs, and files searched.
fn killed(bed: &Bed) -> Result<(usize, usize)> {
    let mut searched = 0;
    for number in 1..=MOST_RENAMES {
        let host = bed.host()?;
        let inject = format!("--inject=renameat:signal=SIGKILL:when={number}");
        let output = host.apply(&["strace", "-qq", "-o", "/dev/null", "-e", "trace=renameat", &inject])?;
        let traces = traces(&host)?;
        if shows(&text(&output), &traces).is_some() {
            return Err("a killed run shows a key".into());
        }
        searched += search(&host.root, &traces)?;
        // Not one that was hit: there are no more renames.
        if output.status.code().is_some() {
            return if number > KEYS.len() { Ok((number - 1, searched)) } else { Err("too few renames".into()) };
        }
    }
    Err(format!("more than {MOST_RENAMES} renames").into())
}
