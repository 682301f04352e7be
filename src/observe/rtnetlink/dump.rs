//! Dumps: asking the kernel for all links, addresses or routes.
//!
//! In: a request. Out: everything it found, or the kernel's refusal as an error. The rule of this file: an error, an
//! interrupted dump and lost events each look different from an empty dump.

use std::io;

use netlink_packet_core::{Emitable, NLM_F_ACK_TLVS, NLM_F_DUMP_INTR, NlasIterator};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressHeader;
use netlink_packet_route::link::LinkHeader;
use netlink_packet_route::route::{RouteHeader, RouteType};
use nix::libc;

use crate::observe::network::NetworkError;
use crate::observe::rtnetlink::decode::{self, Change, Message, Unreadable};
use crate::observe::rtnetlink::socket::{Received, RouteSocket, Wait};

/// What can be dumped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Links,
    Addresses(AddressFamily),
    Routes(AddressFamily),
}

/// Everything a snapshot is made of. Families are asked for one by one: a dump of all families goes on to Phonet and
/// MPLS, and hides in which one an error was.
pub(super) const EVERYTHING: [Wanted; 5] = [
    Wanted::Links,
    Wanted::Addresses(AddressFamily::Inet),
    Wanted::Addresses(AddressFamily::Inet6),
    Wanted::Routes(AddressFamily::Inet),
    Wanted::Routes(AddressFamily::Inet6),
];

/// The default routes alone.
pub(super) const ROUTES: [Wanted; 2] = [Wanted::Routes(AddressFamily::Inet), Wanted::Routes(AddressFamily::Inet6)];

/// How a dump ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ending {
    /// The kernel says that it changed underneath (`NLM_F_DUMP_INTR`), or had no room to answer.
    pub interrupted: bool,
    /// Events were lost meanwhile: what they said may be older or newer than the dump.
    pub overrun: bool,
    /// Events that came in between.
    pub events: usize,
}

impl Ending {
    /// Whether the dump is what the kernel had at one moment, with every event since.
    pub(super) const fn is_sound(self) -> bool {
        !self.interrupted && !self.overrun
    }

    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            interrupted: self.interrupted || other.interrupted,
            overrun: self.overrun || other.overrun,
            events: self.events + other.events,
        }
    }
}

/// Runs one dump. `found` gets what it says; `event` gets what the kernel announces meanwhile, in order.
pub(super) fn dump(
    socket: &mut RouteSocket,
    wanted: Wanted,
    unreadable: &mut Unreadable,
    mut found: impl FnMut(Change),
    mut event: impl FnMut(Change),
) -> Result<Ending, NetworkError> {
    let mut ending = Ending::default();
    let mut body = [0_u8; 24];
    let (message_type, length) = wanted.request(&mut body);
    let sequence = match socket.request(message_type, &body[..length]) {
        Ok(sequence) => sequence,
        Err(error) if may_pass(&error) => return Ok(Ending { interrupted: true, ..ending }),
        Err(source) => return Err(NetworkError::Socket { call: "sendto", source }),
    };
    loop {
        let received = socket.receive(Wait::Yes).map_err(|source| NetworkError::Socket { call: "recvfrom", source })?;
        let (length, is_event) = match received {
            Received::Datagram { length, event } => (length, event),
            Received::Foreign => continue,
            Received::Overrun => {
                ending.overrun = true;
                continue;
            }
            // The answer itself was lost when the buffer was full: only then is it right to ask again.
            Received::Nothing if ending.overrun => return Ok(Ending { interrupted: true, ..ending }),
            Received::Nothing => return Err(NetworkError::Unanswered { what: wanted.name() }),
        };
        let mut messages = decode::messages(socket.datagram(length), unreadable);
        while let Some((message, change)) = messages.next_change() {
            if is_event {
                ending.events += 1;
                change.into_iter().for_each(&mut event);
                continue;
            }
            // The rest of a dump that was given up.
            if message.sequence != sequence {
                continue;
            }
            match ending.step(&message) {
                Step::Found => change.into_iter().for_each(&mut found),
                Step::Ended => return Ok(ending),
                Step::Failed { words, source } => {
                    return Err(NetworkError::Dump { what: wanted.name(), message: words, source });
                }
            }
        }
    }
}

/// What a message that answers the request means for the dump.
#[derive(Debug)]
enum Step {
    /// It goes on; the message may have found something.
    Found,
    /// It is over, soundly or not.
    Ended,
    /// The kernel refuses.
    Failed { words: String, source: io::Error },
}

impl Ending {
    fn step(&mut self, message: &Message<'_>) -> Step {
        self.interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
        let message_type = i32::from(message.message_type);
        match message_type {
            // Both carry a negative error code: a dump that fails on its way ends in NLMSG_DONE, with -ENODEV say.
            libc::NLMSG_DONE | libc::NLMSG_ERROR => match failure(message) {
                // An acknowledgement (code 0) is not the end of a dump.
                None if message_type == libc::NLMSG_ERROR => Step::Found,
                None => Step::Ended,
                Some((error, _)) if may_pass(&error) => {
                    self.interrupted = true;
                    Step::Ended
                }
                Some((source, words)) => Step::Failed { words, source },
            },
            libc::NLMSG_OVERRUN => {
                self.overrun = true;
                Step::Found
            }
            _ => Step::Found,
        }
    }
}

impl Wanted {
    /// Writes the request's body; its message type and length. Filters are honoured only with strict checking, so
    /// everything they leave out is also left out when decoding.
    fn request(self, body: &mut [u8]) -> (u16, usize) {
        match self {
            Self::Links => {
                let header = LinkHeader::default();
                header.emit(body);
                let end = header.buffer_len();
                // Two thirds of a link's message are counters that nobody reads here.
                body[end..end + 8].copy_from_slice(&skip_statistics());
                (libc::RTM_GETLINK, end + 8)
            }
            Self::Addresses(family) => {
                let header = AddressHeader { family, ..AddressHeader::default() };
                header.emit(body);
                (libc::RTM_GETADDR, header.buffer_len())
            }
            Self::Routes(family) => {
                // Without the type, a node with thousands of service addresses sends a local route for each.
                let header = RouteHeader { address_family: family, kind: RouteType::Unicast, ..RouteHeader::default() };
                header.emit(body);
                (libc::RTM_GETROUTE, header.buffer_len())
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::Addresses(_) => "addresses",
            Self::Routes(_) => "routes",
        }
    }
}

/// `IFLA_EXT_MASK` with `RTEXT_FILTER_SKIP_STATS`.
fn skip_statistics() -> [u8; 8] {
    const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
    let mut attribute = [0; 8];
    attribute[..2].copy_from_slice(&8_u16.to_ne_bytes());
    attribute[2..4].copy_from_slice(&libc::IFLA_EXT_MASK.to_ne_bytes());
    attribute[4..].copy_from_slice(&RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
    attribute
}

/// The error an NLMSG_DONE or NLMSG_ERROR carries, with the kernel's words; `None` for success.
fn failure(message: &Message<'_>) -> Option<(io::Error, String)> {
    // An NLMSG_ERROR without a code means nothing good; an NLMSG_DONE without one is what old kernels send.
    let is_error = i32::from(message.message_type) == libc::NLMSG_ERROR;
    let Some((code, rest)) = message.payload.split_first_chunk() else {
        return is_error.then(|| (io::Error::from_raw_os_error(libc::EPROTO), String::new()));
    };
    let code = i32::from_ne_bytes(*code);
    if code == 0 {
        return None;
    }
    // NLMSG_ERROR repeats the request's header (16 bytes; NETLINK_CAP_ACK keeps the rest out).
    let attributes = if is_error { rest.get(16..).unwrap_or_default() } else { rest };
    let mut words = String::new();
    if message.flags & NLM_F_ACK_TLVS != 0 {
        let text = NlasIterator::new(attributes).flatten().find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG);
        if let Some(text) = text {
            words = String::from_utf8_lossy(text.value()).trim_end_matches('\0').escape_default().to_string();
        }
    }
    Some((io::Error::from_raw_os_error(code.saturating_neg()), words))
}

/// `NLMSGERR_ATTR_MSG`.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Errors that come from a socket buffer that is full, or from a dump given up that still runs: asking again helps.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOBUFS | libc::EAGAIN | libc::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(message_type: i32, flags: u16, payload: &[u8]) -> Option<(Option<i32>, String)> {
        let message_type = u16::try_from(message_type).expect("a message type");
        failure(&Message { message_type, flags, sequence: 1, payload }).map(|(e, words)| (e.raw_os_error(), words))
    }

    #[test]
    fn done_with_an_error_code_is_not_an_empty_dump() {
        assert_eq!(message(libc::NLMSG_DONE, 2, &0_i32.to_ne_bytes()), None);
        assert_eq!(message(libc::NLMSG_DONE, 2, &[]), None);
        let enodev = (-libc::ENODEV).to_ne_bytes();
        assert_eq!(message(libc::NLMSG_DONE, 2, &enodev), Some((Some(libc::ENODEV), String::new())));
    }

    #[test]
    fn an_error_message_is_an_error_even_when_it_is_cut() {
        assert_eq!(message(libc::NLMSG_ERROR, 0, &[1, 2]), Some((Some(libc::EPROTO), String::new())));
        let mut payload = (-libc::EINVAL).to_ne_bytes().to_vec();
        payload.extend([0; 16]);
        payload.extend([10, 0, 1, 0]);
        payload.extend(b"ipv4\x1b\0");
        // The kernel's words end up in a log.
        let expected = Some((Some(libc::EINVAL), "ipv4\\u{1b}".to_owned()));
        assert_eq!(message(libc::NLMSG_ERROR, NLM_F_ACK_TLVS, &payload), expected);
        assert_eq!(message(libc::NLMSG_ERROR, 0, &i32::MIN.to_ne_bytes()), Some((Some(i32::MAX), String::new())));
    }

    fn step(ending: &mut Ending, message_type: i32, flags: u16, payload: &[u8]) -> Step {
        let message_type = u16::try_from(message_type).expect("a message type");
        ending.step(&Message { message_type, flags, sequence: 1, payload })
    }

    #[test]
    fn an_interruption_is_remembered_to_the_end_of_the_dump() {
        let mut ending = Ending::default();
        assert!(matches!(step(&mut ending, 20, 2 | NLM_F_DUMP_INTR, &[]), Step::Found));
        assert!(matches!(step(&mut ending, 20, 2, &[]), Step::Found));
        assert!(matches!(step(&mut ending, libc::NLMSG_DONE, 2, &[0; 4]), Step::Ended));
        assert!(!ending.is_sound());
        // The flag may come with NLMSG_DONE only.
        let mut ending = Ending::default();
        assert!(matches!(step(&mut ending, libc::NLMSG_DONE, 2 | NLM_F_DUMP_INTR, &[0; 4]), Step::Ended));
        assert!(!ending.is_sound());
    }

    #[test]
    fn a_refusal_fails_and_an_acknowledgement_does_not_end_a_dump() {
        let mut ending = Ending::default();
        assert!(matches!(step(&mut ending, libc::NLMSG_ERROR, 0, &[0; 20]), Step::Found));
        let eperm = (-libc::EPERM).to_ne_bytes();
        assert!(matches!(step(&mut ending, libc::NLMSG_ERROR, 0, &eperm), Step::Failed { .. }));
        assert!(matches!(step(&mut ending, libc::NLMSG_DONE, 0, &eperm), Step::Failed { .. }));
        assert!(ending.is_sound());
        let ebusy = (-libc::EBUSY).to_ne_bytes();
        assert!(matches!(step(&mut ending, libc::NLMSG_ERROR, 0, &ebusy), Step::Ended));
        assert!(!ending.is_sound());
    }

    #[test]
    fn a_full_buffer_is_a_reason_to_ask_again_and_a_refusal_is_not() {
        assert!(may_pass(&io::Error::from_raw_os_error(libc::ENOBUFS)));
        assert!(!may_pass(&io::Error::from_raw_os_error(libc::EPERM)));
    }
}
