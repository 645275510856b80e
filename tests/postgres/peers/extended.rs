//! The extended protocol: pipelines, errors within them, names, and what is ready when.

use std::time::Duration;

use super::Three;
use crate::client::send::{
    bind, bind_as, close, describe, execute, flush, function_call, message, parse, query, run, sync,
};
use crate::client::{Client, Reply};

/// Long enough for what must not come.
const SILENCE: Duration = Duration::from_millis(150);

/// One batch in one write, with a Sync.
fn batch(client: &mut Client, parts: &[Vec<u8>]) {
    client.ask(&[parts.concat(), sync()].concat());
}

#[test]
fn a_flush_is_answered_before_a_sync() {
    Three::new().hear_the_same(|client| {
        // Describe first, Bind once the types are known.
        let parts = [parse("a", "SELECT $1::int"), describe(b'S', "a"), flush()];
        client.send(&parts.concat());
        client.read_until(b'T');
        let parts = [bind("", "a", &["7"]), execute("", 0), flush()];
        client.send(&parts.concat());
        client.read_until(b'C');
        batch(client, &[close(b'S', "a")]);
    });
}

#[test]
fn nothing_is_ready_before_its_sync() {
    Three::new().hear_the_same(|client| {
        client.send(&[run("SELECT 1", &[]), flush()].concat());
        client.read_until(b'C');
        client.hears_nothing(SILENCE);
        client.send(&[run("SELECT 1/0", &[]), flush()].concat());
        client.read_until(b'E');
        client.hears_nothing(SILENCE);
        batch(client, &[]);
    });
}

#[test]
fn parse_and_bind_within_a_block_belong_to_it() {
    Three::new().hear_the_same(|client| {
        client.query("CREATE TEMP TABLE t (a int)");
        batch(client, &[parse("begin", "BEGIN"), bind("", "begin", &[])]);
        batch(client, &[bind("", "begin", &[]), execute("", 1)]);
        batch(client, &[parse("i", "INSERT INTO t VALUES ($1)")]);
        batch(client, &[bind("", "i", &["1"]), execute("", 0)]);
        batch(client, &[bind("", "i", &["x"]), execute("", 0)]);
        batch(client, &[run("ROLLBACK", &[])]);
        batch(client, &[bind("", "i", &["2"]), execute("", 0)]);
        client.query("SELECT * FROM t");
    });
}

#[test]
fn a_second_batch_may_come_before_the_first_is_ready() {
    Three::new().hear_the_same(|client| {
        let first = [run("SELECT 1", &[]), sync(), run("SELECT 2", &[]), sync()];
        let more = [query("SELECT 3"), run("SELECT 1/0", &[]), sync(), query("")];
        client.send(&[first.concat(), more.concat()].concat());
        for _ in 0..5 {
            client.answer();
        }
    });
}

#[test]
fn deallocate_all_in_a_pipeline_frees_its_names() {
    Three::new().hear_the_same(|client| {
        batch(client, &[parse("a", "SELECT 1")]);
        let again = [parse("a", "SELECT 2"), bind("", "a", &[]), execute("", 0)];
        batch(client, &[run("DEALLOCATE ALL", &[]), again.concat()]);
        batch(client, &[run("DISCARD ALL", &[])]);
        batch(client, &[again.concat()]);
        batch(client, &[parse("a", "SELECT 3")]);
        batch(client, &[bind("", "a", &[]), execute("", 0)]);
    });
}

#[test]
fn close_after_a_failed_parse_is_complete() {
    Three::new().hear_the_same(|client| {
        batch(client, &[parse("a", "SELEC 1")]);
        batch(client, &[close(b'S', "a")]);
        batch(client, &[parse("a", "SELECT 1"), close(b'P', "none")]);
    });
}

#[test]
fn one_batch_tells_one_error() {
    Three::new().hear_the_same(|client| {
        batch(client, &[run("SELECT 1/0", &[]), run("SELECT 2/0", &[])]);
        batch(client, &[bind("", "none", &[]), run("SELECT 1", &[])]);
        client.query("SELECT 1; SELECT 2/0; SELECT 3");
    });
}

/// yandex/odyssey 476: BEGIN was answered by the tag of the INSERT, since the unnamed statement of
/// another Parse was bound.
#[test]
fn each_statement_of_a_block_is_answered_by_its_own_tag() {
    Three::new().hear_the_same(|client| {
        let insert = "INSERT INTO plain VALUES ($1::int, 'x')";
        batch(client, &[parse("s", insert), describe(b'S', "s")]);
        let run_named = [bind("", "s", &["1"]), execute("", 0)].concat();
        for end in ["COMMIT", "ROLLBACK"] {
            batch(client, &[run("BEGIN", &[]), run_named.clone()]);
            batch(client, &[bind("", "s", &["2"]), execute("", 0)]);
            batch(client, &[run(end, &[])]);
        }
        batch(
            client,
            &[parse("", "BEGIN"), bind("", "", &[]), execute("", 1)],
        );
        batch(client, &[run_named.clone(), run("ROLLBACK", &[])]);
        batch(client, &[run("DELETE FROM plain", &[]), close(b'S', "s")]);
    });
}

/// pgdog PR 876: a PREPARE that fails in front of its EXECUTE left the EXECUTE's error for whoever
/// came next.
#[test]
fn a_prepare_that_fails_leaves_no_answer_for_the_next_statement() {
    Three::new().hear_the_same(|client| {
        client.query("PREPARE a AS SELEC 1");
        client.query("EXECUTE a");
        client.query("PREPARE a AS SELECT 1 FROM nowhere; EXECUTE a");
        // Both on their way at once.
        let both = [
            query("PREPARE a AS SELECT 1 FROM nowhere"),
            query("EXECUTE a"),
        ];
        client.send(&both.concat());
        client.answer();
        client.answer();
        batch(
            client,
            &[
                run("PREPARE a AS SELECT 1 FROM nowhere", &[]),
                run("EXECUTE a", &[]),
            ],
        );
        batch(client, &[run("EXECUTE a", &[])]);
        client.query("BEGIN");
        client.query("PREPARE a AS SELECT 1 FROM nowhere; EXECUTE a");
        client.query("EXECUTE a");
        client.query("ROLLBACK");
        client.query("PREPARE a AS SELECT 1; EXECUTE a; DEALLOCATE a");
        client.query("SELECT 'end'");
    });
}

#[test]
fn an_error_in_any_place_leaves_what_follows_in_step() {
    Three::new().hear_the_same(|client| {
        for place in 0..5 {
            let mut parts = vec![run("SELECT 1", &[]); 5];
            parts[place] = run("SELECT 1/0", &[]);
            batch(client, &parts);
            parts[place] = parse("", "SELEC 1");
            batch(client, &parts);
            parts[place] = execute("none", 0);
            batch(client, &parts);
        }
        client.query("SELECT 'end'");
    });
}

#[test]
fn a_message_may_come_in_any_number_of_segments() {
    let three = Three::new();
    let text = "SELECT 'split over segments', $1";
    let bytes = [
        parse("a name", text),
        bind("", "a name", &["value"]),
        execute("", 0),
        sync(),
    ];
    let bytes = bytes.concat();
    for cut in [1, 3, 5, 7, 12, 30, 60] {
        three.hear_the_same(|client| {
            for part in bytes.chunks(cut) {
                client.send(part);
                std::thread::sleep(Duration::from_micros(300));
            }
            client.answer();
        });
    }
}

#[test]
fn an_unknown_format_code_is_an_error_of_the_servers() {
    Three::new().hear_the_same(|client| {
        batch(client, &[parse("", "SELECT 1"), bind_as("", "", &[], 7)]);
        batch(client, &[parse("", "SELECT 1"), bind_as("", "", &[], 1)]);
        client.query("SELECT 1");
    });
}

#[test]
fn a_suspended_portal_goes_on() {
    Three::new().hear_the_same(|client| {
        let series = "SELECT * FROM generate_series(1, 5)";
        let start = [parse("", series), bind("p", "", &[]), execute("p", 2)];
        let more = [execute("p", 2), flush()];
        client.send(&[start.concat(), more.concat()].concat());
        client.read_until(b's');
        client.read_until(b's');
        batch(client, &[execute("p", 2)]);
        // With its transaction it is gone.
        batch(client, &[execute("p", 2)]);
        client.query("BEGIN; DECLARE c CURSOR FOR SELECT generate_series(1, 9)");
        batch(client, &[execute("c", 4)]);
        client.query("FETCH 2 FROM c; CLOSE c; COMMIT");
    });
}

#[test]
fn empty_texts_and_many_statements_are_answered_one_by_one() {
    Three::new().hear_the_same(|client| {
        for sql in ["", ";", ";;", "-- nothing", "SELECT 1;; SELECT 2;"] {
            client.query(sql);
        }
        batch(client, &[run("", &[]), run("-- nothing", &[])]);
        batch(client, &[run("SELECT 1; SELECT 2", &[])]);
        client.query("BEGIN; SELECT 1; COMMIT; SELECT 2; BEGIN; SELECT 1/0");
        client.query("COMMIT");
    });
}

#[test]
fn a_function_call_answers_as_a_query_does() {
    const UPPER: u32 = 871;
    Three::new().hear_the_same(|client| {
        client.ask(&function_call(UPPER, &["abc"]));
        client.ask(&function_call(0, &[]));
        client.query("SELECT 1");
    });
}

#[test]
fn notifications_come_at_any_time() {
    Three::new().hear_the_same(|client| {
        client.query("LISTEN news; NOTIFY news, 'own'");
        batch(client, &[run("NOTIFY news, 'own again'", &[])]);
        client.query("UNLISTEN *; NOTIFY news");
    });
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        client.query("LISTEN news").ok();
        three.world.direct().query("NOTIFY news, 'from afar'").ok();
        let Reply { tag, body } = client.read();
        assert_eq!(tag, b'A', "{way}");
        assert!(body.ends_with(b"news\0from afar\0"), "{way}: {body:?}");
    }
}

#[test]
fn a_message_of_an_unknown_type_ends_the_session_and_no_more() {
    let three = Three::new();
    for (way, mut client) in three.sessions() {
        client.send(&message(b'!', b"what"));
        assert!(client.has_ended(), "{way}");
    }
    for (_, mut client) in three.sessions() {
        client.query("SELECT 1").ok();
    }
}
