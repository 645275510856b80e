//! A proxy in this process, a backend whose every step the test decides, and raw clients.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence::audit::{AuditThread, AuditWriter, Limits};
use ringfence::config::ProxyConfig;
use ringfence::lock_name::LockName;
use ringfence::proxy::{Options, Proxy, StartError, start};
use ringfence::ticket::{SealScope, SigningKey, Ticket};
use ringfence::token::Token;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Nothing in these tests takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what} did not happen within {PATIENCE:?}"),
    }
}

/// Asks again until it is so.
pub async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A proxy with its folder, keys and backend.
pub struct World {
    pub dir: tempfile::TempDir,
    pub key: SigningKey,
    pub backend: Backend,
    pub running: Option<Running>,
}

pub struct Running {
    pub proxy: Proxy,
    /// Ends with the proxy.
    _audit: AuditThread,
}

/// What is put into the configuration.
#[derive(Clone)]
pub struct Setup {
    pub tickets: String,
    pub protocol: &'static str,
    pub listener: &'static str,
    pub rules: &'static str,
    pub data_dir: Option<PathBuf>,
}

pub const ACCOUNTS: &str = r#"
    [[listener.rule]]
    lock = "accounts/{id}"
    path = "/accounts/{id}/**"
"#;

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            tickets: "keys = \"{dir}/keys\"".to_owned(),
            protocol: "http",
            listener: "admit_deadline = \"300ms\"\nin_doubt_hold = \"1s\"",
            rules: ACCOUNTS,
            data_dir: None,
        }
    }
}

impl Setup {
    pub fn listener(listener: &'static str) -> Setup {
        Setup {
            listener,
            ..Setup::default()
        }
    }

    pub fn rules(rules: &'static str) -> Setup {
        Setup {
            rules,
            ..Setup::default()
        }
    }
}

impl World {
    /// A proxy on a new data folder.
    pub async fn new(setup: &Setup) -> World {
        let mut world = World::stopped().await;
        world.start(setup, true).unwrap();
        world
    }

    pub async fn stopped() -> World {
        let dir = tempfile::tempdir().unwrap();
        let key = SigningKey::generate();
        std::fs::write(dir.path().join("keys"), key.verifying().to_text()).unwrap();
        World {
            dir,
            key,
            backend: Backend::new().await,
            running: None,
        }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The configuration, on free ports.
    pub fn config(&self, setup: &Setup) -> ProxyConfig {
        let dir = self.dir.path().display().to_string();
        let data_dir = setup.data_dir.clone().unwrap_or(self.data_dir());
        let Setup {
            tickets,
            listener,
            rules,
            protocol,
            ..
        } = setup;
        let tickets = tickets.replace("{dir}", &dir);
        let upstream = self.backend.address;
        ProxyConfig::parse(&format!(
            "instance = \"edge-1\"\ndata_dir = {data_dir:?}\n[tickets]\n{tickets}\n\
             [admin]\nlisten = \"127.0.0.1:7431\"\n\
             [[listener]]\nname = \"web\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n\
             upstream = \"{upstream}\"\n{listener}\n{rules}"
        ))
        .unwrap()
    }

    pub fn start(&mut self, setup: &Setup, init: bool) -> Result<(), StartError> {
        let limits = Limits::default();
        let (writer, thread) = AuditWriter::open(&self.dir.path().join("audit"), limits).unwrap();
        let options = Options {
            init,
            admin: "127.0.0.1:7431".parse().unwrap(),
            audit: writer,
            threads: Some(1),
        };
        let proxy = start(self.config(setup), options)?;
        self.running = Some(Running {
            proxy,
            _audit: thread,
        });
        Ok(())
    }

    pub fn proxy(&self) -> &Proxy {
        &self.running.as_ref().unwrap().proxy
    }

    pub fn address(&self) -> SocketAddr {
        self.proxy().listeners()[0].1
    }

    /// Stops without the clean mark, as a crash would leave the data folder.
    pub fn crash(&mut self) {
        drop(self.running.take());
    }

    pub async fn shutdown(&mut self) {
        self.running.take().unwrap().proxy.shutdown().await;
    }

    pub fn ticket(&self, lock: &str, token: u64) -> String {
        self.sealed_ticket(lock, token, SealScope::BestEffort(vec![]))
    }

    pub fn sealed_ticket(&self, lock: &str, token: u64, seal: SealScope) -> String {
        self.key.sign_ticket(&Ticket {
            lock: LockName::new(lock).unwrap(),
            token: Token::new(token).unwrap(),
            holder: format!("holder-{token}"),
            session: "s".to_owned(),
            issued_unix_ms: 0,
            seal,
        })
    }

    pub async fn client(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address()).await.unwrap())
    }

    /// Sends a request on a new connection and waits for the whole reply.
    pub async fn ask(&self, request: &str) -> Reply {
        let mut client = self.client().await;
        client.send(request.as_bytes()).await;
        client.reply().await
    }

    /// The same, for a request that reaches the backend, which answers 200.
    pub async fn pass(&mut self, request: &str) -> (String, Reply) {
        let mut client = self.client().await;
        client.send(request.as_bytes()).await;
        let mut connection = self.backend.accept().await;
        let seen = connection.request().await;
        connection.send(OK).await;
        (seen, client.reply().await)
    }

    pub fn audit_lines(&self) -> Vec<serde_json::Value> {
        let mut lines = vec![];
        for file in std::fs::read_dir(self.dir.path().join("audit")).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            lines.extend(text.lines().map(|line| serde_json::from_str(line).unwrap()));
        }
        lines
    }

    /// Waits until the audit has a line with these values.
    pub async fn audited(&self, wanted: &[(&str, &str)]) -> serde_json::Value {
        let matches =
            |line: &serde_json::Value| wanted.iter().all(|(key, value)| line[key] == *value);
        let find = || self.audit_lines().into_iter().find(matches);
        until(&format!("an audit line with {wanted:?}"), || async {
            find().is_some()
        })
        .await;
        find().unwrap()
    }
}

pub const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

pub fn put(path: &str, ticket: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "PUT {path} HTTP/1.1\r\nHost: backend\r\nFencing-Token: {ticket}\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

pub fn get(path: &str, ticket: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: backend\r\nFencing-Token: {ticket}\r\n\r\n")
}

/// A real server that does nothing by itself.
pub struct Backend {
    pub address: SocketAddr,
    listener: Option<TcpListener>,
}

impl Backend {
    async fn new() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Backend {
            address: listener.local_addr().unwrap(),
            listener: Some(listener),
        }
    }

    fn listener(&self) -> &TcpListener {
        self.listener.as_ref().unwrap()
    }

    pub fn close(&mut self) {
        self.listener = None;
    }

    pub async fn reopen(&mut self) {
        self.listener = Some(TcpListener::bind(self.address).await.unwrap());
    }

    /// The next connection.
    pub async fn accept(&self) -> Peer {
        let (stream, _) = soon("a connection to the backend", self.listener().accept())
            .await
            .unwrap();
        Peer::new(stream)
    }

    /// Asserts that no connection waits to be accepted.
    pub async fn is_untouched(&self) {
        let accepted =
            tokio::time::timeout(Duration::from_millis(50), self.listener().accept()).await;
        assert!(accepted.is_err(), "the backend was connected to");
    }
}

/// One end of a connection, as bytes.
pub struct Peer {
    pub stream: TcpStream,
    pub read: Vec<u8>,
}

/// How a connection ended.
#[derive(PartialEq, Eq, Debug)]
pub enum End {
    Fin,
    Reset,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn problem(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn refused(&self, status: u16, code: &str) -> serde_json::Value {
        assert_eq!(self.status, status, "{self:?}");
        let problem = self.problem();
        assert_eq!(problem["code"], code, "{self:?}");
        problem
    }
}

impl Peer {
    fn new(stream: TcpStream) -> Peer {
        stream.set_nodelay(true).unwrap();
        Peer {
            stream,
            read: vec![],
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        soon("sending", self.stream.write_all(bytes)).await.unwrap();
    }

    async fn more(&mut self) -> std::io::Result<usize> {
        soon("bytes", self.stream.read_buf(&mut self.read)).await
    }

    /// Waits until at least this much has come, and looks at it.
    pub async fn at_least(&mut self, bytes: usize) -> String {
        while self.read.len() < bytes {
            assert_ne!(
                self.more().await.unwrap(),
                0,
                "ended after {:?}",
                self.text()
            );
        }
        self.text()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.read).into_owned()
    }

    /// The head that comes next, taken out.
    pub async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.text().find("\r\n\r\n") {
                return String::from_utf8(self.read.drain(..end + 4).collect()).unwrap();
            }
            assert_ne!(
                self.more().await.unwrap(),
                0,
                "ended after {:?}",
                self.text()
            );
        }
    }

    /// A whole request, head and body, as it came.
    pub async fn request(&mut self) -> String {
        let head = self.head().await;
        let body = self.body(&head).await;
        head + &body
    }

    pub async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let status = head[9..12].parse().unwrap();
        let body = self.body(&head).await;
        Reply { status, head, body }
    }

    async fn body(&mut self, head: &str) -> String {
        let lower = head.to_ascii_lowercase();
        let length = lower.split("content-length: ").nth(1);
        let length: usize = match length {
            Some(rest) => rest.split("\r\n").next().unwrap().parse().unwrap(),
            None if lower.contains("transfer-encoding: chunked") => {
                while !self.read.ends_with(b"0\r\n\r\n") {
                    assert_ne!(self.more().await.unwrap(), 0, "ended in chunks");
                }
                self.read.len()
            }
            None => 0,
        };
        self.at_least(length).await;
        String::from_utf8(self.read.drain(..length).collect()).unwrap()
    }

    /// Waits for the end; what comes before it is kept in `read`.
    pub async fn end(&mut self) -> End {
        loop {
            match self.more().await {
                Ok(0) => return End::Fin,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                    return End::Reset;
                }
            }
        }
    }

    /// Ends the connection at once, without a reply.
    pub fn reset(self) {
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    }
}

pub fn delete_folder(dir: &Path) {
    std::fs::remove_dir_all(dir).unwrap();
}
