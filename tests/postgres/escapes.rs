//! Ways around the fence: each is tried without a ticket where the whole database is guarded, where
//! one table is and everything else is rejected, and where everything else passes. None may write,
//! and the client is told.

use crate::client::Client;
use crate::client::send::{bind, execute, function_call, parse, query, sync};
use crate::stack::ORDERS;
use crate::world::{WRITE, World};

const REJECTING: &str = "unmatched = \"reject\"";

/// What the escapes need, made past the proxy.
const GADGETS: &[&str] = &[
    "CREATE FUNCTION public.sneak() RETURNS int LANGUAGE sql AS \
     $$UPDATE public.orders SET note = 'written' RETURNING id$$",
    "CREATE PROCEDURE public.commits_inside() LANGUAGE plpgsql AS $$BEGIN COMMIT; \
     SET TRANSACTION READ WRITE; UPDATE public.orders SET note = 'written'; END$$",
    "CREATE VIEW public.seen AS SELECT * FROM public.orders",
    "CREATE VIEW public.acting AS SELECT id, public.sneak() FROM public.orders",
    "CREATE TABLE public.parent (id int PRIMARY KEY)",
    "INSERT INTO public.parent VALUES (1)",
    "ALTER TABLE public.orders ADD FOREIGN KEY (id) REFERENCES public.parent ON DELETE CASCADE",
    "CREATE TABLE public.base (id int, note text)",
    "ALTER TABLE public.orders INHERIT public.base",
    "CREATE FUNCTION public.sneaky(int, int) RETURNS int LANGUAGE sql AS \
     $$UPDATE public.orders SET note = 'written' RETURNING id$$",
    "CREATE OPERATOR public.### (FUNCTION = public.sneaky, LEFTARG = int, RIGHTARG = int)",
];

/// The same, by a superuser.
const EXTENSION: &[&str] = &[
    "CREATE EXTENSION dblink",
    "GRANT EXECUTE ON FUNCTION dblink_connect_u(text, text) TO app",
];

/// Simple queries, one after the other.
const BY_QUERIES: &[&[&str]] = &[
    &[WRITE],
    &["BEGIN READ WRITE", WRITE, "COMMIT"],
    &["START TRANSACTION READ WRITE", WRITE, "COMMIT"],
    &["BEGIN", "SET transaction_read_only = off", WRITE, "COMMIT"],
    &[
        "BEGIN",
        "SET LOCAL transaction_read_only = off",
        WRITE,
        "COMMIT",
    ],
    &["BEGIN", "SET TRANSACTION READ WRITE", WRITE, "COMMIT"],
    &[
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        WRITE,
    ],
    &["SET default_transaction_read_only = off", WRITE],
    &[
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        WRITE,
    ],
    &[
        "SELECT set_config('default_' || 'transaction_read_only', 'off', false)",
        WRITE,
    ],
    &[
        "BEGIN",
        "SELECT set_config('transaction_read_only', 'off', true)",
        WRITE,
        "COMMIT",
    ],
    &["SET transaction_read_only = off; UPDATE orders SET note = 'written'"],
    &["BEGIN; SET TRANSACTION READ WRITE; UPDATE orders SET note = 'written'; COMMIT"],
    &["BEGIN READ WRITE", "COMMIT AND CHAIN", WRITE, "COMMIT"],
    &["BEGIN", "ROLLBACK AND CHAIN", WRITE, "COMMIT"],
    &["SELECT 1; UPDATE orders SET note = 'written'"],
    &["SELECT 1; COMMIT; UPDATE orders SET note = 'written'"],
    &["DO $$BEGIN COMMIT; SET TRANSACTION READ WRITE; \
       UPDATE orders SET note = 'written'; END$$"],
    &["DO $$BEGIN EXECUTE 'UPDATE ' || 'orders SET note = ''written'''; END$$"],
    &["CALL commits_inside()"],
    &["SELECT sneak()"],
    &["SELECT 1 WHERE sneak() = 1"],
    &["SELECT 1 ### 2"],
    &["SELECT * FROM acting"],
    &["SET search_path = pg_temp, public", "SELECT sneak()"],
    &["WITH w AS (UPDATE orders SET note = 'written' RETURNING 1) SELECT * FROM w"],
    &["EXPLAIN ANALYZE UPDATE orders SET note = 'written'"],
    &["MERGE INTO orders USING (VALUES (1)) v(i) ON id = i \
       WHEN MATCHED THEN UPDATE SET note = 'written'"],
    &[
        "PREPARE p AS UPDATE orders SET note = 'written'",
        "EXECUTE p",
    ],
    &["PREPARE p AS UPDATE orders SET note = 'written'; EXECUTE p"],
    &["COPY (UPDATE orders SET note = 'written' RETURNING 1) TO STDOUT"],
    &["UPDATE seen SET note = 'written'"],
    &["UPDATE base SET note = 'written'"],
    &["DELETE FROM parent"],
    &["TRUNCATE parent CASCADE"],
    &["TRUNCATE base"],
    &["DROP TABLE base CASCADE"],
    &[
        "SET search_path = pg_catalog",
        "UPDATE public.orders SET note = 'written'",
    ],
    &["UPDATE \"orders\" SET note = 'written'"],
    &["UPDATE app.public.orders SET note = 'written'"],
    &["UPDATE ONLY (orders) SET note = 'written'"],
    &["UPDATE U&\"\\006frders\" SET note = 'written'"],
    &["/* SELECT 1; */ UPDATE orders SET note = 'written'"],
    &[
        "SET standard_conforming_strings = off",
        "SELECT 'a\\''; UPDATE orders SET note = $$written$$; --'",
    ],
    &[
        "ALTER TABLE orders RENAME TO renamed",
        "UPDATE renamed SET note = 'written'",
    ],
    &[
        "CREATE RULE r AS ON INSERT TO plain DO ALSO UPDATE orders SET note = 'written'",
        "INSERT INTO plain VALUES (1)",
    ],
    &[
        "SELECT dblink_connect_u('c', 'dbname=app user=app port=@ host=127.0.0.1')",
        "SELECT dblink_exec('c', 'UPDATE orders SET note = ''written''')",
    ],
    &["COPY orders FROM PROGRAM 'echo 1'"],
];

fn listeners(world: &World) -> [(&'static str, Client); 3] {
    let addresses = &world.proxy.addresses;
    let names = ["database", "table, reject", "table, pass"];
    let mut at = 0;
    names.map(|name| {
        at += 1;
        (name, Client::connect(addresses[at - 1]))
    })
}

fn world() -> World {
    let world = World::with(|setup| {
        setup
            .and("rejecting", REJECTING, ORDERS)
            .and("passing", "", ORDERS)
    });
    let mut admin = Client::connect_with(world.server.address, &[("user", "postgres")]);
    for sql in EXTENSION {
        admin.query(sql).ok();
    }
    let mut direct = world.direct();
    for sql in GADGETS {
        direct.query(sql).ok();
    }
    world
}

/// Refused by the fence, or by Postgres where it holds the session read-only.
fn is_refusal(code: &str) -> bool {
    ["RF002", "RF005", "25006"].contains(&code)
}

fn unharmed(world: &World, what: &str) {
    let rows = world
        .direct()
        .query("SELECT id, note FROM orders")
        .ok()
        .rows;
    assert_eq!(rows, [["1", "first"]], "{what}");
}

#[test]
fn no_query_writes_without_a_ticket() {
    let world = world();
    let port = world.server.address.port().to_string();
    let mut silent = vec![];
    for escape in BY_QUERIES {
        for (way, mut client) in listeners(&world) {
            let told: Vec<_> = escape
                .iter()
                .map(|sql| client.query(&sql.replace('@', &port)))
                .collect();
            let refused = told.iter().any(|answer| is_refusal(answer.code()));
            if !refused {
                silent.push((way, escape, told));
            }
            drop(client);
            unharmed(&world, &format!("{way}: {escape:?}"));
        }
    }
    assert!(silent.is_empty(), "not refused by the fence: {silent:#?}");
}

/// The same statements write under a ticket: the test above does not pass by their being nonsense.
#[test]
fn with_a_ticket_most_of_them_write() {
    let world = world();
    let port = world.server.address.port().to_string();
    let mut direct = world.direct();
    let (mut wrote, mut failed) = (0, vec![]);
    for escape in BY_QUERIES {
        let mut client = world.proxy.holder(1);
        let told: Vec<_> = escape
            .iter()
            .map(|sql| client.query(&sql.replace('@', &port)))
            .collect();
        drop(client);
        let fenced = told.iter().find(|answer| answer.code().starts_with("RF"));
        assert!(fenced.is_none(), "{escape:?}: {told:?}");
        let rows = direct.query("SELECT note FROM orders").rows;
        match rows == [["first"]] {
            true => failed.push(escape),
            false => wrote += 1,
        }
        reset(&world);
    }
    assert!(
        wrote * 3 > BY_QUERIES.len() * 2,
        "{wrote} wrote; not: {failed:#?}"
    );
}

fn reset(world: &World) {
    let mut direct = world.direct();
    for sql in [
        "DROP RULE IF EXISTS r ON plain",
        "ALTER TABLE IF EXISTS renamed RENAME TO orders",
        "CREATE TABLE IF NOT EXISTS parent (id int PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS base (id int, note text)",
        "INSERT INTO parent VALUES (1) ON CONFLICT DO NOTHING",
        "CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, note text)",
        "DELETE FROM orders",
        "INSERT INTO orders VALUES (1, 'first')",
    ] {
        direct.query(sql).ok();
    }
}

#[test]
fn no_bound_or_called_statement_writes_without_a_ticket() {
    let world = world();
    let sneak = world
        .direct()
        .query("SELECT 'public.sneak'::regproc::oid::int")
        .value();
    let sneak: u32 = sneak.parse().unwrap();
    for (way, mut client) in listeners(&world) {
        let told = client.run(WRITE, &[]);
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        // The value that turns it off is in Bind alone.
        let set = "SELECT set_config($1, $2, false)";
        client.run(set, &["default_transaction_read_only", "off"]);
        let told = client.query(WRITE);
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        let told = client.ask(&function_call(sneak, &[]));
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        // Prepared before, run in a later batch, and by SQL.
        client.ask(&[parse("w", WRITE), sync()].concat());
        let told = client.ask(&[bind("", "w", &[]), execute("", 0), sync()].concat());
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        let told = client.query("EXECUTE w");
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        unharmed(&world, way);
    }
}

#[test]
fn a_copy_from_the_client_writes_nothing_without_a_ticket() {
    use crate::client::send::{copy_data, copy_done};
    let world = world();
    for (way, mut client) in listeners(&world) {
        let data = [copy_data(b"2\tcopied\n"), copy_done()].concat();
        let told = client.ask(&[query("COPY orders FROM STDIN"), data].concat());
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        client.query("SELECT 1").ok();
        unharmed(&world, way);
    }
}

/// What Postgres itself does not refuse in a read-only session.
#[test]
fn what_a_read_only_session_would_let_through_is_refused() {
    const PASSES_READ_ONLY: &[&str] = &[
        "VACUUM",
        "VACUUM orders",
        "ANALYZE orders",
        "REINDEX TABLE orders",
        "CLUSTER orders",
        "CHECKPOINT",
        "ALTER SYSTEM SET work_mem = '5MB'",
        "COPY orders TO PROGRAM 'cat'",
        "COPY (SELECT 1) TO '/tmp/never'",
        "SELECT pg_logical_emit_message(false, 'a', 'b')",
        "SELECT pg_create_physical_replication_slot('never')",
        "SELECT lo_create(0)",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT nextval('s')",
        "BEGIN; PREPARE TRANSACTION 'never'",
        "COMMIT PREPARED 'never'",
        "ROLLBACK PREPARED 'never'",
        "LOAD 'dblink'",
        "CREATE DATABASE never",
        "CREATE TEMP TABLE t AS SELECT sneak()",
        "REFRESH MATERIALIZED VIEW m",
        "GRANT ALL ON orders TO other",
        "SECURITY LABEL ON TABLE orders IS 'x'",
        "COMMENT ON TABLE orders IS 'x'",
    ];
    let world = world();
    world.direct().query("CREATE SEQUENCE s").ok();
    let mut passed = vec![];
    for (way, mut client) in listeners(&world).into_iter().take(2) {
        for sql in PASSES_READ_ONLY {
            let told = client.query(sql);
            if !is_refusal(told.code()) {
                passed.push(format!("{way}: {sql}: {told:?}"));
            }
            client.query("ROLLBACK");
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn somebody_elses_prepared_writes_are_not_committed_without_a_ticket() {
    let world = world();
    let mut direct = world.direct();
    direct
        .query(&format!("BEGIN; {WRITE}; PREPARE TRANSACTION 'g'"))
        .ok();
    for (way, mut client) in listeners(&world) {
        let told = client.query("COMMIT PREPARED 'g'");
        assert!(is_refusal(told.code()), "{way}: {told:?}");
        let told = client.run("COMMIT PREPARED 'g'", &[]);
        assert!(is_refusal(told.code()), "{way}: {told:?}");
    }
    assert_eq!(
        direct
            .query("SELECT count(*) FROM pg_prepared_xacts")
            .value(),
        "1"
    );
    direct.query("ROLLBACK PREPARED 'g'").ok();
}

/// The refusals are not because everything is refused.
#[test]
fn reads_and_writes_of_nobodys_pass_without_a_ticket() {
    let world = world();
    for (way, mut client) in listeners(&world) {
        for sql in [
            "SELECT * FROM orders",
            "SELECT count(*) FROM seen",
            "BEGIN; DECLARE c CURSOR FOR SELECT * FROM orders; FETCH ALL FROM c; COMMIT",
            "COPY orders TO STDOUT",
            "EXPLAIN UPDATE orders SET note = 'x'",
            "SHOW ALL",
            "SET work_mem = '1MB'",
            "LISTEN a; UNLISTEN a",
            "PREPARE p AS SELECT 1; EXECUTE p; DEALLOCATE p",
        ] {
            let told = client.query(sql);
            assert!(told.faults.is_empty(), "{way}: {sql}: {told:?}");
        }
    }
    let mut passing = Client::connect(world.proxy.addresses[2]);
    passing.query("INSERT INTO plain VALUES (1, 'x')").ok();
    for sql in [
        "CREATE TABLE more (a int)",
        "INSERT INTO more VALUES (1)",
        "DROP TABLE more",
    ] {
        passing.query(sql).ok();
    }
    let mut rejecting = Client::connect(world.proxy.addresses[1]);
    let told = rejecting.query("INSERT INTO plain VALUES (1, 'x')");
    assert!(is_refusal(told.code()), "{told:?}");
}
