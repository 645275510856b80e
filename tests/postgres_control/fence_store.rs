//! Two proxies before one server, which share nothing else.

use std::time::Duration;

use ringfence::config::PostgresListenerConfig;
use ringfence::lock_name::LockPattern;
use ringfence::protocol::Code;
use ringfence::proxy::floors::BackendFloors;
use ringfence::proxy::gates::{Gates, LastGate};
use ringfence::proxy::postgres::control::Control;
use ringfence::proxy::postgres::fence_store::{FenceStore, InstallError, install};
use ringfence::proxy::postgres::prepared::Prepared;
use rustix::process::Signal;
use tokio::time::Instant;

use crate::fixture::{
    PATIENCE, Session, Store, claim, config_as, control_of, eventually, lock, soon,
};
use crate::postgres::{APP, CONTROL, Postgres};

const BACKEND_STORE: &str = "[watermarks]\nstore = \"backend\"";
const LONG: Duration = Duration::from_secs(3600);

fn config(server: &Postgres) -> PostgresListenerConfig {
    let mut config = config_as(server, CONTROL, BACKEND_STORE);
    config.control.as_mut().unwrap().database = APP.to_owned();
    config
}

/// A server with the schema, and a superuser's session in its database.
async fn installed() -> (Postgres, Session) {
    let server = Postgres::start();
    let admin = Session::connect_as(&server, "postgres", APP).await;
    admin
        .run(&format!("GRANT CREATE ON DATABASE app TO {}", CONTROL.0))
        .await;
    install(&config(&server)).await.unwrap();
    (server, admin)
}

struct Proxy {
    control: Control,
    gates: Gates,
    fence: FenceStore,
    _store: Store,
}

impl Proxy {
    /// It waits so long for the others.
    fn new(server: &Postgres, patience: Duration) -> Proxy {
        let control = control_of(&config(server));
        let (mut store, mut fence) = (Store::new(), None);
        let gates = store.gates(|run| {
            let patterns = vec![LockPattern::new("**").unwrap()];
            let store = FenceStore::new(control.clone(), patterns, None, run.to_owned(), patience);
            fence = Some(store.clone());
            vec![BackendFloors::Postgres(store)]
        });
        Proxy {
            control,
            gates,
            fence: fence.unwrap(),
            _store: store,
        }
    }

    /// Answers the others from now on.
    fn run(self) -> Proxy {
        tokio::spawn(self.fence.clone().run(self.gates.clone()));
        self
    }

    /// As a session presents: its own gate, then the server.
    async fn hold(&self, session: &Session, token: u64) -> Result<(), Code> {
        let (claim, id) = (claim("a", token), session.id(&self.control).await);
        let settled = self.gates.settle(&claim, None, soon()).await;
        settled.map_err(|refusal| refusal.code)?;
        let held = self.fence.hold(&claim, &id, soon()).await;
        held.map_err(|refusal| refusal.code)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_passes_and_lower_fails_at_every_proxy() {
    let (server, _admin) = installed().await;
    let one = Proxy::new(&server, Duration::ZERO).run();
    let other = Proxy::new(&server, Duration::ZERO).run();
    let (a, b) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(one.hold(&a, 7).await, Ok(()));
    assert_eq!(other.hold(&b, 7).await, Ok(()));
    assert_eq!(other.hold(&b, 6).await, Err(Code::Stale));
    assert!(a.answers().await && b.answers().await);
    // A proxy that knows nothing of it yet.
    let late = Proxy::new(&server, Duration::ZERO).run();
    let c = Session::connect(&server).await;
    assert_eq!(late.hold(&c, 6).await, Err(Code::Stale));
    assert_eq!(late.hold(&c, 7).await, Ok(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_gives_up_what_another_has_raised_and_its_session_lives() {
    let (server, _admin) = installed().await;
    let one = Proxy::new(&server, LONG).run();
    let other = Proxy::new(&server, LONG).run();
    let (a, b) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(one.hold(&a, 7).await, Ok(()));
    assert_eq!(other.hold(&b, 8).await, Ok(()));
    assert!(a.answers().await);
    assert_eq!(one.hold(&a, 7).await, Err(Code::Stale));
    // It can go on under a newer one.
    assert_eq!(one.hold(&a, 9).await, Ok(()));
    assert_eq!(other.hold(&b, 8).await, Err(Code::Stale));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_at_another_proxy_is_awaited() {
    let (server, _admin) = installed().await;
    let one = Proxy::new(&server, LONG).run();
    let other = Proxy::new(&server, LONG).run();
    let (a, b) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(one.hold(&a, 7).await, Ok(()));
    let (mut last, seven) = (LastGate::default(), [claim("a", 7)]);
    let admitted = one.gates.admit(&seven, &mut last, Duration::ZERO, soon());
    let mut flight = admitted.await.unwrap();
    flight.forward().unwrap();
    let held = tokio::spawn(async move { other.hold(&b, 8).await });
    let revoked = std::future::poll_fn(|cx| flight.poll_revoked(cx));
    tokio::time::timeout(PATIENCE, revoked)
        .await
        .expect("the older write is revoked");
    assert!(!held.is_finished());
    flight.finish();
    assert_eq!(held.await.unwrap(), Ok(()));
    assert!(a.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sessions_of_a_proxy_that_does_not_answer_are_ended() {
    let (server, _admin) = installed().await;
    let silent = Proxy::new(&server, LONG);
    let other = Proxy::new(&server, Duration::from_millis(50)).run();
    let (a, idle) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(silent.hold(&a, 7).await, Ok(()));
    a.run("BEGIN; CREATE TABLE late (n int)").await;
    let b = Session::connect(&server).await;
    assert_eq!(other.hold(&b, 8).await, Ok(()));
    assert!(!a.answers().await);
    // It has held nothing.
    assert!(idle.answers().await);
    let made = b
        .client
        .query_one("SELECT to_regclass('late') IS NULL", &[])
        .await;
    assert!(made.unwrap().get::<_, bool>(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_does_not_end_keeps_the_newer_one_out() {
    let (server, _admin) = installed().await;
    let silent = Proxy::new(&server, LONG);
    let other = Proxy::new(&server, Duration::ZERO).run();
    let (a, b) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(silent.hold(&a, 7).await, Ok(()));
    server.signal(a.pid, rustix::process::Signal::STOP);
    let (newer, id) = (claim("a", 8), b.id(&other.control).await);
    let deadline = Instant::now() + Duration::from_millis(300);
    let refused = other.fence.hold(&newer, &id, deadline).await.unwrap_err();
    assert_eq!(refused.code, Code::Busy);
    let deadline = Instant::now() + Duration::from_millis(300);
    let refused = other.gates.settle(&newer, None, deadline).await;
    assert_eq!(refused.unwrap_err().code, Code::Busy);
    server.signal(a.pid, rustix::process::Signal::CONT);
    other.gates.settle(&newer, None, soon()).await.unwrap();
    other.fence.hold(&newer, &id, soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seal_and_a_close_at_one_proxy_count_at_every_other() {
    let (server, _admin) = installed().await;
    let one = Proxy::new(&server, LONG).run();
    let other = Proxy::new(&server, LONG).run();
    let a = Session::connect(&server).await;
    assert_eq!(one.hold(&a, 7).await, Ok(()));
    // No session of that proxy is concerned.
    other
        .gates
        .settle(&claim("a", 8), None, soon())
        .await
        .unwrap();
    assert_eq!(one.hold(&a, 7).await, Err(Code::Stale));
    assert_eq!(one.hold(&a, 8).await, Ok(()));
    let floor = other.gates.close(&claim("a", 8), soon()).await;
    assert_eq!(floor.unwrap(), 9);
    assert_eq!(one.hold(&a, 8).await, Err(Code::Stale));
    assert_eq!(one.hold(&a, 9).await, Ok(()));
    assert!(a.answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_has_closed_the_lock_gives_it_up() {
    let (server, admin) = installed().await;
    let controls = async || {
        let listed =
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'ringfence control'";
        let rows = admin.client.query(listed, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    eventually("the installer is gone", async || {
        controls().await.is_empty()
    })
    .await;
    let closed = Proxy::new(&server, LONG);
    let (a, b) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(closed.hold(&a, 7).await, Ok(()));
    // The close is known to this proxy alone: its connection is lost before the server hears of it.
    let pid = controls().await[0];
    server.signal(pid, Signal::STOP);
    let deadline = Instant::now() + Duration::from_millis(100);
    let late = closed.gates.close(&claim("a", 20), deadline).await;
    assert_eq!(late.unwrap_err().code, Code::Busy);
    server.signal(pid, Signal::TERM);
    server.signal(pid, Signal::CONT);
    eventually("it is gone", async || controls().await.is_empty()).await;
    let other = Proxy::new(&server, LONG).run();
    let closed = closed.run();
    // It gives its session up, and makes up for the close.
    assert_eq!(other.hold(&b, 8).await, Err(Code::Stale));
    let left = "SELECT count(*) FROM ringfence.session WHERE token < 8";
    let left = admin.client.query_one(left, &[]).await.unwrap();
    assert_eq!(left.get::<_, i64>(0), 0);
    assert_eq!(other.hold(&b, 21).await, Ok(()));
    // Nothing had to be terminated.
    assert!(a.answers().await && b.answers().await);
    assert_eq!(closed.hold(&a, 9).await, Err(Code::Stale));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_prepared_transactions_are_every_proxys() {
    let (server, admin) = installed().await;
    let one = Proxy::new(&server, LONG).run();
    let mut other = Proxy::new(&server, LONG);
    let a = Session::connect(&server).await;
    let id = a.id(&one.control).await;
    let shared = |proxy: &mut Proxy| {
        let watermarks = proxy._store.open().0;
        Prepared::kept_by(
            Some(proxy.fence.clone()),
            "db".to_owned(),
            watermarks,
            vec![],
        )
    };
    let (here, there) = {
        let mut again = Proxy::new(&server, LONG);
        (shared(&mut again), shared(&mut other))
    };
    let used = here.record("x", &[claim("a", 7)], Some(&id)).await.unwrap();
    let known = there.ask("x").await.unwrap().unwrap();
    assert_eq!(known.locks, [lock("a")]);
    assert_eq!(there.ask("y").await.unwrap(), None);
    // The name is used again by another proxy, and this use fails.
    let again = there
        .record("x", &[claim("b", 7)], Some(&id))
        .await
        .unwrap();
    let both = here.ask("x").await.unwrap().unwrap();
    assert_eq!(both.locks, [lock("a"), lock("b")]);
    there.failed("x", again);
    eventually("it is taken back", async || {
        here.ask("x").await.unwrap().unwrap().locks == [lock("a")]
    })
    .await;
    there.ended("x", known.last);
    eventually("it has ended", async || {
        here.ask("x").await.unwrap().is_none()
    })
    .await;
    assert_ne!(used, again);
    // What was never prepared goes when its session has ended; what is prepared stays.
    a.run("BEGIN; CREATE TABLE t (a int)").await;
    for name in ["kept", "never"] {
        here.record(name, &[claim("a", 7)], Some(&id))
            .await
            .unwrap();
    }
    a.run("PREPARE TRANSACTION 'kept'").await;
    admin.run("SELECT ringfence.forget_unprepared()").await;
    assert!(here.ask("never").await.unwrap().is_some());
    drop(a);
    eventually("it is forgotten", async || {
        here.ask("never").await.unwrap().is_none()
    })
    .await;
    assert!(here.ask("kept").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_are_forgotten() {
    let (server, admin) = installed().await;
    let proxy = Proxy::new(&server, Duration::ZERO).run();
    let a = Session::connect(&server).await;
    assert_eq!(proxy.hold(&a, 7).await, Ok(()));
    let count = "SELECT count(*) FROM ringfence.session";
    let sessions = async || {
        let row = admin.client.query_one(count, &[]).await.unwrap();
        row.get::<_, i64>(0)
    };
    assert_eq!(sessions().await, 1);
    drop(a);
    eventually("the session is forgotten", async || sessions().await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_schema_nobody_is_let_in() {
    let server = Postgres::start();
    let config = config(&server);
    let refused = control_of(&config).check().unwrap_err().to_string();
    assert!(refused.contains("--install"), "{refused}");
    // The control role may not make one.
    let refused = install(&config).await.unwrap_err();
    assert!(matches!(refused, InstallError::Denied { .. }), "{refused}");
    let grant = "GRANT CREATE ON DATABASE \"app\" TO \"ringfence_control\"";
    assert!(refused.to_string().contains(grant), "{refused}");
    let proxy = Proxy::new(&server, Duration::ZERO);
    let session = Session::connect(&server).await;
    let (seven, id) = (claim("a", 7), session.id(&proxy.control).await);
    let deadline = Instant::now() + Duration::from_millis(100);
    let refused = proxy.fence.hold(&seven, &id, deadline).await.unwrap_err();
    assert_eq!(refused.code, Code::Busy);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_made_once_and_nobody_elses() {
    let (server, _admin) = installed().await;
    let proxy = Proxy::new(&server, Duration::ZERO).run();
    let a = Session::connect(&server).await;
    assert_eq!(proxy.hold(&a, 7).await, Ok(()));
    // Again: what is there is kept.
    install(&config(&server)).await.unwrap();
    let late = Proxy::new(&server, Duration::ZERO).run();
    assert_eq!(late.hold(&a, 6).await, Err(Code::Stale));
    control_of(&config(&server)).check().unwrap();
    for statement in [
        "SELECT * FROM ringfence.lock",
        "DELETE FROM ringfence.session",
        "SELECT ringfence.give_up('a', 100, 'x')",
    ] {
        let error = a.client.batch_execute(statement).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_table_takes_writes_of_current_holders_only() {
    let (server, admin) = installed().await;
    admin
        .run(
            "CREATE TABLE orders (n int); GRANT ALL ON orders TO app; \
             CREATE TRIGGER ringfence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON orders \
             FOR EACH STATEMENT EXECUTE FUNCTION ringfence.guard('a')",
        )
        .await;
    let proxy = Proxy::new(&server, Duration::ZERO).run();
    let (a, past) = (
        Session::connect(&server).await,
        Session::connect(&server).await,
    );
    assert_eq!(proxy.hold(&a, 7).await, Ok(()));
    a.run("INSERT INTO orders VALUES (1)").await;
    for statement in ["INSERT INTO orders VALUES (2)", "TRUNCATE orders"] {
        let error = past.client.batch_execute(statement).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "RF002", "{statement}");
    }
    // What holds no longer may not write either.
    let b = Session::connect(&server).await;
    assert_eq!(proxy.hold(&b, 8).await, Ok(()));
    let error = a.client.batch_execute("DELETE FROM orders").await;
    assert_eq!(error.unwrap_err().code().unwrap().code(), "RF002");
    b.run("DELETE FROM orders").await;
}
