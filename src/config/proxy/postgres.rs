//! `[[listener]]` with `protocol = "postgres"`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::WatermarkStore;
use super::every_listener::{read_common, read_password};
use super::listener::{Mode, TIMEOUTS, Trust, Upstream, read_lock, taken, value_or_default};
use crate::config::reader::{Found, Report, Table};
use crate::protocol::Unmatched;
use crate::protocol::postgres::resolve::{ForeignWrites, PostgresRule, PostgresRules};

/// One port before a Postgres server.
#[derive(Clone, Debug)]
pub struct PostgresListenerConfig {
    /// Unique among the listeners.
    pub name: String,
    /// The compiled rules.
    pub rules: PostgresRules,
    /// Where clients connect. Port 0: any free one.
    pub listen: SocketAddr,
    /// The server.
    pub upstream: Upstream,
    /// Whether something between us and the server makes connections of its own for ours.
    pub upstream_path: UpstreamPath,
    /// TLS with clients; without it they are told that there is none.
    pub tls: Option<ClientTls>,
    /// TLS with the server.
    pub upstream_tls: UpstreamTls,
    /// As whom the proxy itself connects; `None` where nothing is guarded.
    pub control: Option<ControlRole>,
    /// Which tickets are taken.
    pub trust: Trust,
    /// Whether refusals are carried out.
    pub mode: Mode,
    /// What becomes of replication connections, whose commands are not classified.
    pub replication: Replication,
    /// How long a statement waits for the gate before it is told busy.
    pub admit_deadline: Duration,
    /// How long a running statement of an older token is awaited before it is cancelled.
    pub cancel_after: Duration,
    /// How long what is in flight under an older token is awaited before its session is terminated.
    pub terminate_after: Duration,
    /// How old what is known of a database's tables may be.
    pub catalog_age_max: Duration,
    /// Where watermarks are durable.
    pub store: WatermarkStore,
    /// Bounds.
    pub limits: PostgresLimits,
}

/// How connections reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpstreamPath {
    /// As they leave us: the server sees the port that we have.
    #[default]
    Direct,
    /// Through something that makes one connection of its own for each of ours (HAProxy in TCP
    /// mode, NAT that changes ports).
    Relayed,
}

/// The proxy's own certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTls {
    /// The certificate with its chain, in PEM.
    pub cert: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// Whether clients may do without it.
    pub required: bool,
}

/// TLS with the server, by libpq's words.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UpstreamTls {
    /// How much of it.
    pub mode: UpstreamTlsMode,
    /// The authorities that may have signed the server's certificate, in PEM.
    pub ca: Option<PathBuf>,
}

/// libpq's `sslmode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UpstreamTlsMode {
    /// None.
    Disable,
    /// Where the server has it; its certificate is not checked.
    #[default]
    Prefer,
    /// Always; the certificate is not checked.
    Require,
    /// Always; the certificate must be signed by `ca` and bear the upstream's name.
    VerifyFull,
}

/// What becomes of replication connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replication {
    /// They are refused at start-up.
    #[default]
    Deny,
    /// They pass, unread.
    Pass,
}

/// A role of the server's that the proxy itself is.
#[derive(Clone, PartialEq, Eq)]
pub struct ControlRole {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: Option<String>,
    /// A database that it may connect to, beside those that are guarded.
    pub database: String,
}

impl std::fmt::Debug for ControlRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The password is left out.
        f.debug_tuple("ControlRole")
            .field(&self.user)
            .field(&self.database)
            .finish()
    }
}

/// The bounds of a Postgres listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostgresLimits {
    /// Most connections of clients.
    pub connections_max: usize,
    /// Longest message of a client, in bytes.
    pub message_bytes_max: u64,
    /// How long a client may take from its connection to the end of its authentication.
    pub startup_timeout: Duration,
    /// How long a connection to the server may take to open.
    pub upstream_connect_timeout: Duration,
}

impl Default for PostgresLimits {
    fn default() -> PostgresLimits {
        PostgresLimits {
            connections_max: 10_000,
            message_bytes_max: 1 << 30,
            startup_timeout: Duration::from_secs(60),
            upstream_connect_timeout: Duration::from_secs(5),
        }
    }
}

const CANCEL_AFTER_DEFAULT: Duration = Duration::from_millis(50);
const TERMINATE_AFTER_DEFAULT: Duration = Duration::from_secs(1);
const CATALOG_AGE_DEFAULT: Duration = Duration::from_secs(30);
const CONTROL_DATABASE_DEFAULT: &str = "postgres";

/// Reads one listener. `None` when something in it is wrong, which is in the report then.
pub(super) fn read_postgres_listener(
    report: &mut Report<'_>,
    mut table: Table<'_, '_>,
    store: WatermarkStore,
) -> Option<Found<PostgresListenerConfig>> {
    let t = &mut table;
    let common = read_common(report, t);
    let paths = [
        ("direct", UpstreamPath::Direct),
        ("relayed", UpstreamPath::Relayed),
    ];
    let upstream_path = t.choice(report, "upstream_path", &paths);
    let replication = [("deny", Replication::Deny), ("pass", Replication::Pass)];
    let replication = t.choice(report, "replication", &replication);
    let foreign = [
        ("refuse", ForeignWrites::Refuse),
        ("pass", ForeignWrites::Pass),
    ];
    let foreign_writes = value_or_default(t.choice(report, "foreign_writes", &foreign));
    let times = read_times(report, t);
    let tls = read_tls(report, t);
    let upstream_tls = read_upstream_tls(report, t);
    let limits = read_limits(report, t);
    let rules = read_rules(report, t, common.unmatched);
    let rules = rules.filter(|rules| tell_locks(report, t, common.trust, rules));
    // With a rule that is wrong there is one.
    let guards = rules.as_ref().is_none_or(PostgresRules::guards);
    let control = read_control(report, t, guards);
    let at = t.at();
    table.finish(report);
    let value = PostgresListenerConfig {
        name: common.name?,
        rules: rules?.with_foreign_writes(foreign_writes),
        listen: common.listen?,
        upstream: common.upstream?,
        upstream_path: value_or_default(upstream_path),
        tls: tls?,
        upstream_tls: upstream_tls?,
        control: control?,
        trust: common.trust,
        mode: common.mode,
        replication: value_or_default(replication),
        admit_deadline: common.admit_deadline,
        cancel_after: times.cancel_after,
        terminate_after: times.terminate_after,
        catalog_age_max: times.catalog_age_max,
        store,
        limits,
    };
    Some(Found { value, at })
}

struct Times {
    cancel_after: Duration,
    terminate_after: Duration,
    catalog_age_max: Duration,
}

fn read_times(report: &mut Report<'_>, t: &mut Table<'_, '_>) -> Times {
    let patience = Duration::ZERO..=*TIMEOUTS.end();
    let mut read = |key, range, default| {
        let found = t.duration(report, key, range);
        found.map_or(default, |it| it.value)
    };
    Times {
        cancel_after: read("cancel_after", patience.clone(), CANCEL_AFTER_DEFAULT),
        terminate_after: read("terminate_after", patience, TERMINATE_AFTER_DEFAULT),
        catalog_age_max: read("catalog_age_max", TIMEOUTS, CATALOG_AGE_DEFAULT),
    }
}

/// `[listener.tls]`: ours, for clients. The outer `None`: something in it is wrong.
fn read_tls(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> Option<Option<ClientTls>> {
    let Some(mut t) = listener.table(report, "tls") else {
        return (!listener.has("tls")).then_some(None);
    };
    let cert = t.text(report, "cert", "a file");
    let cert = t.require(report, "cert", cert);
    let key = t.text(report, "key", "a file");
    let key = t.require(report, "key", key);
    let clients = [("may", false), ("must", true)];
    let required = t.choice(report, "clients", &clients);
    t.finish(report);
    Some(Some(ClientTls {
        cert: cert?.value.into(),
        key: key?.value.into(),
        required: value_or_default(required),
    }))
}

/// `[listener.upstream_tls]`.
fn read_upstream_tls(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> Option<UpstreamTls> {
    let Some(mut t) = listener.table(report, "upstream_tls") else {
        return Some(UpstreamTls::default());
    };
    let modes = [
        ("disable", UpstreamTlsMode::Disable),
        ("prefer", UpstreamTlsMode::Prefer),
        ("require", UpstreamTlsMode::Require),
        ("verify-full", UpstreamTlsMode::VerifyFull),
    ];
    let mode = t.choice(report, "mode", &modes);
    let ca = t.text(report, "ca", "a file");
    let at = t.at();
    t.finish(report);
    let mode = value_or_default(mode);
    match (mode, &ca) {
        (UpstreamTlsMode::VerifyFull, None) => {
            let message = "upstream_tls.mode = \"verify-full\" needs `ca`: who may have signed";
            report.error(at, message);
            return None;
        }
        (UpstreamTlsMode::VerifyFull, Some(_)) | (_, None) => {}
        (_, Some(ca)) => {
            let message = "`upstream_tls.ca` is checked with mode = \"verify-full\" only";
            report.error(ca.at, message);
            return None;
        }
    }
    Some(UpstreamTls {
        mode,
        ca: ca.map(|it| it.value.into()),
    })
}

/// `[listener.control]`: who the proxy is for the server.
/// The outer `None`: something in it is wrong, or it is missing where something is to be guarded.
fn read_control(
    report: &mut Report<'_>,
    listener: &mut Table<'_, '_>,
    guards: bool,
) -> Option<Option<ControlRole>> {
    if !guards && !listener.has("control") {
        return Some(None);
    }
    let table = listener.table(report, "control");
    let mut t = listener.require(report, "control", table)?;
    let user = t.text(report, "user", "a role's name");
    let user = t.require(report, "user", user);
    let password = read_password(report, &mut t);
    let database = t.text(report, "database", "a database's name");
    t.finish(report);
    Some(Some(ControlRole {
        user: user?.value,
        password: password?,
        database: database.map_or(CONTROL_DATABASE_DEFAULT.to_owned(), |it| it.value),
    }))
}

fn read_limits(report: &mut Report<'_>, listener: &mut Table<'_, '_>) -> PostgresLimits {
    let mut limits = PostgresLimits::default();
    let Some(mut t) = listener.table(report, "limits") else {
        return limits;
    };
    if let Some(found) = t.integer(report, "connections_max", 1..=1_000_000) {
        limits.connections_max = usize::try_from(found.value).unwrap_or(usize::MAX);
    }
    if let Some(found) = t.integer(report, "message_bytes_max", 1 << 20..=1 << 30) {
        limits.message_bytes_max = found.value;
    }
    if let Some(found) = t.duration(report, "startup_timeout", TIMEOUTS) {
        limits.startup_timeout = found.value;
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
) -> Option<PostgresRules> {
    let mut reading = vec![];
    for name in listener
        .texts(report, "reading_functions")
        .unwrap_or_default()
    {
        match name.value.split_once('.') {
            Some((schema, function)) if !schema.is_empty() && !function.is_empty() => {
                reading.push((schema.into(), function.into()));
            }
            _ => {
                let message = format!(
                    "{:?} in `reading_functions` is not a schema and a name: \
                     \"public.total\" is",
                    name.value
                );
                report.error(name.at, message);
            }
        }
    }
    let (mut rules, mut sound) = (vec![], true);
    for mut table in listener.tables(report, "rule") {
        match read_rule(report, &mut table) {
            Some(rule) => rules.push(rule),
            None => sound = false,
        }
        table.finish(report);
    }
    sound.then(|| PostgresRules::new(rules, unmatched).with_reading_functions(reading))
}

/// Whether a ticket tells which lock it is for: a bare token does where there is only one. A read
/// presents it, too, and what is read is no sign of whose it is.
fn tell_locks(
    report: &mut Report<'_>,
    listener: &Table<'_, '_>,
    trust: Trust,
    rules: &PostgresRules,
) -> bool {
    let several = rules.several_locks();
    let Some([one, other]) = several.filter(|_| trust == Trust::Unsigned) else {
        return true;
    };
    let named = match one == other {
        true => format!("`{}`", one.as_str()),
        false => format!("`{}` and `{}`", one.as_str(), other.as_str()),
    };
    let message = format!(
        "with trust = \"unsigned\" the rules of a Postgres listener are for one lock in each \
         database, since a bare token does not say which it is for, and these are for {named}: \
         take signed tickets, or a listener for each"
    );
    report.error(listener.at(), message);
    false
}

fn read_rule(report: &mut Report<'_>, table: &mut Table<'_, '_>) -> Option<PostgresRule> {
    let lock = read_lock(report, table);
    let database = table.text(report, "database", "a database's name or pattern");
    let schema = table.text(report, "schema", "a schema's name or pattern");
    let relation = table.text(
        report,
        "table",
        "a table with its schema: \"public.orders\"",
    );
    let lock = lock?;
    let place = |found: &Option<Found<String>>| found.as_ref().map_or(table.at(), |it| it.at);
    let places = [
        ("lock", lock.at),
        ("database", place(&database)),
        ("schema", place(&schema)),
        ("table", place(&relation)),
        ("rule", table.at()),
    ];
    let rule = PostgresRule::new(
        database.as_ref().map(|it| &*it.value),
        schema.as_ref().map(|it| &*it.value),
        relation.as_ref().map(|it| &*it.value),
        &lock.value,
    );
    taken(report, rule, &places)
}
