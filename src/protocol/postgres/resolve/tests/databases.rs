//! Statements about other databases than the one that they run in.

use super::{
    Lexing, PostgresRule, PostgresRules, Required, Unmatched, catalog, classify, resolve, view,
};

fn needed(text: &str, rules: Vec<PostgresRule>) -> Required {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    let path: [Box<str>; 1] = ["public".into()];
    let catalog = catalog();
    let view = view(&catalog, Some(&path));
    let rules = PostgresRules::new(rules, Unmatched::Pass);
    resolve(&classified.statements[0], &[], &view, &rules).required
}

#[test]
fn what_is_about_another_database_needs_its_locks() {
    let rule = |database: &str| PostgresRule::new(Some(database), None, None, database).unwrap();
    for (text, expected) in [
        ("CREATE DATABASE other", &["other", "shop"][..]),
        ("DROP DATABASE other", &["other", "shop"]),
        (
            "DROP DATABASE IF EXISTS other WITH (FORCE)",
            &["other", "shop"],
        ),
        (
            "ALTER DATABASE other RENAME TO third",
            &["other", "shop", "third"],
        ),
        ("ALTER DATABASE other OWNER TO ann", &["other", "shop"]),
        ("ALTER DATABASE other SET TABLESPACE t", &["other", "shop"]),
        (
            "ALTER DATABASE other CONNECTION LIMIT 0",
            &["other", "shop"],
        ),
        ("ALTER DATABASE other SET work_mem = 1", &["other", "shop"]),
        ("ALTER DATABASE other RESET ALL", &["other", "shop"]),
        (
            "ALTER DATABASE other REFRESH COLLATION VERSION",
            &["other", "shop"],
        ),
        (
            "ALTER ROLE ann IN DATABASE other SET work_mem = 1",
            &["other", "shop"],
        ),
        (
            "ALTER ROLE ALL IN DATABASE other RESET ALL",
            &["other", "shop"],
        ),
        ("COMMENT ON DATABASE other IS 'x'", &["other", "shop"]),
        (
            "SECURITY LABEL ON DATABASE other IS 'x'",
            &["other", "shop"],
        ),
        // Which ones is not told.
        (
            "GRANT CONNECT ON DATABASE other TO bob",
            &["other", "shop", "third"],
        ),
        (
            "REVOKE ALL ON DATABASE other FROM PUBLIC",
            &["other", "shop", "third"],
        ),
        ("DROP OWNED BY ann", &["other", "shop", "third"]),
        ("REASSIGN OWNED BY ann TO bob", &["other", "shop", "third"]),
        ("GRANT SELECT ON free TO bob", &["shop"]),
        ("CREATE DATABASE new", &["shop"]),
        ("CREATE DATABASE new TEMPLATE third", &["shop", "third"]),
        ("CREATE ROLE bob", &["shop"]),
        (
            "ALTER ROLE ann SET work_mem = 1",
            &["other", "shop", "third"],
        ),
        ("ALTER SYSTEM SET work_mem = 1", &["other", "shop", "third"]),
        ("LOAD 'x'", &["other", "shop", "third"]),
        ("COPY free TO PROGRAM 'x'", &["other", "shop", "third"]),
        ("COPY free TO '/x'", &["other", "shop", "third"]),
        ("DELETE FROM pg_tablespace", &["other", "shop", "third"]),
        ("SELEC 1", &["shop"]),
        ("DRO DATABASE other", &["other", "shop", "third"]),
    ] {
        let rules = vec![rule("shop"), rule("other"), rule("third")];
        match needed(text, rules) {
            Required::Write(locks) => {
                let locks: Vec<&str> = locks.iter().map(|lock| lock.as_str()).collect();
                assert_eq!(locks, expected, "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn what_is_about_any_database_is_refused_where_their_locks_cannot_be_told() {
    let tenants = || PostgresRule::new(Some("{id}"), None, None, "tenant/{id}").unwrap();
    for text in [
        "DROP OWNED BY ann",
        "REASSIGN OWNED BY ann TO bob",
        "GRANT ALL ON DATABASE t_1 TO ann",
    ] {
        let told = needed(text, vec![tenants()]);
        assert!(
            matches!(told, Required::Unclassified(_)),
            "{text}: {told:?}"
        );
    }
    let own = Required::Write(vec!["tenant/shop".parse().unwrap()]);
    assert_eq!(needed("DROP TABLE free", vec![tenants()]), own);
}

/// A rule for a table of one database is for nothing that is the server's.
#[test]
fn what_reaches_no_table_needs_no_tables_lock() {
    let rule = || PostgresRule::new(Some("shop"), None, Some("public.orders"), "orders").unwrap();
    let anywhere = PostgresRule::new(None, None, Some("public.orders"), "orders").unwrap();
    for text in ["CREATE DATABASE other", "CREATE ROLE bob"] {
        let told = needed(text, vec![anywhere.clone()]);
        assert_eq!(told, Required::Write(vec![]), "{text}");
    }
    for text in [
        "CREATE ROLE bob",
        "DROP ROLE bob",
        "GRANT ann TO bob",
        "CREATE DATABASE other",
        "DROP DATABASE other",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO bob",
        "CREATE PUBLICATION p FOR TABLE free",
    ] {
        assert_eq!(
            needed(text, vec![rule()]),
            Required::Write(vec![]),
            "{text}"
        );
    }
    let own = Required::Write(vec!["orders".parse().unwrap()]);
    for text in [
        "DROP DATABASE shop",
        "CREATE DATABASE other TEMPLATE shop",
        "CREATE PUBLICATION p FOR TABLE orders",
    ] {
        assert_eq!(needed(text, vec![rule()]), own, "{text}");
    }
}
