//! Presentations and closings as futures. Only std: any executor, or a test's own, can poll them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::handle::{Gate, Look};
use super::state::Presented;
use crate::token::Token;

/// A token on its way to be settled. After every poll that is pending the shell asks
/// [`Gate::take_persist`]. Dropping it cancels the waiting, never the raise.
#[must_use = "a presentation does nothing until it is polled"]
pub struct Presentation(Waiting);

/// A close on its way to be durable and drained.
#[must_use = "a closing does nothing until it is polled"]
pub struct Closing(Waiting);

struct Waiting {
    gate: Arc<Gate>,
    look: Look,
}

impl Presentation {
    pub(super) fn new(gate: Arc<Gate>, token: Token) -> Presentation {
        Presentation(Waiting::new(gate, token, false))
    }

    /// Whether the watermark came to the token by this presentation, not by an earlier one.
    pub fn has_raised(&self) -> bool {
        self.0.look.has_raised
    }
}

impl Closing {
    pub(super) fn new(gate: Arc<Gate>, token: Token) -> Closing {
        Closing(Waiting::new(gate, token, true))
    }
}

impl Waiting {
    fn new(gate: Arc<Gate>, token: Token, close: bool) -> Waiting {
        Waiting {
            gate,
            look: Look {
                token,
                close,
                failures: None,
                waiter: None,
                has_raised: false,
            },
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Presented> {
        match self.gate.look(&mut self.look, cx.waker()) {
            Some(outcome) => Poll::Ready(outcome),
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(waiter) = self.look.waiter.take() {
            self.gate.forget(waiter);
        }
    }
}

impl Future for Presentation {
    type Output = Presented;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Presented> {
        self.0.poll(cx)
    }
}

impl Future for Closing {
    type Output = Presented;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Presented> {
        self.0.poll(cx)
    }
}
