//! The Redis listener end to end: the real binary before a real redis-server, with real clients.

mod client;
mod clients;
mod fenced;
mod hidden;
mod known_faults;
mod lanes;
mod lockd;
mod observed;
mod order;
mod pipelines;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[path = "../support/lockd.rs"]
mod registry;
#[path = "../support/relay.rs"]
mod relay;
mod restart;
mod revoked;
mod shared;
mod stack;
mod streams;
