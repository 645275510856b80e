//! Stage 1, read: the head of a request, and its body read whole where that is needed.

use std::io::ErrorKind;
use std::task::Poll;
use std::time::Duration;

use super::{After, Session};
use crate::incoming::BEGIN_MAX;
use crate::protocol::Refusal;
use crate::protocol::http::frame::{Broken, Piece};
use crate::proxy::spool::{HeldBody, Spool};
use crate::proxy::wire::{BODY_BUFFER_BYTES, within};

/// How long a client may take to begin a request and to send its head.
pub const HEAD_MAX: Duration = BEGIN_MAX;
/// How long a client may take no byte of what it is sent.
pub const CLIENT_STALL_MAX: Duration = Duration::from_secs(300);
/// What is read of a body that nobody takes, in bytes, so that the connection stays usable.
const SKIPPED_BYTES_MAX: u64 = 64 << 10;
/// How long a connection that ends is read on, so that the client sees the last reply: a socket
/// that is closed with bytes unread resets it.
const PARTING_MAX: Duration = Duration::from_secs(1);

/// How an HTTP/2 connection begins (RFC 9113 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The limits of a body from a client.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes_max: u64,
    /// Longest time between two pieces.
    pub stall_max: Duration,
}

/// What comes next on a connection.
pub enum Arrival {
    /// A request: its head is in `head`, and `body` is at its start.
    Request,
    /// The client speaks HTTP/2.
    Http2,
    /// Nothing: the client has gone, or the proxy goes.
    End,
}

enum Waited {
    Read(std::io::Result<usize>),
    Over,
    Ending,
}

impl Session {
    /// Waits for the next request.
    pub(super) async fn arrive(&mut self, is_first: bool) -> Result<Arrival, Refusal> {
        let bytes_max = self.door.listening.limits().head_bytes_max;
        if self.reader.input.is_empty() {
            self.reader.input.shrink();
        }
        self.patience.start(HEAD_MAX);
        let mut searched = 0;
        let mut may_skip_line = true;
        loop {
            let filled = self.reader.input.filled();
            if may_skip_line && filled.starts_with(b"\r\n") {
                // RFC 9112 2.2: one empty line before a request is ignored.
                may_skip_line = false;
                self.reader.input.consume(2);
                continue;
            }
            if let Some(arrival) = self.look(is_first, &mut searched)? {
                return Ok(arrival);
            }
            let is_idle = self.reader.input.is_empty();
            match self.wait_for_head(bytes_max, is_idle).await {
                Waited::Read(Ok(0) | Err(_)) | Waited::Over if is_idle => return Ok(Arrival::End),
                Waited::Ending => return Ok(Arrival::End),
                Waited::Read(Ok(0)) => return Err(Refusal::malformed("the head ended early")),
                Waited::Read(Ok(_)) => {}
                Waited::Read(Err(error)) if error.kind() == ErrorKind::OutOfMemory => {
                    return Err(too_long_head(bytes_max));
                }
                Waited::Read(Err(_)) => return Ok(Arrival::End),
                Waited::Over => {
                    let detail = format!("the head took longer than {} s", HEAD_MAX.as_secs());
                    return Err(Refusal::malformed(detail));
                }
            }
        }
    }

    async fn wait_for_head(&mut self, bytes_max: usize, is_idle: bool) -> Waited {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(read) = self.reader.poll_fill(cx, bytes_max) {
                return Poll::Ready(Waited::Read(read));
            }
            self.ending.set(cx);
            if is_idle && self.door.is_ending() {
                return Poll::Ready(Waited::Ending);
            }
            self.patience.poll_over(cx).map(|()| Waited::Over)
        })
        .await
    }

    /// Looks whether a whole head is there. `searched`: so much was there at the last look.
    fn look(&mut self, is_first: bool, searched: &mut usize) -> Result<Option<Arrival>, Refusal> {
        let bytes_max = self.door.listening.limits().head_bytes_max;
        let filled = self.reader.input.filled();
        let preface = filled.len().min(HTTP2_PREFACE.len());
        if is_first && preface >= 3 && filled[..preface] == HTTP2_PREFACE[..preface] {
            return Ok((preface == HTTP2_PREFACE.len()).then_some(Arrival::Http2));
        }
        // Read anew only when its end has come, so that a head that comes byte by byte costs no
        // more than its length.
        let may_end = *searched == 0 || has_end(&filled[searched.saturating_sub(3)..]);
        *searched = filled.len();
        let used = match may_end && !filled.is_empty() {
            true => self.head.read(filled).map_err(malformed)?,
            false => None,
        };
        match used {
            Some(used) if used <= bytes_max => {
                self.reader.input.consume(used);
                self.body = self.head.body_reader();
                self.awaits_continue = self.head.expects_continue();
                Ok(Some(Arrival::Request))
            }
            None if filled.len() < bytes_max => Ok(None),
            _ => Err(too_long_head(bytes_max)),
        }
    }

    /// Has the client send the body, if it waits to be told so.
    pub(super) async fn invite(&mut self) -> Result<(), Refusal> {
        if std::mem::take(&mut self.awaits_continue) && self.reader.input.is_empty() {
            self.writer.output.extend_from_slice(CONTINUE);
            let told = self.writer.flush(CLIENT_STALL_MAX).await;
            told.map_err(|_| Refusal::malformed("the body ended early"))?;
        }
        Ok(())
    }

    /// Reads a body whole. Dropped half way, the connection is good for nothing but its end.
    pub(super) async fn hold(&mut self, limits: BodyLimits) -> Result<HeldBody, Refusal> {
        match self.body.left() {
            Some(left) if left > limits.bytes_max => return Err(too_long(limits)),
            Some(left) if left <= self.reader.input.filled().len() as u64 => {
                return self.hold_here();
            }
            _ => {}
        }
        self.invite().await?;
        let listening = std::sync::Arc::clone(&self.door.listening);
        let memory_bytes_max = listening.limits().body_memory_bytes_max;
        let mut spool = Spool::new(&listening.spool_room, memory_bytes_max);
        loop {
            let input = &mut self.reader.input;
            match self.body.next(input.filled()).map_err(malformed)? {
                Piece::Data(range) => {
                    if spool.length() + range.len() as u64 > limits.bytes_max {
                        return Err(too_long(limits));
                    }
                    let piece = &input.filled()[range.clone()];
                    spool.push(piece).await.map_err(cannot_hold)?;
                    input.consume(range.end);
                }
                Piece::More(used) => {
                    input.consume(used);
                    let fill = self.reader.fill(BODY_BUFFER_BYTES);
                    match within(limits.stall_max, fill).await {
                        Err(_) => return Err(stalled(limits)),
                        Ok(Ok(read)) if read > 0 => {}
                        Ok(_) => return Err(ended_early()),
                    }
                }
                Piece::End { used, trailers } => {
                    let trailers = input.filled()[trailers].to_vec();
                    input.consume(used);
                    let held = spool.finish().await.map_err(cannot_hold)?;
                    return Ok(held.with_trailers(trailers));
                }
            }
        }
    }

    /// The whole body has come with its head, as small ones do.
    fn hold_here(&mut self) -> Result<HeldBody, Refusal> {
        let input = &mut self.reader.input;
        let mut whole = vec![];
        loop {
            match self.body.next(input.filled()).map_err(malformed)? {
                Piece::Data(range) => {
                    whole.extend_from_slice(&input.filled()[range.clone()]);
                    input.consume(range.end);
                }
                Piece::More(_) => return Err(ended_early()),
                Piece::End { used, .. } => {
                    input.consume(used);
                    return Ok(whole.into());
                }
            }
        }
    }

    /// Whether what is left of the body will be read although nobody takes it.
    pub(super) fn can_skip_body(&mut self) -> bool {
        // A client that was not told to go on may or may not send it: where the next request
        // begins cannot be told (RFC 9110 10.1.1).
        if self.awaits_continue {
            return false;
        }
        if self.skip_here().is_err() {
            return false;
        }
        self.body
            .left()
            .is_some_and(|left| left <= SKIPPED_BYTES_MAX)
    }

    /// Reads what is left of the body, and drops it.
    pub(super) async fn skip_body(&mut self) -> After {
        let stall_max = super::BODY_STALL_MAX;
        loop {
            if self.skip_here().is_err() {
                return After::Close;
            }
            if self.body.is_ended() {
                return After::Keep;
            }
            match within(stall_max, self.reader.fill(BODY_BUFFER_BYTES)).await {
                Ok(Ok(read)) if read > 0 => {}
                _ => return After::Close,
            }
        }
    }

    fn skip_here(&mut self) -> Result<(), Broken> {
        let input = &mut self.reader.input;
        loop {
            match self.body.next(input.filled())? {
                Piece::Data(range) => input.consume(range.end),
                Piece::More(used) => {
                    input.consume(used);
                    return Ok(());
                }
                Piece::End { used, .. } => {
                    input.consume(used);
                    return Ok(());
                }
            }
        }
    }

    /// Ends the connection so that the client sees the last reply.
    pub(super) async fn part(&mut self) {
        if self.body.is_ended() && self.reader.input.is_empty() {
            return;
        }
        let parting = async {
            // The client may have gone away.
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut self.writer.half).await;
            loop {
                let here = self.reader.input.filled().len();
                self.reader.input.consume(here);
                match self.reader.fill(BODY_BUFFER_BYTES).await {
                    Ok(read) if read > 0 => {}
                    _ => return,
                }
            }
        };
        // Whichever comes first, it ends.
        let _ = within(PARTING_MAX, parting).await;
    }
}

/// Whether an empty line, in any spelling, is among these bytes.
fn has_end(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|it| it == b"\n\r\n")
}

/// Where a request or its body ends cannot be told.
pub fn malformed(broken: Broken) -> Refusal {
    Refusal::malformed(broken.0)
}

fn too_long_head(bytes_max: usize) -> Refusal {
    Refusal::malformed(format!("the head is longer than {bytes_max} bytes"))
}

/// A body beyond the listener's limit.
pub fn too_long(limits: BodyLimits) -> Refusal {
    Refusal::malformed(format!(
        "the body is longer than {} bytes",
        limits.bytes_max
    ))
}

/// A body of which nothing comes any more.
pub fn stalled(limits: BodyLimits) -> Refusal {
    Refusal::malformed(format!(
        "no byte of the body came for {} ms",
        limits.stall_max.as_millis()
    ))
}

/// A body that the client cut off. Mostly nobody is left to be told.
pub fn ended_early() -> Refusal {
    Refusal::malformed("the body ended early")
}

/// The disk does not take the body.
pub fn cannot_hold(error: impl std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a body cannot be spooled");
    Refusal::busy("the body cannot be held here now", Duration::from_secs(1))
}
