//! Ending the client sessions of a server whose records were lost with the store: all of them, in
//! whichever database. A statement there may be about a guarded one (`ALTER DATABASE app`), and be
//! applied whenever it gets its lock.
//!
//! Those of proxies' own control roles stay: they write for nobody. So do superusers', which only a
//! superuser may end: a proxy whose control role is none lets them carry no fenced write
//! ([`Unfit::Superuser`](super::control::Unfit)).

use std::sync::Arc;

use super::control::{Control, ControlError, SessionId, column};
use crate::protocol::postgres::resolve::PostgresRules;
use crate::proxy::lost;

/// Most sessions of one exchange with the server.
const BATCH_SESSIONS_MAX: usize = 256;

/// A process whose kind or start the role may not see counts: it may be a client's. What proxies
/// call their own connections: `control::link`.
const CLIENTS: &str = "SELECT a.pid, (extract(epoch FROM a.backend_start) * 1000000)::bigint \
     FROM pg_stat_activity a LEFT JOIN pg_roles r ON r.oid = a.usesysid \
     WHERE coalesce(a.backend_type, 'client backend') = 'client backend' \
     AND a.datname IS NOT NULL AND NOT coalesce(r.rolname = session_user \
     AND a.application_name = 'ringfence control', false) \
     AND NOT (coalesce(r.rolsuper, false) AND NOT \
     (SELECT c.rolsuper FROM pg_roles c WHERE c.rolname = current_user))";

/// The sweep of one listener's server.
pub(super) struct Sweep {
    control: Control,
    /// A rule names a lock.
    guards: bool,
    /// The sessions that are to go, of one system, once they were listed.
    open: Option<Vec<SessionId>>,
}

impl Sweep {
    pub(super) fn new(control: Control, rules: &PostgresRules) -> Sweep {
        Sweep {
            control,
            guards: !rules.lock_patterns().is_empty(),
            open: None,
        }
    }

    async fn list(&self) -> Result<Vec<SessionId>, ControlError> {
        if !self.guards {
            return Ok(vec![]);
        }
        let system = self.control.system().await?;
        let mut sessions = vec![];
        for row in self.control.call_on(&system, CLIENTS, &[]).await? {
            let Some(started) = column::<Option<i64>>(&row, 1)? else {
                let reason = "the control role does not see when a session began: it needs \
                              pg_read_all_stats";
                return Err(ControlError::Denied(reason.to_owned()));
            };
            sessions.push(SessionId {
                system: Arc::clone(&system),
                pid: column(&row, 0)?,
                started,
            });
        }
        Ok(sessions)
    }

    /// Those of them that are still there.
    async fn end(&self, sessions: &[SessionId]) -> Result<Vec<SessionId>, ControlError> {
        let Some(first) = sessions.first() else {
            return Ok(vec![]);
        };
        let names: Vec<_> = sessions.iter().map(|it| (it.pid, it.started)).collect();
        let there = self.control.end_and_list(&first.system, &names).await?;
        let sessions = sessions.iter();
        let still = sessions.filter(|it| there.contains(&(it.pid, it.started)));
        Ok(still.cloned().collect())
    }
}

impl lost::Sweep for Sweep {
    async fn sweep(&mut self) -> Result<usize, String> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.list().await.map_err(|error| error.to_string())?,
        };
        let (mut still, mut failed) = (vec![], None);
        for batch in open.chunks(BATCH_SESSIONS_MAX) {
            match self.end(batch).await {
                Ok(there) => still.extend(there),
                Err(ControlError::Denied(_)) if batch.len() > 1 => {
                    // One session that may not be ended must not keep the others.
                    for one in batch.chunks(1) {
                        match self.end(one).await {
                            Ok(there) => still.extend(there),
                            Err(error) => {
                                still.extend_from_slice(one);
                                failed = Some(error);
                            }
                        }
                    }
                }
                Err(error) => {
                    still.extend_from_slice(batch);
                    failed = Some(error);
                }
            }
        }
        let count = still.len();
        self.open = Some(still);
        match failed {
            None => Ok(count),
            Some(error) => Err(format!("{count} of them: {error}")),
        }
    }
}
