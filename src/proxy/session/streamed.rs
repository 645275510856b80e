//! A fenced write whose backend discards truncated bodies: it streams, and its tail is held back
//! until the write is released.
//!
//! Invariants:
//! - the last real bytes of the payload leave only after every permit of the write is released;
//! - once a permit is revoked, no further byte leaves, and the connection is reset;
//! - until the release nothing is in doubt: a reset ends the write for good.

use std::time::Duration;

use super::carry::Lost;
use super::forward::{RETRY_AFTER, closing, lost_detail};
use super::read::CLIENT_STALL_MAX;
use super::upload::{Cut, Sending, Upload};
use super::{After, Session};
use crate::protocol::Refusal;
use crate::protocol::http::frame::{Encoding, Outgoing, Piece, RequestBody, RequestHead, ToClient};
use crate::proxy::doubts::InFlight;
use crate::proxy::upstream::Connection;
use crate::proxy::wire::{BODY_BUFFER_BYTES, within};

/// Longest body of an early response, in bytes, and how long it may take.
const EARLY_REPLY_BYTES_MAX: usize = 64 << 10;
const EARLY_REPLY_MAX: Duration = Duration::from_secs(1);

/// How far a write has come when something happened to it.
enum Staged {
    /// It is released; its tail waits to be sent.
    Released,
    /// It is to be cut off.
    Cut(Cut),
    /// The backend has answered, or was lost, before it had the tail.
    Early(Result<(), Lost>),
}

impl Session {
    /// Forwards a write whose body is still coming, without its tail.
    pub(super) async fn forward_streamed(
        &mut self,
        head: &RequestHead,
        mut permits: InFlight,
    ) -> Result<After, Refusal> {
        if let Some(left) = self.body.left()
            && left > self.door.listening.body_limits().bytes_max
        {
            return Err(super::read::too_long(self.door.listening.body_limits()));
        }
        self.invite().await?;
        let mut connection = self.connect_admitted(&mut permits).await.map_err(closing)?;
        if let Err(refusal) = permits.forward() {
            permits.finish();
            self.door.pool.put(connection);
            return Err(closing(refusal));
        }
        head.write(Outgoing::AsItCame, &mut connection.writer.output);
        let Some(mut connection) = self.begin(connection).await else {
            let refusal = Refusal::busy(lost_detail(&Lost::Unsent), RETRY_AFTER);
            let refusal = permits.about(refusal);
            permits.finish();
            return Err(closing(refusal));
        };
        match self.stage(head, &mut connection, &mut permits).await {
            Staged::Released => self.finish_streamed(head, connection, permits).await,
            Staged::Cut(Cut::Refused(refusal)) => cut(connection, permits, refusal),
            Staged::Cut(Cut::ClientGone) => cut(connection, permits, super::read::ended_early()),
            Staged::Cut(Cut::Stalled) => {
                let refusal = Refusal::busy(lost_detail(&Lost::TimedOut), RETRY_AFTER);
                let refusal = permits.about(refusal);
                cut(connection, permits, refusal)
            }
            // The backend was lost while it lacked the tail: it applies nothing of it.
            Staged::Early(Err(error)) => {
                let refusal = permits.about(Refusal::busy(lost_detail(&error), RETRY_AFTER));
                cut(connection, permits, refusal)
            }
            Staged::Early(Ok(())) => {
                let body = self.early_body(&mut connection).await;
                connection.abort();
                permits.finish();
                self.reply_early(head, body).await
            }
        }
    }

    /// Sends all but the tail, while an early response is looked for.
    async fn stage(
        &mut self,
        head: &RequestHead,
        connection: &mut Connection,
        permits: &mut InFlight,
    ) -> Staged {
        let limits = self.door.listening.body_limits();
        let sending = Sending::default();
        let upload = Upload {
            backend: &mut connection.writer,
            encoding: match head.body() {
                RequestBody::Chunked => Encoding::Chunked,
                RequestBody::None | RequestBody::Length(_) => Encoding::Plain,
            },
            stall_max: self.door.listening.limits().upstream_response_timeout,
            sending: &sending,
        };
        let withheld = upload.withheld(&mut self.reader, &mut self.body, permits, limits);
        let early = super::carry::read_head(&mut connection.reader, &mut self.response, head, None);
        tokio::select! {
            biased;
            staged = withheld => match staged {
                Ok(()) => Staged::Released,
                Err(cut) => Staged::Cut(cut),
            },
            early = early => Staged::Early(early),
        }
    }

    /// The backend has answered before it had the whole body. Its connection is about to be reset,
    /// so the answer is read first.
    async fn early_body(&mut self, connection: &mut Connection) -> Option<(Vec<u8>, Vec<u8>)> {
        let mut body = self.response.body_reader();
        let reading = async {
            let mut whole = vec![];
            loop {
                let input = &mut connection.reader.input;
                match body.next(input.filled()).ok()? {
                    Piece::Data(range) => {
                        whole.extend_from_slice(&input.filled()[range.clone()]);
                        input.consume(range.end);
                        if whole.len() > EARLY_REPLY_BYTES_MAX {
                            return None;
                        }
                    }
                    Piece::More(used) => {
                        input.consume(used);
                        match connection.reader.fill(BODY_BUFFER_BYTES).await {
                            Ok(0) if self.response.ends_with_connection() => {
                                return Some((whole, vec![]));
                            }
                            Ok(read) if read > 0 => {}
                            _ => return None,
                        }
                    }
                    Piece::End { trailers, .. } => {
                        return Some((whole, input.filled()[trailers].to_vec()));
                    }
                }
            }
        };
        within(EARLY_REPLY_MAX, reading).await.ok()?
    }

    async fn reply_early(
        &mut self,
        head: &RequestHead,
        body: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Result<After, Refusal> {
        let Some((body, trailers)) = body else {
            let detail = "the backend refused the write early, and its answer could not be read";
            return Err(closing(Refusal::busy(detail, RETRY_AFTER)));
        };
        let version = head.version();
        let to = ToClient {
            version,
            keeps_alive: false,
        };
        let encoding = self.response.encoding(version);
        let output = &mut self.writer.output;
        self.response.write(to, output);
        encoding.put(&body, output);
        encoding.put_end(&trailers, output);
        match self.writer.flush(CLIENT_STALL_MAX).await {
            Ok(()) => Ok(After::Close),
            Err(_) => Ok(After::Reset),
        }
    }
}

/// Resets the connection of a write whose tail has not left, which ends it for good.
fn cut(connection: Connection, permits: InFlight, refusal: Refusal) -> Result<After, Refusal> {
    connection.abort();
    permits.finish();
    Err(closing(refusal))
}
