//! The names of prepared transactions keep their locks, over restarts too.

use std::time::Duration;

use ringfence::proxy::left::Left;
use ringfence::proxy::postgres::prepared::Prepared;
use ringfence::proxy::watermarks::{BackendSession, LeftSession, Watermarks};

use crate::fixture::{Session, Store, claim, config, control_of, eventually, lock};
use crate::postgres::Postgres;

const BACKEND: &str = "db:5432";

fn prepared(watermarks: &Watermarks) -> Prepared {
    let rows = watermarks.prepared().unwrap();
    Prepared::new(BACKEND.to_owned(), watermarks.clone(), rows)
}

#[tokio::test]
async fn a_name_keeps_its_locks_until_it_has_ended() {
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let before = prepared(&watermarks);
    assert_eq!(before.look("x"), None);
    let claims = [claim("b/1", 7), claim("a", 9)];
    before.record("x", &claims, None).await.unwrap();

    // kill -9.
    let (watermarks, _) = store.open();
    let after = prepared(&watermarks);
    let known = after.look("x").unwrap();
    assert_eq!(known.locks, [lock("a"), lock("b/1")]);
    assert_eq!(after.look("y"), None);
    after.ended("x", known.last);
    assert_eq!(after.look("x"), None);
    eventually("its row is gone", async || {
        watermarks.prepared().unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_used_again_keeps_both_uses_apart() {
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let prepared = prepared(&watermarks);
    prepared.record("x", &[claim("a", 7)], None).await.unwrap();
    // It is in use still: the server refuses this one.
    let second = prepared.record("x", &[claim("b", 3)], None).await.unwrap();
    assert_eq!(prepared.look("x").unwrap().locks, [lock("a"), lock("b")]);
    prepared.failed("x", second);
    let known = prepared.look("x").unwrap();
    assert_eq!(known.locks, [lock("a")]);
    // Its COMMIT PREPARED is answered after the name is used again.
    prepared.record("x", &[claim("c", 8)], None).await.unwrap();
    prepared.ended("x", known.last);
    assert_eq!(prepared.look("x").unwrap().locks, [lock("c")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_the_server_does_not_have_goes_at_the_start() {
    let server = Postgres::start();
    let session = Session::connect(&server).await;
    session
        .run("BEGIN; CREATE TABLE t (a int); PREPARE TRANSACTION 'there'")
        .await;
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let before = prepared(&watermarks);
    for name in ["there", "gone"] {
        before.record(name, &[claim("a", 7)], None).await.unwrap();
    }
    // A session of the run before may still prepare what it was about to.
    let (watermarks, _) = store.open();
    let left = LeftSession {
        session: BackendSession {
            backend: BACKEND.to_owned(),
            server: "1/1".to_owned(),
            id: 1,
        },
        locks: vec![lock("a")],
    };
    let sessions = Left::new(std::slice::from_ref(&left));
    let after = prepared(&watermarks);
    let control = control_of(&config(&server));
    let reconciled = tokio::spawn(after.clone().reconcile(control, sessions.clone()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(after.look("gone").is_some());
    sessions.ended(&left);
    reconciled.await.unwrap();
    assert_eq!(after.look("gone"), None);
    assert!(after.look("there").is_some());
}
