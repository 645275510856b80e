//! What genuine tickets claim, alike for every listener.

use std::sync::Arc;

use super::gates::Claim;
use crate::lock_name::LockName;
use crate::protocol::Refusal;
use crate::ticket::Ticket;
use crate::token::Token;

/// The claims of genuine tickets: sorted by lock, each lock once. Two tickets for one lock are
/// refused as invalid.
pub(super) fn of_tickets(tickets: &[Arc<Ticket>]) -> Result<Vec<Claim>, Refusal> {
    let claim = |ticket: &Arc<Ticket>| Claim {
        lock: ticket.lock.clone(),
        token: ticket.token,
        unsigned: false,
    };
    let mut claims: Vec<Claim> = tickets.iter().map(claim).collect();
    claims.sort_unstable_by(|a, b| a.lock.cmp(&b.lock));
    match claims.windows(2).find(|pair| pair[0].lock == pair[1].lock) {
        None => Ok(claims),
        Some(pair) => {
            let refusal = Refusal::invalid("two tickets are given for one lock");
            Err(refusal.for_lock(pair[0].lock.clone()))
        }
    }
}

/// The token of a listener with `trust = "unsigned"`: there is one, a positive integer.
pub(super) fn bare_token(texts: &[impl AsRef<str>]) -> Result<Token, Refusal> {
    let [text] = texts else {
        return Err(Refusal::invalid("more than one bare token is given"));
    };
    // The text is not repeated: it may be a signed ticket, which is a credential.
    text.as_ref().parse().map_err(|_| {
        Refusal::invalid("this listener takes bare tokens: a positive integer below 2^63 is one")
    })
}

/// The claim of a bare token: it is for the one lock that a request needs. Where no rule names a
/// lock it says nothing. `what`: how the request is called.
pub(super) fn of_bare(
    tickets: &[&str],
    locks: &[LockName],
    what: &str,
) -> Result<Vec<Claim>, Refusal> {
    let lock = match (tickets, locks) {
        ([], _) | (_, []) => return Ok(vec![]),
        ([_], [_, _, ..]) => {
            return Err(Refusal::invalid(format!(
                "this {what} needs several locks: a bare token does not say which one it is for",
            )));
        }
        ([_], [lock]) => lock,
        // Whichever lock it is about.
        (_, _) => return bare_token(tickets).map(|_| vec![]),
    };
    let token = bare_token(tickets).map_err(|refusal| refusal.for_lock(lock.clone()))?;
    Ok(vec![Claim {
        lock: lock.clone(),
        token,
        unsigned: true,
    }])
}
