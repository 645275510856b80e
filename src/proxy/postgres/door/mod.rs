//! The door: what happens on a connection before its first statement.
//!
//! In the order of a connection: `first` takes the client through its upgrades to its start-up
//! packet, or carries out its cancel request (`cancel`); `backend` opens a connection of its
//! own to the server; `auth` relays the authentication message by message and ends with the first
//! ReadyForQuery, which the client does not have yet; `settings` asks for what the session must
//! know of itself. `tls` is both sides' TLS.
//!
//! Invariants:
//! - each upgrade is taken once, and no byte that came in the clear is taken for one of TLS;
//! - the client's key for cancelling is ours, and never the server's; it ends with the session;
//! - no password is read: what authenticates passes from end to end. Only what binds it to a TLS
//!   channel cannot, since that channel ends here.

mod auth;
mod backend;
mod cancel;
mod first;
mod settings;
mod tickets;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::first::Entered;
use super::Listener;
use super::wire::Side;
use crate::config::{PostgresListenerConfig, Replication, Upstream, UpstreamTlsMode};
use crate::protocol::postgres::frame::StartupPacket;
use crate::protocol::postgres::refusal::{Severity, plain_error};

pub use self::backend::ConnectError;
pub use self::cancel::{CancelKey, Cancelled};
pub use self::settings::Start;
pub use self::tls::InvalidDoor;

/// SQLSTATE of what the client did wrong on the wire: `protocol_violation`.
const PROTOCOL_VIOLATION: &str = "08P01";
/// `invalid_authorization_specification`: what pg_hba.conf refuses has it too.
const NOT_AUTHORISED: &str = "28000";
/// `sqlclient_unable_to_establish_sqlconnection`.
const NO_BACKEND: &str = "08001";

/// What a listener's connections are made with.
pub struct Door {
    upstream: Upstream,
    connect_max: Duration,
    mode: UpstreamTlsMode,
    connector: TlsConnector,
    acceptor: Option<TlsAcceptor>,
    /// Clients may do without TLS.
    clear: bool,
    keys: cancel::CancelKeys,
}

impl Door {
    /// Reads keys and certificates.
    pub fn new(config: &PostgresListenerConfig) -> Result<Door, InvalidDoor> {
        Ok(Door {
            upstream: config.upstream.clone(),
            connect_max: config.limits.upstream_connect_timeout,
            mode: config.upstream_tls.mode,
            connector: tls::connector(&config.upstream_tls)?,
            acceptor: config.tls.as_ref().map(tls::acceptor).transpose()?,
            clear: config.tls.as_ref().is_none_or(|tls| !tls.required),
            keys: cancel::CancelKeys::default(),
        })
    }
}

/// A client that is through the door, with its backend connection: its first ReadyForQuery is the
/// next that it gets.
pub struct Opened {
    /// The client. What it has sent meanwhile is in its buffer.
    pub client: Side,
    /// The server.
    pub backend: Side,
    /// Removes the client's key when the session ends.
    pub key: Option<CancelKey>,
    /// How the session is to be served.
    pub manner: Manner,
}

/// How a session is served.
pub enum Manner {
    /// Bytes pass unread.
    Relay,
    /// Messages are read and guarded.
    Guarded(Box<Start>),
}

/// Takes a client through the door. `None`: its connection has ended, and everything was said.
pub async fn open(
    listener: &Arc<Listener>,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<Opened> {
    let door = &listener.door;
    let entered = first::enter(door, stream).await?;
    let (mut client, packet) = match entered {
        Entered::Session(client, packet) => (client, packet),
        Entered::Cancel(client, request) => {
            door.carry_out(*client, &request).await;
            return None;
        }
    };
    match open_session(listener, &mut client, packet, address).await {
        Ok((backend, key, manner)) => Some(Opened {
            client: *client,
            backend,
            key,
            manner,
        }),
        Err(Ended::Gone) => None,
        Err(Ended::Told(error)) => {
            farewell(&mut client, &error).await;
            None
        }
    }
}

/// Why a client did not come through.
enum Ended {
    /// It has gone, or was told by the server.
    Gone,
    /// This is the last that it gets.
    Told(Vec<u8>),
}

impl Ended {
    fn fatal(sqlstate: &str, text: &str) -> Ended {
        Ended::Told(plain_error(Severity::Fatal, sqlstate, text))
    }
}

impl From<std::io::Error> for Ended {
    fn from(_: std::io::Error) -> Ended {
        Ended::Gone
    }
}

async fn open_session(
    listener: &Arc<Listener>,
    client: &mut Side,
    packet: Vec<u8>,
    address: SocketAddr,
) -> Result<(Side, Option<CancelKey>, Manner), Ended> {
    let packet = first::startup(&packet)?;
    let config = &listener.config;
    let replicates = asks_for_replication(&packet);
    if replicates && config.replication == Replication::Deny {
        let text = "this listener takes no replication connections (replication = \"deny\")";
        return Err(Ended::fatal(NOT_AUTHORISED, text));
    }
    let taken = tickets::take(listener, &packet, address).await;
    let taken = taken.map_err(Ended::Told)?;
    let opened = listener.door.connect().await;
    let mut backend = match opened {
        Ok(wire) => Side::new(wire),
        Err(error) => {
            tracing::warn!(%error, "no connection to the backend");
            return Err(Ended::fatal(NO_BACKEND, "the backend cannot be reached"));
        }
    };
    backend.send(&taken.packet);
    let greeted = auth::relay(&listener.door, client, &mut backend).await?;
    if replicates || listener.is_relay() {
        client.send(&greeted.ready);
        return Ok((backend, greeted.key, Manner::Relay));
    }
    let told = (greeted.pid, greeted.parameters);
    let sides = (&mut *client, &mut backend);
    let start = settings::ask(&listener.catalogs, &packet, taken.tickets, told, sides).await?;
    client.send(&greeted.ready);
    Ok((backend, greeted.key, Manner::Guarded(Box::new(start))))
}

/// Whether the server would begin replication: a truth value, as it reads them (`parse_bool`), or
/// `database`. Anything else is refused by the server; if one takes it, the session is guarded.
fn asks_for_replication(packet: &StartupPacket<'_>) -> bool {
    let value = packet.get("replication").unwrap_or_default();
    let value = value.to_ascii_lowercase();
    let begins = |word: &[u8]| !value.is_empty() && word.starts_with(&value);
    begins(b"true") || begins(b"yes") || [&b"on"[..], b"1", b"database"].contains(&&*value)
}

/// The last that a client gets. It may be gone, which is no error.
async fn farewell(client: &mut Side, error: &[u8]) {
    client.send(error);
    if client.send_all().await.is_ok() {
        client.close().await;
    }
}
