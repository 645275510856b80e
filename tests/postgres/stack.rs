//! Proxies, as a test describes them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ringfence::lock_name::LockName;
use ringfence::ticket::{SealScope, SigningKey, Ticket};
use ringfence::token::Token;

use crate::client::Client;
use crate::postgres::CONTROL;
use crate::process::free_address;

pub use crate::process::{PATIENCE, Process, eventually};

/// The listener's line where a hop stands before the server.
pub const RELAYED: &str = "upstream_path = \"relayed\"";

/// The whole database under the lock `app`.
pub const DATABASE: &str = "[[listener.rule]]\nlock = \"app\"\ndatabase = \"app\"\n";
/// One table under the lock `orders`.
pub const ORDERS: &str = "[[listener.rule]]\nlock = \"orders\"\ntable = \"public.orders\"\n";

/// What a test says about one listener.
#[derive(Clone)]
pub struct Listener {
    pub name: &'static str,
    /// Lines of its own.
    pub lines: String,
    /// `[[listener.rule]]` and other tables.
    pub rules: String,
    /// `host:port`, where it is another than the proxy's.
    pub upstream: Option<String>,
}

/// What a test says about its proxy.
#[derive(Clone)]
pub struct Setup {
    pub name: &'static str,
    /// `host:port`.
    pub upstream: String,
    /// What signs its tickets: several proxies may have the same.
    pub key: Arc<SigningKey>,
    /// The line of `[tickets]` that says where the keys are; `None`: in a file.
    pub tickets: Option<String>,
    /// Tables of the file.
    pub tables: String,
    /// Its listeners have no control role.
    pub without_control: bool,
    pub listeners: Vec<Listener>,
}

impl Setup {
    /// One listener, `main`, that guards the whole database.
    pub fn new(upstream: SocketAddr) -> Setup {
        Setup {
            name: "edge-1",
            upstream: upstream.to_string(),
            key: Arc::new(SigningKey::generate()),
            tickets: None,
            tables: String::new(),
            without_control: false,
            listeners: vec![Listener {
                name: "main",
                lines: String::new(),
                rules: DATABASE.to_owned(),
                upstream: None,
            }],
        }
    }

    /// The same with more lines of the first listener.
    pub fn with(mut self, lines: &str) -> Setup {
        self.listeners[0].lines += &format!("{lines}\n");
        self
    }

    /// The same with other rules of the first listener.
    pub fn with_rules(mut self, rules: &str) -> Setup {
        self.listeners[0].rules = rules.to_owned();
        self
    }

    /// The same with one more listener.
    pub fn and(mut self, name: &'static str, lines: &str, rules: &str) -> Setup {
        self.listeners.push(Listener {
            name,
            lines: lines.to_owned(),
            rules: rules.to_owned(),
            upstream: None,
        });
        self
    }

    /// The file's text. `addresses`: of the listeners.
    fn text(&self, dir: &Path, addresses: &[SocketAddr], admin: SocketAddr) -> String {
        let keys = dir.join(format!("{}.keys", self.name));
        std::fs::write(&keys, self.key.verifying().to_text()).unwrap();
        let password = dir.join("control.password");
        std::fs::write(&password, format!("{}\n", CONTROL.1)).unwrap();
        let in_file = format!("keys = {keys:?}");
        let mut text = format!(
            "instance = {:?}\ndata_dir = {:?}\n[tickets]\n{}\n{}\n[admin]\nlisten = \"{admin}\"\n",
            self.name,
            dir.join(self.name),
            self.tickets.as_ref().unwrap_or(&in_file),
            self.tables,
        );
        for (listener, address) in self.listeners.iter().zip(addresses) {
            text += &format!(
                "[[listener]]\nname = {:?}\nprotocol = \"postgres\"\nlisten = \"{address}\"\n\
                 upstream = \"{}\"\n{}\n{}\n",
                listener.name,
                listener.upstream.as_ref().unwrap_or(&self.upstream),
                listener.lines,
                listener.rules,
            );
            if !self.without_control {
                text += &format!(
                    "[listener.control]\nuser = {:?}\npassword_file = {password:?}\n",
                    CONTROL.0,
                );
            }
        }
        text
    }
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

/// A proxy, and the key that signs its tickets.
pub struct Proxy {
    pub process: Process,
    /// Of its listeners.
    pub addresses: Vec<SocketAddr>,
    pub key: Arc<SigningKey>,
    /// Where its readiness is told.
    pub admin: SocketAddr,
    config: PathBuf,
}

impl Proxy {
    pub fn start(dir: &Path, setup: &Setup) -> Proxy {
        let config = dir.join(format!("{}.toml", setup.name));
        let addresses: Vec<SocketAddr> = setup.listeners.iter().map(|_| free_address()).collect();
        let admin = free_address();
        std::fs::write(&config, setup.text(dir, &addresses, admin)).unwrap();
        // With a lock service, that is asked for what is not known.
        let process = Proxy::run(&config, &addresses, setup.tickets.is_none());
        Proxy {
            process,
            addresses,
            key: Arc::clone(&setup.key),
            admin,
            config,
        }
    }

    fn command(config: &Path, init: bool) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringfence"));
        command.arg("proxy").arg("--config").arg(config);
        if init {
            command.arg("--init");
        }
        command
    }

    fn run(config: &Path, addresses: &[SocketAddr], init: bool) -> Process {
        let log = config.with_extension("log");
        let mut process = Process::spawn(&mut Proxy::command(config, init), log);
        for address in addresses {
            process.wait_for_port(*address);
        }
        process
    }

    /// Starts a proxy that is expected to refuse; returns what it said.
    pub fn refuses_to_start(dir: &Path, setup: &Setup) -> String {
        let config = dir.join(format!("{}.toml", setup.name));
        let addresses: Vec<SocketAddr> = setup.listeners.iter().map(|_| free_address()).collect();
        std::fs::write(&config, setup.text(dir, &addresses, free_address())).unwrap();
        let log = config.with_extension("log");
        let mut process = Process::spawn(&mut Proxy::command(&config, true), log);
        assert!(!process.wait(), "it has started and ended well");
        process.log()
    }

    /// Makes what proxies keep in the server.
    pub fn install(dir: &Path, setup: &Setup) {
        let config = dir.join(format!("{}.toml", setup.name));
        let addresses: Vec<SocketAddr> = setup.listeners.iter().map(|_| free_address()).collect();
        std::fs::write(&config, setup.text(dir, &addresses, free_address())).unwrap();
        let mut command = Proxy::command(&config, false);
        let log = config.with_extension("install.log");
        let mut process = Process::spawn(command.arg("--install"), log);
        assert!(process.wait(), "not installed:\n{}", process.log());
    }

    /// The address of the first listener.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
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
        self.process = Proxy::run(&self.config, &self.addresses, false);
    }

    /// A session without a ticket.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }

    /// A ticket for the lock `app`.
    pub fn ticket(&self, token: u64) -> String {
        sign(&self.key, "app", token)
    }

    /// A session that begins with this token for the lock `app`. Nothing is presented yet.
    #[track_caller]
    pub fn holder(&self, token: u64) -> Client {
        Client::connect_with(self.address(), &[("ringfence.token", &self.ticket(token))])
    }
}
