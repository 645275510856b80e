//! Postgres and the proxies in front of it, one worker each.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use ringfence::config::ProxyConfig;
use ringfence::proxy::postgres::fence_store;
use ringfence::ticket::SigningKey;
use rustix::process::geteuid;

use super::postgres::{APP, CONTROL, Options, Postgres, programs};
use super::process::{Server, free_port};
use super::proxy::{INSTANCE, start_one, ticket, written};

/// Backends, for the idle connections of one proxy after the other: pgbouncer keeps its own.
const CONNECTIONS_MAX: u32 = 3500;
/// Of pgbench: with fewer branches most transactions of 64 connections wait for a row.
const SCALE: &str = "20";

/// What is measured, and where it listens.
pub struct Contender {
    /// What it is called in the tables.
    pub name: &'static str,
    pub port: u16,
    /// What its clients present.
    pub ticket: Option<String>,
    /// None: Postgres itself.
    proxy: Option<Rc<Server>>,
}

impl Contender {
    /// Processor time that the proxy took so far; none without one.
    pub fn cpu(&self) -> Duration {
        self.proxy.as_ref().map_or(Duration::ZERO, |it| it.cpu())
    }

    /// The proxy, if it is one.
    pub fn proxy(&self) -> Option<&Server> {
        self.proxy.as_deref()
    }
}

/// A server with pgbench's tables, without fsync: the disk is not what is compared.
pub fn postgres() -> Postgres {
    let settings = [
        ("max_connections", CONNECTIONS_MAX.to_string()),
        ("shared_buffers", "512MB".to_owned()),
        ("max_wal_size", "4GB".to_owned()),
        ("track_commit_timestamp", "off".to_owned()),
    ];
    let server = Postgres::start_with(Options {
        settings: settings.to_vec(),
        ..Options::default()
    });
    let mut command = Command::new(programs().join("pgbench"));
    command
        .args(["-h", "127.0.0.1", "-p", &server.address.port().to_string()])
        .args(["-U", APP, "-i", "-q", "-s", SCALE, APP]);
    let made = command.output().expect("pgbench");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    server
}

/// Postgres, then every proxy in front of it.
pub fn start_all(server: &Postgres, dir: &Path) -> Vec<Contender> {
    let upstream = server.address.port();
    let direct = Contender {
        name: "direct",
        port: upstream,
        ticket: None,
        proxy: None,
    };
    let mut all = vec![direct];
    all.extend(PGBOUNCERS.map(|(name, settings)| pgbouncer(dir, upstream, name, settings)));
    all.push(haproxy(dir, upstream));
    all.extend(ringfence(dir, upstream));
    all
}

fn contender(name: &'static str, server: Server, port: u16) -> Contender {
    Contender {
        name,
        port,
        ticket: None,
        proxy: Some(Rc::new(server)),
    }
}

/// A backend that has served before has its caches filled and the server's memory mapped, which
/// makes it faster, by up to a third on a busy machine. A pooler keeps its backends from one run to
/// the next; nobody else has such. So it is compared without them, as a proxy, and shown with them.
const PGBOUNCERS: [(&str, &str); 2] = [
    ("pgbouncer, session", "server_idle_timeout = 1"),
    ("pgbouncer, kept backends", ""),
];

fn pgbouncer(dir: &Path, upstream: u16, name: &'static str, settings: &str) -> Contender {
    let port = free_port();
    let text = format!(
        "[databases]
{APP} = host=127.0.0.1 port={upstream} user={APP}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = session
max_client_conn = {CONNECTIONS_MAX}
default_pool_size = {CONNECTIONS_MAX}
ignore_startup_parameters = extra_float_digits
{settings}
"
    );
    let config = written(dir, &format!("{name}.ini"), &text);
    // It refuses to run as root.
    let mut command = match geteuid().is_root() {
        false => Command::new("pgbouncer"),
        true => {
            let own = Command::new("chown")
                .arg("-R")
                .arg("postgres")
                .arg(dir)
                .status();
            assert!(own.is_ok_and(|status| status.success()), "chown failed");
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
            command.arg("pgbouncer");
            command
        }
    };
    command.arg("-q").arg(&config);
    let server = Server::start(name, &mut command, dir, &[port]);
    contender(name, server, port)
}

fn haproxy(dir: &Path, upstream: u16) -> Contender {
    let port = free_port();
    let text = format!(
        "global
           nbthread 1
           maxconn {CONNECTIONS_MAX}
         defaults
           mode tcp
           timeout connect 5s
           timeout client 300s
           timeout server 300s
           maxconn {CONNECTIONS_MAX}
         listen postgres
           bind 127.0.0.1:{port}
           server postgres 127.0.0.1:{upstream}
"
    );
    let config = written(dir, "haproxy.cfg", &text);
    let mut command = Command::new("haproxy");
    // In the foreground and without a master, so that its pid is the child's.
    command.arg("-db").arg("-f").arg(&config);
    let server = Server::start("haproxy", &mut command, dir, &[port]);
    contender("haproxy tcp", server, port)
}

/// One proxy process with an open and a fenced listener, and one that keeps its watermarks in the
/// backend.
fn ringfence(dir: &Path, upstream: u16) -> Vec<Contender> {
    let key = SigningKey::generate();
    let (open, fenced, shared) = (free_port(), free_port(), free_port());
    let embedded = [("open", open, ""), ("fenced", fenced, RULE)];
    let server = serving(dir, "embedded", &key, upstream, &embedded);
    let listener = |name, port, ticket, proxy: &Rc<Server>| Contender {
        name,
        port,
        ticket,
        proxy: Some(Rc::clone(proxy)),
    };
    let own = Some(ticket(&key));
    let mut all = vec![
        listener("ringfence, no rule", open, None, &server),
        listener("ringfence, fenced", fenced, own.clone(), &server),
    ];
    let backend = [("shared", shared, RULE)];
    let server = serving(dir, "backend", &key, upstream, &backend);
    all.push(listener("ringfence, backend store", shared, own, &server));
    all
}

/// Makes what the proxy keeps in the server.
fn install(config: &Path, upstream: u16) {
    let mut command = Command::new(programs().join("psql"));
    command
        .args(["-h", "127.0.0.1", "-p", &upstream.to_string()])
        .args(["-U", "postgres", "-q", "-c"])
        .arg(format!(
            "GRANT CREATE ON DATABASE postgres TO {}",
            CONTROL.0
        ));
    assert!(command.status().is_ok_and(|status| status.success()));
    let config = ProxyConfig::load(config).expect("a configuration");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for listener in &config.postgres {
        let installed = runtime.block_on(fence_store::install(listener));
        installed.expect("an installation");
    }
}

const RULE: &str = "[[listener.rule]]\nlock = \"bench\"\ndatabase = \"app\"\n";

/// A proxy with these listeners: their name, port and rules.
fn serving(
    dir: &Path,
    store: &str,
    key: &SigningKey,
    upstream: u16,
    listeners: &[(&str, u16, &str)],
) -> Rc<Server> {
    let keys = written(dir, "keys.txt", &(key.verifying().to_text() + "\n"));
    let password = written(dir, "control.password", CONTROL.1);
    let mut text = format!(
        "instance = \"{INSTANCE}\"\ndata_dir = {:?}\n[tickets]\nkeys = {keys:?}\n\
         [watermarks]\nstore = \"{store}\"\n[admin]\nlisten = \"127.0.0.1:{}\"\n",
        dir.join(store),
        free_port(),
    );
    for (name, port, rule) in listeners {
        text += &format!(
            "[[listener]]\nname = \"{name}\"\nprotocol = \"postgres\"\n\
             listen = \"127.0.0.1:{port}\"\nupstream = \"127.0.0.1:{upstream}\"\n{rule}\
             [listener.control]\nuser = \"{}\"\npassword_file = {password:?}\n",
            CONTROL.0,
        );
    }
    let config = written(dir, &format!("{store}.toml"), &text);
    if store == "backend" {
        install(&config, upstream);
    }
    let ports: Vec<u16> = listeners.iter().map(|(_, port, _)| *port).collect();
    let name = format!("ringfence-{store}");
    Rc::new(start_one(&name, &config, dir, &ports))
}
