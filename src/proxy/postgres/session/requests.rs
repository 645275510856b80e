//! The client's messages: decoded, considered, and forwarded one by one; what came in one read
//! leaves in one write.
//!
//! Invariant: of a refused message no byte leaves; what takes its place keeps the server's count of
//! answers.

use std::sync::Arc;

use super::effects::Ending;
use super::end::Phase;
use super::hide::{Hidden, Watch};
use super::weigh::{Weighed, operation_of};
use super::{Session, Turn, WAITING_BYTES_MAX};
use crate::config::Mode;
use crate::protocol::postgres::classify::{Classified, Unreadable};
use crate::protocol::postgres::frame::{BindHead, FrameError, FrontendMessage, Next, Parse};
use crate::protocol::postgres::refusal::{Severity, plain_error, refusal_error};
use crate::protocol::postgres::session::{Considered, Message};
use crate::protocol::{AfterRefusal, Refusal};

/// SQLSTATE `query_canceled`.
pub(super) const CANCELLED: &str = "57014";

/// What becomes of the rest of a long message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Streamed {
    Forwarded,
    Dropped,
}

/// What became of a message that was looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It was dealt with: forwarded.
    Forwarded,
    /// It was dealt with: something else was sent, or nothing.
    Dropped,
    /// Not yet.
    Later,
}

/// A message's bytes. Of a long one they are its first.
#[derive(Clone, Copy)]
struct Raw<'b> {
    bytes: &'b [u8],
    /// The length of the payload.
    payload_bytes: usize,
}

impl Session {
    /// Deals with what has come, as far as it can now. Whether something was done.
    pub(super) fn take_requests(&mut self, turn: &mut Turn) -> bool {
        if self.client.received.is_empty() || !self.takes_requests() {
            return false;
        }
        // Out of the way of everything that is called with its bytes.
        let bytes = std::mem::take(&mut self.client.received);
        let taken = self.take_from(&bytes, turn);
        if !self.phase.has_client() {
            return true;
        }
        self.client.received = bytes;
        self.client.consume(taken);
        // What has begun to wait must be polled.
        taken > 0 || self.admission.is_waiting()
    }

    /// Whether the next message can be looked at now.
    pub(super) fn takes_requests(&self) -> bool {
        let open = match self.phase {
            Phase::Open => true,
            Phase::Ending(_) => self.core.in_transaction(),
            _ => false,
        };
        open && !self.admission.is_waiting()
            && !self.revocation.holds_back()
            && self.core.has_room()
            && self.backend.waiting.len() < WAITING_BYTES_MAX
            && self.client.waiting.len() < WAITING_BYTES_MAX
    }

    /// How many bytes were dealt with.
    fn take_from(&mut self, bytes: &[u8], turn: &mut Turn) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.takes_requests() && turn.take_message() {
            // A message that is looked at again is decoded again.
            let mut decoder = self.requests.clone();
            let next = match decoder.next(&bytes[at..]) {
                Ok(next) => next,
                Err(error) => {
                    self.breach(&error.to_string());
                    return bytes.len();
                }
            };
            let taken = match next {
                Next::More { .. } => break,
                Next::Whole { tag, payload, raw } => self.take_whole(tag, payload, raw),
                Next::Begin {
                    tag,
                    payload_bytes,
                    head,
                    raw,
                } => {
                    let raw = Raw {
                        bytes: raw,
                        payload_bytes,
                    };
                    self.take_beginning(tag, head, raw)
                }
                Next::Part { raw, .. } => {
                    if self.watch.as_mut().is_some_and(|watch| watch.finds(raw)) {
                        self.cut();
                        return bytes.len();
                    }
                    if self.streamed == Some(Streamed::Forwarded) {
                        self.backend.send(raw);
                    }
                    Ok(Taken::Dropped)
                }
            };
            match taken {
                Ok(Taken::Later) => break,
                Ok(taken) => {
                    if let Next::Begin { .. } = next {
                        self.streamed = Some(match taken {
                            Taken::Forwarded => Streamed::Forwarded,
                            _ => Streamed::Dropped,
                        });
                    }
                }
                Err(error) => {
                    self.breach(&error.to_string());
                    return bytes.len();
                }
            }
            at += next.consumed();
            self.requests = decoder;
            if self.requests.is_between_messages() {
                self.streamed = None;
                self.watch = None;
            }
            self.admission.forget();
            self.hold.forget();
        }
        at
    }

    fn take_whole(&mut self, tag: u8, payload: &[u8], raw: &[u8]) -> Result<Taken, FrameError> {
        // Nothing is to be decided about data.
        if tag == b'd' {
            self.backend.send(raw);
            return Ok(Taken::Forwarded);
        }
        let raw = Raw {
            bytes: raw,
            payload_bytes: payload.len(),
        };
        if tag == b'B' {
            return self.take_bind(payload, raw);
        }
        Ok(match FrontendMessage::read(tag, payload)? {
            FrontendMessage::Query(text) => {
                let classified = self.listener.classifier.classify(text, self.core.lexing());
                self.find_imported(&classified);
                let hidden = self.hide_in_query(text, &classified);
                self.take(Message::Query(text, &classified), hidden, raw)
            }
            FrontendMessage::Parse(parse) => {
                let classified = self
                    .listener
                    .classifier
                    .classify(parse.text, self.core.lexing())
                    .with_types(parse.type_oids());
                self.find_imported(&classified);
                let hidden = self.hide_in_parse(&parse, &classified);
                let message = Message::Parse(parse.statement, parse.text, &classified);
                self.take(message, hidden, raw)
            }
            FrontendMessage::Execute { portal, rows_max } => {
                let message = match rows_max > 0 {
                    true => Message::ExecuteSome(portal),
                    false => Message::Execute(portal),
                };
                self.take(message, Hidden::AsIs, raw)
            }
            FrontendMessage::Describe { kind, name } => {
                self.take(Message::Describe(kind, name), Hidden::AsIs, raw)
            }
            FrontendMessage::Close { kind, name } => {
                self.take(Message::Close(kind, name), Hidden::AsIs, raw)
            }
            FrontendMessage::Sync => self.take(Message::Sync, Hidden::AsIs, raw),
            FrontendMessage::Flush => self.take(Message::Flush, Hidden::AsIs, raw),
            FrontendMessage::FunctionCall { .. } => {
                self.take(Message::FunctionCall, Hidden::AsIs, raw)
            }
            FrontendMessage::CopyDone | FrontendMessage::CopyFail => {
                self.take(Message::CopyEnd, Hidden::AsIs, raw)
            }
            FrontendMessage::Terminate => {
                self.desert();
                Taken::Dropped
            }
            FrontendMessage::Bind(_)
            | FrontendMessage::CopyData
            | FrontendMessage::Authentication(_) => return Err(FrameError::UnknownType { tag }),
        })
    }

    /// The values of a Bind matter only where they may hold a ticket.
    fn take_bind(&mut self, payload: &[u8], raw: Raw<'_>) -> Result<Taken, FrameError> {
        let head = BindHead::read(payload)?;
        if !self.core.may_set_config(head.statement) {
            let message = Message::BindHead(head);
            return Ok(self.take(message, Hidden::AsIs, raw));
        }
        let FrontendMessage::Bind(bind) = FrontendMessage::read(b'B', payload)? else {
            return Err(FrameError::UnknownType { tag: b'B' });
        };
        let hidden = self.hide_in_bind(&bind);
        Ok(self.take(Message::Bind(&bind), hidden, raw))
    }

    /// A message that is too long to be looked into: what it does is not known.
    fn take_beginning(&mut self, tag: u8, head: &[u8], raw: Raw<'_>) -> Result<Taken, FrameError> {
        if tag == b'd' {
            self.backend.send(raw.bytes);
            return Ok(Taken::Forwarded);
        }
        let unread = Classified::unseen(Unreadable::TooLong, raw.payload_bytes);
        let message = match tag {
            b'Q' => Message::Query(head, &unread),
            b'P' => Message::Parse(Parse::name(head)?, head, &unread),
            b'B' => {
                let head = BindHead::read(head)?;
                let message = Message::BindHead(head);
                if self.core.may_set_config(head.statement) {
                    let detail = "settings are not taken out of a Bind that is too long to be \
                                  looked at";
                    return Ok(self.refuse_unread(message, Refusal::invalid(detail)));
                }
                message
            }
            b'F' => Message::FunctionCall,
            _ => return Err(FrameError::UnknownType { tag }),
        };
        let bytes_max = self.listener.config.limits.message_bytes_max;
        if raw.payload_bytes as u64 > bytes_max {
            let detail = format!(
                "a message of {} bytes is longer than limits.message_bytes_max",
                raw.payload_bytes
            );
            return Ok(self.refuse_unread(message, Refusal::invalid(detail)));
        }
        // A ticket in what was seen of it would be seen by the server: that is refused.
        let hidden = match message {
            Message::Query(..) | Message::Parse(..) => match self.hide_in_query(head, &unread) {
                Hidden::Instead(_) => Hidden::Refused(Refusal::invalid(
                    "a ticket is not taken out of a text that is too long to be looked at",
                )),
                hidden => hidden,
            },
            _ => Hidden::AsIs,
        };
        let taken = self.take(message, hidden, raw);
        let is_text = matches!(message, Message::Query(..) | Message::Parse(..));
        self.watch = is_text.then(|| Watch::behind(head));
        Ok(taken)
    }

    fn take(&mut self, message: Message<'_>, hidden: Hidden, raw: Raw<'_>) -> Taken {
        let cancelled = self.admission.take_cancelled();
        self.hold.look();
        if let Some(instead) = self.core.skip(message) {
            self.backend.send(&instead);
            return Taken::Dropped;
        }
        if cancelled {
            return self.cancel(message);
        }
        let hidden = match hidden {
            Hidden::AsIs if self.passes(message) => {
                self.backend.send(raw.bytes);
                return Taken::Forwarded;
            }
            Hidden::AsIs => None,
            Hidden::Instead(bytes) => Some(bytes),
            Hidden::Later => return Taken::Later,
            Hidden::Refused(refusal) => return self.refuse_unread(message, refusal),
        };
        loop {
            let considered = match self.consider(message) {
                Ok(considered) => considered,
                Err(refusal) => return self.refuse_unread(message, refusal),
            };
            let first = self.hold_ahead(&considered);
            match first.unwrap_or_else(|| self.weigh(&considered)) {
                Weighed::Again => {}
                Weighed::Later => return Taken::Later,
                Weighed::Refused(refusal) => return self.refuse(&considered, &refusal),
                Weighed::Passed(ending) => {
                    let bytes = hidden.as_deref().unwrap_or(raw.bytes);
                    self.forward(&considered, ending, bytes);
                    return Taken::Forwarded;
                }
            }
        }
    }

    /// Has a message forwarded that runs nothing, where nothing is to be decided about it.
    fn passes(&mut self, message: Message<'_>) -> bool {
        if matches!(message, Message::Sync) {
            return self.core.pass(message);
        }
        if self.is_to_be_held() {
            return false;
        }
        let begins = !self.core.is_in_pipeline();
        let span = self.core.span();
        let passed = self.core.pass(message);
        if passed && begins {
            self.note_begun(span);
        }
        passed
    }

    fn consider(&mut self, message: Message<'_>) -> Result<Arc<Considered>, Refusal> {
        if let Some(considered) = self.core.recall(message) {
            return Ok(considered);
        }
        let doubts = self.doubts();
        self.core.doubt(doubts);
        match self.core.consider(message) {
            Ok(considered) => {
                let considered = Arc::new(considered);
                self.core.remember(message, &considered);
                Ok(considered)
            }
            Err(refusal) => match self.consider_observed(message, &refusal) {
                Some(considered) => Ok(Arc::new(considered)),
                None => Err(refusal),
            },
        }
    }

    /// Observing, a message that would be refused is followed as one that was not read.
    fn consider_observed(&mut self, message: Message<'_>, refusal: &Refusal) -> Option<Considered> {
        let observes = self.listener.config.mode == Mode::Observe;
        if !observes || refusal.after == AfterRefusal::Close {
            return None;
        }
        let unread = |text: &[u8]| Classified::unread(Unreadable::Failed, text);
        let considered = match message {
            Message::Query(text, _) => self.core.consider(Message::Query(text, &unread(text))),
            Message::Parse(name, text, _) => {
                self.core
                    .consider(Message::Parse(name, text, &unread(text)))
            }
            Message::Bind(bind) => {
                let head = Message::BindHead(bind.head());
                self.core.consider(head)
            }
            _ => return None,
        };
        self.report(refusal, "message");
        considered.ok()
    }

    fn forward(&mut self, considered: &Considered, mut ending: Ending, bytes: &[u8]) {
        let (span, runs) = (self.core.span(), !considered.runs.is_empty());
        self.revocation.note_commit(considered, span);
        self.note_held(considered);
        self.note_exports(considered);
        let forward = self.core.forward(considered);
        self.backend.send(&forward.before);
        self.backend.send(bytes);
        self.backend.send(&forward.after);
        self.effects.note(&mut ending, span);
        self.effects
            .note_commits(&considered.runs, span, &self.database);
        let in_block = self.core.will_be_in_block();
        let place = (span, self.core.awaited_span());
        self.effects
            .note_unsettled((&considered.runs, &ending), place, in_block, &self.database);
        if ending.distrusts {
            self.core.distrust();
        }
        if runs {
            self.cursors.note(&considered.runs, span, ending.distrusts);
        }
        match runs {
            true => self.note_made(ending, span),
            false if ending.shadows => self.shadow(),
            false => {}
        }
    }

    fn refuse(&mut self, considered: &Considered, refusal: &Refusal) -> Taken {
        self.report(refusal, operation_of(considered));
        if refusal.after == AfterRefusal::Close {
            self.end_client(refusal_error(refusal, Severity::Fatal));
            return Taken::Dropped;
        }
        let error = refusal_error(refusal, Severity::Error);
        let instead = self.core.refuse(considered, error);
        self.backend.send(&instead);
        Taken::Dropped
    }

    /// A message that waited is refused as the server refuses one that it has begun.
    fn cancel(&mut self, message: Message<'_>) -> Taken {
        let considered = self.core.consider(message);
        let considered = considered.unwrap_or_else(|_| self.core.unread(message));
        let text = "canceling statement due to user request";
        let error = plain_error(Severity::Error, CANCELLED, text);
        let instead = self.core.refuse(&considered, error);
        self.backend.send(&instead);
        Taken::Dropped
    }

    /// A message that was not considered.
    fn refuse_unread(&mut self, message: Message<'_>, refusal: Refusal) -> Taken {
        if self.core.skip(message).is_some() {
            return Taken::Dropped;
        }
        let considered = self.core.unread(message);
        self.refuse(&considered, &refusal)
    }
}
