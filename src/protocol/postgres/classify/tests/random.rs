//! Texts as no client writes them.

use super::{Class, Effect, Lexing, Statement, classify, one, told};
use proptest::prelude::{Strategy, any, prop, proptest};

#[test]
fn a_text_as_deep_as_it_is_long_needs_no_stack() {
    let sum = format!("SELECT 1{}", "+1".repeat(64_000));
    let union = format!("SELECT 1{}", " UNION ALL SELECT 2".repeat(20_000));
    let calls = format!("SELECT {}1{}", "f(".repeat(3_000), ")".repeat(3_000));
    let casts = format!("SELECT 1{}", "::int".repeat(64_000));
    std::thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || {
            for text in [sum, union, calls, casts] {
                assert_eq!(told(&one(&text)), "r");
            }
            let parentheses = format!("SELECT {}1{}", "(".repeat(400_000), ")".repeat(400_000));
            assert_eq!(told(&one(&parentheses)), "? *");
        })
        .unwrap()
        .join()
        .unwrap();
}

fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "SELECT 1",
        ";",
        "'",
        "''",
        "\"",
        "$$",
        "$a$",
        "--",
        "\n",
        "/*",
        "*/",
        "E'\\''",
        "U&'\\0061'",
        " UPDATE t SET a = 1 ",
        "DELETE FROM t",
        "(",
        ")",
        ",",
        "x",
        "\\",
        "::",
        "WITH a AS (",
        "é",
        "BEGIN",
        "COMMIT",
        "SET a = ",
        " INTO t ",
        " FOR UPDATE",
        "$1",
        "0x",
        "1_0",
        "DO",
    ])
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(2000))]

    #[test]
    fn no_bytes_make_it_panic(text in prop::collection::vec(any::<u8>(), 0..200)) {
        classify(&text, Lexing::CERTAIN);
    }

    /// The parts that the grammar says are statements are, alone, the same statements: nothing of
    /// one leaks into another.
    #[test]
    fn the_parts_of_a_text_are_the_same_alone(pieces in prop::collection::vec(piece(), 0..20)) {
        let text = pieces.concat();
        let whole = classify(text.as_bytes(), Lexing::CERTAIN);
        if matches!(whole.statements.first().map(|first| &first.class), Some(Class::Unknown(_))) {
            return Ok(());
        }
        for statement in &whole.statements {
            let alone = one(&text[statement.span.clone()]);
            assert_eq!(alone.class, statement.class);
            let effects = |of: &Statement| -> Vec<Effect> {
                of.uses.targets.iter().map(|target| target.effect).collect()
            };
            assert_eq!(effects(&alone), effects(statement));
        }
    }
}
