//! No ticket leaves: what is forwarded has the lock and the token number in its place.

use super::Session;
use super::genuine::Look;
use crate::config::{Mode, Trust};
use crate::protocol::Refusal;
use crate::protocol::postgres::classify::Classified;
use crate::protocol::postgres::frame::{Bind, Parse, query, rewrite_parse};
use crate::protocol::postgres::ticket::change::{hide, hide_in_bind};
use crate::protocol::postgres::ticket::{Tickets, comment};

/// What stands at the server in the place of tickets that are not genuine, where that is only
/// noted.
const NOT_GENUINE: &str = "invalid";

/// How a signed ticket begins (PASETO v4.public).
const TICKET_MARK: &[u8] = b"v4.public.";
/// What stands before a ticket that is meant as one: the parameter, however it is quoted, or the
/// key of a comment.
const NAMES: [&[u8]; 2] = [b"ringfence", comment::KEY.as_bytes()];

/// The bytes that are forwarded.
pub(super) enum Hidden {
    /// Those that came.
    AsIs,
    /// These.
    Instead(Vec<u8>),
    /// It is not known yet: keys are asked for.
    Later,
    Refused(Refusal),
}

impl Session {
    pub(super) fn hide_in_query(&mut self, text: &[u8], classified: &Classified) -> Hidden {
        self.hidden(
            |show| hidden_text(text, hide(text, classified, show)?),
            |shown| query(shown.as_slice()),
        )
    }

    pub(super) fn hide_in_parse(&mut self, parse: &Parse<'_>, classified: &Classified) -> Hidden {
        self.hidden(
            |show| hidden_text(parse.text, hide(parse.text, classified, show)?),
            |shown| rewrite_parse(parse, &shown),
        )
    }

    pub(super) fn hide_in_bind(&mut self, bind: &Bind<'_>) -> Hidden {
        let statements = self.core.bound_statements(bind.statement);
        self.hidden(
            |show| {
                for statement in &statements {
                    if let Some(bytes) = hide_in_bind(bind, statement, &mut *show)? {
                        return Ok(Some(bytes));
                    }
                }
                Ok(None)
            },
            |bytes| bytes,
        )
    }

    fn hidden(
        &mut self,
        hide: impl FnOnce(&mut dyn FnMut(&Tickets) -> String) -> Result<Option<Vec<u8>>, Refusal>,
        message: impl FnOnce(Vec<u8>) -> Vec<u8>,
    ) -> Hidden {
        let observes = self.listener.config.mode == Mode::Observe;
        let (mut unknown, mut refused) = (None, None);
        let mut show = |texts: &Tickets| match self.show(texts) {
            Shown::Text(text) => text,
            Shown::Refused(_) if observes => NOT_GENUINE.to_owned(),
            Shown::Refused(refusal) => {
                refused.get_or_insert(refusal);
                String::new()
            }
            Shown::Unknown => {
                unknown.get_or_insert(texts.clone());
                String::new()
            }
        };
        let hidden = match hide(&mut show) {
            Ok(hidden) => hidden,
            // Observing, it passes as it came: what is malformed is no credential.
            Err(_) if observes => None,
            Err(refusal) => return Hidden::Refused(refusal),
        };
        match (refused, unknown, hidden) {
            (Some(refusal), _, _) => Hidden::Refused(refusal),
            (None, Some(texts), _) => {
                self.begin_verifying(texts);
                Hidden::Later
            }
            (None, None, Some(text)) => Hidden::Instead(message(text)),
            (None, None, None) => Hidden::AsIs,
        }
    }

    fn show(&mut self, texts: &Tickets) -> Shown {
        if texts.is_empty() {
            return Shown::Text(String::new());
        }
        match self.look(texts) {
            Look::Unknown => Shown::Unknown,
            Look::Refused(refusal) => Shown::Refused(refusal),
            Look::Genuine(_) => Shown::Text(match self.listener.config.trust {
                // A number, as it was found to be.
                Trust::Unsigned => texts.as_slice().join(","),
                Trust::Signed => self.sets.shown(texts).unwrap_or_default(),
            }),
        }
    }
}

/// Refuses a text that still has a ticket where one could be meant: in a comment that does not
/// count, in a call that is not the statement's own. Tickets elsewhere are data.
fn hidden_text(text: &[u8], hidden: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, Refusal> {
    let left = hidden.as_deref().unwrap_or(text);
    // Most texts are through with the first.
    if contains(left, TICKET_MARK) && NAMES.iter().any(|name| contains(left, name)) {
        return Err(Refusal::invalid(
            "a ticket comes by SET or set_config, or in the first or last comment of a text",
        ));
    }
    Ok(hidden)
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    let (lower, upper) = (word[0].to_ascii_lowercase(), word[0].to_ascii_uppercase());
    let is_here = |at: usize| text[at..].get(..word.len());
    memchr::memchr2_iter(lower, upper, text)
        .filter_map(is_here)
        .any(|it| it.eq_ignore_ascii_case(word))
}

/// Looks for tickets in a text that is too long to be held, part by part.
pub(super) struct Watch {
    /// What words that are cut by parts begin with.
    tail: Vec<u8>,
    named: bool,
}

impl Watch {
    /// Behind the beginning of a text, in which no ticket was found.
    pub(super) fn behind(head: &[u8]) -> Watch {
        let mut watch = Watch {
            tail: vec![],
            named: false,
        };
        watch.finds(head);
        watch
    }

    /// Whether a ticket stands in this part, or ends in it, where one could be meant.
    pub(super) fn finds(&mut self, part: &[u8]) -> bool {
        const OVERLAP_BYTES: usize = 16;
        self.tail.extend_from_slice(part);
        self.named |= NAMES.iter().any(|name| contains(&self.tail, name));
        let found = self.named && contains(&self.tail, TICKET_MARK);
        let kept = self.tail.len().saturating_sub(OVERLAP_BYTES);
        self.tail.drain(..kept);
        found
    }
}

enum Shown {
    Text(String),
    Unknown,
    Refused(Refusal),
}
