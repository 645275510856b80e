//! What is left of an HTTP/2 request's body when the answer is known before its end.
//!
//! RFC 9113 8.1 has a server that answers early end the stream by RST_STREAM with NO_ERROR, and
//! clients keep the answer all the same. Not all do: curl 7.88 takes a reset that it reads together
//! with the answer for a failure, and tells its user nothing of the refusal. So the rest is let
//! come and thrown away, within bounds; a client that has the answer seldom sends much of it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;

/// Most of it that is read, in bytes: then the client is made to wait, which it does not if it has
/// seen the answer.
const BYTES_MAX: usize = 1 << 20;
/// After which it is reset whatever has come.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A client's body. What was not read of it when it is dropped is read and thrown away.
pub struct Unread(Option<Incoming>);

impl Unread {
    /// Of this request.
    pub fn new(body: Incoming) -> Unread {
        Unread(Some(body))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(body) = self.0.take() {
            discard(body);
        }
    }
}

impl Body for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

/// Reads the rest of a body beside what its caller does. It ends with the body, with the
/// connection, or at its bounds.
fn discard(body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    // None while the runtime goes down, and the connection with it.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(tokio::time::timeout(WAIT_MAX, read(body)));
    }
}

async fn read(mut body: Incoming) {
    let mut bytes = 0;
    while let Some(Ok(frame)) = body.frame().await {
        bytes += frame.data_ref().map_or(0, |data| data.len());
        if bytes > BYTES_MAX {
            // Held, not read.
            std::future::pending::<()>().await;
        }
    }
}
