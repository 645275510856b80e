//! What a session has defined counts for every other one from its COMMIT on, though its own is not
//! idle then: it goes on in another transaction, in a pipeline, or in the same text.

use crate::client::Client;
use crate::client::send::{copy_data, copy_done, flush, query, run, sync};
use crate::stack::{ORDERS, Setup, eventually, sign};
use crate::world::World;

/// A view that leaves the guarded table alone, and the same that shows it.
const HARMLESS: &str = "CREATE OR REPLACE VIEW seen AS SELECT id, note FROM plain";
const GUARDED: &str = "CREATE OR REPLACE VIEW seen AS SELECT id, note FROM orders";

const ACTS: &str = "DO $$ BEGIN \
     EXECUTE 'CREATE OR REPLACE VIEW seen AS SELECT id, note FROM orders'; COMMIT; \
     PERFORM pg_sleep(2); END $$";

fn holder(world: &World) -> Client {
    let ticket = sign(&world.proxy.key, "orders", 1);
    Client::connect_with(world.proxy.address(), &[("ringfence.token", &ticket)])
}

/// Whoever has no ticket does not write through the view once it shows the guarded table.
#[track_caller]
fn is_known(before: &[&str], bytes: &[u8], heard: impl Fn(&mut Client)) {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let mut holder = holder(&world);
    holder.query(HARMLESS).ok();
    let mut other = world.proxy.client();
    let write = "UPDATE seen SET note = 'written'";
    other.query(write).ok();
    for sql in before {
        holder.query(sql).ok();
    }
    holder.send(bytes);
    heard(&mut holder);
    let mut direct = world.direct();
    let shows = "SELECT pg_get_viewdef('seen'::regclass) LIKE '%orders%'";
    eventually("the COMMIT", || direct.query(shows).value() == "t");
    other.query(write).refused("RF002");
    assert_eq!(world.order(), "first");
}

fn ready(client: &mut Client) {
    client.answer().ok();
}

#[test]
fn a_definition_counts_though_another_transaction_follows() {
    is_known(&["BEGIN", GUARDED], &query("COMMIT AND CHAIN"), ready);
    is_known(&[], &query(&format!("{GUARDED}; COMMIT; BEGIN")), ready);
    let goes_on = query("COMMIT; BEGIN; SELECT 1");
    is_known(&["BEGIN", GUARDED], &goes_on, ready);
    let piped = [GUARDED, "COMMIT", "BEGIN"].map(|sql| run(sql, &[]));
    is_known(&[], &[piped.concat(), sync()].concat(), ready);
}

#[test]
fn a_definition_counts_before_the_sync_of_its_pipeline() {
    let piped = [GUARDED, "COMMIT"].map(|sql| run(sql, &[])).concat();
    let flushed = [piped.clone(), flush()].concat();
    is_known(&[], &flushed, |client| {
        client.read_until(b'C');
        client.read_until(b'C');
    });
    let fails = [piped, run("SELECT 1/0", &[])].concat();
    is_known(&[], &fails, |client| {
        client.read_until(b'E');
    });
}

/// The server keeps its answers until somebody asks for them.
#[test]
fn a_definition_counts_though_nobody_asks_for_its_answer() {
    is_known(&["BEGIN", GUARDED], &run("COMMIT", &[]), |_| {});
    is_known(&["BEGIN", GUARDED], &run("COMMIT AND CHAIN", &[]), |_| {});
    let piped = ["BEGIN", GUARDED, "COMMIT"].map(|sql| run(sql, &[]));
    is_known(&[], &piped.concat(), |_| {});
}

/// The server goes on with what it was sent, and commits it whenever it can.
#[test]
fn a_definition_counts_though_its_client_is_long_gone() {
    let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
    let (mut direct, mut reader) = (world.direct(), world.direct());
    direct.query(HARMLESS).ok();
    let mut other = world.proxy.client();
    let write = "UPDATE seen SET note = 'written'";
    other.query(write).ok();
    reader.query("BEGIN; SELECT 1 FROM seen").ok();
    let mut definer = world.proxy.client();
    // What is answered meanwhile tells the proxy that nobody hears it.
    let naps = ["SELECT pg_sleep(0.5)", "SELECT pg_sleep(0.2)"]
        .map(query)
        .concat();
    definer.send(&[naps, query(GUARDED)].concat());
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(0.5)%'";
    eventually("it sleeps", || direct.query(sleeps).value() == "2");
    drop(definer);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                 AND query LIKE 'CREATE OR REPLACE VIEW seen%'";
    eventually("it waits", || direct.query(waits).value() == "1");
    // Longer than the server is waited for.
    std::thread::sleep(std::time::Duration::from_secs(3));
    other.query("SELECT 1 FROM plain").ok();
    assert_eq!(direct.query(waits).value(), "1");
    reader.query("COMMIT").ok();
    let shows = "SELECT pg_get_viewdef('seen'::regclass) LIKE '%orders%'";
    eventually("the COMMIT", || direct.query(shows).value() == "t");
    other.query(write).refused("RF002");
    assert_eq!(world.order(), "first");
    // What is gone is not waited for: the catalog serves again.
    eventually("it is gone", || direct.query(waits).value() == "0");
    other.query("SELECT 1 FROM plain").ok();
}

/// What runs before it may last until its name has come to mean something.
#[test]
fn a_name_that_is_nowhere_may_be_somewhere_when_its_turn_comes() {
    const WAIT: &str = "SELECT pg_advisory_lock(7)";
    const WRITE: &str = "UPDATE later SET note = 'written'";
    let piped = |sqls: [&str; 2]| sqls.map(|sql| run(sql, &[])).concat();
    let apart = [query("BEGIN"), query(WAIT), query(WRITE), query("COMMIT")];
    for (bytes, answers) in [
        (query(&format!("{WAIT}; {WRITE}")), 1),
        ([piped([WAIT, WRITE]), sync()].concat(), 1),
        (
            [run(WAIT, &[]), sync(), run(WRITE, &[]), sync()].concat(),
            2,
        ),
        (apart.concat(), 4),
    ] {
        let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
        let mut direct = world.direct();
        direct.query(WAIT).ok();
        let mut other = world.proxy.client();
        other.send(&bytes);
        // Longer than a name that is nowhere is looked for.
        std::thread::sleep(std::time::Duration::from_millis(500));
        direct
            .query("CREATE VIEW later AS SELECT * FROM orders")
            .ok();
        direct.query("SELECT pg_advisory_unlock_all()").ok();
        let told: Vec<_> = (0..answers).map(|_| other.answer()).collect();
        assert_eq!(world.order(), "first", "{told:?}");
    }
}

/// The server keeps back that it has committed until it is through.
#[test]
fn a_definition_counts_while_what_committed_it_runs_on() {
    let text = format!("{GUARDED}; COMMIT; SELECT pg_sleep(2)");
    is_known(&[], &query(&text), |_| {});
    let slow = [GUARDED, "COMMIT", "SELECT pg_sleep(2)"].map(|sql| run(sql, &[]));
    is_known(&[], &[slow.concat(), sync()].concat(), |_| {});
    is_known(&[], &query(ACTS), |_| {});
}

/// What comes behind the data joins the span that the ignored Sync did not end.
#[test]
fn a_definition_counts_behind_a_copy_whose_sync_is_ignored() {
    let copy = [run("COPY plain FROM STDIN", &[]), sync()].concat();
    let data = [copy_data(b"5\tx\n"), copy_done()].concat();
    let bytes = [copy, data, run(GUARDED, &[]), sync()].concat();
    is_known(&[], &bytes, ready);
}

/// Definitions that commit by themselves: what is there before, what comes, how it is seen, and
/// what then reaches the guarded table.
const ALONE: [[&str; 4]; 3] = [
    [
        "CREATE TABLE pk (id int PRIMARY KEY, note text); INSERT INTO pk VALUES (1, '')",
        "ALTER TABLE orders ADD CONSTRAINT fk FOREIGN KEY (id) REFERENCES pk ON DELETE CASCADE",
        "SELECT EXISTS (SELECT FROM pg_constraint WHERE conname = 'fk')",
        "DELETE FROM pk",
    ],
    [
        "CREATE VIEW va AS SELECT * FROM orders; CREATE VIEW vb AS SELECT id, note FROM plain",
        "ALTER VIEW vb RENAME TO vc; ALTER VIEW va RENAME TO vb",
        "SELECT to_regclass('vc') IS NOT NULL",
        "DELETE FROM vb",
    ],
    [
        "CREATE VIEW vb AS SELECT id, note FROM plain; \
         CREATE FUNCTION mk() RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE \
             'CREATE OR REPLACE VIEW vb AS SELECT id, note FROM orders'; END $$",
        "SELECT mk()",
        "SELECT pg_get_viewdef('vb'::regclass) LIKE '%orders%'",
        "DELETE FROM vb",
    ],
];

/// While a client reads nothing the proxy does not hear that its statement is committed. How much
/// fits in between is the kernel's matter.
#[test]
fn a_definition_counts_though_its_client_reads_nothing() {
    let mut committed = 0;
    for [before, change, seen, write] in ALONE {
        for rows in [3000, 6000] {
            let world = World::with(|setup| setup.with("unmatched = \"pass\"").with_rules(ORDERS));
            let mut direct = world.direct();
            direct.query(before).ok();
            let mut other = world.proxy.client();
            other.query(&format!("{write} WHERE false")).ok();
            let mut holder = holder(&world);
            let full = format!("SELECT repeat('x', 1000) FROM generate_series(1, {rows})");
            holder.send(&[query(&full), query(change)].concat());
            let since = std::time::Instant::now();
            while direct.query(seen).value() != "t" {
                if since.elapsed() > std::time::Duration::from_secs(1) {
                    // The server itself cannot go on.
                    break;
                }
            }
            if direct.query(seen).value() == "t" {
                committed += 1;
                other.query(write).refused("RF002");
            }
            assert_eq!(world.order(), "first", "{change}");
        }
    }
    assert!(committed >= ALONE.len(), "the server never came to it");
}

/// What one listener lets define `seen` counts for the other one.
fn counts_for_the_other(world: &World, definer: &mut Client) {
    holder(world).query(HARMLESS).ok();
    let mut other = Client::connect(world.proxy.addresses[1]);
    let write = "UPDATE seen SET note = 'written'";
    other.query(write).ok();
    definer.query(GUARDED).ok();
    other.query(write).refused("RF002");
    assert_eq!(world.order(), "first");
}

#[test]
fn a_definition_counts_for_the_other_listeners_before_the_server() {
    let pass = "unmatched = \"pass\"";
    let both = |setup: Setup| setup.with(pass).with_rules(ORDERS);
    let world = World::with(|setup| both(setup).and("other", pass, ORDERS));
    counts_for_the_other(&world, &mut holder(&world));
    // Also where they have the server by another name.
    let world = World::with(|setup| {
        let mut setup = both(setup).and("other", pass, ORDERS);
        let port = setup.upstream.rsplit_once(':').unwrap().1.to_owned();
        setup.listeners[1].upstream = Some(format!("localhost:{port}"));
        setup
    });
    counts_for_the_other(&world, &mut holder(&world));
}

#[test]
fn what_an_observing_listener_lets_pass_counts_for_the_others() {
    let pass = "unmatched = \"pass\"";
    let observes = |setup: Setup| {
        setup
            .with(pass)
            .with("mode = \"observe\"")
            .with_rules(ORDERS)
    };
    for text in [
        GUARDED.to_owned(),
        format!("DO $x$ BEGIN {GUARDED}; END $x$"),
    ] {
        let world = World::with(|setup| observes(setup).and("other", pass, ORDERS));
        world.direct().query(HARMLESS).ok();
        let mut other = Client::connect(world.proxy.addresses[1]);
        let write = "UPDATE seen SET note = 'written'";
        other.query(write).ok();
        let mut observed = world.proxy.client();
        observed.query(&text).ok();
        other.query(write).refused("RF002");
        assert_eq!(world.order(), "first");
    }
}
