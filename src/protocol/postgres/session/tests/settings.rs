//! Settings that change what bytes and names mean.

use super::{BackendMessage, Considered, Driven, I, Lexing, T, classify, may_turn_read_write};

#[test]
fn another_role_hides_what_the_path_means() {
    let path = |considered: &Considered| considered.runs[0].search_path.clone();
    let mut it = Driven::new();
    it.did("SET search_path = '$user', public", "SET", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("BEGIN", "BEGIN", T);
    it.did("SET LOCAL ROLE bob", "SET", T);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", T)), None);
    it.did("ROLLBACK", "ROLLBACK", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("SET SESSION AUTHORIZATION bob", "SET", I);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", I)), None);
    it.did("SET search_path = public", "SET", I);
    assert!(path(&it.did("SELECT 1", "SELECT 1", I)).is_some());
    it.did("DO $$ $$", "DO", I);
    assert_eq!(path(&it.did("SELECT 1", "SELECT 1", I)), None);
}

#[test]
fn the_meaning_of_bytes_is_not_certain_while_it_may_change() {
    let mut it = Driven::new();
    assert_eq!(it.0.lexing(), Lexing::CERTAIN);
    it.query("SET standard_conforming_strings = off");
    assert!(!it.0.lexing().standard_strings);
    it.done("SET");
    it.reply(BackendMessage::ParameterStatus {
        name: b"standard_conforming_strings",
        value: b"off",
    });
    it.ready(I);
    assert!(!it.0.lexing().standard_strings && it.0.lexing().utf8);
    it.query("SET client_encoding = 'LATIN1'");
    assert!(!it.0.lexing().utf8);
    it.error();
    it.ready(I);
    assert!(it.0.lexing().utf8);
}

#[test]
fn what_can_turn_a_session_read_write_is_known() {
    let turns = |text: &str| {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        classified
            .statements
            .iter()
            .any(|statement| may_turn_read_write(statement))
    };
    for text in [
        "BEGIN READ WRITE",
        "START TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ WRITE",
        "SET TRANSACTION READ WRITE",
        "SET LOCAL transaction_read_only = off",
        "SET Transaction_Read_Only TO false",
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "SET default_transaction_read_only = off",
        "RESET default_transaction_read_only",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
        "COMMIT PREPARED 'g'",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT set_config('default_' || 'transaction_read_only', 'off', true)",
        "SELECT set_config($1, $2, $3)",
        "SET transaction_read_only = off; UPDATE t SET a = 1",
        "DO $$ BEGIN COMMIT; SET TRANSACTION READ WRITE; UPDATE t SET a = 1; END $$",
        "CALL p()",
        "PREPARE p AS SELECT set_config('transaction_read_only', 'off', true)",
        "EXPLAIN ANALYZE SELECT set_config('transaction_read_only', 'off', true)",
        "SELEC 1",
    ] {
        assert!(turns(text), "{text}");
    }
    for text in [
        "BEGIN",
        "BEGIN READ ONLY",
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "COMMIT",
        "SELECT set_config('search_path', '', false)",
        "RESET ALL",
        "SELECT 1",
    ] {
        assert!(!turns(text), "{text}");
    }
}
