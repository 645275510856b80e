//! Observing a connection that is not understood any more: the server speaks another protocol on it
//! (PSYNC, a debugger's), or its replies are out of step. Observe mode ends nothing, so both sides'
//! bytes pass as they come from there on. Commands are still looked at for tickets, which the
//! server must not see.
//!
//! Invariant: only where nothing is enforced. Elsewhere such a connection ends.

use super::Session;
use super::requests::Streamed;
use crate::protocol::Refusal;
use crate::protocol::redis::{Action, Conversation, ConversationSettings, Owed, refusal_reply};
use crate::proxy::redis::link::Extent;

impl Session {
    /// From here on replies pass unread, these first.
    pub(super) fn go_blind(&mut self, reason: &str, rest: &[u8]) {
        tracing::warn!(
            listener = self.listening.config.name,
            client = %self.address,
            reason,
            "a connection is not understood any more: it passes unobserved"
        );
        self.blind = true;
        self.delivery = None;
        self.barrier = false;
        let fresh = Conversation::new(ConversationSettings {
            observes: true,
            ..ConversationSettings::default()
        });
        let lost = std::mem::replace(&mut self.conversation, fresh);
        for owed in lost.into_owed() {
            // The server's replies are on their way.
            if let Owed::Answer(reply) = owed {
                self.to_client.extend_from_slice(&reply);
            }
        }
        self.to_client.extend_from_slice(rest);
    }

    /// Passes a request, or the beginning of one, without what is the proxy's in it.
    pub(super) fn take_blind(&mut self, request: &[u8], extent: Extent) {
        let args = self.requests.args(request);
        let rules = &self.listening.config.rules;
        let unread = || Refusal::unclassified("the connection is not understood");
        let plan = self.conversation.plan(&args, &self.table, rules);
        let plan =
            plan.unwrap_or_else(|_| self.conversation.plan_unread(&args, &self.table, unread()));
        let streamed = match plan.action {
            Action::Forward(bytes) => {
                bytes.write(request, &mut self.link.to_backend);
                Streamed::Forwarded { fenced: false }
            }
            Action::Fence(_) => {
                self.to_client.extend_from_slice(b"+OK\r\n");
                Streamed::Dropped
            }
            Action::Answer(reply) => {
                self.to_client.extend_from_slice(&reply);
                Streamed::Dropped
            }
            Action::Refuse(refusal) => {
                self.to_client.extend_from_slice(&refusal_reply(&refusal));
                Streamed::Dropped
            }
        };
        self.streamed = (extent == Extent::Beginning).then_some(streamed);
    }
}
