//! A hop between proxy and server that keeps what was sent, and delivers it when its sender is long
//! dead, or answers in the server's place.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::process::eventually;

pub struct Relay {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What comes from connections of before is kept, and so is their end.
    holds: AtomicBool,
    /// Bytes that are kept now.
    held: AtomicUsize,
    over: AtomicBool,
    /// What a client's bytes contain, and what is answered instead of the server.
    replaces: Mutex<Option<(Vec<u8>, Vec<u8>)>>,
}

impl Relay {
    pub fn start(upstream: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let sharing = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if sharing.over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(upstream)) else {
                    continue;
                };
                carry(client, server, Arc::clone(&sharing));
            }
        });
        Relay { address, shared }
    }

    /// From now on nothing that connections of before send arrives. Those of later are not touched.
    pub fn hold(&self) {
        self.shared.holds.store(true, Ordering::SeqCst);
    }

    /// Waits until bytes are kept.
    pub fn wait_until_held(&self) {
        eventually("bytes on their way", || {
            self.shared.held.load(Ordering::SeqCst) > 0
        });
    }

    /// Delivers what is kept.
    pub fn release(&self) {
        self.shared.holds.store(false, Ordering::SeqCst);
    }

    /// The next bytes of a client that contain these are answered so, and do not arrive.
    #[allow(dead_code, reason = "not every suite that shares this answers itself")]
    pub fn replace(&self, contained: &[u8], answer: &[u8]) {
        let both = (contained.to_vec(), answer.to_vec());
        *self.shared.replaces.lock().unwrap() = Some(both);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// The answer in the server's place.
    fn takes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut replaces = self.replaces.lock().unwrap();
        let (contained, _) = replaces.as_ref()?;
        let length = contained.len();
        let found = bytes.windows(length).any(|part| part == contained);
        found.then(|| replaces.take().expect("it is there").1)
    }
}

fn carry(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || {
        // Either side may end at any time.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || forward(client, server, &shared));
}

fn forward(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    // One that came while others were held is of the time after.
    let held_back = !shared.holds.load(Ordering::SeqCst);
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = client.read(&mut bytes).unwrap_or(0);
        if let Some(answer) = shared.takes(&bytes[..read]) {
            let _ = client.write_all(&answer);
            continue;
        }
        if held_back && shared.holds.load(Ordering::SeqCst) {
            shared.held.fetch_add(read, Ordering::SeqCst);
            while shared.holds.load(Ordering::SeqCst) && !shared.over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(1));
            }
            shared.held.fetch_sub(read, Ordering::SeqCst);
        }
        if read == 0 || server.write_all(&bytes[..read]).is_err() {
            let _ = server.shutdown(Shutdown::Write);
            return;
        }
    }
}
