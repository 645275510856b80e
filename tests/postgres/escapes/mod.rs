//! Ways around the fence: each is tried without a ticket where the whole database is guarded, where
//! one table is and everything else is rejected, and where everything else passes. None may write,
//! and the client is told.

mod ahead;
mod calls;
mod elsewhere;
mod fetched;
mod filled;
mod outdated;
mod own;
mod shadowed;
mod staging;
mod stored;
mod temporary;
mod texts;
mod unasked;

use crate::client::Client;
use crate::client::send::{bind, execute, function_call, parse, query, sync};
use crate::stack::ORDERS;
use crate::world::{WRITE, World};
use texts::{BY_QUERIES, EXTENSION, GADGETS, NEEDS_15, NEEDS_A_RIGHT, PASSES_READ_ONLY};

const REJECTING: &str = "unmatched = \"reject\"";

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

/// The major version of the server.
fn major(world: &World) -> u32 {
    let number = world.direct().query("SHOW server_version_num").value();
    number.parse::<u32>().unwrap() / 10000
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
fn with_a_ticket_all_but_the_named_ones_write() {
    let world = world();
    let port = world.server.address.port().to_string();
    let mut direct = world.direct();
    let mut failed = vec![];
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
        if rows == [["first"]] {
            failed.push(*escape);
        }
        reset(&world);
    }
    let mut excepted = vec![NEEDS_A_RIGHT];
    if major(&world) < 15 {
        excepted.push(NEEDS_15);
    }
    failed.sort_unstable();
    excepted.sort_unstable();
    assert_eq!(failed, excepted);
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

/// Where unmatched writes are rejected it is Postgres itself that holds sessions without a ticket
/// read-only: a mistake about a function, named with its schema as the rules ask, does not open it.
#[test]
fn what_is_wrongly_named_as_reading_does_not_write_where_writes_are_rejected() {
    let reading = "reading_functions = [\"public.sneak\"]";
    let world = World::with(|setup| {
        let lines = format!("{REJECTING}\n{reading}");
        setup.with(&lines)
    });
    for sql in GADGETS {
        world.direct().query(sql).ok();
    }
    let mut client = world.proxy.client();
    client.query("SELECT public.sneak()").refused("25006");
    client.query("BEGIN").ok();
    client.query("SELECT public.sneak()").refused("25006");
    client.query("ROLLBACK").ok();
    client.run("SELECT public.sneak()", &[]).refused("25006");
    unharmed(&world, "named as reading");
    // With a ticket it is as free as any.
    world.proxy.holder(1).query("SELECT sneak()").ok();
    assert_eq!(world.order(), "written");
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
