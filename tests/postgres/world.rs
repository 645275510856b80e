//! A server with a proxy before it, and clients on both sides.

use std::path::Path;

use crate::client::Client;
use crate::postgres::{Options, Postgres};
use crate::stack::{Proxy, Setup};

pub struct World {
    // Dropped first.
    pub proxy: Proxy,
    pub server: Postgres,
    pub dir: tempfile::TempDir,
}

impl World {
    /// A proxy that guards the whole database.
    pub fn new() -> World {
        World::with(|setup| setup)
    }

    /// The same with more said about the proxy.
    pub fn with(say: impl FnOnce(Setup) -> Setup) -> World {
        World::on(Options::default(), say)
    }

    /// The same with more said about the server, too.
    pub fn on(options: Options, say: impl FnOnce(Setup) -> Setup) -> World {
        let dir = tempfile::tempdir().unwrap();
        let server = server(options);
        let proxy = Proxy::start(dir.path(), &say(Setup::new(server.address)));
        World { proxy, server, dir }
    }

    /// The server alone.
    pub fn server() -> Postgres {
        server(Options::default())
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A session past the proxy.
    #[track_caller]
    pub fn direct(&self) -> Client {
        Client::connect(self.server.address)
    }

    /// A superuser's session past the proxy.
    #[track_caller]
    pub fn admin(&self) -> Client {
        Client::connect_with(self.server.address, &[("user", "postgres")])
    }

    /// What the first row of `orders` holds, seen past the proxy.
    #[track_caller]
    pub fn order(&self) -> String {
        self.direct()
            .query("SELECT note FROM orders WHERE id = 1")
            .value()
    }
}

/// With a guarded table and one that a rule may leave alone.
fn server(options: Options) -> Postgres {
    let server = Postgres::start_with(options);
    let mut client = Client::connect(server.address);
    for sql in [
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders VALUES (1, 'first')",
        "CREATE TABLE plain (id int, note text)",
    ] {
        client.query(sql).ok();
    }
    server
}

/// The statement that every test tries to get past the fence.
pub const WRITE: &str = "UPDATE orders SET note = 'written' WHERE id = 1";
