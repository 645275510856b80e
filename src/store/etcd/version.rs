//! Which versions of etcd tokens can be built on.
//!
//! etcd 3.5.0 to 3.5.2 can lose writes that they have acknowledged when they are killed: the index
//! of the last applied entry is stored before the entry is (etcd, "v3.5 data inconsistency
//! postmortem", issue 13766; mended in 3.5.3). A lost write of ours is a revision, and so a token,
//! that is given out twice.
//!
//! Only the member that answers is looked at: a cluster of several versions is being upgraded.

use super::endpoints::{Endpoints, request, store_error};
use crate::etcd_proto::etcdserverpb::StatusRequest;
use crate::etcd_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use crate::store::StoreError;

const FORGETFUL: &[&str] = &["3.5.0", "3.5.1", "3.5.2"];

/// Refuses a version that forgets what it has acknowledged.
pub async fn check(endpoints: &Endpoints) -> Result<(), StoreError> {
    let status = endpoints
        .call(async |channel| {
            let mut client = MaintenanceClient::new(channel);
            client.status(request(StatusRequest {})).await
        })
        .await
        .map_err(|status| store_error(&status))?;
    check_version(&status.version)
}

fn check_version(version: &str) -> Result<(), StoreError> {
    if FORGETFUL.contains(&version) {
        return Err(StoreError::Refused(format!(
            "etcd {version} can lose what it has acknowledged when it is killed, and a token could \
             be given out twice: upgrade it to 3.5.3 or later"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_version;

    #[test]
    fn versions_that_forget_are_refused() {
        for version in ["3.5.0", "3.5.1", "3.5.2"] {
            let refused = check_version(version).unwrap_err().to_string();
            assert!(refused.contains(version), "{refused}");
        }
        for version in ["3.4.23", "3.5.3", "3.5.16", "3.5.20", "3.6.0"] {
            assert!(check_version(version).is_ok(), "{version}");
        }
    }
}
