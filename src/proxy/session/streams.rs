//! The open streams of an HTTP/2 connection, and since when it has been idle: without a stream, or
//! with such only whose client takes nothing of its answer.
//!
//! A stream that waits for the backend, or for the rest of its request, is never idle here: the
//! session that it has become bounds that.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::Instant;

use super::read::{CLIENT_STALL_MAX, HEAD_MAX};

/// What the streams of one connection share.
#[derive(Clone)]
pub(super) struct Streams(Arc<Mutex<Counts>>);

struct Counts {
    open: usize,
    /// Those of them that wait for the client.
    unread: usize,
    /// When a stream was opened, closed, or went on.
    changed: Instant,
}

impl Counts {
    /// From then on the connection is idle for too long, if nothing changes: `max` is for one
    /// without a stream.
    fn idle_from(&self, max: Duration) -> Option<Instant> {
        match self.open {
            0 => Some(self.changed + max),
            open if open == self.unread => Some(self.changed + CLIENT_STALL_MAX),
            _ => None,
        }
    }
}

impl Streams {
    /// Of a connection that begins now.
    pub(super) fn new() -> Streams {
        Streams(Arc::new(Mutex::new(Counts {
            open: 0,
            unread: 0,
            changed: Instant::now(),
        })))
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come.
    pub(super) fn open(&self) -> Stream {
        let mut counts = self.counts();
        counts.open += 1;
        counts.changed = Instant::now();
        drop(counts);
        Stream {
            of: self.clone(),
            is_unread: false,
        }
    }

    /// Returns when the connection has been idle for too long, where `max` is for one without a
    /// stream. Whether a stream is open then.
    pub(super) async fn idle(&self, max: Duration) -> bool {
        loop {
            let now = Instant::now();
            let (idle_from, has_open) = {
                let counts = self.counts();
                (counts.idle_from(max), counts.open > 0)
            };
            match idle_from {
                Some(idle_from) if idle_from <= now => return has_open,
                // Streams may close meanwhile: then it is too long sooner, but not before this.
                Some(idle_from) => tokio::time::sleep_until(idle_from.min(now + HEAD_MAX)).await,
                None => tokio::time::sleep(HEAD_MAX).await,
            }
        }
    }
}

/// A stream that is open while this is there.
pub(super) struct Stream {
    of: Streams,
    is_unread: bool,
}

impl Stream {
    /// Whether it waits for the client to take what is there of its answer.
    fn set_unread(&mut self, is_unread: bool) {
        let mut counts = self.of.counts();
        match (self.is_unread, is_unread) {
            (false, true) => counts.unread += 1,
            (true, false) => counts.unread -= 1,
            _ => {}
        }
        counts.changed = Instant::now();
        self.is_unread = is_unread;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.set_unread(false);
        self.of.counts().open -= 1;
    }
}

/// The body of an answer, which tells how its stream goes on: hyper asks for the next piece when
/// the client has taken the one before.
pub(super) struct Answer {
    body: Incoming,
    stream: Stream,
}

impl Answer {
    /// To the request that has opened this stream.
    pub(super) fn new(body: Incoming, stream: Stream) -> Answer {
        Answer { body, stream }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        self.stream.set_unread(polled.is_ready());
        let frame = ready!(polled);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::{CLIENT_STALL_MAX, HEAD_MAX, Streams};

    #[test]
    fn a_connection_is_idle_without_streams_and_with_such_that_nobody_reads() {
        let streams = Streams::new();
        let left = || {
            let counts = streams.counts();
            counts.idle_from(HEAD_MAX).map(|at| at - counts.changed)
        };
        assert_eq!(left(), Some(HEAD_MAX));
        let (mut one, mut other) = (streams.open(), streams.open());
        assert_eq!(left(), None);
        one.set_unread(true);
        assert_eq!(left(), None, "the other one waits for its backend");
        other.set_unread(true);
        other.set_unread(true);
        assert_eq!(left(), Some(CLIENT_STALL_MAX));
        other.set_unread(false);
        assert_eq!(left(), None);
        drop(other);
        assert_eq!(left(), Some(CLIENT_STALL_MAX));
        drop(one);
        assert_eq!(left(), Some(HEAD_MAX));
    }
}
