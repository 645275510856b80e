//! Tables, cursors and policies of a session's own, or of its transaction: they hide nothing.

use super::ahead::types_and;
use super::unasked::{LOOKS, refused_and_would_act, world};
use super::{is_refusal, unharmed};

#[test]
fn a_table_of_the_sessions_own_acts_by_its_types_and_policies() {
    refused_and_would_act(
        &world(),
        &types_and(&["CREATE TABLE parted (k dom) PARTITION BY LIST (k)"]),
        &[
            "CREATE TEMP TABLE k (a dom[]); SELECT * FROM k WHERE a = '{x}'",
            "CREATE TEMP TABLE k (a dom); SELECT '(x)'::k",
            "CREATE TEMP TABLE k (LIKE keeps); SELECT '(1,x)'::k",
            "CREATE TEMP TABLE k AS SELECT * FROM keeps; SELECT '(1,x)'::k",
            "CREATE TEMP TABLE k (id int, x int DEFAULT sneak()); INSERT INTO k (id) VALUES (1)",
            "CREATE TEMP TABLE k (id int CHECK (sneak() = 1)); INSERT INTO k VALUES (1)",
            "CREATE TEMP TABLE k (id int); INSERT INTO k VALUES (1); \
             ALTER TABLE k ENABLE ROW LEVEL SECURITY; ALTER TABLE k FORCE ROW LEVEL SECURITY; \
             CREATE POLICY p ON k USING (sneak() IS NOT NULL); SELECT * FROM k",
            "CREATE TABLE k (a dom[]); SELECT * FROM k WHERE a = '{x}'",
            "CREATE TABLE k (a dom); SELECT '(x)'::k",
            "CREATE TABLE k (LIKE keeps); SELECT '(1,x)'::k",
            "CREATE TABLE one PARTITION OF parted FOR VALUES IN (NULL)",
        ],
        LOOKS,
    );
}

/// What it reads by is another function than when it was declared.
#[test]
fn a_cursor_is_read_by_what_was_redefined_meanwhile() {
    const MAKES: &str = "CREATE OR REPLACE FUNCTION seen(int) RETURNS int LANGUAGE plpgsql";
    let world = world();
    let direct = &mut world.direct();
    let stable = format!("{MAKES} STABLE AS 'BEGIN RETURN 1; END'");
    let acting = format!(
        "{MAKES} VOLATILE AS $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END $$"
    );
    let declared = "DECLARE c CURSOR FOR SELECT seen(1)";
    let held = "DECLARE c CURSOR WITH HOLD FOR SELECT seen(1)";
    for script in [
        vec!["BEGIN", declared, &acting, "FETCH c", "COMMIT"],
        vec!["BEGIN", declared, &acting, "MOVE ALL c", "COMMIT"],
        vec!["BEGIN", held, &acting, "COMMIT"],
        vec![&*format!("BEGIN; {held}; {acting}; COMMIT")],
        vec![&*format!("BEGIN; {declared}; {acting}; FETCH c; COMMIT")],
    ] {
        direct.query(&stable).ok();
        let mut client = world.proxy.client();
        let told: Vec<_> = script.iter().map(|sql| client.query(sql)).collect();
        assert!(
            told.iter().any(|it| is_refusal(it.code())),
            "{script:?}: {told:?}"
        );
        drop(client);
        unharmed(&world, script[0]);
    }
}

/// The same, by another session, which needs no ticket for a function that nobody calls yet.
#[test]
fn a_cursor_is_not_read_by_what_another_session_has_redefined() {
    const MAKES: &str = "CREATE OR REPLACE FUNCTION seen(int) RETURNS int LANGUAGE plpgsql";
    const HELD: &str = "DECLARE c CURSOR WITH HOLD FOR SELECT seen(i) FROM generate_series(1, 3) i";
    const OPEN: &str = "DECLARE c CURSOR FOR SELECT seen(i) FROM generate_series(1, 3) i";
    let stable = format!("{MAKES} STABLE AS 'BEGIN RETURN 1; END'");
    let acting = format!(
        "{MAKES} VOLATILE AS $$ BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END $$"
    );
    for (declared, reads) in [
        (HELD, "COMMIT"),
        (OPEN, "MOVE 2 IN c"),
        (OPEN, "FETCH 2 FROM c"),
    ] {
        let world = world();
        world.direct().query(&stable).ok();
        let mut client = world.proxy.client();
        for sql in ["BEGIN", declared] {
            client.query(sql).ok();
        }
        world.proxy.client().query(&acting).ok();
        let told = client.query(reads);
        assert!(is_refusal(told.code()), "{declared}; {reads}: {told:?}");
        drop(client);
        unharmed(&world, reads);
        // What is left as it was is read as before.
        world.direct().query(&stable).ok();
        world.proxy.client().query(&stable).ok();
        let mut client = world.proxy.client();
        for sql in ["BEGIN", declared, reads, "ROLLBACK"] {
            let told = client.query(sql);
            assert_eq!(told.code(), "", "{sql}: {told:?}");
        }
    }
}
