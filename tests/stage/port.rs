//! A stand-in for a server that does nothing but show its certificate: TLS on a port of the host's own address.
//!
//! In: a pair of the certificate folder, restarts of kubelite written down by the stand-in of `snap`. Out: handshakes. A
//! kubelet before 1.31 loads its pair at its start; a later one, and the API server, whenever the file changes. While there
//! is no usable pair, nobody listens.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::api_server::{Pair, Reloading, load, shake_hands};
use super::timeline::Timeline;
use super::{Result, services};

/// Where the kubelet listens.
pub(crate) const KUBELET: u16 = 10250;
/// Where MicroK8s' API server does.
pub(crate) const API_SERVER: u16 = 16443;
/// How often files, restarts and the listener are looked at.
const TICK: Duration = Duration::from_millis(20);

/// The server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Shows `name.crt` of the folder.
    pub(crate) fn open(
        port: u16,
        root: &Path,
        certificates: PathBuf,
        name: &str,
        reloading: Reloading,
        timeline: &Timeline,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (name, root, ended, timeline) = (name.to_owned(), root.to_owned(), Arc::clone(&stop), timeline.clone());
        let mut restarts = services::restarts(&root);
        let mut pair = load(&certificates, &name).ok();
        let mut listener = if pair.is_some() { Some(listen(port)?) } else { None };
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let now = services::restarts(&root);
                if now != restarts || reloading == Reloading::OnChange || pair.is_none() {
                    restarts = now;
                    // A pair that does not load is no news: the one in use stays.
                    let new = load(&certificates, &name).ok();
                    if let Some(new) = new.filter(|new| pair.as_ref().is_none_or(|pair| pair.1 != new.1)) {
                        timeline.note("port", format!("{port} shows another pair"));
                        pair = Some(new);
                    }
                }
                if pair.is_some() && listener.is_none() {
                    listener = listen(port).ok();
                }
                if let (Some(listener), Some(pair)) = (&listener, &pair) {
                    accept(listener, pair, &root);
                }
                thread::sleep(TICK);
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn accept(listener: &TcpListener, (config, _): &Pair, root: &Path) {
    while let Ok((stream, _)) = listener.accept() {
        let (config, root) = (Arc::clone(config), root.to_owned());
        // Whoever asks knows whether it was answered.
        thread::spawn(move || _ = shake_hands(stream, config, &root));
    }
}
