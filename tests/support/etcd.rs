//! etcd servers, one or a cluster, of the two versions that the store must work on, and `etcdctl`.
//!
//! 3.4 is Debian's `etcd-server` (`etcd` and `etcdctl` on the path). 3.5 is in the folder named by
//! `RINGFENCE_TEST_ETCD35`, or in `.etcd35` of the checkout, where `fetch_etcd35.sh` puts it. A
//! missing server fails the test.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support code"
)]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it is healthy.
const START_MAX: Duration = Duration::from_secs(30);

/// How often the start is tried: a port that was free may be taken a moment later.
const START_TRIES: usize = 5;

/// Which etcd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    V3_4,
    V3_5,
}

impl Version {
    /// The folder of its programs, checked by asking the server for its version.
    fn programs(self) -> PathBuf {
        let (folder, wanted) = match self {
            Version::V3_4 => (on_path("etcd"), "etcd Version: 3.4."),
            Version::V3_5 => (fetched(), "etcd Version: 3.5."),
        };
        let output = Command::new(folder.join("etcd")).arg("--version").output();
        let output = output.unwrap_or_else(|error| panic!("{folder:?}/etcd does not run: {error}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.starts_with(wanted),
            "{folder:?}/etcd is not {wanted}: {text}"
        );
        folder
    }
}

fn on_path(program: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    std::env::split_paths(&path)
        .find(|folder| folder.join(program).is_file())
        .unwrap_or_else(|| panic!("no {program} on the path: install Debian's etcd-server"))
}

fn fetched() -> PathBuf {
    if let Some(folder) = std::env::var_os("RINGFENCE_TEST_ETCD35") {
        return folder.into();
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".etcd35");
    assert!(
        folder.join("etcd").is_file(),
        "no etcd 3.5 in {folder:?}: tests/support/fetch_etcd35.sh .etcd35"
    );
    folder
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("a bound address").port()
}

/// One member.
struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    child: Option<Child>,
}

impl Member {
    fn new(index: usize) -> Member {
        Member {
            name: format!("m{index}"),
            client_port: free_port(),
            peer_port: free_port(),
            child: None,
        }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end();
    }
}

/// A cluster of one member or more.
pub struct Etcd {
    programs: PathBuf,
    members: Vec<Member>,
    // Dropped after the members.
    folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts so many members and waits until all are healthy.
    pub fn start(version: Version, count: usize) -> Etcd {
        let programs = version.programs();
        let mut last = String::new();
        for _ in 0..START_TRIES {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let members = (0..count).map(Member::new).collect();
            let mut etcd = Etcd {
                programs: programs.clone(),
                members,
                folder,
            };
            match etcd.start_all() {
                Ok(()) => return etcd,
                Err(error) => last = error,
            }
        }
        panic!("etcd {version:?} does not start: {last}");
    }

    fn start_all(&mut self) -> Result<(), String> {
        for index in 0..self.members.len() {
            self.spawn(index);
        }
        (0..self.members.len()).try_for_each(|index| self.wait_healthy(index))
    }

    /// Kills a member (SIGKILL).
    pub fn kill(&mut self, index: usize) {
        self.members[index].end();
    }

    /// Starts a killed member on its own data and ports, and waits until it is healthy.
    pub fn restart(&mut self, index: usize) {
        self.spawn(index);
        self.wait_healthy(index).expect("a member that comes back");
    }

    /// Starts a killed member without waiting.
    pub fn spawn(&mut self, index: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> = self
            .members
            .iter()
            .map(|member| format!("{}={}", member.name, url(member.peer_port)))
            .collect();
        let member = &self.members[index];
        let log = self.folder.path().join(format!("{}.log", member.name));
        let log = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file");
        let child = Command::new(self.programs.join("etcd"))
            .args([
                "--name",
                &member.name,
                "--logger",
                "zap",
                "--log-level",
                "warn",
            ])
            .arg("--data-dir")
            .arg(self.folder.path().join(&member.name))
            .args(["--listen-client-urls", &url(member.client_port)])
            .args(["--advertise-client-urls", &url(member.client_port)])
            .args(["--listen-peer-urls", &url(member.peer_port)])
            .args(["--initial-advertise-peer-urls", &url(member.peer_port)])
            .args(["--initial-cluster", &cluster.join(",")])
            // The shortest lease is one and a half election times.
            .args(["--heartbeat-interval", "60", "--election-timeout", "600"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.members[index].child = Some(child);
    }

    fn wait_healthy(&mut self, index: usize) -> Result<(), String> {
        let started = Instant::now();
        let log = self
            .folder
            .path()
            .join(format!("{}.log", self.members[index].name));
        let member = &mut self.members[index];
        loop {
            if healthy(member.client_port).unwrap_or(false) {
                return Ok(());
            }
            let child = member.child.as_mut().ok_or("not started")?;
            let ended = child.try_wait().map_err(|error| error.to_string())?;
            if ended.is_some() || started.elapsed() > START_MAX {
                let text = std::fs::read_to_string(log).unwrap_or_default();
                return Err(format!(
                    "{} is not healthy ({ended:?}):\n{text}",
                    member.name
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Saves the data of a cluster of one.
    pub fn save(&self) {
        let file = self.folder.path().join("backup");
        self.ctl(&["snapshot", "save", file.to_str().expect("a path of text")]);
    }

    /// Kills a cluster of one and starts it again on what was saved.
    pub fn restore(&mut self) {
        self.kill(0);
        let data = self.folder.path().join(&self.members[0].name);
        std::fs::remove_dir_all(&data).expect("the old data");
        let peer = format!("http://127.0.0.1:{}", self.members[0].peer_port);
        let output = Command::new(self.programs.join("etcdctl"))
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(self.folder.path().join("backup"))
            .arg("--data-dir")
            .arg(data)
            .args([
                "--name",
                &self.members[0].name,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--initial-cluster",
                &format!("{}={peer}", self.members[0].name),
            ])
            .output()
            .expect("etcdctl runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        self.restart(0);
    }

    /// Kills a cluster of one and starts it again without its data.
    pub fn wipe(&mut self) {
        self.kill(0);
        let data = self.folder.path().join(&self.members[0].name);
        std::fs::remove_dir_all(&data).expect("the old data");
        self.restart(0);
    }

    /// Stops a member (SIGSTOP): its connections stay and say nothing.
    pub fn pause(&self, index: usize) {
        self.signal(index, "-STOP");
    }

    /// Lets a paused member go on.
    pub fn resume(&self, index: usize) {
        self.signal(index, "-CONT");
    }

    fn signal(&self, index: usize, signal: &str) {
        let child = self.members[index]
            .child
            .as_ref()
            .expect("a running member");
        signal_process(child, signal);
    }

    /// The address of one member.
    pub fn endpoint(&self, index: usize) -> String {
        format!("http://127.0.0.1:{}", self.members[index].client_port)
    }

    /// The addresses of all members.
    pub fn endpoints(&self) -> Vec<String> {
        (0..self.members.len())
            .map(|index| self.endpoint(index))
            .collect()
    }

    fn ctl_command(&self, index: usize, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("etcdctl"));
        command
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", self.endpoint(index))
            .args(args);
        command
    }

    /// Runs `etcdctl` on the first member; its output.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.ctl_on(0, args)
    }

    /// Runs `etcdctl` on one member; its output.
    pub fn ctl_on(&self, index: usize, args: &[&str]) -> String {
        let output: Output = self
            .ctl_command(index, args)
            .output()
            .expect("etcdctl runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {args:?}: {text}{error}");
        text
    }

    /// A lease of this time to live that nobody renews; its id in hexadecimal, without the leading
    /// zeros that etcdctl prints and the names of keys do not have.
    pub fn grant(&self, ttl_seconds: u32) -> String {
        // "lease 694d5765fc71500b granted with TTL(500s)"
        let text = self.ctl(&["lease", "grant", &ttl_seconds.to_string()]);
        text.split(' ')
            .nth(1)
            .expect("a lease id")
            .trim_start_matches('0')
            .to_owned()
    }

    /// `etcdctl lock NAME`, running.
    pub fn lock(&self, name: &str) -> CtlLock {
        let mut child = self
            .ctl_command(0, &["lock", name])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("etcdctl runs");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        CtlLock { child, output }
    }
}

/// A running `etcdctl lock`.
pub struct CtlLock {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl CtlLock {
    /// Waits until it holds the lock; the key that it prints.
    pub fn wait_held(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line of etcdctl");
        assert!(!line.is_empty(), "etcdctl lock ended without the lock");
        line.trim_end().to_owned()
    }

    /// Releases the lock as a user does, by Ctrl-C.
    pub fn release(mut self) {
        signal_process(&self.child, "-INT");
        let _ = self.child.wait();
    }
}

impl Drop for CtlLock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal_process(child: &Child, signal: &str) {
    let status = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(
        status.expect("kill runs").success(),
        "kill {signal} {}",
        child.id()
    );
}

/// Asks the health page, which answers only where there is a leader.
fn healthy(port: u16) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.contains(r#""health":"true""#))
}
