//! The kernel's own account of links, addresses and default routes.
//!
//! In: datagrams (`socket`), decoded ([`decode`]). Out: snapshots, and whether something relevant changed. The rule of
//! this folder: events are hints and a `dump` is the truth. What events alone can tell - that a manager marked an
//! address with its protocol before somebody erased the mark - is remembered in the [`table`].

pub mod decode;
mod dump;
mod socket;
pub mod table;

use std::os::fd::{AsFd, BorrowedFd};

use crate::facts::network::Network;
use crate::observe::network::{Drained, NetworkError};
use crate::observe::rtnetlink::decode::{Change, Unreadable};
use crate::observe::rtnetlink::dump::{Ending, Wanted};
use crate::observe::rtnetlink::socket::{Received, RouteSocket, Wait};
use crate::observe::rtnetlink::table::{Dumped, Table};

/// 40,000 messages of a storm fit while the daemon does something else for a second. Not memory: a limit.
const RECEIVE_BUFFER: usize = 8 * 1024 * 1024;

/// A dump of a quiet host is sound at the first try; in a storm one of a hundred is interrupted.
const TRIES: usize = 8;

/// A bound of one drain, so that a storm cannot keep the daemon from its other duties: the socket stays readable.
const DATAGRAMS: usize = 4096;

/// What dumps found, the events that came meanwhile, and how they ended.
type Heard = (Dumped, Vec<Change>, Ending);

/// A socket, and the table its events keep up to date.
#[derive(Debug)]
pub struct Monitor {
    socket: RouteSocket,
    table: Table,
    unreadable: Unreadable,
    /// Events were lost, or the last dump was not sound: the table may be wrong until the next sound dump.
    stale: bool,
}

impl Monitor {
    /// Joins the groups, then dumps: whatever changes after the dump is an event.
    ///
    /// # Errors
    /// When the socket cannot be used or a dump is refused.
    pub fn open() -> Result<Self, NetworkError> {
        Self::with_receive_buffer(RECEIVE_BUFFER)
    }

    /// [`Monitor::open`] with another size of the socket's receive buffer, in bytes.
    ///
    /// # Errors
    /// As [`Monitor::open`].
    pub fn with_receive_buffer(bytes: usize) -> Result<Self, NetworkError> {
        let socket = RouteSocket::open(bytes)?;
        let mut monitor = Self { socket, table: Table::default(), unreadable: Unreadable::default(), stale: true };
        monitor.refresh(false, &mut Drained::default())?;
        Ok(monitor)
    }

    /// Reads what is queued, without waiting for more. Lost events, or an event of a default route, are followed by a
    /// dump at once; if that fails the table stays stale, and the snapshot says so.
    pub fn drain(&mut self) -> Drained {
        let mut drained = Drained::default();
        let result = self.read_events(&mut drained).and_then(|()| {
            if self.stale { self.refresh(false, &mut drained) } else { self.refresh_routes(&mut drained) }
        });
        if let Err(error) = result {
            tracing::debug!(%error, "the table could not be brought up to date");
            self.stale = true;
            drained.relevant = true;
        }
        drained
    }

    /// Fresh dumps of everything, with the events that came meanwhile and the protocols remembered.
    ///
    /// The addresses are in the kernel's order. If addresses come and go faster than they can be dumped, those that
    /// came during the last dump stand at the end.
    ///
    /// # Errors
    /// When the kernel cannot be asked, or refuses.
    pub fn snapshot(&mut self) -> Result<Network, NetworkError> {
        let mut drained = Drained::default();
        self.read_events(&mut drained)?;
        // Unless this refresh succeeds, nobody knows.
        self.stale = true;
        self.refresh(true, &mut drained)?;
        Ok(self.known())
    }

    /// What the events so far add up to, without asking the kernel.
    pub fn known(&self) -> Network {
        self.table.network(!self.stale)
    }

    /// What could not be read so far.
    pub const fn unreadable(&self) -> &Unreadable {
        &self.unreadable
    }

    /// The socket's netlink address (`nl_pid`).
    pub const fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Applies queued events to the table.
    fn read_events(&mut self, drained: &mut Drained) -> Result<(), NetworkError> {
        for _ in 0..DATAGRAMS {
            let received =
                self.socket.receive(Wait::No).map_err(|source| NetworkError::Socket { call: "recvfrom", source })?;
            match received {
                Received::Nothing => break,
                // An answer to a dump that was given up.
                Received::Foreign | Received::Datagram { event: false, .. } => {}
                Received::Overrun => {
                    (drained.overrun, drained.relevant, self.stale) = (true, true, true);
                }
                Received::Datagram { length, event: true } => {
                    let mut messages = decode::messages(self.socket.datagram(length), &mut self.unreadable);
                    while let Some((_, change)) = messages.next_change() {
                        drained.messages += 1;
                        drained.relevant |= change.is_some_and(|change| self.table.apply(change));
                    }
                }
            }
        }
        Ok(())
    }

    /// Dumps everything, again and again until nothing interfered, but not for ever. With `exact`, also until no
    /// address came or went meanwhile, so that the order of the addresses is the dump's.
    fn refresh(&mut self, exact: bool, drained: &mut Drained) -> Result<(), NetworkError> {
        self.refresh_by(exact, drained, |monitor| monitor.dump(&dump::EVERYTHING))
    }

    /// [`Monitor::refresh`] with this way to dump.
    fn refresh_by(
        &mut self,
        exact: bool,
        drained: &mut Drained,
        mut dump: impl FnMut(&mut Self) -> Result<Heard, NetworkError>,
    ) -> Result<(), NetworkError> {
        for _ in 0..TRIES {
            let (dumped, events, ending) = dump(self)?;
            drained.overrun |= ending.overrun;
            drained.relevant |= ending.overrun;
            drained.messages += ending.events;
            // An unsound dump may lack addresses: put in place of a table, it would take what the table remembers of
            // them along. It is only better than nothing.
            if ending.is_sound() || self.table.is_empty() {
                drained.relevant |= self.table.replace(dumped);
                self.stale = !ending.is_sound();
            }
            // Also after a dump that is thrown away: what an event said about a protocol must not be lost with it.
            let disturbed = self.apply(events, drained) | self.apply_queued(drained)?;
            let again = self.stale || !ending.is_sound() || self.table.routes_dirty() || (exact && disturbed);
            if !again {
                break;
            }
        }
        Ok(())
    }

    /// Dumps the default routes, if something happened that may have changed them.
    fn refresh_routes(&mut self, drained: &mut Drained) -> Result<(), NetworkError> {
        for _ in 0..TRIES {
            if !self.table.routes_dirty() {
                return Ok(());
            }
            let (dumped, events, ending) = self.dump(&dump::ROUTES)?;
            drained.messages += ending.events;
            if ending.overrun {
                (drained.overrun, drained.relevant, self.stale) = (true, true, true);
            }
            if ending.is_sound() {
                drained.relevant |= self.table.replace_routes(dumped.default_routes);
            }
            self.apply(events, drained);
            if self.stale {
                return self.refresh(false, drained);
            }
        }
        // The routes change faster than they can be dumped: that alone is worth a look.
        drained.relevant |= self.table.routes_dirty();
        Ok(())
    }

    /// Runs dumps one after the other; what they found, and the events that came meanwhile.
    ///
    /// The events are applied after the dump, never in between: the kernel makes a piece of a dump before it queues
    /// it, so an older piece may stand behind a newer event. The other way round does no harm. An event says what an
    /// object has become, and the last event about an object is never older than the dump's piece about it.
    fn dump(&mut self, wanted: &[Wanted]) -> Result<Heard, NetworkError> {
        let (mut dumped, mut events, mut ending) = (Dumped::default(), Vec::new(), Ending::default());
        for &wanted in wanted {
            let one = dump::dump(
                &mut self.socket,
                wanted,
                &mut self.unreadable,
                |change| dumped.take(change),
                |event| events.push(event),
            )?;
            ending = ending.and(one);
        }
        Ok((dumped, events, ending))
    }

    /// Applies events; whether any of them may have changed the order of addresses.
    fn apply(&mut self, events: Vec<Change>, drained: &mut Drained) -> bool {
        let mut order_may_differ = false;
        for event in events {
            order_may_differ |= matches!(event, Change::Address(_) | Change::AddressDeleted(_));
            drained.relevant |= self.table.apply(event);
        }
        order_may_differ
    }

    /// Applies what was queued after the last dump; whether there was anything.
    fn apply_queued(&mut self, drained: &mut Drained) -> Result<bool, NetworkError> {
        let before = drained.messages;
        self.read_events(drained)?;
        Ok(drained.messages != before)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
#[path = "interrupted_tests.rs"]
mod tests;
