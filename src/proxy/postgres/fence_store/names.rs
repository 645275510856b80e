//! The names of prepared transactions, for all proxies: see [`prepared`](super::super::prepared).

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::FenceStore;
use crate::lock_name::LockName;
use crate::proxy::postgres::control::{ControlError, SessionId, column};

const RECORD: &str = "INSERT INTO ringfence.prepared (gid, locks, pid, started) \
     VALUES ($1, $2, $3, $4) RETURNING number";
const LOOK: &str = "SELECT number, locks FROM ringfence.prepared WHERE gid = $1";
const FORGET: &str = "DELETE FROM ringfence.prepared WHERE gid = $1 AND number BETWEEN $2 AND $3";
const UNPREPARED: &str = "SELECT ringfence.forget_unprepared()";

impl FenceStore {
    /// Records that the session is about to prepare a transaction under this name, which writes under
    /// these locks. Answers with the number of this use of the name.
    pub async fn record_prepared(
        &self,
        gid: &str,
        locks: &[&str],
        session: &SessionId,
    ) -> Result<i64, ControlError> {
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&gid, Type::TEXT),
            (&locks, Type::TEXT_ARRAY),
            (&session.pid, Type::INT4),
            (&session.started, Type::INT8),
        ];
        let control = &self.shared.control;
        let rows = control.call_on(&session.system, RECORD, &params).await?;
        let unread = || ControlError::Unfit("its schema ringfence is another's".to_owned());
        column(rows.first().ok_or_else(unread)?, 0)
    }

    /// The uses of a name that are not known to have ended: number and locks.
    pub async fn prepared(&self, gid: &str) -> Result<Vec<(i64, Vec<LockName>)>, ControlError> {
        let params: [(&(dyn ToSql + Sync), Type); 1] = [(&gid, Type::TEXT)];
        let rows = self.shared.control.call(LOOK, &params).await?;
        rows.iter().map(read_use).collect()
    }

    /// Forgets the uses of a name in this range of numbers, in its own time: one that stays asks for
    /// tickets that nothing needs.
    pub fn forget_prepared(&self, gid: &str, from: i64, to: i64) {
        let (control, gid) = (self.shared.control.clone(), gid.to_owned());
        self.shared.control.spawn(async move {
            let params: [(&(dyn ToSql + Sync), Type); 3] =
                [(&gid, Type::TEXT), (&from, Type::INT8), (&to, Type::INT8)];
            if let Err(error) = control.call(FORGET, &params).await {
                tracing::debug!(%error, "a prepared transaction stays on record");
            }
        });
    }

    /// Forgets uses whose session has ended, and of which nothing is prepared.
    pub(super) async fn forget_unprepared(&self) {
        if let Err(error) = self.shared.control.call(UNPREPARED, &[]).await {
            tracing::debug!(%error, "prepared transactions stay on record");
        }
    }
}

fn read_use(row: &Row) -> Result<(i64, Vec<LockName>), ControlError> {
    let locks = column::<Vec<&str>>(row, 1)?.into_iter().map(LockName::new);
    let locks: Result<Vec<LockName>, _> = locks.collect();
    let locks = locks.map_err(|error| ControlError::Unfit(format!("its schema: {error}")))?;
    Ok((column(row, 0)?, locks))
}
