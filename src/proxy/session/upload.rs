//! What the client's side of an exchange does while the response is waited for: it sends the body
//! on, and then watches whether the client stays.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::protocol::Refusal;
use crate::protocol::http::frame::{BodyReader, Encoding, Piece};
use crate::proxy::doubts::InFlight;
use crate::proxy::spool::HeldBody;
use crate::proxy::upstream::WriteHalf;
use crate::proxy::wire::{BODY_BUFFER_BYTES, Sink, Source, within};

use super::client::ReadSide;
use super::read::{BodyLimits, ended_early, malformed, stalled, too_long};

/// How far the sending of a request is. Both sides of an exchange are polled by one task, so that
/// relaxed orderings do.
#[derive(Default)]
pub struct Sending(AtomicU8);

const SENT: u8 = 1;
const BROKEN: u8 = 2;

/// Why a request is not sent whole.
pub enum Cut {
    /// This is to be told.
    Refused(Refusal),
    /// The client has gone.
    ClientGone,
    /// The backend takes nothing any more.
    Stalled,
}

impl Sending {
    /// Whether nothing more will be sent.
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Whether all was sent.
    pub fn is_whole(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SENT
    }

    /// Notes how writing to the backend ended.
    fn note(&self, written: std::io::Result<()>) -> Result<(), Cut> {
        match written {
            Ok(()) => self.0.store(SENT, Ordering::Relaxed),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                return Err(Cut::Stalled);
            }
            // The backend may have answered before it closed.
            Err(_) => self.0.store(BROKEN, Ordering::Relaxed),
        }
        Ok(())
    }
}

/// What a body is sent with.
pub struct Upload<'s> {
    /// To the backend. The head waits in it.
    pub backend: &'s mut Sink<WriteHalf>,
    /// How the backend gets it.
    pub encoding: Encoding,
    /// How long the backend may take nothing.
    pub stall_max: Duration,
    /// How far it is.
    pub sending: &'s Sending,
}

impl Upload<'_> {
    /// Sends what waits. Ends only when it cannot go on.
    pub async fn head_only(self, client: Option<&mut Source<ReadSide>>) -> Cut {
        let written = self.backend.flush(self.stall_max).await;
        if let Err(cut) = self.sending.note(written) {
            return cut;
        }
        watch(client).await
    }

    /// Sends a body that is here whole. Ends only when it cannot go on.
    pub async fn held(mut self, mut body: HeldBody, client: Option<&mut Source<ReadSide>>) -> Cut {
        let written = self.write_held(&mut body).await;
        if let Err(cut) = self.sending.note(written) {
            return cut;
        }
        watch(client).await
    }

    async fn write_held(&mut self, body: &mut HeldBody) -> std::io::Result<()> {
        loop {
            match body.next().await? {
                [] => break,
                piece => put(self.backend, self.encoding, piece, self.stall_max).await?,
            }
        }
        self.encoding
            .put_end(body.trailers(), &mut self.backend.output);
        self.backend.flush(self.stall_max).await
    }

    /// Sends a body as it comes. Ends only when it cannot go on.
    pub async fn streamed(self, client: &mut Source<ReadSide>, body: &mut BodyReader) -> Cut {
        loop {
            let input = &mut client.input;
            let written = match body.next(input.filled()) {
                Err(broken) => return Cut::Refused(malformed(broken)),
                Ok(Piece::Data(range)) => {
                    let piece = &input.filled()[range.clone()];
                    let put = put(self.backend, self.encoding, piece, self.stall_max).await;
                    input.consume(range.end);
                    put
                }
                Ok(Piece::More(used)) => {
                    input.consume(used);
                    let written = self.backend.flush(self.stall_max).await;
                    if written.is_ok() && !came(&client.fill(BODY_BUFFER_BYTES).await) {
                        return Cut::ClientGone;
                    }
                    written
                }
                Ok(Piece::End { used, trailers }) => {
                    let trailers = &input.filled()[trailers];
                    self.encoding.put_end(trailers, &mut self.backend.output);
                    input.consume(used);
                    let written = self.backend.flush(self.stall_max).await;
                    if let Err(cut) = self.sending.note(written) {
                        return cut;
                    }
                    return watch(Some(client)).await;
                }
            };
            if written.is_err() {
                match self.sending.note(written) {
                    Err(cut) => return cut,
                    Ok(()) => return watch(None).await,
                }
            }
        }
    }

    /// Sends a body as it comes, without its tail: the last piece of payload waits in `output` once
    /// the permits are released, and until then nothing of it leaves.
    pub async fn withheld(
        self,
        client: &mut Source<ReadSide>,
        body: &mut BodyReader,
        permits: &mut InFlight,
        limits: BodyLimits,
    ) -> Result<(), Cut> {
        let (mut received, mut kept) = (0, vec![]);
        loop {
            let input = &mut client.input;
            let written = match body.next(input.filled()) {
                Err(broken) => return Err(Cut::Refused(malformed(broken))),
                Ok(Piece::Data(range)) => {
                    received += range.len() as u64;
                    if received > limits.bytes_max {
                        return Err(Cut::Refused(too_long(limits)));
                    }
                    let before = put(self.backend, self.encoding, &kept, self.stall_max);
                    let written = unless_revoked(permits, before).await?;
                    kept.clear();
                    kept.extend_from_slice(&input.filled()[range.clone()]);
                    input.consume(range.end);
                    written
                }
                Ok(Piece::More(used)) => {
                    input.consume(used);
                    let flush = self.backend.flush(self.stall_max);
                    let written = unless_revoked(permits, flush).await?;
                    if written.is_ok() {
                        let fill = within(limits.stall_max, client.fill(BODY_BUFFER_BYTES));
                        match unless_revoked(permits, fill).await? {
                            Err(_) => return Err(Cut::Refused(stalled(limits))),
                            Ok(read) if came(&read) => {}
                            Ok(_) => return Err(Cut::Refused(ended_early())),
                        }
                    }
                    written
                }
                Ok(Piece::End { used, trailers }) => {
                    permits.release().map_err(Cut::Refused)?;
                    self.encoding.put(&kept, &mut self.backend.output);
                    let trailers = &input.filled()[trailers];
                    self.encoding.put_end(trailers, &mut self.backend.output);
                    input.consume(used);
                    return Ok(());
                }
            };
            if written.is_err() {
                self.sending.note(written)?;
                // The answer, or the end of the connection, decides.
                let over = std::future::pending::<()>();
                unless_revoked(permits, over).await?;
            }
        }
    }
}

/// Frames a piece, without copying where it is long.
async fn put(
    backend: &mut Sink<WriteHalf>,
    encoding: Encoding,
    piece: &[u8],
    stall_max: Duration,
) -> std::io::Result<()> {
    if piece.is_empty() {
        return Ok(());
    }
    match encoding {
        Encoding::Plain => backend.put(piece, stall_max).await,
        Encoding::Chunked => {
            Encoding::put_size(piece.len(), &mut backend.output);
            backend.put(piece, stall_max).await?;
            backend.put(b"\r\n", stall_max).await
        }
    }
}

fn came(read: &std::io::Result<usize>) -> bool {
    read.as_ref().is_ok_and(|read| *read > 0)
}

async fn unless_revoked<T>(
    permits: &mut InFlight,
    future: impl Future<Output = T>,
) -> Result<T, Cut> {
    let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
    tokio::select! {
        biased;
        refusal = revoked => Err(Cut::Refused(refusal)),
        value = future => Ok(value),
    }
}

/// Ends when the client has gone; without one, never.
async fn watch(client: Option<&mut Source<ReadSide>>) -> Cut {
    match client {
        Some(client) => {
            client.gone().await;
            Cut::ClientGone
        }
        None => std::future::pending().await,
    }
}
