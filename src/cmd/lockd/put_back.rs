//! The proxies that were seen before, put back into the set of another store than before: a proxy
//! that runs and is not in the set is not asked to seal its grants, and lets holders of the time
//! before in until it registers again, or for ever where it does not reach this lockd.

use std::io::ErrorKind;
use std::path::Path;

use crate::cmd::exit::Failure;
use crate::lockd::seen_proxies::{SeenError, SeenProxies};
use crate::store::Store;

/// What the file says; `None`: there is none, or it does not tell.
fn read(path: &Path) -> Result<Option<SeenProxies>, Failure> {
    match SeenProxies::open(path) {
        Err(SeenError::File { source, .. }) if source.kind() == ErrorKind::InvalidData => {
            tracing::warn!(path = %path.display(), %source, "not used");
            Ok(None)
        }
        read => read.map_err(failed),
    }
}

/// The records that another store than before is to have. They must be in it before it is known for
/// the store: from then on it knows best.
pub(super) async fn records(path: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let Some(seen) = read(path)? else {
        tracing::warn!(
            "this store may not know every proxy: one that has run since before admits older \
             holders beside those that are granted now. Every proxy has to be stopped before \
             grants are used, and may be started again then"
        );
        return Ok(vec![]);
    };
    let records = seen.records().await;
    tracing::warn!(
        count = records.len(),
        "proxies that were seen before are in the set: a lock that one of them guards is granted \
         when it answers, or was taken out"
    );
    Ok(records)
}

/// Puts them into a store that others may have written to.
pub(super) async fn put_back(store: &dyn Store, path: &Path) -> Result<(), Failure> {
    let failed = |error| failed(SeenError::Store(error));
    for (name, value) in records(path).await? {
        // One that is there has registered since.
        store
            .replace_record(&name, None, value)
            .await
            .map_err(failed)?;
    }
    tracing::warn!(
        "a proxy that registered through another lockd in the last seconds of the store before may \
         not be in the set: such a one has to be stopped before grants are used"
    );
    Ok(())
}

/// Begins the file with what stands in the store, which goes on: only an operator takes a proxy out
/// of it.
pub(super) async fn begin(store: &dyn Store, path: &Path) -> Result<(), Failure> {
    let seen = read(path)?.unwrap_or_else(|| SeenProxies::new(path));
    seen.begin(store).await.map_err(failed)
}

fn failed(error: SeenError) -> Failure {
    Failure::because("proxies", error)
}
