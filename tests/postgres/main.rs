//! The Postgres listener against a real server: the escapes and the failing inputs that are known,
//! tickets and their scope, drivers as they come, and races in which the older holder is stopped at
//! every step.

mod cascade;
mod client;
mod committed;
mod cursors;
mod definitions;
mod drivers;
mod escapes;
mod fenced;
mod foreign;
mod held;
mod hidden;
mod lost;
mod migrations;
mod odd;
mod peers;
#[path = "../support/postgres/mod.rs"]
mod postgres;
mod prepared;
#[path = "../support/process.rs"]
mod process;
mod races;
#[path = "../support/random.rs"]
mod random;
mod reading;
#[path = "../support/lockd.rs"]
mod registry;
#[path = "../support/relay.rs"]
mod relay;
mod restart;
mod revoked;
mod scope;
mod snapshot;
mod stack;
mod tls;
mod transactions;
mod unseen;
mod world;
