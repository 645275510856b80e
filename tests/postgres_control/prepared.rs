//! The names of prepared transactions keep their locks, over restarts too.

use ringfence::proxy::postgres::prepared::Prepared;
use ringfence::proxy::watermarks::Watermarks;

use crate::fixture::{Store, claim, eventually, lock};

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
    before.record("x", &claims).await.unwrap();

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
    prepared.record("x", &[claim("a", 7)]).await.unwrap();
    // It is in use still: the server refuses this one.
    let second = prepared.record("x", &[claim("b", 3)]).await.unwrap();
    assert_eq!(prepared.look("x").unwrap().locks, [lock("a"), lock("b")]);
    prepared.failed("x", second);
    let known = prepared.look("x").unwrap();
    assert_eq!(known.locks, [lock("a")]);
    // Its COMMIT PREPARED is answered after the name is used again.
    prepared.record("x", &[claim("c", 8)]).await.unwrap();
    prepared.ended("x", known.last);
    assert_eq!(prepared.look("x").unwrap().locks, [lock("c")]);
}
