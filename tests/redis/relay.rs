//! A network between the proxy and redis-server that can keep what was sent, and deliver it when
//! its sender is long dead.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::stack::eventually;

pub struct Relay {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// What comes from clients is kept, and so is their end.
    holds: AtomicBool,
    /// Bytes that are kept now.
    held: AtomicUsize,
    over: AtomicBool,
}

impl Relay {
    pub fn start(upstream: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let sharing = Arc::clone(&shared);
        std::thread::spawn(move || {
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
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn carry(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || {
        // Either side may end at any time.
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || forward(client, server, &shared));
}

fn forward(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    // One that came while others were held is of the time after.
    let held_back = !shared.holds.load(Ordering::SeqCst);
    let mut bytes = vec![0; 64 << 10];
    loop {
        let read = client.read(&mut bytes).unwrap_or(0);
        if held_back && shared.holds.load(Ordering::SeqCst) {
            shared.held.fetch_add(read, Ordering::SeqCst);
            while shared.holds.load(Ordering::SeqCst) && !shared.over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            shared.held.fetch_sub(read, Ordering::SeqCst);
        }
        if read == 0 || server.write_all(&bytes[..read]).is_err() {
            let _ = server.shutdown(Shutdown::Write);
            return;
        }
    }
}
