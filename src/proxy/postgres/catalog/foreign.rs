//! Whether a database has tables of other servers: told by its catalog, or asked alone where the
//! catalog is outdated and need not be waited for. What may make one makes the answer outdated, and
//! no other change does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::load::rows;
use super::{CatalogError, Database};
use crate::protocol::postgres::resolve::ForeignTables;
use crate::proxy::postgres::control::column;

const ANY: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_foreign_table), \
     EXISTS (SELECT FROM pg_catalog.pg_foreign_data_wrapper WHERE fdwhandler <> 0)";

/// What is known of one database's tables of other servers: nothing at first.
#[derive(Default)]
pub(super) struct Foreign {
    told: Mutex<Option<Told>>,
    asking: tokio::sync::Mutex<()>,
}

/// When something was asked: how old the answer is.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    at: Instant,
    made: u64,
}

#[derive(Clone, Copy)]
struct Told {
    asked: Asked,
    has: ForeignTables,
}

impl Asked {
    /// Before the server is asked, while so many changes that may have made one were counted.
    pub(super) fn now(made: &AtomicU64) -> Asked {
        Asked {
            at: Instant::now(),
            made: made.load(Ordering::SeqCst),
        }
    }
}

impl Foreign {
    /// Its answer.
    pub(super) fn told(&self, asked: Asked, has: ForeignTables) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|it| it.asked.at <= asked.at) {
            *told = Some(Told { asked, has });
        }
    }

    /// The answer to a question that was asked at this instant or later.
    fn told_since(&self, began: Instant) -> Option<ForeignTables> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.filter(|it| it.asked.at >= began).map(|it| it.has)
    }
}

impl Database {
    /// Whether it has tables of other servers, if that is known at this instant.
    pub fn foreign_tables(&self) -> Option<ForeignTables> {
        let told = self.foreign.told.lock();
        let told = (*told.unwrap_or_else(PoisonError::into_inner))?;
        let same = told.asked.made == self.changes.foreign.load(Ordering::SeqCst);
        (same && told.asked.at.elapsed() <= self.age_max).then_some(told.has)
    }

    /// Something that may make one may have been committed. To be called when
    /// [`Database::outdated`] is.
    pub fn note_foreign_tables(&self) {
        self.changes.foreign.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether it has any: asked if need be, one question at a time. An answer to a question that
    /// was asked since this began will do: others may make things all the time.
    pub async fn ask_foreign_tables(self: Arc<Database>) -> Result<ForeignTables, CatalogError> {
        let began = Instant::now();
        let _one = self.foreign.asking.lock().await;
        let since = self.foreign.told_since(began);
        if let Some(has) = since.or_else(|| self.foreign_tables()) {
            return Ok(has);
        }
        let asked = Asked::now(&self.changes.foreign);
        let asking = async {
            let client = self.control.connect(&self.name).await?;
            let rows = rows(&client, ANY).await?;
            let Some(row) = rows.first() else {
                // A server that does not tell counts as one that has some.
                return Ok(ForeignTables::There);
            };
            Ok(match (column(row, 0)?, column(row, 1)?) {
                (true, _) => ForeignTables::There,
                (false, true) => ForeignTables::Possible,
                (false, false) => ForeignTables::Impossible,
            })
        };
        let has = self.in_time(asking).await?;
        self.foreign.told(asked, has);
        Ok(has)
    }
}
