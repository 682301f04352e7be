//! Dumps that the kernel says were interrupted: that it is noticed, and that they are repeated.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use netlink_packet_route::AddressFamily;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::skipped::skipped;

/// A dump that was interrupted, and lacks what it might lack: every address.
fn interrupted((_, events, ending): Heard) -> Heard {
    (Dumped::default(), events, Ending { interrupted: true, ..ending })
}

/// Refreshes by dumps of which the first are interrupted; how many were made.
fn refresh(monitor: &mut Monitor, first: usize) -> usize {
    let mut dumps = 0;
    let by = |monitor: &mut Monitor| {
        dumps += 1;
        let heard = monitor.dump(&dump::EVERYTHING)?;
        Ok(if dumps <= first { interrupted(heard) } else { heard })
    };
    // As whoever refreshes says before.
    monitor.stale = true;
    // What is exact depends on what others do on this machine meanwhile.
    monitor.refresh_by(false, &mut Drained::default(), by).expect("the kernel answers");
    dumps
}

#[test]
fn an_interrupted_dump_is_repeated_until_one_is_not() {
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let before = monitor.known();
    assert!(!before.addresses.is_empty() || !before.links.is_empty(), "every host has a link");
    for first in [1, 2, TRIES - 1] {
        let dumps = refresh(&mut monitor, first);
        // Somebody else's change of a route may ask for one more.
        assert!(dumps > first && dumps <= TRIES, "{dumps} dumps, the first {first} of them interrupted");
        let known = monitor.known();
        assert!(known.complete, "the last one was sound");
        assert_eq!(known.links.keys().collect::<Vec<_>>(), before.links.keys().collect::<Vec<_>>());
    }
}

#[test]
fn interrupted_again_and_again_it_says_that_nobody_knows_and_keeps_what_was_known() {
    let mut monitor = Monitor::open().expect("rtnetlink is there");
    let before = monitor.known();
    assert_eq!(refresh(&mut monitor, usize::MAX), TRIES, "not for ever, and not less");
    let known = monitor.known();
    // Whoever reads it takes no decision by it.
    assert!(!known.complete, "{known:?}");
    assert_eq!(known.links.len(), before.links.len(), "an interrupted dump takes nothing away");
    refresh(&mut monitor, 0);
    assert!(monitor.known().complete, "and a sound one is believed again");
}

/// The kernel itself: an address that comes while a long dump is read.
#[test]
fn the_kernel_says_that_a_dump_was_interrupted_and_it_is_heard() {
    // A namespace for this thread alone.
    let played = std::thread::Builder::new().name("rtnetlink::the_kernel_says".to_owned()).spawn(|| {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            return skipped(&format!("no network namespace: {error}"));
        }
        let mut commands = "link set lo up\n".to_owned();
        // Several times what fits into one datagram, of which the kernel prepares two ahead.
        for n in 1..4000_u32 {
            writeln!(commands, "addr add {}/32 dev lo", std::net::Ipv4Addr::from_bits(0x0a00_0000 + n))
                .expect("a string");
        }
        ip(&commands);
        let mut socket = RouteSocket::open(RECEIVE_BUFFER).expect("rtnetlink is there");
        let wanted = Wanted::Addresses(AddressFamily::Inet);
        let found = Cell::new(0);
        let mut dump = |then: &dyn Fn()| {
            found.set(0);
            let one = |_| {
                if found.replace(found.get() + 1) == 0 {
                    then();
                }
            };
            dump::dump(&mut socket, wanted, &mut Unreadable::default(), one, |_| {}).expect("the kernel answers")
        };
        let calm = dump(&|| {});
        assert!(calm.is_sound() && found.get() > 3999, "{calm:?} with {} addresses", found.get());
        let disturbed = dump(&|| ip("addr add 192.0.2.77/32 dev lo\n"));
        assert!(disturbed.interrupted && !disturbed.is_sound(), "{disturbed:?}");
        assert!(dump(&|| {}).is_sound(), "the next one is a dump of its own");
    });
    if let Err(panic) = played.expect("a thread").join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` in the namespace of this thread.
fn ip(commands: &str) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .spawn()
        .expect("ip (iproute2) runs");
    child.stdin.take().expect("it is piped").write_all(commands.as_bytes()).expect("it reads");
    assert!(child.wait().expect("it ends").success(), "{}", commands.lines().next().unwrap_or_default());
}
