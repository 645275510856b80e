//! Processes that end with their test, and free ports for them.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

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

/// Below the ports that the kernel gives to clients (`ip_local_port_range`), which come and go.
const PORTS: std::ops::Range<u32> = 10_000..32_000;

/// An address that nobody listens on, and another one at each call. Tests that run beside this one
/// begin elsewhere.
pub fn free_address() -> SocketAddr {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    loop {
        let nth = std::process::id().wrapping_mul(97);
        let nth = nth.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + nth % PORTS.len() as u32;
        let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
        if is_free(address) {
            return address;
        }
    }
}

/// It never listens: another test that waits for a server of its own there would take it for that.
fn is_free(address: SocketAddr) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).is_ok()
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends a signal by its name, such as `STOP`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// SIGTERM, then waits for the end.
    pub fn terminate(&mut self) {
        self.signal("TERM");
        self.wait();
    }

    /// SIGKILL, and waits.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for an end that comes by itself. True: with success.
    #[track_caller]
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

/// Sends a signal by its name to a process, which may be gone. After `STOP` it stands still: one of
/// its threads has to run once more before the others stop, which takes its time on a busy machine.
pub fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    let _ = kill
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
    if name == "STOP" {
        eventually("a process that stands still", || is_stopped(pid));
    }
}

/// Whether all threads have stopped (proc(5), "/proc/pid/stat"), or are no more.
fn is_stopped(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat
            .rsplit_once(')')
            .map_or("", |(_, rest)| rest.trim_start());
        state.is_empty() || state.starts_with(['T', 't', 'Z', 'X'])
    })
}
