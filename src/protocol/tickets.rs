//! A list of tickets, as the `Fencing-Token` header and Postgres's `ringfence.token` hold it: its
//! syntax, not its signatures.

use super::refusal::Refusal;
use crate::ticket::TICKET_BYTES_MAX;

/// Most tickets on one request: one per lock.
pub const TICKETS_PER_REQUEST_MAX: usize = 16;

/// Splits a header's value at its commas. Each member is non-empty visible ASCII; a repeated one
/// counts once. Unlike other lists (RFC 9110 5.6.1) an empty member is refused: it shows a client
/// whose ticket got lost.
pub fn parse(value: &[u8]) -> Result<Vec<&str>, Refusal> {
    parse_named("fencing-token", value)
}

/// The same for a list that goes by this name in messages.
pub fn parse_named<'v>(name: &str, value: &'v [u8]) -> Result<Vec<&'v str>, Refusal> {
    if let Some(ticket) = only_member(value) {
        return Ok(vec![ticket]);
    }
    let mut tickets = Vec::with_capacity(1);
    for member in value.split(|&byte| byte == b',') {
        let ticket = parse_member(name, member.trim_ascii())?;
        if tickets.contains(&ticket) {
            continue;
        }
        if tickets.len() == TICKETS_PER_REQUEST_MAX {
            return Err(Refusal::invalid(format!(
                "{name} holds more than {TICKETS_PER_REQUEST_MAX} tickets"
            )));
        }
        tickets.push(ticket);
    }
    Ok(tickets)
}

/// The ticket, where there is one and nothing is wrong with it. Looks at every byte: without an
/// early end it is vectorised, and this is most of what a fenced request costs here.
fn only_member(value: &[u8]) -> Option<&str> {
    let member = value.trim_ascii();
    let is_odd = |byte: u8| byte == b',' || !byte.is_ascii_graphic();
    let any_odd = member
        .iter()
        .fold(false, |found, byte| found | is_odd(*byte));
    let fits = (1..=TICKET_BYTES_MAX).contains(&member.len());
    std::str::from_utf8(member)
        .ok()
        .filter(|_| fits && !any_odd)
}

fn parse_member<'v>(name: &str, member: &'v [u8]) -> Result<&'v str, Refusal> {
    if member.is_empty() {
        return Err(Refusal::invalid(format!("{name} holds an empty ticket")));
    }
    if member.len() > TICKET_BYTES_MAX {
        return Err(Refusal::invalid(format!(
            "{name} holds a ticket longer than {TICKET_BYTES_MAX} bytes"
        )));
    }
    let visible = member.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(member)
        .ok()
        .filter(|_| visible)
        .ok_or_else(|| Refusal::invalid(format!("{name} holds a byte that no ticket has")))
}

#[cfg(test)]
mod tests {
    use super::{TICKETS_PER_REQUEST_MAX, parse};
    use crate::ticket::TICKET_BYTES_MAX;

    #[test]
    fn a_list_of_tickets_is_split_and_each_counts_once() {
        assert_eq!(parse(b"a"), Ok(vec!["a"]));
        assert_eq!(parse(b" a ,b,\ta"), Ok(vec!["a", "b"]));
        assert!(parse("x".repeat(TICKET_BYTES_MAX).as_bytes()).is_ok());
    }

    #[test]
    fn what_is_no_list_of_tickets_is_refused() {
        for bad in ["", " ", "a,", ",a", "a,,b", "a b", "a\tb", "ü", "a\u{7f}"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?} was taken");
        }
        assert!(parse(b"a\xff").is_err());
        assert!(parse("x".repeat(TICKET_BYTES_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn the_number_of_tickets_is_bounded() {
        let list = |n: usize| (0..n).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        assert_eq!(
            parse(list(TICKETS_PER_REQUEST_MAX).as_bytes())
                .unwrap()
                .len(),
            16
        );
        assert!(parse(list(TICKETS_PER_REQUEST_MAX + 1).as_bytes()).is_err());
    }
}
