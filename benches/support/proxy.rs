//! This bench's own program as the ringfence proxy: a process of its own, with one worker.

use std::path::{Path, PathBuf};
use std::process::Command;

use ringfence::audit::{AuditWriter, Limits};
use ringfence::config::ProxyConfig;
use ringfence::lock_name::LockName;
use ringfence::proxy::{Options, start};
use ringfence::ticket::{SealScope, SigningKey, Ticket};
use ringfence::token::Token;

use super::process::Server;

/// What its configurations call the proxy.
pub const INSTANCE: &str = "bench";
/// The lock that their rules name.
pub const LOCK: &str = "bench";

/// The argument before the configuration's path that makes this program the proxy.
pub const ARGUMENT: &str = "--serve-ringfence";

/// Serves until it is killed.
pub fn serve(config: &Path) {
    // Carries the background tasks; requests are served by the proxy's own thread.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let config = ProxyConfig::load(config).expect("a configuration");
        let dir = config.data_dir.join("audit");
        let (audit, _thread) = AuditWriter::open(&dir, Limits::default()).expect("an audit");
        let options = Options {
            init: true,
            admin: config.admin.listen,
            audit,
            threads: Some(1),
        };
        let _proxy = start(config, options).expect("a proxy");
        std::future::pending::<()>().await;
    });
}

/// Starts it with this configuration, and waits until each port accepts.
pub fn start_one(name: &str, config: &Path, dir: &Path, ports: &[u16]) -> Server {
    let program = std::env::current_exe().expect("this program's path");
    let mut command = Command::new(program);
    command.arg(ARGUMENT).arg(config);
    Server::start(name, &mut command, dir, ports)
}

/// A ticket of the lock that the rules name.
pub fn ticket(key: &SigningKey) -> String {
    key.sign_ticket(&Ticket {
        lock: LockName::new(LOCK).expect("a lock name"),
        token: Token::new(33).expect("a token"),
        holder: "bench".to_owned(),
        session: "bench".to_owned(),
        issued_unix_ms: 0,
        seal: SealScope::Required(vec![INSTANCE.to_owned()]),
    })
}

/// Writes a file of a server's.
pub fn written(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("a configuration file");
    path
}
