//! Bodies on their way to etcd and back. None holds more than one message; what is not taken is not
//! read, so that both sides feel each other's pace.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderValue};

use super::frames::{Messages, frame, payload};
use super::guard::Guard;
use super::reply;
use super::upstream::RESPONSE_BYTES_MAX;
use crate::protocol::etcd::fence::FenceKeys;
use crate::protocol::etcd::watch::{self, Filtered};
use crate::proxy::unread::Unread;

/// Longest message of a watching client, in bytes.
const WATCH_REQUEST_BYTES_MAX: usize = 1 << 20;

/// What etcd gets.
pub enum ToEtcd {
    /// A stream of the client, as it comes.
    Stream(Unread),
    /// The stream of a watching client, which is looked at.
    Watch(WatchRequests),
    /// A whole message with its prefix.
    Whole(Option<Bytes>),
    /// Messages with their prefixes, after which the stream stays open.
    Open(Option<Bytes>),
}

/// The stream of a watching client.
pub struct WatchRequests {
    body: Unread,
    messages: Messages,
    /// Set once it has asked for responses in fragments.
    fragments: Arc<AtomicBool>,
}

impl ToEtcd {
    /// One message, with its prefix.
    pub fn whole(framed: Bytes) -> ToEtcd {
        ToEtcd::Whole(Some(framed))
    }

    /// A watching client's stream. The flag is set once it asks for responses in fragments.
    pub fn watch(body: Unread, fragments: Arc<AtomicBool>) -> ToEtcd {
        ToEtcd::Watch(WatchRequests {
            body,
            messages: Messages::new(WATCH_REQUEST_BYTES_MAX),
            fragments,
        })
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Body for ToEtcd {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            ToEtcd::Stream(body) => poll_data(body, cx),
            ToEtcd::Watch(requests) => requests.poll_frame(cx),
            ToEtcd::Whole(message) => Poll::Ready(message.take().map(|it| Ok(Frame::data(it)))),
            ToEtcd::Open(messages) => match messages.take() {
                Some(messages) => Poll::Ready(Some(Ok(Frame::data(messages)))),
                // Dropped with the response: nobody is to be woken.
                None => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ToEtcd::Stream(body) => body.is_end_stream(),
            ToEtcd::Watch(requests) => requests.body.is_end_stream(),
            ToEtcd::Whole(message) => message.is_none(),
            ToEtcd::Open(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ToEtcd::Whole(Some(message)) => SizeHint::with_exact(message.len() as u64),
            ToEtcd::Whole(None) => SizeHint::with_exact(0),
            ToEtcd::Stream(_) | ToEtcd::Watch(_) | ToEtcd::Open(_) => SizeHint::default(),
        }
    }
}

/// Data alone: gRPC's clients send no trailers, and a ticket must not travel in one.
fn poll_data(
    body: &mut (impl Body<Data = Bytes, Error = hyper::Error> + Unpin),
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    loop {
        let read = ready!(Pin::new(&mut *body).poll_frame(cx));
        match read {
            Some(Ok(frame)) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        }
    }
}

impl WatchRequests {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let read = ready!(poll_data(&mut self.body, cx));
        if let Some(Ok(frame)) = &read
            && let Some(data) = frame.data_ref()
        {
            self.messages.push(data);
            loop {
                match self.messages.next() {
                    Ok(None) => break,
                    Ok(Some(message)) => match watch::asks_for_fragments(&payload(message)) {
                        Ok(asks) => {
                            self.fragments.fetch_or(asks, Ordering::Relaxed);
                        }
                        Err(error) => return Poll::Ready(Some(Err(error.into()))),
                    },
                    Err(error) => return Poll::Ready(Some(Err(error.into()))),
                }
            }
        }
        Poll::Ready(read)
    }
}

/// What a client gets.
pub enum ToClient {
    /// Nothing: the headers told all.
    Empty,
    /// A message and its trailers.
    Message(Option<Bytes>, Option<HeaderMap>),
    /// etcd's body as it comes.
    Stream(Incoming),
    /// The responses of a watch, without fence keys.
    Watch(Box<WatchResponses>),
    /// A stream that was opened under tickets.
    Guarded(Box<Guarded>),
    /// It has ended.
    Ended,
}

/// A stream that was opened under tickets: it ends when one of them is superseded.
pub struct Guarded {
    guard: Guard,
    body: ToClient,
}

/// The responses of a watch.
pub struct WatchResponses {
    body: Incoming,
    messages: Messages,
    keys: FenceKeys,
    fragments: Arc<AtomicBool>,
}

impl ToClient {
    /// The responses of a watch, without what concerns these keys.
    pub fn watch(body: Incoming, keys: FenceKeys, fragments: Arc<AtomicBool>) -> ToClient {
        ToClient::Watch(Box::new(WatchResponses {
            body,
            messages: Messages::new(RESPONSE_BYTES_MAX),
            keys,
            fragments,
        }))
    }

    /// The same stream as long as the tickets that it was opened under are current.
    pub fn guarded(self, guard: Guard) -> ToClient {
        match self {
            // It has not begun.
            ToClient::Empty => ToClient::Empty,
            body => ToClient::Guarded(Box::new(Guarded { guard, body })),
        }
    }

    /// The stream was lost: a client that gets only a reset would take it for an error of its own.
    fn end_lost(&mut self, error: &dyn std::fmt::Display) -> Frame<Bytes> {
        tracing::debug!(%error, "a stream of etcd was lost");
        *self = ToClient::Ended;
        let mut trailers = HeaderMap::new();
        // UNAVAILABLE: what clients take for "connect again".
        trailers.insert("grpc-status", HeaderValue::from_static("14"));
        let message = HeaderValue::from_static("the connection to etcd was lost");
        trailers.insert("grpc-message", message);
        Frame::trailers(trailers)
    }
}

impl Body for ToClient {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let me = self.get_mut();
        let frame = match me {
            ToClient::Empty | ToClient::Ended => return Poll::Ready(None),
            ToClient::Message(message, trailers) => {
                let message = message.take().map(Frame::data);
                let frame = message.or_else(|| trailers.take().map(Frame::trailers));
                return Poll::Ready(frame.map(Ok));
            }
            ToClient::Stream(body) => match ready!(Pin::new(body).poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => me.end_lost(&error),
            },
            ToClient::Guarded(guarded) => {
                let frame = match guarded.guard.poll_superseded(cx) {
                    Poll::Pending => return Pin::new(&mut guarded.body).poll_frame(cx),
                    Poll::Ready(refusal) => Frame::trailers(reply::trailers(&refusal)),
                };
                *me = ToClient::Ended;
                frame
            }
            ToClient::Watch(responses) => match ready!(responses.poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Ok(frame)) => frame,
                Some(Err(error)) => me.end_lost(&error),
            },
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ToClient::Empty | ToClient::Ended => true,
            ToClient::Message(message, trailers) => message.is_none() && trailers.is_none(),
            ToClient::Stream(body) => body.is_end_stream(),
            // A message may wait to be cut, or trailers of ours.
            ToClient::Watch(_) | ToClient::Guarded(_) => false,
        }
    }
}

impl WatchResponses {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            match self.next_message() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                None if self.messages.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err("it ended within a message".into()))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.messages.push(&data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
    }

    /// The next one that is to be sent on, with its prefix.
    fn next_message(&mut self) -> Result<Option<Bytes>, BoxError> {
        while let Some(framed) = self.messages.next()? {
            let message = payload(framed.clone());
            let fragments = self.fragments.load(Ordering::Relaxed);
            match watch::filter(&message, &self.keys, fragments)? {
                Filtered::Same => return Ok(Some(framed)),
                Filtered::Edited(edited) => return Ok(Some(frame(&edited))),
                Filtered::Nothing => {}
            }
        }
        Ok(None)
    }
}
