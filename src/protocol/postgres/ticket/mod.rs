//! Where tickets travel in a Postgres session, and for how long one counts.
//!
//! A ticket comes as the parameter `ringfence.token`: in the StartupMessage, alone or within
//! `options` ([`startup`]); by SET or `set_config` ([`change`]); or in a comment for one statement
//! ([`comment`]). Several tickets, one per lock, are separated by commas as in HTTP.
//!
//! Its scope is that of any parameter of the server ([`scope`]): SET lasts for the session unless
//! its transaction rolls back, SET LOCAL to the end of the transaction, ROLLBACK TO takes back what
//! came after the savepoint, RESET and DISCARD ALL return to the start-up value.
//!
//! The server never sees a ticket: wherever one stood, the text that it gets has the lock and the
//! token number instead, so that SHOW answers those, with the server's own scope and rollback.

pub mod change;
pub mod comment;
mod options;
pub mod scope;
pub mod startup;

use std::sync::Arc;

use crate::lock_name::LockName;
use crate::protocol::refusal::Refusal;
use crate::protocol::tickets;
use crate::token::Token;

/// The parameter that carries tickets. Names of parameters are compared without case.
pub const PARAMETER: &str = "ringfence.token";

/// Tickets as they came, not verified, each once; none is no ticket. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tickets(Option<Arc<[Box<str>]>>);

impl PartialEq for Tickets {
    fn eq(&self, other: &Tickets) -> bool {
        match (&self.0, &other.0) {
            // As a rule they are a session's, and the same.
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Tickets {}

impl Tickets {
    /// The tickets of a parameter's value. An empty value is no ticket: what a placeholder
    /// parameter of the server has when it was never set.
    pub fn parse(value: &[u8]) -> Result<Tickets, Refusal> {
        if value.trim_ascii().is_empty() {
            return Ok(Tickets(None));
        }
        let texts = tickets::parse_named(PARAMETER, value)?;
        Ok(Tickets(Some(texts.into_iter().map(Into::into).collect())))
    }

    /// The texts.
    pub fn as_slice(&self) -> &[Box<str>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }
}

/// What stands in a ticket's place at the server: `orders=7, users=9`. Quotes and backslashes of a
/// lock's name are replaced, so that it can stand in any literal.
pub fn shown<'t>(tickets: impl IntoIterator<Item = (&'t LockName, Token)>) -> String {
    let mut text = String::new();
    for (lock, token) in tickets {
        let dot = if text.is_empty() { "" } else { ", " };
        let lock = lock.as_str().replace(['\'', '\\', '"'], "_");
        text.push_str(&format!("{dot}{lock}={token}"));
    }
    text
}

pub(super) fn is_parameter(name: &str) -> bool {
    name.eq_ignore_ascii_case(PARAMETER)
}

#[cfg(test)]
mod tests;
