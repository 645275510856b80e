//! What fills in a temporary table is code of the database's: defaults, checks, generated columns,
//! expressions of indexes, triggers, whichever way the table has come by them.

use super::unasked::{LOOKS, refused_and_would_act, world};
use super::{is_refusal, major, unharmed};
use crate::client::Client;
use crate::client::send::{copy_data, copy_done, query};
use crate::stack::{ORDERS, sign};
use crate::world::World;

const SNEAKS: &str = "CREATE FUNCTION sneak() RETURNS int LANGUAGE plpgsql AS \
     $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END $$";
const QUIET: &str = "CREATE OR REPLACE FUNCTION seen(int) RETURNS int LANGUAGE plpgsql IMMUTABLE \
     AS 'BEGIN RETURN 1; END'";
const ACTING: &str = "CREATE OR REPLACE FUNCTION seen(int) RETURNS int LANGUAGE plpgsql VOLATILE \
     AS $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END $$";
const FIRST: &str = "UPDATE orders SET note = 'first'";

/// Of both locks that rules here name.
pub(super) fn holder(world: &World, at: usize) -> Client {
    let [app, orders] = ["app", "orders"].map(|lock| sign(&world.proxy.key, lock, 1));
    let both = format!("{app},{orders}");
    let settings = [("ringfence.token", &*both)];
    Client::connect_with(world.proxy.addresses[at], &settings)
}

#[test]
fn what_a_temporary_table_takes_over_fills_it() {
    refused_and_would_act(
        &world(),
        &[
            SNEAKS,
            "CREATE TABLE audited (id int, a int DEFAULT sneak())",
            "CREATE TABLE checked (id int CHECK (sneak() = 1))",
            "CREATE DOMAIN filled AS int DEFAULT sneak()",
            "CREATE TYPE kind AS (id int, a filled)",
            "CREATE TABLE of_filled (id int, a filled)",
            "CREATE FUNCTION gives() RETURNS filled LANGUAGE sql IMMUTABLE AS 'SELECT 1::filled'",
            "CREATE VIEW seen_filled AS SELECT id, a FROM of_filled",
            "INSERT INTO of_filled VALUES (1, 1)",
            "CREATE FUNCTION turns(kind) RETURNS int LANGUAGE sql AS 'SELECT sneak()'",
            "CREATE CAST (kind AS int) WITH FUNCTION turns(kind)",
            FIRST,
        ],
        &[
            "CREATE TEMP TABLE t (LIKE audited INCLUDING DEFAULTS); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t (LIKE audited INCLUDING ALL); INSERT INTO pg_temp.t (id) VALUES (1)",
            "CREATE TABLE pg_temp.t (LIKE audited INCLUDING ALL); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE y (LIKE audited INCLUDING ALL); \
             CREATE TEMP TABLE t (LIKE y INCLUDING ALL); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t () INHERITS (audited); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t (LIKE checked INCLUDING CONSTRAINTS); INSERT INTO t VALUES (1)",
            "CREATE TEMP TABLE t (id int, a filled); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t OF kind; INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t (LIKE of_filled); INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t AS SELECT * FROM of_filled; INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t AS SELECT * FROM seen_filled; INSERT INTO t (id) VALUES (1)",
            "SELECT * INTO TEMP t FROM of_filled; INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t AS SELECT 1 AS id, gives() AS a; INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t AS SELECT 1 AS id, 1::filled AS a; INSERT INTO t (id) VALUES (1)",
            "CREATE TEMP TABLE t (id int, a int DEFAULT (row(1, 2)::kind)::int); \
             INSERT INTO t (id) VALUES (1)",
        ],
        LOOKS,
    );
}

#[test]
fn a_sequence_of_the_databases_fills_it() {
    let numbered = [
        "CREATE SEQUENCE numbers OWNED BY orders.id",
        "ALTER TABLE orders ALTER id SET DEFAULT nextval('numbers')",
        "CREATE TABLE computed (n int, id int DEFAULT nextval(('num' || 'bers')::regclass))",
        "CREATE SCHEMA apart",
        "CREATE SEQUENCE apart.numbers",
    ];
    let takes = [
        "CREATE TEMP TABLE t (LIKE orders INCLUDING DEFAULTS); INSERT INTO t (note) VALUES ('x')",
        "CREATE TEMP TABLE t (LIKE orders INCLUDING ALL); INSERT INTO t (note) VALUES ('x')",
        "CREATE TEMP TABLE t (id int DEFAULT nextval('numbers'), n int); INSERT INTO t (n) VALUES (1)",
    ];
    let computed =
        "CREATE TEMP TABLE t (LIKE computed INCLUDING DEFAULTS); INSERT INTO t (n) VALUES (1)";
    let looks = "SELECT last_value || is_called::text FROM numbers";
    refused_and_would_act(&World::new(), &numbered, &takes, looks);
    let world = world();
    refused_and_would_act(&world, &numbered, &takes, looks);
    refused_and_would_act(&world, &[], &[computed], looks);
    // The lock of its table is enough, as for the sequence itself.
    for sql in takes {
        holder(&world, 0).query(sql).ok();
    }
    // It stays that one, whatever the path is by then.
    let mut client = holder(&world, 0);
    for sql in [
        "CREATE TEMP TABLE t (id int DEFAULT nextval('numbers'), n int)",
        "SET ringfence.token = ''",
        "SET search_path = apart",
    ] {
        client.query(sql).ok();
    }
    let told = client.query("INSERT INTO t (n) VALUES (1)");
    assert!(is_refusal(told.code()), "{told:?}");
}

/// What another session does, which holds a ticket.
const HOLDER: &str = "holder: ";

fn run(own: &mut Client, holder: &mut Client, script: &[&str]) -> Vec<String> {
    let each = script.iter().map(|sql| match sql.strip_prefix(HOLDER) {
        Some(sql) => holder.query(sql).code().to_owned(),
        None => own.query(sql).code().to_owned(),
    });
    each.collect()
}

/// The last of it is refused to who has no ticket, and all before passes; past the proxy it writes.
#[track_caller]
fn refused_and_would_write(world: &World, script: &[&str]) {
    let first = |client: &mut Client| {
        for sql in [QUIET, FIRST] {
            client.query(sql).ok();
        }
    };
    first(&mut holder(world, 0));
    let told = run(&mut world.proxy.client(), &mut holder(world, 0), script);
    let (last, before) = told.split_last().unwrap();
    assert!(before.iter().all(String::is_empty), "{script:?}: {told:?}");
    assert!(is_refusal(last), "{script:?}: {told:?}");
    unharmed(world, &format!("{script:?}"));
    first(&mut holder(world, 0));
    let mut direct = world.direct();
    run(&mut direct, &mut world.direct(), script);
    direct.query("COMMIT").ok();
    assert_eq!(world.order(), "written", "it does nothing: {script:?}");
}

const MAKES: &[(&[&str], &str)] = &[
    (
        &["CREATE TEMP TABLE t (id int, a int DEFAULT seen(1))"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (id int CHECK (seen(id) = 1))"],
        "INSERT INTO pg_temp.t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (id int, a int GENERATED ALWAYS AS (seen(id)) STORED)"],
        "UPDATE t SET id = 2; INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (id int, EXCLUDE (seen(id) WITH =))"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int)",
            "CREATE INDEX ON t (seen(id))",
        ],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int)",
            "ALTER TABLE t ADD a int DEFAULT seen(1)",
        ],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int, a int)",
            "ALTER TABLE t ALTER a SET DEFAULT seen(1)",
        ],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int)",
            "ALTER TABLE t ADD CHECK (seen(id) = 1)",
        ],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (LIKE by_seen INCLUDING DEFAULTS)"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (LIKE generated INCLUDING GENERATED)"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (LIKE indexed INCLUDING INDEXES)"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (LIKE in_part INCLUDING ALL)"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t (id int, a of_seen)"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &["CREATE TEMP TABLE t AS SELECT id, a FROM with_domain"],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int) PARTITION BY LIST (id)",
            "CREATE TEMP TABLE p PARTITION OF t (CHECK (seen(id) = 1)) DEFAULT",
        ],
        "INSERT INTO t VALUES (1)",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int PRIMARY KEY)",
            "CREATE TEMP TABLE c (id int DEFAULT seen(1) REFERENCES t ON DELETE SET DEFAULT)",
            "INSERT INTO t VALUES (1), (2)",
            "INSERT INTO c VALUES (2)",
        ],
        "DELETE FROM t WHERE id = 2",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int)",
            "INSERT INTO t VALUES (1)",
            "CREATE INDEX ON t (seen(id))",
        ],
        "ANALYZE t",
    ),
    (
        &[
            "CREATE TEMP TABLE t (LIKE measured INCLUDING STATISTICS)",
            "INSERT INTO t VALUES (1)",
        ],
        "ANALYZE t",
    ),
    (
        &[
            "CREATE TEMP TABLE t (id int CHECK (seen(id) = 1))",
            "INSERT INTO t VALUES (1)",
        ],
        "ALTER TABLE t ALTER id TYPE int USING id + 1",
    ),
];

/// With a table and a domain that call it, too.
fn world_of_seen() -> World {
    let world = world();
    for sql in [
        QUIET,
        "CREATE TABLE by_seen (id int, a int DEFAULT seen(1))",
        "CREATE TABLE generated (id int, a int GENERATED ALWAYS AS (seen(id)) STORED)",
        "CREATE TABLE indexed (id int)",
        "CREATE INDEX ON indexed (seen(id))",
        "CREATE TABLE in_part (id int)",
        "CREATE INDEX ON in_part (id) WHERE seen(id) = 1",
        "CREATE TABLE measured (id int, a int)",
        "CREATE DOMAIN of_seen AS int DEFAULT seen(1)",
        "CREATE TABLE with_domain (id int, a of_seen)",
    ] {
        world.direct().query(sql).ok();
    }
    if measures(&world) {
        let sql = "CREATE STATISTICS measures ON (seen(id)), a FROM measured";
        world.direct().query(sql).ok();
    }
    world
}

/// Whether the server has statistics on expressions.
fn measures(world: &World) -> bool {
    major(world) >= 14
}

#[test]
fn what_fills_it_in_may_have_come_to_act() {
    let world = world_of_seen();
    let redefines = format!("{HOLDER}{ACTING}");
    for (makes, acts) in MAKES {
        if makes[0].ends_with("STATISTICS)") && !measures(&world) {
            continue;
        }
        let script = [makes, &[&*redefines, acts][..]].concat();
        refused_and_would_write(&world, &script);
        // No catalog tells of a table whose transaction is open.
        let script = [&["BEGIN"][..], makes, &[&*redefines, acts]].concat();
        refused_and_would_write(&world, &script);
        let script = [&["BEGIN"][..], makes, &[&*redefines, "COMMIT", acts]].concat();
        refused_and_would_write(&world, &script);
    }
    let script = [
        "CREATE TEMP TABLE t (id int)",
        "BEGIN",
        "SAVEPOINT s",
        "ALTER TABLE t ADD a int DEFAULT seen(1)",
        "RELEASE s",
        &redefines,
        "INSERT INTO t VALUES (1)",
    ];
    refused_and_would_write(&world, &script);
}

#[test]
fn a_trigger_of_its_may_have_come_to_act() {
    let world = world();
    let fires = |text: &str| {
        format!("CREATE OR REPLACE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql {text}")
    };
    let quiet = fires("IMMUTABLE AS 'BEGIN RETURN NEW; END'");
    let acting =
        fires("VOLATILE AS $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN NEW; END $$");
    world.direct().query(&quiet).ok();
    let redefines = format!("{HOLDER}{acting}");
    let script = [
        "CREATE TEMP TABLE t (id int)",
        "CREATE TRIGGER fires BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fires()",
        &redefines,
        "INSERT INTO t VALUES (1)",
    ];
    refused_and_would_write(&world, &script);
    // In a transaction with the table nobody without a ticket makes one.
    let mut client = world.proxy.client();
    for sql in ["BEGIN", script[0]] {
        client.query(sql).ok();
    }
    assert!(is_refusal(client.query(script[1]).code()));
}

#[test]
fn rows_of_a_lasting_table_are_a_temporary_childs() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    for sql in [QUIET, "CREATE TABLE parent (id int)"] {
        world.direct().query(sql).ok();
    }
    let redefines = format!("{HOLDER}{ACTING}");
    refused_and_would_write(
        &world,
        &[
            "CREATE TEMP TABLE t (CHECK (seen(id) = 1)) INHERITS (parent)",
            "INSERT INTO t VALUES (1)",
            &redefines,
            "UPDATE parent SET id = 2",
        ],
    );
}

/// Whoever made it held a ticket then.
#[test]
fn what_a_holder_has_made_is_filled_under_a_ticket() {
    let world = World::with(|setup| setup.and("table", "", ORDERS));
    for sql in [
        SNEAKS,
        "CREATE TABLE audited (id int, a int DEFAULT sneak())",
    ] {
        world.direct().query(sql).ok();
    }
    for at in 0..2 {
        for (makes, ends) in [
            ("CREATE TEMP TABLE t (id int, a int DEFAULT sneak())", ""),
            ("CREATE TEMP TABLE t (LIKE audited INCLUDING ALL)", ""),
            (
                "BEGIN; CREATE TEMP TABLE t (LIKE audited INCLUDING ALL)",
                "COMMIT",
            ),
            (
                "CREATE TEMP TABLE t (id int); ALTER TABLE t ADD a int DEFAULT sneak()",
                "",
            ),
        ] {
            let mut client = holder(&world, at);
            for sql in [makes, ends, "SET ringfence.token = ''"] {
                client.query(sql).ok();
            }
            let told = client.query("INSERT INTO t (id) VALUES (1)");
            assert!(is_refusal(told.code()), "{at}: {makes}: {told:?}");
            unharmed(&world, makes);
        }
    }
}

#[test]
fn values_that_are_copied_in_are_checked() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    for sql in [
        "CREATE FUNCTION checks(int) RETURNS boolean LANGUAGE plpgsql AS \
         $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END $$",
        "CREATE DOMAIN dom AS int CHECK (checks(VALUE))",
        "CREATE TABLE of_dom (a dom)",
    ] {
        world.direct().query(sql).ok();
    }
    let copies = [
        query("COPY of_dom FROM STDIN"),
        copy_data(b"5\n"),
        copy_done(),
    ]
    .concat();
    let told = world.proxy.client().ask(&copies);
    assert!(is_refusal(told.code()), "{told:?}");
    unharmed(&world, "COPY");
    world.direct().ask(&copies).ok();
    assert_eq!(world.order(), "written");
}
