//! Everything in one process: lock service, object store, and a proxy before it.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cmd::admin_port::install_metrics;
use crate::cmd::exit::{self, Failure};
use crate::cmd::lockd::LockService;
use crate::cmd::proxy::ProxyService;
use crate::config::{LockdConfig, ProxyConfig, SealConfig, SealMode};
use crate::lock_name::LockPattern;

use super::object_store::{BUCKET, ObjectStore};

/// The lock that guards the bucket of the same name.
pub const S3_LOCK: &str = BUCKET;
/// The lock that guards the REST service.
pub const HTTP_LOCK: &str = "http";
/// The lock that guards all keys of the etcd.
pub const ETCD_LOCK: &str = "etcd";
/// The lock that guards the Redis server.
pub const REDIS_LOCK: &str = "redis";
/// The lock that guards the Postgres server.
#[cfg(feature = "postgres")]
pub const POSTGRES_LOCK: &str = "postgres";
/// Longest wait until the proxy knows the lock service's keys.
const READY_MAX: Duration = Duration::from_secs(20);
/// How often it is asked.
const READY_EVERY: Duration = Duration::from_millis(10);

/// Where the parts listen and what they keep.
#[derive(Debug, Clone)]
pub struct StackOptions {
    /// Folder for everything that is kept.
    pub data: PathBuf,
    /// A REST service to guard.
    pub http: Option<String>,
    /// An etcd to guard.
    pub etcd: Option<String>,
    /// Lock service, gRPC.
    pub lockd: SocketAddr,
    /// Proxy, admin.
    pub admin: SocketAddr,
    /// Proxy, S3.
    pub s3_listen: SocketAddr,
    /// Proxy, HTTP.
    pub http_listen: SocketAddr,
    /// Proxy, etcd.
    pub etcd_listen: SocketAddr,
    /// A Redis server to guard, `host:port`.
    pub redis: Option<String>,
    /// Proxy, Redis.
    pub redis_listen: SocketAddr,
    /// A Postgres server to guard.
    #[cfg(feature = "postgres")]
    pub postgres: Option<PostgresOptions>,
}

/// A Postgres server, and whom the proxy is there.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// `host:port`.
    pub upstream: String,
    /// The control role.
    pub role: String,
    /// Its password.
    pub password: Option<String>,
    /// Proxy, Postgres.
    pub listen: SocketAddr,
}

impl StackOptions {
    /// Everything on ports that are free.
    pub fn on_free_ports(data: &Path) -> StackOptions {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        StackOptions {
            data: data.to_owned(),
            http: None,
            etcd: None,
            lockd: free,
            admin: free,
            s3_listen: free,
            http_listen: free,
            etcd_listen: free,
            redis: None,
            redis_listen: free,
            #[cfg(feature = "postgres")]
            postgres: None,
        }
    }
}

/// The running parts.
pub struct Stack {
    lockd: LockService,
    proxy: ProxyService,
    store: ObjectStore,
    s3: SocketAddr,
    http: Option<SocketAddr>,
    etcd: Option<SocketAddr>,
    redis: Option<SocketAddr>,
    #[cfg(feature = "postgres")]
    postgres: Option<SocketAddr>,
}

impl Stack {
    /// Starts the parts, in the order of who needs whom; returns when they can be used.
    pub async fn start(options: StackOptions) -> Result<Stack, Failure> {
        let metrics = install_metrics()?;
        let lockd = LockService::start(&lockd_config(&options)?, false, metrics.clone()).await?;
        let store = ObjectStore::start(&options.data.join("s3"))
            .await
            .map_err(|error| Failure::because("object store", error))?;
        let text = proxy_config(&options, lockd.address(), store.address());
        #[cfg(feature = "postgres")]
        let text = text + &postgres_listener(&options)?;
        let config = ProxyConfig::parse(&text)
            .map_err(|errors| Failure::new(exit::USAGE, errors.to_string()))?;
        let proxy = ProxyService::start(config, false, metrics).await?;
        let Some(s3) = proxy.listener("s3") else {
            return Err(Failure::new(exit::FAILED, "the S3 listener is missing"));
        };
        let (http, etcd) = (proxy.listener("http"), proxy.listener("etcd"));
        let redis = proxy.listener("redis");
        let stack = Stack {
            #[cfg(feature = "postgres")]
            postgres: proxy.listener("postgres"),
            lockd,
            proxy,
            store,
            s3,
            http,
            etcd,
            redis,
        };
        stack.wait_until_ready().await?;
        Ok(stack)
    }

    async fn wait_until_ready(&self) -> Result<(), Failure> {
        let health = self.proxy.health();
        let waiting = async {
            while health.check().is_err() {
                tokio::time::sleep(READY_EVERY).await;
            }
        };
        tokio::time::timeout(READY_MAX, waiting).await.map_err(|_| {
            let missing = health.check().err().unwrap_or_default();
            Failure::new(
                exit::FAILED,
                format!("the proxy does not become ready: {missing}"),
            )
        })
    }

    /// The lock service.
    pub fn lockd_url(&self) -> String {
        format!("http://{}", self.lockd.address())
    }

    /// The proxy's admin port.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.proxy.admin_address())
    }

    /// The proxy's S3 listener.
    pub fn s3_url(&self) -> String {
        format!("http://{}", self.s3)
    }

    /// The proxy's HTTP listener, if a REST service is guarded.
    pub fn http_url(&self) -> Option<String> {
        self.http.map(|address| format!("http://{address}"))
    }

    /// The proxy's etcd listener, if an etcd is guarded.
    pub fn etcd_url(&self) -> Option<String> {
        self.etcd.map(|address| format!("http://{address}"))
    }

    /// The proxy's Redis listener, if a Redis server is guarded.
    pub fn redis(&self) -> Option<SocketAddr> {
        self.redis
    }

    /// The proxy's Postgres listener, if a Postgres server is guarded.
    #[cfg(feature = "postgres")]
    pub fn postgres(&self) -> Option<SocketAddr> {
        self.postgres
    }

    /// The object store itself, past the proxy.
    pub fn store_url(&self) -> String {
        format!("http://{}", self.store.address())
    }

    /// Stops the parts, the proxy first: what is in flight ends.
    pub async fn stop(self) {
        self.proxy.stop().await;
        self.lockd.stop().await;
    }
}

fn lockd_config(options: &StackOptions) -> Result<LockdConfig, Failure> {
    let pattern =
        LockPattern::new("**").map_err(|error| Failure::because("seal pattern", error))?;
    Ok(LockdConfig {
        listen: options.lockd,
        admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        data_dir: options.data.join("lockd"),
        seals: vec![SealConfig {
            pattern,
            mode: SealMode::Required,
        }],
        ..LockdConfig::default()
    })
}

/// The proxy's file, as one could have written it.
fn proxy_config(options: &StackOptions, lockd: SocketAddr, store: SocketAddr) -> String {
    let data = toml::Value::from(options.data.join("proxy").to_string_lossy().into_owned());
    let (admin, s3) = (options.admin, options.s3_listen);
    let mut text = format!(
        r#"
instance = "dev"
data_dir = {data}
[tickets]
lockd = "http://{lockd}"
[admin]
listen = "{admin}"
[[listener]]
name = "s3"
protocol = "s3"
listen = "{s3}"
upstream = "{store}"
# True of s3s-fs.
truncated_body = "discarded"
# A local store ends what it does at once.
in_doubt_hold = "10s"
[[listener.rule]]
lock = "{S3_LOCK}"
bucket = "{BUCKET}"
"#
    );
    if let Some(url) = &options.etcd {
        let upstream = toml::Value::from(host_and_port(url, 2379));
        let listen = options.etcd_listen;
        let _ = write!(
            text,
            r#"
[[listener]]
name = "etcd"
protocol = "etcd"
listen = "{listen}"
upstream = {upstream}
[[listener.rule]]
lock = "{ETCD_LOCK}"
key = "**"
"#
        );
    }
    if let Some(url) = &options.http {
        let upstream = toml::Value::from(host_and_port(url, 80));
        let listen = options.http_listen;
        let _ = write!(
            text,
            r#"
[[listener]]
name = "http"
protocol = "http"
listen = "{listen}"
upstream = {upstream}
[[listener.rule]]
lock = "{HTTP_LOCK}"
path = "/**"
"#
        );
    }
    if let Some(redis) = &options.redis {
        let upstream = toml::Value::from(redis.clone());
        let listen = options.redis_listen;
        let _ = write!(
            text,
            r#"
[[listener]]
name = "redis"
protocol = "redis"
listen = "{listen}"
upstream = {upstream}
[[listener.rule]]
lock = "{REDIS_LOCK}"
key = "*"
"#
        );
    }
    text
}

/// The part of the proxy's file that a Postgres server needs. The password goes to a file of its
/// own, as it must.
#[cfg(feature = "postgres")]
fn postgres_listener(options: &StackOptions) -> Result<String, Failure> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let Some(postgres) = &options.postgres else {
        return Ok(String::new());
    };
    let quoted = |text: &str| toml::Value::from(text.to_owned());
    let (upstream, role) = (quoted(&postgres.upstream), quoted(&postgres.role));
    let listen = postgres.listen;
    let mut text = format!(
        r#"
[[listener]]
name = "postgres"
protocol = "postgres"
listen = "{listen}"
upstream = {upstream}
[[listener.rule]]
lock = "{POSTGRES_LOCK}"
database = "*"
[listener.control]
user = {role}
"#
    );
    if let Some(password) = &postgres.password {
        let path = options.data.join("postgres-password");
        let mut file = std::fs::File::options();
        let file = file.write(true).create(true).truncate(true).mode(0o600);
        file.open(&path)
            .and_then(|mut file| file.write_all(password.as_bytes()))
            .map_err(|error| Failure::because(path.display(), error))?;
        let _ = writeln!(text, "password_file = {}", quoted(&path.to_string_lossy()));
    }
    Ok(text)
}

/// `http://host:port/` as `host:port`, with this port if there is none.
fn host_and_port(url: &str, port: u16) -> String {
    let authority = url
        .strip_prefix("http://")
        .unwrap_or(url)
        .trim_end_matches('/');
    match authority.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => authority.to_owned(),
        _ => format!("{authority}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxys_file_is_valid_with_and_without_a_rest_service() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7420));
        let mut options = StackOptions::on_free_ports(Path::new("a \"quoted\" folder"));
        let config = ProxyConfig::parse(&proxy_config(&options, address, address)).unwrap();
        assert_eq!(config.listeners.len(), 1);
        options.http = Some("http://localhost:8080/".to_owned());
        let config = ProxyConfig::parse(&proxy_config(&options, address, address)).unwrap();
        assert_eq!(config.listeners.len(), 2);
        assert_eq!(config.listeners[1].upstream.port, 8080);
        options.etcd = Some("localhost".to_owned());
        let config = ProxyConfig::parse(&proxy_config(&options, address, address)).unwrap();
        let ports = config.listeners.iter().map(|it| it.upstream.port);
        assert_eq!(ports.collect::<Vec<_>>(), [7420, 2379, 8080]);
        options.redis = Some("localhost:6379".to_owned());
        let config = ProxyConfig::parse(&proxy_config(&options, address, address)).unwrap();
        assert_eq!(config.redis[0].upstream.port, 6379);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn the_proxys_file_is_valid_with_a_postgres_server() {
        let folder = tempfile::tempdir().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 7420));
        let mut options = StackOptions::on_free_ports(folder.path());
        options.postgres = Some(PostgresOptions {
            upstream: "localhost:5432".to_owned(),
            role: "a \"quoted\" role".to_owned(),
            password: Some("secret".to_owned()),
            listen: address,
        });
        let text = proxy_config(&options, address, address);
        let text = text + &postgres_listener(&options).unwrap();
        let config = ProxyConfig::parse(&text).unwrap();
        let control = config.postgres[0].control.as_ref().unwrap();
        assert_eq!(control.user, "a \"quoted\" role");
        assert_eq!(control.password.as_deref(), Some("secret"));
        assert!(!text.contains("secret"));
    }

    #[test]
    fn a_service_without_a_port_is_on_port_80() {
        assert_eq!(host_and_port("http://backend", 80), "backend:80");
        assert_eq!(host_and_port("http://[::1]", 80), "[::1]:80");
        assert_eq!(host_and_port("http://[::1]:81/", 80), "[::1]:81");
    }
}
