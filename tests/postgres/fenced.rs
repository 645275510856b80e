//! What passes and what is refused, by every way in which a ticket comes.

use crate::client::{Answer, Client};
use crate::stack::{DATABASE, ORDERS, sign};
use crate::world::{WRITE, World};

/// Each way to present a ticket for one write, on a session without one.
type Channel = (&'static str, fn(&World, &str) -> Answer);

const CHANNELS: &[Channel] = &[
    ("start-up parameter", |world, ticket| {
        let parameters = [("ringfence.token", ticket)];
        Client::connect_with(world.proxy.address(), &parameters).query(WRITE)
    }),
    ("options", |world, ticket| {
        let options = format!("-c work_mem=1MB -c ringfence.token={ticket}");
        let parameters = [("options", &*options)];
        let mut client = Client::connect_with(world.proxy.address(), &parameters);
        let told = client.query("SHOW work_mem");
        assert!(told.code() == "RF001" || told.value() == "1MB");
        client.query(WRITE)
    }),
    ("options, long form", |world, ticket| {
        let options = format!("--ringfence.token={ticket}");
        let parameters = [("options", &*options)];
        Client::connect_with(world.proxy.address(), &parameters).query(WRITE)
    }),
    ("SET", |world, ticket| {
        let set = format!("SET ringfence.token = '{ticket}'");
        in_order(&mut world.proxy.client(), &[&set, WRITE])
    }),
    ("SET by the extended protocol", |world, ticket| {
        let mut client = world.proxy.client();
        let told = client.run(&format!("SET ringfence.token TO '{ticket}'"), &[]);
        match told.code() {
            "" => client.run(WRITE, &[]),
            _ => told,
        }
    }),
    ("SET LOCAL", |world, ticket| {
        let set = format!("SET LOCAL ringfence.token = '{ticket}'");
        in_order(&mut world.proxy.client(), &["BEGIN", &set, WRITE, "COMMIT"])
    }),
    ("set_config", |world, ticket| {
        let set = format!("SELECT set_config('ringfence.token', '{ticket}', false)");
        in_order(&mut world.proxy.client(), &[&set, WRITE])
    }),
    ("set_config in Bind", |world, ticket| {
        let mut client = world.proxy.client();
        let told = client.run("SELECT set_config('ringfence.token', $1, false)", &[ticket]);
        match told.code() {
            "" => client.query(WRITE),
            _ => told,
        }
    }),
    ("comment", |world, ticket| {
        let text = format!("{WRITE} /*fencing_token='{ticket}'*/");
        world.proxy.client().query(&text)
    }),
    ("comment in Parse", |world, ticket| {
        let text = format!("{WRITE} /*fencing_token='{ticket}',route='a'*/");
        world.proxy.client().run(&text, &[])
    }),
    ("comment on BEGIN", |world, ticket| {
        let begin = format!("BEGIN /*fencing_token='{ticket}'*/");
        in_order(&mut world.proxy.client(), &[&begin, WRITE, "COMMIT"])
    }),
];

/// Queries up to the first that is refused.
fn in_order(client: &mut Client, texts: &[&str]) -> Answer {
    let mut answers = texts.iter().map(|text| client.query(text));
    let mut last = answers.next().expect("a text");
    for answer in answers {
        if !last.faults.is_empty() {
            break;
        }
        last = answer;
    }
    last
}

#[test]
fn by_every_way_the_newest_ticket_writes_and_an_older_one_is_refused() {
    let world = World::new();
    for (at, (way, write)) in CHANNELS.iter().enumerate() {
        let token = 10 * (at as u64 + 1);
        world
            .direct()
            .query("UPDATE orders SET note = 'first'")
            .ok();
        let told = write(&world, &world.proxy.ticket(token));
        assert_eq!(told.code(), "", "{way}: {told:?}");
        assert_eq!(world.order(), "written", "{way}");
        // Equal passes as often as one likes.
        assert_eq!(
            write(&world, &world.proxy.ticket(token)).code(),
            "",
            "{way}"
        );
        world
            .direct()
            .query("UPDATE orders SET note = 'first'")
            .ok();
        let told = write(&world, &world.proxy.ticket(token - 1));
        let json = told.refused("RF001").json();
        assert_eq!(json["code"], "stale", "{way}: {json}");
        assert_eq!(json["lock"], "app", "{way}");
        assert_eq!(json["token"], (token - 1).to_string(), "{way}");
        assert_eq!(json["watermark"], token.to_string(), "{way}");
        assert_eq!(json["outcome"], "not-applied", "{way}");
        assert_eq!(world.order(), "first", "{way}");
    }
}

#[test]
fn a_read_of_the_newer_holder_seals_and_a_stale_one_reads_nothing() {
    let world = World::new();
    let mut old = world.proxy.holder(1);
    old.query(WRITE).ok();
    let mut new = world.proxy.holder(2);
    assert_eq!(new.query("SELECT note FROM orders").value(), "written");
    let late = "UPDATE orders SET note = 'late'";
    old.query(late).refused("RF001");
    old.query("SELECT note FROM orders").refused("RF001");
    old.run(late, &[]).refused("RF001");
    assert_eq!(world.order(), "written");
    // The session stays usable: without the ticket, and with a newer one.
    old.query("SET ringfence.token = ''").ok();
    old.query("SELECT note FROM orders").ok();
    let renewed = world.proxy.ticket(3);
    old.query(&format!("SET ringfence.token = '{renewed}'"))
        .ok();
    old.query(late).ok();
    new.query("SELECT 1").refused("RF001");
    assert_eq!(world.order(), "late");
}

#[test]
fn without_a_ticket_a_guarded_write_is_told_which_lock_it_needs() {
    let world = World::with(|setup| setup.with_rules(ORDERS));
    let mut client = world.proxy.client();
    let told = client.query(WRITE);
    let json = told.refused("RF002").json();
    assert_eq!(
        (&json["code"], &json["lock"]),
        (&"missing".into(), &"orders".into())
    );
    assert_eq!(told.status, b'I');
    client.query("INSERT INTO plain VALUES (1, 'x')").ok();
    assert_eq!(world.order(), "first");
    // A ticket for another lock is none.
    let other = world.proxy.ticket(1);
    client
        .query(&format!("SET ringfence.token = '{other}'"))
        .ok();
    client.query(WRITE).refused("RF002");
}

#[test]
fn what_no_rule_covers_is_refused_where_the_listener_says_so() {
    let world = World::with(|setup| setup.with_rules(ORDERS).with("unmatched = \"reject\""));
    let ticket = sign(&world.proxy.key, "orders", 1);
    let address = world.proxy.address();
    let mut holder = Client::connect_with(address, &[("ringfence.token", &ticket)]);
    holder.query(WRITE).ok();
    let told = holder.query("INSERT INTO plain VALUES (1, 'x')");
    assert_eq!(told.refused("RF005").json()["code"], "unclassified");
    holder.query("SELECT * FROM plain").ok();
}

#[test]
fn forged_and_malformed_tickets_are_invalid() {
    let world = World::new();
    let stranger = ringfence::ticket::SigningKey::generate();
    let mut client = world.proxy.client();
    for ticket in [
        &*sign(&stranger, "app", 1),
        "7",
        "v4.public.AAAA",
        "nonsense",
    ] {
        let told = client.query(&format!("SET ringfence.token = '{ticket}'"));
        let told = match told.code() {
            "" => client.query(WRITE),
            _ => told,
        };
        assert_eq!(told.refused("RF003").json()["code"], "invalid", "{ticket}");
        let told = client.query(&format!("{WRITE} /*fencing_token='{ticket}'*/"));
        told.refused("RF003");
        client.query("RESET ringfence.token").ok();
        client.query("SELECT 1").ok();
    }
    assert_eq!(world.order(), "first");
}

#[test]
fn a_write_under_two_locks_needs_both_tickets() {
    let rules = format!("{DATABASE}{ORDERS}");
    let world = World::with(|setup| setup.with_rules(&rules));
    let (app, orders) = (world.proxy.ticket(3), sign(&world.proxy.key, "orders", 8));
    let mut client = world.proxy.client();
    client.query(&format!("SET ringfence.token = '{app}'")).ok();
    assert_eq!(
        client.query(WRITE).refused("RF002").json()["lock"],
        "orders"
    );
    client.query("INSERT INTO plain VALUES (1, 'x')").ok();
    client
        .query(&format!("SET ringfence.token = '{app}, {orders}'"))
        .ok();
    client.query(WRITE).ok();
    // Each is sealed by itself.
    let newer = sign(&world.proxy.key, "orders", 9);
    let address = world.proxy.address();
    Client::connect_with(address, &[("ringfence.token", &newer)])
        .query("SELECT 1")
        .ok();
    assert_eq!(
        client.query(WRITE).refused("RF001").json()["lock"],
        "orders"
    );
    client.query(&format!("SET ringfence.token = '{app}'")).ok();
    client.query("INSERT INTO plain VALUES (2, 'x')").ok();
}

#[test]
fn a_lock_per_schema_is_named_by_the_schema() {
    let rules = "[[listener.rule]]\nlock = \"tenant/{name}\"\nschema = \"{name}\"\n";
    let world = World::with(|setup| setup.with_rules(rules));
    let mut direct = world.direct();
    for sql in ["CREATE SCHEMA one", "CREATE SCHEMA two"] {
        direct.query(sql).ok();
    }
    direct
        .query("CREATE TABLE one.a (a int); CREATE TABLE two.a (a int)")
        .ok();
    let ticket = sign(&world.proxy.key, "tenant/one", 4);
    let address = world.proxy.address();
    let mut client = Client::connect_with(address, &[("ringfence.token", &ticket)]);
    client.query("SET search_path = one").ok();
    client.query("INSERT INTO a VALUES (1)").ok();
    client.query("SET search_path = two").ok();
    let told = client.query("INSERT INTO a VALUES (1)");
    assert_eq!(told.refused("RF002").json()["lock"], "tenant/two");
    client.query("INSERT INTO one.a VALUES (2)").ok();
}

#[test]
fn bare_tokens_pass_where_the_listener_takes_them() {
    let world = World::with(|setup| setup.with("trust = \"unsigned\""));
    let address = world.proxy.address();
    let mut old = Client::connect_with(address, &[("ringfence.token", "7")]);
    old.query(WRITE).ok();
    let mut new = Client::connect_with(address, &[("ringfence.token", "8")]);
    new.query("SELECT 1").ok();
    old.query(WRITE).refused("RF001");
}

#[test]
fn a_bare_token_counts_in_a_database_without_a_rule_too() {
    let world = World::with(|setup| setup.with("trust = \"unsigned\""));
    let address = world.proxy.address();
    let elsewhere = |token: &str| {
        let parameters = [("database", "postgres"), ("ringfence.token", token)];
        Client::connect_with(address, &parameters)
    };
    let limit = "ALTER DATABASE app SET work_mem = '5MB'";
    let mut without = Client::connect_with(address, &[("database", "postgres")]);
    without.query(limit).refused("RF002");
    let mut old = elsewhere("7");
    old.query(limit).ok();
    Client::connect_with(address, &[("ringfence.token", "8")])
        .query(WRITE)
        .ok();
    old.query(limit).refused("RF001");
    elsewhere("8").query(limit).ok();
}

#[test]
fn observe_mode_forwards_what_enforce_would_refuse() {
    let world = World::with(|setup| setup.with("mode = \"observe\""));
    let mut client = world.proxy.client();
    client.query(WRITE).ok();
    assert_eq!(world.order(), "written");
    world.proxy.holder(5).query(WRITE).ok();
    world.proxy.holder(4).query(WRITE).ok();
    let forged = sign(&ringfence::ticket::SigningKey::generate(), "app", 1);
    client
        .query(&format!("{WRITE} /*fencing_token='{forged}'*/"))
        .ok();
    client.query("SET default_transaction_read_only = off").ok();
}

#[test]
fn a_refusal_says_why_what_looks_harmless_needs_a_ticket() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let mut direct = world.direct();
    direct
        .query("CREATE FUNCTION ours() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        .ok();
    let mut client = world.proxy.client();
    for (sql, why) in [
        ("SELCT 1", "it is not in Postgres's grammar"),
        ("SELECT ours()", "it calls a volatile function"),
        ("DO $$BEGIN END$$", "a code block may write to anything"),
        (
            "DROP SCHEMA public CASCADE",
            "CASCADE may reach any relation",
        ),
    ] {
        let told = client.query(sql);
        let message = &told.refused("RF002").message;
        let expected = format!("this write needs a ticket for the lock `orders`: {why}");
        assert_eq!(*message, expected, "{sql}");
    }
    let told = client.query("UPDATE orders SET note = 'late'");
    assert!(told.refused("RF002").message.ends_with("`orders`"));
    client.query("BEGIN; CREATE DOMAIN d AS int").ok();
    let told = client.query("SELECT * FROM plain");
    let message = &told.refused("RF002").message;
    assert!(
        message.contains("an earlier statement of its transaction"),
        "{message}"
    );
}

#[test]
fn rows_are_locked_where_the_clause_says() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    world
        .direct()
        .query("CREATE VIEW seen AS SELECT * FROM orders")
        .ok();
    let mut client = world.proxy.client();
    for sql in [
        "SELECT p.* FROM plain p LEFT JOIN orders o USING (id) FOR UPDATE OF p",
        "WITH c AS (SELECT id FROM plain FOR UPDATE SKIP LOCKED) \
         SELECT * FROM orders JOIN c USING (id)",
        "SELECT * FROM (SELECT * FROM plain FOR UPDATE) s, orders",
        "SELECT * FROM orders WHERE id IN (SELECT id FROM plain FOR SHARE)",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    for sql in [
        "SELECT * FROM plain p JOIN orders o USING (id) FOR UPDATE",
        "SELECT * FROM plain p JOIN orders o USING (id) FOR UPDATE OF o",
        "SELECT * FROM plain p JOIN seen o USING (id) FOR KEY SHARE OF o",
        "SELECT * FROM plain p, (SELECT * FROM orders) s FOR UPDATE OF s",
        "SELECT * FROM plain p, (SELECT * FROM orders) s FOR UPDATE",
    ] {
        client.query(sql).refused("RF002");
    }
}

/// Programs look at these codes: for the table that they have not made yet, say.
#[test]
fn a_name_that_is_nowhere_is_refused_by_the_server() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let mut direct = world.direct();
    direct.query("CREATE SCHEMA aside").ok();
    direct.query("CREATE TABLE aside.hidden (a int)").ok();
    let mut client = world.proxy.client();
    for (sql, code) in [
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT nothing(1)", "42883"),
        ("INSERT INTO nowhere VALUES (1)", "42P01"),
        ("UPDATE nowhere.at_all SET a = 1", "42P01"),
        ("TRUNCATE nowhere", "42P01"),
        ("ALTER TABLE IF EXISTS nowhere ADD a int", ""),
        // It may be in the path that the session has by now.
        ("SELECT * FROM hidden", "RF002"),
        ("BEGIN", ""),
        ("SAVEPOINT a", ""),
        ("SELECT nothing(1)", "42883"),
        ("ROLLBACK TO a", ""),
        ("CREATE VIEW v AS SELECT 1 AS one", ""),
        // What is made here is in no catalog.
        ("SELECT * FROM nowhere", "RF002"),
        ("ROLLBACK", ""),
    ] {
        assert_eq!(client.query(sql).code(), code, "{sql}");
    }
    // What comes to be there meanwhile is found.
    let mut client = world.proxy.client();
    direct
        .query("CREATE VIEW nowhere AS SELECT * FROM orders")
        .ok();
    client
        .query("UPDATE nowhere SET note = 'late'")
        .refused("RF002");
    client
        .query("UPDATE orders_2 SET note = 'late'")
        .refused("42P01");
    let rules = "[[listener.rule]]\nlock = \"all\"\ntable = \"public.*\"\n";
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(rules));
    let mut client = world.proxy.client();
    client
        .query("INSERT INTO nowhere VALUES (1)")
        .refused("RF002");
    client
        .query("INSERT INTO aside.nowhere VALUES (1)")
        .refused("42P01");
}
