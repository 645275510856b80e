mod databases;
mod filling;
mod foreign;
mod made;
mod own;
mod redefined;
mod unseen;

use super::{
    Catalog, CatalogParts, Definition, ForeignKey, Function, Oid, PostgresRule, PostgresRules,
    Relation, RelationKind, Required, Resolution, View, follow_made, resolve,
};
use crate::protocol::Unmatched;
use crate::protocol::postgres::classify::{Lexing, classify};

fn relation(oid: Oid, name: &str, kind: RelationKind) -> Relation {
    let (schema, name) = name.split_once('.').unwrap();
    Relation {
        oid,
        schema: schema.into(),
        name: name.into(),
        kind,
        temporary: schema.starts_with("pg_temp"),
        parents: vec![],
        owner: None,
        underlying: vec![],
        foreign_keys: vec![],
        dependents: vec![],
        acts_on_read: false,
        gives_acting_type: false,
        acts_on_write: false,
        acts_on_fill: false,
        gives_acting_default: false,
        takes_from: vec![],
    }
}

fn function(name: &str, volatile: bool) -> Function {
    let (schema, name) = name.split_once('.').unwrap();
    Function {
        schema: schema.into(),
        name: name.into(),
        volatile,
        single_argument: true,
    }
}

/// orders, with a view, an index and a sequence; lines that reference it; a partitioned table.
fn catalog() -> Catalog {
    use RelationKind::{Index, Sequence, Table, View};
    let key = ForeignKey {
        references: 1,
        acts_on_delete: true,
        acts_on_update: false,
    };
    let relations = vec![
        relation(1, "public.orders", Table),
        Relation {
            foreign_keys: vec![key],
            ..relation(2, "public.lines", Table)
        },
        Relation {
            underlying: vec![1],
            ..relation(3, "public.open_orders", View)
        },
        Relation {
            owner: Some(1),
            ..relation(4, "public.orders_pkey", Index)
        },
        Relation {
            owner: Some(1),
            ..relation(5, "public.orders_id_seq", Sequence)
        },
        relation(6, "public.parts", Table),
        Relation {
            parents: vec![6],
            ..relation(7, "public.parts_1", Table)
        },
        Relation {
            parents: vec![6],
            ..relation(8, "public.parts_2", Table)
        },
        relation(9, "other.orders", Table),
        relation(10, "public.free", Table),
        Relation {
            acts_on_write: true,
            ..relation(11, "public.ruled", View)
        },
        Relation {
            acts_on_read: true,
            ..relation(12, "public.evil_view", View)
        },
        relation(13, "pg_temp_3.scratch", Table),
        relation(14, "public.My Table", Table),
        relation(15, "t7.items", Table),
        relation(16, "pg_catalog.pg_class", Table),
    ];
    let functions = vec![
        function("pg_catalog.now", false),
        function("pg_catalog.random", true),
        function("pg_catalog.nextval", true),
        function("pg_catalog.lo_create", true),
        function("pg_catalog.query_to_xml", true),
        function("pg_catalog.lower", false),
        function("public.evil", true),
        function("public.fine", false),
        function("other.lower", true),
        function("public.json_scalar", true),
    ];
    Catalog::new(CatalogParts {
        relations,
        functions,
        acting_operators: vec!["===".into()],
        acting_casts: vec!["evil_type".into()],
        ..CatalogParts::default()
    })
}

fn rule(table: &str, lock: &str) -> PostgresRule {
    PostgresRule::new(None, None, Some(table), lock).unwrap()
}

fn rules() -> PostgresRules {
    let rules = vec![
        rule("public.orders", "orders"),
        rule("public.lines", "lines"),
        rule("public.parts", "parts"),
        rule("PUBLIC.parts_1", "part1"),
        rule("\"public\".\"My Table\"", "mine"),
    ];
    PostgresRules::new(rules, Unmatched::Pass)
}

/// What a session of `ann` in `shop` sees: with this path, and nothing of its own.
fn view<'v>(catalog: &'v Catalog, search_path: Option<&'v [Box<str>]>) -> View<'v> {
    View {
        catalog,
        database: "shop",
        user: "ann",
        search_path,
        temporary: &[],
        shadowed: &[],
        definitions: &[],
        made: &[],
        redefined: false,
        sure: false,
    }
}

fn resolved(text: &str, rules: &PostgresRules, path: Option<&[Box<str>]>) -> Resolution {
    let catalog = catalog();
    let temporary = ["scratch".into(), "orders2".into()];
    let view = View {
        temporary: &temporary,
        shadowed: &[],
        ..view(&catalog, path)
    };
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    resolve(&classified.statements[0], &[], &view, rules)
}

/// `r`, `t`, the locks, or `!`.
fn told_by(text: &str, rules: &PostgresRules) -> String {
    let path: [Box<str>; 2] = ["$user".into(), "public".into()];
    match resolved(text, rules, Some(&path)).required {
        Required::Read => "r".to_owned(),
        Required::Temporary => "t".to_owned(),
        Required::Unclassified(_) => "!".to_owned(),
        Required::Write(locks) => {
            let locks: Vec<_> = locks.iter().map(|lock| lock.as_str()).collect();
            locks.join(" ")
        }
    }
}

fn check(table: &[(&str, &str)]) {
    for (text, expected) in table {
        assert_eq!(told_by(text, &rules()), *expected, "{text}");
    }
}

const ALL: &str = "lines mine orders part1 parts";

#[test]
fn reads_need_nothing() {
    check(&[
        ("SELECT now(), lower('A') FROM orders", "r"),
        ("SELECT random() FROM open_orders", "r"),
        ("WITH x AS (SELECT 1) SELECT * FROM x, pg_class", "r"),
        ("SELECT json_array(1)", "r"),
        ("SHOW search_path", "r"),
        ("BEGIN", "r"),
        ("EXPLAIN DELETE FROM orders", "r"),
        ("PREPARE p AS DELETE FROM orders", "r"),
    ]);
}

#[test]
fn a_write_needs_the_locks_of_what_it_reaches() {
    check(&[
        ("INSERT INTO orders VALUES (1)", "orders"),
        ("INSERT INTO public.orders VALUES (1)", "orders"),
        ("INSERT INTO other.orders VALUES (1)", ""),
        ("UPDATE orders SET a = 1", "orders"),
        // A foreign key deletes the lines.
        ("DELETE FROM orders", "lines orders"),
        (
            "WITH x AS (INSERT INTO orders VALUES (1)) DELETE FROM orders",
            "lines orders",
        ),
        ("TRUNCATE orders", "orders"),
        ("TRUNCATE orders CASCADE", "lines orders"),
        ("DELETE FROM open_orders", "lines orders"),
        ("UPDATE parts SET a = 1", "part1 parts"),
        ("UPDATE ONLY parts SET a = 1", "parts"),
        ("UPDATE parts_2 SET a = 1", "parts"),
        ("UPDATE parts_1 SET a = 1", "part1 parts"),
        ("DELETE FROM \"My Table\"", "mine"),
        ("DELETE FROM my_table", ALL),
        ("DROP INDEX orders_pkey", "orders"),
        ("SELECT nextval('orders_id_seq')", "orders"),
        ("SELECT nextval('public.Orders_id_seq')", "orders"),
        (
            "SELECT nextval('shop.\"public\" . \"orders_id_seq\"')",
            "orders",
        ),
        ("SELECT nextval('\"Orders_id_seq\"')", ALL),
        // A number is an oid.
        ("SELECT nextval('5')", ALL),
        ("SELECT nextval(x) FROM free", ALL),
        ("INSERT INTO free VALUES (1)", ""),
        (
            "WITH x AS (DELETE FROM lines RETURNING *) SELECT * FROM x",
            "lines",
        ),
        ("SELECT * FROM orders FOR UPDATE", "orders"),
        ("CREATE TABLE public.orders (a int)", "orders"),
        ("CREATE TABLE x (a int)", ""),
        ("ALTER TABLE free RENAME TO \"My Table\"", "mine"),
        (
            "CREATE TABLE p3 PARTITION OF parts FOR VALUES IN (3)",
            "part1 parts",
        ),
        ("VACUUM orders", "orders"),
        ("VACUUM", ALL),
        ("COMMENT ON TABLE orders IS 'x'", ""),
        ("CHECKPOINT", ""),
    ]);
}

#[test]
fn what_may_write_anywhere_needs_every_lock() {
    check(&[
        ("SELECT evil()", ALL),
        ("SELECT lo_create(0)", ALL),
        (
            "SELECT query_to_xml('DELETE FROM orders', true, true, '')",
            ALL,
        ),
        ("SELECT unknown_function()", ALL),
        ("SELECT public.fine()", "r"),
        ("SELECT o.evil FROM orders o", ALL),
        ("SELECT (o).evil FROM orders o", ALL),
        ("SELECT json_scalar(1)", ALL),
        ("SELECT 1 === 2", ALL),
        ("SELECT 1::evil_type", ALL),
        ("SELECT other.lower('a')", ALL),
        ("SELECT * FROM evil_view", ALL),
        // A name of a common table expression does not hide a view elsewhere in the text.
        (
            "SELECT * FROM evil_view, (WITH evil_view AS (SELECT 1) SELECT 1) x",
            ALL,
        ),
        ("SELECT * FROM no_such_table", ALL),
        ("INSERT INTO ruled VALUES (1)", ALL),
        ("DO $$ BEGIN END $$", ALL),
        ("CALL p()", ALL),
        ("EXECUTE unknown", ALL),
        ("SELEC 1", ALL),
        ("DROP SCHEMA other CASCADE", ALL),
        ("COPY free TO PROGRAM 'x'", ALL),
    ]);
}

#[test]
fn temporary_relations_need_nothing_and_hide_nothing() {
    check(&[
        ("CREATE TEMP TABLE x (a int)", "t"),
        ("INSERT INTO scratch VALUES (1)", "t"),
        // It may be a view that nobody has told.
        ("INSERT INTO pg_temp.orders VALUES (1)", ALL),
        ("INSERT INTO pg_temp_3.scratch VALUES (1)", "t"),
        ("SELECT * INTO TEMP y FROM orders", "t"),
        (
            "WITH x AS (DELETE FROM orders RETURNING *) INSERT INTO scratch TABLE x",
            "lines orders",
        ),
    ]);
}

#[test]
fn a_path_decides_and_an_unknown_one_means_any_schema() {
    let rules = PostgresRules::new(
        vec![
            rule("other.orders", "other"),
            rule("public.orders", "orders"),
        ],
        Unmatched::Pass,
    );
    let required = |path: Option<&[Box<str>]>| {
        let Required::Write(locks) = resolved("INSERT INTO orders SELECT 1", &rules, path).required
        else {
            panic!("no write");
        };
        locks
            .iter()
            .map(|lock| lock.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(required(Some(&["other".into()])), "other");
    assert_eq!(required(Some(&["public".into()])), "orders");
    assert_eq!(
        required(Some(&["public".into(), "other".into()])),
        "orders other"
    );
    assert_eq!(required(None), "orders other");
}

#[test]
fn what_is_missing_is_told_so_that_the_catalog_is_loaded_again() {
    let missing = |text| resolved(text, &rules(), None).missing;
    assert!(missing("INSERT INTO new_table VALUES (1)"));
    assert!(missing("SELECT new_function()"));
    assert!(missing("TABLE new_view"));
    assert!(!missing("INSERT INTO orders VALUES (1)"));
    assert!(!missing("WITH x AS (SELECT 1) TABLE x"));
}

#[test]
fn rules_cover_databases_schemas_and_tables() {
    let rules = |database, schema, table, lock| {
        let rule = PostgresRule::new(database, schema, table, lock).unwrap();
        PostgresRules::new(vec![rule], Unmatched::Pass)
    };
    let whole = rules(Some("shop"), None, None, "shop");
    let elsewhere = rules(Some("other"), None, None, "shop");
    let schema = rules(None, Some("public"), None, "public");
    let tenant = rules(None, Some("{tenant}"), None, "tenant/{tenant}");
    let items = rules(Some("{db}"), None, Some("{t}.items"), "{db}/{t}");
    for (text, expected) in [
        (
            "INSERT INTO t7.items VALUES (1)",
            ["shop", "", "", "tenant/t7", "shop/t7"],
        ),
        (
            "INSERT INTO orders VALUES (1)",
            ["shop", "", "public", "tenant/public", ""],
        ),
        (
            "CREATE FUNCTION t7.f() RETURNS int LANGUAGE sql AS ''",
            ["shop", "", "", "tenant/t7", ""],
        ),
        (
            "COMMENT ON TABLE orders IS 'x'",
            ["shop", "", "public", "!", ""],
        ),
        ("DO $$ $$", ["shop", "", "public", "!", "!"]),
        ("CHECKPOINT", ["shop", "", "", "", ""]),
        ("SELECT 1", ["r", "r", "r", "r", "r"]),
        ("CREATE TEMP TABLE x ()", ["t", "t", "t", "t", "t"]),
    ] {
        let told = [&whole, &elsewhere, &schema, &tenant, &items].map(|it| told_by(text, it));
        assert_eq!(told, expected.map(str::to_owned), "{text}");
    }
    for (database, schema, table) in [
        (None, None, None),
        (None, Some("a"), Some("a.b")),
        (None, None, Some("orders")),
        (None, None, Some("a.b.c")),
        (None, Some("a.b"), None),
        (None, None, Some("a.\"b")),
        (None, None, Some("a.b/c")),
        (None, None, Some("a.\"*\"")),
        (None, None, Some("a.**")),
        (None, None, Some("a.x*")),
        (None, None, Some(&format!("a.{}", "x".repeat(64)))),
    ] {
        assert!(
            PostgresRule::new(database, schema, table, "l").is_err(),
            "{schema:?} {table:?}"
        );
    }
}

#[test]
fn an_uncovered_write_is_rejected_where_the_listener_says_so() {
    let rules = PostgresRules::new(vec![rule("public.orders", "orders")], Unmatched::Reject);
    for (text, expected) in [
        ("INSERT INTO orders VALUES (1)", "orders"),
        ("INSERT INTO free VALUES (1)", "!"),
        ("CHECKPOINT", "!"),
        ("SELECT * FROM free", "r"),
        ("INSERT INTO scratch VALUES (1)", "t"),
    ] {
        assert_eq!(told_by(text, &rules), expected, "{text}");
    }
    let within = |database| PostgresRule::new(Some(database), None, None, "all").unwrap();
    let rejecting = |rules| PostgresRules::new(rules, Unmatched::Reject);
    assert!(rules.may_reject("shop"));
    assert!(rejecting(vec![within("other")]).may_reject("shop"));
    assert!(!rejecting(vec![within("shop")]).may_reject("shop"));
    assert!(!PostgresRules::new(vec![], Unmatched::Pass).may_reject("shop"));
}

#[test]
fn an_operator_may_name_a_volatile_function_that_reads() {
    let rules = rules().with_reading_functions(vec![("public".into(), "evil".into())]);
    assert_eq!(told_by("SELECT public.evil()", &rules), "r");
    assert_eq!(told_by("SELECT evil()", &rules), ALL);
}

#[test]
fn a_prepared_statement_counts_where_it_is_executed() {
    let catalog = catalog();
    let view = view(&catalog, None);
    let statement = |text: &str| classify(text.as_bytes(), Lexing::CERTAIN).statements[0].clone();
    let executed = statement("DELETE FROM public.lines");
    let execute = statement("EXECUTE p(1)");
    let required = resolve(&execute, &[executed], &view, &rules()).required;
    assert_eq!(required, Required::Write(vec!["lines".parse().unwrap()]));
    let reads = statement("SELECT 1");
    assert_eq!(
        resolve(&execute, &[reads], &view, &rules()).required,
        Required::Read
    );
}

#[test]
fn what_nothing_is_known_of_needs_every_lock_of_its_database() {
    let rule = |database, table, lock| PostgresRule::new(database, None, table, lock).unwrap();
    let rules = |rules| PostgresRules::new(rules, Unmatched::Pass);
    let all = rules(vec![
        rule(Some("shop"), None, "shop"),
        rule(None, Some("public.orders"), "orders"),
        rule(Some("other"), None, "other"),
    ]);
    let locks = |names: &[&str]| {
        let names = names.iter().map(|name| name.parse().unwrap());
        Required::Write(names.collect())
    };
    assert_eq!(all.everything("shop"), locks(&["orders", "shop"]));
    assert_eq!(all.everything("third"), locks(&["orders"]));
    let named = rules(vec![rule(Some("{db}"), None, "db/{db}")]);
    assert_eq!(named.everything("shop"), locks(&["db/shop"]));
    let many = rules(vec![rule(None, Some("public.{t}"), "t/{t}")]);
    assert!(matches!(many.everything("shop"), Required::Unclassified(_)));
    let none = PostgresRules::new(vec![], Unmatched::Reject);
    assert!(matches!(none.everything("shop"), Required::Unclassified(_)));
}
