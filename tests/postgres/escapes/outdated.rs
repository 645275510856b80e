//! What acts while the catalog is outdated does so unseen: the session is not trusted behind it as
//! if nothing had run.

use crate::client::Client;
use crate::stack::{DATABASE, ORDERS, sign};
use crate::world::World;

/// What a name stands for in the session is changed, and that it did something is not told.
const TWISTS: &str = "LANGUAGE plpgsql AS $$ BEGIN \
     IF EXISTS (SELECT FROM pg_prepared_statements WHERE name = 'p') THEN \
     EXECUTE 'DEALLOCATE p'; EXECUTE 'PREPARE p AS DELETE FROM public.orders'; END IF;";

fn makes() -> Vec<String> {
    let twists =
        |head: &str, gives: &str| format!("CREATE FUNCTION {head} {TWISTS} RETURN {gives}; END $$");
    let plain = [
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE ruled (a int)",
        "CREATE TABLE filtered (a int)",
        "INSERT INTO filtered VALUES (1)",
        "CREATE TABLE typed (a int)",
        "INSERT INTO typed VALUES (1)",
    ];
    let functions = [
        twists("twist(int, int) RETURNS int", "1"),
        twists("twisted(typed) RETURNS int", "1"),
        twists("to_pair(text) RETURNS pair", "ROW(1, 2)"),
        twists("checks(int) RETURNS boolean", "true"),
    ];
    let users = [
        "CREATE OPERATOR === (FUNCTION = twist, LEFTARG = int, RIGHTARG = int)",
        "CREATE CAST (text AS pair) WITH FUNCTION to_pair(text)",
        "CREATE DOMAIN dom AS int CHECK (checks(VALUE))",
        "CREATE VIEW turning AS SELECT twist(1, 2)",
        "CREATE RULE r AS ON INSERT TO ruled DO ALSO SELECT twist(1, 2)",
        "ALTER TABLE filtered ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE filtered FORCE ROW LEVEL SECURITY",
        "CREATE POLICY one ON filtered USING (twist(1, 2) = 1)",
    ];
    let plain = plain.into_iter().map(str::to_owned);
    let users = users.into_iter().map(str::to_owned);
    plain.chain(functions).chain(users).collect()
}

const ACTS: &[&str] = &[
    "SELECT twist(1, 2)",
    "SELECT 1 === 2",
    "SELECT t.twisted FROM typed t",
    "SELECT (lower('A'))::pair",
    "SELECT CAST('1' AS dom)",
    "SELECT a FROM filtered",
    "TABLE turning",
    "INSERT INTO ruled VALUES (1)",
    "COPY (TABLE turning) TO STDOUT",
    "CREATE TEMP TABLE filled AS TABLE turning",
    "DECLARE c CURSOR WITH HOLD FOR TABLE turning; FETCH c",
];

/// A ticket for both locks: nothing that acts is refused for what it might do.
fn tickets(world: &World, token: u64) -> String {
    let [app, orders] = ["app", "orders"].map(|lock| sign(&world.proxy.key, lock, token));
    format!("{app},{orders}")
}

#[test]
fn what_acts_with_an_outdated_catalog_is_distrusted_where_a_database_is_guarded() {
    is_distrusted(DATABASE);
}

#[test]
fn what_acts_with_an_outdated_catalog_is_distrusted_where_a_table_is_guarded() {
    is_distrusted(ORDERS);
}

fn is_distrusted(rules: &str) {
    let world = World::with(|setup| setup.with_rules(rules));
    for sql in makes() {
        world.direct().query(&sql).ok();
    }
    for (at, acts) in ACTS.iter().enumerate() {
        would_delete(&world, acts);
        let token = 4 * at as u64 + 1;
        deletes_nothing(&world, acts, token, false);
        deletes_nothing(&world, acts, token + 2, true);
    }
}

/// Past the proxy the name stands for the DELETE behind it.
fn would_delete(world: &World, acts: &str) {
    let mut direct = world.direct();
    for sql in ["PREPARE p AS SELECT 1", "BEGIN", acts, "EXECUTE p"] {
        let told = direct.query(sql).ok();
        let deletes = told.done.last().is_some_and(|done| done == "DELETE 1");
        assert_eq!(deletes, sql == "EXECUTE p", "{acts}: {sql}: {told:?}");
    }
    direct.query("ROLLBACK").ok();
}

fn deletes_nothing(world: &World, acts: &str, token: u64, in_block: bool) {
    let way = format!("{acts}: in a block: {in_block}");
    let mut old: Client = world.proxy.client();
    let set = format!("SET ringfence.token = '{}'", tickets(world, token));
    // The second makes the catalog outdated; of a table with a parent no catalog tells behind it.
    let defines = format!("CREATE TABLE zz_{token} (a int)");
    let inherits = format!("CREATE TABLE yy_{token} () INHERITS (plain)");
    let mut script = vec![&*set, "PREPARE p AS SELECT 1", &defines];
    match in_block {
        true => script.extend(["BEGIN", &inherits, acts, "COMMIT"]),
        false => script.push(acts),
    }
    script.push("SET ringfence.token = ''");
    for sql in script {
        let told = old.query(sql);
        assert_eq!(told.code(), "", "{way}: {sql}: {told:?}");
    }
    let newer = tickets(world, token + 1);
    let parameters = [("ringfence.token", &*newer)];
    let mut new = Client::connect_with(world.proxy.address(), &parameters);
    assert_eq!(new.query("SELECT note FROM orders").value(), "first");
    let told = old.query("EXECUTE p");
    assert_eq!(
        new.query("SELECT note FROM orders").value(),
        "first",
        "{way}: {told:?}"
    );
    assert_eq!(told.code(), "RF002", "{way}: {told:?}");
}

/// What certainly runs nothing waits for no catalog, and is trusted as before.
#[test]
fn what_runs_nothing_with_an_outdated_catalog_is_trusted() {
    let world = World::new();
    let mut client = world.proxy.client();
    for sql in [
        &*format!("SET ringfence.token = '{}'", tickets(&world, 1)),
        "PREPARE p AS SELECT 1",
        "CREATE TABLE one (a int PRIMARY KEY)",
        "ALTER TABLE one ADD COLUMN b int",
        "INSERT INTO one VALUES (1, 2)",
        "UPDATE one SET b = b + 1 WHERE a = 1",
        "DROP TABLE one",
        "SELECT note FROM orders",
        "SET ringfence.token = ''",
        "EXECUTE p",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
}
