//! The parts of the Postgres listener that are no session, each against a real server: the control
//! connection, the evictor, the registry, catalogs, prepared transactions, the watermarks in the
//! server.

mod catalog;
mod control;
mod evict;
mod fence_store;
mod fixture;
#[path = "../support/postgres/mod.rs"]
mod postgres;
mod prepared;
