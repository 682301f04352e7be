//! What a look at a port tells, and how long a hostile peer can make it last.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ipguard::act::probe::{Probe, ProbeError};
use ipguard::facts::certificate::{Fingerprint, Served as Answer};
use nix::poll::poll;
use nix::time::{ClockId, clock_gettime};
use rustls::version::{TLS12, TLS13};

use crate::tls::{Pair, Served, answer_with, closed_port, config, listen_with, serve, speak};

const BOTH: &[&rustls::SupportedProtocolVersion] = &[&TLS12, &TLS13];

/// Time that this thread has worked: a busy machine adds nothing to it.
fn worked() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).expect("every Linux has it")
}

/// The smallest poll loop that owns a probe. Every turn is short, and the first one that begins behind the deadline is
/// the last, however late it comes.
fn look(address: SocketAddr, within: Duration) -> Result<Fingerprint, ProbeError> {
    let mut probe = Probe::new(address, Instant::now() + within);
    loop {
        let (before, late) = (worked(), Instant::now() > probe.deadline());
        let result = probe.advance();
        let turn = worked().saturating_sub(before);
        assert!(turn < Duration::from_millis(500), "one turn worked for {turn:?}");
        assert!(result.is_some() || !late, "it goes on behind its deadline");
        if let Some(result) = result {
            return result;
        }
        let left = probe.deadline().saturating_duration_since(Instant::now()).as_millis() + 1;
        poll(&mut probe.poll_fds(), u16::try_from(left).unwrap_or(u16::MAX)).expect("poll works");
    }
}

fn soon(address: SocketAddr) -> Result<Fingerprint, ProbeError> {
    look(address, Duration::from_secs(5))
}

#[test]
fn the_leaf_is_seen_with_either_version() {
    let pair = Pair::new();
    for versions in [BOTH, &[&TLS12], &[&TLS13]] {
        let address = serve(config(Served::new(&pair), versions, None));
        assert_eq!(soon(address).expect("a certificate"), pair.fingerprint());
    }
}

#[test]
fn the_leaf_is_seen_where_a_client_certificate_is_required() {
    let pair = Pair::new();
    for versions in [BOTH, &[&TLS12], &[&TLS13]] {
        let address = serve(config(Served::new(&pair), versions, Some(&Pair::new().certificate)));
        assert_eq!(soon(address).expect("a certificate"), pair.fingerprint());
    }
}

#[test]
fn the_server_sees_a_proper_end_and_no_name() {
    for versions in [&[&TLS12], &[&TLS13]] {
        let (tell, told) = mpsc::channel();
        let config = Arc::new(config(Served::new(&Pair::new()), versions, None));
        let address = listen_with(move |stream| tell.send(speak(&config, stream)).expect("the test waits for it"));
        soon(address).expect("a certificate");
        let end = told.recv_timeout(Duration::from_secs(5)).expect("the server tells");
        assert!(matches!(end, Ok(0)), "{end:?}");
    }
    // RFC 6066 extension 0, server_name, would hold the address as text.
    let (tell, told) = mpsc::channel();
    let address = listen_with(move |mut stream| {
        let mut hello = vec![0; 4096];
        let len = stream.read(&mut hello).expect("a greeting");
        hello.truncate(len);
        tell.send(hello).expect("the test waits for it");
    });
    soon(address).expect_err("it is closed");
    let hello = told.recv_timeout(Duration::from_secs(5)).expect("the server tells");
    assert!(!hello.windows(9).any(|bytes| bytes == b"127.0.0.1"));
}

#[test]
fn a_certificate_without_its_key_is_not_believed() {
    let (shown, own) = (Pair::new(), Pair::new());
    for versions in [&[&TLS12], &[&TLS13]] {
        let address = serve(config(Served::new(&shown.with_key_of(&own)), versions, None));
        let error = soon(address).expect_err("the signature is by another key");
        assert!(matches!(error, ProbeError::Tls { .. }), "{error:?}");
    }
}

#[test]
fn what_is_not_tls_is_unknown() {
    // An HTTP answer, the alert of a server that knows TLS 1.1 only, a ServerHello of TLS 1.1, an SSH banner, junk.
    let hello_of_tls11: &[u8] = &{
        let mut hello = [0; 47];
        let head = [0x16, 3, 2, 0, 42, 2, 0, 0, 38, 3, 2];
        let mut at = 0;
        while at < head.len() {
            hello[at] = head[at];
            at += 1;
        }
        hello[45] = 0x2f;
        hello
    };
    let answers: [&'static [u8]; 5] = [
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        Box::leak(hello_of_tls11.into()),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0; 4096],
    ];
    for answer in answers {
        let result = soon(answer_with(answer));
        assert!(matches!(result, Err(ProbeError::Tls { .. })), "{answer:?}: {result:?}");
        let Answer::Unknown(text) = Answer::from(result) else { panic!("{answer:?} is a leaf") };
        assert!(text.contains("127.0.0.1") && !text.contains('\n'), "{text}");
    }
}

#[test]
fn a_closed_port_is_told_from_one_that_hangs_up() {
    let (_port, address) = closed_port();
    let error = soon(address).expect_err("nobody listens");
    assert!(error.is_refusal(), "{error:?}");
    let error = soon(listen_with(drop)).expect_err("it hangs up");
    assert!(!error.is_refusal() && !matches!(error, ProbeError::TimedOut { .. }), "{error:?}");
    // A family without a route is an error of the connection, not a panic.
    let nowhere = "[2001:db8::1]:1".parse().expect("an address");
    assert!(look(nowhere, Duration::from_millis(200)).is_err());
}

#[test]
fn a_peer_that_drips_does_not_outlast_the_deadline() {
    // A record of 16 KiB is announced, then it comes byte by byte: each read succeeds.
    let address = listen_with(|mut stream| {
        let _ = stream.write_all(&[0x16, 3, 3, 0x40, 0]);
        while stream.write_all(&[2]).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    let error = look(address, Duration::from_millis(700)).expect_err("it never completes");
    assert!(matches!(error, ProbeError::TimedOut { .. }), "{error:?}");
    assert!(began.elapsed() >= Duration::from_millis(700), "took {:?}", began.elapsed());
    assert!(error.to_string().ends_with("no certificate within 0.7 s"), "{error}");
}

#[test]
fn a_silent_peer_does_not_outlast_the_deadline() {
    let address = listen_with(|mut stream| while !matches!(stream.read(&mut [0; 4096]), Ok(0) | Err(_)) {});
    let began = Instant::now();
    let error = look(address, Duration::from_millis(300)).expect_err("it never answers");
    assert!(matches!(error, ProbeError::TimedOut { .. }), "{error:?}");
    assert!(began.elapsed() >= Duration::from_millis(300), "took {:?}", began.elapsed());
}

#[test]
fn a_turn_does_not_wait_for_the_peer() {
    // It answers when the turns are over, and not before: a turn that waited would wait until the deadline, and there
    // would be no leaf.
    let (open, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let pair = Pair::new();
    let config = Arc::new(config(Served::new(&pair), BOTH, None));
    let address = listen_with(move |stream| {
        gate.lock().expect("no panic").recv().expect("the test opens it");
        drop(speak(&config, stream));
    });
    let mut probe = Probe::new(address, Instant::now() + Duration::from_secs(60));
    for _ in 0..100 {
        assert!(probe.advance().is_none(), "nobody has answered yet");
    }
    open.send(()).expect("the server waits for it");
    let leaf = loop {
        if let Some(result) = probe.advance() {
            break result;
        }
        poll(&mut probe.poll_fds(), 1000u16).expect("poll works");
    };
    assert_eq!(leaf.expect("a certificate"), pair.fingerprint());
}

#[test]
fn a_peer_that_floods_does_not_hold_a_turn() {
    // Warnings of TLS 1.2 may come in any number; rustls stops at some point, and a turn must end before either way.
    let address = listen_with(|mut stream| while stream.write_all(&[0x15, 3, 3, 0, 2, 1, 90].repeat(512)).is_ok() {});
    look(address, Duration::from_millis(700)).expect_err("there is no certificate");
}
