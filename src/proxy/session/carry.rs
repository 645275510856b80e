//! Stage 4, carry: one exchange with the backend, from a request whose first bytes have left to the
//! end of its response.
//!
//! The client's side (`upload`) and the backend's side go on at the same time: a response that
//! begins before its request was sent whole is relayed while the rest is sent.
//!
//! Invariants:
//! - permits are finished when the whole response was seen; anything else leaves them in doubt, and
//!   the client is told that the outcome is unknown;
//! - a fenced write goes on whether its client stays or not.

use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::tcp::OwnedReadHalf;

use super::client::WriteSide;
use super::read::CLIENT_STALL_MAX;
use super::upload::{Cut, Sending};
use super::{After, Door};
use crate::protocol::http::frame::{Encoding, Piece, RequestHead, ResponseHead, ToClient, Version};
use crate::proxy::doubts::InFlight;
use crate::proxy::wire::{BODY_BUFFER_BYTES, Patience, Sink, Source, within};

/// Longest head of a response, in bytes.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 << 10;
/// Most interim responses before the final one.
const INTERIM_MAX: usize = 32;
/// How long a client that takes no bytes of its reply holds the permits of its write: alone, and
/// while a newer token waits. After it the rest of the reply is dropped.
const FENCED_STALL_MAX: Duration = Duration::from_secs(10);
const FENCED_STALL_REVOKED_MAX: Duration = Duration::from_secs(1);

/// Why there is no response.
pub enum Lost {
    /// No byte was sent.
    Unsent,
    /// The request was not sent whole.
    Cut(Cut),
    /// The connection ended. `untouched`: before anything of a response came.
    Closed {
        /// Nothing had come.
        untouched: bool,
    },
    /// What came is no response.
    NoResponse(&'static str),
    /// The backend took too long to begin it.
    TimedOut,
}

/// How the relay of a response ended.
pub struct Relayed {
    /// What becomes of the client's connection.
    pub after: After,
    /// The backend's connection can carry another exchange.
    pub is_reusable: bool,
}

/// One exchange.
pub struct Exchange<'s> {
    /// Where it began.
    pub door: &'s Door,
    /// What was asked.
    pub head: &'s RequestHead,
    /// What is answered.
    pub response: &'s mut ResponseHead,
    /// From the backend.
    pub backend: &'s mut Source<OwnedReadHalf>,
    /// To the client.
    pub client: &'s mut Sink<WriteSide>,
    /// How far the request is sent.
    pub sending: &'s Sending,
    /// Bounds the wait for the response.
    pub patience: &'s mut Patience,
    /// How long the backend may be silent.
    pub response_max: Duration,
    /// Of a fenced write.
    pub permits: Option<InFlight>,
}

impl Exchange<'_> {
    /// Carries it while `upload` sends the request. An error: nothing of a reply has left.
    pub async fn run(mut self, upload: impl Future<Output = Cut>) -> Result<Relayed, Lost> {
        let mut upload = std::pin::pin!(upload);
        self.answer(upload.as_mut()).await?;
        Ok(self.relay(upload).await)
    }

    /// Waits for the head of the response while the request is sent.
    pub async fn answer(
        &mut self,
        mut upload: Pin<&mut impl Future<Output = Cut>>,
    ) -> Result<(), Lost> {
        let Exchange {
            head,
            response,
            backend,
            client,
            sending,
            patience,
            response_max,
            permits,
            ..
        } = self;
        // Interim responses are relayed, except to one who may delay a fenced write.
        let interim = permits.is_none().then_some(&mut **client);
        let mut reading = std::pin::pin!(read_head(backend, response, head, interim));
        let mut is_counting = false;
        std::future::poll_fn(|cx| {
            // Once all is sent, whether the client stays is asked last: it mostly does.
            let was_over = sending.is_over();
            if !was_over && let Poll::Ready(cut) = upload.as_mut().poll(cx) {
                return Poll::Ready(Err(Lost::Cut(cut)));
            }
            if let Poll::Ready(read) = reading.as_mut().poll(cx) {
                return Poll::Ready(read);
            }
            if was_over && let Poll::Ready(cut) = upload.as_mut().poll(cx) {
                return Poll::Ready(Err(Lost::Cut(cut)));
            }
            if !sending.is_over() {
                return Poll::Pending;
            }
            if !std::mem::replace(&mut is_counting, true) {
                patience.start(*response_max);
            }
            patience.poll_over(cx).map(|()| Err(Lost::TimedOut))
        })
        .await
    }

    /// Relays the response, while the rest of the request is sent if it is early.
    async fn relay(mut self, mut upload: Pin<&mut impl Future<Output = Cut>>) -> Relayed {
        let is_whole = self.sending.is_whole();
        let version = self.head.version();
        let may_keep = self.head.keeps_alive() && !self.door.is_ending();
        let keeps_alive = is_whole && may_keep && self.response.delimits_itself(version);
        let to = ToClient {
            version,
            keeps_alive,
        };
        self.response.write(to, &mut self.client.output);
        let is_reusable = is_whole && self.response.keeps_alive();
        let relayed = {
            let mut relaying = std::pin::pin!(self.relay_body());
            std::future::poll_fn(|cx| {
                if let Poll::Ready(relayed) = relaying.as_mut().poll(cx) {
                    return Poll::Ready(relayed);
                }
                // Only what is unfenced is cut: nobody is left to read the response.
                upload.as_mut().poll(cx).map(|_cut| Err(()))
            })
            .await
        };
        match relayed {
            Ok(()) => Relayed {
                after: match keeps_alive {
                    true => After::Keep,
                    false => After::Close,
                },
                is_reusable: is_reusable && self.backend.input.is_empty(),
            },
            Err(()) => Relayed {
                after: After::Reset,
                is_reusable: false,
            },
        }
    }

    /// An error: the reply is not whole.
    async fn relay_body(&mut self) -> Result<(), ()> {
        let encoding = self.response.encoding(self.head.version());
        let mut body = self.response.body_reader();
        let mut client_stays = true;
        loop {
            let input = &mut self.backend.input;
            match body.next(input.filled()).map_err(drop)? {
                Piece::Data(range) => {
                    if client_stays {
                        let piece = &input.filled()[range.clone()];
                        let put = put(self.client, encoding, piece);
                        client_stays = taken(put, self.permits.as_mut()).await;
                    }
                    input.consume(range.end);
                }
                Piece::More(used) => {
                    input.consume(used);
                    if client_stays {
                        let flush = self.client.flush(CLIENT_STALL_MAX);
                        client_stays = taken(flush, self.permits.as_mut()).await;
                    }
                    match self.fill().await {
                        Ok(0) if self.response.ends_with_connection() => {
                            encoding.put_end(&[], &mut self.client.output);
                            break;
                        }
                        Ok(read) if read > 0 => {}
                        Ok(_) | Err(_) => return self.cut_off(client_stays).await,
                    }
                }
                Piece::End { used, trailers } => {
                    let trailers = &input.filled()[trailers];
                    encoding.put_end(trailers, &mut self.client.output);
                    input.consume(used);
                    break;
                }
            }
            if !client_stays && self.permits.is_none() {
                return Err(());
            }
        }
        // Before the client hears of the end: what it then does must not wait for it.
        match self.permits.take() {
            Some(permits) if self.response.leaves_in_doubt() => drop(permits),
            Some(permits) => permits.finish(),
            None => {}
        }
        match client_stays && self.client.flush(CLIENT_STALL_MAX).await.is_ok() {
            true => Ok(()),
            false => Err(()),
        }
    }

    /// The write ends when its response does: S3 reports failures in the body. The client sees a
    /// reply that is cut off: a success would be invented.
    async fn cut_off(&mut self, client_stays: bool) -> Result<(), ()> {
        drop(self.permits.take());
        if client_stays {
            // It may have gone away.
            let _ = self.client.flush(FENCED_STALL_REVOKED_MAX).await;
        }
        Err(())
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let fill = self.backend.fill(BODY_BUFFER_BYTES);
        match &self.permits {
            // A write must come to its end; a read may last as long as both sides wish.
            Some(_) => within(self.response_max, fill).await?,
            None => fill.await,
        }
    }
}

pub async fn read_head(
    backend: &mut Source<OwnedReadHalf>,
    response: &mut ResponseHead,
    request: &RequestHead,
    mut interim: Option<&mut Sink<WriteSide>>,
) -> Result<(), Lost> {
    let mut interim_left = INTERIM_MAX;
    let mut untouched = true;
    loop {
        let filled = backend.input.filled();
        let read = match filled.is_empty() {
            true => Ok(None),
            false => response.read(filled, request),
        };
        match read {
            Err(broken) => return Err(Lost::NoResponse(broken.0)),
            Ok(Some(used)) => {
                backend.input.consume(used);
                untouched = false;
                if !response.is_interim() {
                    return Ok(());
                }
                if response.status() == 101 {
                    return Err(Lost::NoResponse("it changes the protocol unasked"));
                }
                if interim_left == 0 {
                    return Err(Lost::NoResponse("too many interim responses"));
                }
                interim_left -= 1;
                if let Some(client) = interim.as_deref_mut() {
                    relay_interim(response, request, client).await;
                }
            }
            Ok(None) => match backend.fill(RESPONSE_HEAD_BYTES_MAX).await {
                Ok(read) if read > 0 => {}
                Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                    return Err(Lost::NoResponse("its head is too long"));
                }
                _ => {
                    let untouched = untouched && backend.input.is_empty();
                    return Err(Lost::Closed { untouched });
                }
            },
        }
    }
}

/// RFC 9110 15.2: a proxy relays interim responses, except to HTTP/1.0 and where it asked itself:
/// `Expect` ends here.
async fn relay_interim(
    response: &ResponseHead,
    request: &RequestHead,
    client: &mut Sink<WriteSide>,
) {
    if response.status() == 100 || request.version() == Version::Http10 {
        return;
    }
    let to = ToClient {
        version: request.version(),
        keeps_alive: true,
    };
    response.write(to, &mut client.output);
    // Where the client is gone, the final response meets the same end.
    let _ = client.flush(CLIENT_STALL_MAX).await;
}

/// Frames a piece, without copying where it is long.
async fn put(client: &mut Sink<WriteSide>, encoding: Encoding, piece: &[u8]) -> io::Result<()> {
    match encoding {
        Encoding::Plain => client.put(piece, CLIENT_STALL_MAX).await,
        Encoding::Chunked => {
            Encoding::put_size(piece.len(), &mut client.output);
            client.put(piece, CLIENT_STALL_MAX).await?;
            client.put(b"\r\n", CLIENT_STALL_MAX).await
        }
    }
}

/// Whether the client takes it; one of a fenced write is not waited for long.
async fn taken(
    write: impl Future<Output = io::Result<()>>,
    permits: Option<&mut InFlight>,
) -> bool {
    let Some(permits) = permits else {
        return write.await.is_ok();
    };
    let patience = async {
        let revoked = std::future::poll_fn(|cx| permits.poll_revoked(cx));
        if within(FENCED_STALL_MAX, revoked).await.is_ok() {
            tokio::time::sleep(FENCED_STALL_REVOKED_MAX).await;
        }
    };
    tokio::select! {
        biased;
        written = write => written.is_ok(),
        () = patience => false,
    }
}
