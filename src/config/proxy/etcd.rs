//! What only listeners of protocol = "etcd" have.

use super::listener::{BackendUser, Protocol, value_or_default};
use crate::config::reader::{Found, Report, Table};
use crate::protocol::etcd::fence::FenceKeys;
use crate::protocol::etcd::split::TxnOpsMax;
use crate::protocol::etcd::{EtcdRules, KeylessWrites, LeasedWrites, Snapshots};

/// The keys that only protocol = "etcd" has, without rules.
pub(super) fn read_etcd(
    report: &mut Report<'_>,
    table: &mut Table<'_, '_>,
    protocol: Option<&Found<Protocol>>,
) -> Option<EtcdRules> {
    if protocol?.value != Protocol::Etcd {
        return None;
    }
    let prefix = table.parsed(report, "fence_prefix", "a prefix of keys", FenceKeys::new);
    let keyless = [
        ("refuse", KeylessWrites::Refuse),
        ("pass", KeylessWrites::Pass),
    ];
    let keyless = table.choice(report, "keyless_writes", &keyless);
    let leased = [
        ("refuse", LeasedWrites::Refuse),
        ("pass", LeasedWrites::Pass),
    ];
    let leased = table.choice(report, "leased_writes", &leased);
    let snapshots = [("refuse", Snapshots::Refuse), ("pass", Snapshots::Pass)];
    let snapshots = table.choice(report, "snapshots", &snapshots);
    let ops_max = table.integer(report, "max_txn_ops", 1..=1 << 20);
    for key in ["in_doubt_hold", "truncated_body"] {
        if table.has(key) {
            let path = table.path(key);
            report.error(
                table.at(),
                format!("`{path}` has no meaning for protocol = \"etcd\""),
            );
        }
    }
    let mut rules = EtcdRules::default();
    rules.keys = value_or_default(prefix);
    rules.keyless_writes = value_or_default(keyless);
    rules.leased_writes = value_or_default(leased);
    rules.snapshots = value_or_default(snapshots);
    if let Some(found) = ops_max {
        // The range ends far below what a usize holds.
        rules.txn_ops_max = TxnOpsMax(usize::try_from(found.value).unwrap_or(usize::MAX));
    }
    Some(rules)
}

/// Who the proxy is at an etcd that has users.
pub(super) fn read_backend_user(
    report: &mut Report<'_>,
    table: &mut Table<'_, '_>,
) -> Option<BackendUser> {
    let name = table.text(report, "etcd_user", "the name of a user");
    let file = table.text(report, "etcd_password_file", "a file");
    match (name, file) {
        (Some(name), Some(file)) => Some(BackendUser {
            name: name.value,
            password_file: file.value.into(),
        }),
        (None, None) => None,
        (Some(found), None) | (None, Some(found)) => {
            report.error(found.at, "`etcd_user` and `etcd_password_file` go together");
            None
        }
    }
}
