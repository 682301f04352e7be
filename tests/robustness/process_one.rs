//! The daemon as process 1 of a container, where nobody waits for READY=1 and every orphan becomes its child.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::{Host, NODE, SOON, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::guard::Daemon;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "process-one::it-works-and-ends-on-sigterm", play: works, patience: 60 },
    Case { name: "process-one::orphans-are-no-zombies", play: orphans, patience: 60 },
];

/// Runs the daemon as the first process of a new PID namespace, without a service manager.
fn in_a_container(host: &mut Host) -> Result<()> {
    host.run_through("unset NOTIFY_SOCKET\nexec unshare --pid --fork --kill-child \"$guard\" \"$@\"")
}

/// Children of a process, with their states.
fn children(process: Pid) -> Result<Vec<(Pid, String)>> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{process}/children"))?;
    let all = text.split_whitespace().map(|word| Ok(Pid::from_raw(word.parse()?)));
    let all: Vec<Pid> = all.collect::<Result<_>>()?;
    let state = |child: &Pid| {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("State:"));
        line.map(|state| state.trim().to_owned()).unwrap_or_default()
    };
    Ok(all.into_iter().map(|child| (child, state(&child))).collect())
}

/// The daemon itself, behind unshare(1).
fn process_one(daemon: &Daemon) -> Result<Pid> {
    let all = children(daemon.pid())?;
    let (process, _) = all.first().ok_or("unshare has no child")?;
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let number =
        status.lines().find_map(|line| line.strip_prefix("NSpid:")).and_then(|line| line.split('\t').next_back());
    same("its number in its namespace", &number, &Some("1"))?;
    Ok(*process)
}

fn works(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    in_a_container(&mut host)?;
    let mut daemon = host.daemon()?;
    let one = process_one(&daemon)?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    host.await_restarts((1, 1))?;
    kill(one, Signal::SIGHUP)?;
    host.await_said("the configuration is as it was")?;
    host.await_said("is ready (/readyz): ready")?;
    same("what a manager that is not there has heard", &daemon.hears()?, &Vec::new())?;
    // Process 1 has none of the kernel's default actions.
    kill(one, Signal::SIGTERM)?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = daemon.ended()? {
            break status;
        }
        expect(began.elapsed() < SOON, "SIGTERM ends it")?;
        sleep(Duration::from_millis(10));
    };
    expect(status.success(), format!("ends with status 0, not {status}"))?;
    host.await_said("stopped")
}

/// What the commands of the service manager leave running ends some time later: at rest, and while another command runs.
fn orphans(timeline: &Timeline) -> Result<()> {
    let mut host = Host::new(timeline)?;
    in_a_container(&mut host)?;
    host.replace_stand_in("snap", "for n in 1 2 3; do setsid sleep 1.$n & done\n\"$real\" \"$@\"; exit 0")?;
    let daemon = host.daemon()?;
    let one = process_one(&daemon)?;
    for (round, address) in ["198.51.100.7", "198.51.101.7"].into_iter().enumerate() {
        host.add(address)?;
        host.await_restarts((0, round + 1))?;
        until("the orphans are its children", SOON, || children(one).is_ok_and(|all| all.len() == 3))?;
        until("they end and are gone", SOON, || children(one).is_ok_and(|all| all.is_empty()))
            .map_err(|error| format!("{error}: {:?}", children(one)))?;
    }
    for address in ["198.51.100.7", "198.51.101.7"] {
        host.ip(&format!("addr del {address}/24 dev eth0"))?;
    }
    // One that ends while a command runs waits for the end of that.
    host.replace_stand_in("snap", "setsid sleep 0.3 &\n\"$real\" \"$@\"; case $2 in *kubelite) sleep 3 ;; esac")?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_restarts((1, 3))?;
    host.await_said("restart kubelite (node-address-replaced): restarted")?;
    until("nobody is left", SOON, || children(one).is_ok_and(|all| all.is_empty()))
        .map_err(|error| format!("{error}: {:?}", children(one)))?;
    host.await_said("is ready (/readyz): ready")?;
    drop(daemon);
    Ok(())
}
