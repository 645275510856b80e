//! Postgres: the frontend/backend protocol, what its statements are, and which tickets they carry.
//!
//! In reading order: [`frame`] splits and builds messages; [`classify`] reads a text with
//! Postgres's own grammar; [`ticket`] knows where tickets travel, and for how long one counts by
//! Postgres's own rules of scope and rollback; [`resolve`] turns names into the locks that rules
//! ask for ([`identifier`]: names in texts that are no SQL); [`session`] follows one session's
//! transactions; [`refusal`] tells refusals.
//!
//! Pure. It leaves to the shell: sockets, TLS, authentication, the catalog (which it loads and
//! hands in as a value), the gate, and the killing of sessions.

pub mod classify;
pub mod frame;
pub mod identifier;
pub mod refusal;
pub mod resolve;
pub mod session;
pub mod ticket;
