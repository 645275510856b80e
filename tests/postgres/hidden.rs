//! The server sees no ticket: not in its log, its statistics, nor its own tables.

use crate::client::Client;
use crate::client::send::{bind, execute, parse, sync};
use crate::postgres::Options;
use crate::world::{WRITE, World};

fn talkative() -> World {
    let settings = [
        ("log_statement", "all"),
        ("log_min_duration_statement", "0"),
        ("log_connections", "on"),
        ("log_disconnections", "on"),
        ("log_min_messages", "debug1"),
        ("log_error_verbosity", "verbose"),
        ("log_parameter_max_length_on_error", "-1"),
    ];
    let settings = settings.map(|(name, value)| (name, value.to_owned()));
    let options = Options {
        settings: settings.to_vec(),
        ..Options::default()
    };
    World::on(options, |setup| setup)
}

/// Everything that a session, or one beside it, can see of what it has sent.
fn seen(world: &World, client: &mut Client) -> String {
    let mut seen = String::new();
    for sql in [
        "SELECT query, application_name FROM pg_stat_activity",
        "SELECT name, statement FROM pg_prepared_statements",
        "SELECT name, statement FROM pg_cursors",
        "SELECT name, setting, reset_val, boot_val FROM pg_settings",
        "SELECT current_query(), current_setting('ringfence.token', true)",
        "SHOW ALL",
    ] {
        let answer = client.query(sql);
        seen += &format!("{answer:?}\n");
        seen += &format!("{:?}\n", world.admin().query(sql));
    }
    seen
}

#[test]
fn no_ticket_is_seen_at_the_server_by_any_way() {
    let world = talkative();
    let ticket = world.proxy.ticket(5);
    // Its envelope's beginning is the same for all.
    let secret = &ticket[10..];
    let mut client = Client::connect_with(
        world.proxy.address(),
        &[
            ("ringfence.token", &ticket),
            ("options", &format!("-c ringfence.token={ticket}")),
        ],
    );
    for sql in [
        format!("SET ringfence.token = '{ticket}'"),
        format!("SET SESSION \"ringfence.token\" TO '{ticket}'"),
        format!("SET ringfence.token TO E'{ticket}'"),
        format!("SET RINGFENCE.TOKEN = $a${ticket}$a$"),
        format!("SELECT set_config('ringfence.token', '{ticket}', false)"),
        format!("SELECT 1; SET ringfence.token = '{ticket}'; SELECT 2"),
        format!("BEGIN; SET LOCAL ringfence.token = '{ticket}'; COMMIT"),
        format!("{WRITE} /*fencing_token='{ticket}'*/"),
        format!("/*fencing_token='{ticket}'*/ {WRITE}"),
        format!("BEGIN /*fencing_token='{ticket}'*/; COMMIT"),
        format!("PREPARE p AS SELECT set_config('ringfence.token', '{ticket}', false)"),
        format!("DECLARE c CURSOR WITH HOLD FOR SELECT 1 /*fencing_token='{ticket}'*/"),
        format!("SET ringfence.token = '{ticket}'; SELECT 1/0"),
        format!("EXPLAIN SELECT set_config('ringfence.token', '{ticket}', false)"),
    ] {
        let told = client.query(&sql);
        assert!(!format!("{told:?}").contains(secret), "{sql}: {told:?}");
        client.run(&sql, &[]);
        client.query("ROLLBACK");
    }
    let named = format!("SELECT set_config('ringfence.token', $1, false), '{WRITE_MARK}'");
    let batch = [
        parse("named", &named),
        bind("", "named", &[&ticket]),
        execute("", 0),
        // An error within the same batch logs the parameters.
        bind("", "named", &[&ticket]),
        parse("", "SELECT 1/$1::int"),
        bind("", "", &["0"]),
        execute("", 0),
        sync(),
    ];
    client.ask(&batch.concat());
    let log = world.server.log();
    let seen = seen(&world, &mut client);
    assert!(log.contains(WRITE_MARK), "the log is not complete:\n{log}");
    for (what, text) in [("the log", &log), ("the server", &seen)] {
        let leaks: Vec<&str> = text.lines().filter(|line| line.contains(secret)).collect();
        assert!(leaks.is_empty(), "{what}: {leaks:#?}");
    }
    assert!(seen.contains("app=5"), "{seen}");
}

const WRITE_MARK: &str = "a mark";

#[test]
fn a_text_that_is_refused_is_not_seen_at_the_server_either() {
    let world = talkative();
    let mut client = world.proxy.client();
    client
        .query("UPDATE orders SET note = 'secret value'")
        .refused("RF002");
    client.query("SELECT 'a mark'").ok();
    let log = world.server.log();
    assert!(log.contains("a mark"));
    assert!(!log.contains("secret value"), "{log}");
}
