//! Names of prepared transactions: at every proxy before the server, and only for as long as
//! something is prepared under them.

use std::sync::Arc;

use crate::client::Client;
use crate::races::BACKEND;
use crate::stack::{Proxy, Setup, sign};
use crate::world::World;

/// Two locks in one database.
const TWO: &str = "[[listener.rule]]\nlock = \"orders\"\ntable = \"public.orders\"\n\
     [[listener.rule]]\nlock = \"plain\"\ntable = \"public.plain\"\n";

/// One lock for each of two databases.
const TWO_DATABASES: &str = "[[listener.rule]]\nlock = \"app\"\ndatabase = \"app\"\n\
     [[listener.rule]]\nlock = \"other\"\ndatabase = \"other\"\n";

const INSERT: &str = "INSERT INTO plain VALUES (1, 'x')";

/// A session under token 1 of a lock.
fn holder(proxy: &Proxy, lock: &str) -> Client {
    let ticket = sign(&proxy.key, lock, 1);
    Client::connect_with(proxy.address(), &[("ringfence.token", &ticket)])
}

#[track_caller]
fn prepare(client: &mut Client, table: &str, name: &str) {
    client
        .query(&format!("BEGIN; INSERT INTO {table} VALUES (9, 'x')"))
        .ok();
    client.query(&format!("PREPARE TRANSACTION '{name}'")).ok();
}

#[test]
fn what_one_proxy_has_prepared_needs_its_tickets_at_every_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = World::server();
    Client::connect_with(server.address, &[("user", "postgres")])
        .query("GRANT CREATE ON DATABASE postgres TO ringfence_control")
        .ok();
    let setup = Setup {
        tables: BACKEND.to_owned(),
        ..Setup::new(server.address).with_rules(TWO)
    };
    Proxy::install(dir.path(), &setup);
    let one = Proxy::start(dir.path(), &setup);
    let other = Setup {
        name: "edge-2",
        key: Arc::clone(&setup.key),
        ..setup
    };
    let other = Proxy::start(dir.path(), &other);

    prepare(&mut holder(&one, "plain"), "plain", "g");
    let end = "COMMIT PREPARED 'g'";
    for client in [&mut other.client(), &mut holder(&other, "orders")] {
        assert_eq!(client.query(end).refused("RF002").json()["lock"], "plain");
    }
    holder(&other, "plain").query(end).ok();
    // The same name for another lock: what the first proxy knew of it counts no more.
    prepare(&mut holder(&other, "orders"), "orders", "g");
    let told = holder(&one, "plain").query(end);
    assert_eq!(told.refused("RF002").json()["lock"], "orders");
    holder(&one, "orders").query("ROLLBACK PREPARED 'g'").ok();
    // In one text, of a session that the proxy does not know yet.
    let text = format!("BEGIN; {INSERT}; PREPARE TRANSACTION 'h'");
    holder(&one, "plain").query(&text).ok();
    holder(&other, "plain").query("COMMIT PREPARED 'h'").ok();
}

#[test]
fn a_name_that_is_not_found_is_forgotten() {
    let world = World::with(|setup| setup.with_rules(TWO));
    let mut holder = holder(&world.proxy, "plain");
    prepare(&mut holder, "plain", "g");
    world.direct().query("ROLLBACK PREPARED 'g'").ok();
    holder.query("COMMIT PREPARED 'g'").refused("42704");
    // What somebody prepares past the proxy now may be anything.
    prepare(&mut world.direct(), "orders", "g");
    let told = holder.query("COMMIT PREPARED 'g'");
    assert_eq!(told.refused("RF002").json()["lock"], "orders");
    world.direct().query("ROLLBACK PREPARED 'g'").ok();
}

#[test]
fn a_name_stays_where_something_behind_its_prepare_fails() {
    let world = World::with(|setup| setup.with_rules(TWO));
    let mut holder = holder(&world.proxy, "plain");
    let text = format!("BEGIN; {INSERT}; PREPARE TRANSACTION 'g'; SELECT 1/0");
    holder.query(&text).refused("22012");
    // By its own lock alone: it is known.
    holder.query("COMMIT PREPARED 'g'").ok();
    // One that was never prepared is not.
    let text = format!("BEGIN; {INSERT}; SELECT 1/0; PREPARE TRANSACTION 'g'");
    holder.query(&text).refused("22012");
    holder.query("ROLLBACK").ok();
    let told = holder.query("COMMIT PREPARED 'g'");
    assert_eq!(told.refused("RF002").json()["lock"], "orders");
}

#[test]
fn what_is_prepared_may_change_what_names_do() {
    let world = World::with(|setup| setup.with_rules(TWO));
    let mut holder = Client::connect_with(
        world.proxy.address(),
        &[(
            "ringfence.token",
            &[
                sign(&world.proxy.key, "orders", 1),
                sign(&world.proxy.key, "plain", 1),
            ]
            .join(","),
        )],
    );
    world.direct().query("CREATE TABLE free (id int)").ok();
    let mut other = world.proxy.client();
    other.query("INSERT INTO free VALUES (1)").ok();
    holder
        .query(
            "BEGIN; CREATE RULE r AS ON INSERT TO free DO ALSO \
             UPDATE orders SET note = 'written'; PREPARE TRANSACTION 'g'",
        )
        .ok();
    // Loaded again, before it is committed.
    world.direct().query("CREATE TABLE newer (id int)").ok();
    other.query("SELECT * FROM newer").ok();
    holder.query("COMMIT PREPARED 'g'").ok();
    other.query("INSERT INTO free VALUES (1)").refused("RF002");
    assert_eq!(world.order(), "first");
}

/// Of two locks, the record tells which one it needs.
#[test]
fn what_another_statement_lacks_takes_no_name_off_the_record() {
    let world = World::with(|setup| setup.with_rules(TWO));
    let mut client = holder(&world.proxy, "orders");
    prepare(&mut client, "orders", "kept");
    let told = client.query("SELECT NULL::no_such_type; COMMIT PREPARED 'kept'");
    assert_eq!(told.code(), "42704", "{told:?}");
    client.query("COMMIT PREPARED 'kept'").ok();
    world.direct().query("DELETE FROM orders WHERE id = 9").ok();
    // Where the server has nothing, the record goes.
    prepare(&mut client, "orders", "gone");
    world.direct().query("ROLLBACK PREPARED 'gone'").ok();
    let told = client.query("COMMIT PREPARED 'gone'");
    assert_eq!(told.code(), "42704", "{told:?}");
    client.query("ROLLBACK PREPARED 'gone'").refused("RF002");
}

/// Nothing guarded can be in it: whoever has no ticket, and can have none, needs none.
#[test]
fn a_transaction_is_prepared_without_a_ticket_where_no_rule_is_about_the_database() {
    let world = World::with(|setup| setup.with_rules(TWO_DATABASES));
    world.admin().query("CREATE DATABASE free OWNER app").ok();
    let free = [("database", "free")];
    let mut client = Client::connect_with(world.proxy.address(), &free);
    for sql in [
        "CREATE SCHEMA s",
        "CREATE TABLE s.t (a int)",
        "BEGIN; INSERT INTO s.t VALUES (1)",
        "PREPARE TRANSACTION 'g'",
        "COMMIT PREPARED 'g'",
        "BEGIN; INSERT INTO s.t VALUES (2); PREPARE TRANSACTION 'h'",
        "ROLLBACK PREPARED 'h'",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    assert_eq!(client.query("SELECT count(*) FROM s.t").value(), "1");
    // What is about a guarded database is prepared, and ended, under its ticket.
    client.query("BEGIN").ok();
    client
        .query("ALTER DATABASE app CONNECTION LIMIT 5")
        .refused("RF002");
    client.query("ROLLBACK").ok();
    let ticket = sign(&world.proxy.key, "app", 1);
    let parameters = [("database", "free"), ("ringfence.token", &*ticket)];
    let mut holder = Client::connect_with(world.proxy.address(), &parameters);
    holder
        .query("BEGIN; ALTER DATABASE app CONNECTION LIMIT 5")
        .ok();
    holder.query("PREPARE TRANSACTION 'i'").ok();
    client.query("COMMIT PREPARED 'i'").refused("RF002");
    holder.query("COMMIT PREPARED 'i'").ok();
    // Where a rule is about the database nothing has changed.
    let mut client = world.proxy.client();
    client
        .query("BEGIN; SELECT 1; PREPARE TRANSACTION 'j'")
        .refused("RF005");
}
