//! The lock service's file. Every key has a default, so that `ringfence lockd` runs without one.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reader::{Found, Report, Table, parse};
use super::values::{check_path, check_url};
use super::{ConfigErrors, load};
use crate::lock_name::LockPattern;

/// A lock service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LockdConfig {
    /// gRPC.
    pub listen: SocketAddr,
    /// Health, metrics, page.
    pub admin: SocketAddr,
    /// Where the embedded store, the keys and the audit are kept.
    pub data_dir: PathBuf,
    /// Where locks are kept.
    pub store: StoreConfig,
    /// Which grants are sealed through the proxies before they are told. The first pattern that
    /// matches decides.
    pub seals: Vec<SealConfig>,
    /// Where the signing keys are; `None`: `keys` in `data_dir`.
    pub keys_dir: Option<PathBuf>,
    /// Shortest time to live of a session.
    pub session_ttl_min: Duration,
    /// Longest time to live of a session.
    pub session_ttl_max: Duration,
    /// How long a grant waits for its seal.
    pub seal_timeout: Duration,
    /// Most connections at the gRPC port.
    pub connections_max: usize,
    /// Most sessions that live.
    pub sessions_max: usize,
}

/// Where locks are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreConfig {
    /// In `data_dir`.
    Embedded,
    /// In etcd.
    Etcd(EtcdConfig),
}

/// An etcd cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdConfig {
    /// `http://host:port`, at least one.
    pub endpoints: Vec<String>,
    /// What stands before a lock's name in its keys.
    pub prefix: String,
}

/// How grants of these locks are sealed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SealConfig {
    /// The locks.
    pub pattern: LockPattern,
    /// What a seal that fails means.
    pub mode: SealMode,
}

/// What a seal that fails means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SealMode {
    /// No grant.
    Required,
    /// A grant all the same; its ticket says which proxies were reached.
    BestEffort,
}

impl Default for LockdConfig {
    fn default() -> LockdConfig {
        LockdConfig {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7420)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 7421)),
            data_dir: PathBuf::from("ringfence-data/lockd"),
            store: StoreConfig::Embedded,
            seals: vec![],
            keys_dir: None,
            session_ttl_min: Duration::from_secs(1),
            session_ttl_max: Duration::from_secs(3600),
            seal_timeout: Duration::from_secs(5),
            connections_max: 10_000,
            sessions_max: 100_000,
        }
    }
}

/// Most `[[seal]]` tables.
const SEALS_MAX: usize = 1024;
const TTLS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

impl LockdConfig {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<LockdConfig, ConfigErrors> {
        load(path, LockdConfig::parse)
    }

    /// Checks a text.
    pub fn parse(text: &str) -> Result<LockdConfig, ConfigErrors> {
        parse(text, read_lockd)
    }

    /// The folder of the signing keys.
    pub fn keys_dir(&self) -> PathBuf {
        self.keys_dir
            .clone()
            .unwrap_or_else(|| self.data_dir.join("keys"))
    }

    /// The file of the proxies that were seen registered.
    pub fn proxies_seen(&self) -> PathBuf {
        self.data_dir.join("proxies.seen")
    }
}

fn read_lockd(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<LockdConfig> {
    let mut config = LockdConfig::default();
    if let Some(found) = root.address(report, "listen") {
        config.listen = found.value;
    }
    if let Some(found) = root.address(report, "admin") {
        config.admin = found.value;
    }
    if config.listen == config.admin && config.listen.port() != 0 {
        let message = format!("`listen` and `admin` are both {}", config.listen);
        report.error(root.at(), message);
    }
    if let Some(found) = root.parsed(report, "data_dir", "a folder", check_path) {
        config.data_dir = found.value;
    }
    config.keys_dir = root
        .parsed(report, "keys_dir", "a folder", check_path)
        .map(|found| found.value);
    let ttl_min = root.duration(report, "session_ttl_min", TTLS);
    let ttl_max = root.duration(report, "session_ttl_max", TTLS);
    if let Some(found) = &ttl_min {
        config.session_ttl_min = found.value;
    }
    if let Some(found) = &ttl_max {
        config.session_ttl_max = found.value;
    }
    // Either alone may be on the wrong side of the other one's default.
    if let Some(found) = ttl_max.or(ttl_min)
        && config.session_ttl_max < config.session_ttl_min
    {
        let (min, max) = (config.session_ttl_min, config.session_ttl_max);
        let message = format!("`session_ttl_max` ({max:?}) is below `session_ttl_min` ({min:?})");
        report.error(found.at, message);
    }
    let timeouts = Duration::from_millis(10)..=Duration::from_secs(600);
    if let Some(found) = root.duration(report, "seal_timeout", timeouts) {
        config.seal_timeout = found.value;
    }
    // Every range ends far below what a usize holds.
    let size = |found: Found<u64>| usize::try_from(found.value).unwrap_or(usize::MAX);
    if let Some(found) = root.integer(report, "connections_max", 1..=1_000_000) {
        config.connections_max = size(found);
    }
    if let Some(found) = root.integer(report, "sessions_max", 1..=10_000_000) {
        config.sessions_max = size(found);
    }
    config.seals = read_seals(report, root);
    config.store = read_store(report, root)?;
    Some(config)
}

fn read_store(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Option<StoreConfig> {
    let choices = [("embedded", false), ("etcd", true)];
    let wants_etcd = root
        .choice(report, "store", &choices)
        .map(|found| found.value);
    let etcd = root.table(report, "etcd");
    let etcd_at = etcd.as_ref().map(Table::at);
    let config = etcd.and_then(|table| read_etcd(report, table));
    match (wants_etcd, etcd_at) {
        (Some(true), Some(_)) => config.map(StoreConfig::Etcd),
        (Some(true), None) => {
            report.error(
                root.at(),
                "store = \"etcd\" needs the table [etcd] with its endpoints",
            );
            None
        }
        // A store that is wrong has its error already.
        (None, Some(_)) if root.has("store") => None,
        (_, Some(at)) => {
            report.error(at, "[etcd] is given, and store is not \"etcd\"");
            None
        }
        (_, None) => Some(StoreConfig::Embedded),
    }
}

fn read_etcd(report: &mut Report<'_>, mut table: Table<'_, '_>) -> Option<EtcdConfig> {
    let found = table.texts(report, "endpoints");
    let found = table.require(report, "endpoints", found);
    let prefix = table.text(report, "prefix", "a text");
    let mut endpoints = vec![];
    for endpoint in found.iter().flatten() {
        match check_url(&endpoint.value) {
            Ok(url) => endpoints.push(url),
            Err(error) => {
                let message = format!("`etcd.endpoints` has {:?}: {error}", endpoint.value);
                report.error(endpoint.at, message);
            }
        }
    }
    if found.as_ref().is_some_and(Vec::is_empty) {
        report.error(table.at(), "`etcd.endpoints` is empty");
    }
    table.finish(report);
    let prefix = prefix.map_or_else(|| "/ringfence/".to_owned(), |found| found.value);
    (!endpoints.is_empty()).then_some(EtcdConfig { endpoints, prefix })
}

fn read_seals(report: &mut Report<'_>, root: &mut Table<'_, '_>) -> Vec<SealConfig> {
    let tables = root.tables(report, "seal");
    if tables.len() > SEALS_MAX {
        report.error(
            root.at(),
            format!("more than {SEALS_MAX} [[seal]] are given"),
        );
        return vec![];
    }
    let modes = [
        ("required", SealMode::Required),
        ("best-effort", SealMode::BestEffort),
    ];
    let mut seals = vec![];
    for mut table in tables {
        let pattern = table.parsed(report, "pattern", "a lock pattern", LockPattern::new);
        let pattern = table.require(report, "pattern", pattern);
        let mode = table.choice(report, "mode", &modes);
        let mode = table.require(report, "mode", mode);
        table.finish(report);
        if let (Some(pattern), Some(mode)) = (pattern, mode) {
            seals.push(SealConfig {
                pattern: pattern.value,
                mode: mode.value,
            });
        }
    }
    seals
}
