//! A client's first packets: upgrades, then its start-up packet or a request to cancel
//! (PostgreSQL docs 54.2.1, 54.2.10, 54.2.11).

use std::io;

use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::cancel::CancelRequest;
use super::tls::ALPN;
use super::{Door, Ended, NOT_AUTHORISED, PROTOCOL_VIOLATION, farewell};
use crate::protocol::postgres::frame::{FirstPacket, FrameError, Opening, StartupPacket};
use crate::protocol::postgres::refusal::{Severity, plain_error};
use crate::proxy::postgres::wire::{Side, Wire};

/// SQLSTATE `feature_not_supported`: what the server answers to a version that it does not speak.
const NOT_SUPPORTED: &str = "0A000";

/// What a client came for.
pub(super) enum Entered {
    /// A session, with its start-up packet.
    Session(Box<Side>, Vec<u8>),
    /// To cancel another one's query.
    Cancel(Box<Side>, CancelRequest),
}

/// What a packet asks for, without its bytes.
enum Step {
    Upgrade,
    NoUpgrade,
    Session(Vec<u8>),
    Cancel(CancelRequest),
}

/// Takes a client to its start-up packet. `None`: its connection has ended.
pub(super) async fn enter(door: &Door, stream: TcpStream) -> Option<Entered> {
    let mut opening = Opening::new();
    let mut client = match begins_with_tls(&stream).await.ok()? {
        false => Side::new(Wire::Plain(stream)),
        true => direct_tls(door, &mut opening, stream).await?,
    };
    loop {
        let step = match next(&mut opening, &mut client) {
            Ok(Some(step)) => step,
            Ok(None) => match client.receive().await {
                Ok(true) => continue,
                Ok(false) | Err(_) => return None,
            },
            Err(error) => {
                if let Some(words) = tell(&error) {
                    farewell(&mut client, &words).await;
                }
                return None;
            }
        };
        match step {
            Step::NoUpgrade => answer(&mut client, b"N").await.ok()?,
            Step::Upgrade if door.acceptor.is_none() => answer(&mut client, b"N").await.ok()?,
            Step::Upgrade => {
                if let Err(error) = opening.begin_tls(client.received.len()) {
                    if let Some(words) = tell(&error) {
                        farewell(&mut client, &words).await;
                    }
                    return None;
                }
                answer(&mut client, b"S").await.ok()?;
                let Wire::Plain(stream) = client.into_wire() else {
                    return None;
                };
                client = Side::new(Wire::Tls(accept(door, stream).await?));
            }
            Step::Session(packet) => {
                if !door.clear && !client.is_tls() {
                    let text = "this listener takes connections with TLS only";
                    let error = plain_error(Severity::Fatal, NOT_AUTHORISED, text);
                    farewell(&mut client, &error).await;
                    return None;
                }
                return Some(Entered::Session(Box::new(client), packet));
            }
            Step::Cancel(request) => return Some(Entered::Cancel(Box::new(client), request)),
        }
    }
}

/// Looks at the first byte and leaves it: a handshake of TLS must be read by TLS whole.
async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    const HANDSHAKE: u8 = 0x16;
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE),
    }
}

/// A client that begins with TLS must name the protocol: otherwise a request of another protocol
/// could be led here by who cannot read it (ALPACA).
async fn direct_tls(door: &Door, opening: &mut Opening, stream: TcpStream) -> Option<Side> {
    let first = opening.next(&[0x16]);
    if !matches!(first, Ok(Some((FirstPacket::DirectTls, 0)))) || opening.begin_tls(0).is_err() {
        return None;
    }
    let stream = accept(door, stream).await?;
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() != Some(ALPN) {
        tracing::info!("a client began with TLS and did not name the protocol");
        return None;
    }
    Some(Side::new(Wire::Tls(stream)))
}

async fn accept(door: &Door, stream: TcpStream) -> Option<Box<TlsStream<TcpStream>>> {
    match door.acceptor.as_ref()?.accept(stream).await {
        Ok(stream) => Some(Box::new(TlsStream::Server(stream))),
        Err(error) => {
            tracing::info!(%error, "a client's TLS handshake failed");
            None
        }
    }
}

fn next(opening: &mut Opening, client: &mut Side) -> Result<Option<Step>, FrameError> {
    let Some((packet, bytes)) = opening.next(&client.received)? else {
        return Ok(None);
    };
    let step = match packet {
        // Only a first byte is one, and that was looked at before.
        FirstPacket::DirectTls | FirstPacket::GssEncryption => Step::NoUpgrade,
        FirstPacket::Ssl => Step::Upgrade,
        FirstPacket::Cancel { process, key } => Step::Cancel(CancelRequest {
            process,
            key: key.into(),
        }),
        FirstPacket::Startup(_) => Step::Session(client.received[..bytes].to_vec()),
    };
    client.consume(bytes);
    Ok(Some(step))
}

async fn answer(client: &mut Side, byte: &[u8]) -> io::Result<()> {
    client.send(byte);
    client.send_all().await
}

/// What the client is told; nothing where it may speak another protocol, as the server does.
fn tell(error: &FrameError) -> Option<Vec<u8>> {
    let sqlstate = match error {
        FrameError::Length { .. } => return None,
        FrameError::Malformed { what, .. } if *what == "CancelRequest" => return None,
        FrameError::Version { .. } => NOT_SUPPORTED,
        _ => PROTOCOL_VIOLATION,
    };
    Some(plain_error(Severity::Fatal, sqlstate, &error.to_string()))
}

/// The start-up packet of these bytes, which were found to be one.
pub(super) fn startup(packet: &[u8]) -> Result<StartupPacket<'_>, Ended> {
    match Opening::new().next(packet) {
        Ok(Some((FirstPacket::Startup(packet), _))) => Ok(packet),
        _ => Err(Ended::Gone),
    }
}
