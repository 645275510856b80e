//! Tickets of the StartupMessage.

use super::options;
use super::{Tickets, is_parameter};
use crate::protocol::postgres::frame::{StartupPacket, startup};
use crate::protocol::refusal::Refusal;

/// The tickets that a session begins with, and the packet without them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupTickets<'b> {
    /// What RESET returns to; none where the client named none.
    pub tickets: Tickets,
    parameters: Vec<(&'b [u8], Vec<u8>)>,
}

/// Takes the tickets out of a packet. A parameter of its own wins over `options`, as it does at
/// the server.
pub fn take<'b>(packet: &StartupPacket<'b>) -> Result<StartupTickets<'b>, Refusal> {
    let mut parameters = vec![];
    let (mut of_options, mut own) = (None, None);
    for (name, value) in &packet.parameters {
        let text = std::str::from_utf8(name).unwrap_or_default();
        if is_parameter(text) {
            own = Some(value.to_vec());
        } else if text == "options" {
            let taken = options::take(value);
            if taken.value.is_none() {
                parameters.push((*name, value.to_vec()));
                continue;
            }
            of_options = taken.value;
            if !taken.rest.is_empty() {
                parameters.push((*name, taken.rest));
            }
        } else {
            parameters.push((*name, value.to_vec()));
        }
    }
    let value = own.or(of_options).unwrap_or_default();
    Ok(StartupTickets {
        tickets: Tickets::parse(&value)?,
        parameters,
    })
}

/// The packet without anything that could be a ticket, genuine or not.
pub fn without(packet: &StartupPacket<'_>) -> Vec<u8> {
    let mut kept: Vec<(&[u8], Vec<u8>)> = vec![];
    for (name, value) in &packet.parameters {
        let text = std::str::from_utf8(name).unwrap_or_default();
        match text {
            _ if is_parameter(text) => {}
            "options" => {
                let rest = options::take(value).rest;
                if !rest.is_empty() {
                    kept.push((*name, rest));
                }
            }
            _ => kept.push((*name, value.to_vec())),
        }
    }
    let kept = kept.iter().map(|(name, value)| (*name, value.as_slice()));
    startup(packet.version, kept)
}

impl StartupTickets<'_> {
    /// The packet for the server. `shown` (see [`shown`](super::shown)) stands in the tickets'
    /// place; with `None` nothing does, which is for a pooler that refuses unknown parameters.
    pub fn packet(&self, packet: &StartupPacket<'_>, shown: Option<&str>) -> Vec<u8> {
        let shown = shown.map(|text| (super::PARAMETER.as_bytes(), text.as_bytes()));
        let kept = self.parameters.iter();
        let kept = kept.map(|(name, value)| (*name, value.as_slice()));
        startup(packet.version, kept.chain(shown))
    }
}
