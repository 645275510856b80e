//! A Postgres of the test's own: a cluster in a temporary folder, on a Unix socket only.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::protocol::postgres::frame::{
    BackendMessage, Decoder, Next, Side, Version, query, startup,
};

const START_MAX: Duration = Duration::from_secs(60);

const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A running server; it ends with the value.
pub struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

/// How a query ended.
#[derive(PartialEq, Eq, Debug)]
pub enum Answer {
    /// Without an error.
    Done,
    /// With this SQLSTATE.
    Error(String),
}

/// Where Debian keeps the server's programs: the newest version's.
fn programs() -> PathBuf {
    let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .expect("postgresql is installed (make test-needs)")
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, bin)| bin.join("postgres").exists())
        .collect();
    versions.sort();
    let (_, newest) = versions.pop().expect("a server of Postgres is installed");
    newest
}

/// A program of the server, which refuses to run as root.
fn command(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    // Ends with the test, even where that is killed.
    command.arg("--pdeathsig=KILL");
    command.arg(program);
    command
}

impl Server {
    /// Makes a cluster and starts its server.
    pub fn start() -> Server {
        let folder = tempfile::tempdir().unwrap();
        let bin = programs();
        if rustix::process::geteuid().is_root() {
            let owned = Command::new("chown")
                .arg("postgres")
                .arg(folder.path())
                .status();
            assert!(owned.unwrap().success());
        }
        let data = folder.path().join("data");
        let made = command(&bin.join("initdb"))
            .args([
                "--auth=trust",
                "--no-sync",
                "--username=postgres",
                "--locale=C.UTF-8",
                "-D",
            ])
            .arg(&data)
            .stdout(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "initdb failed");
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = command(&bin.join("postgres"))
            .arg("-D")
            .arg(&data)
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "fsync=off",
                "-c",
                "max_prepared_transactions=9",
            ])
            .arg("-k")
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Server { child, folder }
    }

    /// Where its socket is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A session, once the server takes one.
    pub fn connect(&self) -> Client {
        self.connect_with(&[])
    }

    /// The same with these parameters at its start.
    pub fn connect_with(&self, parameters: &[(&str, &str)]) -> Client {
        let socket = self.folder.path().join(".s.PGSQL.5432");
        let started = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(&socket)
                && let Some(client) = Client::start(stream, parameters)
            {
                return client;
            }
            assert!(started.elapsed() < START_MAX, "no server: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            // Immediate shutdown: it takes its own processes with it.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        }
        let _ = self.child.wait();
    }
}

/// A session that sends simple queries, on the proxy's own framing.
pub struct Client {
    stream: UnixStream,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Client {
    /// `None` while the server is starting up.
    fn start(stream: UnixStream, parameters: &[(&str, &str)]) -> Option<Client> {
        let mut client = Client {
            stream,
            decoder: Decoder::new(Side::Server),
            buffer: vec![],
        };
        let version = Version { major: 3, minor: 0 };
        let role = [("user", "postgres"), ("database", "postgres")];
        let all = role.iter().chain(parameters);
        let all = all.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        client.stream.write_all(&startup(version, all)).ok()?;
        let (answer, _) = client.read_to_ready()?;
        (answer == Answer::Done).then_some(client)
    }

    /// Runs a text.
    pub fn query(&mut self, text: &str) -> Answer {
        self.rows(text).0
    }

    /// Runs a text; its rows as texts.
    pub fn rows(&mut self, text: &str) -> (Answer, Vec<Vec<String>>) {
        self.stream.write_all(&query(text.as_bytes())).unwrap();
        self.read_to_ready().expect("the server answers")
    }

    /// Runs a text; every message of the answer.
    pub fn messages(&mut self, text: &str) -> Vec<(u8, Vec<u8>)> {
        self.stream.write_all(&query(text.as_bytes())).unwrap();
        let mut messages = vec![];
        while messages.last().is_none_or(|(tag, _)| *tag != b'Z') {
            messages.push(self.message().expect("the server answers"));
        }
        messages
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next message; a server that says nothing fails the test.
    pub fn receive(&mut self) -> (u8, Vec<u8>) {
        self.stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        self.message().expect("the server answers")
    }

    fn read_to_ready(&mut self) -> Option<(Answer, Vec<Vec<String>>)> {
        let (mut answer, mut rows) = (Answer::Done, vec![]);
        loop {
            let (tag, payload) = self.message()?;
            if tag == b'D' {
                rows.push(columns(&payload));
            }
            match BackendMessage::read(tag, &payload).expect("a message of the protocol") {
                BackendMessage::Error(fields) => {
                    let state = String::from_utf8_lossy(fields.sqlstate()?).into_owned();
                    if fields.is_fatal() {
                        return None;
                    }
                    answer = Answer::Error(state);
                }
                BackendMessage::ReadyForQuery(_) => return Some((answer, rows)),
                BackendMessage::CopyIn => {
                    // CopyFail.
                    self.stream.write_all(b"f\0\0\0\x05\0").ok()?;
                }
                _ => {}
            }
        }
    }

    /// One message, put together where it streams.
    fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut whole: Option<(u8, Vec<u8>)> = None;
        loop {
            let next = self
                .decoder
                .next(&self.buffer)
                .expect("the server's framing");
            let consumed = next.consumed();
            let mut done = false;
            match next {
                Next::More { .. } => {
                    let mut chunk = [0; 16 << 10];
                    let read = self.stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
                    self.buffer.extend_from_slice(&chunk[..read]);
                }
                Next::Whole { tag, payload, .. } => {
                    whole = Some((tag, payload.to_vec()));
                    done = true;
                }
                Next::Begin { tag, head, .. } => whole = Some((tag, head.to_vec())),
                Next::Part { raw, left, .. } => {
                    whole.as_mut()?.1.extend_from_slice(raw);
                    done = left == 0;
                }
            }
            self.buffer.drain(..consumed);
            if done {
                return whole;
            }
        }
    }
}

/// The columns of a DataRow; NULL is empty.
fn columns(payload: &[u8]) -> Vec<String> {
    let mut rest = &payload[2..];
    let mut columns = vec![];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        columns.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    columns
}
