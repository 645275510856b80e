//! Opens the store of a lockd, and refuses one that is not the one that was there before: its
//! tokens would fall below those that are out.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::cmd::exit::Failure;
use crate::config::{EtcdConfig, LockdConfig, StoreConfig};
use crate::lockd::SigningKeys;
use crate::store::Store;
use crate::store::embedded::EmbeddedStore;
use crate::store::etcd::{self, EtcdStore, Seen};
use crate::token::Token;

/// The embedded store's file in `data_dir`.
const STORE_FILE: &str = "locks.redb";
/// In `data_dir`: what was seen of etcd.
const SEEN_FILE: &str = "etcd.seen";
/// How often that is written down, where it has changed.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// Opens it. `init`: also where it is another one than before.
pub(super) async fn open_store(
    config: &LockdConfig,
    init: bool,
) -> Result<(Arc<dyn Store>, Option<Follower>), Failure> {
    let folder = &config.data_dir;
    std::fs::create_dir_all(folder).map_err(|error| Failure::because(folder.display(), error))?;
    match &config.store {
        StoreConfig::Embedded => {
            let store = open_embedded(&folder.join(STORE_FILE), &config.keys_dir(), init).await?;
            Ok((Arc::new(store), None))
        }
        StoreConfig::Etcd(cluster) => {
            let path = folder.join(SEEN_FILE);
            let store = Arc::new(open_etcd(cluster, &path, init).await?);
            let follower = Follower::start(Arc::clone(&store), path);
            Ok((store, Some(follower)))
        }
    }
}

async fn open_embedded(path: &Path, keys: &Path, init: bool) -> Result<EmbeddedStore, Failure> {
    let failed = |error| Failure::because(path.display(), error);
    if !path.exists() && SigningKeys::exist(keys) {
        if !init {
            let keys = keys.display();
            let why = format!(
                "the store is not there, though keys are ({keys}): its tokens would begin again \
                 below those that they have signed. Put it back; or start with --init, if it is \
                 lost or new; or remove the keys too, if nobody uses what they have signed"
            );
            return Err(Failure::because(path.display(), why));
        }
        // No store has granted more than one lock in each millisecond since 1970.
        let above = Token::new(clock::unix_ms()).unwrap_or(Token::MIN);
        EmbeddedStore::create_above(path, above)
            .await
            .map_err(failed)?;
        tracing::warn!(%above, "a new store: its tokens begin above the time");
    }
    EmbeddedStore::open(path).await.map_err(failed)
}

async fn open_etcd(cluster: &EtcdConfig, seen: &Path, init: bool) -> Result<EtcdStore, Failure> {
    let cluster = etcd::EtcdConfig {
        endpoints: cluster.endpoints.clone(),
        prefix: cluster.prefix.clone(),
    };
    let before = match init {
        true => None,
        false => read_seen(seen)?,
    };
    EtcdStore::open_after(&cluster, before)
        .await
        .map_err(|error| {
            let hint = match before {
                Some(before) => format!(" (seen before: {before}; --init starts all the same)"),
                None => String::new(),
            };
            Failure::because("etcd", format!("{error}{hint}"))
        })
}

fn read_seen(path: &Path) -> Result<Option<Seen>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.parse() {
            Ok(seen) => Ok(Some(seen)),
            Err(error) => Err(Failure::because(path.display(), error)),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::because(path.display(), error)),
    }
}

/// Writes down what is seen of etcd, for the next start.
pub(super) struct Follower {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    fn start(store: Arc<EtcdStore>, path: PathBuf) -> Follower {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut known = None;
            loop {
                let last = stopped
                    .run_until_cancelled(tokio::time::sleep(NOTE_EVERY))
                    .await
                    .is_none();
                let seen = store.seen();
                if let Some(seen) = seen.filter(|_| seen != known) {
                    known = Some(seen);
                    let path = path.clone();
                    let writing = tokio::task::spawn_blocking(move || {
                        if let Err(error) = write_seen(&path, seen) {
                            tracing::warn!(%error, path = %path.display(), "not written");
                        }
                    });
                    // A panic of it has been reported by itself.
                    let _ = writing.await;
                }
                if last {
                    return;
                }
            }
        });
        Follower { stop, task }
    }

    /// Once more, and ends.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// Whole or not at all. What a power cut takes of it only makes it older.
fn write_seen(path: &Path, seen: Seen) -> std::io::Result<()> {
    let partial = path.with_extension("new");
    let mut file = std::fs::File::create(&partial)?;
    file.write_all(seen.to_string().as_bytes())?;
    // Before it has its name: an empty file would keep a lockd from starting.
    file.sync_all()?;
    std::fs::rename(&partial, path)
}
