//! The proxy's own command, `FENCE`, and the ticket behind a user's name.
//!
//! `FENCE SET <ticket>...`, `FENCE CLEAR`, `FENCE STATUS` are about the connection; `FENCE WITH
//! <ticket> <command>...` is about one command. `AUTH <user>;fence=<ticket> <password>`, and the
//! same in `HELLO ... AUTH`, is for clients that can only be configured. Several tickets, one per
//! lock, stand in one argument with commas, or in `FENCE SET` as several arguments.
//!
//! The server never sees a ticket.

use super::args::Args;
use super::key_spec::{NeedsMore, argument};
use crate::protocol::Refusal;
use crate::protocol::tickets::TICKETS_PER_REQUEST_MAX;
use crate::ticket::TICKET_BYTES_MAX;

/// What stands between a user's name and its tickets.
const USER_MARK: &[u8] = b";fence=";

/// What `FENCE` asks the proxy to do with the connection's tickets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FenceCommand {
    /// To present these and keep them instead of those before.
    Set,
    /// To forget them.
    Clear,
    /// To tell them.
    Status,
}

/// A `FENCE` that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fence {
    Connection(FenceCommand, Vec<Box<str>>),
    /// The command that they are for begins at the argument [`WITH_COMMAND_AT`].
    With(Vec<Box<str>>),
}

/// Where the command of `FENCE WITH <ticket> <command>` begins.
pub(super) const WITH_COMMAND_AT: usize = 3;

/// Whether a command is the proxy's own.
pub(super) fn is_fence(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"fence")
}

/// Reads `FENCE`.
pub(super) fn read(args: &Args<'_>) -> Result<Result<Fence, Refusal>, NeedsMore> {
    let word = argument(args, 1)?.unwrap_or_default();
    let is = |text: &str| word.eq_ignore_ascii_case(text.as_bytes());
    let usage = || Refusal::invalid("FENCE is followed by SET, CLEAR, STATUS or WITH");
    let read = if is("with") {
        let Some(ticket) = argument(args, 2)? else {
            return Ok(Err(Refusal::invalid("FENCE WITH lacks its ticket")));
        };
        if argument(args, WITH_COMMAND_AT)?.is_none() {
            return Ok(Err(Refusal::invalid("FENCE WITH lacks its command")));
        }
        let mut tickets = vec![];
        add_tickets(ticket, &mut tickets).map(|()| Fence::With(tickets))
    } else if is("set") {
        if !args.is_complete() {
            return Err(NeedsMore);
        }
        let mut tickets = vec![];
        let added = args
            .iter()
            .skip(2)
            .try_for_each(|arg| add_tickets(arg, &mut tickets));
        match (added, args.len()) {
            (Ok(()), 2) => Err(Refusal::invalid("FENCE SET lacks its ticket")),
            (added, _) => added.map(|()| Fence::Connection(FenceCommand::Set, tickets)),
        }
    } else if args.declared() == 2 && is("clear") {
        Ok(Fence::Connection(FenceCommand::Clear, vec![]))
    } else if args.declared() == 2 && is("status") {
        Ok(Fence::Connection(FenceCommand::Status, vec![]))
    } else {
        Err(usage())
    };
    Ok(read)
}

/// A user's name with its tickets; none: no ticket is with it.
pub(super) type UserTickets<'a> = Option<(&'a [u8], Vec<Box<str>>)>;

/// Parts a user's name from its tickets.
pub(super) fn split_user(user: &[u8]) -> Result<UserTickets<'_>, Refusal> {
    let Some(at) = find_mark(user) else {
        return Ok(None);
    };
    let mut tickets = vec![];
    for part in user[at + USER_MARK.len()..].split(|&byte| byte == b';') {
        // A mark may stand before each ticket.
        let part = part.strip_prefix(b"fence=".as_slice()).unwrap_or(part);
        add_tickets(part, &mut tickets)?;
    }
    Ok(Some((&user[..at], tickets)))
}

/// The command in a `FENCE WITH`, whatever its tickets are.
pub(super) fn command_in<'a>(args: &Args<'a>) -> Option<Args<'a>> {
    let with = args.get(1)?.eq_ignore_ascii_case(b"with");
    let inner = args.from(WITH_COMMAND_AT);
    let named = inner.get(0).is_some_and(|name| !is_fence(name));
    (with && named).then_some(inner)
}

/// An argument up to where a ticket begins in it.
pub(super) fn before_ticket(arg: &[u8]) -> &[u8] {
    find_mark(arg).map_or(arg, |at| &arg[..at])
}

/// Whether an argument looks as if a ticket were in it.
pub(super) fn mentions_ticket(arg: &[u8]) -> bool {
    find_mark(arg).is_some()
}

fn find_mark(text: &[u8]) -> Option<usize> {
    text.windows(USER_MARK.len())
        .position(|window| window == USER_MARK)
}

/// Adds the tickets of one argument, each once.
fn add_tickets(arg: &[u8], tickets: &mut Vec<Box<str>>) -> Result<(), Refusal> {
    for part in arg.split(|&byte| byte == b',') {
        if part.is_empty() {
            return Err(Refusal::invalid("a ticket is empty"));
        }
        if part.len() > TICKET_BYTES_MAX {
            return Err(Refusal::invalid(format!(
                "a ticket is longer than {TICKET_BYTES_MAX} bytes"
            )));
        }
        let visible = part.iter().all(u8::is_ascii_graphic);
        let text = std::str::from_utf8(part).ok().filter(|_| visible);
        let text = text.ok_or_else(|| Refusal::invalid("a ticket has a byte that none has"))?;
        if tickets.iter().any(|known| **known == *text) {
            continue;
        }
        if tickets.len() == TICKETS_PER_REQUEST_MAX {
            return Err(Refusal::invalid(format!(
                "there are more than {TICKETS_PER_REQUEST_MAX} tickets"
            )));
        }
        tickets.push(text.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Fence, FenceCommand, read, split_user};
    use crate::protocol::redis::request::{RequestLimits, RequestScanner};
    use crate::protocol::tickets::TICKETS_PER_REQUEST_MAX;

    fn fence(line: &str) -> Option<Fence> {
        let line = format!("{line}\r\n");
        let mut scanner = RequestScanner::new(RequestLimits::default());
        scanner.scan(line.as_bytes()).unwrap();
        read(&scanner.args(line.as_bytes())).unwrap().ok()
    }

    fn boxed(tickets: &[&str]) -> Vec<Box<str>> {
        tickets.iter().map(|ticket| (*ticket).into()).collect()
    }

    #[test]
    fn its_forms_are_read() {
        let set = |tickets: &[&str]| Some(Fence::Connection(FenceCommand::Set, boxed(tickets)));
        assert_eq!(fence("FENCE SET a"), set(&["a"]));
        assert_eq!(fence("fence set a,b c a"), set(&["a", "b", "c"]));
        assert_eq!(
            fence("FENCE WITH a,b SET k v"),
            Some(Fence::With(boxed(&["a", "b"])))
        );
        let clear = Fence::Connection(FenceCommand::Clear, vec![]);
        assert_eq!(fence("FENCE clear"), Some(clear));
        for bad in [
            "FENCE",
            "FENCE SET",
            "FENCE CLEAR a",
            "FENCE WITH",
            "FENCE WITH a",
            "FENCE SET a,,b",
            "FENCE SET \"\"",
            "FENCE SET \"a b\"",
            "FENCE get",
            "FENCE SET \"\\xff\"",
        ] {
            assert_eq!(fence(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_number_of_tickets_is_bounded() {
        let many = |count: usize| (0..count).map(|n| format!(" t{n}")).collect::<String>();
        assert!(fence(&format!("FENCE SET{}", many(TICKETS_PER_REQUEST_MAX))).is_some());
        assert!(fence(&format!("FENCE SET{}", many(TICKETS_PER_REQUEST_MAX + 1))).is_none());
    }

    #[test]
    fn a_users_name_is_parted_from_its_tickets() {
        assert_eq!(split_user(b"app"), Ok(None));
        assert_eq!(
            split_user(b"app;fence=a"),
            Ok(Some((&b"app"[..], boxed(&["a"]))))
        );
        let two = Some((&b"a;b"[..], boxed(&["x", "y", "z"])));
        assert_eq!(split_user(b"a;b;fence=x,y;fence=z"), Ok(two));
        assert_eq!(split_user(b";fence=x"), Ok(Some((&b""[..], boxed(&["x"])))));
        assert!(split_user(b"app;fence=").is_err());
        assert!(split_user(b"app;fence=a b").is_err());
    }
}
