//! The methods of etcd's services, 3.4 and 3.5, and what each of them can change.
//!
//! A method that is not named here may be a write of anything.

/// What a method is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// `KV/Range`.
    Range,
    /// `KV/Put`.
    Put,
    /// `KV/DeleteRange`.
    DeleteRange,
    /// `KV/Txn`.
    Txn,
    /// `Watch/Watch`: a stream of events.
    Watch,
    /// `Lease/LeaseRevoke`: deletes the keys that are attached to the lease.
    LeaseRevoke,
    /// `Maintenance/Alarm`: reads alarms, or raises and clears them.
    Alarm,
    /// `Maintenance/Snapshot`: a copy of all that etcd has.
    Snapshot,
    /// A method of the lock or election service: etcd writes keys of its own accord.
    Recipe(Recipe),
    /// Changes no key.
    Read,
    /// Changes no key either, but something that all clients depend on: history, members, users,
    /// the server's state. No lock guards it, and no fence can go with it.
    Keyless,
    /// Not known here.
    Unknown,
}

/// The keys that a method of the lock or election service writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recipe {
    /// A key below the name in field 1, and a `/`.
    BelowName,
    /// The key in field 1.
    Key,
    /// The key in field 2 of the leader in field 1.
    LeaderKey,
    /// None: it reads a key below the name in field 1.
    Reads,
}

/// The method of a path. The path is compared as it is: etcd decodes nothing in it.
pub fn find(path: &str) -> Method {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/'))
    else {
        return Method::Unknown;
    };
    let known = match service {
        "etcdserverpb.KV" => kv(method),
        "etcdserverpb.Watch" => (method == "Watch").then_some(Method::Watch),
        "etcdserverpb.Lease" => lease(method),
        "etcdserverpb.Maintenance" => maintenance(method),
        "etcdserverpb.Cluster" => cluster(method),
        "etcdserverpb.Auth" => auth(method),
        "v3lockpb.Lock" => lock(method),
        "v3electionpb.Election" => election(method),
        "grpc.health.v1.Health" => match method {
            "Check" | "Watch" => Some(Method::Read),
            _ => None,
        },
        _ => None,
    };
    known.unwrap_or(Method::Unknown)
}

fn kv(method: &str) -> Option<Method> {
    Some(match method {
        "Range" => Method::Range,
        "Put" => Method::Put,
        "DeleteRange" => Method::DeleteRange,
        "Txn" => Method::Txn,
        // It ends history, and with it watches that are behind.
        "Compact" => Method::Keyless,
        _ => return None,
    })
}

fn lease(method: &str) -> Option<Method> {
    Some(match method {
        "LeaseRevoke" => Method::LeaseRevoke,
        // A lease without keys changes nothing, and one that lives longer deletes nothing.
        "LeaseGrant" | "LeaseKeepAlive" | "LeaseTimeToLive" | "LeaseLeases" => Method::Read,
        _ => return None,
    })
}

fn maintenance(method: &str) -> Option<Method> {
    Some(match method {
        "Alarm" => Method::Alarm,
        "Status" | "Hash" | "HashKV" => Method::Read,
        "Snapshot" => Method::Snapshot,
        "Defragment" | "MoveLeader" | "Downgrade" => Method::Keyless,
        _ => return None,
    })
}

fn cluster(method: &str) -> Option<Method> {
    Some(match method {
        "MemberList" => Method::Read,
        "MemberAdd" | "MemberRemove" | "MemberUpdate" | "MemberPromote" => Method::Keyless,
        _ => return None,
    })
}

fn auth(method: &str) -> Option<Method> {
    Some(match method {
        "Authenticate" | "AuthStatus" | "UserGet" | "UserList" | "RoleGet" | "RoleList" => {
            Method::Read
        }
        "AuthEnable"
        | "AuthDisable"
        | "UserAdd"
        | "UserDelete"
        | "UserChangePassword"
        | "UserGrantRole"
        | "UserRevokeRole"
        | "RoleAdd"
        | "RoleDelete"
        | "RoleGrantPermission"
        | "RoleRevokePermission" => Method::Keyless,
        _ => return None,
    })
}

fn lock(method: &str) -> Option<Method> {
    Some(match method {
        "Lock" => Method::Recipe(Recipe::BelowName),
        "Unlock" => Method::Recipe(Recipe::Key),
        _ => return None,
    })
}

fn election(method: &str) -> Option<Method> {
    Some(match method {
        "Campaign" => Method::Recipe(Recipe::BelowName),
        "Proclaim" | "Resign" => Method::Recipe(Recipe::LeaderKey),
        "Leader" | "Observe" => Method::Recipe(Recipe::Reads),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Method, find};

    #[test]
    fn only_the_exact_path_of_a_method_is_that_method() {
        assert_eq!(find("/etcdserverpb.KV/Put"), Method::Put);
        assert_eq!(find("/etcdserverpb.Maintenance/Hash"), Method::Read);
        assert_eq!(find("/etcdserverpb.Maintenance/Snapshot"), Method::Snapshot);
        for other in [
            "etcdserverpb.KV/Put",
            "//etcdserverpb.KV/Put",
            "/etcdserverpb.KV/put",
            "/etcdserverpb.KV/Put/",
            "/etcdserverpb.KV/Put?x",
            "/etcdserverpb.KV/%50ut",
            "/v3/kv/put",
            "/",
            "",
        ] {
            assert_eq!(find(other), Method::Unknown, "{other}");
        }
    }
}
