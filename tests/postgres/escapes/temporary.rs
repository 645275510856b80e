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

/// Nobody looks at it again as rows are put into it.
#[test]
fn a_temporary_table_is_filled_in_as_what_it_was_made_like() {
    const WRITES: &str = "CREATE OR REPLACE FUNCTION w3() RETURNS int LANGUAGE plpgsql AS \
         $$BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END$$";
    const HARMLESS: &str = "CREATE OR REPLACE FUNCTION w4(int) RETURNS int LANGUAGE plpgsql \
         IMMUTABLE AS 'BEGIN RETURN 1; END'";
    const ACTING: &str = "CREATE OR REPLACE FUNCTION w4(int) RETURNS int LANGUAGE plpgsql \
         VOLATILE AS $$BEGIN UPDATE public.orders SET note = 'written'; RETURN 1; END$$";
    const FILLS: &str = "INSERT INTO t (id) VALUES (1)";
    refused_and_would_write(
        &[
            WRITES,
            "CREATE TABLE IF NOT EXISTS filled (id int, b int DEFAULT w3())",
            "CREATE TABLE IF NOT EXISTS checked (id int CHECK (w3() = 1))",
        ],
        &[
            &[
                "CREATE TEMP TABLE t (LIKE filled INCLUDING DEFAULTS)",
                FILLS,
            ],
            &["CREATE TEMP TABLE t (LIKE filled INCLUDING ALL)", FILLS],
            &[
                "CREATE TABLE pg_temp.t (LIKE public.filled INCLUDING ALL)",
                FILLS,
            ],
            &["CREATE TEMP TABLE t () INHERITS (filled)", FILLS],
            &[
                "CREATE TEMP TABLE t (LIKE checked INCLUDING CONSTRAINTS)",
                FILLS,
            ],
            &["CREATE TEMP TABLE t (id int, b int DEFAULT w3())", FILLS],
            &[
                "CREATE TEMP TABLE t (id int)",
                "ALTER TABLE t ADD CHECK (w3() = 1)",
                FILLS,
            ],
            &[
                "CREATE TEMP TABLE t (id int, b int)",
                "ALTER TABLE t ALTER b SET DEFAULT w3()",
                FILLS,
            ],
        ],
    );
    refused_and_would_write(
        &[HARMLESS],
        &[
            &[
                "CREATE TEMP TABLE t (id int, b int DEFAULT w4(1))",
                ACTING,
                FILLS,
            ],
            &[
                "CREATE TEMP TABLE t (id int CHECK (w4(id) = 1))",
                ACTING,
                FILLS,
            ],
            &[
                "CREATE TEMP TABLE t (id int, b int GENERATED ALWAYS AS (w4(id)) STORED)",
                ACTING,
                FILLS,
            ],
            &[
                "CREATE TEMP TABLE t (id int)",
                "CREATE INDEX ON t (w4(id))",
                ACTING,
                FILLS,
            ],
        ],
    );
}

#[test]
fn a_guarded_tables_sequence_is_not_a_temporary_tables() {
    let world = world();
    let mut direct = world.direct();
    direct
        .query("CREATE SEQUENCE orders_seq OWNED BY orders.id")
        .ok();
    direct
        .query("ALTER TABLE orders ALTER id SET DEFAULT nextval('orders_seq')")
        .ok();
    direct
        .query("CREATE TABLE other (id serial, at timestamptz DEFAULT now(), note text)")
        .ok();
    let fills = |like: &str| {
        [
            format!("CREATE TEMP TABLE staging (LIKE {like})"),
            "INSERT INTO staging (note) VALUES ('x')".to_owned(),
            "DROP TABLE staging".to_owned(),
        ]
    };
    let codes = |client: &mut Client, like: &str| {
        let texts = fills(like);
        texts.map(|sql| client.query(&sql).code().to_owned())
    };
    let mut client = Client::connect(world.proxy.address());
    let refused = codes(&mut client, "orders INCLUDING DEFAULTS");
    assert!(is_refusal(&refused[0]), "{refused:?}");
    let called = "SELECT is_called FROM orders_seq";
    assert_eq!(direct.query(called).value(), "f");
    codes(&mut direct, "orders INCLUDING DEFAULTS");
    assert_eq!(direct.query(called).value(), "t", "it does nothing");
    // What no rule is about, and what is of its own, needs none.
    for like in ["other INCLUDING ALL", "orders", "orders INCLUDING COMMENTS"] {
        let told = codes(&mut client, like);
        assert!(
            !told.iter().any(|code| is_refusal(code)),
            "{like}: {told:?}"
        );
    }
    let own = "CREATE TEMP TABLE own (id serial, at date DEFAULT CURRENT_DATE, \
               g uuid DEFAULT gen_random_uuid(), note text)";
    for sql in [own, "INSERT INTO own (note) VALUES ('x')"] {
        assert_eq!(client.query(sql).code(), "", "{sql}");
    }
}
