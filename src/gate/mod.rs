//! The gate of one lock: who may write now, and until when a newer writer must wait.
//!
//! Pure and free of I/O. The shell presents tokens, makes records durable and says how forwarded
//! writes ended; the gate answers who may pass. One gate serves a lock for the whole proxy.
//!
//! Invariants (swept by `check_invariants` in debug builds and simulations):
//! - the floor and the watermark never fall, and the floor is never below the watermark;
//! - an epoch is open only while the gate is settled, and only for the watermark's token;
//! - the gate is settled only when the record that says so is durable, no permit of an older token
//!   is in flight, and nothing below the floor is in doubt;
//! - a permit that was not finished and was past `Admitted` stays counted, in flight or in doubt.
//!
//! The hot path is [`Entrance::permit`]: one compare-and-swap of the epoch's word. Everything else
//! takes the gate's mutex, around pure code only.

mod entrance;
mod epoch;
mod handle;
mod permit;
mod present;
mod shadow;
mod state;
pub(crate) mod sync;
mod waiters;
mod word;

#[cfg(test)]
mod tests;

pub use entrance::Entrance;
pub use handle::{Gate, NotNow, Status};
pub use permit::{Permit, Revoked, Stage};
pub use present::{Closing, Presentation};
pub use shadow::ShadowGate;
pub use state::{Presented, Record, Recovered};
