//! How far a definition reaches: to children of its table, to what a rule of it does, to other
//! databases, or to nothing that is guarded.

use crate::client::Client;
use crate::migrations::guarding_orders;
use crate::stack::ORDERS;
use crate::world::World;

/// Children lose what they have of their parent's keys and columns, whatever ONLY says.
#[test]
fn a_definition_of_a_parent_only_reaches_its_children() {
    let world = guarding_orders();
    let mut direct = world.direct();
    for sql in [
        "CREATE TABLE par (id int, note text, x int, PRIMARY KEY (id)) PARTITION BY LIST (id)",
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, note text, x int)",
        "ALTER TABLE par ATTACH PARTITION orders FOR VALUES IN (1)",
    ] {
        direct.query(sql).ok();
    }
    let mut client = world.proxy.client();
    client
        .query("ALTER TABLE ONLY par DROP CONSTRAINT par_pkey")
        .refused("RF002");
    let keys = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'orders'::regclass \
                AND contype = 'p'";
    assert_eq!(direct.query(keys).value(), "1");
    direct
        .query("ALTER TABLE ONLY par DROP CONSTRAINT par_pkey")
        .ok();
    assert_eq!(direct.query(keys).value(), "0");
}

/// What a rule of a table does, it does when rows are written.
#[test]
fn a_table_with_a_rule_is_defined_and_locked_without_a_ticket() {
    let world = guarding_orders();
    for sql in [
        "CREATE TABLE acct (id int PRIMARY KEY, note text)",
        "CREATE RULE rr AS ON DELETE TO acct DO INSTEAD UPDATE orders SET note = 'written'",
        "INSERT INTO acct VALUES (1)",
    ] {
        world.direct().query(sql).ok();
    }
    let mut client = world.proxy.client();
    for sql in ["DELETE FROM acct", "UPDATE acct SET note = 'x'"] {
        client.query(sql).refused("RF002");
    }
    // By its new name it would do the same.
    client
        .query("ALTER TABLE acct RENAME TO moved")
        .refused("RF002");
    client
        .query("ALTER TABLE acct ADD FOREIGN KEY (id) REFERENCES acct ON DELETE CASCADE")
        .refused("RF002");
    for sql in [
        "REINDEX TABLE acct",
        "CLUSTER acct USING acct_pkey",
        "BEGIN; LOCK TABLE acct; COMMIT",
        "ALTER TABLE acct OWNER TO app",
        "CREATE POLICY p ON acct USING (id > 0)",
        "DROP RULE rr ON acct",
        "DROP TABLE acct",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    assert_eq!(world.order(), "first");
}

/// What is the server's, and reaches no table.
#[test]
fn roles_databases_and_privileges_need_no_ticket_of_a_table() {
    let world = World::with(|setup| {
        let rules = format!("{ORDERS}database = \"app\"\n");
        setup.and("anywhere", "", ORDERS).with_rules(&rules)
    });
    let mut admin = world.admin();
    admin.query("ALTER ROLE app CREATEROLE CREATEDB").ok();
    admin.query("GRANT CREATE ON DATABASE app TO app").ok();
    let mut client = world.proxy.client();
    for sql in [
        "CREATE ROLE another",
        "ALTER ROLE another CONNECTION LIMIT 5",
        "GRANT another TO app",
        "DROP ROLE another",
        "CREATE DATABASE more",
        "ALTER DATABASE more SET work_mem = '5MB'",
        "DROP DATABASE more",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO app",
        "CREATE PUBLICATION published FOR TABLE plain",
        "BEGIN",
        "CREATE ROLE another",
        "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM app",
        "INSERT INTO plain VALUES (1, 'x')",
        "ROLLBACK",
    ] {
        let told = client.query(sql);
        assert_eq!(told.code(), "", "{sql}: {told:?}");
    }
    // In a new database there is no table yet; in one that is there may be one of the rule.
    let mut anywhere = Client::connect(world.proxy.addresses[1]);
    anywhere.query("CREATE DATABASE more").ok();
    anywhere.query("DROP DATABASE more").refused("RF002");
    for sql in [
        "CREATE DATABASE copied TEMPLATE app",
        "ALTER DATABASE app SET work_mem = '5MB'",
        "ALTER ROLE app SET search_path = aside",
        "DROP OWNED BY app",
        "CREATE PUBLICATION other FOR TABLE orders",
        "CREATE PUBLICATION other FOR ALL TABLES",
    ] {
        client.query(sql).refused("RF002");
    }
}
