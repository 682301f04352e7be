//! The command line as scripts see it: exit statuses, what goes to which stream, and what happens when nobody reads.

use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ipguard::config::{Config, file, print};

type Outcome = Result<(), Box<dyn Error>>;

/// The program in a tree of its own, with nothing of this machine's environment.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("ipguard-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("etc/ipguard"))?;
        Ok(Self(path))
    }

    fn configure(&self, text: &str) -> std::io::Result<()> {
        fs::write(self.config(), text)
    }

    fn config(&self) -> PathBuf {
        self.0.join("etc/ipguard/ipguard.toml")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ipguard"));
        command.env_clear().stdin(Stdio::null()).arg("--root").arg(&self.0).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> std::io::Result<Ran> {
        self.command(arguments).output().map(Ran::from)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn answered(stdout: &str) -> Ran {
    Ran { status: Some(0), stdout: stdout.to_owned(), stderr: String::new() }
}

fn refused(stderr: &str) -> Ran {
    Ran { status: Some(1), stdout: String::new(), stderr: stderr.to_owned() }
}

#[test]
fn a_command_line_that_makes_no_sense_is_status_64_and_leaves_standard_output_empty() -> Outcome {
    let tree = Tree::new("usage")?;
    for arguments in [
        &[][..],
        &["nonsense"],
        &["--nonsense"],
        &["check", "extra"],
        &["check", "--format", "yaml"],
        &["explain", "--format", "microk8s"],
        &["explain", "eth0"],
        &["config"],
        &["config", "edit"],
        &["ips", "--format", "json"],
        &["ips", "--log-level", "loud"],
        &["ips", "--profile", ""],
        &["ips", "--config"],
        &["run", "--observe=maybe"],
    ] {
        let ran = tree.run(arguments)?;
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(64), ""), "{arguments:?}");
        assert!(
            ran.stderr.contains("Usage: ipguard") || ran.stderr.starts_with("error: "),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    Ok(())
}

#[test]
fn help_and_version_are_data() -> Outcome {
    let tree = Tree::new("help")?;
    assert_eq!(tree.run(&["--version"])?, answered(concat!("ipguard ", env!("CARGO_PKG_VERSION"), "\n")));
    for arguments in [&["--help"][..], &["-h"], &["help"], &["check", "--help"], &["help", "config"]] {
        let ran = tree.run(arguments)?;
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(ran.stdout.contains("Usage: ipguard"), "{arguments:?}");
    }
    let help = tree.run(&["--help"])?.stdout;
    for command in ["run", "check", "explain", "ips", "config"] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in the help");
    }
    Ok(())
}

#[test]
fn the_defaults_are_printed_even_where_the_configuration_is_broken() -> Outcome {
    let tree = Tree::new("default")?;
    tree.configure("[broken")?;
    let ran = tree.run(&["config", "default"])?;
    assert_eq!(ran, answered(&print::default_text()));
    assert_eq!(file::parse(&ran.stdout), Ok(Config::default()));
    Ok(())
}

#[test]
fn what_is_shown_is_the_file_with_what_the_command_line_changes() -> Outcome {
    let tree = Tree::new("show")?;
    assert_eq!(tree.run(&["config", "show"])?, answered(&print::show(&Config::default())));
    tree.configure("observe = true\n[log]\nlevel = \"error\"\n[settle]\nquiet = \"2s\"\n")?;
    let shown = tree.run(&["config", "show"])?;
    assert_eq!(shown.stderr, "");
    let mut expected = file::load(&tree.config(), true)?;
    assert_eq!(file::parse(&shown.stdout).as_ref(), Ok(&expected));
    let shown = tree.run(&["config", "show", "--profile", "microk8s", "--log-level", "debug"])?;
    expected.profile = "microk8s".into();
    expected.log_level = ipguard::config::LogLevel::Debug;
    assert_eq!(file::parse(&shown.stdout), Ok(expected));
    Ok(())
}

#[test]
fn a_configuration_is_checked_as_a_whole() -> Outcome {
    let tree = Tree::new("check")?;
    let path = tree.config().display().to_string();
    assert_eq!(tree.run(&["config", "check"])?, answered(&format!("{path}: not there, so the defaults apply\n")));
    tree.configure("observe = true\n")?;
    assert_eq!(tree.run(&["config", "check"])?, answered(&format!("{path}: valid\n")));
    tree.configure("[settle]\nquite = \"5s\"\nmax = 30\n")?;
    let expected = format!(
        "ipguard: {path}:2:1: unknown key \"quite\" in [settle]: did you mean `quiet`?\n\
         ipguard: {path}:3:7: `settle.max` must be a duration such as 5s, 500ms, 24h, 365d or 1h30m: the number 30 has no unit\n"
    );
    assert_eq!(tree.run(&["config", "check"])?, refused(&expected));
    // The same faults stop every other command.
    assert_eq!(tree.run(&["ips"])?, refused(&expected));
    tree.configure("profile = \"k8s\"\n")?;
    let expected = "ipguard: there is no profile \"k8s\": known are \"auto\", \"microk8s\"\n";
    assert_eq!(tree.run(&["config", "check"])?, refused(expected));
    assert_eq!(tree.run(&["config", "check", "--profile", "microk8s"])?, answered(&format!("{path}: valid\n")));
    Ok(())
}

#[test]
fn a_file_that_is_named_must_be_there() -> Outcome {
    let tree = Tree::new("named")?;
    let elsewhere = tree.0.join("elsewhere.toml");
    let path = elsewhere.display().to_string();
    let expected = format!("ipguard: reading {path}: No such file or directory (os error 2)\n");
    assert_eq!(tree.run(&["config", "check", "--config", &path])?, refused(&expected));
    fs::write(&elsewhere, "observe = true\n")?;
    assert_eq!(tree.run(&["--config", &path, "config", "check"])?, answered(&format!("{path}: valid\n")));
    // The default path may be absent, but a link that leads nowhere was a configuration once.
    symlink("gone.toml", tree.config())?;
    assert_eq!(tree.run(&["config", "check"])?.status, Some(1));
    Ok(())
}

#[test]
fn a_root_that_is_no_folder_is_an_error() -> Outcome {
    let tree = Tree::new("root")?;
    tree.configure("")?;
    let program = env!("CARGO_BIN_EXE_ipguard");
    let run = |root: &Path| Command::new(program).env_clear().args(["config", "check", "--root"]).arg(root).output();
    let missing = tree.0.join("missing");
    let expected = format!("ipguard: --root {}: No such file or directory (os error 2)\n", missing.display());
    assert_eq!(Ran::from(run(&missing)?), refused(&expected));
    assert_eq!(
        Ran::from(run(&tree.config())?),
        refused(&format!("ipguard: --root {}: not a directory\n", tree.config().display()))
    );
    // A relative root is below where the command was typed.
    let output = Command::new(program).current_dir(&tree.0).args(["--root", ".", "config", "check"]).output()?;
    assert_eq!(Ran::from(output), answered(&format!("{}: valid\n", tree.config().display())));
    Ok(())
}

#[test]
fn a_reader_that_went_away_is_no_failure_and_a_full_disk_is_one() -> Outcome {
    let tree = Tree::new("streams")?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = tree.command(&["config", "default"]).stdout(writer).stderr(Stdio::piped()).output()?;
    assert_eq!(Ran::from(output), answered(""));

    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = tree.command(&["--help"]).stdout(writer).stderr(Stdio::piped()).output()?;
    assert_eq!(Ran::from(output), answered(""));

    let output =
        tree.command(&["config", "default"]).stdout(File::create("/dev/full")?).stderr(Stdio::piped()).output()?;
    let expected = "ipguard: writing to standard output: No space left on device (os error 28)\n";
    assert_eq!(Ran::from(output), refused(expected));

    // Standard error gone as well: the status is all that is left to say.
    tree.configure("[broken")?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let status = tree.command(&["config", "check"]).stdout(Stdio::null()).stderr(writer).status()?;
    assert_eq!(status.code(), Some(1));
    Ok(())
}

#[test]
fn the_microk8s_format_answers_with_a_digit_whatever_happens() -> Outcome {
    let tree = Tree::new("digit")?;
    tree.configure("[settle]\nquite = \"5s\"\n")?;
    for arguments in [&["check", "--apply", "--format", "microk8s"][..], &["check", "--format=microk8s"]] {
        let ran = tree.run(arguments)?;
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "0\n"), "{arguments:?}");
        assert!(ran.stderr.contains("unknown key \"quite\""), "{arguments:?}: {}", ran.stderr);
    }
    // The other formats say that it failed.
    assert_eq!(tree.run(&["check", "--format", "json"])?.status, Some(1));
    Ok(())
}

#[test]
fn messages_follow_the_flag_then_the_configuration() -> Outcome {
    let tree = Tree::new("level")?;
    assert_eq!(tree.run(&["config", "check"])?.stderr, "");
    tree.configure("[log]\nlevel = \"debug\"\n")?;
    let ran = tree.run(&["config", "check"])?;
    assert_eq!(ran.stdout, format!("{}: valid\n", tree.config().display()));
    assert!(ran.stderr.contains("DEBUG set up root="), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
    assert_eq!(tree.run(&["config", "check", "--log-level", "info"])?.stderr, "");
    Ok(())
}

#[test]
fn the_journal_gets_no_time_stamps_of_ours() -> Outcome {
    use std::os::unix::fs::MetadataExt as _;
    let tree = Tree::new("journal")?;
    let log = tree.0.join("log");
    let written = |stream: Option<String>| -> Result<String, Box<dyn Error>> {
        let mut command = tree.command(&["config", "check", "--log-level", "debug"]);
        command.envs(stream.map(|stream| ("JOURNAL_STREAM", stream)));
        command.stdout(Stdio::null()).stderr(File::create(&log)?).status()?;
        Ok(fs::read_to_string(&log)?)
    };
    assert!(written(None)?.starts_with("20"));
    let metadata = log.metadata()?;
    let ours = format!("{}:{}", metadata.dev(), metadata.ino());
    assert!(written(Some(ours))?.starts_with("DEBUG set up root="));
    // Inherited from somebody whose standard error went to the journal; ours does not.
    assert!(written(Some("1:1".to_owned()))?.starts_with("20"));
    Ok(())
}

#[test]
fn a_profile_is_found_below_the_root_only() -> Outcome {
    let tree = Tree::new("profile")?;
    // A folder that cannot be resolved is reported, so it was looked for; and it was looked for here.
    fs::create_dir_all(tree.0.join("var/snap"))?;
    symlink("microk8s", tree.0.join("var/snap/microk8s"))?;
    let place = tree.0.join("var/snap/microk8s/current");
    let ran = tree.run(&["config", "check"])?;
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr.starts_with(&format!("ipguard: looking for microk8s at {}: ", place.display())),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stderr.lines().count(), 1);
    Ok(())
}

#[test]
fn a_status_is_shown_whatever_the_configuration_is_and_is_stale_without_its_daemon() -> Outcome {
    let tree = Tree::new("status")?;
    let place = tree.0.join("run/ipguard/status.json");
    let nothing = format!(
        "ipguard: nothing is published at {}: no daemon has run since the host was started, or it only observes, or it is of \
         a version that does not publish\n",
        place.display()
    );
    assert_eq!(tree.run(&["status"])?, refused(&nothing));
    tree.configure("this = is no configuration")?;
    fs::create_dir_all(tree.0.join("run/ipguard"))?;
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/status/published.json"), &place)?;
    for arguments in [&["status"][..], &["status", "--format", "json"]] {
        let ran = tree.run(arguments)?;
        assert_eq!(ran.status, Some(1));
        assert!(ran.stdout.contains("192.0.2.10"), "{}", ran.stdout);
        let stale = "ipguard: stale since 2026-12-01T09:00:00Z: the daemon that published it, process 4242, does not run any more\n";
        assert_eq!(ran.stderr, stale);
    }
    fs::write(&place, "{")?;
    let torn = tree.run(&["status"])?;
    assert_eq!((torn.status, torn.stdout.as_str()), (Some(1), ""));
    assert!(torn.stderr.starts_with(&format!("ipguard: {}: not a status: ", place.display())), "{}", torn.stderr);
    Ok(())
}
