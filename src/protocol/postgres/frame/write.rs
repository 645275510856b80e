//! Bytes of the messages that the proxy itself sends, and of those that it changes.

use super::first::{CANCEL_CODE, SSL_CODE};
use super::{Bind, Parse, StartupPacket, Version};

/// A typed message.
pub fn message(tag: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + payload.len());
    out.push(tag);
    out.extend_from_slice(&length(payload.len()));
    out.extend_from_slice(payload);
    out
}

/// A length that counts itself. What is written here came in a frame, or is short.
fn length(payload_bytes: usize) -> [u8; 4] {
    let length = u32::try_from(payload_bytes + 4).expect("a payload is below 1 GB");
    length.to_be_bytes()
}

fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    debug_assert!(!text.contains(&0), "a text holds no zero byte");
    out.extend_from_slice(text);
    out.push(0);
}

/// A CancelRequest.
pub fn cancel_request(process: i32, key: &[u8]) -> Vec<u8> {
    let mut out = length(8 + key.len()).to_vec();
    out.extend_from_slice(&CANCEL_CODE.to_be_bytes());
    out.extend_from_slice(&process.to_be_bytes());
    out.extend_from_slice(key);
    out
}

/// An SSLRequest.
pub fn ssl_request() -> Vec<u8> {
    let mut out = length(4).to_vec();
    out.extend_from_slice(&SSL_CODE.to_be_bytes());
    out
}

/// `K`: whom a CancelRequest names.
pub fn backend_key_data(process: i32, key: &[u8]) -> Vec<u8> {
    let mut payload = process.to_be_bytes().to_vec();
    payload.extend_from_slice(key);
    message(b'K', &payload)
}

/// `R` that offers these SASL mechanisms.
pub fn sasl_mechanisms<'n>(names: impl IntoIterator<Item = &'n [u8]>) -> Vec<u8> {
    let mut payload = 10_i32.to_be_bytes().to_vec();
    for name in names {
        push_text(&mut payload, name);
    }
    payload.push(0);
    message(b'R', &payload)
}

/// `f`.
pub fn copy_fail(reason: &[u8]) -> Vec<u8> {
    let mut payload = vec![];
    push_text(&mut payload, reason);
    message(b'f', &payload)
}

/// `X`.
pub fn terminate() -> Vec<u8> {
    message(b'X', &[])
}

/// `H`: Flush.
pub fn flush() -> Vec<u8> {
    message(b'H', &[])
}

/// `Q`.
pub fn query(text: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(text.len() + 1);
    push_text(&mut payload, text);
    message(b'Q', &payload)
}

/// `P` without types.
pub fn parse(statement: &[u8], text: &[u8]) -> Vec<u8> {
    let parse = Parse {
        statement,
        text,
        types: &[0, 0],
    };
    rewrite_parse(&parse, text)
}

/// `B` without parameters.
pub fn bind(portal: &[u8], statement: &[u8]) -> Vec<u8> {
    let mut payload = vec![];
    push_text(&mut payload, portal);
    push_text(&mut payload, statement);
    payload.extend_from_slice(&[0; 6]);
    message(b'B', &payload)
}

/// `E` of all rows.
pub fn execute(portal: &[u8]) -> Vec<u8> {
    let mut payload = vec![];
    push_text(&mut payload, portal);
    payload.extend_from_slice(&[0; 4]);
    message(b'E', &payload)
}

/// `C` of a prepared statement.
pub fn close_statement(name: &[u8]) -> Vec<u8> {
    close(b'S', name)
}

/// `C` of a portal.
pub fn close_portal(name: &[u8]) -> Vec<u8> {
    close(b'P', name)
}

fn close(kind: u8, name: &[u8]) -> Vec<u8> {
    let mut payload = vec![kind];
    push_text(&mut payload, name);
    message(b'C', &payload)
}

/// `S`.
pub fn sync() -> Vec<u8> {
    message(b'S', &[])
}

/// The same Parse with another text.
pub fn rewrite_parse(parse: &Parse<'_>, text: &[u8]) -> Vec<u8> {
    let mut payload =
        Vec::with_capacity(parse.statement.len() + text.len() + 2 + parse.types.len());
    push_text(&mut payload, parse.statement);
    push_text(&mut payload, text);
    payload.extend_from_slice(parse.types);
    message(b'P', &payload)
}

/// The same Bind with another value for the parameters of these numbers, which count from 1.
pub fn rewrite_bind(bind: &Bind<'_>, values: &[(usize, &[u8])]) -> Vec<u8> {
    let mut payload = vec![];
    push_text(&mut payload, bind.portal);
    push_text(&mut payload, bind.statement);
    let count = |n: usize| u16::try_from(n).expect("counted by 16 bits when it was read");
    payload.extend_from_slice(&count(bind.formats.len()).to_be_bytes());
    for format in &bind.formats {
        payload.extend_from_slice(&format.to_be_bytes());
    }
    payload.extend_from_slice(&count(bind.values.len()).to_be_bytes());
    for (at, value) in bind.values.iter().enumerate() {
        let changed = values.iter().find(|(number, _)| *number == at + 1);
        match changed.map(|(_, value)| *value).or(*value) {
            None => payload.extend_from_slice(&(-1_i32).to_be_bytes()),
            Some(value) => {
                let bytes = u32::try_from(value.len()).expect("a value is below 1 GB");
                payload.extend_from_slice(&bytes.to_be_bytes());
                payload.extend_from_slice(value);
            }
        }
    }
    payload.extend_from_slice(bind.results);
    message(b'B', &payload)
}

/// A StartupMessage of these parameters.
pub fn startup<'p>(
    version: Version,
    parameters: impl IntoIterator<Item = (&'p [u8], &'p [u8])>,
) -> Vec<u8> {
    let mut payload = vec![];
    payload.extend_from_slice(&version.major.to_be_bytes());
    payload.extend_from_slice(&version.minor.to_be_bytes());
    for (name, value) in parameters {
        push_text(&mut payload, name);
        push_text(&mut payload, value);
    }
    payload.push(0);
    let mut out = length(payload.len()).to_vec();
    out.extend_from_slice(&payload);
    out
}

/// The same StartupMessage, with the parameters that this function keeps or changes.
pub fn rewrite_startup(
    packet: &StartupPacket<'_>,
    mut change: impl FnMut(&[u8], &[u8]) -> Option<Vec<u8>>,
) -> Vec<u8> {
    let kept: Vec<(&[u8], Vec<u8>)> = packet
        .parameters
        .iter()
        .filter_map(|(name, value)| Some((*name, change(name, value)?)))
        .collect();
    startup(
        packet.version,
        kept.iter().map(|(name, value)| (*name, value.as_slice())),
    )
}

/// `E` of these fields: type and text.
pub fn error_response(fields: &[(u8, &str)]) -> Vec<u8> {
    fields_message(b'E', fields)
}

/// `N` of these fields.
pub fn notice_response(fields: &[(u8, &str)]) -> Vec<u8> {
    fields_message(b'N', fields)
}

fn fields_message(tag: u8, fields: &[(u8, &str)]) -> Vec<u8> {
    let mut payload = vec![];
    for (kind, text) in fields {
        payload.push(*kind);
        // A text with a zero byte would end the field early and begin another.
        let clean: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
        push_text(&mut payload, &clean);
    }
    payload.push(0);
    message(tag, &payload)
}
