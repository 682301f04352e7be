//! The shell between systemd or snapd and `ipguard chores`: hooks get the environment of MicroK8s' snap, ipguard none of
//! its libraries.

use std::fs;
use std::process::Command;

use crate::{Folder, program, repository, run};

/// Stand-ins: MicroK8s' functions, `snap run --shell` as snapd does it, and an ipguard that says what it was given.
fn host(with_function: bool) -> Folder {
    let host = Folder::new();
    let function = "use_snap_env() { export PATH=\"$SNAP/usr/bin:$REAL_PATH\"; export LD_LIBRARY_PATH=\"$SNAP/lib\"; }";
    host.write("snap/actions/common/utils.sh", if with_function { function } else { "" });
    let said = "echo \"$@\"; echo \"PATH=$PATH\"; echo \"LD_LIBRARY_PATH=${LD_LIBRARY_PATH-unset}\"; \
                echo \"HOOKS=$IPGUARD_HOOK_LIBRARY_PATH\"; echo \"SNAP=$SNAP\"";
    host.script("bin/ipguard", said);
    let snap = format!(
        "[ \"$1 $2 $3\" = 'run --shell microk8s.daemon-apiserver-kicker' ] || exit 9\nshift 3\n\
         SNAP='{0}/snap' exec /bin/bash \"$@\"",
        host.0.display()
    );
    host.script("bin/snap", &snap);
    host
}

/// The command of the unit, as systemd would start it below that folder: continued lines joined, `$$` is `$`.
fn command_of_unit(host: &Folder) -> Command {
    let unit = fs::read_to_string(repository("systemd/ipguard-microk8s-chores.service")).expect("it is there");
    let joined = unit.replace("\\\n", " ");
    let line = joined.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let (words, script) = line.split_once(" -c '").expect("a shell runs a script");
    let script = script.strip_suffix('\'').expect("the script ends the line");
    assert!(!script.replace("$$", "").contains(['$', '\'', '%']), "systemd would take it for its own: {script}");
    let mut words = words.split(' ');
    assert_eq!(words.next(), Some("/usr/bin/snap"));
    let mut command = program(host.path("bin/snap"));
    let ipguard = host.path("bin/ipguard").display().to_string();
    command.args(words).arg("-c").arg(script.replace("$$", "$").replace("/usr/bin/ipguard", &ipguard));
    command
}

fn expected(host: &Folder, arguments: &str, path: &str, hooks: &str) -> String {
    let snap = host.path("snap").display().to_string();
    let text = format!("{arguments}\nPATH={path}\nLD_LIBRARY_PATH=unset\nHOOKS={hooks}\nSNAP={snap}\n");
    text.replace("SNAP/", &format!("{snap}/"))
}

#[test]
fn the_unit_gives_hooks_what_microk8s_gave_them() {
    let host = host(true);
    let ran = run(&mut command_of_unit(&host));
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    assert_eq!(ran.stdout, expected(&host, "chores", "SNAP/usr/bin:/usr/bin:/bin", "SNAP/lib"));
}

#[test]
fn a_microk8s_without_that_function_gets_its_path_all_the_same() {
    let host = host(false);
    let ran = run(&mut command_of_unit(&host));
    assert_eq!(ran.status, Some(0));
    let path = "SNAP/usr/sbin:SNAP/usr/bin:SNAP/sbin:SNAP/bin:/usr/bin:/bin";
    assert_eq!(ran.stdout, expected(&host, "chores", path, ""));
}

#[test]
fn the_loop_of_the_snap_does_the_same_with_the_snaps_own_configuration() {
    let host = host(true);
    // Only what makes it end is changed: the place it looks for, and the pause.
    let loop_text = fs::read_to_string(repository("snap/local/chores-loop")).expect("it is there");
    assert!(loop_text.contains("[ -e /var/snap/microk8s/current ]") && loop_text.contains("  sleep 60\n"));
    let changed = loop_text.replace("/var/snap/microk8s/current", "/").replace("  sleep 60\n", "  exit 0\n");
    host.write("loop", &changed);
    let own = host.path("own").display().to_string();
    fs::create_dir_all(host.path("own/bin")).expect("it is ours");
    fs::copy(host.path("bin/ipguard"), host.path("own/bin/ipguard")).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", host.path("bin").display());
    let mut command = program("/bin/sh");
    command.arg(host.path("loop")).env("PATH", &path).env("SNAP", &own).env("SNAP_DATA", "/data");
    let ran = run(&mut command);
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""));
    let arguments = "--config /data/ipguard.toml chores";
    assert_eq!(ran.stdout, expected(&host, arguments, &format!("SNAP/usr/bin:{path}"), "SNAP/lib"));
}
