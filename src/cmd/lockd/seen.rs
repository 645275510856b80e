//! Keeps what was seen of a store in a file, for the next start.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cmd::exit::Failure;
use crate::store::durable_file;
use crate::store::embedded::EmbeddedStore;
use crate::store::etcd::EtcdStore;

/// How often that is written down, where it has changed.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// What the file says; `None`: there is none.
pub(super) fn read<T: FromStr<Err: Display>>(path: &Path) -> Result<Option<T>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(seen) => Ok(Some(seen)),
            Err(error) => {
                let why = format!("{error}; --init starts without it");
                Err(Failure::because(path.display(), why))
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::because(path.display(), error)),
    }
}

/// A store of which that is kept.
pub(super) enum Watched {
    /// By the highest token that it has given out.
    Embedded(Arc<EmbeddedStore>),
    /// By [`crate::store::etcd::Seen`].
    Etcd(Arc<EtcdStore>),
}

impl Watched {
    /// What is seen of it now.
    async fn seen(&self) -> Option<String> {
        match self {
            // While it does not answer it gives nothing out.
            Watched::Embedded(store) => store.latest().await.ok().map(|it| it.to_string()),
            Watched::Etcd(store) => {
                if store.mark_is_due()
                    && let Err(error) = store.mark().await
                {
                    tracing::warn!(%error, "etcd: no new mark");
                }
                store.seen().map(|it| it.to_string())
            }
        }
    }
}

/// Writes down what is seen of a store.
pub(super) struct Follower {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    pub(super) fn start(store: Watched, path: PathBuf) -> Follower {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut known = None;
            loop {
                let last = stopped
                    .run_until_cancelled(tokio::time::sleep(NOTE_EVERY))
                    .await
                    .is_none();
                note(&store, &path, &mut known).await;
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

/// Writes down what is not known to be in the file.
async fn note(store: &Watched, path: &Path, known: &mut Option<String>) {
    let Some(seen) = store
        .seen()
        .await
        .filter(|seen| known.as_ref() != Some(seen))
    else {
        return;
    };
    let (file, text) = (path.to_owned(), seen.clone());
    let write = move || durable_file::write(&file, &text);
    // A panic of it has been reported by itself.
    match tokio::task::spawn_blocking(write).await {
        Ok(Err(error)) => tracing::warn!(%error, path = %path.display(), "not written"),
        _ => *known = Some(seen),
    }
}
