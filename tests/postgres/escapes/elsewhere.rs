//! Statements about another database than the one that they run in, or about all of them: a rule
//! for that database asks for its ticket, whatever is known of this one.

use super::is_refusal;
use crate::client::Client;
use crate::client::send::{bind, execute, parse, query, sync};
use crate::postgres::APP;
use crate::stack::{DATABASE, Setup, sign};
use crate::world::World;

const SUPERUSER: &str = "postgres";
/// It makes the catalog outdated, and what names do unknown.
const DEFINES: &str = "CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS \
     'SELECT 1'";
const OTHER: &str = "[[listener.rule]]\nlock = \"other\"\ndatabase = \"other\"\n";

/// What is kept of databases, of what they set, and of the server's files.
const LOOKS: &str = "SELECT md5(string_agg(d::text, ',' ORDER BY datname) || (SELECT \
     coalesce(string_agg(s::text, ',' ORDER BY s::text), '') FROM pg_db_role_setting s)) \
     FROM pg_database d";

/// Who may do it, and what; in a block past the proxy each changes what [`LOOKS`] sees.
const ABOUT_APP: &[(&str, &str)] = &[
    (APP, "ALTER DATABASE app SET work_mem = '5MB'"),
    (APP, "ALTER DATABASE app CONNECTION LIMIT 5"),
    (APP, "GRANT TEMPORARY ON DATABASE app TO app"),
    (SUPERUSER, "ALTER DATABASE app OWNER TO postgres"),
    (
        SUPERUSER,
        "ALTER ROLE app IN DATABASE app SET work_mem = '5MB'",
    ),
    (SUPERUSER, "REASSIGN OWNED BY app TO postgres"),
    (
        SUPERUSER,
        "UPDATE pg_database SET datconnlimit = 5 WHERE datname = 'app'",
    ),
    (
        SUPERUSER,
        "UPDATE pg_catalog.pg_database SET datconnlimit = 5 WHERE datname = 'app'",
    ),
    (
        SUPERUSER,
        "INSERT INTO pg_db_role_setting SELECT oid, 0, '{work_mem=5MB}' FROM pg_database \
         WHERE datname = 'app'",
    ),
];

/// In the database that no rule is about.
fn elsewhere(world: &World, user: &str) -> Client {
    let parameters = [("database", "postgres"), ("user", user)];
    Client::connect_with(world.proxy.address(), &parameters)
}

fn holder_elsewhere(world: &World, lock: &str) -> Client {
    let ticket = sign(&world.proxy.key, lock, 1);
    let parameters = [("database", "postgres"), ("ringfence.token", &ticket)];
    Client::connect_with(world.proxy.address(), &parameters)
}

/// The catalog of the database that no rule is about does not count any more.
fn outdate(world: &World) {
    elsewhere(world, APP).query(DEFINES).ok();
}

fn databases(world: &World) -> String {
    world.admin().query(LOOKS).value()
}

#[test]
fn what_is_about_a_guarded_database_needs_its_ticket_anywhere() {
    let world = World::new();
    let before = databases(&world);
    let mut passed = vec![];
    for (user, sql) in ABOUT_APP {
        let mut direct = Client::connect_with(
            world.server.address,
            &[("database", "postgres"), ("user", user)],
        );
        direct.query("BEGIN").ok();
        direct.query(sql).ok();
        let after = direct.query(LOOKS).value();
        direct.query("ROLLBACK").ok();
        assert_ne!(after, before, "it does nothing: {sql}");
        let long = format!("{sql} /*{}*/", " ".repeat(2 << 20));
        let uncertain = format!("{sql} /*\\*/");
        let off = "SET standard_conforming_strings = off";
        for (way, sql, is_outdated, begins) in [
            ("with a catalog", *sql, false, &[][..]),
            ("with an outdated catalog", sql, true, &[]),
            ("behind a definition", sql, false, &["BEGIN", DEFINES]),
            ("behind both", sql, true, &["BEGIN", DEFINES]),
            ("unread", &long, false, &[]),
            ("unread, with an outdated catalog", &long, true, &[]),
            ("with a backslash", &uncertain, false, &[off]),
            (
                "with a backslash, behind a definition",
                &uncertain,
                true,
                &[off, "BEGIN", DEFINES],
            ),
        ] {
            let mut client = elsewhere(&world, user);
            client.query("SELECT count(*) FROM pg_class").ok();
            if is_outdated {
                outdate(&world);
            }
            for sql in begins {
                client.query(sql).ok();
            }
            let told = client.query(sql);
            client.query("COMMIT");
            let still = databases(&world);
            if !is_refusal(told.code()) || still != before {
                passed.push(format!("{way}: {}: {told:?}", &sql[..sql.len().min(80)]));
            }
        }
    }
    assert!(passed.is_empty(), "{passed:#?}");
}

#[test]
fn the_first_statement_after_a_start_needs_its_ticket_too() {
    let world = World::new();
    let before = databases(&world);
    let sql = "ALTER DATABASE app SET work_mem = '5MB'";
    elsewhere(&world, APP).query(sql).refused("RF002");
    assert_eq!(databases(&world), before);
}

#[test]
fn what_is_about_the_whole_server_needs_the_tickets_of_every_database() {
    let world = World::new();
    let settings = "SELECT count(*) FROM pg_file_settings WHERE name = 'work_mem'";
    let mut admin = world.admin();
    for sql in [
        "ALTER SYSTEM SET work_mem = '5MB'",
        "LOAD 'dblink'",
        "COPY (SELECT 1) TO '/tmp/never'",
        "COPY (SELECT 1) TO PROGRAM 'cat >/dev/null'",
    ] {
        for is_outdated in [false, true] {
            let mut client = elsewhere(&world, SUPERUSER);
            client.query("SELECT count(*) FROM pg_class").ok();
            if is_outdated {
                outdate(&world);
            }
            let told = client.query(sql);
            assert!(is_refusal(told.code()), "{sql}: {told:?}");
        }
    }
    assert_eq!(admin.query(settings).value(), "0");
    admin.query("ALTER SYSTEM SET work_mem = '5MB'").ok();
    assert_eq!(admin.query(settings).value(), "1");
}

#[test]
fn a_guarded_database_is_not_dropped_without_its_ticket() {
    let world = World::with(|setup| setup.with_rules(&format!("{DATABASE}{OTHER}")));
    let mut admin = world.admin();
    let count = "SELECT count(*) FROM pg_database WHERE datname = 'other'";
    let drops = "DROP DATABASE other";
    admin.query("CREATE DATABASE other OWNER app").ok();
    outdate(&world);
    elsewhere(&world, APP).query(drops).refused("RF002");
    // Whoever holds the lock of another database holds none for this one.
    for database in ["app", "postgres"] {
        let ticket = sign(&world.proxy.key, "app", 1);
        let parameters = [("database", database), ("ringfence.token", &*ticket)];
        let mut holder = Client::connect_with(world.proxy.address(), &parameters);
        holder.query(DEFINES).ok();
        let told = holder.query(drops);
        assert_eq!(told.refused("RF002").json()["lock"], "other");
    }
    assert_eq!(admin.query(count).value(), "1");
    outdate(&world);
    holder_elsewhere(&world, "other").query(drops).ok();
    assert_eq!(admin.query(count).value(), "0");
}

#[test]
fn with_the_ticket_of_that_database_it_passes() {
    let world = World::new();
    for (at, begins) in [&[][..], &["BEGIN", DEFINES]].into_iter().enumerate() {
        for is_outdated in [false, true] {
            let mut holder = holder_elsewhere(&world, "app");
            if is_outdated {
                outdate(&world);
            }
            for sql in begins {
                holder.query(sql).ok();
            }
            let limit = 7 + at;
            let sql = format!("ALTER DATABASE app CONNECTION LIMIT {limit}");
            holder.query(&sql).ok();
            holder.query("COMMIT").ok();
        }
    }
    let limit = "SELECT datconnlimit FROM pg_database WHERE datname = 'app'";
    assert_eq!(world.admin().query(limit).value(), "8");
}

/// What stays there asks for nothing: refusals are not because everything is refused.
#[test]
fn what_stays_in_a_database_that_no_rule_is_about_needs_no_ticket() {
    let world = World::new();
    world.admin().query("CREATE DATABASE free OWNER app").ok();
    let free = [("database", "free")];
    let mut client = Client::connect_with(world.proxy.address(), &free);
    let filler = "x".repeat(200 << 10);
    for sql in [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (a text)",
        "DO $$ BEGIN INSERT INTO s.t VALUES ('1'); END $$",
        &format!("INSERT INTO s.t VALUES ('{filler}')"),
        "BEGIN",
        DEFINES,
        "UPDATE s.t SET a = '2'",
        "ALTER DATABASE free SET work_mem = '5MB'",
        "COMMIT",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{}: {told:?}", &sql[..sql.len().min(80)]);
    }
}

/// A copy of what is guarded is made with its ticket.
#[test]
fn a_guarded_database_is_copied_under_its_ticket() {
    let world = World::with(|setup: Setup| setup);
    world.admin().query("ALTER ROLE app CREATEDB").ok();
    let copies = "CREATE DATABASE copied TEMPLATE app";
    outdate(&world);
    elsewhere(&world, APP).query(copies).refused("RF002");
    elsewhere(&world, APP).query("CREATE DATABASE free").ok();
    let mut holder = holder_elsewhere(&world, "app");
    holder.send(&query(copies));
    let told = holder.answer();
    // The proxy's own look at that database may be there for a moment.
    assert!(["", "55006"].contains(&told.code()), "{told:?}");
}

/// What was prepared is not known any more, and may be what was.
#[test]
fn what_was_prepared_about_a_guarded_database_needs_its_ticket_when_it_is_not_known_any_more() {
    let world = World::new();
    let before = databases(&world);
    let sql = "ALTER DATABASE app SET work_mem = '5MB'";
    let forget = "DO $$ BEGIN PERFORM 1; END $$";
    let run = [bind("", "p", &[]), execute("", 0), sync()].concat();
    for (user, acts) in [(APP, &run), (APP, &query("EXECUTE p"))] {
        for forgets in [false, true] {
            let mut client = elsewhere(&world, user);
            client.ask(&[parse("p", sql), sync()].concat()).ok();
            if forgets {
                client.query(forget).ok();
            }
            let told = client.ask(acts);
            assert_eq!(told.code(), "RF002", "{forgets}: {told:?}");
        }
    }
    // A portal, likewise.
    let mut client = elsewhere(&world, APP);
    client.query("BEGIN").ok();
    let bound = [parse("p", sql), bind("c", "p", &[]), sync()].concat();
    client.ask(&bound).ok();
    client.query(forget).ok();
    let told = client.ask(&[execute("c", 0), sync()].concat());
    assert_eq!(told.code(), "RF002", "{told:?}");
    client.query("COMMIT");
    assert_eq!(databases(&world), before);
    // What was not about one is as free as before.
    let mut client = elsewhere(&world, APP);
    client.ask(&[parse("p", "SELECT 1"), sync()].concat()).ok();
    client.query(forget).ok();
    client.ask(&run).ok();
}
