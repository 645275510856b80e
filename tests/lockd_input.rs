//! Malformed requests: each is refused with INVALID_ARGUMENT that names the value, and does
//! nothing.

mod lockd_support;

use std::time::Duration;

use lockd_support::{Service, start};
use ringfence::proto::{
    AcquireRequest, BreakLockRequest, CloseSessionRequest, FloorRequest, GetLockRequest,
    KeepAliveRequest, ListLocksRequest, OpenSessionRequest, RegisterRequest, ReleaseRequest,
    UnregisterRequest, WatchLockRequest,
};
use tonic::{Code, Status};

fn check(what: &str, outcome: Result<(), Status>, names: &str) {
    let status = outcome.expect_err(what);
    assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
    assert!(
        status.message().contains(names),
        "{what}: {:?} lacks {names:?}",
        status.message()
    );
    assert!(status.message().len() < 600, "{what}: the value is cut");
}

#[tokio::test]
async fn lock_names_sessions_tokens_and_bounds() {
    let Service { client, .. } = start().await;
    let session = client.open().await;
    let good = AcquireRequest {
        session: session.clone(),
        lock: "a".to_owned(),
        wait_ms: 0,
        attempt: 1,
        holder: String::new(),
    };
    let long = "x".repeat(256);
    let bad_locks = [
        "", "/", "a/", "/a", "a//b", ".", "..", "a/../b", "a/.", "a\nb", "a\0b", "\u{7f}", &long,
    ];
    let mut table: Vec<(AcquireRequest, &str)> = bad_locks
        .iter()
        .map(|lock| {
            (
                AcquireRequest {
                    lock: (*lock).to_owned(),
                    ..good.clone()
                },
                "lock",
            )
        })
        .collect();
    let bad_sessions = [
        "",
        "0x1",
        "A",
        "01",
        " 1",
        "-1",
        "g",
        "10000000000000000",
        &long,
    ];
    for bad in bad_sessions {
        table.push((
            AcquireRequest {
                session: bad.to_owned(),
                ..good.clone()
            },
            "session",
        ));
    }
    table.push((
        AcquireRequest {
            wait_ms: 86_400_001,
            ..good.clone()
        },
        "wait_ms \"86400001\"",
    ));
    table.push((
        AcquireRequest {
            wait_ms: u64::MAX,
            ..good.clone()
        },
        "wait_ms",
    ));
    table.push((
        AcquireRequest {
            attempt: 1 << 55,
            ..good.clone()
        },
        "attempt",
    ));
    table.push((
        AcquireRequest {
            attempt: u64::MAX,
            ..good.clone()
        },
        "attempt",
    ));
    table.push((
        AcquireRequest {
            holder: "x".repeat(1025),
            ..good.clone()
        },
        "holder",
    ));
    table.push((
        AcquireRequest {
            holder: "\u{1b}[2J".to_owned(),
            ..good.clone()
        },
        "holder",
    ));
    for (request, names) in table {
        let what = format!("{request:?}");
        let outcome = client.locks.clone().acquire(request).await.map(|_| ());
        check(&what, outcome, names);
    }
    assert!(
        client.get("a").await.holder.is_none(),
        "something was granted"
    );

    for (token, names) in [
        (0, "\"0\""),
        (1 << 63, "9223372036854775808"),
        (u64::MAX, "token"),
    ] {
        let request = ReleaseRequest {
            session: session.clone(),
            lock: "a".to_owned(),
            token,
            close: false,
        };
        let outcome = client.locks.clone().release(request).await.map(|_| ());
        check(&format!("release of {token}"), outcome, names);
        let request = BreakLockRequest {
            lock: "a".to_owned(),
            token,
            reason: "r".to_owned(),
        };
        let outcome = client.locks.clone().break_lock(request).await.map(|_| ());
        check(&format!("break of {token}"), outcome, names);
    }
}

#[tokio::test]
async fn every_other_call() {
    let Service { client, .. } = start().await;
    let mut locks = client.locks.clone();
    for ttl_ms in [0, 86_400_001, u64::MAX] {
        let request = OpenSessionRequest {
            ttl_ms,
            holder: String::new(),
        };
        let outcome = locks.open_session(request).await.map(|_| ());
        check("time to live", outcome, &format!("ttl_ms \"{ttl_ms}\""));
    }
    let request = OpenSessionRequest {
        ttl_ms: 5000,
        holder: "x".repeat(1025),
    };
    check(
        "holder",
        locks.open_session(request).await.map(|_| ()),
        "holder",
    );
    let bad = || "a//b".to_owned();
    let outcome = locks
        .get_lock(GetLockRequest { lock: bad() })
        .await
        .map(|_| ());
    check("get", outcome, "a//b");
    let outcome = locks
        .watch_lock(WatchLockRequest { lock: bad() })
        .await
        .map(|_| ());
    check("watch", outcome, "a//b");
    let request = ListLocksRequest {
        prefix: String::new(),
        limit: 0,
        after: bad(),
    };
    check(
        "list after",
        locks.list_locks(request).await.map(|_| ()),
        "a//b",
    );
    let request = ListLocksRequest {
        prefix: "\0".to_owned(),
        limit: 0,
        after: String::new(),
    };
    check(
        "list prefix",
        locks.list_locks(request).await.map(|_| ()),
        "prefix",
    );
    let request = CloseSessionRequest {
        session: "XYZ".to_owned(),
    };
    check(
        "close",
        locks.close_session(request).await.map(|_| ()),
        "XYZ",
    );
    let request = BreakLockRequest {
        lock: "a".to_owned(),
        token: 1,
        reason: "x".repeat(1025),
    };
    check(
        "reason",
        locks.break_lock(request).await.map(|_| ()),
        "reason",
    );
    let requests = tokio_stream::once(KeepAliveRequest {
        session: "XYZ".to_owned(),
    });
    let mut answers = locks.keep_alive(requests).await.unwrap().into_inner();
    check("renewal", answers.message().await.map(|_| ()), "XYZ");
    let request = FloorRequest { lock: bad() };
    check(
        "floor",
        client.registry.clone().floor(request).await.map(|_| ()),
        "a//b",
    );
}

#[tokio::test]
async fn registrations() {
    let Service { client, .. } = start().await;
    let good = RegisterRequest {
        instance: "edge-1".to_owned(),
        store_id: "s".to_owned(),
        admin: "http://127.0.0.1:7431".to_owned(),
        patterns: vec!["a".to_owned()],
        ..RegisterRequest::default()
    };
    let mut table = Vec::new();
    for instance in ["", "a/b", "a b", "ü", &"x".repeat(65)] {
        table.push((
            RegisterRequest {
                instance: instance.to_owned(),
                ..good.clone()
            },
            "instance",
        ));
    }
    for store_id in ["", "a b", &"x".repeat(513)] {
        table.push((
            RegisterRequest {
                store_id: store_id.to_owned(),
                ..good.clone()
            },
            "store_id",
        ));
    }
    for admin in [
        "",
        "nowhere",
        "ftp://a:1",
        "https://a:1",
        "http://a:1/path",
        "http://a:1?q",
    ] {
        table.push((
            RegisterRequest {
                admin: admin.to_owned(),
                ..good.clone()
            },
            "admin",
        ));
    }
    for pattern in ["", "a//b", "**/a", "a*"] {
        let patterns = vec!["fine".to_owned(), pattern.to_owned()];
        table.push((
            RegisterRequest {
                patterns,
                ..good.clone()
            },
            "pattern",
        ));
    }
    let patterns = vec!["a".to_owned(); 1001];
    table.push((
        RegisterRequest {
            patterns,
            ..good.clone()
        },
        "1001",
    ));
    for (request, names) in table {
        let what = format!("{request:?}").chars().take(200).collect::<String>();
        check(
            &what,
            client.registry.clone().register(request).await.map(|_| ()),
            names,
        );
    }
    let request = UnregisterRequest {
        instance: "a b".to_owned(),
        reason: "r".to_owned(),
        sessions_proven_dead: true,
    };
    check(
        "unregister",
        client
            .registry
            .clone()
            .unregister(request)
            .await
            .map(|_| ()),
        "a b",
    );
    let session = client.open().await;
    let granted = client
        .acquire(&session, "a", Duration::ZERO, 1)
        .await
        .unwrap();
    assert!(granted.sealed.is_empty(), "a refused proxy was registered");
}

#[tokio::test]
async fn a_message_beyond_the_limit_is_refused() {
    let Service { client, .. } = start().await;
    let request = GetLockRequest {
        lock: "x".repeat(300 * 1024),
    };
    let status = client.locks.clone().get_lock(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    client.get("a").await;
}
