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
