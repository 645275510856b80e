//! What a session begins with: the settings that decide what its names mean and what its
//! transactions see. They come from the server's configuration, the database, the role and the
//! start-up packet; only the server knows what counts.
//!
//! One query of the proxy's own (`SHOW`, which reads no table and calls no function) is run before
//! the client's first. Where it is not answered, as by some poolers, the stricter is assumed.

use std::io;
use std::sync::Arc;

use super::{Ended, NO_BACKEND};
use crate::protocol::postgres::frame::{
    BackendMessage, Decoder, Next, Side as Sender, StartupPacket, query,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::scope::Settings;
use crate::proxy::postgres::catalog::{Catalogs, Database};
use crate::proxy::postgres::wire::Side;

const SHOW: &[u8] = b"SHOW search_path;SHOW default_transaction_isolation;SHOW role";
/// The value of `role` where none was set.
const NO_ROLE: &str = "none";

/// Names and values that the server reported, in order.
pub type Parameters = Vec<(Box<[u8]>, Box<[u8]>)>;

/// What a guarded session begins with.
pub struct Start {
    /// Of its tickets, its path, its isolation.
    pub settings: Settings,
    /// What the server reported.
    pub parameters: Parameters,
    /// Its process at the server, where that was told.
    pub pid: Option<i32>,
    /// Our port of its backend connection.
    pub port: u16,
    /// The role of the start-up packet.
    pub login: String,
    /// The current role: what `$user` stands for.
    pub user: String,
    /// The database.
    pub database: String,
    /// What it has.
    pub catalog: Arc<Database>,
}

/// Asks the server, on the session's own connection.
pub(super) async fn ask(
    catalogs: &Catalogs,
    packet: &StartupPacket<'_>,
    tickets: Tickets,
    (pid, parameters): (Option<i32>, Parameters),
    (client, backend): (&mut Side, &mut Side),
) -> Result<Start, Ended> {
    let port = backend.local_port()?;
    backend.send(&query(SHOW));
    backend.send_all().await?;
    let shown = answers(client, backend).await?;
    let (path, isolation, role) = match shown.as_slice() {
        [path, isolation, role] => (Some(&**path), Some(&**isolation), Some(&**role)),
        _ => (None, None, None),
    };
    let text =
        |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let login = text(packet.get("user").map(cut));
    let session = parameters
        .iter()
        .rev()
        .find(|(name, _)| **name == *b"session_authorization");
    let user = match (role, session) {
        (Some(role), _) if role != NO_ROLE => role.to_owned(),
        (_, Some((_, session))) => text(Some(session)),
        (_, None) => login.clone(),
    };
    let database = text(packet.database().map(cut));
    let catalog = catalogs.database(&database).map_err(|error| {
        tracing::warn!(%error, "a client is turned away");
        Ended::fatal(NO_BACKEND, "too many databases are in use")
    })?;
    Ok(Start {
        settings: Settings::of_server(tickets, path, isolation),
        parameters,
        pid,
        port,
        login,
        user,
        database,
        catalog,
    })
}

/// Names of the start-up packet are cut, not refused (NAMEDATALEN, `ProcessStartupPacket`).
fn cut(name: &[u8]) -> &[u8] {
    const NAME_BYTES_MAX: usize = 63;
    &name[..name.len().min(NAME_BYTES_MAX)]
}

/// The first column of each row that comes, up to ReadyForQuery. What is not an answer to the query
/// is the client's.
async fn answers(client: &mut Side, backend: &mut Side) -> Result<Vec<String>, Ended> {
    let broken = |_| Ended::fatal(NO_BACKEND, "the backend's answers are not understood");
    let mut replies = Decoder::new(Sender::Server);
    let mut found = vec![];
    loop {
        let next = replies.next(&backend.received).map_err(broken)?;
        let (tag, payload, raw) = match next {
            Next::More { .. } => {
                if !backend.receive().await? {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                continue;
            }
            Next::Whole { tag, payload, raw } => (tag, payload, raw),
            Next::Begin { .. } | Next::Part { .. } => {
                return Err(Ended::fatal(
                    NO_BACKEND,
                    "the backend's settings are too long",
                ));
            }
        };
        let ready = match BackendMessage::read(tag, payload).map_err(broken)? {
            BackendMessage::DataRow => {
                // SHOW gives one row of one column; more are no answers of ours.
                if found.len() < 4 {
                    found.push(first_column(payload).unwrap_or_default());
                }
                false
            }
            BackendMessage::ReadyForQuery(_) => true,
            BackendMessage::ParameterStatus { .. } | BackendMessage::Notification => {
                client.send(raw);
                false
            }
            BackendMessage::Error(fields) if fields.is_fatal() => {
                return Err(Ended::Told(raw.to_vec()));
            }
            _ => false,
        };
        let bytes = raw.len();
        backend.consume(bytes);
        if ready {
            return Ok(found);
        }
    }
}

/// A DataRow: the number of its columns, then each with its length in front.
fn first_column(payload: &[u8]) -> Option<String> {
    let (_count, rest) = payload.split_first_chunk::<2>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
    String::from_utf8(rest.get(..length)?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::first_column;

    #[test]
    fn a_row_is_read_and_a_broken_one_is_not() {
        assert_eq!(first_column(b"\0\x01\0\0\0\x02ab"), Some("ab".to_owned()));
        for broken in [
            &b""[..],
            b"\0\x01",
            b"\0\x01\xff\xff\xff\xff",
            b"\0\x01\0\0\0\x03ab",
        ] {
            assert_eq!(first_column(broken), None);
        }
    }
}
