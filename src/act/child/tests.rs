//! What a child of ours may do to us, and what it may not.

use std::path::Path;

use super::*;

const LONG: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Command {
    Command { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), script.to_owned()], keeps: &[] }
}

fn spawn(script: &str, within: Duration) -> Child {
    Child::spawn(shell(script), Instant::now() + within).expect("sh can be started")
}

/// The smallest poll loop that owns a child.
fn finish(child: &mut Child) -> Result<Output, ChildError> {
    loop {
        if let Some(result) = child.advance() {
            return result;
        }
        let left = child.deadline().saturating_duration_since(Instant::now()).as_millis() + 1;
        let mut fds = child.poll_fds();
        poll(&mut fds, u16::try_from(left).unwrap_or(u16::MAX)).expect("poll works");
    }
}

fn run(script: &str) -> Output {
    finish(&mut spawn(script, LONG)).expect("the command ends")
}

/// Whether the process is there and not a zombie.
fn alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim().starts_with(['Z', 'X']))
}

fn gone_soon(pid: &str) -> bool {
    (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !alive(pid)
    })
}

#[test]
fn status_and_output_come_back() {
    let output = run("echo out; echo err >&2; exit 3");
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(output.status.code(), Some(3));
    let error = output.success(&shell("x")).expect_err("three is not zero");
    assert_eq!(error.to_string(), "/bin/sh -c x: exit status: 3: err");
}

#[test]
fn the_environment_is_clean_and_stdin_is_empty() {
    let output = run("env | sort; cat; pwd");
    // PWD and such are the shell's own doing.
    let ours: Vec<_> =
        output.stdout.lines().filter(|line| !matches!(line.get(..4), Some("PWD=" | "SHLV" | "_=/u"))).collect();
    assert_eq!(ours, ["LANG=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "/"]);
    // Any variable of ours is gone unless it is named.
    let plain =
        |name: &str, value: &str| name.bytes().chain(value.bytes()).all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let mut ours = std::env::vars().filter(|(name, value)| plain(name, value) && !value.is_empty() && name != "SHLVL");
    let (name, value) = ours.next().expect("the tests run in some environment");
    let keeps: &[&str] = Box::leak(Box::new([&*name.clone().leak(), "NO_SUCH_VARIABLE"]));
    for (keeps, expected) in [(keeps, format!("{value}\n")), (&[][..], "\n".to_owned())] {
        let command = Command { keeps, ..shell(&format!("echo \"${name}\"")) };
        let mut child = Child::spawn(command, Instant::now() + LONG).expect("sh can be started");
        assert_eq!(finish(&mut child).expect("it ends").stdout, expected, "{name}");
    }
}

#[test]
fn no_descriptor_and_no_blocked_signal_is_inherited() {
    let other = spawn("sleep 30", LONG);
    // Blocked as a daemon with a signalfd blocks it.
    let mut mask = nix::sys::signal::SigSet::empty();
    mask.add(Signal::SIGTERM);
    mask.thread_block().expect("a mask can be set");
    // Not through a shell: shells block and unblock signals themselves.
    let arguments = ["SigBlk", "/proc/self/status"].map(str::to_owned).to_vec();
    let command = Command { program: "/bin/grep".into(), arguments, keeps: &[] };
    let blocked = Child::spawn(command, Instant::now() + LONG);
    mask.thread_unblock().expect("a mask can be set");
    let blocked = finish(&mut blocked.expect("grep can be started")).expect("it ends");
    assert_eq!(blocked.stdout, "SigBlk:\t0000000000000000\n");
    let output = run("ls -l /proc/$$/fd");
    for fd in other.poll_fds() {
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd.as_fd()));
        let ours = std::fs::read_link(link).expect("it is open").display().to_string();
        assert!(!output.stdout.contains(&ours), "{ours} of another child is in {}", output.stdout);
    }
}

#[test]
fn a_program_that_cannot_run_is_named() {
    let command = Command { program: "/nonexistent/snap".into(), arguments: vec!["restart".into()], keeps: &[] };
    let error = Child::spawn(command, Instant::now() + LONG).expect_err("there is none");
    assert_eq!(
        crate::chain::chain(&error),
        "/nonexistent/snap restart: cannot be started: No such file or directory (os error 2)"
    );
    let command = Command { program: "sh".into(), arguments: Vec::new(), keeps: &[] };
    let error = Child::spawn(command, Instant::now() + LONG).expect_err("never searched for");
    assert!(matches!(error, ChildError::NotAbsolute { .. }), "{error}");
}

#[test]
fn a_child_deaf_to_sigterm_is_killed_with_all_it_started() {
    let within = Duration::from_secs(1);
    let mut child = spawn("trap '' TERM; sleep 300 & echo $!; while :; do sleep 300; done", within);
    let pid = child.process.id().to_string();
    while !child.stdout.text().ends_with('\n') && Instant::now() < child.deadline {
        poll(&mut child.poll_fds(), 100u16).expect("poll works");
        assert!(child.advance().is_none());
    }
    // The first turn behind its deadline is its last, however late that turn comes; none before is.
    assert!(child.life == Life::Running || Instant::now() >= child.deadline);
    std::thread::sleep(child.deadline.saturating_duration_since(Instant::now()));
    assert!(child.advance().is_none());
    assert!(matches!(child.life, Life::Killed(_)), "{:?}", child.life);
    let Err(ChildError::TimedOut { after, said, .. }) = finish(&mut child) else { panic!("it ended by itself") };
    assert!(after <= within);
    assert!(!alive(&pid));
    assert!(gone_soon(&said), "the grandchild {said} lives on");
}

#[test]
fn a_grandchild_that_holds_the_pipe_delays_nothing() {
    let mut child = spawn("sleep 300 & echo $!; exit 0", LONG);
    let output = finish(&mut child).expect("the shell ends");
    // It holds the pipe still, and was not waited for.
    let grandchild = output.stdout.trim();
    assert!(alive(grandchild), "the output is there, and it was not killed either: {output:?}");
    nix::sys::signal::kill(Pid::from_raw(grandchild.parse().expect("a pid")), Signal::SIGKILL).expect("ours to kill");
}

#[test]
fn a_grandchild_that_writes_for_ever_delays_nothing() {
    let mut child = spawn("yes & echo $! >&2; exit 0", LONG);
    // It writes as long as somebody reads: an output without end is no reason to wait for its end.
    let output = finish(&mut child).expect("the shell ends, and not by the deadline");
    drop(child);
    assert!(gone_soon(output.stderr.trim()), "writing into a pipe that nobody reads ends it");
}

#[test]
fn a_flood_is_read_to_its_end_and_not_kept() {
    let mut child = spawn("head -c 10485760 /dev/zero | tr '\\0' x; echo the end; exit 1", LONG);
    let mut largest = 0;
    let output = loop {
        if let Some(result) = child.advance() {
            break result.expect("it ends");
        }
        largest = largest.max(child.stdout.tail.capacity());
        let mut fds = child.poll_fds();
        poll(&mut fds, 1000u16).expect("poll works");
    };
    assert!(largest <= 4 * KEPT_OUTPUT, "{largest} bytes kept");
    assert_eq!(output.stdout.len(), KEPT_OUTPUT);
    assert!(output.stdout.ends_with("the end\n"));
    let error = output.success(&shell("x")).expect_err("it failed").to_string();
    assert!(error.len() < SHOWN_OUTPUT + 100 && error.ends_with("the end"));
}

#[test]
fn hostile_output_stays_on_one_line() {
    let output = run("printf 'a\\n\\033[2Jb\\377\\0c\\n' >&2; exit 1");
    let error = output.success(&shell("x")).expect_err("it failed").to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    // The cut never falls into the middle of a character.
    assert!(said("", &"ü".repeat(SHOWN_OUTPUT)).len() <= SHOWN_OUTPUT);
    assert!(said("", &format!("{}x", "ü".repeat(SHOWN_OUTPUT))).ends_with("üx"));
}

#[test]
fn advance_returns_at_once_while_the_child_sleeps() {
    // It ends when the turns are over, and not before: a turn that waited for it would wait until its deadline.
    let gate = std::env::temp_dir().join(format!("ipguard-child-gate-{}", std::process::id()));
    let mut child = spawn(&format!("until [ -e {} ]; do sleep 0.05; done", gate.display()), LONG);
    assert!((0..100).all(|_| child.advance().is_none()));
    std::fs::write(&gate, "").expect("the temporary folder is writable");
    let output = finish(&mut child);
    std::fs::remove_file(&gate).expect("it is ours");
    assert!(output.expect("it ends").status.success());
}

#[test]
fn dropped_before_its_end_it_is_killed_and_reaped() {
    let mut child = spawn("trap '' TERM; sleep 30 & echo $!; wait", LONG);
    let grandchild = loop {
        poll(&mut child.poll_fds(), 1000u16).expect("poll works");
        assert!(child.advance().is_none());
        if child.stdout.text().ends_with('\n') {
            break child.stdout.text();
        }
    };
    let pid = child.process.id().to_string();
    drop(child);
    assert!(!Path::new("/proc").join(&pid).exists(), "{pid} is a zombie");
    assert!(gone_soon(grandchild.trim()), "the grandchild lives on");
}

#[test]
fn a_closed_pipe_is_not_polled_again() {
    let began = Instant::now();
    let mut child = spawn("exec >&- 2>&-; sleep 1", LONG);
    let mut turns = 0;
    while child.advance().is_none() {
        poll(&mut child.poll_fds(), 1000u16).expect("poll works");
        turns += 1;
    }
    assert!(began.elapsed() >= Duration::from_millis(900));
    assert!(turns < 10, "{turns} turns in a second: the loop spins");
}
