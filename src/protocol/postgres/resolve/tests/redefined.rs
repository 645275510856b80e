//! Definitions that the catalog does not have yet.

use super::{
    Lexing, PostgresRules, Unmatched, View, catalog, classify, follow_made, resolve, view,
};

#[test]
fn behind_a_definition_names_may_do_anything() {
    let catalog = catalog();
    let rules = PostgresRules::new(vec![], Unmatched::Pass);
    let everything = |text: &str, redefined: bool| {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        let path: Box<[Box<str>]> = ["public".into()].into();
        let view = View {
            database: "app",
            user: "app",
            redefined,
            ..view(&catalog, Some(&path))
        };
        resolve(&classified.statements[0], &[], &view, &rules).everything
    };
    for text in [
        "INSERT INTO free VALUES (1)",
        "SELECT * FROM free",
        "SELECT fine()",
    ] {
        assert!(everything(text, true).is_some(), "{text}");
        assert!(everything(text, false).is_none(), "{text}");
    }
    assert!(everything("SELECT 1", true).is_none());
    assert!(everything("CREATE TEMP VIEW v AS SELECT * FROM free", false).is_some());
    // What is there under the name may be a view.
    let mut made = vec![];
    let text = "CREATE TABLE IF NOT EXISTS x (a int)";
    follow_made(
        &mut made,
        &classify(text.as_bytes(), Lexing::CERTAIN).statements[0],
    );
    assert!(made.is_empty());
}
