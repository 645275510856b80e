//! A session whose bytes pass unread: of a listener without rules, and of replication.

use std::task::{Context, Poll};

use super::wire::{Received, Sent, Side};

/// A client and its backend connection.
pub struct Relay {
    client: Side,
    backend: Side,
    client_ended: bool,
    backend_ended: bool,
    /// The server knows that the client has ended.
    told: bool,
}

impl Relay {
    /// What is in the buffers is passed first.
    pub fn new(mut client: Side, mut backend: Side) -> Relay {
        let ahead = std::mem::take(&mut client.received);
        backend.send(&ahead);
        let ahead = std::mem::take(&mut backend.received);
        client.send(&ahead);
        Relay {
            client,
            backend,
            client_ended: false,
            backend_ended: false,
            told: false,
        }
    }

    /// Ready when the server has ended and the client has what it sent, or can be sent nothing
    /// more. A client that ends is told to the server, whose answers it may still wait for.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Relay {
            client,
            backend,
            client_ended,
            backend_ended,
            told,
        } = self;
        let forth = poll_way(client, backend, client_ended, cx);
        let back = poll_way(backend, client, backend_ended, cx);
        if forth == Way::Done && !*told {
            *told = backend.poll_close(cx).is_ready();
        }
        match (forth, back) {
            (Way::Broken, _) if *backend_ended => Poll::Ready(()),
            (_, Way::Done | Way::Broken) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Says goodbye on both sides.
    pub async fn close(&mut self) {
        self.client.close().await;
        self.backend.close().await;
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// One side has ended, and the other has all that it sent.
    Done,
    /// The other side takes nothing more.
    Broken,
}

/// Passes what is there from one side to the other.
fn poll_way(from: &mut Side, to: &mut Side, ended: &mut bool, cx: &mut Context<'_>) -> Way {
    loop {
        if to.poll_send(cx) == Sent::Failed {
            to.waiting.clear();
            return Way::Broken;
        }
        if *ended {
            return match to.is_sent() {
                true => Way::Done,
                false => Way::Open,
            };
        }
        if to.is_full() {
            return Way::Open;
        }
        match from.poll_pass(to, cx) {
            Received::Nothing => return Way::Open,
            Received::Some => {}
            Received::Ended => *ended = true,
        }
    }
}
