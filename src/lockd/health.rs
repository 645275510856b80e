//! Whether this lockd can serve, for load balancers and operators: asked of its store now and then.
//!
//! The question is a linearizable read, as every grant begins with: it fails where the store does
//! not answer, is damaged, or was replaced.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::lock_name::LockName;
use crate::lockd::Core;

/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// A lock that nobody needs to hold: only whether its queue can be read counts.
const LOCK: &str = "ringfence/health";

/// What is missing, in a few words for operators.
pub type Verdict = Result<(), String>;

/// Whether a lockd can serve, as far as was found last. Cheap to clone.
#[derive(Clone)]
pub struct Health {
    told: watch::Sender<Verdict>,
}

impl Default for Health {
    fn default() -> Health {
        let unread = Err("the store's state is not read yet".to_owned());
        Health {
            told: watch::Sender::new(unread),
        }
    }
}

impl Health {
    /// What was found last. Never blocks.
    pub fn check(&self) -> Verdict {
        self.told.borrow().clone()
    }

    /// What is found from now on, what was found last included.
    pub(super) fn follow(&self) -> watch::Receiver<Verdict> {
        self.told.subscribe()
    }

    fn tell(&self, verdict: Verdict) {
        self.told.send_if_modified(|told| {
            let changed = *told != verdict;
            if changed && let Err(missing) = &verdict {
                tracing::warn!(missing, "lockd cannot serve");
            }
            *told = verdict;
            changed
        });
    }
}

/// Asks until `stopping`, first when the whole state of the store was read.
pub(super) async fn ask(core: Arc<Core>, stopping: CancellationToken) {
    let run = async {
        let mut synced = core.dispatch.synced();
        // The sender lives in the core.
        let _ = synced.wait_for(|synced| *synced).await;
        loop {
            core.health.tell(answer(&core).await);
            tokio::time::sleep(ASK_EVERY).await;
        }
    };
    stopping.run_until_cancelled(run).await;
}

async fn answer(core: &Core) -> Verdict {
    if !*core.dispatch.synced().borrow() {
        return Err("the store's state is being read anew".to_owned());
    }
    let lock = LockName::new(LOCK).map_err(|error| error.to_string())?;
    match tokio::time::timeout(ANSWER_MAX, core.store.queue(&lock)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the store does not answer".to_owned()),
    }
}
