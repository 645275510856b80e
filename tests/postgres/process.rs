//! Processes that end with their test.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything that must come may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the condition holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
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
        let mut kill = Command::new("kill");
        // It may be gone.
        let _ = kill
            .arg(format!("-{name}"))
            .arg(pid)
            .stderr(Stdio::null())
            .status();
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

    pub fn wait_for_port(&mut self, address: SocketAddr) {
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended with {status}:\n{}", self.log());
            }
            let log = self.log();
            assert!(Instant::now() < until, "no listener at {address}:\n{log}");
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
