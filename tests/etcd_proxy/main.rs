//! etcd behind the proxy: real servers of both versions, tonic's and etcdctl's clients.

mod ctl;
mod delayed;
mod drivers;
#[path = "../support/etcd.rs"]
mod etcd;
mod fenced;
mod hidden;
mod known_faults;
mod leases;
mod lockd;
mod mixed;
mod model;
mod order;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/registry.rs"]
mod registry;
mod responses;
mod rewriting;
mod streams;
mod support;
mod wire;
