//! A lock service for proxies that run as processes: it answers what the test says.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

#[path = "registry.rs"]
mod answers;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use ringfence::ticket::SigningKey;
use tokio::runtime::Runtime;

use self::answers::Registry;
use crate::process::eventually;

/// Ends when it is dropped.
pub struct Lockd {
    pub address: SocketAddr,
    registry: Registry,
    _runtime: Runtime,
}

impl Lockd {
    /// One whose tickets this key signs, and who has granted nothing.
    pub fn start(key: &SigningKey) -> Lockd {
        let registry = Registry::default();
        registry.set_key(key);
        registry.state().floor = Some(1);
        let runtime = Runtime::new().unwrap();
        let address = runtime.block_on(registry.serve());
        Lockd {
            address,
            registry,
            _runtime: runtime,
        }
    }

    /// The line of `[tickets]`.
    pub fn tickets(&self) -> String {
        format!("lockd = \"http://{}\"", self.address)
    }

    /// No other key signs from now on.
    pub fn set_key(&self, key: &SigningKey) {
        self.registry.set_key(key);
    }

    /// The highest token granted, of every lock.
    pub fn set_floor(&self, floor: u64) {
        self.registry.state().floor = Some(floor);
    }

    /// Whether it answers registrations from now on.
    pub fn answer(&self, answers: bool) {
        self.registry.state().silent = !answers;
    }

    /// Takes a proxy out of the set.
    pub fn remove(&self, instance: &str) {
        self.registry.state().removed.push(instance.to_owned());
    }
}

/// What a proxy with this admin port says of its readiness.
pub fn readiness(admin: SocketAddr) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    let head = "GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

/// Waits until the proxy has heard from the lock service, and done what that asks for.
#[track_caller]
pub fn wait_until_ready(admin: SocketAddr) {
    eventually("readiness", || readiness(admin).starts_with("HTTP/1.1 200"));
}
