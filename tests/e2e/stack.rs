//! Processes of the real binary on free ports with data folders of their own, ended with the test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use crate::process::{Process, eventually, free_address, signal};

fn ringfence() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ringfence"))
}

/// A lock service with the embedded store.
pub struct Lockd {
    pub process: Process,
    pub address: SocketAddr,
    config: PathBuf,
}

impl Lockd {
    pub fn start(dir: &Path, more: &str) -> Lockd {
        let mut lockd = Lockd::configure(dir, more);
        lockd.process = Lockd::run(&lockd.config, lockd.address);
        lockd
    }

    /// One with its file, that does not run yet.
    pub fn configure(dir: &Path, more: &str) -> Lockd {
        let (address, admin) = (free_address(), free_address());
        let config = dir.join("lockd.toml");
        let data = dir.join("lockd");
        let text = format!(
            "listen = \"{address}\"\nadmin = \"{admin}\"\ndata_dir = \"{}\"\n{more}",
            data.display()
        );
        std::fs::write(&config, text).unwrap();
        let process = Process::spawn(&mut Command::new("true"), config.with_extension("log"));
        Lockd {
            process,
            address,
            config,
        }
    }

    /// Puts this text into its file in the place of that one, for its next start.
    pub fn change(&self, old: &str, new: &str) {
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(old), "no {old:?} in {text}");
        std::fs::write(&self.config, text.replace(old, new)).unwrap();
    }

    /// Starts it again, to end by itself: how it went, and what it wrote.
    pub fn start_to_end(&mut self) -> (bool, String) {
        self.process.kill();
        let log = self.config.with_extension("refused.log");
        let _ = std::fs::remove_file(&log);
        self.process = Process::spawn(&mut self.command(), log);
        (self.process.wait(), self.process.log())
    }

    /// Starts it again with more on its command line.
    pub fn start_again(&mut self, more: &[&str]) {
        self.process.kill();
        let mut command = self.command();
        self.process = Process::spawn(command.args(more), self.config.with_extension("log"));
        self.process.wait_for_port(self.address);
    }

    /// The command that runs it.
    pub fn command(&self) -> Command {
        let mut command = ringfence();
        command.arg("lockd").arg("--config").arg(&self.config);
        command
    }

    fn run(config: &Path, address: SocketAddr) -> Process {
        let mut command = ringfence();
        command.arg("lockd").arg("--config").arg(config);
        let mut process = Process::spawn(&mut command, config.with_extension("log"));
        process.wait_for_port(address);
        process
    }

    pub fn restart(&mut self) {
        self.process.kill();
        self.process = Lockd::run(&self.config, self.address);
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// A proxy with one listener.
pub struct Proxy {
    pub process: Process,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub data: PathBuf,
    config: PathBuf,
    /// The program that runs it, and its arguments; empty: it runs by itself.
    by: Vec<String>,
}

/// What a test says about its proxy.
pub struct ProxySetup<'a> {
    pub name: &'a str,
    pub protocol: &'a str,
    pub upstream: SocketAddr,
    pub lockd: &'a Lockd,
    /// Lines of the listener.
    pub listener: &'a str,
    /// `[[listener.rule]]` tables.
    pub rules: &'a str,
    /// Another place for the data than below the test's folder.
    pub data: Option<PathBuf>,
}

impl Proxy {
    pub fn start(dir: &Path, setup: &ProxySetup<'_>) -> Proxy {
        Proxy::start_by(dir, setup, &[])
    }

    /// Run by another program, which must become the proxy (exec) and keep its process id.
    pub fn start_by(dir: &Path, setup: &ProxySetup<'_>, by: &[String]) -> Proxy {
        let proxy = Proxy::open(dir, setup, by);
        proxy.wait_until_ready();
        proxy
    }

    /// One that the lock service may refuse.
    pub fn start_unready(dir: &Path, setup: &ProxySetup<'_>) -> Proxy {
        Proxy::open(dir, setup, &[])
    }

    fn open(dir: &Path, setup: &ProxySetup<'_>, by: &[String]) -> Proxy {
        let (listen, admin) = (free_address(), free_address());
        let config = dir.join(format!("{}.toml", setup.name));
        let data = setup.data.clone().unwrap_or_else(|| dir.join(setup.name));
        let text = format!(
            "instance = \"{}\"\ndata_dir = \"{}\"\n[tickets]\nlockd = \"{}\"\n\
             [admin]\nlisten = \"{admin}\"\n\
             [[listener]]\nname = \"main\"\nprotocol = \"{}\"\nlisten = \"{listen}\"\n\
             upstream = \"{}\"\n{}\n{}\n",
            setup.name,
            data.display(),
            setup.lockd.url(),
            setup.protocol,
            setup.upstream,
            setup.listener,
            setup.rules,
        );
        std::fs::write(&config, text).unwrap();
        let process = Proxy::run(&config, by, listen, admin);
        Proxy {
            process,
            listen,
            admin,
            data,
            config,
            by: by.to_vec(),
        }
    }

    /// Waits until it is registered: from then on it takes tickets, and grants are sealed by it.
    pub fn wait_until_ready(&self) {
        eventually("a proxy that is ready", || self.is_ready());
    }

    pub fn is_ready(&self) -> bool {
        let url = format!("http://{}/readyz", self.admin);
        let args = [
            "-s",
            "-o",
            "/dev/null",
            "--noproxy",
            "*",
            "-w",
            "%{http_code}",
            &url,
        ];
        let asked = Command::new("curl").args(args).output().unwrap();
        asked.stdout == b"200"
    }

    fn run(config: &Path, by: &[String], listen: SocketAddr, admin: SocketAddr) -> Process {
        let mut command = match by {
            [] => ringfence(),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(ringfence().get_program());
                command
            }
        };
        command.arg("proxy").arg("--config").arg(config);
        let mut process = Process::spawn(&mut command, config.with_extension("log"));
        process.wait_for_port(listen);
        process.wait_for_port(admin);
        process
    }

    /// Starts again on the same data.
    pub fn start_again(&mut self) {
        self.process = Proxy::run(&self.config, &self.by, self.listen, self.admin);
    }

    /// Kills it and starts it on the same data with other text in its file.
    pub fn kill_and_restart_with(&mut self, old: &str, new: &str) {
        self.process.kill();
        let text = std::fs::read_to_string(&self.config).unwrap();
        assert!(text.contains(old), "no {old:?} in {text}");
        std::fs::write(&self.config, text.replace(old, new)).unwrap();
        self.start_again();
        self.wait_until_ready();
    }

    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.start_again();
        self.wait_until_ready();
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }

    /// Every audit record on disk, oldest first.
    pub fn audit(&self) -> Vec<serde_json::Value> {
        let mut files: Vec<PathBuf> = match std::fs::read_dir(self.data.join("audit")) {
            Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
            Err(_) => return Vec::new(),
        };
        files.retain(|path| path.extension().is_some_and(|it| it == "jsonl"));
        files.sort();
        let texts = files
            .iter()
            .map(|path| std::fs::read_to_string(path).unwrap());
        let texts: Vec<String> = texts.collect();
        let lines = texts.iter().flat_map(|text| text.lines());
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }
}
