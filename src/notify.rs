//! What the service manager is told: sd_notify(3).
//!
//! In: `NOTIFY_SOCKET`. Out: datagrams. The rule of this file: never fatal, and silent without a manager. Abstract sockets
//! (`@name`) are supported, which the crates for this do not.

use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager's socket, or nothing.
#[derive(Debug)]
pub struct Notify(Option<(UnixDatagram, SocketAddr)>);

impl Notify {
    /// `socket` is the value of `NOTIFY_SOCKET`.
    pub fn new(socket: Option<OsString>) -> Self {
        let target = socket.filter(|name| !name.is_empty()).and_then(|name| {
            let address = match name.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
                _ => SocketAddr::from_pathname(&name),
            };
            let own = UnixDatagram::unbound().ok()?;
            // A manager that does not read must not stop the loop.
            own.set_nonblocking(true).ok()?;
            Some((own, address.ok()?))
        });
        Self(target)
    }

    /// Sends `KEY=value` lines.
    pub fn say(&self, lines: &str) {
        if let Some((socket, address)) = &self.0
            && let Err(error) = socket.send_to_addr(lines.as_bytes(), address)
        {
            tracing::debug!("the service manager was not told {lines:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abstract_sockets_work() -> std::io::Result<()> {
        let name = format!("ipguard-notify-test-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        Notify::new(Some(format!("@{name}").into())).say("READY=1");
        let mut buffer = [0; 16];
        let length = manager.recv(&mut buffer)?;
        assert_eq!(&buffer[..length], b"READY=1");
        // A manager that has stopped reading blocks nobody: a datagram queue holds some ten messages.
        let notify = Notify::new(Some(format!("@{name}").into()));
        for _ in 0..1000 {
            notify.say("STATUS=again");
        }
        Notify::new(None).say("READY=1");
        Notify::new(Some("/does/not/exist".into())).say("READY=1");
        Ok(())
    }
}
