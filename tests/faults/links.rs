//! Somebody of the group that may write to the certificate folder, who swaps files for links while certificates are made:
//! nothing outside is read into a file, written, given away or opened up.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use crate::bed::{Bed, GROUP, Host, put, text};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::timeline::Timeline;
use crate::stage::tree::MARKER;

pub(crate) const CASES: &[Case] = &[
    Case { name: "links::swapped-files", play: files, patience: 40 },
    Case { name: "links::swapped-folder", play: folder, patience: 40 },
    Case { name: "links::in-place-of-what-is-read", play: read, patience: 40 },
];

/// How long reissues and swaps race.
const RACE: Duration = Duration::from_secs(3);
/// A word that is in files outside only.
const SECRET: &str = "a-secret-of-somebody-else";

/// Content, owner, group, mode and inode of every file of a folder.
type Snapshot = BTreeMap<PathBuf, (Vec<u8>, u32, u32, u32, u64)>;

fn snapshot(folder: &Path) -> Result<Snapshot> {
    let mut all = Snapshot::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        let content = fs::read(&path)?;
        all.insert(path, (content, metadata.uid(), metadata.gid(), metadata.mode(), metadata.ino()));
    }
    Ok(all)
}

/// A folder beside the certificates, on the same disk so that hard links are possible, with files that are nobody's
/// business.
fn outside(host: &Host) -> Result<PathBuf> {
    let outside = host.root.join("var/snap/outside");
    fs::create_dir(&outside)?;
    for entry in fs::read_dir(host.certs(""))? {
        let path = entry?.path();
        fs::copy(&path, outside.join(path.file_name().ok_or("a file of this test")?))?;
    }
    fs::write(outside.join("canary"), SECRET)?;
    // A template that makes sense: what is read through a link would end in `csr.conf`.
    let template = fs::read_to_string(host.certs("csr.conf.template"))?;
    fs::write(outside.join("secret.template"), template.replace(MARKER, &format!("# {SECRET}\n{MARKER}")))?;
    for path in snapshot(&outside)?.keys() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o604))?;
        chown(path, Some(GROUP), Some(GROUP + 1))?;
    }
    Ok(outside)
}

/// Reissues while `swap` is called over and over; then everything outside is as it was, and a last run in peace heals.
fn race(bed: &Bed, swap: impl Fn(&Host, &Path, usize) -> std::io::Result<()> + Sync) -> Result<(usize, usize, usize)> {
    let host = bed.host()?;
    let outside = outside(&host)?;
    let before = snapshot(&outside)?;
    let (stop, swaps) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut runs, mut written) = (0, 0);
    let raced: Result<()> = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Two of them at once would be in each other's way; whatever fails is tried again.
                let _ = swap(&host, &outside, swaps.fetch_add(1, Ordering::Relaxed));
            }
        });
        let began = Instant::now();
        let mut raced = Ok(());
        // On a busy machine longer, until there was something to race against.
        let goes_on = |written| began.elapsed() < RACE || written < 10 && began.elapsed() < 5 * RACE;
        while goes_on(written) && raced.is_ok() {
            raced = host.apply(&[]).and_then(|output| {
                runs += 1;
                written += usize::from(text(&output).contains("issued: certificate"));
                if text(&output).contains(SECRET) {
                    return Err(format!("what is outside is in the output: {}", text(&output)).into());
                }
                crate::bed::answered(&output)
            });
        }
        stop.store(true, Ordering::Relaxed);
        raced
    });
    raced?;
    if snapshot(&outside)? != before {
        return Err("something outside was touched".into());
    }
    // Before anything is put right: generations have what was replaced, certs/ what was made of it.
    is_nowhere(&host, &outside)?;
    for (name, content) in [("server.crt", &bed.old.certificate), ("csr.conf", &bed.old.request)] {
        let content = content.as_ref().ok_or("there is one")?;
        exchange(&host.certs(name), |beside| fs::write(beside, content))?;
    }
    bed.heals(&host)?;
    is_nowhere(&host, &outside)?;
    // The search itself finds what it looks for.
    fs::copy(outside.join("canary"), host.root.join("var/lib/ipguard/copy"))?;
    if is_nowhere(&host, &outside).is_ok() {
        return Err("the search is blind".into());
    }
    Ok((swaps.into_inner(), runs, written))
}

/// The word of the files outside is in no file of the tree, but for them. A second name of one of them, as whoever swaps
/// leaves it, is still that file.
fn is_nowhere(host: &Host, outside: &Path) -> Result<()> {
    let theirs: Vec<u64> = snapshot(outside)?.values().map(|(.., inode)| *inode).collect();
    let mut folders = vec![host.root.clone()];
    let mut searched = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let metadata = fs::symlink_metadata(&path)?;
            if metadata.is_dir() && path != outside {
                folders.push(path);
            } else if metadata.is_file() && !theirs.contains(&metadata.ino()) {
                searched += 1;
                if fs::read(&path)?.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()) {
                    return Err(format!("{} has what is outside in it", path.display()).into());
                }
            }
        }
    }
    // The generations and the state are among them.
    if searched < 10 { Err(format!("only {searched} files were searched").into()) } else { Ok(()) }
}

fn needs_root() -> Result<()> {
    if geteuid().is_root() && fs::read_to_string("/proc/self/uid_map")?.trim().ends_with("4294967295") {
        return Ok(());
    }
    skip("needs root, to have files of others")
}

/// Puts something in a file's place without a moment in which nothing is there.
fn exchange(place: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let beside = place.with_extension("swap");
    let _ = fs::remove_file(&beside);
    make(&beside)?;
    fs::rename(&beside, place)
}

fn files(_: &Timeline) -> Result<()> {
    needs_root()?;
    let bed = Bed::new(|_| Ok(()))?;
    let old = bed.old.certificate.clone().ok_or("there is a certificate")?;
    let (swaps, runs, written) = race(&bed, |host, outside, number| {
        let canary = outside.join("canary");
        for name in ["server.crt", "csr.conf"] {
            let place = host.certs(name);
            match number % 4 {
                0 => exchange(&place, |beside| symlink(&canary, beside))?,
                2 => exchange(&place, |beside| fs::hard_link(&canary, beside))?,
                // The real thing, for long enough that a run gets as far as to write.
                _ => exchange(&place, |beside| fs::write(beside, &old))?,
            }
        }
        // Leftovers that are links, and a temporary file that is swapped for one.
        let left = host.certs(&format!(".ipguard-{number:016x}"));
        symlink(&canary, &left)?;
        for entry in fs::read_dir(host.certs(""))?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(".ipguard-") && entry.path() != left && number % 2 == 0 {
                let _ = exchange(&entry.path(), |beside| symlink(&canary, beside));
            }
        }
        thread::sleep(Duration::from_millis(if number % 2 == 1 { 12 } else { 1 }));
        Ok(())
    })?;
    println!(
        "files swapped for links: {swaps} swaps, {runs} runs, {written} certificates; nothing outside was touched"
    );
    enough(swaps, runs, written)
}

fn folder(_: &Timeline) -> Result<()> {
    needs_root()?;
    let bed = Bed::new(|_| Ok(()))?;
    let old = bed.old.certificate.clone().ok_or("there is a certificate")?;
    let (swaps, runs, written) = race(&bed, |host, outside, number| {
        let certs = host.root.join("var/snap/microk8s/7400/certs");
        let aside = host.root.join("var/snap/microk8s/7400/aside");
        if number % 2 == 0 {
            fs::rename(&certs, &aside)?;
            symlink(outside, &certs)?;
            thread::sleep(Duration::from_millis(2));
            fs::remove_file(&certs)?;
            fs::rename(&aside, &certs)?;
        } else {
            exchange(&certs.join("server.crt"), |beside| fs::write(beside, &old))?;
            thread::sleep(Duration::from_millis(12));
        }
        Ok(())
    })?;
    println!(
        "the folder swapped for a link: {swaps} swaps, {runs} runs, {written} certificates; nothing outside was touched"
    );
    enough(swaps, runs, written)
}

/// A race that nobody ran shows nothing.
fn enough(swaps: usize, runs: usize, written: usize) -> Result<()> {
    if swaps > 50 && runs > 5 && written > 0 {
        return Ok(());
    }
    Err(format!("too little happened: {swaps} swaps, {runs} runs, {written} certificates").into())
}

/// What is read is not read through a link: a template, arguments, a CA or a key somewhere else.
fn read(_: &Timeline) -> Result<()> {
    needs_root()?;
    let bed = Bed::new(|_| Ok(()))?;
    let names = ["csr.conf.template", "server.crt", "server.key", "ca.crt", "ca.key", "csr.conf"];
    for name in names {
        let host = bed.host()?;
        let outside = outside(&host)?;
        let before = snapshot(&outside)?;
        let target = if name == "csr.conf.template" { "secret.template" } else { name };
        exchange(&host.certs(name), |beside| symlink(outside.join(target), beside))?;
        let output = host.apply(&[])?;
        crate::bed::answered(&output)?;
        let said = text(&output);
        if !said.contains("symbolic link") {
            return Err(format!("{name} is a link, and nobody says so: {said}").into());
        }
        if snapshot(&outside)? != before {
            return Err(format!("{name} is a link, and something outside was touched").into());
        }
        for entry in fs::read_dir(host.certs(""))? {
            let path = entry?.path();
            let is_link = fs::symlink_metadata(&path)?.is_symlink();
            if !is_link && String::from_utf8_lossy(&fs::read(&path)?).contains(SECRET) {
                return Err(format!("{name} is a link, and {} has what it leads to", path.display()).into());
            }
        }
    }
    // Arguments too: their folder belongs to the same group.
    let host = bed.host()?;
    let arguments = host.root.join("var/snap/microk8s/current/args/kube-apiserver");
    let elsewhere = host.root.join("state/elsewhere");
    put(&elsewhere, format!("--advertise-address={SECRET}\n"))?;
    exchange(&arguments, |beside| symlink(&elsewhere, beside))?;
    let output = host.apply(&[])?;
    let said = text(&output);
    if said.contains(SECRET) || !said.contains("symbolic link") {
        return Err(format!("arguments behind a link: {said}").into());
    }
    println!("links in place of what is read: {0} of {0} were not followed", names.len() + 1);
    Ok(())
}
