//! A stand-in for the kubelet's port: TLS on 10250 with `certs/kubelet.crt`.
//!
//! In: the certificate folder, restarts of kubelite written down by the stand-in of `snap`. Out: handshakes. A kubelet
//! before 1.31 loads its pair at its start; a later one whenever the file changes.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::api_server::{Pair, Reloading, load, shake_hands};
use super::timeline::Timeline;
use super::{Result, services};

/// The kubelet's port.
const PORT: u16 = 10250;
/// How often files, restarts and the listener are looked at.
const TICK: Duration = Duration::from_millis(20);

/// The server; it stops when this is dropped.
#[derive(Debug)]
pub(crate) struct Kubelet {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kubelet {
    pub(crate) fn start(root: &Path, certificates: PathBuf, reloading: Reloading, timeline: &Timeline) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let listener = TcpListener::bind(("127.0.0.1", PORT))?;
        listener.set_nonblocking(true)?;
        let mut pair = load(&certificates, "kubelet")?;
        let (root, ended, timeline) = (root.to_owned(), Arc::clone(&stop), timeline.clone());
        let mut restarts = services::restarts(&root);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let now = services::restarts(&root);
                if now != restarts || reloading == Reloading::OnChange {
                    restarts = now;
                    // A pair that does not load is no news: the one in use stays.
                    if let Some(new) = load(&certificates, "kubelet").ok().filter(|new| new.1 != pair.1) {
                        timeline.note("kubelet", "has loaded another pair");
                        pair = new;
                    }
                }
                accept(&listener, &pair);
                thread::sleep(TICK);
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has already been printed.
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, (config, _): &Pair) {
    while let Ok((stream, _)) = listener.accept() {
        let config = Arc::clone(config);
        // Whoever asks knows whether it was answered.
        thread::spawn(move || _ = shake_hands(stream, config));
    }
}
