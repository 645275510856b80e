//! The bodies of requests on their way to a backend.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::protocol::head::is_ticket_name;
use crate::proxy::spool::HeldBody;
use crate::proxy::withheld::Withheld;

/// Why a body ended early.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body on its way to a backend, and how far it is.
pub struct RequestBody {
    kind: Kind,
    handing: Handing,
}

enum Kind {
    Empty,
    /// As it comes from the client.
    Streamed(Incoming),
    /// Read whole before.
    Held(HeldBody),
    /// As it comes, without its tail until the write is released.
    Withheld(Withheld),
}

/// Tells how far the handing over of a body is.
///
/// Orderings are relaxed: body and reader are polled by one task.
#[derive(Clone, Default)]
pub struct Handing(Option<Arc<Handed>>);

#[derive(Default)]
struct Handed {
    /// How often the body was asked for more: then the backend's side had room.
    asked: AtomicU64,
    /// The last time, the client had nothing.
    client_waited_for: AtomicBool,
    ended: AtomicBool,
}

impl Handing {
    fn pending() -> Handing {
        Handing(Some(Arc::default()))
    }

    /// Whether the body has been handed over whole.
    pub fn has_ended(&self) -> bool {
        self.0
            .as_ref()
            .is_none_or(|it| it.ended.load(Ordering::Relaxed))
    }

    /// Changes whenever the backend's side takes something.
    pub fn asked(&self) -> u64 {
        self.0
            .as_ref()
            .map_or(0, |it| it.asked.load(Ordering::Relaxed))
    }

    /// Whether it is the client, not the backend, that holds it up.
    pub fn waits_for_client(&self) -> bool {
        let waits = |it: &Arc<Handed>| it.client_waited_for.load(Ordering::Relaxed);
        !self.has_ended() && self.0.as_ref().is_some_and(waits)
    }

    fn note(&self, client_waited_for: bool, ended: bool) {
        if let Some(it) = &self.0 {
            it.asked.fetch_add(1, Ordering::Relaxed);
            it.client_waited_for
                .store(client_waited_for, Ordering::Relaxed);
            if ended {
                it.ended.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl RequestBody {
    /// No body.
    pub fn empty() -> RequestBody {
        RequestBody {
            kind: Kind::Empty,
            handing: Handing::default(),
        }
    }

    /// The client's body as it comes.
    pub fn streamed(body: Incoming) -> RequestBody {
        match body.is_end_stream() {
            true => RequestBody::empty(),
            false => RequestBody {
                kind: Kind::Streamed(body),
                handing: Handing::pending(),
            },
        }
    }

    /// A body that was read whole.
    pub fn held(body: HeldBody) -> RequestBody {
        RequestBody {
            kind: Kind::Held(body),
            handing: Handing::pending(),
        }
    }

    /// The client's body with its tail withheld.
    pub fn withheld(body: Withheld) -> RequestBody {
        RequestBody {
            kind: Kind::Withheld(body),
            handing: Handing::pending(),
        }
    }

    pub(super) fn handing(&self) -> Handing {
        self.handing.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let me = self.get_mut();
        let frame = match &mut me.kind {
            Kind::Empty => Poll::Ready(None),
            Kind::Streamed(body) => poll_streamed(body, cx),
            Kind::Held(body) => Pin::new(body).poll_frame(cx),
            Kind::Withheld(body) => Pin::new(body).poll_frame(cx),
        };
        // hyper does not poll for the end of a body whose length it knows.
        let ended = matches!(frame, Poll::Ready(None)) || me.is_end_stream();
        me.handing.note(frame.is_pending(), ended);
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Streamed(body) => body.is_end_stream(),
            Kind::Held(body) => body.is_end_stream(),
            Kind::Withheld(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Streamed(body) => body.size_hint(),
            Kind::Held(body) => body.size_hint(),
            Kind::Withheld(body) => body.size_hint(),
        }
    }
}

fn poll_streamed(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    let frame = ready!(Pin::new(body).poll_frame(cx));
    Poll::Ready(frame.map(|frame| frame.map(without_ticket).map_err(Into::into)))
}

/// The backend never sees a ticket, not even in a trailer of a request that needs none.
fn without_ticket(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Err(data) => data,
        Ok(trailers) => {
            let passes = |(name, _): &(hyper::header::HeaderName, _)| {
                !is_ticket_name(name.as_str().as_bytes())
            };
            let mut last = None;
            let named = trailers.into_iter().map(|(name, value)| {
                last = name.or_else(|| last.take());
                (last.clone(), value)
            });
            let kept = named
                .filter_map(|(name, value)| Some((name?, value)))
                .filter(passes);
            Frame::trailers(kept.collect())
        }
    }
}
