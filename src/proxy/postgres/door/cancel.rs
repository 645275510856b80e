//! Cancel requests: a key of our own for each session, and the request carried to the server under
//! the server's key.
//!
//! Invariants:
//! - a key is compared in constant time, and only with those of the process that it names;
//! - a key ends with its session, so that a late request reaches nobody else;
//! - a statement that waits for the gate is not the server's yet: the session refuses it itself,
//!   and goes on only when the request has reached the server, so that it ends one statement;
//! - the client's connection ends after the server has ended ours: what the client sends next is
//!   then behind the signal, as it is without a proxy (libpq's PQcancel waits for that end).

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use dashmap::DashMap;
use rustix::rand::{GetRandomFlags, getrandom};
use subtle::ConstantTimeEq as _;
use tokio::sync::{mpsc, oneshot};

use super::Door;
use crate::protocol::postgres::frame::{CANCEL_KEY_BYTES_MAX, backend_key_data, cancel_request};
use crate::proxy::postgres::wire::Side;

/// Bytes of a key in protocol 3.0; longer ones came with 3.2.
const SHORT_KEY_BYTES: usize = 4;
/// Bytes of our keys where the server's are long: as many as PostgreSQL 18 makes.
const LONG_KEY_BYTES: usize = 32;

/// The keys of one listener's sessions. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct CancelKeys(Arc<DashMap<i32, Vec<Keys>>>);

struct Keys {
    /// The client's.
    ours: Box<[u8]>,
    /// The server's.
    theirs: Box<[u8]>,
    /// Tells the session.
    tells: mpsc::Sender<Cancelled>,
}

/// The key of one session, until it is dropped.
pub struct CancelKey {
    all: CancelKeys,
    process: i32,
    ours: Box<[u8]>,
    /// The requests that come with it.
    requests: mpsc::Receiver<Cancelled>,
    /// The task will be woken for the next one.
    awaited: bool,
}

/// A client has asked to cancel its session's statement.
pub struct Cancelled {
    /// Told when the session has stopped what waits.
    pub noted: oneshot::Sender<()>,
    /// Ends when the request has reached the server, or cannot.
    pub carried: oneshot::Receiver<()>,
}

/// A request that a client sent.
pub(super) struct CancelRequest {
    pub(super) process: i32,
    pub(super) key: Box<[u8]>,
}

impl CancelKeys {
    /// A new key for the session of this process. It is as long as the server's, in kind: the
    /// client may not take a longer one.
    pub(super) fn issue(&self, process: i32, theirs: &[u8]) -> io::Result<CancelKey> {
        let mut ours = match theirs.len() {
            SHORT_KEY_BYTES => vec![0; SHORT_KEY_BYTES],
            _ => vec![0; LONG_KEY_BYTES],
        };
        // Up to 256 bytes come at once, or not at all (getrandom(2)).
        const { assert!(LONG_KEY_BYTES <= CANCEL_KEY_BYTES_MAX) };
        getrandom(&mut ours[..], GetRandomFlags::empty())?;
        let ours: Box<[u8]> = ours.into();
        // One that is on its way does what another would.
        let (tells, requests) = mpsc::channel(1);
        let keys = Keys {
            ours: ours.clone(),
            theirs: theirs.into(),
            tells,
        };
        self.0.entry(process).or_default().push(keys);
        Ok(CancelKey {
            all: self.clone(),
            process,
            ours,
            requests,
            awaited: false,
        })
    }

    /// The server's key for a client's, and whom to tell.
    fn find(&self, request: &CancelRequest) -> Option<(Box<[u8]>, mpsc::Sender<Cancelled>)> {
        let of_process = self.0.get(&request.process)?;
        let mut found = None;
        for keys in of_process.iter() {
            if bool::from(keys.ours.ct_eq(&request.key)) {
                found = Some((keys.theirs.clone(), keys.tells.clone()));
            }
        }
        found
    }
}

impl CancelKey {
    /// Nobody listens for requests: nothing of the session ever waits.
    pub fn listen_no_more(&mut self) {
        self.requests.close();
    }

    /// The next request, if one has come; otherwise this task is woken for it. Asked by one task
    /// only, and first in its turn: where tokio's budget is used up, nothing would wake it.
    pub fn poll_request(&mut self, cx: &mut Context<'_>) -> Option<Cancelled> {
        if self.awaited && self.requests.is_empty() {
            return None;
        }
        let polled = self.requests.poll_recv(cx);
        self.awaited = polled.is_pending();
        match polled {
            Poll::Ready(request) => request,
            Poll::Pending => None,
        }
    }

    /// BackendKeyData for the client.
    pub(super) fn message(&self) -> Vec<u8> {
        backend_key_data(self.process, &self.ours)
    }
}

impl Drop for CancelKey {
    fn drop(&mut self) {
        if let Some(mut of_process) = self.all.0.get_mut(&self.process) {
            of_process.retain(|keys| keys.ours != self.ours);
        }
        self.all
            .0
            .remove_if(&self.process, |_, keys| keys.is_empty());
    }
}

impl Door {
    /// Carries a request to the server. Nobody is told what came of it: the protocol has no answer.
    pub(super) async fn carry_out(&self, mut client: Side, request: &CancelRequest) {
        if let Some((theirs, tells)) = self.keys.find(request) {
            let carried = self.tell_and_carry(request.process, &theirs, &tells);
            match tokio::time::timeout(self.connect_max, carried).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "a cancel request was not carried out"),
                Err(_) => tracing::warn!("the backend does not end a cancel request"),
            }
        }
        client.close().await;
    }

    async fn tell_and_carry(
        &self,
        process: i32,
        key: &[u8],
        tells: &mpsc::Sender<Cancelled>,
    ) -> io::Result<()> {
        let (noted, is_noted) = oneshot::channel();
        // Its end is what is told.
        let (_carried, carried) = oneshot::channel();
        // It fails where nobody listens.
        if tells.try_send(Cancelled { noted, carried }).is_ok() {
            let _ = is_noted.await;
        }
        self.carry(process, key).await
    }

    async fn carry(&self, process: i32, key: &[u8]) -> io::Result<()> {
        let wire = self.connect().await.map_err(io::Error::other)?;
        let mut backend = Side::new(wire);
        backend.send(&cancel_request(process, key));
        backend.send_all().await?;
        // It says nothing; a server that does is not listened to for ever.
        while backend.receive().await? {
            backend.received.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CancelKeys, CancelRequest};

    fn request(process: i32, key: &[u8]) -> CancelRequest {
        CancelRequest {
            process,
            key: key.into(),
        }
    }

    #[test]
    fn a_key_finds_its_own_session_only_and_ends_with_it() {
        let keys = CancelKeys::default();
        let first = keys.issue(7, &[1; 4]).unwrap();
        let second = keys.issue(7, &[2; 32]).unwrap();
        assert_eq!((first.ours.len(), second.ours.len()), (4, 32));
        let theirs = |key: &[u8], process| Some(keys.find(&request(process, key))?.0);
        assert_eq!(theirs(&first.ours, 7), Some([1; 4].into()));
        assert_eq!(theirs(&second.ours, 7), Some([2; 32].into()));
        assert_eq!(theirs(&first.ours, 8), None);
        assert_eq!(theirs(&second.ours[..4], 7), None);
        // The server's own key is no key here.
        assert_eq!(theirs(&[1; 4], 7), None);
        let late = first.ours.clone();
        drop(first);
        assert_eq!(theirs(&late, 7), None);
        assert!(theirs(&second.ours, 7).is_some());
        drop(second);
        assert!(keys.0.is_empty());
    }
}
