//! `[[listener]]` with `protocol = "redis"`.

use std::net::SocketAddr;
use std::time::Duration;

use super::WatermarkStore;
use super::every_listener::{read_common, read_password};
use super::listener::{Mode, TIMEOUTS, Trust, Upstream, read_lock, taken};
use crate::config::reader::{Found, Report, Table};
use crate::protocol::Unmatched;
use crate::protocol::redis::{RedisRule, RedisRules, Scripts};

/// One port before a Redis server.
#[derive(Clone, Debug)]
pub struct RedisListenerConfig {
    /// Unique among the listeners.
    pub name: String,
    /// The compiled rules.
    pub rules: RedisRules,
    /// Where clients connect. Port 0: any free one.
    pub listen: SocketAddr,
    /// The server.
    pub upstream: Upstream,
    /// As whom the proxy itself connects.
    pub control: RedisUser,
    /// Which tickets are taken.
    pub trust: Trust,
    /// Whether refusals are carried out.
    pub mode: Mode,
    /// How long a command waits for the gate before it is told busy.
    pub admit_deadline: Duration,
    /// How long replies to an older token's commands are awaited before its connection is killed.
    pub revoke_patience: Duration,
    /// Clients that hold the same tickets share a connection for short writes.
    pub shares_connections: bool,
    /// Where the fence keys are, with `watermarks.store = "backend"`.
    pub fence_keys: Option<FenceKeysConfig>,
    /// Bounds.
    pub limits: RedisLimits,
}

/// The proxies' keys in the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FenceKeysConfig {
    /// The database that they are in.
    pub database: u32,
    /// What becomes of scripts, which can reach keys that they do not name.
    pub scripts: Scripts,
}

/// A user of the server. Neither: its default user.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RedisUser {
    /// Its name.
    pub name: Option<String>,
    /// Its password.
    pub password: Option<String>,
}

impl std::fmt::Debug for RedisUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The password is left out.
        f.debug_tuple("RedisUser").field(&self.name).finish()
    }
}

/// The bounds of a Redis listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RedisLimits {
    /// Most connections of clients.
    pub connections_max: usize,
    /// Longest bulk string of a request, in bytes.
    pub bulk_bytes_max: u64,
    /// How long a connection to the server may take to open and to tell its id.
    pub upstream_connect_timeout: Duration,
}

impl Default for RedisLimits {
    fn default() -> RedisLimits {
        RedisLimits {
            connections_max: 10_000,
            bulk_bytes_max: 512 << 20,
            upstream_connect_timeout: Duration::from_secs(5),
        }
    }
}

/// Few clients go there.
const FENCE_DATABASE_DEFAULT: u32 = 15;
const REVOKE_PATIENCE_DEFAULT: Duration = Duration::from_millis(50);

/// Reads one listener. `None` when something in it is wrong, which is in the report then.
pub(super) fn read_redis_listener(
    report: &mut Report<'_>,
    mut table: Table<'_, '_>,
    store: WatermarkStore,
) -> Option<Found<RedisListenerConfig>> {
    let t = &mut table;
    let common = read_common(report, t);
    let patience = t.duration(report, "revoke_patience", Duration::ZERO..=*TIMEOUTS.end());
    let connections = [("shared", true), ("own", false)];
    let connections = t.choice(report, "backend_connections", &connections);
    let control = read_control(report, t);
    let fence_keys = read_fence_keys(report, t, store);
    let limits = read_limits(report, t);
    let rules = read_rules(report, t, common.unmatched);
    let at = t.at();
    table.finish(report);
    let value = RedisListenerConfig {
        name: common.name?,
        rules: rules?,
        listen: common.listen?,
        upstream: common.upstream?,
        control: control?,
        trust: common.trust,
        mode: common.mode,
        admit_deadline: common.admit_deadline,
        revoke_patience: patience.map_or(REVOKE_PATIENCE_DEFAULT, |it| it.value),
        shares_connections: connections.is_none_or(|it| it.value),
        fence_keys,
        limits,
    };
    Some(Found { value, at })
}

/// `[listener.control]`: who the proxy is for the server.
fn read_control(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> Option<RedisUser> {
    let Some(mut t) = listener.table(report, "control") else {
        return Some(RedisUser::default());
    };
    let name = t.text(report, "user", "a user's name");
    let password = read_password(report, &mut t);
    t.finish(report);
    let password = password?;
    if let (Some(name), None) = (&name, &password) {
        report.error(name.at, "a control user needs a `password_file`");
        return None;
    }
    Some(RedisUser {
        name: name.map(|it| it.value),
        password,
    })
}

/// `[listener.fence_keys]`.
fn read_fence_keys(
    report: &mut Report<'_>,
    listener: &mut Table<'_, '_>,
    store: WatermarkStore,
) -> Option<FenceKeysConfig> {
    let mut keys = FenceKeysConfig {
        database: FENCE_DATABASE_DEFAULT,
        scripts: Scripts::Refused,
    };
    if let Some(mut t) = listener.table(report, "fence_keys") {
        if store != WatermarkStore::Backend {
            let message = "[listener.fence_keys] belongs to watermarks.store = \"backend\"";
            report.error(t.at(), message);
        }
        if let Some(found) = t.integer(report, "database", 0..=u64::from(u32::MAX)) {
            keys.database = u32::try_from(found.value).unwrap_or(FENCE_DATABASE_DEFAULT);
        }
        let scripts = [("refused", Scripts::Refused), ("trusted", Scripts::Trusted)];
        if let Some(found) = t.choice(report, "scripts", &scripts) {
            keys.scripts = found.value;
        }
        t.finish(report);
    }
    (store == WatermarkStore::Backend).then_some(keys)
}

fn read_limits(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> RedisLimits {
    let mut limits = RedisLimits::default();
    let Some(mut t) = listener.table(report, "limits") else {
        return limits;
    };
    if let Some(found) = t.integer(report, "connections_max", 1..=1_000_000) {
        limits.connections_max = usize::try_from(found.value).unwrap_or(usize::MAX);
    }
    if let Some(found) = t.integer(report, "bulk_bytes_max", 1 << 10..=1 << 40) {
        limits.bulk_bytes_max = found.value;
    }
    if let Some(found) = t.duration(report, "upstream_connect_timeout", TIMEOUTS) {
        limits.upstream_connect_timeout = found.value;
    }
    t.finish(report);
    limits
}

fn read_rules(
    report: &mut Report<'_>,
    listener: &mut Table<'_, '_>,
    unmatched: Unmatched,
) -> Option<RedisRules> {
    let permitted = listener.texts(report, "permit").unwrap_or_default();
    let mut rules = vec![];
    for mut table in listener.tables(report, "rule") {
        rules.extend(read_rule(report, &mut table));
        table.finish(report);
    }
    let at = permitted.first().map_or(listener.at(), |it| it.at);
    let names: Vec<&str> = permitted.iter().map(|it| &*it.value).collect();
    let rules = RedisRules::new(rules, unmatched).with_permitted(&names);
    taken(report, rules, &[("command", at)])
}

fn read_rule(report: &mut Report<'_>, table: &mut Table<'_, '_>) -> Option<RedisRule> {
    let lock = read_lock(report, table);
    let key = table.text(report, "key", "a key pattern");
    let key = table.require(report, "key", key);
    let database = table.integer(report, "database", 0..=u64::from(u32::MAX));
    let (lock, key) = (lock?, key?);
    let database = database.and_then(|it| u32::try_from(it.value).ok());
    let rule = RedisRule::new(&key.value, &lock.value, database);
    taken(report, rule, &[("lock", lock.at), ("key", key.at)])
}
