//! A real Postgres: a cluster of the test's own on a free port, ended when dropped.
//!
//! Root cannot run a server of Postgres: as root everything of it is done by the user `postgres` of
//! the package.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod cluster;

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use cluster::{as_postgres, copy, give_to_postgres, make_certificate, template};

pub use cluster::programs;

/// How long a start or an end may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server whose port was taken by somebody else is tried again.
const PORTS_TRIED: usize = 5;

/// The role of the proxy's control connection, and its password.
pub const CONTROL: (&str, &str) = ("ringfence_control", "control secret");
/// A role, and a database that it owns. No password.
pub const APP: &str = "app";
/// Roles with a password each, one for every way to tell it.
pub const SCRAM: (&str, &str) = ("scram_user", "scram secret");
/// Its password is kept as MD5 and asked for in that way.
pub const MD5: (&str, &str) = ("md5_user", "md5 secret");
/// Is asked for its password as it stands.
pub const CLEARTEXT: (&str, &str) = ("cleartext_user", "cleartext secret");
/// Comes in by TLS only.
pub const TLS_ONLY: &str = "tls_user";

const HBA: &str = "\
local       all         all                           trust
hostnossl   all         tls_user          127.0.0.1/32 reject
host        all         scram_user        127.0.0.1/32 scram-sha-256
host        all         ringfence_control 127.0.0.1/32 scram-sha-256
host        all         md5_user          127.0.0.1/32 md5
host        all         cleartext_user    127.0.0.1/32 password
host        all         all               127.0.0.1/32 trust
host        replication all               127.0.0.1/32 trust
";

/// Settings of every server: quick to start, and with what fencing is about.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    ("shared_buffers", "32MB"),
    ("autovacuum", "off"),
    ("max_prepared_transactions", "16"),
    ("track_commit_timestamp", "on"),
    ("log_line_prefix", "[%p] "),
    ("logging_collector", "off"),
    ("unix_socket_permissions", "0777"),
];

/// What a test says about its server.
#[derive(Clone, Default)]
pub struct Options {
    /// It takes TLS, with a certificate of its own for `localhost`.
    pub tls: bool,
    /// What it has acknowledged is on disk.
    pub durable: bool,
    /// More settings, such as `log_statement` and `all`.
    pub settings: Vec<(&'static str, String)>,
}

/// A running server.
pub struct Postgres {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
    folder: tempfile::TempDir,
    options: Options,
}

impl Postgres {
    /// One with nothing special.
    pub fn start() -> Postgres {
        Postgres::start_with(Options::default())
    }

    /// One on a cluster of its own.
    pub fn start_with(options: Options) -> Postgres {
        let folder = tempfile::tempdir().expect("a folder for the cluster");
        let data = folder.path().join("data");
        copy(&template(), &data);
        std::fs::write(data.join("pg_hba.conf"), HBA).unwrap();
        if options.tls {
            make_certificate(&data);
        }
        give_to_postgres(folder.path());
        for _ in 0..PORTS_TRIED {
            let address = free_address();
            let mut child = spawn(folder.path(), address, &options);
            if ready(&mut child, folder.path()) {
                return Postgres {
                    address,
                    child,
                    folder,
                    options,
                };
            }
        }
        panic!("no server starts:\n{}", log_of(folder.path()));
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        log_of(self.folder.path())
    }

    /// Its certificate, for clients that verify it.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("data/server.crt")
    }

    /// Signals one of its processes by pid: a backend of a session.
    pub fn signal(&self, pid: i32, signal: Signal) {
        let _ = kill_process(Pid::from_raw(pid).expect("a pid"), signal);
    }

    /// Immediate shutdown: every session ends without a rollback of its own, as in a crash.
    pub fn crash(&mut self) {
        self.end();
    }

    /// Starts again on the same cluster and port.
    pub fn start_again(&mut self) {
        self.child = spawn(self.folder.path(), self.address, &self.options);
        let ready = ready(&mut self.child, self.folder.path());
        assert!(ready, "does not start again:\n{}", self.log());
    }

    fn end(&mut self) {
        let postmaster = self.child.id();
        // A stopped backend would be awaited.
        for pid in children(postmaster) {
            send(pid, Signal::CONT);
        }
        send(postmaster, Signal::QUIT);
        let _ = self.child.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.len().saturating_sub(4000);
            let tail = log.ceil_char_boundary(tail);
            eprintln!("--- the server's log\n{}", &log[tail..]);
        }
    }
}

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound address")
}

fn spawn(folder: &Path, address: SocketAddr, options: &Options) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    let mut command = as_postgres(&programs().join("postgres"));
    command.arg("-D").arg(folder.join("data"));
    command.arg("-k").arg(folder);
    command.args(["-p", &address.port().to_string()]);
    for (name, value) in SETTINGS {
        command.args(["-c", &format!("{name}={value}")]);
    }
    let ssl = if options.tls { "on" } else { "off" };
    let fsync = if options.durable { "on" } else { "off" };
    command.args(["-c", &format!("ssl={ssl}")]);
    command.args(["-c", &format!("fsync={fsync}")]);
    for (name, value) in &options.settings {
        command.args(["-c", &format!("{name}={value}")]);
    }
    let spawned = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    spawned.expect("a server of Postgres")
}

/// Waits until it takes sessions; false when it has ended.
fn ready(child: &mut Child, folder: &Path) -> bool {
    let until = Instant::now() + PATIENCE;
    let state = folder.join("data/postmaster.pid");
    loop {
        // Its first line is the pid, its last one the state.
        let told = std::fs::read_to_string(&state).unwrap_or_default();
        let own = told.lines().next() == Some(&child.id().to_string());
        if own && told.lines().last().map(str::trim) == Some("ready") {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(Instant::now() < until, "not ready:\n{}", log_of(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn log_of(folder: &Path) -> String {
    let bytes = std::fs::read(folder.join("log")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _ = kill_process(pid.expect("a pid"), signal);
}

fn children(pid: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let listed = listed.unwrap_or_default();
    listed
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
