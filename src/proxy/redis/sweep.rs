//! Ending the client sessions of a server whose records were lost with the store: all of them, but
//! the one that asks.

use super::control::{Control, ControlError, RunId};
use crate::proxy::lost;

/// Most sessions of one exchange with the server.
const BATCH_SESSIONS_MAX: usize = 256;

/// The sweep of one listener's server.
pub(super) struct Sweep {
    control: Control,
    /// The clients that are to go, of one life of the server, once they were listed.
    open: Option<(RunId, Vec<u64>)>,
}

impl Sweep {
    pub(super) fn new(control: Control) -> Sweep {
        Sweep {
            control,
            open: None,
        }
    }

    async fn end(&mut self) -> Result<usize, ControlError> {
        let (run_id, ids) = match &self.open {
            Some(open) => open.clone(),
            None => self.control.other_clients().await?,
        };
        // A try that fails leaves all of them.
        self.open = Some((run_id.clone(), ids.clone()));
        let mut still = vec![];
        for batch in ids.chunks(BATCH_SESSIONS_MAX) {
            still.extend(self.control.kill_and_list(&run_id, batch).await?);
        }
        let count = still.len();
        self.open = Some((run_id, still));
        Ok(count)
    }
}

impl lost::Sweep for Sweep {
    async fn sweep(&mut self) -> Result<usize, String> {
        self.end().await.map_err(|error| error.to_string())
    }
}
