//! Which server of Redis's protocol is started.
//!
//! Redis 7.0 is Debian's `redis-server` on the path. Redis 8 and Valkey 8 are in the folder named
//! by `RINGFENCE_TEST_REDIS8`, or in `.redis8` of the checkout, where `fetch_redis8.sh` puts them.
//! A missing server fails the test.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

use std::path::PathBuf;
use std::process::Command;

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RedisServer {
    Redis7,
    Redis8,
    Valkey8,
}

impl RedisServer {
    pub const ALL: [RedisServer; 3] = [
        RedisServer::Redis7,
        RedisServer::Redis8,
        RedisServer::Valkey8,
    ];

    /// Its program, checked by asking it for its version.
    pub fn program(self) -> PathBuf {
        let (program, wanted) = match self {
            RedisServer::Redis7 => ("redis-server".into(), "Redis server v=7."),
            RedisServer::Redis8 => (fetched("redis-server"), "Redis server v=8."),
            RedisServer::Valkey8 => (fetched("valkey-server"), "Valkey server v=8."),
        };
        let output = Command::new(&program).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{program:?} does not run: {error}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.starts_with(wanted),
            "{program:?} is not {wanted}: {text}"
        );
        program
    }
}

/// What `RINGFENCE_TEST_REDIS` names, to test with another server; else the one on the path.
pub fn chosen() -> PathBuf {
    let named = std::env::var_os("RINGFENCE_TEST_REDIS");
    named.map_or_else(|| "redis-server".into(), PathBuf::from)
}

fn fetched(program: &str) -> PathBuf {
    let folder = std::env::var_os("RINGFENCE_TEST_REDIS8").map(PathBuf::from);
    let checkout = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".redis8");
    folder.unwrap_or_else(checkout).join(program)
}
