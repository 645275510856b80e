//! A database's catalog is loaded, kept, and loaded again when it may be wrong.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence::protocol::Unmatched;
use ringfence::protocol::postgres::classify::{Classifier, Lexing};
use ringfence::protocol::postgres::resolve::{
    Catalog, PostgresRule, PostgresRules, Required, Resolution, View, resolve,
};
use ringfence::proxy::postgres::catalog::{CatalogError, Catalogs, Changes, Database};

use crate::fixture::{Session, config, control_of, eventually, lock};
use crate::postgres::{APP, CONTROL, Postgres};

const HOUR: Duration = Duration::from_secs(3600);

fn database(server: &Postgres, age_max: Duration) -> Arc<Database> {
    let reading = [("free".into(), "known".into())];
    let catalogs = Catalogs::new(
        control_of(&config(server)),
        &reading,
        age_max,
        Changes::default(),
    );
    catalogs.database(APP).unwrap()
}

/// What a statement needs where the schema `public` is guarded, table by table.
fn needs(catalog: &Catalog, statement: &str) -> Resolution {
    let rule = PostgresRule::new(None, None, Some("public.{table}"), "{table}").unwrap();
    let rules = PostgresRules::new(vec![rule], Unmatched::Pass);
    let view = View {
        catalog,
        database: APP,
        user: APP,
        search_path: None,
        temporary: &[],
        shadowed: &[],
        definitions: &[],
        made: &[],
        redefined: false,
        sure: false,
    };
    let classified = Classifier::new().classify(statement.as_bytes(), Lexing::CERTAIN);
    resolve(&classified.statements[0], &[], &view, &rules)
}

fn locks(names: &[&str]) -> Required {
    Required::Write(names.iter().map(|name| lock(name)).collect())
}

/// By nested loops over what depends on them this takes minutes, far longer than a load may.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_tables_that_were_just_made_are_loaded() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    app.run("CREATE TABLE base (a int)").await;
    app.run(
        "DO $$ BEGIN FOR n IN 1..8000 LOOP \
         EXECUTE format('CREATE TABLE child_%s () INHERITS (base)', n); \
         IF n % 1000 = 0 THEN COMMIT; END IF; END LOOP; END $$",
    )
    .await;
    let catalog = database(&server, HOUR).get().await.unwrap();
    let writes = needs(&catalog, "UPDATE child_8000 SET a = 1");
    assert_eq!(writes.required, locks(&["base", "child_8000"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tells_what_a_statement_reaches() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    app.run(
        "CREATE TABLE parent (id int PRIMARY KEY) PARTITION BY RANGE (id); \
         CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (9); \
         CREATE TABLE child (id int REFERENCES parent ON DELETE CASCADE); \
         CREATE TABLE log (n int); \
         CREATE VIEW shown AS SELECT n FROM log; \
         CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO log VALUES (1) \
         RETURNING n'; \
         CREATE VIEW acts AS SELECT writes(); \
         CREATE TABLE policed (n int); ALTER TABLE policed ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY p ON policed USING (writes() > 0)",
    )
    .await;
    let database = database(&server, HOUR);
    let catalog = database.get().await.unwrap();
    for (statement, needed) in [
        ("SELECT * FROM shown", Required::Read),
        ("INSERT INTO shown VALUES (1)", locks(&["log", "shown"])),
        ("INSERT INTO part VALUES (1)", locks(&["parent", "part"])),
        ("DELETE FROM parent", locks(&["child", "parent", "part"])),
        ("INSERT INTO log VALUES (1)", locks(&["log"])),
    ] {
        let found = needs(&catalog, statement);
        assert_eq!(found.required, needed, "{statement}");
        assert!(!found.missing, "{statement}");
    }
    for statement in [
        "SELECT * FROM acts",
        "SELECT * FROM policed",
        "SELECT writes()",
    ] {
        let found = needs(&catalog, statement);
        assert!(found.everything.is_some(), "{statement}: {found:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_acts_behind_other_names_is_known() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    app.run(
        "CREATE TABLE log (n int); CREATE SEQUENCE s; CREATE SCHEMA free; \
         CREATE FUNCTION free.vol(n int, m int DEFAULT 1) RETURNS int LANGUAGE sql \
         AS 'INSERT INTO public.log VALUES (n) RETURNING n'; \
         CREATE FUNCTION free.shown(x int DEFAULT free.vol(1)) RETURNS int IMMUTABLE LANGUAGE sql \
         AS 'SELECT x'; \
         CREATE AGGREGATE free.agg(int) (sfunc = free.vol, stype = int); \
         CREATE VIEW free.v AS SELECT free.vol(1); CREATE VIEW free.w AS SELECT * FROM free.v; \
         CREATE VIEW free.n AS SELECT nextval('public.s'); \
         CREATE VIEW free.xml AS SELECT query_to_xml('SELECT free.vol(1)', true, true, ''); \
         CREATE FUNCTION free.is(n int) RETURNS bool LANGUAGE sql AS 'SELECT free.vol(n) > 0'; \
         CREATE DOMAIN free.d AS int CHECK (free.is(VALUE)); CREATE DOMAIN free.e AS free.d; \
         CREATE VIEW free.cast AS SELECT 1::free.d; \
         CREATE FUNCTION free.known() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         CREATE VIEW free.k AS SELECT free.known(); \
         CREATE TABLE free.serial (id serial, at timestamptz DEFAULT clock_timestamp()); \
         CREATE VIEW free.plain AS SELECT id, now(), random(), clock_timestamp() FROM free.serial",
    )
    .await;
    let catalog = database(&server, HOUR).get().await.unwrap();
    for statement in [
        "SELECT free.shown()",
        "SELECT free.agg(1)",
        "SELECT * FROM free.v",
        "SELECT * FROM free.w",
        "SELECT * FROM free.n",
        "SELECT * FROM free.xml",
        "SELECT * FROM free.cast",
        "SELECT 1::free.d",
        "SELECT 1::free.e",
    ] {
        let found = needs(&catalog, statement);
        assert!(found.everything.is_some(), "{statement}: {found:?}");
    }
    for (statement, needed) in [
        ("SELECT * FROM free.plain", Required::Read),
        ("SELECT * FROM free.k", Required::Read),
        ("SELECT sum(n), max(n) FROM log", Required::Read),
        ("SELECT * FROM pg_stat_activity", Required::Read),
        ("SELECT * FROM information_schema.tables", Required::Read),
        ("INSERT INTO free.serial DEFAULT VALUES", locks(&[])),
    ] {
        let found = needs(&catalog, statement);
        assert_eq!(found.required, needed, "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_acts_where_nothing_is_written_is_known() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    app.run(
        "CREATE TABLE log (n int); CREATE SCHEMA free; SET search_path = free, public; \
         CREATE FUNCTION vol(n int) RETURNS bool LANGUAGE sql \
         AS 'INSERT INTO public.log VALUES (n) RETURNING true'; \
         CREATE DOMAIN d AS int CHECK (vol(VALUE)); CREATE TYPE pair AS (a d, b int); \
         CREATE TABLE rows (a d); CREATE TYPE span AS RANGE (subtype = d); \
         CREATE FUNCTION takes(pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1'; \
         CREATE FUNCTION eq(int, int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true'; \
         CREATE FUNCTION ne(int, int) RETURNS bool LANGUAGE sql AS 'SELECT vol(1)'; \
         CREATE OPERATOR <+> (FUNCTION = eq, LEFTARG = int, RIGHTARG = int, NEGATOR = <->); \
         CREATE OPERATOR <-> (FUNCTION = ne, LEFTARG = int, RIGHTARG = int, NEGATOR = <+>); \
         CREATE MATERIALIZED VIEW m AS SELECT vol(1) WITH NO DATA",
    )
    .await;
    let catalog = database(&server, HOUR).get().await.unwrap();
    for statement in [
        "SELECT '{1}'::free.d[]",
        "SELECT '{1}'::free._d",
        "SELECT '(1,2)'::free.pair",
        "SELECT ROW(1)::free.rows",
        "SELECT '[1,2)'::free.span",
        "SELECT free.takes(NULL)",
        "SELECT 1 OPERATOR(free.<+>) 2",
        "REFRESH MATERIALIZED VIEW free.m",
        "CREATE TRIGGER t BEFORE INSERT ON free.rows EXECUTE FUNCTION free.vol()",
    ] {
        let found = needs(&catalog, statement);
        assert!(found.everything.is_some(), "{statement}: {found:?}");
    }
    assert!(catalog.reading_values_acts());
    let plain = needs(&catalog, "SELECT n + 1, n::text FROM log");
    assert_eq!(plain.required, Required::Read);
    // A cast that is not written.
    app.run(
        "CREATE FUNCTION free.cast(free.pair) RETURNS int LANGUAGE sql AS 'SELECT 1'; \
         CREATE CAST (free.pair AS int) WITH FUNCTION free.cast AS IMPLICIT",
    )
    .await;
    let catalog = database(&server, HOUR).get().await.unwrap();
    assert!(needs(&catalog, "SELECT n FROM log").everything.is_some());
    assert!(needs(&catalog, "SELECT 1").everything.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_kept_until_it_is_outdated() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    let database = database(&server, HOUR);
    assert!(database.current().is_none());
    let first = database.get().await.unwrap();
    assert!(Arc::ptr_eq(&first, &database.current().unwrap()));
    assert!(Arc::ptr_eq(&first, &database.get().await.unwrap()));
    app.run("CREATE TABLE late (n int)").await;
    database.outdated();
    assert!(database.current().is_none());
    let second = database.get().await.unwrap();
    assert!(!needs(&second, "INSERT INTO late VALUES (1)").missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_tables_are_made_one_by_one_it_is_not_loaded_for_nobody() {
    let server = Postgres::start();
    let _app = Session::connect(&server).await;
    let database = database(&server, HOUR);
    // The first one is.
    database.load_aside();
    eventually("it is loaded", async || database.current().is_some()).await;
    for _ in 0..10 {
        let changed = Instant::now();
        database.outdated();
        database.load_aside();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let is_loaded = database.current().is_some();
        // A machine that stands still makes a pause of its own.
        if changed.elapsed() < Duration::from_millis(400) {
            assert!(!is_loaded, "it is loaded for nobody");
        }
    }
    eventually("it is loaded", async || database.current().is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_loaded_again_for_a_name_that_it_lacks() {
    let server = Postgres::start();
    let app = Session::connect(&server).await;
    let database = database(&server, HOUR);
    let began = Instant::now();
    let first = database.get().await.unwrap();
    app.run("CREATE TABLE late (n int)").await;
    assert!(needs(&first, "INSERT INTO late VALUES (1)").missing);
    // On a machine that stands still the first does not wait for the second to ask.
    let both_wait = began.elapsed() < Duration::from_millis(50);
    // Both ask; whoever comes second takes what the first has loaded.
    let (one, other) = tokio::join!(database.newer_than(&first), database.newer_than(&first));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert!(!both_wait || Arc::ptr_eq(&one, &other));
    assert!(!needs(&one, "INSERT INTO late VALUES (1)").missing);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_not_used_when_it_is_too_old_and_refreshed_in_use() {
    let server = Postgres::start();
    let (_app, age_max) = (Session::connect(&server).await, Duration::from_secs(1));
    let unused = database(&server, age_max);
    unused.get().await.unwrap();
    tokio::time::sleep(age_max + Duration::from_millis(10)).await;
    assert!(unused.current().is_none());

    let used = database(&server, age_max * 5);
    let first = used.get().await.unwrap();
    eventually("it is refreshed", async || {
        let now = used
            .current()
            .expect("it is refreshed before it is too old");
        !Arc::ptr_eq(&first, &now)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_the_control_role_may_not_enter_has_none() {
    let server = Postgres::start();
    let admin = Session::connect_as(&server, "postgres", "postgres").await;
    admin
        .run("REVOKE CONNECT ON DATABASE app FROM PUBLIC")
        .await;
    let database = database(&server, HOUR);
    let refused = database.get().await.unwrap_err();
    assert!(
        matches!(refused, CatalogError::Unloaded { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("\"app\""), "{refused}");
    admin
        .run(&format!("GRANT CONNECT ON DATABASE app TO {}", CONTROL.0))
        .await;
    database.get().await.unwrap();
}
