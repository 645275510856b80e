//! The proxy: it stands before a backend and lets a write through only under a current ticket.
//!
//! In the order of a request: [`accept`], then the session (read, classify, gate, forward, reply):
//! [`session`] for HTTP and S3, [`redis`], `postgres`, [`etcd`]. A session asks [`tickets`] whether
//! a ticket is genuine and [`gates`] whether its token passes, and forwards over [`upstream`].
//! Beside it: [`watermarks`] (what is durable), [`doubts`] (what is not known to have ended),
//! [`left`] (what an earlier run has left at a backend), [`lost`] (the same where nobody knows it),
//! [`registry`] (the link to lockd), [`ring`] (the keys that it tells), [`fence`] (seals and closes
//! from outside), [`floors`] (what backends compare themselves).
//!
//! Invariant: forwarding a fenced write takes an [`doubts::InFlight`], and the bytes that make it
//! take effect leave only after its release.

pub mod accept;
mod claims;
mod condemned;
pub mod doubts;
pub mod etcd;
pub mod fence;
pub mod floors;
pub mod gates;
pub mod left;
pub mod lost;
pub mod parts;
mod polled;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod redis;
pub mod registry;
pub mod ring;
pub mod session;
pub mod shadows;
mod slots;
pub mod spool;
mod start;
pub mod tickets;
mod unread;
pub mod upstream;
pub mod watermarks;
pub mod wire;

pub use start::{Health, Options, Proxy, StartError, start};
