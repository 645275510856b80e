//! What it costs to find out what a Postgres statement is: not seen before, and out of the cache.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use ringfence::protocol::Unmatched;
use ringfence::protocol::postgres::classify::{Classifier, Lexing, classify};
use ringfence::protocol::postgres::resolve::{
    Catalog, CatalogParts, PostgresRule, PostgresRules, Relation, RelationKind, View, resolve,
};

const TEXTS: [(&str, &str); 3] = [
    (
        "pgbench select",
        "SELECT abalance FROM pgbench_accounts WHERE aid = $1;",
    ),
    (
        "pgbench update",
        "UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2;",
    ),
    (
        "pgbench insert",
        "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
         VALUES ($1, $2, $3, $4, CURRENT_TIMESTAMP);",
    ),
];

fn accounts() -> Catalog {
    let relation = |oid, name: &str| Relation {
        oid,
        schema: "public".into(),
        name: name.into(),
        kind: RelationKind::Table,
        temporary: false,
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
    };
    Catalog::new(CatalogParts {
        relations: vec![
            relation(1, "pgbench_accounts"),
            relation(2, "pgbench_history"),
        ],
        ..CatalogParts::default()
    })
}

fn statements(criterion: &mut Criterion) {
    let catalog = accounts();
    let path: [Box<str>; 1] = ["public".into()];
    let view = View {
        catalog: &catalog,
        database: "bench",
        user: "bench",
        search_path: Some(&path),
        temporary: &[],
        shadowed: &[],
        definitions: &[],
        made: &[],
        redefined: false,
        sure: false,
    };
    let rule = PostgresRule::new(None, None, Some("public.*"), "bench").unwrap();
    let rules = PostgresRules::new(vec![rule], Unmatched::Pass);
    for (name, text) in TEXTS {
        let text = text.as_bytes();
        criterion.bench_function(&format!("{name}: miss"), |bench| {
            bench.iter(|| classify(black_box(text), Lexing::CERTAIN));
        });
        let classifier = Classifier::new();
        criterion.bench_function(&format!("{name}: hit"), |bench| {
            bench.iter(|| classifier.classify(black_box(text), Lexing::CERTAIN));
        });
        let classified = classify(text, Lexing::CERTAIN);
        criterion.bench_function(&format!("{name}: resolve"), |bench| {
            bench.iter(|| resolve(&classified.statements[0], &[], black_box(&view), &rules));
        });
    }
}

criterion_group!(benches, statements);
criterion_main!(benches);
