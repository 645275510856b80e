//! etcd behind the proxy: real servers of both versions, tonic's and etcdctl's clients.

mod ctl;
mod delayed;
mod drivers;
#[path = "../support/etcd.rs"]
mod etcd;
mod fenced;
mod hidden;
mod lockd;
mod mixed;
mod order;
mod responses;
mod streams;
mod support;
mod wire;
