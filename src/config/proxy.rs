//! The proxy's file.

mod etcd;
mod every_listener;
mod listener;
#[cfg(feature = "postgres")]
mod postgres;
mod redis;
mod whole;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::reader::{Found, Report, Table, parse};
use super::values::{check_instance, check_path, check_url};
use super::{ConfigError, ConfigErrors, load};
use crate::ticket::{KeyRing, VerifyingKey};

pub use listener::{BackendUser, Limits, ListenerConfig, Mode, TruncatedBody, Trust, Upstream};
#[cfg(feature = "postgres")]
pub use postgres::{
    ClientTls, ControlRole, PostgresLimits, PostgresListenerConfig, Replication, UpstreamPath,
    UpstreamTls, UpstreamTlsMode,
};
pub use redis::{FenceKeysConfig, RedisLimits, RedisListenerConfig, RedisUser};

/// A proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Its name, by which lockd and seals know it.
    pub instance: String,
    /// Where watermarks, spooled bodies and the audit are kept.
    pub data_dir: PathBuf,
    /// What verifies tickets.
    pub tickets: TicketSource,
    /// Where watermarks are durable.
    pub watermarks: WatermarkStore,
    /// The admin port.
    pub admin: AdminConfig,
    /// The bounds of the audit.
    pub audit: AuditConfig,
    /// Those of HTTP and S3. There is at least one listener in all.
    pub listeners: Vec<ListenerConfig>,
    /// Those of Redis.
    pub redis: Vec<RedisListenerConfig>,
    /// Those of Postgres.
    #[cfg(feature = "postgres")]
    pub postgres: Vec<PostgresListenerConfig>,
}

/// What verifies tickets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TicketSource {
    /// lockd at this URL: public keys, registration, floors.
    Lockd(String),
    /// The keys of this file; the proxy stands alone. See [`read_key_file`].
    Keys(PathBuf),
    /// Nothing: every listener takes unsigned tokens. The proxy stands alone.
    Unsigned,
}

/// Where watermarks are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WatermarkStore {
    /// In `data_dir`.
    #[default]
    Embedded,
    /// There, and in each backend itself, for all the proxies before it.
    Backend,
}

/// The admin port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdminConfig {
    /// HTTP and gRPC.
    pub listen: SocketAddr,
}

/// The bounds of the audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditConfig {
    /// Most records that wait to be written.
    pub queue_records_max: usize,
    /// Largest file, in bytes, before the next is begun.
    pub file_bytes_max: u64,
    /// Most files that are kept.
    pub files_max: usize,
}

impl Default for AuditConfig {
    fn default() -> AuditConfig {
        AuditConfig {
            queue_records_max: 4096,
            file_bytes_max: 64 << 20,
            files_max: 16,
        }
    }
}

/// The proxy's admin port where the file names none.
pub const PROXY_ADMIN_DEFAULT: &str = "127.0.0.1:7431";

impl ProxyConfig {
    /// Files that are read later: certificates, keys, passwords.
    pub fn files(&self) -> Vec<&Path> {
        let users = self
            .listeners
            .iter()
            .filter_map(|it| it.backend_user.as_ref());
        #[cfg_attr(
            not(feature = "postgres"),
            expect(unused_mut, reason = "none is added")
        )]
        let mut files: Vec<&Path> = users.map(|it| &*it.password_file).collect();
        #[cfg(feature = "postgres")]
        for listener in &self.postgres {
            let own = listener.tls.iter().flat_map(|it| [&it.cert, &it.key]);
            files.extend(own.map(|path| &**path));
            files.extend(listener.upstream_tls.ca.as_deref());
        }
        files
    }

    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<ProxyConfig, ConfigErrors> {
        load(path, ProxyConfig::parse)
    }

    /// Checks a text.
    pub fn parse(text: &str) -> Result<ProxyConfig, ConfigErrors> {
        parse(text, read_proxy)
    }
}

fn read_proxy(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<ProxyConfig> {
    let instance = root.parsed(report, "instance", "a name", check_instance);
    let instance = root.require(report, "instance", instance);
    let data_dir = root.parsed(report, "data_dir", "a folder", check_path);
    let data_dir = root.require(report, "data_dir", data_dir);
    let tickets = read_tickets(report, root);
    let watermarks = read_watermarks(report, root);
    let admin = read_admin(report, root);
    let audit = read_audit(report, root);
    let store = watermarks.unwrap_or_default();
    let listeners = read_listeners(report, root, store);
    listener::check_unique(report, &listeners.places, admin.as_ref());
    let signed = listeners.trusts().any(|trust| trust == Trust::Signed);
    if tickets == Some(TicketSource::Unsigned) && signed {
        report.error(
            root.at(),
            "[tickets] gives neither `lockd` nor `keys`, and a listener has trust = \"signed\"",
        );
    }
    let config = ProxyConfig {
        instance: instance?.value,
        data_dir: data_dir?.value,
        tickets: tickets?,
        watermarks: watermarks?,
        admin: AdminConfig {
            listen: admin?.value,
        },
        audit: audit?,
        listeners: listeners.http,
        redis: listeners.redis,
        #[cfg(feature = "postgres")]
        postgres: listeners.postgres,
    };
    if let Err(why) = config.check_patterns() {
        report.error(root.at(), why);
    }
    Some(config)
}

/// The listeners, each where its kind is, with the places of all.
#[derive(Default)]
struct Listeners {
    http: Vec<ListenerConfig>,
    redis: Vec<RedisListenerConfig>,
    #[cfg(feature = "postgres")]
    postgres: Vec<PostgresListenerConfig>,
    places: Vec<Found<(String, SocketAddr)>>,
}

impl Listeners {
    fn trusts(&self) -> impl Iterator<Item = Trust> {
        let trusts = self.http.iter().map(|it| it.trust);
        let trusts = trusts.chain(self.redis.iter().map(|it| it.trust));
        #[cfg(feature = "postgres")]
        let trusts = trusts.chain(self.postgres.iter().map(|it| it.trust));
        trusts
    }
}

fn read_listeners(
    report: &mut Report<'_>,
    root: &mut Table<'_, '_>,
    store: WatermarkStore,
) -> Listeners {
    let tables = root.tables(report, "listener");
    if tables.is_empty() {
        report.error(root.at(), "no [[listener]] is given");
    }
    let mut all = Listeners::default();
    for table in tables {
        match table.word("protocol") {
            Some("redis") => {
                if let Some(found) = redis::read_redis_listener(report, table, store) {
                    let Found { value, at } = found;
                    all.places.push(place(&value.name, value.listen, at));
                    all.redis.push(value);
                }
            }
            #[cfg(feature = "postgres")]
            Some("postgres") => {
                if let Some(found) = postgres::read_postgres_listener(report, table, store) {
                    let Found { value, at } = found;
                    all.places.push(place(&value.name, value.listen, at));
                    all.postgres.push(value);
                }
            }
            _ => {
                let Some(Found { value, at }) = listener::read_listener(report, table) else {
                    continue;
                };
                all.places.push(place(&value.name, value.listen, at));
                if store == WatermarkStore::Backend {
                    let message = format!(
                        "listener {:?} has no store in its backend: only redis and postgres have",
                        value.name
                    );
                    report.error(at, message);
                }
                all.http.push(value);
            }
        }
    }
    all
}

fn place(name: &str, listen: SocketAddr, at: usize) -> Found<(String, SocketAddr)> {
    let value = (name.to_owned(), listen);
    Found { value, at }
}

fn read_tickets(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<TicketSource> {
    let Some(mut table) = root.table(report, "tickets") else {
        return Some(TicketSource::Unsigned);
    };
    let lockd = table.parsed(report, "lockd", "a URL", check_url);
    let keys = table.parsed(report, "keys", "a file of public keys", check_path);
    let source = match (lockd, keys) {
        (Some(_), Some(keys)) => {
            report.error(
                keys.at,
                "`tickets.lockd` and `tickets.keys` exclude each other",
            );
            None
        }
        (Some(lockd), None) => Some(TicketSource::Lockd(lockd.value)),
        (None, Some(keys)) => Some(TicketSource::Keys(keys.value)),
        // One that is wrong has its error already.
        (None, None) if table.has("lockd") || table.has("keys") => None,
        (None, None) => Some(TicketSource::Unsigned),
    };
    table.finish(report);
    source
}

fn read_watermarks(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<WatermarkStore> {
    let Some(mut table) = root.table(report, "watermarks") else {
        return Some(WatermarkStore::Embedded);
    };
    let planned = |store: &str| match store {
        "embedded" => Ok(WatermarkStore::Embedded),
        "backend" => Ok(WatermarkStore::Backend),
        "etcd" => Err("not supported by this version yet: \"embedded\" and \"backend\" are"),
        _ => Err("expected \"embedded\" or \"backend\""),
    };
    let store = table.parsed(report, "store", "\"embedded\" or \"backend\"", planned);
    let store = if table.has("store") {
        store.map(|found| found.value)
    } else {
        Some(WatermarkStore::Embedded)
    };
    table.finish(report);
    store
}

fn read_admin(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<Found<SocketAddr>> {
    let Ok(default) = PROXY_ADMIN_DEFAULT.parse() else {
        return None;
    };
    let default = Found {
        value: default,
        at: root.at(),
    };
    let Some(mut table) = root.table(report, "admin") else {
        return Some(default);
    };
    let listen = table.address(report, "listen");
    let listen = if table.has("listen") {
        listen
    } else {
        Some(default)
    };
    table.finish(report);
    listen
}

fn read_audit(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<AuditConfig> {
    let default = AuditConfig::default();
    let Some(mut table) = root.table(report, "audit") else {
        return Some(default);
    };
    let queue = table.integer(report, "queue_records_max", 16..=1_000_000);
    let bytes = table.integer(report, "file_bytes_max", 64 << 10..=1 << 40);
    let files = table.integer(report, "files_max", 1..=100_000);
    table.finish(report);
    let small = |found: Option<Found<u64>>, default: usize| {
        found.map_or(Some(default), |found| usize::try_from(found.value).ok())
    };
    Some(AuditConfig {
        queue_records_max: small(queue, default.queue_records_max)?,
        file_bytes_max: bytes.map_or(default.file_bytes_max, |found| found.value),
        files_max: small(files, default.files_max)?,
    })
}

/// Reads a file of PASERK `k4.public.` keys, one a line; blank lines and lines with `#` are left
/// out. A file without a key is an error: nothing would verify.
pub fn read_key_file(path: &Path) -> Result<KeyRing, ConfigErrors> {
    load(path, parse_keys)
}

fn parse_keys(text: &str) -> Result<KeyRing, ConfigErrors> {
    let (mut keys, mut errors) = (vec![], vec![]);
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        match VerifyingKey::parse(line) {
            Ok(key) => keys.push(key),
            // The line itself is not shown: it may be a secret key put here by mistake.
            Err(error) => {
                errors.push(ConfigError {
                    line: Some(at + 1),
                    message: error.to_string(),
                });
            }
        }
    }
    if keys.is_empty() && errors.is_empty() {
        errors.push(ConfigError {
            line: None,
            message: "holds no key".to_owned(),
        });
    }
    if errors.is_empty() {
        Ok(KeyRing::new(keys))
    } else {
        Err(ConfigErrors { file: None, errors })
    }
}
