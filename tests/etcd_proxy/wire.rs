//! A wire between a proxy and etcd that the test can hold.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::soon;

/// A wire between a proxy and etcd: what the proxy sends can be held back.
pub struct Wire {
    pub address: SocketAddr,
    hold: Arc<Hold>,
    waiting: watch::Receiver<usize>,
}

/// What the connections of a wire share.
struct Hold {
    held: watch::Sender<bool>,
    /// Times that something was held.
    count: watch::Sender<usize>,
    /// Calls until it is held; 0: none is counted.
    calls: AtomicUsize,
}

impl Wire {
    pub async fn new(etcd: String) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (count, waiting) = watch::channel(0);
        let hold = Arc::new(Hold {
            held: watch::Sender::new(false),
            count,
            calls: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&hold);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&etcd).await else {
                    continue;
                };
                tokio::spawn(carry(client, server, Arc::clone(&shared)));
            }
        });
        Wire {
            address,
            hold,
            waiting,
        }
    }

    /// From now on nothing of the proxy reaches etcd.
    pub fn hold(&self) {
        self.hold.held.send_replace(true);
    }

    /// The same from the nth call on that the proxy begins from now on, counted from one.
    pub fn hold_before_call(&self, nth: usize) {
        self.hold.calls.store(nth, Ordering::SeqCst);
    }

    /// Waits until the proxy has sent something that is held.
    pub async fn wait_until_held(&mut self) {
        soon(
            "bytes that are held",
            self.waiting.wait_for(|count| *count > 0),
        )
        .await
        .unwrap();
    }

    pub fn let_go(&self) {
        self.hold.held.send_replace(false);
    }
}

async fn carry(client: TcpStream, server: TcpStream, hold: Arc<Hold>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::spawn(async move {
        // Either end may go.
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    let mut holding = hold.held.subscribe();
    let (mut buffer, mut frames) = (vec![0; 64 << 10], Frames::new());
    while let Ok(read) = from_client.read(&mut buffer).await {
        let mut rest = &buffer[..read];
        for at in frames.calls(rest) {
            let counted = |left: usize| left.checked_sub(1);
            let order = Ordering::SeqCst;
            if hold.calls.fetch_update(order, order, counted) == Ok(1) {
                let (before, after) = rest.split_at(at);
                if to_server.write_all(before).await.is_err() {
                    return;
                }
                rest = after;
                hold.held.send_replace(true);
            }
        }
        if *holding.borrow() {
            hold.count.send_modify(|count| *count += 1);
        }
        if holding.wait_for(|held| !held).await.is_err() {
            return;
        }
        if read == 0 || to_server.write_all(rest).await.is_err() {
            // What was sent before the end arrives before it.
            let _ = to_server.shutdown().await;
            return;
        }
    }
}

/// Finds calls in what a client of HTTP/2 sends: each begins with a HEADERS frame (RFC 9113, 4.1).
struct Frames {
    /// Bytes of the preface, or of a payload, that are still to come.
    skip: usize,
    head: Vec<u8>,
}

impl Frames {
    fn new() -> Frames {
        Frames {
            skip: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len(),
            head: vec![],
        }
    }

    /// Where calls begin in the next bytes.
    fn calls(&mut self, bytes: &[u8]) -> Vec<usize> {
        const HEADERS: u8 = 1;
        let mut found = vec![];
        for (at, byte) in bytes.iter().enumerate() {
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.head.push(*byte);
            if let [a, b, c, kind, _, _, _, _, _] = self.head[..] {
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                if kind == HEADERS {
                    found.push((at + 1).saturating_sub(9));
                }
                self.head.clear();
            }
        }
        found
    }
}
