//! One HTTP/1.1 connection to a backend, driven by the task that uses it: there is no task per
//! connection, so a request costs no switch between tasks.
//!
//! Invariant: nothing is sent twice. A request that comes back unsent ([`SendError::Unsent`]) had
//! no byte written.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::body::RequestBody;
use super::io::Socket;

/// A connection that carries one request at a time.
pub struct Connection {
    sender: http1::SendRequest<RequestBody>,
    driver: http1::Connection<TokioIo<Socket>, RequestBody>,
    ended: bool,
    /// The last response began before its request's body had ended.
    early: bool,
    socket: Socket,
    pub(super) idle_since: Instant,
}

/// Why there is no response.
pub enum SendError {
    /// No byte was written: here it is back.
    Unsent(Box<Request<RequestBody>>),
    /// The connection was lost, or what came was no response.
    Lost(hyper::Error),
    /// The backend took too long to begin its response.
    TimedOut,
}

impl Connection {
    /// Prepares a connected socket.
    pub async fn new(socket: Socket) -> hyper::Result<Connection> {
        let (sender, driver) = http1::Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(socket.clone()))
            .await?;
        Ok(Connection {
            sender,
            driver,
            ended: false,
            early: false,
            socket,
            idle_since: Instant::now(),
        })
    }

    /// Sends a request and waits for the head of its response. `response_max` bounds the silence of
    /// the backend: it counts from the moment at which the backend last took a part of the body,
    /// or had all of it, and not while the client is waited for.
    pub async fn send(
        &mut self,
        request: Request<RequestBody>,
        response_max: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        let handing = request.body().handing();
        let mut asked = handing.asked();
        let Connection {
            sender,
            driver,
            ended,
            early,
            ..
        } = self;
        let mut response = pin!(sender.try_send_request(request));
        let mut patience = pin!(None::<tokio::time::Sleep>);
        std::future::poll_fn(|cx| {
            drive(driver, ended, cx);
            match response.as_mut().poll(cx) {
                Poll::Ready(Ok(response)) => {
                    *early = !handing.has_ended();
                    return Poll::Ready(Ok(response));
                }
                Poll::Ready(Err(mut error)) => {
                    return Poll::Ready(Err(match error.take_message() {
                        Some(request) => SendError::Unsent(Box::new(request)),
                        None => SendError::Lost(error.into_error()),
                    }));
                }
                Poll::Pending => {}
            }
            if handing.waits_for_client() {
                patience.set(None);
            } else if patience.is_none() || handing.asked() != asked {
                asked = handing.asked();
                patience.set(Some(tokio::time::sleep(response_max)));
            }
            match patience.as_mut().as_pin_mut().map(|sleep| sleep.poll(cx)) {
                Some(Poll::Ready(())) => Poll::Ready(Err(SendError::TimedOut)),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Makes progress. Called whenever the response's body is polled.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        drive(&mut self.driver, &mut self.ended, cx);
    }

    /// Whether it can carry another request, once the last response's body has ended.
    pub fn is_reusable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        !self.ended && !self.early && self.sender.is_ready()
    }

    /// The socket, to abort it.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether the backend still keeps it open.
    pub fn is_quiet(&self) -> bool {
        !self.ended && self.socket.is_quiet()
    }
}

fn drive(
    driver: &mut http1::Connection<TokioIo<Socket>, RequestBody>,
    ended: &mut bool,
    cx: &mut Context<'_>,
) {
    // What went wrong is told by the response or its body.
    if !*ended && Pin::new(driver).poll_without_shutdown(cx).is_ready() {
        *ended = true;
    }
}
