//! A newer token has come while commands of this session are in flight, or its backend connection
//! is over.
//!
//! What the client gets of a session that was killed: its connection's unanswered commands in
//! order, writes as `-FENCEDOUBT`, and the end of the connection, as Redis ends the one of a killed
//! client. A command whose last byte had not left is not in doubt: `-FENCED`.

use std::task::Context;

use super::{Phase, Session};
use crate::proxy::redis::link::Revoked;

impl Session {
    /// Whether something has changed that the other stages must look at.
    pub(super) fn poll_revocation(&mut self, cx: &mut Context<'_>) -> bool {
        if matches!(self.phase, Phase::Flushing | Phase::Over) {
            return false;
        }
        match self.link.poll_revocation(cx) {
            Revoked::Nothing => false,
            Revoked::Moved => true,
            Revoked::Gone => {
                while self.poll_receive_backend(cx) {}
                self.backend_ended();
                true
            }
            Revoked::Unknown => {
                self.backend_ended();
                true
            }
        }
    }

    /// Nothing more comes from the backend.
    pub(super) fn backend_ended(&mut self) {
        if matches!(self.phase, Phase::Flushing | Phase::Over) {
            return;
        }
        // What is on its way over a shared connection has an outcome of its own.
        if self.sharing.outlives_own() {
            return;
        }
        self.owe_rest();
        self.flush();
    }
}
