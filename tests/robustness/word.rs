//! The API server is asked what it advertises, with the kubeconfig of the tree: once, before a restart for the node address,
//! and never by a kubeconfig that would run a program.

use std::fs;
use std::time::Duration;

use crate::host::{A_WHILE, Host, NODE, SOON, expect, same, until};
use crate::runner::Case;
use crate::stage::Result;
use crate::stage::services;
use crate::stage::timeline::Timeline;

pub(crate) const CASES: &[Case] = &[
    Case { name: "word::it-is-asked-once-and-not-for-noise", play: once, patience: 60 },
    Case { name: "word::what-it-has-already-is-no-reason-to-restart", play: has_it, patience: 60 },
    Case { name: "word::no-answer-leaves-it-to-the-record", play: no_answer, patience: 60 },
    Case { name: "word::a-program-is-not-run-for-credentials", play: program, patience: 60 },
];

const CERTIFICATE: &str = "client-certificate: ../certs/server.crt\n    client-key: ../certs/server.key";

/// A kubeconfig whose files are those of the tree.
fn kubeconfig(host: &Host, user: &str) -> Result<()> {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: microk8s\n\
         clusters:\n- name: k\n  cluster:\n    certificate-authority: ../certs/ca.crt\n    server: https://127.0.0.1:16443\n\
         contexts:\n- name: microk8s\n  context:\n    cluster: k\n    user: admin\n\
         users:\n- name: admin\n  user:\n    {user}\n"
    );
    Ok(fs::write(host.tree.data("credentials/client.config"), text)?)
}

/// What the API server answers from now on.
fn lists(host: &Host, addresses: &[&str]) -> Result<()> {
    Ok(fs::write(host.tree.path("state/endpoints"), addresses.join("\n"))?)
}

/// How often it was asked.
fn asked(host: &Host) -> usize {
    fs::metadata(host.tree.path("state/endpoints-asked")).map_or(0, |file| usize::try_from(file.len()).unwrap_or(0))
}

fn once(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    kubeconfig(&host, CERTIFICATE)?;
    lists(&host, &[NODE, "192.0.2.250"])?;
    let daemon = host.daemon()?;
    same("questions", &asked(&host), &1)?;
    for round in 1..=4 {
        host.ip(&format!("addr add 192.0.2.10{round}/32 dev eth0"))?;
        std::thread::sleep(Duration::from_millis(700));
        host.ip(&format!("addr del 192.0.2.10{round}/32 dev eth0"))?;
    }
    // A primary one is a name, and no question.
    host.add("198.51.100.7")?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("questions", &asked(&host), &1)?;
    same("what is kept of it", &host.state()["word"]["unclear"].as_u64(), &Some(0))?;
    // What addresses are, nobody is asked for: scripts wait for it.
    let calls = services::calls(host.tree.root())?.len();
    same("ips", &host.once(&["ips"])?.stdout, &format!("{NODE} 198.51.100.7\n"))?;
    host.once(&["explain"])?;
    same("questions", &(asked(&host), services::calls(host.tree.root())?.len()), &(1, calls))?;
    // A person who looks wants to know it now.
    expect(host.once(&["check"])?.status.success(), "in step")?;
    same("questions", &asked(&host), &2)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn has_it(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    kubeconfig(&host, CERTIFICATE)?;
    lists(&host, &[NODE])?;
    let daemon = host.daemon()?;
    // Somebody else has seen to it, in a way that ipguard's record does not know.
    lists(&host, &["192.0.2.11"])?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_covered("192.0.2.11")?;
    until("it is asked again", SOON, || asked(&host) >= 2)?;
    host.await_restarts((0, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("restarts", &host.restarts()?, &(0, 1))?;
    same("what it advertises", &host.state()["advertised"]["address"].as_str(), &Some("192.0.2.11"))?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn no_answer(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    kubeconfig(&host, CERTIFICATE)?;
    // 404: it lists nothing.
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    expect(asked(&host) >= 2, "it was asked before the restart too")?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}

fn program(timeline: &Timeline) -> Result<()> {
    let host = Host::new(timeline)?;
    let login = host.tree.path("usr/bin/login");
    host.replace_stand_in("snapctl", ": > \"$root/state/login\"")?;
    fs::copy(host.tree.path("usr/bin/snapctl"), &login)?;
    let user = format!(
        "exec:\n      apiVersion: client.authentication.k8s.io/v1beta1\n      command: {}\n      args: []",
        login.display()
    );
    kubeconfig(&host, &user)?;
    lists(&host, &[NODE])?;
    let daemon = host.daemon()?;
    host.replace_node_address(NODE, "192.0.2.11")?;
    host.await_restarts((1, 1))?;
    host.nothing_happens(A_WHILE)?;
    same("questions", &asked(&host), &0)?;
    expect(!host.tree.path("state/login").exists(), "the program did not run")?;
    let failed = host.state()["word"]["failed"].to_string();
    expect(failed.contains("exec is not used: it names a program to run"), &failed)?;
    expect(daemon.stop(SOON)?.success(), "ends well")
}
