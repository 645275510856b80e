//! The right to forward one write. Code that forwards without one does not compile.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::epoch::Epoch;
use super::handle::Gate;
pub use super::word::Stage;
use crate::token::Token;

/// A write's right to be forwarded under its token, as a small state machine: `Admitted`, then
/// `Forwarded` (a byte has left), then `Released` (what can make the write take effect may leave),
/// then finished.
///
/// Dropped while `Admitted`, nothing has happened. Dropped later, without [`Permit::finish`], the
/// write is in doubt at its token: [`Gate::resolve_doubt`] must follow once it is proven dead or
/// finished, or its lock stays closed to newer tokens.
#[must_use = "a permit that is dropped is given back"]
pub struct Permit {
    /// Taken by `finish` and by the destructor, whichever runs first.
    epoch: Option<Arc<Epoch>>,
    stage: Stage,
    /// Its number among those who wait to be revoked.
    waiter: Option<u64>,
}

/// A newer token or a close came first: what has not left must not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("revoked by a newer token")]
pub struct Revoked;

impl Permit {
    /// Counts a write in, if the epoch is the token's and open.
    pub(super) fn enter(epoch: &Arc<Epoch>, token: Token) -> Option<Permit> {
        if epoch.token != token.get() || epoch.word.enter().is_err() {
            return None;
        }
        Some(Permit {
            epoch: Some(Arc::clone(epoch)),
            stage: Stage::Admitted,
            waiter: None,
        })
    }

    /// The token that it was admitted under.
    pub fn token(&self) -> Token {
        Token::new(self.epoch().token).expect("epochs are opened for tokens")
    }

    /// Where it stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The gate; `None` when the proxy has let go of it.
    pub fn gate(&self) -> Option<Arc<Gate>> {
        self.epoch().gate.upgrade()
    }

    /// Call before the first byte leaves. Revoked: nothing may leave, and dropping it is clean.
    pub fn forward(&mut self) -> Result<(), Revoked> {
        match self.stage {
            Stage::Admitted => self.advance(Stage::Forwarded),
            Stage::Forwarded | Stage::Released => Ok(()),
        }
    }

    /// Call before the bytes leave that can make the write take effect. Revoked: they must not
    /// leave; what left before is to be aborted at the backend.
    pub fn release(&mut self) -> Result<(), Revoked> {
        match self.stage {
            Stage::Admitted | Stage::Forwarded => self.advance(Stage::Released),
            Stage::Released => Ok(()),
        }
    }

    fn advance(&mut self, to: Stage) -> Result<(), Revoked> {
        self.epoch()
            .word
            .advance(self.stage, to)
            .map_err(|_| Revoked)?;
        self.stage = to;
        Ok(())
    }

    /// Whether a newer token or a close has come. After `Released` the write goes on all the same.
    pub fn is_revoked(&self) -> bool {
        self.epoch().word.is_closed()
    }

    /// Ready once revoked; otherwise the context's task is woken when it is.
    pub fn poll_revoked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waiter = self.waiter;
        let revoked = self.epoch().closed_or_wake(&mut waiter, cx.waker());
        self.waiter = waiter;
        if revoked {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// The write has ended: its outcome was seen, or it is proven that it can never be applied.
    pub fn finish(mut self) {
        if let Some(epoch) = self.take_epoch() {
            leave(&epoch, self.stage);
        }
    }

    fn epoch(&self) -> &Arc<Epoch> {
        self.epoch
            .as_ref()
            .expect("only finish and drop take it, and both end the permit")
    }

    fn take_epoch(&mut self) -> Option<Arc<Epoch>> {
        let epoch = self.epoch.take()?;
        if let Some(waiter) = self.waiter.take() {
            epoch.forget(waiter);
        }
        Some(epoch)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(epoch) = self.take_epoch() else {
            return;
        };
        if self.stage != Stage::Admitted
            && let Some(gate) = epoch.gate.upgrade()
        {
            // Counted in doubt before it is counted out of flight: in between, it is in both.
            gate.add_doubt(epoch.token);
        }
        leave(&epoch, self.stage);
    }
}

fn leave(epoch: &Epoch, stage: Stage) {
    if epoch.word.leave(stage)
        && let Some(gate) = epoch.gate.upgrade()
    {
        gate.drained();
    }
}
