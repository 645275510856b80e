//! Stage 4, forward: what leaves for the backend, and when. Streamed fenced writes: `streamed`.
//!
//! Invariant: nothing is sent twice of which a byte was sent, except a read without a body on a
//! kept connection that ended before anything of a response came.

use std::time::Duration;

use super::carry::{Exchange, Lost, Relayed};
use super::gate::Admission;
use super::read::malformed;
use super::upload::{Cut, Sending, Upload};
use super::{After, Session};
use crate::config::TruncatedBody;
use crate::protocol::http::frame::{Encoding, Outgoing, Piece, RequestBody, RequestHead};
use crate::protocol::refusal::{AfterRefusal, Outcome};
use crate::protocol::{Kind, Refusal};
use crate::proxy::doubts::InFlight;
use crate::proxy::spool::HeldBody;
use crate::proxy::upstream::{ConnectError, Connection};
use crate::proxy::wire::within;

/// When a client may try again after the backend could not be reached.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How much of a body is put behind its head, in bytes, before the first write.
const PREFILLED_BYTES_MAX: usize = 16 << 10;

/// What goes to the backend after the head.
enum Sent {
    Nothing,
    Held(HeldBody),
    Streamed,
}

impl Session {
    /// Forwards the request under what the gate has given.
    pub(super) async fn forward(
        &mut self,
        head: &RequestHead,
        held: Option<HeldBody>,
        kind: Kind,
        admission: Admission,
    ) -> Result<After, Refusal> {
        if head.method() == "CONNECT" {
            return Err(Refusal::unclassified("this listener opens no tunnels"));
        }
        match (admission, held) {
            (Admission::Unfenced, held) => self.forward_plain(head, held, kind).await,
            (Admission::Fenced(permits), Some(held)) => {
                self.forward_held(head, held, permits).await
            }
            (Admission::Fenced(permits), None) => match self.door.listening.config.truncated_body {
                TruncatedBody::Discarded if !self.body.is_ended() => {
                    self.forward_streamed(head, permits).await
                }
                _ => {
                    let (held, permits) = self.hold_admitted(permits).await?;
                    self.forward_held(head, held, permits).await
                }
            },
        }
    }

    /// What needs no permit.
    async fn forward_plain(
        &mut self,
        head: &RequestHead,
        held: Option<HeldBody>,
        kind: Kind,
    ) -> Result<After, Refusal> {
        let sent = match held {
            Some(held) => Sent::Held(held),
            None if head.body() == RequestBody::None => Sent::Nothing,
            None => Sent::Streamed,
        };
        if matches!(sent, Sent::Streamed) {
            self.invite().await?;
        }
        let may_repeat = kind == Kind::Read && matches!(sent, Sent::Nothing);
        let pool = &self.door.pool;
        let connection = match may_repeat {
            true => pool.get_for_read().await,
            false => pool.get().await,
        };
        let connection = connection.map_err(unreachable)?;
        let may_repeat = may_repeat && connection.is_kept;
        match self.exchange(head, connection, sent, None).await {
            Err(Lost::Closed { untouched: true }) if may_repeat => {
                let fresh = self.door.pool.connect().await.map_err(unreachable)?;
                let again = self.exchange(head, fresh, Sent::Nothing, None).await;
                again.or_else(|error| tell_lost(error, kind))
            }
            ended => ended.or_else(|error| tell_lost(error, kind)),
        }
    }

    /// Reads a fenced body whole, unless a newer token comes first.
    async fn hold_admitted(
        &mut self,
        mut permits: InFlight,
    ) -> Result<(HeldBody, InFlight), Refusal> {
        let limits = self.door.listening.body_limits();
        let held = {
            let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
            tokio::select! {
                biased;
                held = self.hold(limits) => held,
                // A newer token must not wait for a slow client.
                refusal = revoked => Err(closing(refusal)),
            }
        };
        Ok((held?, permits))
    }

    /// Forwards a write whose body is here whole: the head is the release.
    async fn forward_held(
        &mut self,
        head: &RequestHead,
        body: HeldBody,
        mut permits: InFlight,
    ) -> Result<After, Refusal> {
        // Had before the release, so that a backend that is away leaves no doubt.
        let connection = self.connect_admitted(&mut permits).await?;
        if let Err(refusal) = permits.release() {
            // No byte has left.
            permits.finish();
            self.door.pool.put(connection);
            return Err(refusal);
        }
        let sent = match head.body() {
            RequestBody::None => Sent::Nothing,
            RequestBody::Length(_) | RequestBody::Chunked => Sent::Held(body),
        };
        let about = permits.about(Refusal::unknown(""));
        let ended = self.exchange(head, connection, sent, Some(permits)).await;
        ended.map_err(|error| tell_fenced(error, about))
    }

    pub(super) async fn connect_admitted(
        &self,
        permits: &mut InFlight,
    ) -> Result<Connection, Refusal> {
        let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
        tokio::select! {
            biased;
            connection = self.door.pool.get() => connection.map_err(unreachable),
            refusal = revoked => Err(refusal),
        }
    }

    /// One exchange, to the end of its response. An error: nothing of a reply has left.
    async fn exchange(
        &mut self,
        head: &RequestHead,
        mut connection: Connection,
        mut sent: Sent,
        permits: Option<InFlight>,
    ) -> Result<After, Lost> {
        let (outgoing, encoding) = framing(head, &sent);
        head.write(outgoing, &mut connection.writer.output);
        self.prefill(&mut sent, encoding, &mut connection.writer.output)?;
        match self.begin(connection).await {
            Some(connection) => {
                self.complete(head, connection, sent, encoding, permits)
                    .await
            }
            None => {
                if let Some(permits) = permits {
                    permits.finish();
                }
                Err(Lost::Unsent)
            }
        }
    }

    /// Puts what is here of the body behind the head: mostly it is all of it, and one write does.
    fn prefill(
        &mut self,
        sent: &mut Sent,
        encoding: Encoding,
        output: &mut Vec<u8>,
    ) -> Result<(), Lost> {
        match sent {
            Sent::Nothing => {}
            Sent::Held(body) => {
                if let Some(bytes) = body.take_short(PREFILLED_BYTES_MAX) {
                    encoding.put(&bytes, output);
                    encoding.put_end(body.trailers(), output);
                    *sent = Sent::Nothing;
                }
            }
            Sent::Streamed => {
                while output.len() < PREFILLED_BYTES_MAX {
                    let input = &mut self.reader.input;
                    let piece = self.body.next(input.filled());
                    match piece.map_err(|broken| Lost::Cut(Cut::Refused(malformed(broken))))? {
                        Piece::Data(range) => {
                            encoding.put(&input.filled()[range.clone()], output);
                            input.consume(range.end);
                        }
                        Piece::More(used) => {
                            input.consume(used);
                            break;
                        }
                        Piece::End { used, trailers } => {
                            encoding.put_end(&input.filled()[trailers], output);
                            input.consume(used);
                            *sent = Sent::Nothing;
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the first bytes; on a fresh connection if the one at hand had ended before one was
    /// written. `None`: none was.
    pub(super) async fn begin(&self, mut connection: Connection) -> Option<Connection> {
        let response_max = self.door.listening.limits().upstream_response_timeout;
        let first = within(response_max, connection.writer.write_some()).await;
        match first {
            Ok(Ok(())) => return Some(connection),
            Ok(Err(_)) if connection.is_kept => {}
            _ => return None,
        }
        let mut fresh = self.door.pool.connect().await.ok()?;
        fresh.writer.output = std::mem::take(&mut connection.writer.output);
        match within(response_max, fresh.writer.write_some()).await {
            Ok(Ok(())) => Some(fresh),
            _ => None,
        }
    }

    async fn complete(
        &mut self,
        head: &RequestHead,
        mut connection: Connection,
        sent: Sent,
        encoding: Encoding,
        permits: Option<InFlight>,
    ) -> Result<After, Lost> {
        let response_max = self.door.listening.limits().upstream_response_timeout;
        let sending = Sending::default();
        let upload = Upload {
            backend: &mut connection.writer,
            encoding,
            stall_max: response_max,
            sending: &sending,
        };
        // A fenced write goes on without its client.
        let watched = permits.is_none().then_some(&mut self.reader);
        let exchange = Exchange {
            door: &self.door,
            head,
            response: &mut self.response,
            backend: &mut connection.reader,
            client: &mut self.writer,
            sending: &sending,
            patience: &mut self.patience,
            response_max,
            permits,
        };
        let relayed = match sent {
            Sent::Nothing => exchange.run(upload.head_only(watched)).await,
            Sent::Held(body) => exchange.run(upload.held(body, watched)).await,
            Sent::Streamed => {
                let streamed = upload.streamed(&mut self.reader, &mut self.body);
                exchange.run(streamed).await
            }
        };
        match relayed {
            Ok(relayed) if relayed.is_reusable => {
                self.door.pool.put(connection);
                Ok(relayed.after)
            }
            // What it has of the request must not be taken for all of it.
            Ok(Relayed { after, .. }) if after == After::Reset || !sending.is_whole() => {
                connection.abort();
                Ok(after)
            }
            Ok(relayed) => Ok(relayed.after),
            Err(lost) => {
                connection.abort();
                Err(lost)
            }
        }
    }

    /// Carries a released write whose last bytes wait in the connection.
    pub(super) async fn finish_streamed(
        &mut self,
        head: &RequestHead,
        connection: Connection,
        permits: InFlight,
    ) -> Result<After, Refusal> {
        let about = permits.about(Refusal::unknown(""));
        let encoding = Encoding::Plain;
        let ended = self
            .complete(head, connection, Sent::Nothing, encoding, Some(permits))
            .await;
        ended.map_err(|error| tell_fenced(error, about))
    }
}

/// How the backend gets the body.
fn framing(head: &RequestHead, sent: &Sent) -> (Outgoing, Encoding) {
    match (head.body(), sent) {
        (RequestBody::Chunked, Sent::Held(body)) if body.trailers().is_empty() => {
            (Outgoing::Length(body.length()), Encoding::Plain)
        }
        (RequestBody::Chunked, _) => (Outgoing::AsItCame, Encoding::Chunked),
        (RequestBody::None | RequestBody::Length(_), _) => (Outgoing::AsItCame, Encoding::Plain),
    }
}

/// The client may still be sending: its connection cannot be used again.
pub fn closing(refusal: Refusal) -> Refusal {
    Refusal {
        after: AfterRefusal::Close,
        ..refusal
    }
}

pub(super) fn unreachable(error: ConnectError) -> Refusal {
    tracing::warn!(%error, "no connection to the backend");
    Refusal::busy("the backend cannot be reached", RETRY_AFTER)
}

/// The backend was lost under a request that needed no permit.
fn tell_lost(error: Lost, kind: Kind) -> Result<After, Refusal> {
    let refusal = match error {
        // Nobody is left to be told.
        Lost::Cut(Cut::ClientGone) => return Ok(After::Reset),
        Lost::Cut(Cut::Refused(refusal)) => return Err(closing(refusal)),
        error => Refusal::unknown(lost_detail(&error)),
    };
    Err(match kind {
        Kind::Read => Refusal {
            outcome: Outcome::NotApplied,
            ..refusal
        },
        Kind::Write => refusal,
    })
}

/// The backend was lost under a released write.
fn tell_fenced(error: Lost, about: Refusal) -> Refusal {
    let refusal = match error {
        Lost::Unsent => Refusal::busy(lost_detail(&error), RETRY_AFTER),
        error => Refusal::unknown(lost_detail(&error)),
    };
    Refusal {
        lock: about.lock,
        token: about.token,
        ..refusal
    }
}

/// What is said about a lost exchange.
pub(super) fn lost_detail(error: &Lost) -> &'static str {
    match error {
        Lost::Unsent => "the backend closed the connection before the request was sent",
        Lost::Cut(_) => "the exchange with the backend was given up",
        Lost::Closed { .. } => "the connection to the backend was lost before its response",
        Lost::NoResponse(reason) => {
            tracing::warn!(reason, "the backend's answer is no response");
            "what the backend answered is no response"
        }
        Lost::TimedOut => "the backend did not respond in time",
    }
}
