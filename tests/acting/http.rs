//! Servers that speak HTTP over TLS and keep what they heard.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection};

use crate::tls::listen_with;

/// Requests in full, with whether their senders showed a certificate; each is answered by `answer`, whole or in pieces.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) heard: Arc<Mutex<Vec<(String, bool)>>>,
}

pub(crate) fn server(config: ServerConfig, answer: impl Fn(usize) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Server {
    let (config, heard, count) = (Arc::new(config), Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
    let noted = Arc::clone(&heard);
    let address = listen_with(move |mut stream| {
        let mut tls = ServerConnection::new(Arc::clone(&config)).expect("the configuration is complete");
        while tls.is_handshaking() {
            if tls.complete_io(&mut stream).is_err() {
                return;
            }
        }
        let known = tls.peer_certificates().is_some();
        let mut client = rustls::Stream::new(&mut tls, &mut stream);
        let (mut request, mut piece) = (Vec::new(), [0; 7]);
        while !request.ends_with(b"\r\n\r\n") {
            let Ok(length @ 1..) = client.read(&mut piece) else { break };
            request.extend_from_slice(&piece[..length]);
        }
        noted.lock().expect("no panic").push((String::from_utf8_lossy(&request).into_owned(), known));
        for piece in answer(count.fetch_add(1, Ordering::Relaxed)) {
            let _ = client.write_all(&piece).and_then(|()| client.flush());
            std::thread::sleep(Duration::from_millis(20));
        }
        tls.send_close_notify();
        let _ = tls.complete_io(&mut stream);
    });
    Server { address, heard }
}

pub(crate) fn http(status: &str, body: &str) -> Vec<Vec<u8>> {
    // In pieces, as a network may deliver it.
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Type: text/plain\r\n\r\n{body}", body.len());
    text.as_bytes().chunks(25).map(<[u8]>::to_vec).collect()
}
