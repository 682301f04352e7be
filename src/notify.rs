//! What the service manager is told: sd_notify(3).
//!
//! In: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`. Out: datagrams. The rule of this file: never fatal, and silent
//! without a manager. Abstract sockets (`@name`) are supported, which the crates for this do not.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// What the service manager says in the environment of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manager {
    /// `NOTIFY_SOCKET`: where it wants to hear that we are ready.
    pub socket: Option<OsString>,
    /// `WATCHDOG_USEC`: it ends us when it hears nothing for so many microseconds.
    pub watchdog_usec: Option<OsString>,
    /// `WATCHDOG_PID`: the process that is meant, where it is one only.
    pub watchdog_pid: Option<OsString>,
}

/// The service manager's socket, or nothing.
#[derive(Debug)]
pub struct Notify {
    target: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
    /// The last status line that it has taken.
    status: Option<String>,
    owes_ready: bool,
    owes_status: bool,
}

impl Notify {
    /// Opens a socket of our own; without a manager there is nobody to talk to.
    pub fn new(manager: Manager) -> Self {
        let watchdog = watchdog(&manager, std::process::id());
        let target = manager.socket.filter(|name| !name.is_empty()).and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&name),
            };
            let own = UnixDatagram::unbound().ok()?;
            // A manager that does not read must not stop the loop.
            own.set_nonblocking(true).ok()?;
            Some((own, address.ok()?))
        });
        Self {
            watchdog: watchdog.filter(|_| target.is_some()),
            target,
            status: None,
            owes_ready: false,
            owes_status: false,
        }
    }

    /// How often the manager must hear from the loop; `None` when it does not ask for it.
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// A reload begins. `Type=notify-reload` (systemd 253) asks for the moment on `CLOCK_MONOTONIC`, older ones ignore it.
    pub fn reloading(&self, uptime: Duration) {
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={}", uptime.as_micros()));
    }

    /// Started, or reloaded. Whoever waits for it waits for ever, so it is said again where it was not taken.
    pub fn ready(&mut self) {
        self.owes_ready = !self.say("READY=1");
    }

    /// What `systemctl status` shows: one line. The same line is said once.
    pub fn status(&mut self, line: String) {
        if self.owes_ready {
            self.ready();
        }
        self.owes_status = self.status.as_ref() != Some(&line) && !self.say(&format!("STATUS={line}"));
        if !self.owes_status {
            self.status = Some(line);
        }
    }

    /// When to try again what the manager has not taken, because it does not read at the moment: soon where somebody may
    /// wait for it.
    pub const fn try_again_in(&self) -> Option<Duration> {
        match (self.owes_ready, self.owes_status) {
            (true, _) => Some(Duration::from_secs(1)),
            (false, true) => Some(Duration::from_secs(60)),
            (false, false) => None,
        }
    }

    /// Sends `KEY=value` lines. False where the manager's queue is full, and another try may be the better.
    pub fn say(&self, lines: &str) -> bool {
        let Some((socket, address)) = &self.target else { return true };
        match socket.send_to_addr(lines.as_bytes(), address) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!("the service manager was not told {lines:?}: {error}");
                error.kind() != std::io::ErrorKind::WouldBlock
            }
        }
    }
}

/// Half the time after which the manager loses patience, as sd_watchdog_enabled(3) advises; `None` where it has asked for
/// nothing, or somebody else.
fn watchdog(manager: &Manager, process: u32) -> Option<Duration> {
    let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
    if let Some(meant) = &manager.watchdog_pid
        && number(meant) != Some(u64::from(process))
    {
        return None;
    }
    let patience = number(manager.watchdog_usec.as_ref()?).filter(|usec| *usec > 0)?;
    // poll(2) counts milliseconds: less would turn the loop into a busy one.
    Some((Duration::from_micros(patience) / 2).max(Duration::from_millis(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abstract_sockets_work() -> std::io::Result<()> {
        let name = format!("ipguard-notify-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let manager_says = |socket: &str| Manager { socket: Some(socket.into()), ..Manager::default() };
        Notify::new(manager_says(&format!("@{name}"))).say("READY=1");
        let mut buffer = [0; 16];
        let length = manager.recv(&mut buffer)?;
        assert_eq!(&buffer[..length], b"READY=1");
        // A manager that has stopped reading blocks nobody: a datagram queue holds some ten messages.
        let notify = Notify::new(manager_says(&format!("@{name}")));
        for _ in 0..1000 {
            notify.say("STATUS=again");
        }
        Ok(())
    }

    #[test]
    fn what_a_full_queue_does_not_take_is_owed() -> std::io::Result<()> {
        let name = format!("ipguard-notify-full-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let manager_says = |socket: &str| Manager { socket: Some(socket.into()), ..Manager::default() };
        let mut notify = Notify::new(manager_says(&format!("@{name}")));
        while notify.say("WATCHDOG=1") {}
        notify.ready();
        notify.status("in step".to_owned());
        assert_eq!(notify.try_again_in(), Some(Duration::from_secs(1)));
        let mut buffer = [0; 32];
        let mut hear =
            || manager.recv(&mut buffer).map(|length| String::from_utf8_lossy(&buffer[..length]).into_owned());
        while manager.set_nonblocking(true).is_ok() && hear().is_ok() {}
        notify.status("in step".to_owned());
        assert_eq!((hear()?, hear()?), ("READY=1".to_owned(), "STATUS=in step".to_owned()));
        assert_eq!(notify.try_again_in(), None);
        notify.status("in step".to_owned());
        assert!(hear().is_err(), "once");
        // Nobody is there to be told: that is nothing to wait for.
        for mut nobody in [Notify::new(Manager::default()), Notify::new(manager_says("/does/not/exist"))] {
            nobody.ready();
            nobody.status("in step".to_owned());
            assert_eq!(nobody.try_again_in(), None);
        }
        Ok(())
    }

    #[test]
    fn the_watchdog_is_fed_at_half_its_patience_and_by_the_process_that_is_meant() {
        let asks = |usec: &str, pid: Option<&str>| {
            let (watchdog_usec, watchdog_pid) = (Some(usec.into()), pid.map(OsString::from));
            watchdog(&Manager { socket: None, watchdog_usec, watchdog_pid }, 42)
        };
        assert_eq!(asks("30000000", None), Some(Duration::from_secs(15)));
        assert_eq!(asks("30000000", Some("42")), Some(Duration::from_secs(15)));
        assert_eq!(asks("30000000", Some("43")), None, "its child is not meant");
        assert_eq!(asks("30000000", Some("")), None);
        assert_eq!(asks("1", None), Some(Duration::from_millis(1)), "no busy loop");
        for nonsense in ["", "0", "-1", "thirty", "30s", "99999999999999999999"] {
            assert_eq!(asks(nonsense, None), None, "{nonsense:?}");
        }
        assert_eq!(watchdog(&Manager::default(), 42), None);
    }
}
