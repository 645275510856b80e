//! Tables that the transaction itself has made.

use super::{Lexing, Required, View, catalog, classify, follow_made, resolve, rules, view};

/// What the last statement of a text needs, where the text is one transaction's.
fn last_of(text: &str) -> Required {
    let (catalog, rules) = (catalog(), rules());
    let path: [Box<str>; 1] = ["public".into()];
    let mut made = vec![];
    let mut required = Required::Read;
    for statement in &classify(text.as_bytes(), Lexing::CERTAIN).statements {
        let view = View {
            made: &made,
            ..view(&catalog, Some(&path))
        };
        required = resolve(statement, &[], &view, &rules).required;
        follow_made(&mut made, statement);
    }
    required
}

#[test]
fn a_table_of_the_transactions_own_is_known_by_its_name() {
    for text in [
        "CREATE TABLE fresh (a int); INSERT INTO fresh VALUES (1)",
        "CREATE TABLE public.fresh (a int); UPDATE fresh SET a = 2",
        "CREATE TABLE fresh (a int); DROP TABLE fresh",
        "CREATE TABLE fresh (a int); ANALYZE fresh; INSERT INTO fresh VALUES (1)",
        "CREATE TABLE fresh (a int); CLUSTER fresh USING i; INSERT INTO fresh VALUES (1)",
    ] {
        assert_eq!(last_of(text), Required::Write(vec![]), "{text}");
    }
    assert_eq!(
        last_of("CREATE TABLE fresh (a int); SELECT * FROM fresh"),
        Required::Read
    );
}

#[test]
fn a_table_that_something_was_done_to_is_not_known_any_more() {
    let all = last_of("INSERT INTO fresh VALUES (1)");
    assert_ne!(all, Required::Write(vec![]));
    for text in [
        "CREATE TABLE fresh (a int); CREATE RULE r AS ON INSERT TO fresh DO ALSO \
         UPDATE orders SET note = 'x'; INSERT INTO fresh VALUES (1)",
        "CREATE TABLE fresh (a int) INHERITS (orders); INSERT INTO fresh VALUES (1)",
        "CREATE VIEW fresh AS SELECT * FROM orders; UPDATE fresh SET note = 'x'",
        "CREATE TABLE fresh (a int); DO $$BEGIN END$$; INSERT INTO fresh VALUES (1)",
        "CREATE TABLE fresh (a int); DROP TABLE fresh; INSERT INTO fresh VALUES (1)",
    ] {
        assert_eq!(last_of(text), all, "{text}");
    }
}
