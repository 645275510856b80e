//! End to end: the real `ringfence` binary, real storage, real clients (curl, boto3), with holders
//! stopped, killed and delayed at each step.
//!
//! Needs `curl`, `strace`, and Python with boto3 in `.venv` (`make test` installs them). What is
//! missing fails a test.

mod backend;
mod changed_stores;
mod clients;
mod crash;
mod crash_points;
mod disk;
#[path = "../support/etcd.rs"]
mod etcd_server;
mod lockds;
mod lost_locks;
mod paused_writer;
#[path = "../support/process.rs"]
mod process;
mod proxies;
mod put_back;
mod stack;
mod stores;
mod strace;
mod synced;
mod wire;
