//! Keeps what was seen of etcd in a file, for the next start.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cmd::exit::Failure;
use crate::store::embedded::sync_folder;
use crate::store::etcd::{EtcdStore, Seen};

/// How often that is written down, where it has changed.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// What the file says; `None`: there is none.
pub(super) fn read(path: &Path) -> Result<Option<Seen>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.parse() {
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

/// Writes it, durably, and whole or not at all.
pub(super) fn write(path: &Path, seen: Seen) -> std::io::Result<()> {
    let partial = path.with_extension("new");
    let mut file = std::fs::File::create(&partial)?;
    file.write_all(seen.to_string().as_bytes())?;
    // Before it has its name: an empty file would keep a lockd from starting.
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    sync_folder(path)
}

/// Writes down what is seen of etcd.
pub(super) struct Follower {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Follower {
    pub(super) fn start(store: Arc<EtcdStore>, path: PathBuf) -> Follower {
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

/// Marks etcd where that is due, and writes down what is not known to be in the file.
async fn note(store: &EtcdStore, path: &Path, known: &mut Option<Seen>) {
    if store.mark_is_due()
        && let Err(error) = store.mark().await
    {
        tracing::warn!(%error, "etcd: no new mark");
    }
    let seen = store.seen();
    let Some(seen) = seen.filter(|_| seen != *known) else {
        return;
    };
    let file = path.to_owned();
    // A panic of it has been reported by itself.
    match tokio::task::spawn_blocking(move || write(&file, seen)).await {
        Ok(Err(error)) => tracing::warn!(%error, path = %path.display(), "not written"),
        _ => *known = Some(seen),
    }
}
