//! Views of a session's own that do not say so, and temporary tables that come to act: no name of
//! theirs hides what is guarded.

use super::is_refusal;
use super::unasked::{LOOKS, world};
use crate::client::Client;

/// Stands for the name of the session's own schema.
const OWN_SCHEMA: &str = "@temp";

fn run(client: &mut Client, script: &[&str]) -> Vec<String> {
    let mut own = String::new();
    let mut codes = vec![];
    for sql in script {
        if sql.contains(OWN_SCHEMA) {
            own = client
                .query("SELECT pg_my_temp_schema()::regnamespace")
                .value();
        }
        codes.push(
            client
                .query(&sql.replace(OWN_SCHEMA, &own))
                .code()
                .to_owned(),
        );
    }
    codes
}

/// Who has no ticket does not come to the end of any, and each writes past the proxy.
#[track_caller]
fn refused_and_would_write(makes: &[&str], scripts: &[&[&str]]) {
    for script in scripts {
        let world = world();
        for sql in makes {
            world.direct().query(sql).ok();
        }
        let before = world.direct().query(LOOKS).value();
        let codes = run(&mut Client::connect(world.proxy.address()), script);
        let refused = codes.iter().any(|code| is_refusal(code));
        assert!(refused, "{script:?}: {codes:?}");
        assert_eq!(world.direct().query(LOOKS).value(), before, "{script:?}");
        for sql in makes {
            world.direct().query(sql).ok();
        }
        run(&mut world.direct(), script);
        let after = world.direct().query(LOOKS).value();
        assert_ne!(after, before, "it does nothing: {script:?}");
    }
}

const WRITE: &str = "UPDATE plain SET note = 'written'";
const BY_KNOWN: &str = "CREATE VIEW plain AS SELECT o.* FROM orders o \
     WHERE o.id NOT IN (SELECT id + 100 FROM y)";

#[test]
fn a_view_over_something_temporary_is_one_of_the_session() {
    refused_and_would_write(
        &[],
        &[
            &[
                "CREATE TEMP TABLE x (id serial)",
                "CREATE VIEW plain AS SELECT o.* FROM orders o \
                 WHERE o.id <= (SELECT last_value FROM x_id_seq)",
                WRITE,
            ],
            &[
                "CREATE TEMP TABLE x (id int GENERATED ALWAYS AS IDENTITY)",
                "CREATE VIEW plain AS SELECT o.* FROM orders o \
                 WHERE o.id <= (SELECT last_value FROM x_id_seq)",
                WRITE,
            ],
            &[
                "CREATE TEMP TABLE x (id int)",
                "ALTER TABLE x RENAME TO y",
                BY_KNOWN,
                WRITE,
            ],
            &[
                "SET search_path = pg_temp, public",
                "CREATE TABLE y (id int)",
                "SET search_path = public",
                BY_KNOWN,
                WRITE,
            ],
            &[
                "CREATE TEMP TABLE x (id int)",
                "CREATE TABLE @temp.y (id int)",
                BY_KNOWN,
                WRITE,
            ],
            &[
                "CREATE TEMP TABLE x (id int)",
                "CREATE VIEW @temp.plain AS SELECT * FROM orders",
                WRITE,
            ],
            // It is there already, and this one is not made.
            &[
                "CREATE TEMP TABLE x (id serial)",
                "CREATE VIEW xv AS SELECT o.* FROM orders o \
                 WHERE o.id <= (SELECT last_value FROM x_id_seq)",
                "CREATE TEMP TABLE xv (id int, note text)",
                "UPDATE xv SET note = 'written'",
            ],
            &[
                "CREATE TEMP TABLE x (id serial)",
                "CREATE VIEW xv AS SELECT o.* FROM orders o \
                 WHERE o.id <= (SELECT last_value FROM x_id_seq)",
                "BEGIN; CREATE TABLE xv (id int, note text)",
                "UPDATE xv SET note = 'written'; COMMIT",
            ],
        ],
    );
}

#[test]
fn what_is_temporary_acts_as_it_is_read() {
    refused_and_would_write(
        &[
            "CREATE OR REPLACE FUNCTION w() RETURNS int LANGUAGE sql AS \
             $$UPDATE public.orders SET note = 'written' RETURNING 1$$",
        ],
        &[
            &[
                "CREATE TEMP TABLE x (id serial)",
                "CREATE VIEW plain AS SELECT w() FROM x_id_seq",
                "SELECT * FROM plain",
            ],
            &[
                "SET search_path = pg_temp, public",
                "CREATE TABLE plain AS SELECT 1 AS id",
                "SET search_path = public",
                "CREATE POLICY p ON plain USING (w() = 1)",
                "ALTER TABLE plain ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
                "SELECT * FROM plain",
            ],
        ],
    );
}

#[test]
fn a_temporary_row_is_checked_by_what_its_type_has_come_to_call() {
    const HARMLESS: &str = "CREATE OR REPLACE FUNCTION w2(int) RETURNS bool LANGUAGE plpgsql \
         IMMUTABLE AS 'BEGIN RETURN true; END'";
    const ACTING: &str = "CREATE OR REPLACE FUNCTION w2(int) RETURNS bool LANGUAGE plpgsql \
         VOLATILE AS $$BEGIN UPDATE public.orders SET note = 'written'; RETURN true; END$$";
    const MAKES: &str = "CREATE TEMP TABLE tm (d dw)";
    const FILLS: &str = "INSERT INTO tm VALUES (1)";
    refused_and_would_write(
        &[
            HARMLESS,
            "DO $$ BEGIN CREATE DOMAIN dw AS int CHECK (w2(VALUE)); \
             EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        ],
        &[
            &[MAKES, FILLS, ACTING, "SELECT coalesce(tm, '(1)') FROM tm"],
            &[
                MAKES,
                FILLS,
                ACTING,
                "SELECT array_append(array_agg(d), '1') FROM tm",
            ],
            &[MAKES, FILLS, ACTING, "UPDATE tm SET d = '1'"],
            &[MAKES, FILLS, ACTING, "INSERT INTO tm VALUES ('1')"],
        ],
    );
}
