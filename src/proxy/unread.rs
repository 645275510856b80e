//! What is left of an HTTP/2 request's body when the answer is known before its end.
//!
//! RFC 9113 8.1 has a server that answers early end the stream by RST_STREAM with NO_ERROR, and
//! clients keep the answer all the same. Not all do: curl 7.88 takes a reset that it reads together
//! with the answer for a failure, and tells its user nothing of the refusal. So the rest is let
//! come and thrown away, within bounds; a client that has the answer seldom sends much of it.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::runtime::Handle;

/// Most of it that is read, in bytes: then the client is made to wait, which it does not if it has
/// seen the answer.
const BYTES_MAX: usize = 1 << 20;
/// After which it is reset whatever has come.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Reads the rest of a body beside what its caller does. It ends with the body, with the
/// connection, or at its bounds.
pub fn discard(body: Incoming) {
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
