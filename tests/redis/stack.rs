//! Real processes on free ports with folders of their own, ended with the test: redis-server, and
//! the proxy before it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence::lock_name::LockName;
use ringfence::ticket::{SealScope, SigningKey, Ticket};
use ringfence::token::Token;

use crate::client::{Client, ok};

/// How long anything that must come may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How often a race is tried: `RINGFENCE_RACE_TRIES`, or this.
pub fn tries(default: usize) -> usize {
    let given = std::env::var("RINGFENCE_RACE_TRIES").ok();
    given.map_or(default, |text| text.parse().expect("a number of tries"))
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A child process that ends with the test.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn spawn(command: &mut Command, log: PathBuf) -> Process {
        let out = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        Process { child, log }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal by its name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(pid)
            .status();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for an end that comes by itself. True: with success.
    pub fn wait(&mut self) -> bool {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            assert!(Instant::now() < until, "does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for_port(&mut self, address: SocketAddr) {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended with {status}:\n{}", self.log());
            }
            assert!(
                Instant::now() < until,
                "no listener at {address}:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal("CONT");
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
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
        let mut command = Command::new("redis-server");
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
        seal: SealScope::Required(vec![]),
    })
}

/// What a test says about its proxy.
#[derive(Clone)]
pub struct Setup {
    pub name: &'static str,
    pub upstream: SocketAddr,
    /// What signs its tickets: several proxies may have the same.
    pub key: Arc<SigningKey>,
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
        let process = Proxy::run(&config, address, true);
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
        let text = format!(
            "instance = \"{}\"\ndata_dir = \"{}\"\n[tickets]\nkeys = \"{}\"\n{}\n\
             [admin]\nlisten = \"{admin}\"\n\
             [[listener]]\nname = \"main\"\nprotocol = \"redis\"\nlisten = \"{address}\"\n\
             upstream = \"{}\"\n{}\n{}\n",
            setup.name,
            dir.join(setup.name).display(),
            keys.display(),
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

    /// A client whose connection presents this token for the lock `job/1`.
    pub fn holder(&self, token: u64) -> Client {
        let mut client = self.client();
        let sealed = client.call(&["FENCE", "SET", &self.ticket(token)]);
        assert_eq!(sealed, ok(), "token {token}");
        client
    }
}
