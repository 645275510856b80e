//! Sessions are ended, and told to be gone only when they are; what an earlier run has left is
//! ended by the next one.

use std::time::Duration;

use ringfence::proxy::left::Left;
use ringfence::proxy::postgres::control::{Control, SessionId};
use ringfence::proxy::postgres::evict::Evictor;
use ringfence::proxy::postgres::sessions::Sessions;
use ringfence::proxy::watermarks::Watermarks;
use rustix::process::Signal;
use tokio::sync::oneshot::error::TryRecvError;

use crate::fixture::{PATIENCE, Session, Store, config, control_of, eventually, lock};
use crate::postgres::{CONTROL, Postgres};

const BACKEND: &str = "db:5432";

/// An evictor at work, without anything left.
fn evictor(watermarks: &Watermarks, control: &Control) -> Evictor {
    let sessions = Sessions::new(BACKEND.to_owned(), watermarks.clone());
    let evictor = Evictor::new(sessions, Left::default(), vec![]);
    tokio::spawn(evictor.clone().run(control.clone()));
    evictor
}

async fn is_listed(watcher: &Session, pid: i32) -> bool {
    let listed = "SELECT 1 FROM pg_stat_activity WHERE pid = $1";
    let rows = watcher.client.query(listed, &[&pid]).await;
    !rows.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_gone_when_it_is_told_whatever_they_do() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let evictor = evictor(&watermarks, &control);
    let watcher = Session::connect_as(&server, "postgres", "postgres").await;
    watcher
        .run("CREATE TABLE t (n int); GRANT ALL ON t TO app")
        .await;
    let idle = Session::connect_as(&server, "app", "postgres").await;
    let in_transaction = Session::connect_as(&server, "app", "postgres").await;
    in_transaction.run("BEGIN; INSERT INTO t VALUES (1)").await;
    let asleep = Session::connect_as(&server, "app", "postgres").await;
    let mut ids = vec![];
    for session in [&idle, &in_transaction, &asleep] {
        ids.push(session.id(&control).await);
    }
    let sleep = asleep.client.simple_query("SELECT pg_sleep(600)");
    let end = async {
        for id in ids {
            let pid = id.pid;
            tokio::time::timeout(PATIENCE, evictor.end(id))
                .await
                .expect("the session is ended")
                .expect("the evictor lives");
            assert!(!is_listed(&watcher, pid).await);
        }
    };
    let (slept, ()) = tokio::join!(sleep, end);
    assert!(slept.is_err());
    let rows = watcher.client.query("SELECT n FROM t", &[]).await;
    assert!(rows.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_backend_is_not_gone_before_it_is() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let evictor = evictor(&watermarks, &control);
    let session = Session::connect(&server).await;
    let other = Session::connect(&server).await;
    let (id, other_id) = (session.id(&control).await, other.id(&control).await);
    server.signal(session.pid, Signal::STOP);
    let mut gone = evictor.end(id);
    // Others are ended while it is stopped.
    let ended = tokio::time::timeout(PATIENCE, evictor.end(other_id)).await;
    ended.expect("the other session is ended").unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
    server.signal(session.pid, Signal::CONT);
    let ended = tokio::time::timeout(PATIENCE, gone).await;
    ended.expect("the session is ended").unwrap();
    assert!(!session.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_session_with_the_same_pid_is_left_alone() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let evictor = evictor(&watermarks, &control);
    let session = Session::connect(&server).await;
    let earlier = SessionId {
        started: session.id(&control).await.started - 1,
        ..session.id(&control).await
    };
    let gone = tokio::time::timeout(PATIENCE, evictor.end(earlier)).await;
    gone.expect("it is gone long since").unwrap();
    assert!(session.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_seen_is_not_gone() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let evictor = evictor(&watermarks, &control);
    let admin = Session::connect_as(&server, "postgres", "postgres").await;
    let session = Session::connect(&server).await;
    let id = session.id(&control).await;
    let role = CONTROL.0;
    admin
        .run(&format!("REVOKE pg_read_all_stats FROM {role}"))
        .await;
    let mut gone = evictor.end(id);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
    assert!(session.answers().await);
    admin
        .run(&format!("GRANT pg_read_all_stats TO {role}"))
        .await;
    let ended = tokio::time::timeout(PATIENCE, gone).await;
    ended.expect("the session is ended").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_session_that_may_not_be_ended_does_not_keep_the_others() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let admin = Session::connect_as(&server, "postgres", "postgres").await;
    let (raised, other) = (
        Session::connect_as(&server, "other", "postgres").await,
        Session::connect(&server).await,
    );
    let (raised_id, other_id) = (raised.id(&control).await, other.id(&control).await);
    admin.run("ALTER ROLE other SUPERUSER").await;
    let evictor = evictor(&watermarks, &control);
    let mut kept = evictor.end(raised_id);
    let ended = tokio::time::timeout(PATIENCE, evictor.end(other_id)).await;
    ended.expect("the other session is ended").unwrap();
    assert_eq!(kept.try_recv(), Err(TryRecvError::Empty));
    assert!(raised.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_run_has_left_is_ended_and_forgotten() {
    let server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let session = Session::connect(&server).await;
    let (clean, id) = (Session::connect(&server).await, session.id(&control).await);
    let clean_id = clean.id(&control).await;
    let (watermarks, _) = store.open();
    let sessions = Sessions::new(BACKEND.to_owned(), watermarks.clone());
    let locks = [lock("a"), lock("b")];
    sessions.record(&id, &locks).await.unwrap();
    sessions.record(&clean_id, &locks).await.unwrap();
    // One that has ended with nothing in doubt is not left.
    sessions.forget(&clean_id);

    let (watermarks, _) = store.open();
    let earlier = watermarks.sessions().unwrap();
    assert_eq!(earlier.len(), 1);
    assert_eq!(earlier[0].locks, locks);
    let left = Left::new(&earlier);
    assert!(left.is_pending(&lock("a")));
    let sessions = Sessions::new(BACKEND.to_owned(), watermarks.clone());
    let evictor = Evictor::new(sessions, left.clone(), earlier);
    tokio::spawn(evictor.run(control));
    eventually("the session is gone", async || !left.is_pending(&lock("b"))).await;
    assert!(!session.answers().await);
    assert!(clean.answers().await);
    eventually("its rows are gone", async || {
        watermarks.sessions().unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_a_server_that_was_restarted_is_gone() {
    let mut server = Postgres::start();
    let control = control_of(&config(&server));
    let mut store = Store::new();
    let (watermarks, _) = store.open();
    let id = Session::connect(&server).await.id(&control).await;
    server.crash();
    let evictor = evictor(&watermarks, &control);
    let mut gone = evictor.end(id);
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Nobody has answered.
    assert_eq!(gone.try_recv(), Err(TryRecvError::Empty));
    server.start_again();
    let ended = tokio::time::timeout(PATIENCE, gone).await;
    ended.expect("the session is gone").unwrap();
}
