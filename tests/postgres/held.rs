//! A listener that rejects what no rule covers: Postgres itself holds sessions read-only while no
//! ticket counts.

use crate::client::send::{bind, execute, parse, query, run, sync};
use crate::client::{Answer, Client};
use crate::stack::{DATABASE, ORDERS, sign};
use crate::world::{WRITE, World};

const SHOWN: &str = "SHOW default_transaction_read_only";

fn world(rules: &str) -> World {
    World::with(|setup| setup.with("unmatched = \"reject\"").with_rules(rules))
}

fn held(client: &mut Client) -> bool {
    client.query(SHOWN).value() == "on"
}

/// Its unnamed statement stays, whatever the proxy sets in between.
#[test]
fn what_a_session_has_parsed_stays_while_it_is_held_or_let_go() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let runs = [bind("", "", &[]), execute("", 0), sync()].concat();
    let mut client = world.proxy.client();
    for token in [&*ticket, ""] {
        let set = run(&format!("SET ringfence.token = '{token}'"), &[]);
        let parsed = [set, parse("", "SHOW default_transaction_read_only"), sync()];
        client.ask(&parsed.concat()).ok();
        let shown = client.ask(&runs).value();
        assert_eq!(shown == "on", token.is_empty());
    }
    // For one transaction.
    client.query("BEGIN").ok();
    let set = run(&format!("SET LOCAL ringfence.token = '{ticket}'"), &[]);
    let parsed = [set, parse("", "SHOW transaction_read_only"), sync()];
    client.ask(&parsed.concat()).ok();
    assert_eq!(client.ask(&runs).value(), "off");
    client.query(WRITE).ok();
}

#[test]
fn a_session_is_held_while_no_ticket_counts() {
    let world = world(DATABASE);
    let mut client = world.proxy.client();
    assert!(held(&mut client));
    let set = format!("SET ringfence.token = '{}'", world.proxy.ticket(1));
    for reset in ["RESET ringfence.token", "RESET ALL", "DISCARD ALL"] {
        client.query(&set).ok();
        client.query(WRITE).ok();
        assert!(!held(&mut client));
        client.query(reset).ok();
        assert!(held(&mut client), "{reset}");
    }
    // The other way round.
    let mut holder = world.proxy.holder(1);
    assert!(!held(&mut holder));
    holder.query("SET ringfence.token = ''").ok();
    assert!(held(&mut holder));
    holder.query("RESET ringfence.token").ok();
    holder.query(WRITE).ok();
}

#[test]
fn a_ticket_of_one_transaction_or_statement_lets_it_write() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
    client.query(WRITE).ok();
    client.query("COMMIT").ok();
    assert!(held(&mut client));
    let commented = format!("{WRITE} /*fencing_token='{ticket}'*/");
    client.query(&commented).ok();
    assert!(held(&mut client));
    let text = format!("SET ringfence.token = '{ticket}'; {WRITE}");
    client.query(&text).ok();
    let batch = [run(WRITE, &[]), run(WRITE, &[]), sync()];
    client.ask(&batch.concat()).ok();
    assert_eq!(world.order(), "written");
}

#[test]
fn a_read_before_the_ticket_costs_its_transaction_no_more_than_the_write() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    client.query("BEGIN").ok();
    client.query("SELECT * FROM orders").ok();
    client
        .query(&format!("SET LOCAL ringfence.token = '{ticket}'"))
        .ok();
    // The server does not let a transaction write that began read-only and has read.
    client.query("SELECT * FROM orders").ok();
    client.query(WRITE).refused("25006");
    client.query("ROLLBACK").ok();
    assert_eq!(world.order(), "first");
}

#[test]
fn what_would_let_the_session_go_is_for_holders() {
    let world = world(ORDERS);
    let mut client = world.proxy.client();
    for sql in [
        "SET default_transaction_read_only = off",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "BEGIN READ WRITE",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "RESET default_transaction_read_only",
    ] {
        client.query(sql).refused("RF005");
        assert!(held(&mut client), "{sql}");
    }
    client.query("BEGIN READ ONLY; SELECT 1; COMMIT").ok();
    // In the start-up packet too.
    let asked = [
        ("default_transaction_read_only", "off"),
        ("options", "-c default_transaction_read_only=off"),
    ];
    assert!(held(&mut Client::connect_with(
        world.proxy.address(),
        &asked
    )));
    let ticket = sign(&world.proxy.key, "orders", 1);
    let mut holder = Client::connect_with(world.proxy.address(), &[("ringfence.token", &ticket)]);
    holder.query("BEGIN READ WRITE").ok();
    holder.query(WRITE).ok();
    holder.query("COMMIT").ok();
    assert_eq!(world.order(), "written");
}

/// A whole database under one rule: whoever holds its ticket may do anything there, whatever the
/// names mean, also where nobody tells. What may have acted is distrusted then.
#[test]
fn a_holder_of_everything_needs_no_catalog() {
    let world = world(DATABASE);
    let mut admin = world.admin();
    admin.query("BEGIN").ok();
    admin
        .query("LOCK TABLE pg_rewrite IN ACCESS EXCLUSIVE MODE")
        .ok();
    let mut holder = world.proxy.holder(1);
    holder.query(WRITE).ok();
    assert_eq!(world.order(), "written");
    let mut other = world.proxy.holder(1);
    other.query("PREPARE p AS SELECT 1").ok();
    other.query("SELECT 1 + 1").ok();
    // Behind definitions, and what may have made anything.
    holder.query("CREATE TABLE more (id int)").ok();
    holder.query("INSERT INTO more VALUES (1)").ok();
    holder.query("DO $$ BEGIN END $$").ok();
    holder.query("UPDATE more SET id = 2").ok();
    other.query("EXECUTE p").ok();
    admin.query("COMMIT").ok();
    other.query("SET ringfence.token = ''").ok();
    other.query("EXECUTE p").refused("RF002");
}

/// The server tells that it holds the session no more, whatever has brought that about.
#[test]
fn what_lets_the_session_go_unseen_is_taken_back() {
    let world = World::with(|setup| {
        let lines = "unmatched = \"reject\"\nreading_functions = [\"public.lets_go\"]";
        setup.with(lines).with_rules(ORDERS)
    });
    let number = world.direct().query("SHOW server_version_num").value();
    // Before PostgreSQL 14 it does not tell.
    if number.parse::<u32>().unwrap() < 140_000 {
        return;
    }
    let lets_go = "CREATE FUNCTION public.lets_go() RETURNS text LANGUAGE sql AS \
                   $$SELECT set_config('default_transaction_read_only', 'off', false)$$";
    world.direct().query(lets_go).ok();
    let mut client = world.proxy.client();
    client.query("SELECT public.lets_go()").ok();
    assert!(held(&mut client));
}

/// Writes, though it says that it only reads: the classification believes it.
const SAYS_IT_READS: &str = "CREATE FUNCTION writes() RETURNS int LANGUAGE plpgsql AS \
     $$BEGIN UPDATE public.orders SET note = 'unfenced'; RETURN 1; END$$; \
     CREATE FUNCTION says_it_reads() RETURNS int LANGUAGE plpgsql STABLE AS \
     $$BEGIN RETURN public.writes(); END$$; \
     CREATE FUNCTION lets_go() RETURNS text LANGUAGE sql STABLE AS \
     $$SELECT set_config('default_transaction_read_only', 'off', false)$$";

/// What comes in one flight without a ticket: none of it can write.
fn tried() -> [Vec<Vec<u8>>; 3] {
    let (shown, writes) = ("SHOW transaction_read_only", "SELECT says_it_reads()");
    [
        vec![query(shown), query(writes)],
        vec![
            [run(shown, &[]), sync()].concat(),
            [run(writes, &[]), sync()].concat(),
        ],
        // All up to its Sync is one transaction.
        vec![[run(shown, &[]), run(writes, &[]), sync()].concat()],
    ]
}

/// Sends all at once; what the last ones are answered.
fn in_one_flight(client: &mut Client, first: Vec<u8>, tried: &[Vec<u8>]) -> Vec<Answer> {
    client.send(&[first, tried.concat()].concat());
    client.answer().ok();
    tried.iter().map(|_| client.answer()).collect()
}

#[track_caller]
fn was_held(world: &World, answers: &[Answer]) {
    let shown = answers.iter().flat_map(|it| &it.rows).next();
    assert_eq!(shown.map(|row| &*row[0]), Some("on"), "{answers:?}");
    answers.last().unwrap().refused("25006");
    assert_eq!(world.order(), "first");
}

#[test]
fn behind_a_ticket_in_one_flight_the_session_is_held() {
    let world = world(DATABASE);
    world.direct().query(SAYS_IT_READS).ok();
    let ticket = world.proxy.ticket(1);
    let commented = format!("SELECT 1 /*fencing_token='{ticket}'*/");
    let local = format!("BEGIN; SET LOCAL ringfence.token = '{ticket}'; SELECT 1; COMMIT");
    let cleared = "SET ringfence.token = ''";
    for tried in tried() {
        for first in [&*commented, &*local] {
            let mut client = world.proxy.client();
            was_held(&world, &in_one_flight(&mut client, query(first), &tried));
        }
        let by_call = "SELECT set_config('ringfence.token', $1, false)";
        let first = [query(cleared), run(cleared, &[]), run(by_call, &[""])];
        for (n, mut first) in first.into_iter().enumerate() {
            if n > 0 {
                first.extend(sync());
            }
            let mut holder = world.proxy.holder(1);
            was_held(&world, &in_one_flight(&mut holder, first, &tried));
            // And back.
            holder.query("RESET ringfence.token").ok();
            holder.query("SELECT 1").ok();
            assert!(!held(&mut holder));
        }
    }
}

/// However many messages are on their way, a ticket is not late for what it comes with.
#[test]
fn a_ticket_behind_what_has_none_lets_it_write_in_one_flight() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let writes = format!("{WRITE} /*fencing_token='{ticket}'*/");
    let local = format!("SET LOCAL ringfence.token = '{ticket}'");
    let mut client = world.proxy.client();
    let texts = [
        &*writes, "SELECT 1", &writes, &writes, "BEGIN", &local, WRITE, "COMMIT",
    ];
    client.send(&texts.map(query).concat());
    for _ in texts {
        client.answer().ok();
    }
    assert!(held(&mut client));
}

/// The server begins the transaction before the statement runs that has the ticket.
#[test]
fn a_ticket_in_a_comment_of_a_pipeline_lets_it_write() {
    let world = world(DATABASE);
    world.direct().query(SAYS_IT_READS).ok();
    let ticket = world.proxy.ticket(1);
    let mut forged = ticket.clone();
    let changed = if &ticket[40..41] == "A" { "B" } else { "A" };
    forged.replace_range(40..41, changed);
    let first = format!("SELECT 1 /*fencing_token='{forged}'*/");
    let writes = run("SELECT says_it_reads()", &[]);
    let both = [run(&first, &[]), writes, sync()];
    let mut client = world.proxy.client();
    client.ask(&both.concat()).refused("RF003");
    assert!(held(&mut client));
    // What is not in its pipeline has nothing of it.
    let first = format!("SELECT 1 /*fencing_token='{ticket}'*/");
    let prepared = [parse("", &first), sync()].concat();
    for tried in tried() {
        let mut client = world.proxy.client();
        was_held(
            &world,
            &in_one_flight(&mut client, prepared.clone(), &tried),
        );
    }
    let pipeline = [
        run(&format!("{WRITE} /*fencing_token='{ticket}'*/"), &[]),
        sync(),
    ]
    .concat();
    let mut client = world.proxy.client();
    client.ask(&pipeline).ok();
    assert_eq!(world.order(), "written");
    assert!(held(&mut client));
    client.send(&[query("SELECT 1"), pipeline, query("SELECT 1")].concat());
    for _ in 0..3 {
        client.answer().ok();
    }
    assert!(held(&mut client));
    let begins = format!("BEGIN /*fencing_token='{ticket}'*/");
    for message in [run(&begins, &[]), run(WRITE, &[]), run("COMMIT", &[])] {
        client.ask(&[message, sync()].concat()).ok();
    }
    assert!(held(&mut client));
}

/// What waits until the server is through with all must not wait for the proxy's own settings.
#[test]
fn a_ticket_in_a_comment_of_what_waits_costs_no_more_than_two_settings() {
    let world = world(DATABASE);
    let ticket = world.proxy.ticket(1);
    let mut client = world.proxy.client();
    for text in [
        "DO $$BEGIN PERFORM 1; END$$",
        "DO $$BEGIN COMMIT; END$$",
        "DO $$BEGIN SET default_transaction_read_only = off; END$$",
        "SET default_transaction_read_only = off",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "RESET ALL",
        "DISCARD ALL",
        "SELECT set_config('default_transaction_read_only', 'off', false)",
        "SELECT set_config('default_transaction_read_only', 'off', true)",
        "BEGIN READ WRITE",
        "COMMIT AND CHAIN",
        "ROLLBACK",
        "CREATE FUNCTION nothing() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SELECT nothing()",
        "DROP FUNCTION nothing",
    ] {
        let text = format!("{text} /*fencing_token='{ticket}'*/");
        for message in [query(&text), [run(&text, &[]), sync()].concat()] {
            client.ask(&message);
            client.query("SELECT 1");
        }
    }
}

/// A setting that a holder makes while it cannot be let go.
#[test]
fn what_a_holder_sets_in_a_pipeline_is_taken_back() {
    let world = world(DATABASE);
    world.direct().query(SAYS_IT_READS).ok();
    let set = format!("SET ringfence.token = '{}'", world.proxy.ticket(1));
    let texts = [
        &*set,
        "SET default_transaction_read_only = off",
        "SET ringfence.token = ''",
    ];
    let mut sent = texts.map(|text| run(text, &[])).concat();
    sent.extend(sync());
    for tried in tried() {
        let mut client = world.proxy.client();
        was_held(&world, &in_one_flight(&mut client, sent.clone(), &tried));
        client.ask(&sent).ok();
        assert!(held(&mut client));
    }
}

/// A call of a function may be the last of its transaction, and nothing is lost by it.
#[test]
fn what_calls_functions_without_a_ticket_goes_on_in_one_flight() {
    let world = world(DATABASE);
    let counts = "CREATE FUNCTION counts() RETURNS int LANGUAGE sql STABLE AS \
                  $$SELECT count(*)::int FROM orders$$";
    world.direct().query(counts).ok();
    let mut client = world.proxy.client();
    let text = "SELECT counts()";
    let texts = [
        text,
        "BEGIN",
        text,
        text,
        "COMMIT",
        text,
        "BEGIN; SELECT counts(); COMMIT",
    ];
    client.send(&texts.map(query).concat());
    let piped = [
        run("BEGIN", &[]),
        run(text, &[]),
        run("COMMIT", &[]),
        sync(),
    ]
    .concat();
    client.send(&[piped, [run(text, &[]), run(text, &[]), sync()].concat()].concat());
    for _ in 0..texts.len() + 2 {
        client.answer().ok();
    }
}

/// What is begun without a ticket behind the end of a transaction that had one, where nothing can
/// go in between.
#[test]
fn what_begins_behind_a_ticket_in_one_text_or_pipeline_is_refused() {
    let world = world(DATABASE);
    world.direct().query(SAYS_IT_READS).ok();
    let ends = "SET ringfence.token = ''; COMMIT";
    for behind in [
        "SELECT says_it_reads()",
        "BEGIN",
        "SHOW transaction_read_only",
    ] {
        let mut holder = world.proxy.holder(1);
        holder.query("BEGIN; SELECT 1").ok();
        holder.query(&format!("{ends}; {behind}")).refused("RF005");
        let mut holder = world.proxy.holder(1);
        holder.query("BEGIN; SELECT 1").ok();
        let texts = ["SET ringfence.token = ''", "COMMIT", behind];
        let mut sent = texts.map(|text| run(text, &[])).concat();
        sent.extend(sync());
        holder.ask(&sent).refused("RF005");
        // In messages of their own.
        let mut holder = world.proxy.holder(1);
        holder.query("BEGIN; SELECT 1").ok();
        holder.query(ends).ok();
        assert!(held(&mut holder));
        assert_eq!(holder.query("SHOW transaction_read_only").value(), "on");
    }
    // Nothing is begun in a transaction that can write, which is the span's.
    let mut holder = world.proxy.holder(1);
    let sent = [
        run("SET ringfence.token = ''", &[]),
        run("BEGIN", &[]),
        sync(),
    ];
    holder.ask(&sent.concat()).refused("RF005");
    // Outside of a block the text is held as a whole.
    let mut holder = world.proxy.holder(1);
    holder.query("SELECT 1").ok();
    let text = format!("{ends}; SHOW transaction_read_only; SELECT says_it_reads()");
    let told = holder.query(&text);
    told.refused("25006");
    assert_eq!(told.rows, [["on"]]);
    // With the ticket, all of it is fine.
    let mut holder = world.proxy.holder(1);
    holder.query("BEGIN; SELECT 1").ok();
    holder
        .query("COMMIT; SELECT 1; COMMIT; BEGIN; SELECT 1; ROLLBACK")
        .ok();
    assert_eq!(world.order(), "first");
}

#[test]
fn what_a_function_does_to_the_setting_is_taken_back_before_more_runs() {
    let world = world(DATABASE);
    world.direct().query(SAYS_IT_READS).ok();
    world
        .direct()
        .query("CREATE VIEW lets AS SELECT lets_go()")
        .ok();
    for lets in [
        "SELECT lets_go()",
        "SELECT * FROM lets",
        "BEGIN; SELECT lets_go(); COMMIT",
    ] {
        let mut client = world.proxy.client();
        client.query(lets).ok();
        assert!(held(&mut client), "{lets}");
        for tried in tried() {
            let mut client = world.proxy.client();
            was_held(&world, &in_one_flight(&mut client, query(lets), &tried));
        }
        let mut client = world.proxy.client();
        client
            .query(&format!("{lets}; COMMIT; SELECT says_it_reads()"))
            .refused("RF005");
        let texts = lets.split("; ").chain(["COMMIT", "SELECT says_it_reads()"]);
        let mut sent = texts
            .map(|text| run(text, &[]))
            .collect::<Vec<_>>()
            .concat();
        sent.extend(sync());
        let mut client = world.proxy.client();
        client.ask(&sent).refused("RF005");
    }
    // By its Bind, which plans.
    let folded = "CREATE FUNCTION folded() RETURNS text LANGUAGE sql IMMUTABLE AS \
                  $$SELECT lets_go()$$";
    world.direct().query(folded).ok();
    for tried in tried() {
        let bound = [parse("", "SELECT folded()"), bind("", "", &[]), sync()].concat();
        let mut client = world.proxy.client();
        was_held(&world, &in_one_flight(&mut client, bound, &tried));
    }
    assert_eq!(world.order(), "first");
}

/// What waits for the session to be held is still carried out when its client says no more.
#[test]
fn what_waits_to_be_held_is_not_lost_with_the_clients_end() {
    let world = world(DATABASE);
    let mut client = world.proxy.client();
    let first = format!("SELECT 1 /*fencing_token='{}'*/", world.proxy.ticket(1));
    client.send(&[query(&first), query("SELECT 2")].concat());
    client.shut_down();
    client.answer().ok();
    assert_eq!(client.answer().value(), "2");
}
