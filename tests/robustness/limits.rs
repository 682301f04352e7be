//! The limit of restarts across everything that could make it forgotten: our own restarts, kills, a damaged state file.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use crate::host::{A_WHILE, CONFIG, Host, NODE, SOON, Setup, await_status, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "limits::our-own-restarts-reset-nothing", play: own_restarts, patience: 60 },
    Case { name: "limits::a-damaged-state-file-is-no-way-around", play: damaged, patience: 60 },
];

fn limited(timeline: &Timeline, limit: u32) -> Result<Host> {
    let config = CONFIG.replace("limit = 100\njitter", &format!("limit = {limit}\njitter"));
    Host::with(&Setup { config, ..Setup::default() }, timeline)
}

fn await_kubelite(host: &Host, restarts: usize) -> Result<()> {
    until("kubelite is restarted", SOON, || host.restarts().is_ok_and(|now| now.0 == restarts))?;
    // The kernel's stamps on addresses lag behind the clock by up to half a second.
    sleep(Duration::from_secs(1));
    Ok(())
}

fn own_restarts(timeline: &Timeline) -> Result<()> {
    let host = limited(timeline, 2)?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    await_kubelite(&host, 1)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let daemon = host.daemon()?;
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    await_kubelite(&host, 2)?;
    daemon.kill()?;
    for round in 0..3 {
        let mut daemon = host.daemon()?;
        if round == 0 {
            host.replace_node_address("192.0.2.12", "192.0.2.13")?;
            host.await_restarts((2, 3))?;
        }
        host.nothing_happens(A_WHILE)?;
        await_status(&mut daemon, &["by restart-limit: 2 restarts within 3600 s"])?;
        daemon.kill()?;
    }
    same("restarts of kubelite", &host.restarts()?.0, &2)
}

/// What was lost is taken for used up, said, remembered, and over in time.
fn damaged(timeline: &Timeline) -> Result<()> {
    let host = limited(timeline, 2)?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    await_kubelite(&host, 1)?;
    daemon.kill()?;
    let text = fs::read(host.state_file())?;
    fs::write(host.state_file(), &text[..text.len() / 2])?;
    let daemon = host.daemon()?;
    host.replace_node_address("192.0.2.11", "192.0.2.12")?;
    host.await_restarts((1, 2))?;
    host.await_said("how often it was restarted was lost with a damaged state file")?;
    host.nothing_happens(A_WHILE)?;
    daemon.kill()?;
    // The file is whole again, and the next process knows it too.
    let mut daemon = host.daemon()?;
    host.nothing_happens(A_WHILE)?;
    await_status(&mut daemon, &["by restart-limit: how often it was restarted was lost"])?;
    same("restarts of kubelite", &host.restarts()?.0, &1)?;
    let printed = host.once(&["check"])?;
    expect(printed.stdout.contains("restart-limit"), &printed.stdout)?;
    expect(daemon.stop(SOON)?.success(), "ends well")?;
    let mut state = host.state();
    let lost = state["restarts_lost"].as_i64().ok_or("no restarts_lost")?;
    state["restarts_lost"] = (lost - 3_700_000).into();
    fs::write(host.state_file(), state.to_string())?;
    let daemon = host.daemon()?;
    await_kubelite(&host, 2)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
