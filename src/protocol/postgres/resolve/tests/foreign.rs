//! Tables of other servers.

use super::super::ForeignWrites;
use super::{
    Catalog, CatalogParts, Lexing, PostgresRules, Relation, RelationKind, Required, Unmatched,
    classify, relation, resolve, rule, view,
};

#[test]
fn a_write_to_another_servers_table_is_refused_under_a_rule_unless_it_is_told_to_pass() {
    let catalog = Catalog::new(CatalogParts {
        relations: vec![
            relation(1, "public.orders", RelationKind::Table),
            Relation {
                parents: vec![1],
                ..relation(2, "public.elsewhere", RelationKind::ForeignTable)
            },
            relation(3, "public.free", RelationKind::ForeignTable),
            relation(4, "public.parts", RelationKind::PartitionedTable),
            Relation {
                parents: vec![4],
                ..relation(5, "public.part", RelationKind::PartitionedTable)
            },
            Relation {
                parents: vec![5],
                ..relation(6, "far.part", RelationKind::ForeignTable)
            },
            Relation {
                parents: vec![2],
                ..relation(7, "public.near", RelationKind::Table)
            },
        ],
        ..CatalogParts::default()
    });
    let needs = |text: &str, foreign_writes| {
        let rules = vec![
            rule("public.orders", "orders"),
            rule("public.elsewhere", "far"),
            rule("far.part", "part"),
        ];
        let rules = PostgresRules::new(rules, Unmatched::Pass).with_foreign_writes(foreign_writes);
        let path: [Box<str>; 1] = ["public".into()];
        let view = view(&catalog, Some(&path));
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        resolve(&classified.statements[0], &[], &view, &rules).required
    };
    for (text, refused) in [
        ("INSERT INTO elsewhere VALUES (1)", true),
        ("UPDATE orders SET a = 1", true),
        ("TRUNCATE orders", true),
        ("UPDATE ONLY orders SET a = 1", false),
        // What is inserted goes to a partition, and to no other child.
        ("INSERT INTO orders VALUES (1)", false),
        ("COPY orders FROM STDIN", false),
        ("INSERT INTO parts VALUES (1)", true),
        ("COPY parts FROM STDIN", true),
        (
            "WITH x AS (INSERT INTO orders VALUES (1)) DELETE FROM orders",
            true,
        ),
        (
            "WITH x AS (DELETE FROM orders) INSERT INTO orders VALUES (1)",
            true,
        ),
        ("UPDATE near SET a = 1", false),
        ("INSERT INTO free VALUES (1)", false),
        ("ALTER FOREIGN TABLE elsewhere ADD COLUMN b int", false),
        ("SELECT * FROM elsewhere FOR UPDATE", false),
    ] {
        let told = needs(text, ForeignWrites::Refuse);
        let found = matches!(told, Required::Unclassified(why) if why.contains("foreign table"));
        assert_eq!(found, refused, "{text}: {told:?}");
        let told = needs(text, ForeignWrites::Pass);
        assert!(matches!(told, Required::Write(_)), "{text}: {told:?}");
    }
}
