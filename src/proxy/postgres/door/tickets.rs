//! Tickets of the start-up packet: verified before the server hears of the client, and never passed
//! on. They are presented, which raises, with the session's first statement.

use std::net::SocketAddr;

use tokio::time::Instant;

use super::first;
use crate::config::{Mode, Trust};
use crate::protocol::postgres::frame::{StartupPacket, startup as startup_packet};
use crate::protocol::postgres::refusal::{Severity, refusal_error};
use crate::protocol::postgres::ticket::{self, Tickets, startup};
use crate::protocol::{AfterRefusal, Refusal};
use crate::proxy::claims;
use crate::proxy::postgres::session::held;
use crate::proxy::postgres::{Listener, report};

/// What stands at the server in the place of tickets that are not genuine, where that is only
/// noted.
const NOT_GENUINE: &str = "invalid";

/// A start-up packet without its tickets.
pub(super) struct Taken {
    pub(super) tickets: Tickets,
    pub(super) packet: Vec<u8>,
}

/// Takes the tickets out. The error is the client's last.
pub(super) async fn take(
    listener: &Listener,
    packet: &StartupPacket<'_>,
    client: SocketAddr,
) -> Result<Taken, Vec<u8>> {
    let refused = |refusal: Refusal| {
        let refusal = Refusal {
            after: AfterRefusal::Close,
            ..refusal
        };
        report::refusal(listener, client, &refusal, "CONNECT", None);
        match listener.config.mode {
            Mode::Enforce => Err(refusal_error(&refusal, Severity::Fatal)),
            Mode::Observe => Ok(()),
        }
    };
    let taken = match startup::take(packet) {
        Ok(taken) => taken,
        Err(refusal) => {
            refused(refusal)?;
            return Ok(Taken {
                tickets: Tickets::default(),
                packet: startup::without(packet),
            });
        }
    };
    let tickets = taken.tickets.clone();
    // A relay looks at no statement: nothing is ever presented there.
    if tickets.is_empty() || listener.is_relay() {
        let without = taken.packet(packet, None);
        return Ok(Taken {
            packet: match tickets.is_empty() && held::holds(&listener.config) {
                true => held_read_only(&without),
                false => without,
            },
            tickets,
        });
    }
    let shown = match shown(listener, &tickets).await {
        Ok(shown) => shown,
        Err(refusal) => {
            refused(refusal)?;
            NOT_GENUINE.to_owned()
        }
    };
    Ok(Taken {
        packet: taken.packet(packet, Some(&shown)),
        tickets,
    })
}

/// The packet of a session that the server is to hold read-only: a parameter of its own wins over
/// `options` and over what is set for the role.
fn held_read_only(packet: &[u8]) -> Vec<u8> {
    let Ok(packet) = first::startup(packet) else {
        return packet.to_vec();
    };
    let name = held::PARAMETER.as_bytes();
    let others = packet.parameters.iter().copied();
    let others = others.filter(|(known, _)| !known.eq_ignore_ascii_case(name));
    startup_packet(packet.version, others.chain([(name, &b"on"[..])]))
}

/// What the server is shown of tickets, which are verified for it.
async fn shown(listener: &Listener, tickets: &Tickets) -> Result<String, Refusal> {
    let texts = tickets.as_slice();
    if listener.config.trust == Trust::Unsigned {
        return claims::bare_token(texts).map(|token| token.to_string());
    }
    let deadline = Instant::now() + listener.config.admit_deadline;
    let mut genuine = vec![];
    for text in texts {
        genuine.push(listener.tickets.verify(text, deadline).await?);
    }
    Ok(ticket::shown(
        genuine.iter().map(|ticket| (&ticket.lock, ticket.token)),
    ))
}
