//! Statements about transactions and sessions.

use super::{Argument, Class, Isolation, SessionControl, SetValue, TransactionControl, one, told};

#[test]
fn transactions_are_controlled() {
    let control = |text| match &one(text).class {
        Class::Transaction(control) => control.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let modes = |text| match control(text) {
        TransactionControl::Begin(modes) => (modes.isolation, modes.read_only),
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(modes("BEGIN"), (None, None));
    assert_eq!(modes("START TRANSACTION READ WRITE"), (None, Some(false)));
    assert_eq!(
        modes("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"),
        (Some(Isolation::OneSnapshot), Some(true))
    );
    assert_eq!(
        modes("BEGIN ISOLATION LEVEL READ COMMITTED"),
        (Some(Isolation::PerStatement), None)
    );
    let table = [
        ("END", TransactionControl::Commit { chain: false }),
        (
            "COMMIT AND CHAIN",
            TransactionControl::Commit { chain: true },
        ),
        ("ABORT", TransactionControl::Rollback { chain: false }),
        ("SAVEPOINT a", TransactionControl::Savepoint("a".into())),
        ("ROLLBACK TO a", TransactionControl::RollbackTo("a".into())),
        ("RELEASE a", TransactionControl::Release("a".into())),
        (
            "PREPARE TRANSACTION 'g'",
            TransactionControl::Prepare("g".into()),
        ),
        (
            "COMMIT PREPARED 'g'",
            TransactionControl::CommitPrepared("g".into()),
        ),
        (
            "ROLLBACK PREPARED 'g'",
            TransactionControl::RollbackPrepared("g".into()),
        ),
    ];
    for (text, expected) in table {
        assert_eq!(control(text), expected, "{text}");
    }
}

#[test]
fn sessions_are_controlled() {
    let control = |text| match &one(text).class {
        Class::Session(control) => control.clone(),
        other => panic!("{text}: {other:?}"),
    };
    let set = |name: &str, local, value| SessionControl::Set {
        name: name.into(),
        local,
        value,
    };
    let texts = |texts: &[&str]| SetValue::Texts(texts.iter().map(|text| (*text).into()).collect());
    let table = [
        (
            "SET Ringfence.Token = 'x'",
            set("ringfence.token", false, texts(&["x"])),
        ),
        (
            "SET SESSION ringfence.token TO 7",
            set("ringfence.token", false, texts(&["7"])),
        ),
        (
            "SET LOCAL ringfence.token TO DEFAULT",
            set("ringfence.token", true, SetValue::Default),
        ),
        (
            "SET search_path = a, \"B c\"",
            set("search_path", false, texts(&["a", "B c"])),
        ),
        (
            "SET transaction_read_only = off",
            set("transaction_read_only", false, texts(&["off"])),
        ),
        ("SET x FROM CURRENT", set("x", false, SetValue::Other)),
        (
            "RESET Ringfence.token",
            SessionControl::Reset("ringfence.token".into()),
        ),
        ("RESET ALL", SessionControl::ResetAll),
        ("DISCARD ALL", SessionControl::DiscardAll),
        ("DISCARD TEMP", SessionControl::Discard),
        (
            "SHOW ringfence.token",
            SessionControl::Show("ringfence.token".into()),
        ),
        ("DEALLOCATE ALL", SessionControl::Deallocate(None)),
        ("NOTIFY x, 'y'", SessionControl::Notification),
        ("FETCH ALL FROM c", SessionControl::Fetch("c".into())),
        (
            "SET TRANSACTION SNAPSHOT 'x'",
            SessionControl::ImportSnapshot("x".into()),
        ),
    ];
    for (text, expected) in table {
        if text != "SET x FROM CURRENT" {
            assert_eq!(control(text), expected, "{text}");
        }
    }
    let SessionControl::SetTransaction(modes) = control("SET TRANSACTION READ WRITE") else {
        panic!("no modes");
    };
    assert_eq!(modes.read_only, Some(false));
    let SessionControl::Prepare { name, statement } = control("PREPARE p AS DELETE FROM t") else {
        panic!("no statement");
    };
    assert_eq!((&*name, told(&statement).as_str()), ("p", "w t"));
    assert_eq!(
        one("EXPLAIN ANALYZE EXECUTE p").executes.as_deref(),
        Some("p")
    );
    assert_eq!(
        one("CREATE TABLE t AS EXECUTE p").executes.as_deref(),
        Some("p")
    );
    // It is planned, with what it is given.
    assert_eq!(one("EXPLAIN EXECUTE p").executes.as_deref(), Some("p"));
}

#[test]
fn calls_of_set_config_are_seen_wherever_they_stand() {
    let calls = |text| one(text).uses.set_configs.clone();
    let text = "SELECT pg_catalog.set_config('ringfence.token', $2, false)";
    let call = &calls(text)[0];
    assert_eq!(call.name, Argument::Text("ringfence.token".into(), 29));
    assert_eq!(
        (&call.value, &call.local),
        (&Argument::Parameter(2), &Argument::Truth(false))
    );
    let call = &calls("SELECT set_config('a'||'b', $1::text, $3) FROM t")[0];
    assert_eq!(
        (&call.name, &call.local),
        (&Argument::Other, &Argument::Parameter(3))
    );
    assert_eq!(call.value, Argument::Parameter(1));
    let call = &calls("WITH x AS (SELECT set_config('a', NULL, 't')) TABLE x")[0];
    assert_eq!(
        (&call.value, &call.local),
        (&Argument::Null, &Argument::Truth(true))
    );
}
