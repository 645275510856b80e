//! The lock service: gRPC in front of a [`Store`], with the rules of [`crate::queue`].
//!
//! **Duty.** Sessions, Acquire in FIFO order, Release by token, watches, the registry of proxies,
//! the seal of each grant through them, and signed tickets.
//!
//! **Invariants.**
//! - Stateless over the store: everything that must outlive this process is in it. Kill a lockd
//!   and clients go on through another one with session, place in the queue and token kept.
//! - One watch of the store for each lockd ([`dispatch`]): a release wakes exactly one waiter.
//! - A ticket is signed only for a grant that is durable, was the first of its lock, and was
//!   sealed as its scope says ([`seal`]).
//! - An entry that its call abandons leaves the queue ([`place`]).
//!
//! **Left to others.** Durability and session time (the store), admission of writes (the proxies).

mod acquire;
mod dispatch;
mod fence;
mod health;
pub mod input;
pub mod keys;
mod lock_service;
mod loopback;
mod place;
mod proxies;
mod registration;
mod registry_service;
mod seal;
pub mod seen_proxies;
mod server;
mod sessions;
mod settings;
pub mod status;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use health::Health;
pub use keys::SigningKeys;
pub use seen_proxies::SeenProxies;
pub use server::{Lockd, ServeError};
pub use settings::{Limits, Settings};

use crate::store::Store;

/// What the parts of a lockd share.
struct Core {
    store: Arc<dyn Store>,
    dispatch: Arc<dispatch::Dispatch>,
    proxies: Arc<proxies::Proxies>,
    fences: fence::Fences,
    keys: Arc<SigningKeys>,
    health: health::Health,
    sessions: sessions::Sessions,
    settings: Settings,
    /// Removals of abandoned entries; awaited at shutdown.
    tasks: TaskTracker,
    /// Where they run: a call may be dropped outside of its runtime.
    runtime: tokio::runtime::Handle,
    /// Cancelled when the service goes down: waiting calls and streams end.
    stopping: CancellationToken,
}
