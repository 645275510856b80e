//! Foreign tables: another server commits what it was sent also after the session here is gone.

use crate::client::Client;
use crate::stack::{DATABASE, ORDERS};
use crate::world::World;

fn world(lines: &str, rules: &str) -> World {
    let world = World::with(|setup| setup.with(lines).with_rules(rules));
    let port = world.server.address.port();
    let mut admin = Client::connect_with(
        world.server.address,
        &[("user", "postgres"), ("database", "app")],
    );
    for sql in [
        "CREATE EXTENSION postgres_fdw".to_owned(),
        format!(
            "CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw \
             OPTIONS (host '127.0.0.1', port '{port}', dbname 'app')"
        ),
        "CREATE USER MAPPING FOR app SERVER far \
         OPTIONS (user 'app', password_required 'false')"
            .to_owned(),
        "GRANT USAGE ON FOREIGN SERVER far TO app".to_owned(),
    ] {
        admin.query(&sql).ok();
    }
    world
}

const FAR: &str = "CREATE FOREIGN TABLE far (id int, note text) SERVER far \
     OPTIONS (schema_name 'public', table_name 'plain')";
const INSERT: &str = "INSERT INTO far VALUES (1, 'x')";

#[test]
fn a_write_to_a_foreign_table_is_refused_under_a_rule() {
    let world = world("", DATABASE);
    let mut holder = world.proxy.holder(1);
    holder.query("SELECT * FROM plain").ok();
    // Also right behind its definition, which no catalog tells yet.
    holder.query(FAR).ok();
    holder.query(INSERT).refused("RF005");
    holder.run(INSERT, &[]).refused("RF005");
    assert_eq!(holder.query("SELECT count(*) FROM far").value(), "0");
}

#[test]
fn it_is_refused_behind_code_that_has_made_the_table() {
    let world = world("", DATABASE);
    let mut holder = world.proxy.holder(1);
    holder.query("INSERT INTO plain VALUES (1, 'x')").ok();
    holder.query(&format!("DO $$ BEGIN {FAR}; END $$")).ok();
    holder.query(INSERT).refused("RF005");
    assert_eq!(holder.query("SELECT count(*) FROM far").value(), "1");
}

#[test]
fn what_is_inserted_goes_to_no_child_that_is_no_partition() {
    let world = world("", DATABASE);
    let mut holder = world.proxy.holder(1);
    let near = "CREATE TABLE near (id int, note text)";
    let child = FAR.replace("(id int, note text)", "() INHERITS (near)");
    for sql in [near, &child, "INSERT INTO near VALUES (1, 'x')"] {
        holder.query(sql).ok();
    }
    holder.query("UPDATE near SET note = 'y'").refused("RF005");
    let parts = "CREATE TABLE parts (id int, note text) PARTITION BY LIST (id)";
    let part = FAR.replace("(id int, note text)", "PARTITION OF parts DEFAULT");
    let part = part.replace("TABLE far", "TABLE part");
    for sql in [parts, &part] {
        holder.query(sql).ok();
    }
    let insert = "INSERT INTO parts VALUES (1, 'x')";
    holder.query(insert).refused("RF005");
    assert_eq!(holder.query("SELECT count(*) FROM plain").value(), "0");
}

#[test]
fn it_passes_where_the_listener_says_so_or_no_rule_covers_it() {
    for (lines, rules) in [("foreign_writes = \"pass\"", DATABASE), ("", ORDERS)] {
        let world = world(lines, rules);
        world.direct().query(FAR).ok();
        let mut holder = world.proxy.holder(1);
        holder.query(INSERT).ok();
        assert_eq!(holder.query("SELECT count(*) FROM plain").value(), "1");
    }
}

/// What a transaction has made no catalog tells, and what it has moved some other name means.
#[test]
fn it_is_refused_within_the_transaction_that_has_made_or_moved_the_table() {
    let world = world("", DATABASE);
    let mut holder = world.proxy.holder(1);
    let part = FAR.replace("(id int, note text)", "PARTITION OF parts DEFAULT");
    let child = FAR.replace("(id int, note text)", "() INHERITS (near)");
    let there = FAR.replace("TABLE far", "TABLE there");
    for sql in [
        "CREATE TABLE parts (id int, note text) PARTITION BY LIST (id)",
        "CREATE TABLE near (id int, note text)",
        &there,
        "CREATE VIEW seen AS SELECT * FROM there",
        "CREATE FUNCTION makes() RETURNS int LANGUAGE plpgsql AS \
         $$ BEGIN CREATE FOREIGN TABLE far (id int, note text) SERVER far \
         OPTIONS (schema_name 'public', table_name 'plain'); RETURN 1; END $$",
        "SELECT * FROM plain",
    ] {
        holder.query(sql).ok();
    }
    let import = "IMPORT FOREIGN SCHEMA public LIMIT TO (plain) FROM SERVER far INTO apart";
    for (makes, write) in [
        (&[FAR][..], INSERT),
        (&[&format!("DO $$ BEGIN {FAR}; END $$")], INSERT),
        (&["SELECT makes()"], INSERT),
        (
            &["CREATE SCHEMA apart", import],
            "INSERT INTO apart.plain VALUES (1, 'x')",
        ),
        (&[&part], "INSERT INTO parts VALUES (1, 'x')"),
        (
            &[FAR, "ALTER TABLE parts ATTACH PARTITION far DEFAULT"],
            "INSERT INTO parts VALUES (1, 'x')",
        ),
        (
            &["ALTER TABLE parts ATTACH PARTITION there DEFAULT"],
            "INSERT INTO parts VALUES (1, 'x')",
        ),
        (&[&child], "UPDATE near SET note = 'y'"),
        (
            &["ALTER FOREIGN TABLE there INHERIT near"],
            "UPDATE near SET note = 'y'",
        ),
        (
            &[
                "ALTER TABLE near RENAME TO nearer",
                "ALTER FOREIGN TABLE there RENAME TO near",
            ],
            "INSERT INTO near VALUES (1, 'x')",
        ),
        (
            &["CREATE VIEW v AS SELECT * FROM there"],
            "INSERT INTO v VALUES (1, 'x')",
        ),
        // Behind any definition, of what is in the catalog.
        (
            &["CREATE VIEW v AS SELECT 1"],
            "INSERT INTO there VALUES (1, 'x')",
        ),
        (
            &["CREATE VIEW v AS SELECT 1"],
            "INSERT INTO seen VALUES (1, 'x')",
        ),
    ] {
        for apart in [true, false] {
            let told = match apart {
                true => {
                    holder.query("BEGIN").ok();
                    for sql in makes {
                        holder.query(sql).ok();
                    }
                    holder.query(write)
                }
                false => holder.query(&format!("BEGIN; {}; {write}", makes.join("; "))),
            };
            assert_eq!(told.code(), "RF005", "{makes:?} {write} {apart}: {told:?}");
            holder.query("ROLLBACK");
        }
    }
    assert_eq!(holder.query("SELECT count(*) FROM plain").value(), "0");
}

#[test]
fn the_rest_of_a_transaction_goes_on_where_no_name_can_mean_such_a_table() {
    let world = world("", DATABASE);
    let mut holder = world.proxy.holder(1);
    world.direct().query(FAR).ok();
    for sql in [
        "CREATE FUNCTION acts() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$",
        "BEGIN",
        "SELECT acts()",
        "INSERT INTO plain VALUES (1, 'x')",
        "ALTER TABLE orders ADD COLUMN more int",
        "UPDATE orders SET more = 1",
        "CREATE TABLE own (id int)",
        "INSERT INTO own VALUES (1)",
        "ALTER TABLE own ADD CHECK (id > 0)",
        "CREATE VIEW v AS SELECT * FROM plain",
        "UPDATE plain SET note = 'y'",
        "COMMIT",
    ] {
        holder.query(sql).ok();
    }
    assert_eq!(holder.query("SELECT note FROM plain").value(), "y");
}
