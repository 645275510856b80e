//! A server, a control connection to it, client sessions whose ports are known, and a store.

use std::sync::Arc;
use std::time::Duration;

use ringfence::config::{PostgresListenerConfig, ProxyConfig};
use ringfence::lock_name::{LockName, LockPattern};
use ringfence::proxy::floors::BackendFloors;
use ringfence::proxy::gates::{Claim, Gates, Holds};
use ringfence::proxy::left::Left;
use ringfence::proxy::postgres::control::{Claimed, Control, SessionId};
use ringfence::proxy::postgres::door::Door;
use ringfence::proxy::watermarks::{Opening, Start, Watermarks, WatermarksThread};
use ringfence::token::Token;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_postgres::{Client, Config, NoTls};

use crate::postgres::{APP, CONTROL, Postgres};

/// How long anything that must come may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until the condition holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < until, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A listener's configuration with these lines, and this role with its password as control.
pub fn config_as(
    server: &Postgres,
    (user, password): (&str, &str),
    lines: &str,
) -> PostgresListenerConfig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, password).unwrap();
    let text = format!(
        "instance = \"edge-1\"\ndata_dir = \"d\"\n{lines}\n[[listener]]\nname = \"pg\"\n\
         protocol = \"postgres\"\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\n\
         trust = \"unsigned\"\n[listener.control]\nuser = {user:?}\npassword_file = {file:?}\n",
        server.address,
    );
    let config = ProxyConfig::parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    config.postgres.into_iter().next().unwrap()
}

pub fn config(server: &Postgres) -> PostgresListenerConfig {
    config_as(server, CONTROL, "")
}

pub fn control_of(config: &PostgresListenerConfig) -> Control {
    let door = Door::new(config).unwrap();
    Control::new(config, Arc::new(door), Handle::current())
}

/// A client's session past any proxy.
pub struct Session {
    pub client: Client,
    pub pid: i32,
    pub port: u16,
}

impl Session {
    pub async fn connect(server: &Postgres) -> Session {
        Session::connect_as(server, APP, APP).await
    }

    pub async fn connect_as(server: &Postgres, user: &str, database: &str) -> Session {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let port = stream.local_addr().unwrap().port();
        let mut config = Config::new();
        config.user(user).dbname(database);
        let (client, connection) = config.connect_raw(stream, NoTls).await.unwrap();
        tokio::spawn(connection);
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await;
        Session {
            pid: row.unwrap().get(0),
            client,
            port,
        }
    }

    pub fn claimed(&self) -> Claimed<'_> {
        Claimed {
            pid: self.pid,
            port: self.port,
            user: APP,
            database: APP,
        }
    }

    pub async fn id(&self, control: &Control) -> SessionId {
        control.vouch(&self.claimed()).await.unwrap()
    }

    pub async fn run(&self, statements: &str) {
        self.client.batch_execute(statements).await.unwrap();
    }

    /// Whether the session still answers.
    pub async fn answers(&self) -> bool {
        self.client.simple_query("SELECT 1").await.is_ok()
    }
}

/// A proxy's store in a folder.
pub struct Store {
    dir: tempfile::TempDir,
    thread: Option<WatermarksThread>,
}

impl Store {
    pub fn new() -> Store {
        Store {
            dir: tempfile::tempdir().unwrap(),
            thread: None,
        }
    }

    /// The next run on it.
    pub fn open(&mut self) -> (Watermarks, Start) {
        // As after kill -9: without a clean mark.
        self.thread = None;
        let opening = Opening {
            init: !self.dir.path().join("watermarks.redb").exists(),
            alone: true,
            registered: false,
            fingerprint: 1,
            patterns: vec![],
        };
        let (watermarks, thread, start) = Watermarks::open(self.dir.path(), opening).unwrap();
        self.thread = Some(thread);
        (watermarks, start)
    }

    /// The gates of the next run, before these backends. They are told what the run is called.
    pub fn gates(&mut self, floors: impl FnOnce(&str) -> Vec<BackendFloors>) -> Gates {
        let (watermarks, start) = self.open();
        let floors = floors(&format!("{}/{}", start.store_id, start.run));
        let holds = Holds::new(vec![(
            vec![LockPattern::new("**").unwrap()],
            Duration::ZERO,
        )]);
        let left = Left::new(&watermarks.sessions().unwrap());
        Gates::new(watermarks, start, holds, left, None, floors)
    }
}

pub fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub fn claim(name: &str, token: u64) -> Claim {
    Claim {
        lock: lock(name),
        token: Token::new(token).unwrap(),
        unsigned: true,
    }
}

pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}
