//! Netlink by hand: what the `ip` command cannot say or show.

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::libc;

/// A message: header, body and attributes.
pub(crate) fn message(
    message_type: u16,
    flags: u16,
    sequence: u32,
    body: &[u8],
    attributes: &[(u16, &[u8])],
) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes.extend_from_slice(body);
    for (kind, value) in attributes {
        let length = u16::try_from(4 + value.len()).expect("attributes are short");
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(bytes.len()).expect("messages are short");
    bytes[..4].copy_from_slice(&length.to_ne_bytes());
    bytes[4..6].copy_from_slice(&message_type.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    bytes
}

/// `RTM_NEWADDR` for an IPv4 address with `IFA_PROTO`, which iproute2 6.1 cannot set.
pub(crate) fn new_ipv4(link: u32, octets: [u8; 4], prefix_len: u8, protocol: u8) -> Vec<u8> {
    let mut body = [0; 8];
    (body[0], body[1]) = (2, prefix_len);
    body[4..].copy_from_slice(&link.to_ne_bytes());
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_REPLACE | libc::NLM_F_ACK);
    let attributes: [(u16, &[u8]); 3] = [(libc::IFA_LOCAL, &octets), (libc::IFA_ADDRESS, &octets), (11, &[protocol])];
    message(libc::RTM_NEWADDR, flags.expect("16 bits"), 1, &body, &attributes)
}

/// The same for IPv6.
pub(crate) fn new_ipv6(link: u32, octets: [u8; 16], prefix_len: u8, protocol: u8) -> Vec<u8> {
    let mut body = [0; 8];
    (body[0], body[1], body[2]) = (10, prefix_len, 0x02);
    body[4..].copy_from_slice(&link.to_ne_bytes());
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_CREATE | libc::NLM_F_REPLACE | libc::NLM_F_ACK);
    message(libc::RTM_NEWADDR, flags.expect("16 bits"), 1, &body, &[(libc::IFA_LOCAL, &octets), (11, &[protocol])])
}

/// Sends a request and expects it to be acknowledged.
pub(crate) fn request(bytes: &[u8]) {
    let mut socket = Socket::new(NETLINK_ROUTE).expect("rtnetlink is there");
    socket.bind_auto().expect("a port is free");
    socket.send_to(bytes, &SocketAddr::new(0, 0), 0).expect("the kernel listens");
    let (answer, _) = socket.recv_from_full().expect("the kernel answers");
    let code = i32::from_ne_bytes(answer[16..20].try_into().expect("four bytes"));
    assert_eq!(code, 0, "the kernel refused the request");
}
