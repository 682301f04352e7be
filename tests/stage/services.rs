//! Stand-ins for `snap`, `systemctl` and `snapctl`: shell scripts below the fake root that write down every call and
//! answer from small files. Whatever they do not know fails, so that a new kind of call is noticed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::Result;
use super::timeline::monotonic;

/// systemd's name of the service that contains the API server.
pub(crate) const KUBELITE: &str = "snap.microk8s.daemon-kubelite.service";
/// systemd's name of the service that loads the certificate once.
pub(crate) const CLUSTER_AGENT: &str = "snap.microk8s.daemon-cluster-agent.service";
/// systemd's name of the service that was the API server before there was kubelite.
pub(crate) const FORMER_API_SERVER: &str = "snap.microk8s.daemon-apiserver.service";
/// Snap names of the three.
const APPS: [(&str, &str); 3] = [
    ("microk8s.daemon-kubelite", KUBELITE),
    ("microk8s.daemon-cluster-agent", CLUSTER_AGENT),
    ("microk8s.daemon-apiserver", FORMER_API_SERVER),
];

/// One call of a stand-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// On the monotonic clock.
    pub(crate) at: Duration,
    /// `snap`, `systemctl` or `snapctl`.
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
}

impl Call {
    /// The unit that the call restarts, if it restarts one.
    pub(crate) fn restarted(&self) -> Option<&str> {
        let [verb, target] = self.arguments.as_slice() else { return None };
        match verb.as_str() {
            "restart" | "try-restart" => APPS
                .iter()
                .find(|(app, unit)| target == app || target == unit || unit.strip_suffix(".service") == Some(target))
                .map(|(_, unit)| *unit),
            _ => None,
        }
    }

    /// Whether the call only asks.
    pub(crate) fn only_asks(&self) -> bool {
        matches!(self.arguments.first().map(String::as_str), Some("show" | "is-active" | "services" | "--version"))
    }
}

/// Writes the scripts. `inactive` until [`set_active`] says otherwise.
pub(crate) fn install(root: &Path) -> Result<()> {
    // The shell has no CLOCK_MONOTONIC; /proc/uptime is CLOCK_BOOTTIME with 10 ms. The difference (time asleep) is
    // fixed while a test runs.
    let uptime = fs::read_to_string("/proc/uptime")?;
    let uptime: f64 = uptime.split(' ').next().unwrap_or_default().parse()?;
    let asleep = format!("{:.0}", ((uptime - monotonic().as_secs_f64()) * 1e6).max(0.0));
    for program in ["snap", "systemctl", "snapctl"] {
        let text = SCRIPT.replace("@ROOT@", &root.display().to_string()).replace("@ASLEEP@", &asleep);
        let path = root.join("usr/bin").join(program);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    for unit in [KUBELITE, CLUSTER_AGENT] {
        fs::write(root.join(format!("state/{unit}.active")), "inactive")?;
        fs::write(root.join(format!("state/{unit}.start")), "0")?;
    }
    Ok(())
}

/// Says of both services that they run, since `started`, or that they do not.
pub(crate) fn set_active(root: &Path, started: Option<Duration>) -> Result<()> {
    for unit in [KUBELITE, CLUSTER_AGENT] {
        let (word, start) = started.map_or(("inactive", 0), |at| ("active", at.as_micros()));
        fs::write(root.join(format!("state/{unit}.start")), start.to_string())?;
        fs::write(root.join(format!("state/{unit}.active")), word)?;
    }
    Ok(())
}

/// Makes a node of an age before kubelite of it: the API server's own service runs, kubelite does not.
pub(crate) fn before_kubelite(root: &Path, started: Duration) -> Result<()> {
    fs::write(root.join(format!("state/{KUBELITE}.active")), "inactive")?;
    fs::write(root.join(format!("state/{FORMER_API_SERVER}.start")), started.as_micros().to_string())?;
    Ok(fs::write(root.join(format!("state/{FORMER_API_SERVER}.active")), "active")?)
}

/// How often the API server's service was restarted.
pub(crate) fn restarts(root: &Path) -> u64 {
    fs::metadata(root.join(format!("state/{KUBELITE}.restarts"))).map_or(0, |file| file.len())
}

/// Says that the API server's process of `restarts` restarts ago is gone.
pub(crate) fn set_stopped(root: &Path, restarts: u64) -> Result<()> {
    let count = usize::try_from(restarts)?;
    Ok(fs::write(root.join(format!("state/{KUBELITE}.stopped")), "r".repeat(count))?)
}

/// Every call so far.
pub(crate) fn calls(root: &Path) -> Result<Vec<Call>> {
    let text = match fs::read_to_string(root.join("calls.log")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    text.lines().map(parse).collect()
}

pub(crate) fn parse(line: &str) -> Result<Call> {
    let mut words = line.split_whitespace();
    let at: u64 = words.next().unwrap_or_default().parse().map_err(|_| format!("calls.log: {line}"))?;
    let program = words.next().unwrap_or_default().to_owned();
    Ok(Call { at: Duration::from_micros(at), program, arguments: words.map(str::to_owned).collect() })
}

/// One script for all three names. Times are microseconds of CLOCK_MONOTONIC.
const SCRIPT: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
root='@ROOT@'
name=${0##*/}
read -r up rest < /proc/uptime
now=$(( ${up%.*} * 1000000 + 1${up#*.} * 10000 - 1000000 - @ASLEEP@ ))
echo "$now $name $*" >> "$root/calls.log"

restart() {
    case $1 in
        microk8s.daemon-*) unit=snap.$1.service ;;
        *.service) unit=$1 ;;
        *) unit=$1.service ;;
    esac
    if [ ! -f "$root/state/$unit.active" ]; then
        echo "$name: no such service: $1" >&2
        exit 5
    fi
    if [ "$2" = try ] && [ "$(cat "$root/state/$unit.active")" != active ]; then
        exit 0
    fi
    # Rounded up: the clock read here is up to 10 ms late, and the service starts after the call.
    echo $((now + 10000)) > "$root/state/$unit.start"
    printf r >> "$root/state/$unit.restarts"
    # A service manager returns when the old process is gone. The stand-in of the API server says so; without one there
    # is nothing to wait for.
    [ -f "$root/state/$unit.stopped" ] || return 0
    tries=0
    while [ "$(wc -c < "$root/state/$unit.restarts")" -gt "$(wc -c < "$root/state/$unit.stopped")" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || break
        sleep 0.02
    done
}

# Turns a service on or off; a real manager does nothing to one that is as it should be.
turn() {
    case $2 in
        microk8s.daemon-*) unit=snap.$2.service ;;
        *) unit=$2 ;;
    esac
    if [ ! -e "$root/etc/systemd/system/$unit" ] && [ ! -e "$root/usr/lib/systemd/system/$unit" ]; then
        echo "$name: no such service: $2" >&2
        exit 1
    fi
    case $unit in
        *.timer) wants=timers ;;
        *.path) wants=paths ;;
        *) wants=multi-user ;;
    esac
    wants=$root/etc/systemd/system/$wants.target.wants
    mkdir -p "$wants"
    if [ "$1" = on ]; then
        [ -h "$wants/$unit" ] || ln -s "/etc/systemd/system/$unit" "$wants/$unit"
        echo "$now" > "$root/state/$unit.start"
        echo active > "$root/state/$unit.active"
    else
        rm -f "$wants/$unit"
        echo inactive > "$root/state/$unit.active"
    fi
}

case "$name:$1 $2" in
    'snap:stop --disable') turn off "$3"; exit ;;
    'snap:start --enable') turn on "$3"; exit ;;
    'systemctl:disable --now') turn off "$3"; exit ;;
    'systemctl:enable --now') turn on "$3"; exit ;;
esac
case $name:$1 in
    systemctl:show)
        shift
        first=yes
        for unit in "$@"; do
            case $unit in -*) continue ;; esac
            [ "$first" = yes ] || echo
            first=no
            case $unit in *.service | *.timer | *.path) ;; *) unit=$unit.service ;; esac
            state=inactive
            [ -f "$root/state/$unit.active" ] && state=$(cat "$root/state/$unit.active")
            start=0
            [ "$state" = active ] && start=$(cat "$root/state/$unit.start")
            sub=dead
            [ "$state" = active ] && sub=running
            echo "Id=$unit"
            echo "ActiveState=$state"
            echo "SubState=$sub"
            echo "MainPID=0"
            echo "ExecMainStartTimestampMonotonic=$start"
        done ;;
    snapctl:services)
        shift
        echo 'Service Startup Current Notes'
        for app; do
            state=inactive
            [ -f "$root/state/snap.$app.service.active" ] && state=$(cat "$root/state/snap.$app.service.active")
            echo "$app enabled $state -"
        done ;;
    systemctl:is-active)
        state=$(cat "$root/state/${2%.service}.service.active" 2>/dev/null || echo inactive)
        echo "$state"
        [ "$state" = active ] ;;
    systemctl:try-restart) restart "$2" try ;;
    systemctl:restart|snap:restart|snapctl:restart) restart "$2" ;;
    *)
        echo "$name: the stand-in does not know: $*" >&2
        exit 64 ;;
esac
"#;
