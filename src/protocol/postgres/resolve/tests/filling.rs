//! What fills in temporary tables.

use std::sync::Arc;

use super::{
    ALL, Catalog, CatalogParts, Definition, Lexing, Relation, RelationKind, Required, View,
    classify, function, relation, resolve, rules, view,
};

/// Tables that are filled in by what acts, or from sequences; a temporary one that is.
fn catalog() -> Catalog {
    use RelationKind::{Sequence, Table};
    let relations = vec![
        Relation {
            takes_from: vec![2],
            ..relation(1, "public.orders", Table)
        },
        Relation {
            owner: Some(1),
            ..relation(2, "public.orders_id_seq", Sequence)
        },
        Relation {
            acts_on_fill: true,
            ..relation(3, "public.audited", Table)
        },
        relation(4, "public.plain", Table),
        Relation {
            gives_acting_default: true,
            ..relation(5, "public.of_domain", Table)
        },
        Relation {
            acts_on_fill: true,
            ..relation(6, "pg_temp_3.acting", Table)
        },
        Relation {
            takes_from: vec![8],
            ..relation(7, "pg_temp_3.numbered", Table)
        },
        relation(8, "pg_temp_3.numbered_id_seq", Sequence),
        relation(9, "pg_temp_3.parts", RelationKind::PartitionedTable),
        Relation {
            parents: vec![9],
            acts_on_fill: true,
            ..relation(10, "pg_temp_3.part", Table)
        },
    ];
    Catalog::new(CatalogParts {
        relations,
        functions: vec![
            function("public.evil", true),
            function("public.fine", false),
            function("other.fine", true),
            function("pg_catalog.now", false),
        ],
        acting_defaults: vec!["filled".into()],
        ..CatalogParts::default()
    })
}

fn told(text: &str, defined: &[&str]) -> String {
    let catalog = catalog();
    let path: Arc<[Box<str>]> = ["public".into()].into();
    let statement = |text: &str| classify(text.as_bytes(), Lexing::CERTAIN).statements[0].clone();
    let own = ["t", "u", "acting", "numbered", "parts"].map(Box::from);
    let definitions = defined.iter().map(|text| Definition {
        statement: statement(text),
        search_path: Some(Arc::clone(&path)),
    });
    let definitions: Vec<_> = definitions.collect();
    // What was defined is resolved by the path of then.
    let now = ["other".into(), "public".into()];
    let view = View {
        temporary: &own,
        definitions: &definitions,
        ..view(&catalog, Some(&now))
    };
    match resolve(&statement(text), &[], &view, &rules()).required {
        Required::Temporary => "t".to_owned(),
        Required::Write(locks) => {
            let locks: Vec<_> = locks.iter().map(|lock| lock.as_str()).collect();
            locks.join(" ")
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn what_a_table_takes_over_counts_as_it_is_made() {
    for (text, expected) in [
        ("CREATE TEMP TABLE t (a int DEFAULT evil())", ALL),
        ("CREATE TEMP TABLE t (a filled)", ALL),
        (
            "CREATE TEMP TABLE t (a int, b timestamptz DEFAULT now())",
            "t",
        ),
        ("CREATE TEMP TABLE t (LIKE audited)", "t"),
        (
            "CREATE TEMP TABLE t (LIKE audited INCLUDING COMMENTS INCLUDING IDENTITY)",
            "t",
        ),
        (
            "CREATE TEMP TABLE t (LIKE audited INCLUDING CONSTRAINTS)",
            ALL,
        ),
        ("CREATE TEMP TABLE t (LIKE audited INCLUDING INDEXES)", ALL),
        ("CREATE TEMP TABLE t (LIKE audited INCLUDING ALL)", ALL),
        ("CREATE TEMP TABLE t (LIKE plain INCLUDING ALL)", "t"),
        (
            "CREATE TEMP TABLE t (LIKE orders INCLUDING ALL EXCLUDING DEFAULTS)",
            "t",
        ),
        (
            "CREATE TEMP TABLE t (LIKE orders INCLUDING DEFAULTS)",
            "orders",
        ),
        ("CREATE TEMP TABLE t (LIKE nowhere INCLUDING DEFAULTS)", ALL),
        ("CREATE TEMP TABLE t (LIKE acting INCLUDING DEFAULTS)", ALL),
        (
            "CREATE TEMP TABLE t (LIKE numbered INCLUDING DEFAULTS)",
            "t",
        ),
        ("CREATE TEMP TABLE t (LIKE of_domain)", ALL),
        ("CREATE TEMP TABLE t AS SELECT * FROM of_domain", ALL),
        ("CREATE TEMP TABLE t AS SELECT * FROM audited", "t"),
        (
            "EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT * FROM of_domain",
            ALL,
        ),
        (
            "EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT * FROM plain",
            "t",
        ),
        ("CREATE TEMP TABLE t AS SELECT (p).fine FROM plain p", ALL),
        ("CREATE TEMP TABLE t AS SELECT p.id FROM plain p", "t"),
        ("SELECT fine() INTO TEMP t FROM plain", ALL),
    ] {
        assert_eq!(told(text, &[]), expected, "{text}");
    }
}

#[test]
fn a_temporary_table_of_the_catalogs_is_filled_in() {
    for (text, expected) in [
        ("INSERT INTO acting VALUES (1)", ALL),
        ("COPY pg_temp.acting FROM STDIN", ALL),
        ("ANALYZE acting", ALL),
        ("DROP TABLE acting", "t"),
        ("INSERT INTO numbered VALUES (1)", "t"),
        ("INSERT INTO parts VALUES (1)", ALL),
        ("INSERT INTO t VALUES (1)", "t"),
    ] {
        assert_eq!(told(text, &[]), expected, "{text}");
    }
}

#[test]
fn what_was_defined_is_resolved_anew() {
    const LIKE: &str = "CREATE TEMP TABLE t (LIKE orders INCLUDING DEFAULTS)";
    for (defined, expected) in [
        (&["CREATE TEMP TABLE t (a int DEFAULT evil())"][..], ALL),
        (&["CREATE TEMP TABLE t (a int DEFAULT fine())"], "t"),
        (&["CREATE TEMP TABLE u (a int DEFAULT evil())"], "t"),
        (&["CREATE INDEX ON t (evil(a))"], ALL),
        (&["ALTER TABLE t ADD CHECK (evil(a))"], ALL),
        (&[LIKE], "orders"),
        (&["CREATE TEMP TABLE t (LIKE audited INCLUDING ALL)"], ALL),
        (&["CREATE TEMP TABLE t AS SELECT * FROM audited"], "t"),
        // By way of another one.
        (
            &[
                "CREATE TEMP TABLE u (a int CHECK (evil()))",
                "CREATE TEMP TABLE t (LIKE u INCLUDING ALL)",
            ],
            ALL,
        ),
        (
            &["CREATE TEMP TABLE u (a int DEFAULT evil() REFERENCES t ON DELETE SET DEFAULT)"],
            ALL,
        ),
        (
            &["CREATE TEMP TABLE u PARTITION OF t (CHECK (evil())) DEFAULT"],
            ALL,
        ),
    ] {
        assert_eq!(told("DELETE FROM t", defined), expected, "{defined:?}");
    }
    // Both are like the same table, and have nothing to do with each other.
    let acting = "CREATE TEMP TABLE u (LIKE plain, a int DEFAULT evil())";
    let plain = "CREATE TEMP TABLE t (LIKE plain)";
    assert_eq!(told("INSERT INTO t VALUES (1)", &[acting, plain]), "t");
}
