//! Opens the store of a lockd, and refuses one that is not the one that was there before: its
//! tokens would fall below those that are out.
//!
//! What was there before is told by what is kept in `data_dir`: the file of the embedded store,
//! what was seen of it, or of etcd; and by the keys, which have signed something. With `--init`
//! another store is taken all the same. Its tokens then begin above all that is known here of
//! those that are out, and further up by the time in milliseconds, since what is known may not be
//! all; and the proxies that were seen before are put back into its set.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock;
use crate::cmd::exit::Failure;
use crate::config::{EtcdConfig, LockdConfig, StoreConfig};
use crate::lockd::SigningKeys;
use crate::store::durable_file::{self, sync_folder};
use crate::store::embedded::EmbeddedStore;
use crate::store::etcd::{self, EtcdStore, Seen};
use crate::store::{NO_SPACE, Store, StoreError};
use crate::token::Token;

use super::put_back;
use super::seen::{self, Follower, Watched};

/// The embedded store's file in `data_dir`.
const STORE_FILE: &str = "locks.redb";
/// In `data_dir`: the highest token that was seen of it.
const LATEST_FILE: &str = "locks.seen";
/// In `data_dir`: what was seen of etcd.
const SEEN_FILE: &str = "etcd.seen";
/// More tokens than an embedded store can give out before they are seen.
const UNSEEN_MAX: u64 = 1 << 24;

/// Opens it. `init`: also where it is another one than before.
pub(super) async fn open_store(
    config: &LockdConfig,
    init: bool,
) -> Result<(Arc<dyn Store>, Follower), Failure> {
    let folder = &config.data_dir;
    std::fs::create_dir_all(folder).map_err(|error| Failure::because(folder.display(), error))?;
    let place = Place {
        file: folder.join(STORE_FILE),
        latest: folder.join(LATEST_FILE),
        seen: folder.join(SEEN_FILE),
        proxies: config.proxies_seen(),
        keys: config.keys_dir(),
        init,
    };
    match &config.store {
        StoreConfig::Embedded => {
            let store = Arc::new(place.open_embedded().await?);
            put_back::begin(&*store, &place.proxies).await?;
            let watched = Watched::Embedded(Arc::clone(&store));
            Ok((store, Follower::start(watched, place.latest)))
        }
        StoreConfig::Etcd(cluster) => {
            let store = Arc::new(place.open_etcd(cluster).await?);
            put_back::begin(&*store, &place.proxies).await?;
            let watched = Watched::Etcd(Arc::clone(&store));
            Ok((store, Follower::start(watched, place.seen)))
        }
    }
}

/// Where it is told what was there before.
struct Place {
    /// Of the embedded store.
    file: PathBuf,
    /// What was seen of that.
    latest: PathBuf,
    /// Of a store in etcd.
    seen: PathBuf,
    /// The proxies that were seen.
    proxies: PathBuf,
    keys: PathBuf,
    init: bool,
}

impl Place {
    async fn open_embedded(&self) -> Result<EmbeddedStore, Failure> {
        let path = &self.file;
        let failed = |error| Failure::because(path.display(), error);
        let exists = EmbeddedStore::exists(path).await.map_err(failed)?;
        if self.seen.exists() {
            self.refuse_unless_init(
                &self.seen,
                "the locks were kept in etcd before, as this file says: the embedded store's \
                 tokens would fall below those that etcd has given out. Set the store to etcd; or \
                 start with --init, if it is to be changed",
            )?;
        } else if exists {
            let store = EmbeddedStore::open(path).await.map_err(failed)?;
            let latest = store.latest().await.map_err(failed)?;
            let Some(seen) = self.read_latest()?.filter(|seen| *seen > latest) else {
                return Ok(store);
            };
            let why = format!(
                "it has given out tokens up to {latest}, and {seen} was given out before: it is an \
                 older copy of the store. Put the store itself back; or start with --init, if it \
                 is lost"
            );
            self.refuse_unless_init(path, &why)?;
        } else if SigningKeys::exist(&self.keys) {
            let keys = self.keys.display();
            let why = format!(
                "the store is not there, or is empty, though keys are ({keys}): its tokens would \
                 begin again below those that they have signed. Put it back; or start with --init, \
                 if it is lost or new; or remove the keys too, if nobody uses what they have signed"
            );
            self.refuse_unless_init(path, &why)?;
        } else {
            // Nobody uses what was seen of another one.
            leave(&self.latest)?;
            return EmbeddedStore::open(path).await.map_err(failed);
        }
        let seen = seen::read(&self.seen).ok().flatten();
        let above = self.above_what_is_known(seen).await?;
        // Not on with the one that may be there: what stood in it was left for etcd, or is over.
        let records = put_back::records(&self.proxies).await?;
        EmbeddedStore::create_above(path, above, records)
            .await
            .map_err(failed)?;
        tracing::warn!(%above, "a new store: its tokens begin above this");
        leave(&self.seen)?;
        EmbeddedStore::open(path).await.map_err(failed)
    }

    /// The highest token that was seen of the embedded store.
    fn read_latest(&self) -> Result<Option<Token>, Failure> {
        match seen::read(&self.latest) {
            Err(_) if self.init => Ok(None),
            read => read,
        }
    }

    async fn open_etcd(&self, cluster: &EtcdConfig) -> Result<EtcdStore, Failure> {
        let cluster = etcd::EtcdConfig {
            endpoints: cluster.endpoints.clone(),
            prefix: cluster.prefix.clone(),
        };
        let was_embedded = self.file.exists();
        if was_embedded {
            self.refuse_unless_init(
                &self.file,
                "the locks were kept in this file before: tokens of etcd would fall below those \
                 that were given out by it. Set the store to embedded; or start with --init, if it \
                 is to be changed",
            )?;
        }
        let (seen, is_unread) = match seen::read(&self.seen) {
            Ok(seen) => (seen, false),
            Err(_) if self.init => (None, true),
            Err(failure) => return Err(failure),
        };
        let (store, is_lost) = self.open_after(&cluster, seen).await?;
        let failed = |error: StoreError| Failure::because("etcd", error);
        let is_unknown = seen.is_none()
            && SigningKeys::exist(&self.keys)
            && !store.is_marked().await.map_err(failed)?;
        if is_unknown && !was_embedded {
            let why = format!(
                "no lock service has served from this etcd under the prefix {:?}, though these \
                 keys have signed tickets: its tokens may be below theirs. Start with --init, if \
                 the store is new; or remove the keys too, if nobody uses what they have signed",
                cluster.prefix
            );
            self.refuse_unless_init(&self.keys, &why)?;
        }
        if was_embedded || is_lost || is_unread || is_unknown {
            let above = self.above_what_is_known(seen).await?;
            store.raise_above(above).await.map_err(failed)?;
            tracing::warn!(%above, "another store than before: its tokens begin above this");
            put_back::put_back(&store, &self.proxies).await?;
        }
        self.mark(&store, seen).await?;
        leave(&self.file)?;
        leave(&self.latest)?;
        Ok(store)
    }

    /// Opens it behind what was seen of it. True: it is not that one, or went back, and is taken
    /// all the same.
    async fn open_after(
        &self,
        cluster: &etcd::EtcdConfig,
        seen: Option<Seen>,
    ) -> Result<(EtcdStore, bool), Failure> {
        let (error, seen) = match (EtcdStore::open_after(cluster, seen).await, seen) {
            (Ok(store), _) => return Ok((store, false)),
            (Err(error), Some(seen)) => (error, seen),
            (Err(error), None) => return Err(Failure::because("etcd", error)),
        };
        if !matches!(error, StoreError::Corrupt(_)) {
            return Err(Failure::because("etcd", error));
        }
        if !self.init {
            let hint = format!("{error} (seen before: {seen}; --init starts all the same)");
            return Err(Failure::because("etcd", hint));
        }
        tracing::warn!(%error, %seen, "etcd is taken as it is");
        let store = EtcdStore::open(cluster).await;
        let store = store.map_err(|error| Failure::because("etcd", error))?;
        Ok((store, true))
    }

    /// Before any token is told: from here on this etcd is known again.
    async fn mark(&self, store: &EtcdStore, before: Option<Seen>) -> Result<(), Failure> {
        let marked = match store.mark().await {
            Ok(seen) => seen,
            // It gives out no token as long as that lasts, and who holds a lock may go on.
            Err(StoreError::Unavailable(why)) if why == NO_SPACE && before.is_some() => {
                tracing::warn!(why, "etcd: no new mark");
                return Ok(());
            }
            Err(error) => return Err(Failure::because("etcd", error)),
        };
        durable_file::write(&self.seen, &marked.to_string())
            .map_err(|error| Failure::because(self.seen.display(), error))
    }

    fn refuse_unless_init(&self, what: &Path, why: &str) -> Result<(), Failure> {
        match self.init {
            true => Ok(()),
            false => Err(Failure::because(what.display(), why)),
        }
    }

    /// At or above every token that is known here to be out, and those that are not by the time:
    /// no store has granted more than one lock in each millisecond since 1970, or since it began
    /// above what was known. Only a clock that was ahead at that moment breaks that, and a proxy
    /// that has lifted the tokens since.
    async fn above_what_is_known(&self, seen: Option<Seen>) -> Result<Token, Failure> {
        let path = &self.file;
        let failed = |error| {
            let hint = "without this file --init goes by the time alone";
            Failure::because(path.display(), format!("its tokens: {error}; {hint}"))
        };
        // Of an embedded store that is lost it tells where it began.
        let seen = seen.or_else(|| seen::read(&left(&self.seen)).ok().flatten());
        let began = seen.map_or(0, |seen| seen.highest().get());
        let by_time = began.saturating_add(clock::unix_ms().max(1));
        let seen = self.read_latest()?.map_or(0, Token::get);
        let above = by_time.max(seen.saturating_add(UNSEEN_MAX));
        let above = Token::new(above).unwrap_or(Token::MAX);
        if !EmbeddedStore::exists(path).await.map_err(failed)? {
            return Ok(above);
        }
        let store = EmbeddedStore::open(path).await.map_err(failed)?;
        Ok(store.latest().await.map_err(failed)?.max(above))
    }
}

/// Gives what the store before has left another name, under which it says nothing of the present.
fn leave(path: &Path) -> Result<(), Failure> {
    match std::fs::rename(path, left(path)).and_then(|()| sync_folder(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::because(path.display(), error))
        }
        _ => Ok(()),
    }
}

fn left(path: &Path) -> PathBuf {
    let mut left = path.as_os_str().to_owned();
    left.push(".left");
    left.into()
}
