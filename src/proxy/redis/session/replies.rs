//! Replies: each is its command's, whatever came between; with its end the command's permits are
//! finished.
//!
//! Invariant: bytes that are no reply, and a reply that nobody waits for, end the backend
//! connection: its count is out of step.

use bytes::{Buf as _, BytesMut};

use super::{Phase, Session};
use crate::config::Mode;
use crate::protocol::redis::{
    Change, Conversation, ConversationSettings, Delivery, Filter, Filtered, Finished, Owed,
    ReplyEnd, ReplyHead, ReplyProgress, refusal_reply,
};
use crate::proxy::polled::shrink;
use crate::proxy::redis::flights::Load;

/// Longest reply that is held whole, in bytes: CLIENT LIST of the most clients.
const HELD_BYTES_MAX: usize = 32 << 20;

/// What becomes of a reply that is under way.
pub(super) enum Delivering {
    /// It goes to the client as it comes.
    Forward,
    /// It is the proxy's own.
    Drop,
    /// It is held, then changed.
    Hold(Filter, BytesMut),
    /// The client gets these bytes when it has ended.
    Replace(Vec<u8>),
}

impl Session {
    /// Deals with all that has come from the backend.
    pub(super) fn take_replies(&mut self) {
        // Out of the way of everything that is called with its bytes.
        let mut bytes = std::mem::take(&mut self.link.from_backend);
        if self.sharing.is_awaiting() {
            tracing::error!(
                "the backend's replies are out of step: one came that nobody waits for"
            );
            return self.backend_ended();
        }
        if self.blind {
            self.to_client.extend_from_slice(&bytes);
            return;
        }
        let mut run = 0;
        match self.take_replies_from(&bytes, &mut run) {
            Ok(taken) => {
                bytes.advance(taken);
                shrink(&mut bytes);
                self.link.from_backend = bytes;
            }
            Err(reason) if self.listening.config.mode == Mode::Observe => {
                self.go_blind(&reason, &bytes[run..]);
            }
            Err(reason) => {
                tracing::error!(reason, "the backend's replies are out of step");
                self.backend_ended();
            }
        }
    }

    /// `run`: what has come up to there is dealt with. Replies that follow each other to the client
    /// are copied at once.
    fn take_replies_from(&mut self, bytes: &[u8], run: &mut usize) -> Result<usize, String> {
        let mut at = 0;
        while at < bytes.len() && !matches!(self.phase, Phase::Flushing | Phase::Over) {
            let rest = &bytes[at..];
            if let Some(delivering) = self.delivery.take() {
                let part = self.replies.stream(rest).map_err(|it| it.to_string())?;
                at += part.len;
                self.deliver_part(delivering, &rest[..part.len], part.ended)?;
                *run = at;
                continue;
            }
            match self.replies.scan(rest).map_err(|it| it.to_string())? {
                ReplyProgress::More => break,
                ReplyProgress::Partial(head) => {
                    self.to_client.extend_from_slice(&bytes[*run..at]);
                    *run = at;
                    let delivering = self.begin(&head)?;
                    self.deliver_part(delivering, rest, None)?;
                    at = bytes.len();
                    *run = at;
                }
                ReplyProgress::Complete { len, head, end } => {
                    let delivery = self.delivery_of(&head)?;
                    if !matches!(delivery, Delivery::Forward) {
                        self.to_client.extend_from_slice(&bytes[*run..at]);
                        self.deliver_whole(delivery, &rest[..len])?;
                        *run = at + len;
                    }
                    at += len;
                    self.replies.reset();
                    if let Some(finished) = self.conversation.reply_ended(&end) {
                        self.finish(finished);
                    }
                    while let Some(local) = self.conversation.next_local() {
                        self.to_client.extend_from_slice(&bytes[*run..at]);
                        *run = at;
                        self.to_client.extend_from_slice(&local);
                    }
                }
            }
        }
        self.to_client.extend_from_slice(&bytes[*run..at]);
        *run = at;
        Ok(at)
    }

    pub(super) fn delivery_of(&mut self, head: &ReplyHead) -> Result<Delivery, String> {
        let begun = self.conversation.reply_begins(head);
        begun.map_err(|_| "a reply came that nobody waits for".to_owned())
    }

    fn begin(&mut self, head: &ReplyHead) -> Result<Delivering, String> {
        Ok(match self.delivery_of(head)? {
            Delivery::Forward => Delivering::Forward,
            Delivery::Swallow => Delivering::Drop,
            Delivery::Hold(filter) => Delivering::Hold(filter, BytesMut::new()),
            Delivery::Instead(bytes) => Delivering::Replace(bytes),
        })
    }

    pub(super) fn deliver_whole(&mut self, delivery: Delivery, reply: &[u8]) -> Result<(), String> {
        match delivery {
            Delivery::Forward => self.to_client.extend_from_slice(reply),
            Delivery::Swallow => {}
            Delivery::Hold(filter) => {
                // There is always something to show but to RANDOMKEY: then a null, as of no keys.
                let shown = match filter.apply(reply) {
                    Filtered::Reply(reply) => reply,
                    Filtered::Again => b"$-1\r\n".to_vec(),
                    Filtered::Nothing => vec![],
                };
                self.to_client.extend_from_slice(&shown);
            }
            Delivery::Instead(bytes) => self.to_client.extend_from_slice(&bytes),
        }
        Ok(())
    }

    fn deliver_part(
        &mut self,
        delivering: Delivering,
        part: &[u8],
        end: Option<ReplyEnd>,
    ) -> Result<(), String> {
        let delivering = match delivering {
            Delivering::Forward => {
                self.to_client.extend_from_slice(part);
                Delivering::Forward
            }
            Delivering::Hold(filter, mut held) => {
                if held.len() + part.len() > HELD_BYTES_MAX {
                    return Err("a reply that is filtered is too long".to_owned());
                }
                held.extend_from_slice(part);
                if filter.is_content_with(&held) {
                    self.to_client.extend_from_slice(&held);
                    Delivering::Forward
                } else {
                    Delivering::Hold(filter, held)
                }
            }
            other => other,
        };
        let Some(end) = end else {
            self.delivery = Some(delivering);
            return Ok(());
        };
        match delivering {
            Delivering::Forward | Delivering::Drop => {}
            Delivering::Hold(filter, held) => {
                self.deliver_whole(Delivery::Hold(filter), &held)?;
            }
            Delivering::Replace(bytes) => self.to_client.extend_from_slice(&bytes),
        }
        self.replies.reset();
        self.ended(&end);
        Ok(())
    }

    /// A reply is whole.
    fn ended(&mut self, end: &ReplyEnd) {
        if let Some(finished) = self.conversation.reply_ended(end) {
            self.finish(finished);
        }
        self.pump_local();
    }

    pub(super) fn finish(&mut self, finished: Finished<Load>) {
        self.sharing.note_finished(&finished);
        if let Some(load) = finished.payload {
            self.link.flights.answered(load);
        }
        match finished.change {
            Change::None => {}
            Change::Tickets(_) => {
                // Verified and settled before the command was forwarded.
                self.bound = self.admission.binding.take().unwrap_or_default();
            }
            Change::Reset => self.bound = Default::default(),
            Change::Close => self.phase = Phase::Ending,
        }
    }

    /// The replies that the client is still owed: for each command that has none, what is known.
    pub(super) fn owe_rest(&mut self) {
        // Where a reply was cut off in its middle nothing can follow it.
        let tells = self.delivery.is_none();
        let fresh = Conversation::new(ConversationSettings::default());
        let lost = std::mem::replace(&mut self.conversation, fresh);
        for owed in lost.into_owed() {
            match owed {
                Owed::Answer(reply) if tells => self.to_client.extend_from_slice(&reply),
                Owed::Answer(_) => {}
                Owed::Reply {
                    wanted,
                    operation,
                    kind,
                    payload,
                } => {
                    let fate = self.link.fate(kind, payload.as_ref());
                    if payload.is_some_and(|load| load.fenced) {
                        self.audit(&fate, &operation);
                    }
                    // Observing, the end of the connection is the server's own.
                    let enforces = self.listening.config.mode == Mode::Enforce;
                    if wanted && tells && enforces {
                        self.to_client.extend_from_slice(&refusal_reply(&fate));
                    }
                }
            }
        }
    }
}
