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
