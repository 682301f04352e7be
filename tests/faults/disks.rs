//! Disks and folders that take nothing: full, read-only, immutable, missing, in the way, not permitted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;

use crate::bed::{Bed, Files, Host, answered, names, text};
use crate::runner::{Case, skip};
use crate::stage::timeline::Timeline;
use crate::stage::{Failure, Result};

pub(crate) const CASES: &[Case] = &[
    Case { name: "disks::full-and-read-only", play: mounted, patience: 60 },
    Case { name: "disks::in-the-way", play: in_the_way, patience: 60 },
    Case { name: "disks::immutable", play: immutable, patience: 60 },
    Case { name: "disks::no-permission", play: no_permission, patience: 60 },
];

/// The write was refused with these words on stderr and exit status 1, and every file is as it was.
fn refused(bed: &Bed, host: &Host, output: &Output, words: &str) -> Result<()> {
    answered(output)?;
    let said = text(output);
    if output.status.code() != Some(1) || !said.contains(words) {
        return Err(format!("not refused with {words:?}: {said}").into());
    }
    if Files::of(&host.root) != bed.old {
        return Err(format!("a file was changed: {said}").into());
    }
    host.pair_is_servable()
}

/// Mounts a small disk over a folder, with what was in it.
fn on_a_disk(folder: &Path, kibibytes: u32) -> Result<()> {
    let before = folder.with_extension("before");
    fs::rename(folder, &before)?;
    fs::create_dir(folder)?;
    let options = format!("size={kibibytes}k");
    mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))?;
    fs::set_permissions(folder, fs::metadata(&before)?.permissions())?;
    let status = Command::new("cp").arg("-a").arg(before.join(".")).arg(folder).status()?;
    if status.success() { Ok(()) } else { Err("cp failed".into()) }
}

fn mounted(_: &Timeline) -> Result<()> {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let made =
        unshare(CloneFlags::CLONE_NEWNS).and_then(|()| mount(None::<&str>, "/", None::<&str>, private, None::<&str>));
    if let Err(error) = made {
        return skip(format!("no mount namespace: {error}"));
    }
    let bed = Bed::new(|_| Ok(()))?;
    let mut count = 0;
    // The certificates alone, the state alone, and both.
    for below in ["var/snap/microk8s/7400/certs", "var/lib", "var"] {
        let host = bed.host()?;
        let disk = host.root.join(below);
        on_a_disk(&disk, 256)?;
        let filler = disk.join("filler");
        // To the last page: what does not fit in one piece is cut off.
        let _ = fs::write(&filler, vec![0; 512 * 1024]);
        let tried = host.apply(&[])?;
        refused(&bed, &host, &tried, "No space left on device").map_err(|error| format!("{below} full: {error}"))?;
        if names(&host.certs(""))?.iter().any(|name| name.starts_with(".ipguard-")) {
            return Err(format!("{below} full: a temporary file was left").into());
        }
        fs::remove_file(&filler)?;
        bed.heals(&host).map_err(|error| format!("{below} full: {error}"))?;
        umount2(&disk, MntFlags::MNT_DETACH)?;

        let host = bed.host()?;
        let disk = host.root.join(below);
        on_a_disk(&disk, 256)?;
        let remount = |flags| mount(None::<&str>, &disk, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>);
        remount(MsFlags::MS_RDONLY)?;
        let tried = host.apply(&[])?;
        refused(&bed, &host, &tried, "Read-only file system").map_err(|error| format!("{below} read-only: {error}"))?;
        remount(MsFlags::empty())?;
        bed.heals(&host).map_err(|error| format!("{below} read-only: {error}"))?;
        umount2(&disk, MntFlags::MNT_DETACH)?;
        count += 2;
    }
    println!("full and read-only disks: {count} of {count} left the old pair and healed");
    Ok(())
}

/// Folders that are missing, and folders where files should be.
fn in_the_way(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|_| Ok(()))?;
    let tree = |what: &str, error: Failure| format!("{what}: {error}");
    // The whole folder is gone: nothing is made out of nothing, and it heals when the folder is back.
    let host = bed.host()?;
    let aside = host.root.join("aside");
    fs::rename(host.certs(""), &aside)?;
    let output = host.apply(&[])?;
    answered(&output)?;
    if host.certs("").exists() {
        return Err(format!("a certificate folder was made: {}", text(&output)).into());
    }
    fs::rename(&aside, host.certs(""))?;
    bed.heals(&host).map_err(|error| tree("missing folder", error))?;
    for name in ["server.crt", "csr.conf"] {
        let host = bed.host()?;
        let aside = host.root.join("aside");
        fs::rename(host.certs(name), &aside)?;
        fs::create_dir(host.certs(name))?;
        let output = host.apply(&[])?;
        answered(&output)?;
        let said = text(&output);
        if output.status.code() != Some(1) || !said.contains(&format!("{name} is not a regular file")) {
            return Err(format!("a folder in the place of {name}: {said}").into());
        }
        fs::remove_dir(host.certs(name))?;
        fs::rename(&aside, host.certs(name))?;
        if Files::of(&host.root) != bed.old {
            return Err(format!("a folder in the place of {name}: other files were changed").into());
        }
        bed.heals(&host).map_err(|error| tree(name, error))?;
    }
    // A folder with a temporary name is somebody's joke, and stays.
    let host = bed.host()?;
    let joke = host.certs(".ipguard-00000000000000ff");
    fs::create_dir(&joke)?;
    host.apply(&[])?;
    host.is_done().map_err(|error| tree("a folder with a temporary name", error))?;
    fs::remove_dir(&joke)?;
    bed.heals(&host)?;
    println!("missing, and in the way: 4 of 4 left the old pair or the new one and healed");
    Ok(())
}

fn immutable(_: &Timeline) -> Result<()> {
    let bed = Bed::new(|_| Ok(()))?;
    let chattr = |flag: &str, path: &Path| {
        let output = Command::new("chattr").arg(flag).arg(path).output();
        output.is_ok_and(|output| output.status.success())
    };
    let mut count = 0;
    for name in ["server.crt", "csr.conf", ""] {
        let host = bed.host()?;
        if !chattr("+i", &host.certs(name)) {
            return skip("no file can be made immutable here (root, chattr, ext4 or the like)");
        }
        let tried = host.apply(&[]);
        // Before anything can fail: what is immutable cannot be removed.
        chattr("-i", &host.certs(name));
        let tried = tried?;
        let said = text(&tried);
        if tried.status.code() != Some(1) || !said.contains("Operation not permitted") {
            return Err(format!("{name:?} is immutable: {said}").into());
        }
        bed.old_or_new(&host).map_err(|error| format!("{name:?} is immutable: {error}"))?;
        bed.heals(&host).map_err(|error| format!("{name:?} was immutable: {error}"))?;
        count += 1;
    }
    println!("immutable: {count} of {count} left the old pair or the new one and healed");
    Ok(())
}

fn no_permission(_: &Timeline) -> Result<()> {
    if !geteuid().is_root() {
        return skip("needs root, to become somebody else");
    }
    let bed = Bed::new(|_| Ok(()))?;
    let host = bed.host()?;
    // The program may be in a folder that only root may enter.
    let program = host.root.join("usr/bin/ipguard");
    fs::copy(env!("CARGO_BIN_EXE_ipguard"), &program)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::set_permissions(&host.root, fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new(&program);
    command.args(["check", "--apply", "--root"]).arg(&host.root);
    command.arg("--config").arg(host.root.join("etc/ipguard/ipguard.toml")).env_clear().uid(65534).gid(65534);
    let output = command.current_dir("/").output()?;
    refused(&bed, &host, &output, "ermission denied")?;
    bed.heals(&host)?;
    println!("no permission: 1 of 1 left the old pair and healed");
    Ok(())
}
