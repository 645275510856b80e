//! What acts though its text does not say so may change what later names mean: then what a write
//! needs is not told by its names any more.

use crate::client::Client;
use crate::client::send::{bind, parse, query, run, sync};
use crate::stack::sign;
use crate::world::World;

/// Two tables of the same name, each with a lock of its own.
const RULES: &str = "[[listener.rule]]\nlock = \"near\"\ntable = \"public.orders\"\n\
     [[listener.rule]]\nlock = \"far\"\ntable = \"apart.orders\"\n";

/// With a function that changes the path, and a view that calls it.
fn world() -> World {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(RULES));
    let mut direct = world.direct();
    for sql in [
        "CREATE SCHEMA apart",
        "CREATE TABLE apart.orders (id int, note text)",
        "INSERT INTO apart.orders VALUES (1, 'first')",
        "CREATE FUNCTION turns() RETURNS int LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM set_config('search_path', 'apart, public', false); RETURN 1; END $$",
        "CREATE VIEW turning AS SELECT turns()",
    ] {
        direct.query(sql).ok();
    }
    world
}

fn holder_of_both(world: &World) -> Client {
    let [near, far] = ["near", "far"].map(|lock| sign(&world.proxy.key, lock, 1));
    let both = format!("{near},{far}");
    Client::connect_with(world.proxy.address(), &[("ringfence.token", &both)])
}

/// With the ticket of the one lock only, the table of the other is not written, whose name the
/// server takes now.
#[track_caller]
fn writes_nothing_of_the_other(world: &World, client: &mut Client, acts: &str) {
    let near = sign(&world.proxy.key, "near", 1);
    client
        .query(&format!("SET ringfence.token = '{near}'"))
        .ok();
    let told = client.query("UPDATE orders SET note = 'written'");
    assert_eq!(told.code(), "RF002", "{acts}: {told:?}");
    let apart = world
        .direct()
        .query("SELECT note FROM apart.orders")
        .value();
    assert_eq!(apart, "first");
}

/// Each has the function called.
const ACTS: [&str; 2] = ["SELECT turns()", "SELECT * FROM turning"];

#[test]
fn what_acts_by_the_catalog_is_distrusted() {
    let world = world();
    for acts in ACTS {
        let mut holder = holder_of_both(&world);
        holder.query("SELECT 1 FROM plain").ok();
        holder.query(acts).ok();
        writes_nothing_of_the_other(&world, &mut holder, acts);
    }
}

#[test]
fn what_acts_behind_a_definition_is_distrusted() {
    let world = world();
    for acts in ACTS {
        let mut holder = holder_of_both(&world);
        for sql in [
            "BEGIN",
            "ALTER TABLE plain ADD COLUMN IF NOT EXISTS more int",
            acts,
            "COMMIT",
        ] {
            holder.query(sql).ok();
        }
        writes_nothing_of_the_other(&world, &mut holder, acts);
    }
}

#[test]
fn what_acts_without_a_catalog_is_distrusted() {
    let world = world();
    for (at, acts) in ACTS.into_iter().enumerate() {
        let mut holder = holder_of_both(&world);
        holder.query("SELECT 1 FROM plain").ok();
        let defines = format!("CREATE TABLE new_{at} (a int)");
        // It makes the catalog outdated; what comes behind it does not wait for another.
        holder.query(&defines).ok();
        holder.query(acts).ok();
        writes_nothing_of_the_other(&world, &mut holder, acts);
    }
}

#[test]
fn what_does_not_act_is_trusted_again() {
    let world = world();
    let mut holder = holder_of_both(&world);
    for sql in [
        "BEGIN",
        "CREATE TABLE fresh (a int PRIMARY KEY)",
        "ALTER TABLE fresh ADD COLUMN b int",
        "INSERT INTO fresh VALUES (1, 2)",
        "UPDATE plain SET note = 'x'",
        "COMMIT",
    ] {
        holder.query(sql).ok();
    }
    let near = sign(&world.proxy.key, "near", 1);
    holder
        .query(&format!("SET ringfence.token = '{near}'"))
        .ok();
    holder.query("UPDATE orders SET note = 'written'").ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn a_value_whose_type_acts_does_so_as_it_is_bound() {
    let world = world();
    for sql in [
        "CREATE FUNCTION turned(int) RETURNS boolean LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM turns(); RETURN true; END $$",
        "CREATE DOMAIN turning_int AS int CHECK (turned(VALUE))",
    ] {
        world.direct().query(sql).ok();
    }
    let mut holder = holder_of_both(&world);
    holder.query("SELECT 1 FROM plain").ok();
    // It is never executed.
    let text = "SELECT $1::turning_int";
    let bytes = [parse("", text), bind("", "", &["5"]), sync()].concat();
    holder.ask(&bytes).ok();
    writes_nothing_of_the_other(&world, &mut holder, text);
}

#[test]
fn a_cursor_acts_as_it_is_read() {
    let world = world();
    let declares = "DECLARE c CURSOR FOR SELECT * FROM turning";
    let holds = "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM turning";
    let sets = "SET search_path = public";
    for (declares, ends) in [(declares, &["FETCH c", "COMMIT"][..]), (holds, &["COMMIT"])] {
        let mut holder = holder_of_both(&world);
        holder.query("SELECT 1 FROM plain").ok();
        // Sent before what comes first is answered, whose end is not theirs.
        let begins = ["SELECT pg_sleep(0.05)", "BEGIN", declares, sets];
        holder.send(&begins.map(query).concat());
        for _ in begins {
            holder.answer().ok();
        }
        for sql in ends {
            holder.query(sql).ok();
        }
        writes_nothing_of_the_other(&world, &mut holder, declares);
    }
    // A held one is read as its transaction ends, whatever ends that.
    let at_once = query(&format!("{holds}; {sets}"));
    let piped = [run(holds, &[]), run(sets, &[]), sync()].concat();
    for bytes in [at_once, piped] {
        let mut holder = holder_of_both(&world);
        holder.ask(&bytes).ok();
        writes_nothing_of_the_other(&world, &mut holder, holds);
    }
}

#[test]
fn a_policy_of_the_same_transaction_acts() {
    let world = world();
    let mut holder = holder_of_both(&world);
    for sql in [
        "INSERT INTO plain VALUES (1, 'x')",
        "ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE plain FORCE ROW LEVEL SECURITY",
        "BEGIN",
        "CREATE POLICY turning ON plain USING (turns() = 1)",
        "SELECT * FROM plain",
        "COMMIT",
    ] {
        holder.query(sql).ok();
    }
    writes_nothing_of_the_other(&world, &mut holder, "a policy");
}

/// The last catalog does not tell of it yet.
#[test]
fn what_acts_only_since_a_moment_ago_is_distrusted() {
    let world = world();
    let quiet = "CREATE VIEW later AS SELECT 1 AS turns";
    let still = "CREATE FUNCTION turns_later() RETURNS int STABLE LANGUAGE sql AS 'SELECT 1'";
    let turning = "CREATE OR REPLACE VIEW later AS SELECT turns() AS turns";
    let moving = "CREATE OR REPLACE FUNCTION turns_later() RETURNS int VOLATILE LANGUAGE sql AS \
         'SELECT turns()'";
    for (before, behind, acts) in [
        (quiet, turning, "SELECT * FROM later"),
        (still, moving, "SELECT turns_later()"),
    ] {
        let mut holder = holder_of_both(&world);
        holder.query(before).ok();
        // A catalog that has it is there then.
        world.proxy.client().query("SELECT 1 FROM plain").ok();
        holder.query("SELECT 1 FROM plain").ok();
        holder.query(behind).ok();
        holder.query(acts).ok();
        writes_nothing_of_the_other(&world, &mut holder, acts);
    }
}

/// What was created and taken back is no table of the transaction's own any more.
#[test]
fn a_table_that_was_rolled_back_leaves_its_name_to_another() {
    let world = world();
    for sql in [
        "CREATE SCHEMA mine",
        "CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS $$ BEGIN \
         UPDATE public.orders SET note = 'written'; RETURN 1; END $$",
        "CREATE VIEW writing AS SELECT writes() AS note",
    ] {
        world.direct().query(sql).ok();
    }
    for table in [
        "CREATE TABLE writing (a int)",
        "CREATE TEMP TABLE writing (a int)",
    ] {
        let mut client = world.proxy.client();
        for sql in [
            "SET search_path = mine, public",
            "BEGIN",
            "SAVEPOINT s",
            table,
            "ROLLBACK TO s",
        ] {
            client.query(sql).ok();
        }
        let told = client.query("SELECT * FROM writing");
        assert_eq!(told.code(), "RF002", "{table}: {told:?}");
        client.query("ROLLBACK").ok();
        // Nor behind one that has failed.
        for sql in ["BEGIN", "SAVEPOINT s"] {
            client.query(sql).ok();
        }
        client
            .query(&format!("{table}; SELECT 1 / 0"))
            .refused("22012");
        client.query("ROLLBACK TO s").ok();
        let told = client.query("SELECT * FROM writing");
        assert_eq!(told.code(), "RF002", "{table}: {told:?}");
        assert_eq!(world.order(), "first");
    }
}
