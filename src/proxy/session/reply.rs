//! Stage 5, reply: what the client gets back, from the backend or from us.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::protocol::head::StrippedHeaders;
use crate::protocol::refusal::RefusalReply;
use crate::proxy::upstream::{BodyError, Connection, Pool};

/// The body of a reply.
pub enum ReplyBody {
    /// None.
    Empty,
    /// Ours.
    Whole(Bytes),
    /// The backend's, read from its connection by the task that serves the client.
    Direct(Direct),
    /// The backend's, read by the task that owns the write.
    Relayed(Relayed),
}

/// A response's body on a connection that goes back to its pool at the end.
pub struct Direct {
    body: Incoming,
    /// Taken when the body has ended.
    connection: Option<Box<Connection>>,
    pool: Arc<Pool>,
}

/// Frames from the task that owns the write.
pub struct Relayed {
    pub(super) frames: mpsc::Receiver<Result<Frame<Bytes>, BodyError>>,
    pub(super) size: SizeHint,
    pub(super) ended: bool,
}

/// The reply that carries a response of the backend directly.
pub fn direct(
    response: Response<Incoming>,
    connection: Connection,
    pool: &Arc<Pool>,
) -> Response<ReplyBody> {
    let (mut head, body) = response.into_parts();
    clean_head(&mut head);
    let mut direct = Direct {
        body,
        connection: Some(Box::new(connection)),
        pool: Arc::clone(pool),
    };
    if direct.body.is_end_stream() {
        // hyper does not poll such a body: the connection would not come back.
        direct.give_back(&mut Context::from_waker(std::task::Waker::noop()));
        return Response::from_parts(head, ReplyBody::Empty);
    }
    Response::from_parts(head, ReplyBody::Direct(direct))
}

/// Takes what ends at this hop out of a response's head.
pub fn clean_head(head: &mut hyper::http::response::Parts) {
    // hyper writes the version that the client speaks.
    head.version = hyper::Version::default();
    let headers = std::mem::take(&mut head.headers);
    head.headers = without_hop_by_hop(headers);
}

/// The fields that travel on, in their order.
pub fn without_hop_by_hop(headers: HeaderMap) -> HeaderMap {
    let pairs = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    let stripped = StrippedHeaders::of(pairs);
    let stays = headers.keys().any(|name| stripped.strips(name.as_str()));
    if !stays {
        return headers;
    }
    // Rebuilt, since taking a field out of a HeaderMap changes the order of the others.
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in &headers {
        if !stripped.strips(name.as_str()) {
            kept.append(name.clone(), value.clone());
        }
    }
    kept
}

/// Our own reply.
pub fn refusal(reply: RefusalReply) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Whole(reply.body.into()));
    // Both come from tables of valid values; were one not, the client still gets a refusal.
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    for (name, value) in reply.headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            response
                .headers_mut()
                .append(HeaderName::from_static(name), value);
        }
    }
    response
}

impl Direct {
    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Some(mut connection) = self.connection.take()
            && connection.is_reusable(cx)
        {
            self.pool.put(*connection);
        }
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending()
            && let Some(connection) = &mut self.connection
        {
            connection.drive(cx);
            frame = Pin::new(&mut self.body).poll_frame(cx);
        }
        let frame = ready!(frame);
        if !matches!(frame, Some(Ok(_))) || self.body.is_end_stream() {
            self.give_back(cx);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }
}

impl Relayed {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.frames.poll_recv(cx));
        self.ended = frame.is_none();
        Poll::Ready(frame)
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            ReplyBody::Empty => Poll::Ready(None),
            ReplyBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ReplyBody::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            ReplyBody::Direct(direct) => direct.poll_frame(cx),
            ReplyBody::Relayed(relayed) => relayed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ReplyBody::Empty => true,
            ReplyBody::Whole(bytes) => bytes.is_empty(),
            ReplyBody::Direct(direct) => direct.body.is_end_stream(),
            ReplyBody::Relayed(relayed) => relayed.ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Empty => SizeHint::with_exact(0),
            ReplyBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ReplyBody::Direct(direct) => direct.body.size_hint(),
            ReplyBody::Relayed(relayed) => relayed.size,
        }
    }
}
