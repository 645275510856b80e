use super::{Catalog, CatalogParts, Lexing, RelationKind, classify, function, relation};
use crate::protocol::postgres::resolve::runs_own_code;

#[test]
fn functions_and_views_of_the_database_are_its_own_code() {
    let catalog = Catalog::new(CatalogParts {
        relations: vec![
            relation(1, "public.orders", RelationKind::Table),
            relation(2, "public.open_orders", RelationKind::View),
            relation(3, "pg_catalog.pg_locks", RelationKind::View),
        ],
        functions: vec![
            function("pg_catalog.count", false),
            function("pg_catalog.lower", false),
            function("public.lower", false),
            function("public.total", false),
        ],
        ..CatalogParts::default()
    });
    let runs = |sql: &str, catalog: Option<&Catalog>| {
        let classified = classify(sql.as_bytes(), Lexing::CERTAIN);
        runs_own_code(&classified.statements[0], catalog)
    };
    for (sql, own, unknown) in [
        ("SELECT count(*) FROM orders", false, true),
        ("SELECT pg_catalog.lower('A')", false, false),
        ("SELECT * FROM pg_catalog.pg_locks", false, false),
        ("SELECT 1 + 1", false, false),
        ("SELECT extract(year FROM now())", true, true),
        ("SELECT lower('A')", true, true),
        ("SELECT public.total(1)", true, true),
        ("SELECT o.total FROM orders o", true, true),
        ("SELECT * FROM open_orders", true, true),
        ("FETCH c", true, true),
        ("BEGIN", false, false),
        ("SET search_path = public", false, false),
        ("SHOW search_path", false, false),
    ] {
        assert_eq!(runs(sql, Some(&catalog)), own, "{sql}");
        assert_eq!(runs(sql, None), unknown, "{sql}");
    }
}
