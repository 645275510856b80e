//! Real processes on free ports with folders of their own, ended with the test: redis-server, and
//! the proxy before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use ringfence::lock_name::LockName;
use ringfence::ticket::{SealScope, SigningKey, Ticket};
use ringfence::token::Token;

use crate::client::{Client, code, ok};
pub use crate::process::{PATIENCE, Process, eventually, free_address};

/// How often a race is tried: `RINGFENCE_RACE_TRIES`, or this.
pub fn tries(default: usize) -> usize {
    let given = std::env::var("RINGFENCE_RACE_TRIES").ok();
    given.map_or(default, |text| text.parse().expect("a number of tries"))
}

/// A redis-server with nothing in it.
pub struct Redis {
    pub process: Process,
    pub address: SocketAddr,
    dir: PathBuf,
    lines: String,
}

impl Redis {
    pub fn start(dir: &Path) -> Redis {
        Redis::start_with(dir, "redis", "")
    }

    /// `lines`: of its configuration.
    pub fn start_with(dir: &Path, name: &str, lines: &str) -> Redis {
        let dir = dir.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let address = free_address();
        let process = Redis::run(&dir, address, lines);
        Redis {
            process,
            address,
            dir,
            lines: lines.to_owned(),
        }
    }

    fn run(dir: &Path, address: SocketAddr, lines: &str) -> Process {
        let config = dir.join("redis.conf");
        let text = format!(
            "bind 127.0.0.1\nport {}\nsave \"\"\ndir {}\nproto-max-bulk-len 512mb\n{lines}\n",
            address.port(),
            dir.display(),
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(crate::redis_server::chosen());
        command.arg(&config);
        let mut process = Process::spawn(&mut command, dir.join("redis.log"));
        process.wait_for_port(address);
        process
    }

    /// A new life of the server: new run id, client ids from the beginning.
    pub fn restart(&mut self) {
        self.process.kill();
        self.process = Redis::run(&self.dir, self.address, &self.lines);
    }

    /// Past the proxy.
    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

/// Every key that begins with `job:` is guarded by the lock of its second word.
pub const JOBS: &str = "[[listener.rule]]\nlock = \"job/{id}\"\nkey = \"job:{id}:*\"\n";

/// A proxy with one listener, `main`, and the key that signs its tickets.
pub struct Proxy {
    pub process: Process,
    pub address: SocketAddr,
    pub key: Arc<SigningKey>,
    /// Where the fence service is.
    pub admin: SocketAddr,
    config: PathBuf,
    audit_dir: PathBuf,
}

/// A ticket as a lock service would issue it.
pub fn sign(key: &SigningKey, lock: &str, token: u64) -> String {
    key.sign_ticket(&Ticket {
        lock: LockName::new(lock).unwrap(),
        token: Token::new(token).unwrap(),
        holder: "test".to_owned(),
        session: "s".to_owned(),
        issued_unix_ms: 0,
        // Of every proxy that a test starts.
        seal: SealScope::Required(vec!["edge-1".to_owned(), "edge-2".to_owned()]),
    })
}

/// What a test says about its proxy.
#[derive(Clone)]
pub struct Setup {
    pub name: &'static str,
    pub upstream: SocketAddr,
    /// What signs its tickets: several proxies may have the same.
    pub key: Arc<SigningKey>,
    /// The line of `[tickets]` that says where the keys are; `None`: in a file.
    pub tickets: Option<String>,
    /// Tables of the file.
    pub tables: String,
    /// Lines of the listener.
    pub listener: String,
    /// `[[listener.rule]]` tables.
    pub rules: String,
}

impl Setup {
    pub fn new(upstream: SocketAddr) -> Setup {
        Setup {
            name: "edge-1",
            upstream,
            key: Arc::new(SigningKey::generate()),
            tickets: None,
            tables: String::new(),
            listener: String::new(),
            rules: JOBS.to_owned(),
        }
    }

    /// The same with more lines of the listener.
    pub fn with(self, lines: &str) -> Setup {
        Setup {
            listener: format!("{}\n{lines}", self.listener),
            ..self
        }
    }

    pub fn with_rules(self, rules: &str) -> Setup {
        Setup {
            rules: rules.to_owned(),
            ..self
        }
    }
}

impl Proxy {
    pub fn start(dir: &Path, setup: &Setup) -> Proxy {
        let (address, admin) = (free_address(), free_address());
        let config = dir.join(format!("{}.toml", setup.name));
        Proxy::write(&config, dir, setup, address, admin);
        // With a lock service, that is asked for what is not known.
        let process = Proxy::run(&config, address, setup.tickets.is_none());
        Proxy {
            process,
            address,
            key: Arc::clone(&setup.key),
            admin,
            config,
            audit_dir: dir.join(setup.name).join("audit"),
        }
    }

    fn write(config: &Path, dir: &Path, setup: &Setup, address: SocketAddr, admin: SocketAddr) {
        let keys = config.with_extension("keys");
        std::fs::write(&keys, setup.key.verifying().to_text()).unwrap();
        let in_file = format!("keys = \"{}\"", keys.display());
        let text = format!(
            "instance = \"{}\"\ndata_dir = \"{}\"\n[tickets]\n{}\n{}\n\
             [admin]\nlisten = \"{admin}\"\n\
             [[listener]]\nname = \"main\"\nprotocol = \"redis\"\nlisten = \"{address}\"\n\
             upstream = \"{}\"\n{}\n{}\n",
            setup.name,
            dir.join(setup.name).display(),
            setup.tickets.as_ref().unwrap_or(&in_file),
            setup.tables,
            setup.upstream,
            setup.listener,
            setup.rules,
        );
        std::fs::write(config, text).unwrap();
    }

    fn command(config: &Path, init: bool) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.arg("proxy").arg("--config").arg(config);
        if init {
            command.arg("--init");
        }
        command
    }

    fn run(config: &Path, address: SocketAddr, init: bool) -> Process {
        let log = config.with_extension("log");
        let mut process = Process::spawn(&mut Proxy::command(config, init), log);
        process.wait_for_port(address);
        process
    }

    /// Starts a proxy that is expected to refuse; returns what it said.
    pub fn refuses_to_start(dir: &Path, setup: &Setup) -> String {
        let config = dir.join(format!("{}.toml", setup.name));
        Proxy::write(&config, dir, setup, free_address(), free_address());
        let log = config.with_extension("log");
        let mut process = Process::spawn(&mut Proxy::command(&config, true), log);
        assert!(!process.wait(), "it has started and ended well");
        process.log()
    }

    /// Waits for a line of the audit.
    pub fn audited(&self, code: &str, operation: &str) -> serde_json::Value {
        let find = || {
            let files = std::fs::read_dir(&self.audit_dir).unwrap();
            let texts = files.filter_map(|file| std::fs::read_to_string(file.unwrap().path()).ok());
            texts.into_iter().find_map(|text| {
                let lines = text
                    .lines()
                    .filter_map(|line| serde_json::from_str(line).ok());
                lines.into_iter().find(|line: &serde_json::Value| {
                    line["code"] == code && line["operation"] == operation
                })
            })
        };
        let mut found = None;
        eventually(&format!("an audit line {code} {operation}"), || {
            found = find();
            found.is_some()
        });
        found.unwrap()
    }

    /// kill -9.
    pub fn crash(&mut self) {
        self.process.kill();
    }

    /// kill -9, and what it had on disk is gone.
    pub fn lose(&mut self) {
        self.crash();
        std::fs::remove_dir_all(self.config.with_extension("")).unwrap();
    }

    /// On the same folder.
    pub fn start_again(&mut self) {
        self.process = Proxy::run(&self.config, self.address, false);
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A ticket for the lock `job/1`.
    pub fn ticket(&self, token: u64) -> String {
        sign(&self.key, "job/1", token)
    }

    /// A client whose connection presents this token for the lock `job/1`. On a busy machine a seal
    /// may take longer than one try.
    pub fn holder(&self, token: u64) -> Client {
        let mut client = self.client();
        let until = Instant::now() + PATIENCE;
        loop {
            let sealed = client.call(&["FENCE", "SET", &self.ticket(token)]);
            if sealed == ok() {
                return client;
            }
            let again = code(&sealed) == "FENCEBUSY" && Instant::now() < until;
            assert!(again, "token {token}: {sealed:?}");
        }
    }
}
