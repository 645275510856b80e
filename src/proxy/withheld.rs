//! The body of a fenced write on its way to a backend that discards truncated bodies: it streams,
//! and its tail is held back until the write is released.
//!
//! Invariants:
//! - the last real bytes of the payload leave only after every permit of the write is released;
//! - once a permit is revoked, no further byte leaves.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use super::doubts::InFlight;
use super::upstream::BodyError;
use crate::protocol::Refusal;
use crate::protocol::head::is_ticket_name;

/// How far a streamed write has come.
pub enum Progress {
    /// Its tail is withheld.
    Streaming,
    /// All of it may leave.
    Released,
    /// It must not be completed: this is what the client is told.
    Refused(Refusal),
    /// The client went away or broke its framing; nobody is left to be told.
    ClientLost,
    /// The backend has answered early: nothing more is to leave.
    Halted,
}

/// What the body and the task that carries the write share.
#[derive(Clone)]
pub struct Control(Arc<Mutex<State>>);

struct State {
    in_flight: Option<InFlight>,
    progress: Progress,
}

impl Control {
    /// For a write whose head is about to leave: its permits are forwarded.
    pub fn new(in_flight: InFlight) -> Control {
        let state = State {
            in_flight: Some(in_flight),
            progress: Progress::Streaming,
        };
        Control(Arc::new(Mutex::new(state)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready once a permit is revoked while the tail is withheld. The body looks for itself when it
    /// is asked for more; a backend that takes nothing does not ask.
    pub fn poll_revoked(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let State {
            in_flight: Some(in_flight),
            progress: progress @ Progress::Streaming,
        } = &mut *state
        else {
            return Poll::Pending;
        };
        in_flight
            .poll_revoked(cx)
            .map(|refusal| *progress = Progress::Refused(refusal))
    }

    /// Ends the streaming, wherever it is, and takes the permits with what was reached.
    pub fn halt(&self) -> (Option<InFlight>, Progress) {
        let mut state = self.lock();
        let progress = std::mem::replace(&mut state.progress, Progress::Halted);
        (state.in_flight.take(), progress)
    }
}

/// The limits of a body from a client.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes_max: u64,
    /// Longest time between two frames.
    pub stall_max: Duration,
}

/// The body.
pub struct Withheld {
    body: Incoming,
    control: Control,
    limits: BodyLimits,
    stall: Pin<Box<Sleep>>,
    received: u64,
    /// The last payload that came: at least one byte.
    kept: Option<Bytes>,
    /// The client's body has ended and the write is released.
    ended: bool,
}

impl Withheld {
    /// The client's body under this control.
    pub fn new(body: Incoming, control: Control, limits: BodyLimits) -> Withheld {
        let stall = Box::pin(tokio::time::sleep(limits.stall_max));
        Withheld {
            body,
            control,
            limits,
            stall,
            received: 0,
            kept: None,
            ended: false,
        }
    }

    fn poll_payload(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Progress>> {
        loop {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(Ok(None)),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(Progress::ClientLost)),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Pending => {
                    return self
                        .stall
                        .as_mut()
                        .poll(cx)
                        .map(|()| Err(stalled(self.limits)));
                }
            };
            self.stall
                .as_mut()
                .reset(Instant::now() + self.limits.stall_max);
            match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => {
                    self.received += data.len() as u64;
                    if self.received > self.limits.bytes_max {
                        return Poll::Ready(Err(Progress::Refused(too_long(self.limits))));
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
                // Other trailers are left out (RFC 9110 6.5.1 allows it): a body of declared length
                // cannot carry them.
                Err(frame) => {
                    if frame.trailers_ref().is_some_and(carries_ticket) {
                        return Poll::Ready(Err(Progress::Refused(ticket_in_trailer())));
                    }
                }
            }
        }
    }
}

/// A ticket that comes after the decision.
pub fn ticket_in_trailer() -> Refusal {
    Refusal::malformed("a ticket cannot travel in a trailer")
}

/// Whether a trailer section names the ticket's header.
pub fn carries_ticket(trailers: &hyper::HeaderMap) -> bool {
    trailers
        .keys()
        .any(|name| is_ticket_name(name.as_str().as_bytes()))
}

/// A body beyond the listener's limit.
pub fn too_long(limits: BodyLimits) -> Refusal {
    Refusal::malformed(format!(
        "the body is longer than {} bytes",
        limits.bytes_max
    ))
}

fn stalled(limits: BodyLimits) -> Progress {
    let detail = format!(
        "no byte of the body came for {} ms",
        limits.stall_max.as_millis()
    );
    Progress::Refused(Refusal::malformed(detail))
}

impl Body for Withheld {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let me = self.get_mut();
        if me.ended {
            return Poll::Ready(me.kept.take().map(|data| Ok(Frame::data(data))));
        }
        let control = me.control.clone();
        let mut state = control.lock();
        let State {
            in_flight: Some(in_flight),
            progress: progress @ Progress::Streaming,
        } = &mut *state
        else {
            return Poll::Ready(Some(Err("the write is not to be completed".into())));
        };
        loop {
            if let Poll::Ready(refusal) = in_flight.poll_revoked(cx) {
                *progress = Progress::Refused(refusal);
                return Poll::Ready(Some(Err("revoked by a newer token".into())));
            }
            match me.poll_payload(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(Some(data))) => {
                    if let Some(before) = me.kept.replace(data) {
                        return Poll::Ready(Some(Ok(Frame::data(before))));
                    }
                }
                Poll::Ready(Ok(None)) => {
                    if let Err(refusal) = in_flight.release() {
                        *progress = Progress::Refused(refusal);
                        return Poll::Ready(Some(Err("revoked by a newer token".into())));
                    }
                    *progress = Progress::Released;
                    me.ended = true;
                    return Poll::Ready(me.kept.take().map(|data| Ok(Frame::data(data))));
                }
                Poll::Ready(Err(reason)) => {
                    *progress = reason;
                    return Poll::Ready(Some(Err("the client's body cannot be completed".into())));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.kept.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        // Asked for once, before the first frame.
        self.body.size_hint()
    }
}
