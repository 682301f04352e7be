//! What is asked of the service manager, and what its answers mean.
//!
//! In: services of the profile and answers as text. Out: commands and [`ServiceState`]s. The rule of this file: pure;
//! the commands are run elsewhere. snapd starts a stopped service that a restart
//! names, so `restart.rs` asks for the state right before it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::act::child::{ChildError, Command};
use crate::facts::cluster::{START_LIMIT_HIT, Service, ServiceState, Standing};

/// Who manages the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    /// systemd, and snapd for what belongs to a snap: we run on the host.
    Host,
    /// snapctl, which acts on the services of its own snap only: we run inside it.
    InsideSnap,
}

/// snapctl proves with these whose services it may touch (SNAP_CONTEXT in a hook, SNAP_COOKIE elsewhere).
const SNAPCTL_KEEPS: &[&str] = &["SNAP_COOKIE", "SNAP_CONTEXT"];

/// Where `snap` looks for a store account instead of root's home. It gives up where it may not enter that folder, as in the
/// sandbox of `ipguard.service`, which sets this to a file that nobody has: root needs no account to restart a service.
const SNAP_KEEPS: &[&str] = &["SNAPD_AUTH_DATA_FILENAME"];

/// The exit status of `snap` for a conflict between changes.
const RETRY_STATUS: i32 = 10;

impl Manager {
    /// The command that asks for the states of services, all at once; `None` when it knows none of them.
    pub fn ask(self, root: &Path, services: &[Service]) -> Option<Command> {
        let names: Vec<String> = services.iter().filter_map(|service| self.name(service)).map(str::to_owned).collect();
        if names.is_empty() {
            return None;
        }
        Some(match self {
            Self::Host => {
                let properties = "--property=Id,ActiveState,SubState,Result,MainPID,ExecMainStartTimestampMonotonic";
                command(root, "systemctl", ["show", properties].map(str::to_owned).into_iter().chain(names), &[])
            }
            Self::InsideSnap => {
                command(root, "snapctl", std::iter::once("services".to_owned()).chain(names), SNAPCTL_KEEPS)
            }
        })
    }

    /// What the answer says about each of the services; all of them are in the result.
    pub fn read_answer(self, services: &[Service], answer: &str) -> BTreeMap<String, ServiceState> {
        let found = match self {
            Self::Host => systemctl_blocks(services, answer),
            Self::InsideSnap => snapctl_table(services, answer),
        };
        let without = |service: &Service| match self.name(service) {
            Some(name) => unknown(format!("no answer about {name}")),
            None => unknown(format!("{} is no service of this snap", service.unit)),
        };
        services.iter().zip(found).map(|(s, state)| (s.name.clone(), state.unwrap_or_else(|| without(s)))).collect()
    }

    /// The command that restarts a running service; `None` when the manager cannot reach it. `even_failed` is for one that
    /// failed behind a restart of ours: systemd's `try-restart` leaves it alone.
    pub fn restart(self, root: &Path, service: &Service, even_failed: bool) -> Option<Command> {
        let name = self.name(service)?.to_owned();
        let verb = if even_failed { "restart" } else { "try-restart" };
        Some(match (self, &service.snap) {
            // snapd waits for a refresh of the snap to end, where systemctl would restart the service in the midst.
            (Self::Host, Some(app)) => command(root, "snap", ["restart".to_owned(), app.clone()], SNAP_KEEPS),
            (Self::Host, None) => command(root, "systemctl", [verb.to_owned(), name], &[]),
            (Self::InsideSnap, _) => command(root, "snapctl", ["restart".to_owned(), name], SNAPCTL_KEEPS),
        })
    }

    /// The command that stops a service and keeps it from being started at the next boot; `None` when the manager cannot
    /// reach it. It does nothing to one that is off.
    pub fn turn_off(self, root: &Path, service: &Service) -> Option<Command> {
        self.switch(root, service, ("stop", "--disable"), ("disable", "--now"))
    }

    /// The command that starts a service, now and at every boot; `None` when the manager cannot reach it. It does nothing
    /// to one that is on.
    pub fn turn_on(self, root: &Path, service: &Service) -> Option<Command> {
        self.switch(root, service, ("start", "--enable"), ("enable", "--now"))
    }

    fn switch(self, root: &Path, service: &Service, snapd: (&str, &str), systemd: (&str, &str)) -> Option<Command> {
        let words = |(verb, option): (&str, &str), name: &str| [verb, option, name].map(str::to_owned);
        match (self, &service.snap) {
            // snapd keeps a list of its own of what is disabled, and restores it behind a refresh.
            (Self::Host, Some(app)) => Some(command(root, "snap", words(snapd, app), SNAP_KEEPS)),
            (Self::Host, None) => Some(command(root, "systemctl", words(systemd, &service.unit), &[])),
            (Self::InsideSnap, app) => Some(command(root, "snapctl", words(snapd, app.as_deref()?), SNAPCTL_KEEPS)),
        }
    }

    /// What the manager calls the service when asked for its state.
    fn name(self, service: &Service) -> Option<&str> {
        match self {
            Self::Host => Some(&service.unit),
            Self::InsideSnap => service.snap.as_deref(),
        }
    }
}

/// Whether a restart failed only because another change of the same snap is under way: to be tried again.
pub fn is_change_in_progress(error: &ChildError) -> bool {
    let ChildError::Failed { command, status, said } = error else { return false };
    // snapd words it `snap "microk8s" has "service-control" change in progress`, `has changes in progress`, and for a
    // change of the whole system `..., no other changes allowed until this is done`. The `snap` command also ends with
    // status 10 for what may be tried again.
    ["change in progress", "changes in progress", "no other changes allowed"].iter().any(|words| said.contains(words))
        || (command.program.ends_with("usr/bin/snap") && status.code() == Some(RETRY_STATUS))
}

/// What systemd's wording of a failed restart means, where its own words name no cause.
pub fn cause_of_failure(error: &ChildError) -> Option<&'static str> {
    let ChildError::Failed { said, .. } = error else { return None };
    // systemctl's words for the result `start-limit-hit`, the log's words for it, and its name.
    ["attempted too often", "start request repeated too quickly", START_LIMIT_HIT]
        .into_iter()
        .any(|words| said.to_ascii_lowercase().contains(words))
        .then_some("start-limit-hit: systemd starts the unit no more until its limit has passed or it is reset")
}

/// The states of services that could not be asked for.
pub fn unanswered(services: &[Service], why: &str) -> BTreeMap<String, ServiceState> {
    services.iter().map(|service| (service.name.clone(), unknown(why.to_owned()))).collect()
}

const fn unknown(detail: String) -> ServiceState {
    ServiceState { active: None, started: None, main_process: None, standing: Standing::Stopped, detail }
}

/// Below a prefix every command is the prefix's own: a fake root carries its stand-ins.
fn command(
    root: &Path,
    program: &str,
    arguments: impl IntoIterator<Item = String>,
    keeps: &'static [&'static str],
) -> Command {
    let program = root.join("usr/bin").join(program);
    Command { program, arguments: arguments.into_iter().collect(), keeps }
}

/// `systemctl show`: a block of `Property=value` lines for each unit, blank lines between them.
fn systemctl_blocks(services: &[Service], answer: &str) -> Vec<Option<ServiceState>> {
    let blocks: Vec<BTreeMap<&str, &str>> = answer
        .split("\n\n")
        .map(|block| block.lines().filter_map(|line| line.split_once('=')).collect::<BTreeMap<_, _>>())
        .filter(|block| !block.is_empty())
        .collect();
    let of_unit = |unit: &str| blocks.iter().find(|block| block.get("Id") == Some(&unit));
    let position = |index: usize| {
        // The Id of an alias is the name of the unit behind it. The blocks are in the order of the question, so the
        // place still tells, unless one is missing or it is another's block.
        let block = blocks.get(index).filter(|_| blocks.len() == services.len())?;
        let other = services.iter().any(|service| block.get("Id") == Some(&service.unit.as_str()));
        (!other).then_some(block)
    };
    let state = |block: &BTreeMap<&str, &str>| {
        let active = *block.get("ActiveState")?;
        let detail = block.get("SubState").map_or_else(|| active.to_owned(), |sub| format!("{active} ({sub})"));
        // Absent for a unit without a main process, 0 for one that never ran.
        let started = block.get("ExecMainStartTimestampMonotonic").and_then(|text| text.parse().ok());
        let started = started.filter(|&micros: &u64| micros > 0).map(Duration::from_micros);
        let main_process = block.get("MainPID").and_then(|text| text.parse().ok()).filter(|&process: &u32| process > 0);
        let standing = match active {
            "activating" | "deactivating" | "reloading" | "refreshing" | "maintenance" => Standing::Changing,
            "failed" => Standing::Failed(block.get("Result").copied().unwrap_or_default().to_owned()),
            _ => Standing::Stopped,
        };
        let detail = match &standing {
            Standing::Failed(result) if !result.is_empty() => format!("{detail}, {result}"),
            _ => detail,
        };
        Some(ServiceState { active: Some(active == "active"), started, main_process, standing, detail })
    };
    let each = services.iter().enumerate();
    each.map(|(index, service)| of_unit(&service.unit).or_else(|| position(index)).and_then(state)).collect()
}

/// `snapctl services`: a table with the columns Service, Startup, Current, Notes.
fn snapctl_table(services: &[Service], answer: &str) -> Vec<Option<ServiceState>> {
    let mut lines = answer.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // A field, never a substring of the line: "inactive" contains "active", and a note may contain anything.
    let current = lines.next().and_then(|header| header.iter().position(|&column| column == "Current"));
    let rows: BTreeMap<&str, &str> = match current {
        Some(column) => lines.filter_map(|row| Some((*row.first()?, *row.get(column)?))).collect(),
        None => BTreeMap::new(),
    };
    let state = |service: &Service| {
        let current = *rows.get(service.snap.as_deref()?)?;
        let active = Some(current == "active");
        Some(ServiceState {
            active,
            started: None,
            main_process: None,
            standing: Standing::Stopped,
            detail: current.to_owned(),
        })
    };
    services.iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::facts::cluster::Role;

    fn kubelite() -> Service {
        Service {
            name: "kubelite".to_owned(),
            role: Role::ApiServer,
            unit: "snap.microk8s.daemon-kubelite.service".to_owned(),
            snap: Some("microk8s.daemon-kubelite".to_owned()),
            ready: Some("/readyz".to_owned()),
        }
    }

    fn plain(name: &str) -> Service {
        Service {
            name: name.to_owned(),
            role: Role::ApiServer,
            unit: format!("{name}.service"),
            snap: None,
            ready: None,
        }
    }

    fn text(command: Option<Command>) -> String {
        command.map(|command| command.to_string()).unwrap_or_default()
    }

    #[test]
    fn commands_are_absolute_and_below_the_prefix() {
        let (host, inside) = (Manager::Host, Manager::InsideSnap);
        let both = [kubelite(), plain("k3s")];
        assert_eq!(
            text(host.ask(Path::new("/"), &both)),
            "/usr/bin/systemctl show --property=Id,ActiveState,SubState,Result,MainPID,ExecMainStartTimestampMonotonic \
             snap.microk8s.daemon-kubelite.service k3s.service"
        );
        assert_eq!(
            text(host.restart(Path::new("/"), &both[0], false)),
            "/usr/bin/snap restart microk8s.daemon-kubelite"
        );
        assert_eq!(
            text(host.restart(Path::new("/r"), &both[1], false)),
            "/r/usr/bin/systemctl try-restart k3s.service"
        );
        assert_eq!(text(inside.ask(Path::new("/r"), &both)), "/r/usr/bin/snapctl services microk8s.daemon-kubelite");
        assert_eq!(
            text(inside.restart(Path::new("/"), &both[0], false)),
            "/usr/bin/snapctl restart microk8s.daemon-kubelite"
        );
        assert_eq!(inside.restart(Path::new("/"), &both[1], false), None);
        assert_eq!(text(host.restart(Path::new("/r"), &both[1], true)), "/r/usr/bin/systemctl restart k3s.service");
        assert_eq!(inside.ask(Path::new("/"), &both[1..]), None);
        assert_eq!(host.ask(Path::new("/"), &[]), None);
        let (root, kubelite, k3s) = (Path::new("/r"), &both[0], &both[1]);
        assert_eq!(text(host.turn_off(root, kubelite)), "/r/usr/bin/snap stop --disable microk8s.daemon-kubelite");
        assert_eq!(text(host.turn_on(root, kubelite)), "/r/usr/bin/snap start --enable microk8s.daemon-kubelite");
        assert_eq!(text(host.turn_off(root, k3s)), "/r/usr/bin/systemctl disable --now k3s.service");
        assert_eq!(text(host.turn_on(root, k3s)), "/r/usr/bin/systemctl enable --now k3s.service");
        assert_eq!(text(inside.turn_off(root, kubelite)), "/r/usr/bin/snapctl stop --disable microk8s.daemon-kubelite");
        assert_eq!(inside.turn_on(root, k3s), None);
    }

    #[test]
    fn only_the_programs_of_snapd_keep_variables() {
        let keeps = |command: Option<Command>| command.map(|command| command.keeps);
        assert_eq!(keeps(Manager::InsideSnap.restart(Path::new("/"), &kubelite(), false)), Some(SNAPCTL_KEEPS));
        assert_eq!(keeps(Manager::InsideSnap.ask(Path::new("/"), &[kubelite()])), Some(SNAPCTL_KEEPS));
        assert_eq!(keeps(Manager::Host.restart(Path::new("/"), &kubelite(), false)), Some(SNAP_KEEPS));
        assert_eq!(keeps(Manager::Host.turn_off(Path::new("/"), &kubelite())), Some(SNAP_KEEPS));
        assert_eq!(keeps(Manager::Host.restart(Path::new("/"), &plain("k3s"), false)), Some(&[][..]));
    }

    #[test]
    fn systemctl_blocks_are_matched_by_unit_in_any_order() {
        let answer = "Id=k3s.service\nActiveState=inactive\nSubState=dead\nExecMainStartTimestampMonotonic=0\n\n\
                      ExecMainStartTimestampMonotonic=2500000\nId=snap.microk8s.daemon-kubelite.service\n\
                      ActiveState=active\nMainPID=4711\nSubState=running\n";
        let states = Manager::Host.read_answer(&[kubelite(), plain("k3s")], answer);
        let running = ServiceState {
            active: Some(true),
            started: Some(Duration::from_millis(2500)),
            main_process: Some(4711),
            standing: Standing::Stopped,
            detail: "active (running)".to_owned(),
        };
        let dead = ServiceState {
            active: Some(false),
            started: None,
            main_process: None,
            standing: Standing::Stopped,
            detail: "inactive (dead)".to_owned(),
        };
        assert_eq!(states["kubelite"], running);
        assert_eq!(states["k3s"], dead);
    }

    #[test]
    fn only_exactly_active_is_active() {
        for (state, active) in [
            ("active", true),
            ("inactive", false),
            ("activating", false),
            ("deactivating", false),
            ("reloading", false),
            ("failed", false),
            ("Active", false),
            ("", false),
        ] {
            let states = Manager::Host.read_answer(&[plain("a")], &format!("Id=a.service\nActiveState={state}\n"));
            assert_eq!(states["a"].active, Some(active), "{state:?}");
        }
    }

    #[test]
    fn a_unit_that_failed_says_how() {
        let standing = |state: &str, result: &str| {
            let answer = format!("Id=a.service\nActiveState={state}\nSubState=x\n{result}");
            let mut states = Manager::Host.read_answer(&[plain("a")], &answer);
            let state = states.remove("a").expect("it was asked for");
            (state.standing, state.detail)
        };
        let limit = Standing::Failed("start-limit-hit".to_owned());
        assert_eq!(standing("failed", "Result=start-limit-hit\n"), (limit, "failed (x), start-limit-hit".to_owned()));
        assert_eq!(standing("failed", ""), (Standing::Failed(String::new()), "failed (x)".to_owned()));
        // The result of the run before stays while the next one begins.
        assert_eq!(standing("activating", "Result=exit-code\n"), (Standing::Changing, "activating (x)".to_owned()));
        assert_eq!(standing("inactive", "Result=success\n"), (Standing::Stopped, "inactive (x)".to_owned()));
    }

    #[test]
    fn an_alias_is_known_by_its_place_and_never_takes_anothers_block() {
        let both = [plain("alias"), plain("other")];
        let block = |unit, state| format!("Id={unit}.service\nActiveState={state}\n\n");
        let states = Manager::Host.read_answer(&both, &(block("real", "active") + &block("other", "inactive")));
        assert_eq!((states["alias"].active, states["other"].active), (Some(true), Some(false)));
        let states = Manager::Host.read_answer(&both, &(block("other", "active") + &block("real", "inactive")));
        assert_eq!((states["alias"].active, states["other"].active), (None, Some(true)));
        let states = Manager::Host.read_answer(&both, &block("real", "active"));
        assert_eq!((states["alias"].active, states["other"].active), (None, None));
    }

    #[test]
    fn an_answer_without_meaning_is_no_state() {
        for answer in ["", "\n\n\n", "Id=a.service\n", "garbage", "ActiveState\n", "\0=\0\n\n=\n"] {
            let states = Manager::Host.read_answer(&[plain("a")], answer);
            assert_eq!((states["a"].active, states["a"].started), (None, None), "{answer:?}");
            assert_eq!(states["a"].detail, "no answer about a.service");
        }
        let states = Manager::Host.read_answer(
            &[plain("a")],
            "Id=a.service\nActiveState=active\nExecMainStartTimestampMonotonic=99999999999999999999999\n",
        );
        assert_eq!((states["a"].active, states["a"].started), (Some(true), None));
    }

    #[test]
    fn the_table_of_snapctl_is_read_by_field() {
        let ask = |current: &str| {
            let table = format!(
                "Service                       Startup  Current   Notes\n\
                 microk8s.daemon-cluster-agent enabled  active    -\n\
                 microk8s.daemon-kubelite      enabled  {current}  active,timer-activated\n"
            );
            Manager::InsideSnap.read_answer(&[kubelite(), plain("k3s")], &table)
        };
        assert_eq!(ask("active")["kubelite"].active, Some(true));
        assert_eq!(ask("inactive")["kubelite"].active, Some(false));
        assert_eq!(ask("inactive")["kubelite"].detail, "inactive");
        assert_eq!(ask("active")["k3s"].active, None);
        assert_eq!(ask("active")["k3s"].detail, "k3s.service is no service of this snap");
        for answer in ["", "microk8s.daemon-kubelite enabled active -", "Service Current\nmicrok8s.daemon-kubelite"] {
            assert_eq!(Manager::InsideSnap.read_answer(&[kubelite()], answer)["kubelite"].active, None, "{answer:?}");
        }
    }

    #[test]
    fn failures_are_recognised_by_their_words() {
        let exit = |program: &str, code: i32, said: &str| ChildError::Failed {
            command: Command { program: program.into(), arguments: Vec::new(), keeps: &[] },
            status: std::process::ExitStatus::from_raw(code << 8),
            said: said.to_owned(),
        };
        let failed = |said: &str| exit("/usr/bin/snapctl", 1, said);
        let conflict = r#"error: snap "microk8s" has "service-control" change in progress"#;
        assert!(is_change_in_progress(&failed(conflict)));
        assert!(is_change_in_progress(&failed(r#"error: cannot restart: snap "microk8s" has changes in progress"#)));
        assert!(is_change_in_progress(&failed("remodeling in progress, no other changes allowed until this is done")));
        assert!(is_change_in_progress(&exit("/r/usr/bin/snap", 10, "")));
        assert!(!is_change_in_progress(&exit("/r/usr/bin/snapctl", 10, "")));
        assert!(!is_change_in_progress(&failed("error: snap not found")));
        let limit = "Job for k3s.service failed because start of the service was attempted too often.";
        assert!(cause_of_failure(&failed(limit)).is_some_and(|cause| cause.starts_with("start-limit-hit")));
        assert_eq!(cause_of_failure(&failed(conflict)), None);
    }
}
