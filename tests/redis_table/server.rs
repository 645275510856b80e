//! A `redis-server` of the test's own: on a Unix socket in its own folder, ended when dropped.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence::protocol::redis::{ReplyProgress, ReplyScanner, encode_command};

/// How long the server may take until it answers.
const START_MAX: Duration = Duration::from_secs(20);

/// How long a reply may take.
const REPLY_MAX: Duration = Duration::from_secs(10);

pub struct Server {
    child: Child,
    folder: tempfile::TempDir,
}

impl Server {
    /// The one that is asked for.
    pub fn start() -> Server {
        Server::start_as(&crate::redis_server::chosen())
    }

    /// Starts it and waits until it answers. A missing program fails the test.
    pub fn start_as(program: &Path) -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let child = Command::new(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .arg("--unixsocket")
            .arg(folder.path().join("socket"))
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?} does not run: {error}"));
        let server = Server { child, folder };
        let end = Instant::now() + START_MAX;
        while server.open().is_none() {
            assert!(Instant::now() < end, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn open(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(self.folder.path().join("socket")).ok()?;
        stream.set_read_timeout(Some(REPLY_MAX)).ok()?;
        Some(stream)
    }

    /// A connection that speaks this version of RESP.
    pub fn connect(&self, version: &str) -> Connection {
        let mut connection = Connection {
            stream: self.open().expect("a connection"),
        };
        connection.call(&["HELLO", version]);
        connection
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("commands are sent");
    }

    /// Waits for more bytes and adds them.
    pub fn read(&mut self, bytes: &mut Vec<u8>) {
        let mut chunk = [0; 16 << 10];
        let len = self.stream.read(&mut chunk).expect("replies come");
        assert!(
            len > 0,
            "the server closed after {:?}",
            String::from_utf8_lossy(bytes)
        );
        bytes.extend(&chunk[..len]);
    }

    /// One command and its reply.
    pub fn call(&mut self, args: &[&str]) -> Vec<u8> {
        self.write(&encode_command(args));
        let mut scanner = ReplyScanner::new();
        let mut reply = vec![];
        loop {
            self.read(&mut reply);
            let progress = scanner.scan(&reply).expect("a reply of RESP");
            if let ReplyProgress::Complete { len, .. } = progress {
                assert_eq!(len, reply.len(), "one reply to {args:?}");
                return reply;
            }
        }
    }
}
