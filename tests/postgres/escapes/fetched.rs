//! What SQL's FETCH and MOVE run: portals that Bind has made, and cursors that functions have
//! opened. Each is tried step by step, and with everything sent before anything is answered.

use super::is_refusal;
use crate::client::Client;
use crate::client::send::{bind, execute, parse, query, run, sync};
use crate::stack::{ORDERS, sign};
use crate::world::World;

const MAKES: [&str; 7] = [
    "CREATE FUNCTION evil() RETURNS int LANGUAGE plpgsql AS \
     $$ BEGIN DELETE FROM public.orders; RETURN 1; END $$",
    "CREATE VIEW sly AS SELECT evil()",
    "CREATE FUNCTION opens() RETURNS refcursor LANGUAGE plpgsql STABLE AS \
     $$ DECLARE c refcursor := 'cc'; BEGIN OPEN c FOR SELECT evil(); RETURN c; END $$",
    "CREATE SCHEMA p2",
    "CREATE SCHEMA s2",
    "CREATE TABLE p2.vv (id int)",
    "CREATE VIEW s2.vv AS SELECT id FROM public.orders",
];

fn world() -> World {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    for sql in MAKES {
        world.direct().query(sql).ok();
    }
    world
}

/// What a client sends, each with a ReadyForQuery of its own.
type Steps = Vec<Vec<u8>>;

fn bound(portal: &str, sql: &str) -> Vec<u8> {
    [parse("", sql), bind(portal, "", &[])].concat()
}

fn queries(texts: &[&str]) -> Steps {
    texts.iter().map(|sql| query(sql)).collect()
}

fn synced(messages: &[Vec<u8>]) -> Vec<u8> {
    [messages.concat(), sync()].concat()
}

fn ran(sql: &str) -> Vec<u8> {
    run(sql, &[])
}

/// The codes of what it is told, `at_once` or step by step.
fn codes(client: &mut Client, steps: &Steps, at_once: bool) -> Vec<String> {
    if at_once {
        client.send(&steps.concat());
    }
    let mut codes = vec![];
    for step in steps {
        if !at_once {
            client.send(step);
        }
        codes.push(client.answer().code().to_owned());
    }
    codes
}

fn orders(world: &World) -> String {
    world.direct().query("SELECT count(*) FROM orders").value()
}

/// It is refused to who has no ticket, and deletes past the proxy.
#[track_caller]
fn is_refused_and_would_act(world: &World, what: &str, steps: &Steps) {
    for at_once in [false, true] {
        let told = codes(&mut world.proxy.client(), steps, at_once);
        assert!(told.iter().any(|it| is_refusal(it)), "{what}: {told:?}");
        assert_eq!(orders(world), "1", "{what}, at once: {at_once}");
    }
    let mut direct = world.direct();
    let told = codes(&mut direct, steps, false);
    assert_eq!(orders(world), "0", "it does nothing: {what}: {told:?}");
    let again = "INSERT INTO public.orders VALUES (1, 'first')";
    world.direct().query(again).ok();
}

fn ways_of_fetching(sql: &str) -> Vec<(&'static str, Steps)> {
    let begins = || [query("BEGIN"), synced(&[bound("p1", sql)])].to_vec();
    let with = |more: &[Vec<u8>]| [begins(), more.to_vec(), vec![query("COMMIT")]].concat();
    vec![
        ("FETCH", with(&[query("FETCH ALL FROM p1")])),
        ("MOVE", with(&[query("MOVE ALL IN p1")])),
        (
            "Execute of it",
            with(&[synced(&[ran("FETCH ALL FROM p1")])]),
        ),
        (
            "a portal that fetches",
            with(&[
                synced(&[bound("p2", "FETCH ALL FROM p1")]),
                query("FETCH ALL FROM p2"),
            ]),
        ),
        (
            "in one text",
            with(&[query("SELECT 1; FETCH FORWARD 1 FROM p1; SELECT 2")]),
        ),
        (
            "a pipeline in a block",
            vec![synced(&[
                ran("BEGIN"),
                bound("p1", sql),
                ran("FETCH ALL FROM p1"),
                ran("COMMIT"),
            ])],
        ),
        (
            "a pipeline",
            vec![synced(&[bound("p1", sql), ran("FETCH ALL FROM p1")])],
        ),
    ]
}

#[test]
fn what_a_portal_does_counts_as_sql_fetches_from_it() {
    let world = world();
    for sql in ["SELECT evil()", "SELECT * FROM sly"] {
        for (way, steps) in ways_of_fetching(sql) {
            is_refused_and_would_act(&world, &format!("{sql}: {way}"), &steps);
        }
    }
}

#[test]
fn a_portal_of_a_sequence_is_moved_under_a_ticket_only() {
    let world = world();
    let mut direct = world.direct();
    direct
        .query("CREATE SEQUENCE orders_seq OWNED BY orders.id")
        .ok();
    let called = "SELECT is_called FROM orders_seq";
    for (way, steps) in ways_of_fetching("SELECT nextval('orders_seq')") {
        let told = codes(&mut world.proxy.client(), &steps, false);
        assert!(told.iter().any(|it| is_refusal(it)), "{way}: {told:?}");
        assert_eq!(direct.query(called).value(), "f", "{way}");
    }
    let mut holder = world.proxy.client();
    let ticket = sign(&world.proxy.key, "orders", 1);
    holder
        .query(&format!("SET ringfence.token = '{ticket}'"))
        .ok();
    for (_, steps) in ways_of_fetching("SELECT nextval('orders_seq')") {
        let told = codes(&mut holder, &steps, false);
        assert!(told.iter().all(String::is_empty), "{told:?}");
    }
    assert_eq!(direct.query(called).value(), "t");
}

/// What a name means behind it is not known.
#[test]
fn a_path_that_a_portal_sets_is_set_by_fetching_from_it() {
    let world = world();
    let sets = "SELECT set_config('search_path', 's2', false)";
    let steps = [
        queries(&["SET search_path = p2", "BEGIN"]),
        vec![synced(&[bound("p1", sets)])],
        queries(&["FETCH ALL FROM p1", "DELETE FROM vv", "COMMIT"]),
    ];
    is_refused_and_would_act(&world, sets, &steps.concat());
    // As of the path that it was bound in.
    let steps = [
        queries(&["SET search_path = s2, public", "BEGIN"]),
        vec![synced(&[bound("p1", "SELECT * FROM sly")])],
        queries(&["SET search_path = p2", "FETCH ALL FROM p1", "COMMIT"]),
    ];
    is_refused_and_would_act(&world, "of another path", &steps.concat());
}

#[test]
fn no_portal_lets_a_read_only_session_go() {
    let world = World::with(|setup| setup.with("unmatched = \"reject\"").with_rules(ORDERS));
    for sql in MAKES {
        world.direct().query(sql).ok();
    }
    let lets_go = "CREATE FUNCTION lets_go() RETURNS text LANGUAGE sql AS \
                   $$SELECT set_config('default_transaction_read_only', 'off', false)$$";
    world.direct().query(lets_go).ok();
    for sql in [
        "SELECT lets_go()",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
    ] {
        let steps = [
            query("BEGIN"),
            synced(&[bound("p1", sql)]),
            query("FETCH ALL FROM p1"),
            query("COMMIT"),
        ];
        for at_once in [false, true] {
            let mut client = world.proxy.client();
            let told = codes(&mut client, &steps.to_vec(), at_once);
            assert!(told.iter().any(|it| is_refusal(it)), "{sql}: {told:?}");
            for (_, steps) in ways_of_fetching("SELECT evil()") {
                codes(&mut client, &steps, at_once);
                client.query("ROLLBACK");
            }
            assert_eq!(orders(&world), "1", "{sql}");
            let shown = client.query("SHOW default_transaction_read_only").value();
            assert_eq!(shown, "on", "{sql}");
        }
    }
}

#[test]
fn a_cursor_that_a_function_opened_may_do_anything() {
    let world = world();
    let cc = |sql: &str| synced(&[bound("cc", sql)]);
    let executed = || synced(&[execute("cc", 0)]);
    let in_block = |steps: &[Vec<u8>]| {
        let ends = [query("BEGIN"), query("COMMIT")];
        [&ends[..1], steps, &ends[1..]].concat()
    };
    let opens = || query("SELECT opens()");
    let fetch = || query("FETCH ALL FROM cc");
    let declare = || query("DECLARE cc CURSOR FOR SELECT 1");
    let (save, back) = (|| query("SAVEPOINT s"), || query("ROLLBACK TO s"));
    for (what, steps) in [
        ("fetched", in_block(&[opens(), fetch()])),
        ("moved", in_block(&[opens(), query("MOVE ALL IN cc")])),
        ("executed", in_block(&[opens(), executed()])),
        (
            "in one text",
            in_block(&[query("SELECT opens(); FETCH cc")]),
        ),
        (
            "a pipeline",
            vec![synced(&[ran("SELECT opens()"), ran("FETCH ALL FROM cc")])],
        ),
        // Of that name there was another.
        (
            "behind a cursor that was rolled back",
            in_block(&[save(), declare(), back(), opens(), fetch()]),
        ),
        (
            "behind a cursor that was rolled back with what is within it",
            in_block(&[
                save(),
                query("SAVEPOINT within"),
                declare(),
                query("RELEASE within"),
                back(),
                opens(),
                fetch(),
            ]),
        ),
        (
            "behind a cursor that was closed",
            in_block(&[declare(), query("CLOSE cc"), opens(), fetch()]),
        ),
        (
            "behind a DECLARE that fails",
            in_block(&[opens(), save(), declare(), back(), fetch()]),
        ),
        (
            "behind a portal that was rolled back",
            in_block(&[save(), cc("SELECT 1"), back(), opens(), fetch()]),
        ),
        (
            "executed behind a portal that was rolled back",
            in_block(&[save(), cc("SELECT 1"), back(), opens(), executed()]),
        ),
        (
            "executed behind a portal that has ended",
            in_block(&[
                cc("SELECT 1"),
                query("COMMIT"),
                query("BEGIN"),
                opens(),
                executed(),
            ]),
        ),
        (
            "executed in a pipeline behind a portal that has ended",
            vec![synced(&[
                ran("BEGIN"),
                bound("cc", "SELECT 1"),
                ran("COMMIT"),
                ran("BEGIN"),
                ran("SELECT opens()"),
                execute("cc", 0),
                ran("COMMIT"),
            ])],
        ),
    ] {
        is_refused_and_would_act(&world, what, &steps);
    }
}

#[test]
fn what_a_client_has_opened_itself_is_read_without_a_ticket() {
    let world = world();
    let declare = "DECLARE c CURSOR FOR SELECT note FROM orders";
    let held = "DECLARE c CURSOR WITH HOLD FOR SELECT note FROM orders";
    let read = "SELECT note FROM orders";
    let fetch = "FETCH FORWARD 100 FROM c";
    let in_block = |texts: &[&str]| queries(&[&["BEGIN"], texts, &["COMMIT"]].concat());
    let inserts = "INSERT INTO plain VALUES (1, 'x') RETURNING note";
    for (what, steps) in [
        ("a cursor", in_block(&[declare, fetch, "CLOSE c"])),
        (
            "one of the extended protocol",
            vec![
                synced(&[ran("BEGIN"), ran(declare), ran(fetch)]),
                synced(&[ran("MOVE 1 FROM c"), ran("COMMIT")]),
            ],
        ),
        (
            "behind a savepoint",
            in_block(&[declare, "SAVEPOINT s", "SELECT 1", "RELEASE s", fetch]),
        ),
        (
            "within a savepoint that stays",
            in_block(&["SAVEPOINT s", declare, "RELEASE s", fetch]),
        ),
        (
            "a portal",
            vec![
                query("BEGIN"),
                synced(&[bound("p", read), execute("p", 1)]),
                query("FETCH ALL FROM p"),
                query("COMMIT"),
            ],
        ),
        (
            "a portal that writes to what no rule covers",
            vec![
                query("BEGIN"),
                synced(&[bound("p", inserts)]),
                query("FETCH ALL FROM p"),
                query("COMMIT"),
            ],
        ),
        (
            "a portal beside others",
            vec![
                query("BEGIN"),
                synced(&[bound("p", read), bound("other", "SELECT evil()")]),
                query("FETCH ALL FROM p"),
                query("COMMIT"),
            ],
        ),
    ] {
        for at_once in [false, true] {
            let mut client = world.proxy.client();
            let told = codes(&mut client, &steps, at_once);
            assert!(told.iter().all(String::is_empty), "{what}: {told:?}");
        }
    }
    let held = queries(&[held, fetch, "CLOSE c"]);
    let told = codes(&mut world.proxy.client(), &held, false);
    assert!(told.iter().all(String::is_empty), "held: {told:?}");
    // What a savepoint takes back is not what was there before it.
    let steps = [
        queries(&["BEGIN", declare]),
        vec![synced(&[bound("p", read)])],
        queries(&["SAVEPOINT s", "SELECT 1/0", "ROLLBACK TO s", fetch]),
        vec![synced(&[execute("p", 1)])],
        queries(&["FETCH p", "COMMIT"]),
    ]
    .concat();
    let told = codes(&mut world.proxy.client(), &steps, false);
    let wrong: Vec<_> = told.iter().filter(|it| !it.is_empty()).collect();
    assert_eq!(wrong, ["22012"], "{told:?}");
}

/// Functions that tell the truth about themselves: none of them calls a volatile one.
const HANDLES: [&str; 7] = [
    "CREATE FUNCTION fetches(c refcursor) RETURNS int LANGUAGE plpgsql STABLE AS \
     $$ DECLARE x int; BEGIN x := length('--'); -- one
     fetch c INTO x; RETURN x; END $$",
    "CREATE FUNCTION moves(c refcursor) RETURNS int LANGUAGE plpgsql STABLE AS \
     $$ BEGIN IF true THEN /* all of it */ MOVE FORWARD ALL FROM c; END IF; RETURN 1; END $$",
    "CREATE FUNCTION calls() RETURNS int LANGUAGE sql STABLE AS $$SELECT fetches('pp')$$",
    "CREATE VIEW looks AS SELECT fetches('pp')",
    "CREATE FUNCTION swaps() RETURNS int LANGUAGE plpgsql STABLE AS \
     $$ DECLARE c refcursor := 'cc'; BEGIN CLOSE c; OPEN c FOR SELECT evil(); RETURN 1; END $$",
    "CREATE TABLE prices (day int, close int, move int)",
    "CREATE FUNCTION last() RETURNS int LANGUAGE plpgsql STABLE AS \
     $$ DECLARE x int; BEGIN SELECT close INTO x FROM prices WHERE move = close
     ORDER BY day FETCH FIRST 1 ROW ONLY; RETURN x; END $$",
];

#[test]
fn a_function_that_handles_cursors_of_the_session_needs_the_tickets_for_everything() {
    let world = world();
    for sql in HANDLES {
        world.direct().query(sql).ok();
    }
    let deletes = "DELETE FROM orders RETURNING id";
    let behind = |first: Vec<u8>, texts: &[&str]| {
        [queries(&["BEGIN"]), vec![first], queries(texts)].concat()
    };
    let pp = |sql: &str| synced(&[bound("pp", sql)]);
    let unnamed = [
        bound("", deletes),
        parse("q", "SELECT fetches('')"),
        bind("z", "q", &[]),
        execute("z", 0),
        sync(),
    ];
    let cc = || synced(&[bound("cc", "SELECT 1")]);
    let swapped = || queries(&["BEGIN", "DECLARE cc CURSOR FOR SELECT 1", "SELECT swaps()"]);
    for (what, steps) in [
        (
            "a portal",
            behind(pp(deletes), &["SELECT fetches('pp')", "COMMIT"]),
        ),
        (
            "one that acts",
            behind(pp("SELECT evil()"), &["SELECT fetches('pp')", "COMMIT"]),
        ),
        (
            "moved",
            behind(pp(deletes), &["SELECT moves('pp')", "COMMIT"]),
        ),
        (
            "by a function that calls it",
            behind(pp(deletes), &["SELECT calls()", "COMMIT"]),
        ),
        (
            "by a view",
            behind(pp(deletes), &["SELECT * FROM looks", "COMMIT"]),
        ),
        ("the unnamed one", behind(unnamed.concat(), &["COMMIT"])),
        (
            "a cursor that was swapped",
            [swapped(), queries(&["FETCH cc", "COMMIT"])].concat(),
        ),
        (
            "a portal that was swapped",
            behind(cc(), &["SELECT swaps()", "FETCH cc", "COMMIT"]),
        ),
    ] {
        is_refused_and_would_act(&world, what, &steps);
    }
    let mut client = world.proxy.client();
    client.query("SELECT last() FROM prices").ok();
}
