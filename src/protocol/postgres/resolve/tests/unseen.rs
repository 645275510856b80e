//! What acts though nothing in the text says so.

use super::{
    ALL, Catalog, CatalogParts, Lexing, PostgresRule, PostgresRules, RelationKind, Unmatched,
    check, classify, function, relation, resolve, rules, told_by, view,
};

#[test]
fn what_is_named_in_odd_places_counts() {
    check(&[
        ("SELECT 1 WHERE NOT 1 OPERATOR(public.===) 2", ALL),
        ("SELECT 1 === ANY (SELECT 2)", ALL),
        ("SELECT (1, 2) === ALL (SELECT 2, 3)", ALL),
        ("SELECT a FROM free ORDER BY a USING ===", ALL),
        ("SELECT '{1}'::evil_type[]", ALL),
        ("SELECT (o).evil_type FROM orders o", ALL),
        ("SELECT * FROM json_to_record('{}') AS x(a evil_type)", ALL),
        (
            "SELECT * FROM XMLTABLE('/a' PASSING '<a/>' COLUMNS a evil_type)",
            ALL,
        ),
        (
            "CREATE TRIGGER t BEFORE INSERT ON free EXECUTE FUNCTION evil()",
            ALL,
        ),
        (
            "CREATE RULE r AS ON INSERT TO free DO ALSO DELETE FROM lines",
            "lines",
        ),
        (
            "CREATE RULE r AS ON INSERT TO free DO ALSO SELECT evil()",
            ALL,
        ),
        ("REFRESH MATERIALIZED VIEW evil_view", ALL),
    ]);
}

#[test]
fn an_operator_that_is_not_written_counts() {
    let parts = CatalogParts {
        relations: vec![relation(1, "public.orders", RelationKind::Table)],
        functions: vec![function("pg_catalog.now", false)],
        acting_operators: vec!["=".into(), ">=".into()],
        ..CatalogParts::default()
    };
    let catalog = Catalog::new(parts);
    let view = view(&catalog, None);
    let acts = |text: &str| {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        resolve(&classified.statements[0], &[], &view, &rules())
            .everything
            .is_some()
    };
    for text in [
        "SELECT a IN (SELECT 1) FROM orders",
        "SELECT a NOT IN (SELECT 1) FROM orders",
        "SELECT a IN (1, 2) FROM orders",
        "SELECT CASE a WHEN 1 THEN 2 END FROM orders",
        "SELECT a BETWEEN 1 AND 2 FROM orders",
        "SELECT a NOT BETWEEN SYMMETRIC 1 AND 2 FROM orders",
        "SELECT a IS DISTINCT FROM 1 FROM orders",
        "SELECT nullif(a, 1) FROM orders",
        "SELECT * FROM orders x JOIN orders y USING (a)",
        "SELECT * FROM orders x NATURAL JOIN orders y",
    ] {
        assert!(acts(text), "{text}");
    }
    for text in [
        "SELECT a < 1 FROM orders",
        "SELECT CASE WHEN a < 1 THEN 2 END FROM orders",
        "SELECT EXISTS (SELECT 1) FROM orders ORDER BY a DESC",
        "SELECT * FROM orders x JOIN orders y ON x.a < y.a",
    ] {
        assert!(!acts(text), "{text}");
    }
}

#[test]
fn a_cast_that_is_not_written_counts_wherever_something_is_computed() {
    let catalog = Catalog::new(CatalogParts {
        relations: vec![relation(1, "public.orders", RelationKind::Table)],
        acts_unseen: true,
        ..CatalogParts::default()
    });
    let view = view(&catalog, None);
    for (text, acts) in [
        ("SELECT a FROM orders", true),
        ("VALUES (1 + 1)", true),
        ("SELECT 1", false),
        ("SHOW work_mem", false),
    ] {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        let found = resolve(&classified.statements[0], &[], &view, &rules());
        assert_eq!(found.everything.is_some(), acts, "{text}");
    }
}

#[test]
fn what_is_about_another_database_needs_its_locks() {
    let rule = |database, lock| PostgresRule::new(Some(database), None, None, lock).unwrap();
    let rules = PostgresRules::new(
        vec![rule("shop", "shop"), rule("bank", "bank")],
        Unmatched::Pass,
    );
    for (text, expected) in [
        ("DROP DATABASE bank", "bank shop"),
        ("CREATE DATABASE bank", "bank shop"),
        ("ALTER DATABASE bank RENAME TO old", "bank shop"),
        ("ALTER DATABASE old RENAME TO bank", "bank shop"),
        ("ALTER DATABASE bank SET work_mem = '1MB'", "bank shop"),
        ("ALTER DATABASE bank OWNER TO ann", "bank shop"),
        ("ALTER DATABASE bank CONNECTION LIMIT 1", "bank shop"),
        (
            "ALTER ROLE ann IN DATABASE bank SET work_mem = '1MB'",
            "bank shop",
        ),
        ("COMMENT ON DATABASE bank IS 'x'", "bank shop"),
        ("DROP DATABASE other", "shop"),
        ("COMMENT ON TABLE bank IS 'x'", "shop"),
    ] {
        assert_eq!(told_by(text, &rules), expected, "{text}");
    }
}
