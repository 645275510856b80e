//! What each database of the server has: its catalog, loaded over a connection of its own and kept
//! for as long as it may be right.
//!
//! It is loaded again when a session has forwarded something that changes it
//! ([`Database::outdated`]), when a name is not in it ([`Database::newer_than`]), and when it is
//! too old: what others change at the server is seen by then. In use it is refreshed in the
//! background at half of that age, so that no statement waits for it; where tickets are enough for
//! whatever a statement may be, it is loaded aside ([`Database::load_aside`]).
//!
//! Invariant: no statement is resolved against a catalog that is older than the listener's
//! `catalog_age_max`, or whose loading began before a change that sessions of this proxy are known
//! to have made, through whichever listener. While a commit of such a change is on its way
//! ([`Database::unsettle`]), its loading began after the statement came.

mod acting;
mod changes;
mod expressions;
mod foreign;
mod load;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;
use tokio_postgres::types::Type;

use self::changes::OfDatabase;
use self::foreign::{Asked, Foreign};
use super::control::{Control, ControlError, column};
use crate::protocol::postgres::resolve::Catalog;

pub use changes::Changes;

/// Most databases whose catalogs are kept.
const DATABASES_MAX: usize = 1024;
/// How old a catalog is at least when it is loaded again for a name that it lacks: statements with
/// such names may come as fast as they like.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How long nothing must have changed before a catalog is loaded that nobody waits for: while
/// tables are made one after the other it would be outdated when it came, and as long as it loads,
/// VACUUM keeps what has died since.
const QUIET: Duration = Duration::from_millis(500);
/// Where something changes all the time: how long until it is loaded all the same.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// How long loading may take.
const LOAD_MAX: Duration = Duration::from_secs(30);

/// Why there is no catalog: nothing can be resolved.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CatalogError {
    /// The server does not tell.
    #[error("the catalog of database {database:?} cannot be loaded: {source}")]
    Unloaded {
        /// The database.
        database: String,
        /// Why.
        source: ControlError,
    },
    /// There are too many databases.
    #[error("the catalogs of {DATABASES_MAX} databases are kept, and no more")]
    TooMany,
}

/// The catalogs of one server. Cheap to clone.
#[derive(Clone)]
pub struct Catalogs {
    shared: Arc<Shared>,
}

struct Shared {
    control: Control,
    /// Volatile functions that the operator knows to read: schema and name.
    reading: Arc<[(Box<str>, Box<str>)]>,
    age_max: Duration,
    changes: Changes,
    databases: Mutex<HashMap<Box<str>, Arc<Database>>>,
}

/// One database's catalog: sessions keep it at hand.
pub struct Database {
    name: Box<str>,
    control: Control,
    /// Volatile functions that the operator knows to read: schema and name.
    reading: Arc<[(Box<str>, Box<str>)]>,
    age_max: Duration,
    loaded: ArcSwapOption<Loaded>,
    changes: Arc<OfDatabase>,
    foreign: Foreign,
    loading: tokio::sync::Mutex<()>,
    /// It is loaded while nobody waits for it. Relaxed: it only keeps one from being loaded twice.
    loads_aside: AtomicBool,
}

/// Commits of a session that are on their way. While there are any, a catalog serves those only who
/// were there before it was loaded.
pub struct Unsettled {
    database: Arc<Database>,
}

/// When the process of a session was started that is listed, where that is told.
const LISTED: &str = "SELECT (extract(epoch FROM backend_start) * 1000000)::bigint \
     FROM pg_stat_activity WHERE pid = $1";
/// First and longest wait between two looks for it.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Unsettled {
    /// The session is lost: its process goes on with what it was sent, and may commit that whenever
    /// it can. Settled when the server does not list it any more.
    pub fn until_gone(self, pid: i32) {
        let (control, asks) = (self.database.control.clone(), self.database.control.clone());
        control.spawn(async move {
            let mut first = None;
            let mut pause = LOOK_AGAIN.0;
            loop {
                let listed = asks.call(LISTED, &[(&pid, Type::INT4)]).await;
                // Where nothing is told, no catalog is loaded either.
                if let Ok(rows) = listed {
                    let started = rows.first().map(|row| column::<Option<i64>>(row, 0).ok());
                    // Another one has its number now.
                    if started.is_none() || started != *first.get_or_insert(started) {
                        return drop(self);
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOOK_AGAIN.1);
            }
        });
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        // In this order: whoever sees none on its way sees that the catalog is outdated.
        self.database.outdated();
        let changes = &self.database.changes;
        changes.unsettled.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Loaded {
    catalog: Arc<Catalog>,
    /// When loading began.
    at: Instant,
    /// The changes that had been counted then.
    changes: u64,
}

impl Catalogs {
    /// None yet. `reading`: volatile functions that the operator knows to read, schema and name.
    /// `changes`: the same for all that are of one server.
    pub fn new(
        control: Control,
        reading: &[(Box<str>, Box<str>)],
        age_max: Duration,
        changes: Changes,
    ) -> Catalogs {
        Catalogs {
            shared: Arc::new(Shared {
                control,
                reading: reading.into(),
                age_max,
                changes,
                databases: Mutex::default(),
            }),
        }
    }

    /// The database of this name, which a session is in.
    pub fn database(&self, name: &str) -> Result<Arc<Database>, CatalogError> {
        let shared = &self.shared;
        let mut databases = shared
            .databases
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = databases.get(name) {
            return Ok(Arc::clone(known));
        }
        if databases.len() >= DATABASES_MAX {
            // One that no session has at hand is loaded anew when it is wanted again.
            databases.retain(|_, database| Arc::strong_count(database) > 1);
        }
        if databases.len() >= DATABASES_MAX {
            return Err(CatalogError::TooMany);
        }
        let database = Arc::new(Database {
            name: name.into(),
            control: shared.control.clone(),
            reading: Arc::clone(&shared.reading),
            age_max: shared.age_max,
            loaded: ArcSwapOption::empty(),
            changes: shared.changes.of(name),
            foreign: Foreign::default(),
            loading: tokio::sync::Mutex::default(),
            loads_aside: AtomicBool::new(false),
        });
        databases.insert(name.into(), Arc::clone(&database));
        Ok(database)
    }
}

impl Database {
    /// Its catalog, if it may be used at this instant.
    pub fn current(self: &Arc<Database>) -> Option<Arc<Catalog>> {
        if self.changes.unsettled.load(Ordering::SeqCst) > 0 {
            return None;
        }
        let loaded = self.loaded.load();
        let loaded = loaded.as_ref()?;
        if loaded.changes != self.changes.count.load(Ordering::SeqCst) {
            return None;
        }
        let age = loaded.at.elapsed();
        if age > self.age_max {
            return None;
        }
        if age > self.age_max / 2 && self.loading.try_lock().is_ok() {
            let (database, seen) = (Arc::clone(self), Arc::clone(&loaded.catalog));
            self.control.spawn(async move {
                if let Err(error) = database
                    .load_unless(|it| !Arc::ptr_eq(&it.catalog, &seen))
                    .await
                {
                    tracing::warn!(%error, "a catalog is not refreshed");
                }
            });
        }
        Some(Arc::clone(&loaded.catalog))
    }

    /// Whether this is the latest catalog, and its loading began behind that instant.
    pub fn is_loaded_since(&self, catalog: &Arc<Catalog>, at: Instant) -> bool {
        let loaded = self.loaded.load();
        let mut loaded = loaded.iter();
        loaded.any(|it| Arc::ptr_eq(&it.catalog, catalog) && it.at > at)
    }

    /// Its catalog, loaded if need be.
    pub async fn get(self: &Arc<Database>) -> Result<Arc<Catalog>, CatalogError> {
        if let Some(catalog) = self.current() {
            return Ok(catalog);
        }
        let asked = Instant::now();
        let settled = || self.changes.unsettled.load(Ordering::SeqCst) == 0;
        self.load_unless(|loaded| settled() || loaded.at >= asked)
            .await
    }

    /// Something is forwarded that may commit a change of what names do: until this is dropped it
    /// may have been committed, and may not.
    pub fn unsettle(self: &Arc<Database>) -> Unsettled {
        self.changes.unsettled.fetch_add(1, Ordering::SeqCst);
        Unsettled {
            database: Arc::clone(self),
        }
    }

    /// Has it loaded for those who come later: once nothing has changed for a moment, or at once
    /// where there was none yet.
    pub fn load_aside(self: &Arc<Database>) {
        if self.loads_aside.swap(true, Ordering::Relaxed) {
            return;
        }
        let database = Arc::clone(self);
        self.control.spawn(async move {
            if database.loaded.load().is_some() {
                database.quiet().await;
            }
            if let Err(error) = database.get().await {
                tracing::warn!(%error, "a catalog is not loaded");
            }
            database.loads_aside.store(false, Ordering::Relaxed);
        });
    }

    /// Nothing has changed for a moment, or something does all the time.
    async fn quiet(&self) {
        let began = Instant::now();
        loop {
            let changes = self.changes.count.load(Ordering::SeqCst);
            tokio::time::sleep(QUIET).await;
            let same = changes == self.changes.count.load(Ordering::SeqCst);
            if same || began.elapsed() >= QUIET_MAX {
                return;
            }
        }
    }

    /// A catalog whose loading began from now on, and after that of `seen`, in which a name is
    /// missing.
    pub async fn newer_than(
        self: &Arc<Database>,
        seen: &Arc<Catalog>,
    ) -> Result<Arc<Catalog>, CatalogError> {
        let again_at = match &*self.loaded.load() {
            Some(loaded) if Arc::ptr_eq(&loaded.catalog, seen) => Some(loaded.at + AGAIN_AFTER),
            _ => None,
        };
        // What waits for it is here: one whose loading has begun may miss what was made since.
        let asked = Instant::now();
        if let Some(at) = again_at {
            tokio::time::sleep_until(at).await;
        }
        self.load_unless(|loaded| loaded.at >= asked).await
    }

    /// Something that changes the catalog may have been committed. To be called when its
    /// ReadyForQuery has come, and when its session is lost before that.
    pub fn outdated(&self) {
        self.changes.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Something has acted: what it has defined is not told. With [`Database::outdated`].
    pub fn note_acted(&self) {
        let acted = self.changes.acted.lock();
        *acted.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether something has acted a moment ago, and so may again: whoever waited for a catalog
    /// that is right would wait each time.
    pub fn is_changing(&self) -> bool {
        let acted = self.changes.acted.lock();
        let acted = *acted.unwrap_or_else(PoisonError::into_inner);
        acted.is_some_and(|acted| acted.elapsed() < QUIET)
    }

    /// Loads it, one at a time; whoever has waited takes what has come meanwhile, if it will do.
    async fn load_unless(
        self: &Arc<Database>,
        will_do: impl Fn(&Loaded) -> bool,
    ) -> Result<Arc<Catalog>, CatalogError> {
        let _one = self.loading.lock().await;
        let changes = self.changes.count.load(Ordering::SeqCst);
        if let Some(loaded) = &*self.loaded.load()
            && loaded.changes == changes
            && loaded.at.elapsed() <= self.age_max
            && will_do(loaded)
        {
            return Ok(Arc::clone(&loaded.catalog));
        }
        let (at, asked) = (Instant::now(), Asked::now(&self.changes.foreign));
        let catalog = Arc::new(self.load().await?);
        let foreign = catalog.foreign_tables();
        self.foreign.told(asked, foreign);
        self.loaded.store(Some(Arc::new(Loaded {
            catalog: Arc::clone(&catalog),
            at,
            changes,
        })));
        Ok(catalog)
    }

    async fn load(&self) -> Result<Catalog, CatalogError> {
        self.in_time(async {
            let client = self.control.connect(&self.name).await?;
            load::load(&client, &self.reading).await
        })
        .await
    }

    /// What the server tells, unless it tells nothing for too long.
    async fn in_time<T>(
        &self,
        telling: impl Future<Output = Result<T, ControlError>>,
    ) -> Result<T, CatalogError> {
        let told = match tokio::time::timeout(LOAD_MAX, telling).await {
            Ok(told) => told,
            Err(_) => Err(ControlError::NotNow(format!(
                "nothing came for {LOAD_MAX:?}"
            ))),
        };
        told.map_err(|source| CatalogError::Unloaded {
            database: self.name.to_string(),
            source,
        })
    }
}
