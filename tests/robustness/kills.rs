//! The daemon killed at many moments, and told to stop in the middle of its work: nothing is lost, nothing is done twice.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, expect, same, until};
use crate::runner::{Case, skip};
use crate::stage::Result;
use crate::stage::services::{self, CLUSTER_AGENT};
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "kills::at-many-moments-of-a-reissue", play: reissue, patience: 80 },
    Case { name: "kills::at-many-moments-of-a-restart", play: restart, patience: 80 },
    Case { name: "kills::between-the-note-of-a-restart-and-the-restart", play: in_between, patience: 60 },
    Case { name: "kills::sigterm-between-the-note-of-a-restart-and-the-restart", play: told_in_between, patience: 60 },
    Case { name: "kills::between-two-system-calls", play: between_system_calls, patience: 80 },
    Case { name: "kills::in-the-middle-of-the-kubelite-restart", play: in_the_restart, patience: 40 },
    Case { name: "kills::sigterm-in-the-middle-of-a-kubelite-restart", play: sigterm_kubelite, patience: 40 },
    Case { name: "kills::sigterm-in-the-middle-of-a-cluster-agent-restart", play: sigterm_agent, patience: 40 },
    Case { name: "kills::sigterm-while-the-service-manager-hangs", play: sigterm_hanging, patience: 40 },
    Case { name: "kills::sighup-only-looks-again", play: sighup, patience: 30 },
];

/// The cluster-agent was restarted behind the last replacement of the certificate.
fn agent_has_the_certificate(host: &Host) -> bool {
    let Ok(calls) = services::calls(host.tree.root()) else { return false };
    let last = calls.iter().filter(|call| call.restarted() == Some(CLUSTER_AGENT)).map(|call| call.at).max();
    let written = host.watch.sightings().replacements.last().copied();
    // The stand-in's clock is cut off to 10 ms.
    last.is_some_and(|last| written.is_none_or(|written| last + Duration::from_millis(10) > written))
}

/// An address comes, and the daemon is killed a little later each time.
fn reissue(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    for (round, delay) in (310..700).step_by(35).enumerate() {
        let daemon = host.daemon()?;
        let before = host.restarts()?;
        let address = format!("198.51.{round}.7");
        host.add(&address)?;
        sleep(Duration::from_millis(delay));
        daemon.kill()?;
        host.pair_is_usable()?;
        let covered = host.covers(&address);
        let daemon = host.daemon()?;
        host.await_covered(&address)?;
        until(&format!("the cluster-agent has the certificate after a kill at {delay} ms"), SOON, || {
            host.restarts().is_ok_and(|now| now.1 > before.1) && agent_has_the_certificate(&host)
        })?;
        sleep(Duration::from_millis(500));
        let after = host.restarts()?;
        timeline.note("stage", format!("killed at {delay} ms: covered {covered}, restarts {before:?} then {after:?}"));
        same("restarts of kubelite", &after.0, &before.0)?;
        same(&format!("restarts of the cluster-agent, killed at {delay} ms"), &(after.1 - before.1), &1)?;
        daemon.kill()?;
    }
    same("moments without a certificate", &host.watch.sightings().broken, &Vec::new())
}

/// The node address is replaced, and the daemon is killed a little later each time.
fn restart(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut node = NODE.to_owned();
    for (round, delay) in (900..2100).step_by(130).enumerate() {
        let daemon = host.daemon()?;
        let before = host.restarts()?;
        let next = format!("192.0.2.{}", 20 + round);
        host.replace_node_address(&node, &next)?;
        sleep(Duration::from_millis(delay));
        daemon.kill()?;
        host.pair_is_usable()?;
        let in_between = claimed_and_not_handed_over(&host, before)?;
        if in_between {
            timeline.note("stage", "killed between the note of a restart and the restart: three minutes pass");
            three_minutes_pass(&host)?;
        }
        let daemon = host.daemon()?;
        host.await_covered(&next)?;
        until(&format!("kubelite is restarted although ipguard was killed at {delay} ms"), SOON, || {
            host.restarts().is_ok_and(|now| now.0 > before.0) && agent_has_the_certificate(&host)
        })?;
        sleep(Duration::from_millis(1500));
        let after = host.restarts()?;
        timeline.note("stage", format!("killed at {delay} ms: restarts {before:?} then {after:?}"));
        same(&format!("restarts of kubelite, killed at {delay} ms"), &(after.0 - before.0), &1)?;
        same(&format!("restarts of the cluster-agent, killed at {delay} ms"), &(after.1 - before.1), &1)?;
        daemon.kill()?;
        node = next;
    }
    Ok(())
}

/// A restart was written down and nobody was asked for it: after a kill nobody can tell that from one that was handed
/// over, so the next daemon waits for its end before it begins another.
fn claimed_and_not_handed_over(host: &Host, before: (usize, usize)) -> Result<bool> {
    let state = host.state();
    let open = state["restarts"].as_array().and_then(|all| all.last()).is_some_and(|last| last["open"] == true);
    if !open {
        return Ok(false);
    }
    // What was handed over shows soon: the stand-in writes the call down first of all.
    let deadline = Instant::now() + Duration::from_secs(3);
    while host.restarts()?.0 == before.0 && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    Ok(host.restarts()?.0 == before.0)
}

/// The service's state is asked for behind the note and before the command: there the daemon is killed.
fn in_between(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let mut daemon = host.daemon()?;
    host.replace_stand_in(
        "systemctl",
        "case \"$*\" in *cluster-agent*) ;; *daemon-kubelite*) kill -9 $PPID; exit 1 ;; esac\nexec \"$real\" \"$@\"",
    )?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    let deadline = Instant::now() + SOON;
    while daemon.ended()?.is_none() && Instant::now() < deadline {
        sleep(Duration::from_millis(20));
    }
    expect(daemon.ended()?.is_some(), "the daemon is killed")?;
    host.restore_stand_in("systemctl")?;
    expect(claimed_and_not_handed_over(&host, (0, 1))?, "the restart is written down, and nobody was asked for it")?;
    let daemon = host.daemon()?;
    host.await_said("restart-under-way")?;
    host.nothing_happens(A_WHILE)?;
    daemon.kill()?;
    three_minutes_pass(&host)?;
    let daemon = host.daemon()?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// Told to end there instead of killed: it knows that nothing was handed over, and the next daemon need not wait.
fn told_in_between(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in(
        "systemctl",
        "case \"$*\" in *cluster-agent*) ;; *daemon-kubelite*) echo > \"$root/state/called\"; sleep 1000 ;; esac\n\
         exec \"$real\" \"$@\"",
    )?;
    let called = host.tree.path("state/called");
    stop_in_the_midst(&host, || host.replace_node_address(NODE, "192.0.2.11"), || called.exists())?;
    same("restarts that are remembered", &host.state()["restarts"].as_array().map(Vec::len), &Some(0))?;
    host.restore_stand_in("systemctl")?;
    let daemon = host.daemon()?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// For the open restart of the state file.
fn three_minutes_pass(host: &Host) -> Result<()> {
    let mut state = host.state();
    let last = state["restarts"].as_array_mut().and_then(|all| all.last_mut()).ok_or("no restart")?;
    last["at"] = (last["at"].as_i64().ok_or("no time")? - 180_000).into();
    Ok(fs::write(host.state_file(), state.to_string())?)
}

/// Killed at the n-th fsync or rename of a run: exactly between what has to belong together.
fn between_system_calls(timeline: &Timeline) -> Result<()> {
    if !Command::new("strace").arg("-V").output().is_ok_and(|output| output.status.success()) {
        return skip("no strace");
    }
    let mut host = Host::new(timeline)?;
    let real = host.guard.program.clone();
    let mut killed = 0;
    let moments = (1..=12).map(|n| ("fsync", n)).chain((1..=6).map(|n| ("renameat", n)));
    for (round, (call, number)) in moments.enumerate() {
        host.run_through(&format!(
            "exec strace -f -qq -o /dev/null -e trace={call} -e inject={call}:signal=SIGKILL:when={number} \
             \"$guard\" \"$@\""
        ))?;
        let before = host.restarts()?;
        let address = format!("198.51.{round}.7");
        let mut daemon = host.start()?;
        let began = Instant::now();
        // What is killed in its first pass never gets ready.
        while !host.said().contains("first pass") && daemon.ended()?.is_none() && began.elapsed() < SOON {
            sleep(Duration::from_millis(10));
        }
        host.add(&address)?;
        // What makes fewer calls than that gets to its end.
        let at_its_end = || host.covers(&address) && host.restarts().is_ok_and(|now| now.1 > before.1);
        let (mut done, began) = (None, Instant::now());
        while daemon.ended()?.is_none() && began.elapsed() < SOON {
            done = done.or_else(|| at_its_end().then(Instant::now));
            if done.is_some_and(|at: Instant| at.elapsed() > Duration::from_millis(700)) {
                break;
            }
            sleep(Duration::from_millis(10));
        }
        killed += usize::from(daemon.ended()?.is_some());
        drop(daemon);
        host.pair_is_usable()?;
        host.guard.program.clone_from(&real);
        let daemon = host.daemon()?;
        host.await_covered(&address)?;
        until(&format!("the cluster-agent has the certificate after a kill at {call} {number}"), SOON, || {
            host.restarts().is_ok_and(|now| now.1 > before.1) && agent_has_the_certificate(&host)
        })?;
        // The request file is finished too, and nothing half-written is left of the process before.
        let request = || fs::read_to_string(host.tree.data("certs/csr.conf")).unwrap_or_default();
        until(&format!("csr.conf is finished after a kill at {call} {number}"), SOON, || request().contains(&address))?;
        until(&format!("nothing is left over after a kill at {call} {number}"), SOON, || leftovers(&host).is_empty())
            .map_err(|error| format!("{error}: {:?}", leftovers(&host)))?;
        sleep(Duration::from_millis(300));
        let after = host.restarts()?;
        same("restarts of kubelite", &after.0, &before.0)?;
        same(&format!("restarts of the cluster-agent, killed at {call} {number}"), &(after.1 - before.1), &1)?;
        daemon.kill()?;
    }
    expect(killed >= 10, format!("{killed} of the runs were killed; the others did not make that many calls"))?;
    same("moments without a certificate", &host.watch.sightings().broken, &Vec::new())
}

/// Files of the certificate and the state folder that nobody expects there.
fn leftovers(host: &Host) -> Vec<String> {
    let listed = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().collect::<Vec<_>>();
    let known = ["state.json", "lock", "generations"];
    let strange = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let extension = entry.path().extension().map(|e| e.to_string_lossy().into_owned()).unwrap_or_default();
        let expected =
            known.contains(&name.as_str()) || matches!(extension.as_str(), "crt" | "key" | "conf" | "template");
        (!expected).then_some(name)
    };
    let folders = [host.tree.data("certs"), host.state_folder()];
    folders.iter().flat_map(|folder| listed(folder)).filter_map(|entry| strange(&entry)).collect()
}

/// Killed while `snap restart` of kubelite runs: snapd goes on with it, and the next daemon knows that it happened.
fn in_the_restart(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in("snap", "\"$real\" \"$@\"; case $2 in *kubelite) sleep 2 ;; esac")?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    until("kubelite is being restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == 1))?;
    sleep(Duration::from_millis(500));
    daemon.kill()?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE * 2)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    daemon.kill()
}

/// Stops the daemon once `count` has seen a restart, and says how long that took.
fn stop_in_the_midst(host: &Host, change: impl Fn() -> Result<()>, begun: impl Fn() -> bool) -> Result<()> {
    let daemon = host.daemon()?;
    change()?;
    until("the restart is under way", SOON, begun)?;
    sleep(Duration::from_millis(300));
    let began = Instant::now();
    let status = daemon.stop(Duration::from_secs(5))?;
    expect(began.elapsed() < Duration::from_secs(1), format!("ends within 1 s; it took {:?}", began.elapsed()))?;
    expect(status.success(), format!("ends with status 0, not {status}"))
}

/// `snap` hands the work to snapd at once and then waits for it: five seconds, in which SIGTERM comes.
fn sigterm_kubelite(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in("snap", "\"$real\" \"$@\"; case $2 in *kubelite) sleep 5 ;; esac")?;
    let begun = || host.restarts().is_ok_and(|now| now.0 == 1);
    stop_in_the_midst(&host, || host.replace_node_address(NODE, "192.0.2.11"), begun)?;
    host.restore_stand_in("snap")?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE * 2)?;
    same("restarts", &host.restarts()?, &(1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// The same for the service that is restarted for every certificate.
fn sigterm_agent(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in("snap", "\"$real\" \"$@\"; sleep 5")?;
    stop_in_the_midst(&host, || host.add("198.51.100.7"), || host.restarts().is_ok_and(|now| now.1 == 1))?;
    host.restore_stand_in("snap")?;
    let daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    drop(daemon);
    // And when the command was ended before it had asked for anything, the restart is not lost.
    host.replace_stand_in("snap", "echo > \"$root/state/called\"; sleep 5; exec \"$real\" \"$@\"")?;
    let called = host.tree.path("state/called");
    stop_in_the_midst(&host, || host.add("198.51.101.7"), || called.exists())?;
    host.restore_stand_in("snap")?;
    let daemon = host.daemon()?;
    host.await_restarts((0, 2))?;
    host.nothing_happens(A_WHILE)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// No answer to the question for the services' states; SIGTERM is served all the same.
fn sigterm_hanging(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    host.replace_stand_in("systemctl", "echo > \"$root/state/called\"; sleep 1000")?;
    let called = host.tree.path("state/called");
    stop_in_the_midst(&host, || host.replace_node_address(NODE, "192.0.2.11"), || called.exists())?;
    host.restore_stand_in("systemctl")?;
    let daemon = host.daemon()?;
    host.await_covered("192.0.2.11")?;
    host.await_restarts((1, 1))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

/// SIGHUP is "look again": idle, with a change under way, and many at once.
fn sighup(timeline: &Timeline) -> Result<()> {
    let host = Host::with(&Setup { config: CONFIG.to_owned(), ..Setup::default() }, timeline)?;
    let mut daemon = host.daemon()?;
    for _ in 0..200 {
        kill(daemon.pid(), Signal::SIGHUP)?;
    }
    host.nothing_happens(A_WHILE)?;
    daemon.check_alive()?;
    host.add("198.51.100.7")?;
    for _ in 0..15 {
        kill(daemon.pid(), Signal::SIGHUP)?;
        sleep(Duration::from_millis(100));
    }
    host.await_covered("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    same("reissues", &host.reissues(), &1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
