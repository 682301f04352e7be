//! One blocking netlink socket: the five groups joined, every datagram whole, every sender checked.
//!
//! In: requests. Out: datagrams of the kernel, in the order the kernel queued them. The rule of this file: a datagram
//! that was lost or cut is said ([`Received::Overrun`]), never guessed; one that the kernel did not send is dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_core::{Emitable, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::observe::network::NetworkError;

/// The kernel's dump datagrams are at most 32 KiB (`netlink_dump`), an event's one message; MSG_TRUNC tells if not.
const DATAGRAM: usize = 64 * 1024;

/// A dump is answered within milliseconds even with thousands of links. Only a refusal that found the buffer full
/// never arrives; waiting for it must end.
const PATIENCE_SECONDS: i64 = 5;

/// Links, addresses and routes of both families. Other events (neighbours, traffic control) would only fill the buffer.
const GROUPS: [u32; 5] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// A bound rtnetlink socket that has joined the groups.
#[derive(Debug)]
pub(super) struct RouteSocket {
    socket: Socket,
    port: u32,
    sequence: u32,
    buffer: Box<[u8]>,
}

/// What a receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// A datagram of the kernel, of this length, in [`RouteSocket::datagram`].
    Datagram {
        /// Its length.
        length: usize,
        /// Sent to a group: an event. Otherwise it answers a request of ours.
        event: bool,
    },
    /// A datagram of another process, dropped. Anyone with CAP_NET_ADMIN in the namespace can send one.
    Foreign,
    /// At least one datagram was lost or cut.
    Overrun,
    /// Nothing is queued (or, waiting, nothing came in time).
    Nothing,
}

/// Whether to wait for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// Up to the patience for an answer.
    Yes,
    /// Only take what is there.
    No,
}

impl RouteSocket {
    /// Opens, binds and joins the groups; `receive_buffer` is the size asked of the kernel, in bytes.
    pub(super) fn open(receive_buffer: usize) -> Result<Self, NetworkError> {
        Self::with_datagram_limit(receive_buffer, DATAGRAM)
    }

    fn with_datagram_limit(receive_buffer: usize, datagram: usize) -> Result<Self, NetworkError> {
        let failed = |call| move |source| NetworkError::Socket { call, source };
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed("socket"))?;
        // FORCE passes net.core.rmem_max but needs CAP_NET_ADMIN in the initial user namespace. A small buffer only
        // overruns sooner, which is normal operation, so no failure here is an error.
        if setsockopt(&socket, sockopt::RcvBufForce, &receive_buffer).is_err() {
            let _ = setsockopt(&socket, sockopt::RcvBuf, &receive_buffer);
        }
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE_SECONDS))
            .map_err(|errno| failed("setsockopt(SO_RCVTIMEO)")(errno.into()))?;
        // Linux 4.12, 4.3 and 4.20: texts beside error codes, errors without a copy of the request, and dumps that
        // honour (or refuse) the filter in the request's header. Older kernels work without.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        let port = socket.bind_auto().map_err(failed("bind"))?.port_number();
        for group in GROUPS {
            socket.add_membership(group).map_err(failed("setsockopt(NETLINK_ADD_MEMBERSHIP)"))?;
        }
        Ok(Self { socket, port, sequence: 0, buffer: vec![0; datagram].into_boxed_slice() })
    }

    /// Sends a dump request and returns its sequence number.
    pub(super) fn request(&mut self, message_type: u16, body: &[u8]) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        let start = header.buffer_len();
        let length = start + body.len();
        header.length = u32::try_from(length).expect("a request is a few dozen bytes");
        header.message_type = message_type;
        header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        header.sequence_number = self.sequence;
        header.port_number = self.port;
        let mut request = [0_u8; 64];
        header.emit(&mut request);
        request[start..length].copy_from_slice(body);
        loop {
            match self.socket.send_to(&request[..length], &SocketAddr::new(0, 0), 0) {
                Ok(_) => return Ok(self.sequence),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the next datagram.
    pub(super) fn receive(&mut self, wait: Wait) -> io::Result<Received> {
        let flags = match wait {
            Wait::Yes => libc::MSG_TRUNC,
            Wait::No => libc::MSG_TRUNC | libc::MSG_DONTWAIT,
        };
        loop {
            let limit = self.buffer.len();
            let mut space: &mut [u8] = &mut self.buffer;
            return match self.socket.recv_from(&mut space, flags) {
                Ok((_, sender)) if sender.port_number() != 0 => Ok(Received::Foreign),
                // With MSG_TRUNC the length is the datagram's own, not what fitted.
                Ok((length, _)) if length > limit => Ok(Received::Overrun),
                Ok((length, sender)) => Ok(Received::Datagram { length, event: sender.multicast_groups() != 0 }),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => continue,
                    Some(libc::EAGAIN) => Ok(Received::Nothing),
                    Some(libc::ENOBUFS) => Ok(Received::Overrun),
                    _ => Err(error),
                },
            };
        }
    }

    /// The first bytes of the datagram received last.
    pub(super) fn datagram(&self, length: usize) -> &[u8] {
        &self.buffer[..length]
    }

    /// `nl_pid`: where answers, and forgeries, are sent to.
    pub(super) const fn port(&self) -> u32 {
        self.port
    }
}

impl AsFd for RouteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dump of the links changes nothing, and every host has one link.
    fn first_answer(datagram: usize) -> Received {
        let mut socket = RouteSocket::with_datagram_limit(64 * 1024, datagram).expect("rtnetlink is there");
        socket.request(libc::RTM_GETLINK, &[0; 16]).expect("requests are allowed to everybody");
        loop {
            match socket.receive(Wait::Yes).expect("the kernel answers") {
                Received::Datagram { event: true, .. } => {}
                received => return received,
            }
        }
    }

    #[test]
    fn a_cut_datagram_is_an_overrun() {
        assert_eq!(first_answer(100), Received::Overrun);
        assert!(matches!(first_answer(DATAGRAM), Received::Datagram { event: false, .. }));
    }

    #[test]
    fn nothing_queued_is_said_at_once() {
        let mut socket = RouteSocket::open(64 * 1024).expect("rtnetlink is there");
        let received = socket.receive(Wait::No).expect("not an error");
        assert!(matches!(received, Received::Nothing | Received::Datagram { event: true, .. }));
    }
}
