//! The control connection: what the proxy itself asks of a Postgres server, beside its clients'
//! connections. Which backend session is whose, who is to be cancelled or ended, who is gone.
//!
//! The role that it uses needs to see and to signal the sessions of others, and nothing else:
//!
//! ```sql
//! CREATE ROLE ringfence LOGIN PASSWORD '...';
//! GRANT pg_read_all_stats, pg_signal_backend TO ringfence;
//! ```
//!
//! Invariants:
//! - a session is named by pid and start, never by its pid alone: pids are used again;
//! - only a listing of pg_stat_activity on the same database system, by its primary, proves a
//!   session gone. A lost connection, a time-out, a standby, a row of which the role may not see
//!   the start prove nothing. A backend leaves that listing after it has ended its transaction
//!   (ShutdownPostgres runs before pgstat_beshutdown_hook), and a postmaster starts over only when
//!   the backends of the one before are gone. What an old primary still does after another was
//!   promoted is not applied there any more;
//! - a session that the role could not see or end is not vouched for.

mod link;
mod rights;

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::door::Door;
use crate::config::{ControlRole, PostgresListenerConfig, UpstreamPath, WatermarkStore};

pub use link::Link;

/// How long one exchange on the control connection may take.
const CALL_MAX: Duration = Duration::from_secs(2);

/// A backend session as its server knows it: never used again, though its pid is.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId {
    /// The database cluster's own number (`pg_control_system()`).
    pub system: Arc<str>,
    /// The process.
    pub pid: i32,
    /// `backend_start`, in microseconds since 1970.
    pub started: i64,
}

/// What a client connection says about its backend session.
#[derive(Clone, Copy, Debug)]
pub struct Claimed<'c> {
    /// From its BackendKeyData.
    pub pid: i32,
    /// Our port of the connection ([`super::wire::Wire::local_port`]).
    pub port: u16,
    /// The role of its start-up packet.
    pub user: &'c str,
    /// The database that it is in.
    pub database: &'c str,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// Not now: unreachable, starting up, out of connections.
    #[error("no answer on the control connection: {0}")]
    NotNow(String),
    /// Never, until an operator changes something.
    #[error("{0}")]
    Denied(String),
    /// What answers is no server that this proxy can guard, or another one.
    #[error("the backend cannot be guarded: {0}")]
    Unfit(String),
}

/// Why a session may carry no fenced write.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unfit {
    /// There is no such process at the server that the control connection leads to.
    #[error(
        "the server has no session with the process id {0} that this connection was given: a \
         pooler is between, or the control connection leads to another server"
    )]
    NotListed(i32),
    /// The process is somebody else's.
    #[error(
        "the process id {pid} that this connection was given is another session's ({what}): a \
         pooler is between; for a relay that keeps sessions apart: upstream_path = \"relayed\""
    )]
    Anothers {
        /// The process.
        pid: i32,
        /// What differs.
        what: String,
    },
    /// The control role does not see when it began.
    #[error("the control role may not see this session: it needs pg_read_all_stats")]
    Hidden,
    /// It is a superuser's, and the control role is none.
    #[error(
        "the session is a superuser's, which only a superuser may end: connect with a lesser role"
    )]
    Superuser,
    /// The server was not asked.
    #[error(transparent)]
    Unasked(#[from] ControlError),
}

impl Unfit {
    /// Whether it stays so for this connection. Otherwise the server may be asked again.
    pub fn is_final(&self) -> bool {
        !matches!(self, Unfit::Unasked(_))
    }
}

impl From<tokio_postgres::Error> for ControlError {
    fn from(error: tokio_postgres::Error) -> ControlError {
        let Some(db) = error.as_db_error() else {
            return ControlError::NotNow(tell(&error));
        };
        let denied = [
            SqlState::INSUFFICIENT_PRIVILEGE,
            SqlState::INVALID_PASSWORD,
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION,
            SqlState::INVALID_CATALOG_NAME,
        ];
        match denied.contains(db.code()) {
            true => ControlError::Denied(db.message().to_owned()),
            false => ControlError::NotNow(db.message().to_owned()),
        }
    }
}

/// The message with its cause: tokio-postgres keeps the latter to itself.
fn tell(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The connection to one backend. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

struct Inner {
    door: Arc<Door>,
    /// `None`: the listener guards nothing, and nothing is asked.
    role: Option<ControlRole>,
    path: UpstreamPath,
    /// Carries the connection, whichever core asks.
    runtime: Handle,
    link: Mutex<Option<Link>>,
    /// Where the watermarks are in the server: told when another proxy has raised one there, and
    /// whenever that may have been missed.
    raised: Option<Notify>,
}

const SESSION: &str = "SELECT (extract(epoch FROM a.backend_start) * 1000000)::bigint, \
     a.client_port, a.datname::text, a.usename::text, coalesce(r.rolsuper, true), \
     a.backend_type = 'client backend' FROM pg_stat_activity a \
     LEFT JOIN pg_roles r ON r.oid = a.usesysid WHERE a.pid = $1";

/// One statement, so that no pid is taken by another session between the look and the signal. A
/// start that cannot be seen is no other start.
const END: &str = "SELECT c.pid, c.started, a.backend_start IS NULL, \
     CASE WHEN a.backend_start IS NOT NULL THEN pg_terminate_backend(a.pid) END \
     FROM unnest($1::int4[], $2::int8[]) AS c(pid, started) \
     JOIN pg_stat_activity a ON a.pid = c.pid WHERE a.backend_start IS NULL \
     OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = c.started";

const PREPARED: &str = "SELECT gid FROM pg_prepared_xacts";

const CANCEL: &str = "SELECT pg_cancel_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = $1 \
     AND (extract(epoch FROM a.backend_start) * 1000000)::bigint = $2 \
     AND a.wait_event IS DISTINCT FROM 'SyncRep'";

impl Control {
    /// A connection that opens when it is used. `runtime` carries it.
    pub fn new(config: &PostgresListenerConfig, door: Arc<Door>, runtime: Handle) -> Control {
        Control {
            inner: Arc::new(Inner {
                door,
                role: config.control.clone(),
                path: config.upstream_path,
                runtime,
                link: Mutex::default(),
                raised: (config.store == WatermarkStore::Backend).then(Notify::new),
            }),
        }
    }

    /// Whether the proxy has a role of its own here.
    pub(super) fn has_role(&self) -> bool {
        self.inner.role.is_some()
    }

    fn role(&self) -> Result<&ControlRole, ControlError> {
        let none = || ControlError::Denied("this listener has no [listener.control]".to_owned());
        self.inner.role.as_ref().ok_or_else(none)
    }

    /// Looks a session up by what its connection says of it.
    pub async fn vouch(&self, claimed: &Claimed<'_>) -> Result<SessionId, Unfit> {
        let link = self.link().await?;
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&claimed.pid, Type::INT4)];
        let rows = self.ask(&link, SESSION, &params).await?;
        let Some(row) = rows.into_iter().next() else {
            return Err(Unfit::NotListed(claimed.pid));
        };
        let Some(started) = column::<Option<i64>>(&row, 0)? else {
            return Err(Unfit::Hidden);
        };
        self.check_same(claimed, &row)?;
        if column::<bool>(&row, 4)? && !link.is_superuser {
            return Err(Unfit::Superuser);
        }
        Ok(SessionId {
            system: Arc::clone(&link.system),
            pid: claimed.pid,
            started,
        })
    }

    /// Whether the listed session is at the other end of the connection.
    fn check_same(&self, claimed: &Claimed<'_>, row: &Row) -> Result<(), Unfit> {
        let what = if !column::<bool>(row, 5)? {
            "a process of the server's own".to_owned()
        } else if self.inner.path == UpstreamPath::Direct {
            // No two connections have one: nothing else needs to be compared.
            match column::<Option<i32>>(row, 1)? {
                Some(port) if port == i32::from(claimed.port) => return Ok(()),
                Some(port) => format!("it comes from port {port}, ours from {}", claimed.port),
                None => "it comes from no port".to_owned(),
            }
        } else {
            let database: Option<String> = column(row, 2)?;
            let user: Option<String> = column(row, 3)?;
            let named = |name: Option<String>, ours: &str| {
                name.is_some_and(|name| name == ours || is_cut(&name, ours))
            };
            if named(user, claimed.user) && named(database, claimed.database) {
                return Ok(());
            }
            "another role's, or in another database".to_owned()
        };
        let pid = claimed.pid;
        Err(Unfit::Anothers { pid, what })
    }

    /// Cancels the statement that the session runs, if it runs one and is still there.
    pub async fn cancel(&self, session: &SessionId) -> Result<(), ControlError> {
        let link = self.link().await?;
        check_system(&link, &session.system)?;
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&session.pid, Type::INT4), (&session.started, Type::INT8)];
        self.ask(&link, CANCEL, &params).await.map(|_| ())
    }

    /// The names under which transactions are prepared, in any database.
    pub(super) async fn prepared(&self) -> Result<HashSet<String>, ControlError> {
        let rows = self.call(PREPARED, &[]).await?;
        rows.iter().map(|row| name(row, 0)).collect()
    }

    /// Has the server end these sessions, all of one system. Returns those that it still lists:
    /// whichever is not among them is gone.
    pub(super) async fn end_and_list(
        &self,
        system: &str,
        sessions: &[(i32, i64)],
    ) -> Result<Vec<(i32, i64)>, ControlError> {
        let link = self.link().await?;
        check_system(&link, system)?;
        let (pids, starts): (Vec<i32>, Vec<i64>) = sessions.iter().copied().unzip();
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&pids, Type::INT4_ARRAY), (&starts, Type::INT8_ARRAY)];
        let mut there = vec![];
        for row in self.ask(&link, END, &params).await? {
            if column::<bool>(&row, 2)? {
                return Err(rights::lacking(self.role()?, &["pg_read_all_stats"]));
            }
            there.push((column(&row, 0)?, column(&row, 1)?));
        }
        Ok(there)
    }
}

/// Postgres cuts names to 63 bytes (NAMEDATALEN).
fn is_cut(name: &str, ours: &str) -> bool {
    const NAME_BYTES_MAX: usize = 63;
    // Where the last character does not fit whole, it is left out whole: at most 3 bytes.
    ours.len() > NAME_BYTES_MAX && name.len() + 3 >= NAME_BYTES_MAX && ours.starts_with(name)
}

fn check_system(link: &Link, system: &str) -> Result<(), ControlError> {
    if *link.system == *system {
        return Ok(());
    }
    Err(ControlError::Unfit(format!(
        "the control connection leads to the database system {}, the session is of {system}",
        link.system
    )))
}

/// A column of an answer of ours: another type is another server.
pub(super) fn column<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, ControlError> {
    row.try_get(at)
        .map_err(|error| ControlError::Unfit(format!("its answer is not understood: {error}")))
}

/// A name. In a database without an encoding it may have any bytes: what is not UTF-8 in it is not
/// told, and texts that have such cannot be read either.
pub(super) fn name<T: From<String>>(row: &Row, at: usize) -> Result<T, ControlError> {
    struct Lossy(String);
    impl<'r> FromSql<'r> for Lossy {
        fn from_sql(_: &Type, raw: &'r [u8]) -> Result<Lossy, Box<dyn Error + Sync + Send>> {
            Ok(Lossy(String::from_utf8_lossy(raw).into_owned()))
        }

        fn accepts(of: &Type) -> bool {
            <&str as FromSql>::accepts(of)
        }
    }
    column(row, at).map(|Lossy(name)| name.into())
}
