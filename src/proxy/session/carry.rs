//! A fenced write on its way, in a task of its own: once it is released it runs to the end of the
//! response whether the client stays or not, and only then are its permits finished.
//!
//! Invariants:
//! - permits are finished when the whole response was seen, or when it is proven that the write can
//!   never be applied: its head or its tail has not left and the connection was reset;
//! - anything else leaves them in doubt, and the client is told that the outcome is unknown.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::{Request, Response};
use tokio::sync::{mpsc, oneshot};

use super::forward::lost_detail;
use super::reply::{self, Relayed, ReplyBody};
use crate::protocol::Refusal;
use crate::proxy::doubts::InFlight;
use crate::proxy::upstream::{BodyError, Connection, Pool, RequestBody, SendError};
use crate::proxy::withheld::{Control, Progress};

/// Most frames of a response that wait for a slow client.
const REPLY_FRAMES_MAX: usize = 8;
/// How long a client that takes no bytes of its reply holds the permits of its write: alone, and
/// while a newer token waits. After it the rest of the reply is dropped.
const CLIENT_STALL_MAX: Duration = Duration::from_secs(10);
const CLIENT_STALL_REVOKED_MAX: Duration = Duration::from_secs(1);
/// Longest body of an early response, in bytes, and how long it may take.
const EARLY_REPLY_BYTES_MAX: usize = 64 << 10;
const EARLY_REPLY_MAX: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_secs(1);

type Told = oneshot::Sender<Result<Response<ReplyBody>, Refusal>>;

/// Carries one write.
pub struct Carrier {
    pub(super) pool: Arc<Pool>,
    pub(super) response_max: Duration,
    pub(super) told: Told,
    /// Held while the task runs: a shutdown waits for it.
    pub(super) alive: mpsc::Sender<()>,
}

impl Carrier {
    /// Carries a write whose permits are released: its whole body is here.
    pub fn spawn_released(
        self,
        connection: Connection,
        request: Request<RequestBody>,
        permits: InFlight,
    ) {
        tokio::spawn(self.carry_released(connection, request, permits));
    }

    /// Carries a write that streams without its tail.
    pub fn spawn_streamed(
        self,
        connection: Connection,
        request: Request<RequestBody>,
        control: Control,
    ) {
        tokio::spawn(self.carry_streamed(connection, request, control));
    }

    async fn carry_released(
        self,
        mut connection: Connection,
        request: Request<RequestBody>,
        permits: InFlight,
    ) {
        let sent = self.send(&mut connection, request).await;
        match sent {
            Ok(response) => self.relay(connection, response, permits).await,
            Err(error @ SendError::Unsent(_)) => {
                let refusal = permits.about(Refusal::busy(lost_detail(&error), RETRY_AFTER));
                permits.finish();
                tell(self.told, Err(refusal));
            }
            Err(error) => self.lose(permits, lost_detail(&error)),
        }
    }

    async fn carry_streamed(
        self,
        mut connection: Connection,
        request: Request<RequestBody>,
        control: Control,
    ) {
        let sent = {
            let sending = self.send(&mut connection, request);
            let revoked = std::future::poll_fn(|cx| control.poll_revoked(cx));
            tokio::select! {
                biased;
                sent = sending => Some(sent),
                () = revoked => None,
            }
        };
        let (permits, progress) = control.halt();
        let Some(permits) = permits else {
            return;
        };
        match (progress, sent) {
            (Progress::Released, Some(Ok(response))) => {
                self.relay(connection, response, permits).await
            }
            (Progress::Released, Some(Err(error))) => self.lose(permits, lost_detail(&error)),
            (Progress::Streaming, Some(Ok(response))) => {
                let reply = early_reply(&mut connection, response).await;
                self.abort(connection, permits, reply);
            }
            // The backend was lost while it lacked the tail: it applies nothing of it.
            (Progress::Streaming, Some(Err(error))) => {
                let refusal = Refusal::busy(lost_detail(&error), RETRY_AFTER);
                let refusal = permits.about(refusal);
                self.abort(connection, permits, Err(refusal));
            }
            (Progress::Refused(refusal), _) => {
                self.abort(connection, permits, Err(closing(refusal)))
            }
            (Progress::ClientLost | Progress::Halted, _) => {
                let refusal = Refusal::malformed("the body ended early");
                self.abort(connection, permits, Err(refusal));
            }
            // A revocation leaves a refusal. Without one nothing is known, and so in doubt.
            (Progress::Released | Progress::Streaming, None) => {
                self.lose(permits, "the exchange with the backend was given up");
            }
        }
    }

    /// Sends it, on a fresh connection if the one at hand had ended before a byte was written.
    async fn send(
        &self,
        connection: &mut Connection,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, SendError> {
        let request = match connection.send(request, self.response_max).await {
            Err(SendError::Unsent(request)) => request,
            sent => return sent,
        };
        match self.pool.connect().await {
            Ok(fresh) => {
                *connection = fresh;
                connection.send(*request, self.response_max).await
            }
            Err(_) => Err(SendError::Unsent(request)),
        }
    }

    /// Resets the connection of a write whose tail has not left, which ends it for good.
    fn abort(
        self,
        connection: Connection,
        permits: InFlight,
        reply: Result<Response<ReplyBody>, Refusal>,
    ) {
        connection.socket().abort();
        drop(connection);
        permits.finish();
        tell(self.told, reply);
    }

    /// The outcome is not known.
    fn lose(self, permits: InFlight, detail: &'static str) {
        let refusal = permits.about(Refusal::unknown(detail));
        drop(permits);
        tell(self.told, Err(refusal));
    }

    async fn relay(
        self,
        mut connection: Connection,
        response: Response<Incoming>,
        mut permits: InFlight,
    ) {
        let (mut head, mut body) = response.into_parts();
        reply::clean_head(&mut head);
        if body.is_end_stream() {
            permits.finish();
            give_back(&self.pool, connection).await;
            tell(self.told, Ok(Response::from_parts(head, ReplyBody::Empty)));
            return;
        }
        let (frames, receiver) = mpsc::channel(REPLY_FRAMES_MAX);
        let relayed = Relayed {
            frames: receiver,
            size: body.size_hint(),
            ended: false,
        };
        tell(
            self.told,
            Ok(Response::from_parts(head, ReplyBody::Relayed(relayed))),
        );
        let mut client = Some(frames);
        loop {
            let frame = next_frame(&mut connection, &mut body);
            match tokio::time::timeout(self.response_max, frame).await {
                Ok(Some(Ok(frame))) => deliver(&mut client, &mut permits, frame).await,
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) => {
                    // The write ends when its response does: S3 reports failures in the body.
                    drop(permits);
                    if let Some(client) = client {
                        let lost = "the response of the backend was cut off";
                        // The client sees an aborted reply: a success would be invented.
                        let _ = client.send(Err(lost.into())).await;
                    }
                    return;
                }
            }
        }
        permits.finish();
        give_back(&self.pool, connection).await;
        drop(self.alive);
    }
}

fn tell(told: Told, reply: Result<Response<ReplyBody>, Refusal>) {
    // The client may have gone away.
    let _ = told.send(reply);
}

/// The client may still be sending: its connection cannot be used again.
fn closing(refusal: Refusal) -> Refusal {
    Refusal {
        after: crate::protocol::AfterRefusal::Close,
        ..refusal
    }
}

async fn next_frame(
    connection: &mut Connection,
    body: &mut Incoming,
) -> Option<Result<Frame<Bytes>, hyper::Error>> {
    std::future::poll_fn(|cx| {
        let frame = std::pin::Pin::new(&mut *body).poll_frame(cx);
        if frame.is_ready() {
            return frame;
        }
        connection.drive(cx);
        std::pin::Pin::new(&mut *body).poll_frame(cx)
    })
    .await
}

/// Hands a frame to the client, or gives up on a client that does not take it.
async fn deliver(
    client: &mut Option<mpsc::Sender<Result<Frame<Bytes>, BodyError>>>,
    permits: &mut InFlight,
    frame: Frame<Bytes>,
) {
    let Some(frames) = client else {
        return;
    };
    let patience = async {
        let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
        let newer_waits = tokio::time::timeout(CLIENT_STALL_MAX, revoked)
            .await
            .is_ok();
        if newer_waits {
            tokio::time::sleep(CLIENT_STALL_REVOKED_MAX).await;
        }
    };
    let delivered = tokio::select! {
        biased;
        sent = frames.send(Ok(frame)) => sent.is_ok(),
        () = patience => false,
    };
    if !delivered {
        *client = None;
    }
}

async fn give_back(pool: &Pool, mut connection: Connection) {
    if std::future::poll_fn(|cx| std::task::Poll::Ready(connection.is_reusable(cx))).await {
        pool.put(connection);
    }
}

/// The backend has answered before it had the whole body. Its connection is about to be reset, so
/// the answer is read first.
async fn early_reply(
    connection: &mut Connection,
    response: Response<Incoming>,
) -> Result<Response<ReplyBody>, Refusal> {
    let (mut head, body) = response.into_parts();
    reply::clean_head(&mut head);
    let mut body = http_body_util::Limited::new(body, EARLY_REPLY_BYTES_MAX);
    let reading = async {
        let mut bytes = vec![];
        while let Some(frame) = next_limited(connection, &mut body).await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        Ok::<_, BodyError>(bytes)
    };
    let bytes = match tokio::time::timeout(EARLY_REPLY_MAX, reading).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) | Err(_) => {
            let detail = "the backend refused the write early, and its answer could not be read";
            return Err(closing(Refusal::busy(detail, RETRY_AFTER)));
        }
    };
    let close = hyper::header::HeaderValue::from_static("close");
    head.headers.insert(hyper::header::CONNECTION, close);
    Ok(Response::from_parts(head, ReplyBody::Whole(bytes.into())))
}

async fn next_limited(
    connection: &mut Connection,
    body: &mut http_body_util::Limited<Incoming>,
) -> Option<Result<Frame<Bytes>, BodyError>> {
    let mut frame = std::pin::pin!(body.frame());
    std::future::poll_fn(|cx| {
        let ready = frame.as_mut().poll(cx);
        if ready.is_ready() {
            return ready;
        }
        connection.drive(cx);
        frame.as_mut().poll(cx)
    })
    .await
}
