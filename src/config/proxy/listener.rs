//! `[[listener]]` and its rules.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::etcd::{read_backend_user, read_etcd};
use super::every_listener::read_common;
use crate::config::reader::{Found, Report, Table};
use crate::config::values::is_host;
use crate::protocol::etcd::{EtcdRule, EtcdRules};
use crate::protocol::http::{HttpRule, HttpRules};
use crate::protocol::pattern::InvalidPattern;
use crate::protocol::s3::{S3Rule, S3Rules};
use crate::protocol::{Listener, Unmatched};

/// One port that is guarded.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    /// Unique among the listeners.
    pub name: String,
    /// The protocol with its compiled rules.
    pub rules: Listener,
    /// Where clients connect. Port 0: any free one.
    pub listen: SocketAddr,
    /// The backend.
    pub upstream: Upstream,
    /// Which tickets are taken.
    pub trust: Trust,
    /// Whether refusals are carried out.
    pub mode: Mode,
    /// How long a lock stays closed to newer tokens after a write on it was lost: the backend's
    /// longest request time.
    pub in_doubt_hold: Duration,
    /// What the backend does with a body that ends early.
    pub truncated_body: TruncatedBody,
    /// How long a request waits for the gate before it is told busy.
    pub admit_deadline: Duration,
    /// Who the proxy itself is at the backend, where it has users.
    pub backend_user: Option<BackendUser>,
    /// Bounds.
    pub limits: Limits,
}

/// A user of the backend's that the proxy is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendUser {
    /// Its name.
    pub name: String,
    /// The file that holds its password, and perhaps a line feed.
    pub password_file: PathBuf,
}

/// A backend's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// A name or an IP address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Upstream {
    /// The backend's address, as its sessions are recorded under it.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Which tickets a listener takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Trust {
    /// Signed tickets only.
    #[default]
    Signed,
    /// Bare integers that another lock service issued.
    Unsigned,
}

/// Whether refusals are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// They are.
    #[default]
    Enforce,
    /// All is forwarded; what would be refused is audited.
    Observe,
}

/// What a backend does with a body that ends early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TruncatedBody {
    /// Not known to discard it: a fenced body is held whole before its first byte is forwarded.
    #[default]
    Held,
    /// Known to discard it: a fenced body streams with its tail withheld.
    Discarded,
}

/// The bounds of one listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Longest request head, in bytes.
    pub head_bytes_max: usize,
    /// Longest body, in bytes.
    pub body_bytes_max: u64,
    /// What a held body takes of memory, in bytes, before it goes to disk.
    pub body_memory_bytes_max: usize,
    /// Most connections of clients.
    pub connections_max: usize,
    /// How long a connection to the backend may take to open.
    pub upstream_connect_timeout: Duration,
    /// How long the backend may take from the end of a request to the head of its response.
    pub upstream_response_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            head_bytes_max: 64 << 10,
            body_bytes_max: 5 << 30,
            body_memory_bytes_max: 256 << 10,
            connections_max: 4096,
            upstream_connect_timeout: Duration::from_secs(5),
            upstream_response_timeout: Duration::from_secs(60),
        }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
/// Without a hold a write whose answer was lost could be applied after a newer one.
const HOLD_MIN: Duration = Duration::from_millis(1);
const IN_DOUBT_HOLD_DEFAULT: Duration = Duration::from_secs(30);
pub(super) const TIMEOUTS: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=HOUR;

pub(super) const PROTOCOLS: &str = "\"http\", \"s3\", \"redis\", \"postgres\" or \"etcd\"";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    S3,
    Etcd,
    Redis,
    #[cfg(feature = "postgres")]
    Postgres,
}

/// Reads one listener. `None` when something in it is wrong, which is in the report then.
pub(super) fn read_listener(
    report: &mut Report<'_>,
    mut table: Table<'_, '_>,
) -> Option<Found<ListenerConfig>> {
    let t = &mut table;
    let common = read_common(report, t);
    let protocol = common.protocol.as_ref();
    let hold = t.duration(report, "in_doubt_hold", HOLD_MIN..=24 * HOUR);
    let truncated = [
        ("held", TruncatedBody::Held),
        ("discarded", TruncatedBody::Discarded),
    ];
    let truncated = t.choice(report, "truncated_body", &truncated);
    let virtual_hosts = read_virtual_hosts(report, t, protocol);
    let etcd = read_etcd(report, t, protocol);
    let is_etcd = etcd.is_some();
    let backend_user = if is_etcd {
        read_backend_user(report, t)
    } else {
        None
    };
    let limits = read_limits(report, t);
    let rules = read_rules(
        report,
        t,
        protocol.map(|found| found.value),
        &virtual_hosts,
        etcd,
        common.unmatched,
    );
    let at = t.at();
    table.finish(report);
    let value = ListenerConfig {
        name: common.name?,
        rules: rules?,
        listen: common.listen?,
        upstream: common.upstream?,
        trust: common.trust,
        mode: common.mode,
        in_doubt_hold: match is_etcd {
            // The check rides inside of etcd's own transaction: nothing is ever in doubt.
            true => Duration::ZERO,
            false => hold.map_or(IN_DOUBT_HOLD_DEFAULT, |found| found.value),
        },
        truncated_body: value_or_default(truncated),
        admit_deadline: common.admit_deadline,
        backend_user,
        limits,
    };
    Some(Found { value, at })
}

/// What is wrong is in the report, and then no configuration comes of it: a default does no harm.
pub(super) fn value_or_default<T: Default>(found: Option<Found<T>>) -> T {
    found.map(|found| found.value).unwrap_or_default()
}

pub(super) fn check_protocol(text: &str) -> Result<Protocol, &'static str> {
    match text {
        "http" => Ok(Protocol::Http),
        "s3" => Ok(Protocol::S3),
        "etcd" => Ok(Protocol::Etcd),
        "redis" => Ok(Protocol::Redis),
        #[cfg(feature = "postgres")]
        "postgres" => Ok(Protocol::Postgres),
        #[cfg(not(feature = "postgres"))]
        "postgres" => Err("this program was built without it: its cargo feature is off"),
        _ => Err("expected \"http\", \"s3\", \"redis\", \"postgres\" or \"etcd\""),
    }
}

fn read_virtual_hosts(
    report: &mut Report<'_>,
    table: &mut Table<'_, '_>,
    protocol: Option<&Found<Protocol>>,
) -> Vec<String> {
    let hosts = table.texts(report, "virtual_hosts").unwrap_or_default();
    let path = table.path("virtual_hosts");
    for host in &hosts {
        if !is_host(&host.value) {
            let message = format!(
                "`{path}` has {:?}: expected a host's name, no port",
                host.value
            );
            report.error(host.at, message);
        }
        if protocol.is_some_and(|found| found.value != Protocol::S3) {
            report.error(host.at, format!("`{path}` belongs to protocol = \"s3\""));
        }
    }
    hosts
        .into_iter()
        .map(|host| host.value.to_ascii_lowercase())
        .collect()
}

fn read_limits(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> Limits {
    let mut limits = Limits::default();
    let Some(mut t) = listener.table(report, "limits") else {
        return limits;
    };
    let mut size = |report: &mut Report<'_>, key, range, slot: &mut usize| {
        if let Some(found) = t.integer(report, key, range) {
            // Every range ends far below what a usize holds.
            *slot = usize::try_from(found.value).unwrap_or(usize::MAX);
        }
    };
    size(
        report,
        "head_bytes_max",
        8 << 10..=1 << 20,
        &mut limits.head_bytes_max,
    );
    size(
        report,
        "body_memory_bytes_max",
        1 << 10..=1 << 30,
        &mut limits.body_memory_bytes_max,
    );
    size(
        report,
        "connections_max",
        1..=1_000_000,
        &mut limits.connections_max,
    );
    if let Some(found) = t.integer(report, "body_bytes_max", 0..=1 << 46) {
        limits.body_bytes_max = found.value;
    }
    if let Some(found) = t.duration(report, "upstream_connect_timeout", TIMEOUTS) {
        limits.upstream_connect_timeout = found.value;
    }
    if let Some(found) = t.duration(report, "upstream_response_timeout", TIMEOUTS) {
        limits.upstream_response_timeout = found.value;
    }
    t.finish(report);
    limits
}

fn read_rules(
    report: &mut Report<'_>,
    listener: &mut Table<'_, '_>,
    protocol: Option<Protocol>,
    virtual_hosts: &[String],
    etcd: Option<EtcdRules>,
    unmatched: Unmatched,
) -> Option<Listener> {
    let (mut http, mut s3, mut keys) = (vec![], vec![], vec![]);
    for mut table in listener.tables(report, "rule") {
        match protocol {
            Some(Protocol::Http) => http.extend(read_http_rule(report, &mut table)),
            Some(Protocol::S3) => s3.extend(read_s3_rule(report, &mut table)),
            Some(Protocol::Etcd) => keys.extend(read_etcd_rule(report, &mut table)),
            // Which keys a rule may have is not known: the protocol's error is enough. Others have
            // readers of their own.
            Some(_) | None => continue,
        }
        table.finish(report);
    }
    let hosts: Vec<&str> = virtual_hosts.iter().map(String::as_str).collect();
    Some(match protocol? {
        Protocol::Redis => return None,
        #[cfg(feature = "postgres")]
        Protocol::Postgres => return None,
        Protocol::Http => Listener::Http(HttpRules::new(http, unmatched)),
        Protocol::S3 => Listener::S3(S3Rules::new(s3, &hosts, unmatched)),
        Protocol::Etcd => Listener::Etcd(etcd?.with_rules(keys, unmatched)),
    })
}

fn read_http_rule(report: &mut Report<'_>, table: &mut Table<'_, '_>) -> Option<HttpRule> {
    let (lock, path) = (
        read_lock(report, table),
        table.text(report, "path", "a path pattern"),
    );
    let path = table.require(report, "path", path);
    let (writes, reads) = (
        table.texts(report, "write_methods"),
        table.texts(report, "read_methods"),
    );
    let both = |read: &&Found<String>| {
        let mut writes = writes.iter().flatten();
        writes.any(|write| write.value == read.value)
    };
    if let Some(both) = reads.iter().flatten().find(both) {
        let method = &both.value;
        let message = format!("{method:?} is in `read_methods` and in `write_methods`");
        report.error(both.at, message);
    }
    let (lock, path) = (lock?, path?);
    let rule = HttpRule::new(&path.value, &lock.value);
    let mut rule = taken(report, rule, &[("lock", lock.at), ("path", path.at)])?;
    for (methods, set) in [
        (
            writes,
            HttpRule::with_write_methods as fn(HttpRule, &[&str]) -> _,
        ),
        (reads, HttpRule::with_read_methods),
    ] {
        let methods = methods.unwrap_or_default();
        let words: Vec<&str> = methods.iter().map(|method| method.value.as_str()).collect();
        let at = methods.first().map_or(table.at(), |method| method.at);
        rule = taken(report, set(rule, &words), &[("method", at)])?;
    }
    Some(rule)
}

fn read_s3_rule(report: &mut Report<'_>, table: &mut Table<'_, '_>) -> Option<S3Rule> {
    let lock = read_lock(report, table);
    let bucket = table.text(report, "bucket", "a bucket pattern");
    let bucket = table.require(report, "bucket", bucket);
    let key = table.text(report, "key", "a key pattern");
    if key.is_none() && table.has("key") {
        return None;
    }
    let (lock, bucket) = (lock?, bucket?);
    let key_at = key.as_ref().map_or(bucket.at, |key| key.at);
    let rule = S3Rule::new(
        &bucket.value,
        key.as_ref().map(|key| &*key.value),
        &lock.value,
    );
    taken(
        report,
        rule,
        &[("lock", lock.at), ("bucket", bucket.at), ("key", key_at)],
    )
}

fn read_etcd_rule(report: &mut Report<'_>, table: &mut Table<'_, '_>) -> Option<EtcdRule> {
    let lock = read_lock(report, table);
    let key = table.text(report, "key", "a key pattern");
    let key = table.require(report, "key", key);
    let (lock, key) = (lock?, key?);
    let rule = EtcdRule::new(&key.value, &lock.value);
    taken(report, rule, &[("lock", lock.at), ("key", key.at)])
}

pub(super) fn read_lock(
    report: &mut Report<'_>,
    table: &mut Table<'_, '_>,
) -> Option<Found<String>> {
    let lock = table.text(report, "lock", "a lock's name");
    table.require(report, "lock", lock)
}

/// The rule, or its error at the place of the part that is wrong.
pub(super) fn taken<T>(
    report: &mut Report<'_>,
    rule: Result<T, InvalidPattern>,
    places: &[(&str, usize)],
) -> Option<T> {
    match rule {
        Ok(rule) => Some(rule),
        Err(error) => {
            let place = places.iter().find(|(what, _)| *what == error.what);
            report.error(place.map_or(0, |(_, at)| *at), error.to_string());
            None
        }
    }
}

/// Names and addresses must be one listener's own.
pub(super) fn check_unique(
    report: &mut Report<'_>,
    listeners: &[Found<(String, SocketAddr)>],
    admin: Option<&Found<SocketAddr>>,
) {
    for (nth, listener) in listeners.iter().enumerate() {
        let (name, listen) = (&listener.value.0, listener.value.1);
        let earlier = &listeners[..nth];
        if let Some(first) = earlier.iter().find(|other| other.value.0 == *name) {
            let line = report.line(first.at);
            report.error(
                listener.at,
                format!("listener {name:?} is given twice: see line {line}"),
            );
        }
        let same = |other: &&Found<(String, SocketAddr)>| overlap(other.value.1, listen);
        if let Some(first) = earlier.iter().find(same) {
            let message = format!(
                "listener {name:?} listens on {listen}, which {:?} has already",
                first.value.0
            );
            report.error(listener.at, message);
        }
        if let Some(admin) = admin.filter(|admin| overlap(admin.value, listen)) {
            let message = format!(
                "listener {name:?} listens on {listen}, which is the admin port's ({})",
                admin.value
            );
            report.error(listener.at, message);
        }
    }
}

/// Whether both would take the same connections: SO_REUSEPORT would let them, silently.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let everywhere = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || everywhere)
}
