//! Bytes to and from a connection that is polled, without a buffer per idle connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of one read.
const READ_BYTES_MAX: usize = 64 << 10;
/// Memory that an idle connection keeps per buffer, in bytes.
const KEPT_BYTES_MAX: usize = 4 << 10;

thread_local! {
    /// What a core reads into: idle connections keep no buffer of this size.
    static SCRATCH: std::cell::RefCell<Box<[u8]>> =
        std::cell::RefCell::new(vec![0; READ_BYTES_MAX].into_boxed_slice());
}

pub(super) enum Sent {
    Nothing,
    /// So many bytes.
    Some(u64),
    Failed,
}

pub(super) fn poll_send(
    stream: &mut (impl AsyncWrite + Unpin),
    bytes: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Sent {
    if bytes.is_empty() {
        return Sent::Nothing;
    }
    match Pin::new(stream).poll_write(cx, bytes) {
        Poll::Pending => Sent::Nothing,
        Poll::Ready(Ok(0) | Err(_)) => Sent::Failed,
        Poll::Ready(Ok(sent)) => {
            bytes.advance(sent);
            shrink(bytes);
            Sent::Some(sent as u64)
        }
    }
}

/// What has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// Nothing yet.
    Nothing,
    /// Some bytes.
    Some,
    /// The other side has ended, or failed.
    Ended,
}

pub(super) fn poll_receive(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Received {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        match Pin::new(stream).poll_read(cx, &mut buffer) {
            Poll::Pending => Received::Nothing,
            Poll::Ready(Err(_)) => Received::Ended,
            Poll::Ready(Ok(())) if buffer.filled().is_empty() => Received::Ended,
            Poll::Ready(Ok(())) => {
                bytes.extend_from_slice(buffer.filled());
                Received::Some
            }
        }
    })
}

/// An idle connection keeps little memory.
pub(super) fn shrink(bytes: &mut BytesMut) {
    if bytes.is_empty() && bytes.capacity() > KEPT_BYTES_MAX {
        *bytes = BytesMut::new();
    }
}
