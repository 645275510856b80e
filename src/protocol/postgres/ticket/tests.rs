use super::change::{Change, Doubts, Lasts, To, changes, hide, hide_in_bind};
use super::scope::{SAVEPOINTS_MAX, Scope, Settings};
use super::{Tickets, comment, shown, startup};
use crate::lock_name::LockName;
use crate::protocol::postgres::classify::{Isolation, Lexing, classify};
use crate::protocol::postgres::frame::{
    Bind, FirstPacket, FrontendMessage, Opening, Version, startup as write_startup,
};
use crate::token::Token;
use proptest::prelude::{any, prop, proptest};

fn tickets(text: &str) -> Tickets {
    Tickets::parse(text.as_bytes()).unwrap()
}

/// The tickets of a start, and what the server gets.
fn start(parameters: &[(&str, &str)], shown: Option<&str>) -> (String, Vec<(String, String)>) {
    let version = Version { major: 3, minor: 0 };
    let pairs = parameters
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let bytes = write_startup(version, pairs);
    let Ok(Some((FirstPacket::Startup(packet), _))) = Opening::new().next(&bytes) else {
        panic!("no start-up packet");
    };
    let taken = startup::take(&packet).unwrap();
    let sent = taken.packet(&packet, shown);
    let Ok(Some((FirstPacket::Startup(packet), _))) = Opening::new().next(&sent) else {
        panic!("no start-up packet");
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let sent = packet
        .parameters
        .iter()
        .map(|(name, value)| (text(name), text(value)));
    (taken.tickets.as_slice().join(","), sent.collect())
}

#[test]
fn a_start_gives_its_tickets_and_the_server_gets_none() {
    for (options, ticket, left) in [
        ("-c ringfence.token=T1", "T1", None),
        ("-cringfence.token=T1", "T1", None),
        ("--ringfence.token=T1", "T1", None),
        ("--Ringfence.TOKEN=T1", "T1", None),
        (
            "-c a=b -c ringfence.token=T1 -c d=e\\ f",
            "T1",
            Some("-c a=b -c d=e\\ f"),
        ),
        ("-c ringfence.token=T1 -c ringfence.token=T2", "T2", None),
        ("-c ringfence.token=T1,\\ T2", "T1,T2", None),
        ("-c ring\\fence.token=T1", "T1", None),
        ("-iec ringfence.token=T1 -f s", "T1", Some("-ie -f s")),
        ("-B 5 -c x=1", "", Some("-B 5 -c x=1")),
        // The argument of another switch.
        (
            "-B -cringfence.token=T1",
            "",
            Some("-B -cringfence.token=T1"),
        ),
        (
            "-- -c ringfence.token=T1",
            "",
            Some("-- -c ringfence.token=T1"),
        ),
        ("-c ringfence.tokens=T1", "", Some("-c ringfence.tokens=T1")),
        ("-c ringfence.token=", "", None),
        ("-c", "", Some("-c")),
        ("", "", Some("")),
        ("\\", "", Some("\\")),
    ] {
        let (found, sent) = start(&[("user", "u"), ("options", options)], None);
        let of_server = sent.iter().find(|(name, _)| name == "options");
        let of_server = of_server.map(|(_, value)| value.as_str());
        assert_eq!((found.as_str(), of_server), (ticket, left), "{options}");
    }
    let given = [
        ("user", "u"),
        ("Ringfence.Token", "T1"),
        ("options", "-c ringfence.token=T2"),
    ];
    let (found, sent) = start(&given, Some("orders=7"));
    assert_eq!(found, "T1");
    let expected = [("user", "u"), ("ringfence.token", "orders=7")];
    assert_eq!(
        sent,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn what_is_no_list_of_tickets_is_refused() {
    assert!(tickets(" ").is_empty() && tickets("").is_empty());
    assert_eq!(tickets("a, b,a").as_slice().len(), 2);
    for bad in ["a,", "a b", "a,,b"] {
        let refusal = Tickets::parse(bad.as_bytes()).unwrap_err();
        assert!(
            refusal.detail.starts_with("ringfence.token"),
            "{}",
            refusal.detail
        );
    }
}

#[test]
fn the_server_is_shown_the_lock_and_the_number() {
    let lock = |name| LockName::new(name).unwrap();
    let (orders, odd) = (lock("orders"), lock("o'd\\d"));
    let told = shown([(&orders, Token::MIN), (&odd, Token::new(7).unwrap())]);
    assert_eq!(told, "orders=1, o_d_d=7");
}

#[test]
fn a_comment_at_either_end_counts() {
    let found = |text: &str| {
        let found = comment::find(text.as_bytes()).unwrap();
        found.map(|found| {
            (
                found.tickets.as_slice().join(","),
                text[found.span].to_owned(),
            )
        })
    };
    let comment = "/*fencing_token='T1'*/";
    let expected = Some(("T1".to_owned(), comment.to_owned()));
    assert_eq!(found(&format!("SELECT 1 {comment}")), expected);
    assert_eq!(found(&format!("SELECT 1 {comment} ; \n")), expected);
    assert_eq!(found(&format!("{comment} SELECT 1")), expected);
    let many = "SELECT 1 /*action='a%2Cb\\'',fencing_token='T1%2CT2', x='1'*/";
    assert_eq!(found(many).unwrap().0, "T1,T2");
    for none in [
        "SELECT '/*fencing_token=''T1''*/'",
        "SELECT $$/*fencing_token='T1'*/$$",
        "SELECT /*fencing_token='T1'*/ 1",
        "SELECT 1 /*fencing_token=T1*/",
        "SELECT 1 /*fencing_token='T1*/",
        "/* /*fencing_token='T1'*/ */ SELECT 1",
        "SELECT 1",
    ] {
        assert_eq!(found(none), None, "{none}");
    }
    assert!(comment::find(b"SELECT 1 /*fencing_token='a b'*/").is_err());
}

fn scope() -> Scope {
    Scope::new(Settings::new(
        tickets("start"),
        None,
        Isolation::PerStatement,
    ))
}

fn set(scope: &mut Scope, value: &str, lasts: Lasts) {
    Change::Tickets(To::Value(tickets(value)), lasts).apply(scope);
}

fn now(scope: &Scope) -> String {
    scope.now().tickets.as_slice().join(",")
}

#[test]
fn a_set_lasts_when_its_transaction_commits() {
    let mut scope = scope();
    scope.begin();
    set(&mut scope, "a", Lasts::Session);
    assert_eq!(now(&scope), "a");
    scope.rollback();
    assert_eq!(now(&scope), "start");
    scope.begin();
    set(&mut scope, "a", Lasts::Session);
    scope.commit();
    assert_eq!(now(&scope), "a");
    Change::Tickets(To::Start, Lasts::Session).apply(&mut scope);
    assert_eq!(now(&scope), "start");
}

#[test]
fn a_set_local_ends_with_its_transaction_and_uncovers_the_set() {
    let mut scope = scope();
    scope.begin();
    set(&mut scope, "a", Lasts::Session);
    set(&mut scope, "b", Lasts::Transaction);
    assert_eq!(now(&scope), "b");
    scope.commit();
    assert_eq!(now(&scope), "a");
    scope.begin();
    set(&mut scope, "c", Lasts::Transaction);
    set(&mut scope, "d", Lasts::Session);
    scope.commit();
    assert_eq!(now(&scope), "d");
    scope.begin();
    set(&mut scope, "e", Lasts::Transaction);
    scope.rollback();
    assert_eq!(now(&scope), "d");
}

#[test]
fn a_savepoint_takes_back_what_came_after_it() {
    let mut scope = scope();
    scope.begin();
    set(&mut scope, "a", Lasts::Session);
    scope.savepoint("s").unwrap();
    set(&mut scope, "b", Lasts::Session);
    scope.savepoint("s").unwrap();
    set(&mut scope, "c", Lasts::Transaction);
    scope.rollback_to("s");
    assert_eq!(now(&scope), "b");
    scope.rollback_to("s");
    assert_eq!(now(&scope), "b");
    scope.release("s");
    scope.rollback_to("s");
    assert_eq!(now(&scope), "a");
    scope.savepoint("t").unwrap();
    set(&mut scope, "d", Lasts::Transaction);
    scope.release("t");
    assert_eq!(now(&scope), "d");
    scope.rollback_to("unknown");
    assert_eq!(now(&scope), "d");
    scope.commit();
    assert_eq!(now(&scope), "a");
}

#[test]
fn reset_all_is_taken_back_too_and_savepoints_are_bounded() {
    let mut scope = scope();
    set(&mut scope, "a", Lasts::Session);
    scope.begin();
    Change::ResetAll.apply(&mut scope);
    assert_eq!(now(&scope), "start");
    scope.rollback();
    assert_eq!(now(&scope), "a");
    // What is at its beginning already is passed over.
    scope.begin();
    Change::Tickets(To::Start, Lasts::Transaction).apply(&mut scope);
    Change::ResetAll.apply(&mut scope);
    assert_eq!(now(&scope), "start");
    scope.commit();
    assert_eq!(now(&scope), "a");
    scope.begin();
    for _ in 0..SAVEPOINTS_MAX {
        scope.savepoint("s").unwrap();
    }
    assert!(scope.savepoint("s").is_err());
}

fn told(text: &str, bind: Option<&Bind<'_>>) -> Vec<String> {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    let told = |change: Change| match change {
        Change::Tickets(To::Value(tickets), Lasts::Session) => tickets.as_slice().join(","),
        Change::Tickets(To::Value(tickets), Lasts::Transaction) => {
            format!("local {}", tickets.as_slice().join(","))
        }
        Change::Tickets(To::Start, lasts) => format!("start {lasts:?}"),
        Change::ResetAll => "all".to_owned(),
        other => format!("{other:?}"),
    };
    let changes = classified
        .statements
        .iter()
        .map(|it| changes(it, bind).unwrap());
    changes.flatten().map(told).collect()
}

#[test]
fn every_way_to_set_a_ticket_is_seen() {
    for (text, expected) in [
        ("SET ringfence.token = 'T1'", "T1"),
        ("SET SESSION Ringfence.Token TO 'T1'", "T1"),
        ("SET LOCAL ringfence.token TO 'T1', 'T2'", "local T1,T2"),
        ("SET ringfence.token TO DEFAULT", "start Session"),
        ("SET ringfence.token = ''", ""),
        ("RESET ringfence.token", "start Session"),
        ("RESET ALL", "all"),
        ("DISCARD ALL", "all"),
        ("SELECT set_config('ringfence.token', 'T1', false)", "T1"),
        (
            "SELECT pg_catalog.set_config('Ringfence.Token', 'T1', true)",
            "local T1",
        ),
        (
            "SELECT set_config('ringfence.token', NULL, false)",
            "start Session",
        ),
    ] {
        assert_eq!(told(text, None), [expected], "{text}");
    }
    assert!(told("SELECT 1; SHOW ringfence.token; SET a.b = 'x'", None).is_empty());
    let path = "[SearchPath(Value(Some([\"a\", \"b\"])), Session)]";
    assert_eq!(
        format!("[{}]", told("SET search_path = A, b", None)[0]),
        path
    );
    // pgdog 677: what pg_dump sets.
    let empty = "SELECT pg_catalog.set_config('search_path', '', false)";
    assert_eq!(told(empty, None), ["SearchPath(Value(Some([])), Session)"]);
    let isolation = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    assert!(told(isolation, None)[0].contains("OneSnapshot"));
    // A name that is not told may be any setting.
    assert!(told("SELECT set_config(x, 'a', true) FROM t", None)[0].contains("SearchPath"));
    let refused = |text: &str| {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        changes(&classified.statements[0], None).is_err()
    };
    assert!(refused(
        "SELECT set_config('ringfence.token', 'a' || 'b', false)"
    ));
    assert!(refused("SET ringfence.token = 'a b'"));
}

#[test]
fn a_ticket_in_bind_is_seen_and_hidden() {
    let payload = b"\0\0\0\x01\0\x01\0\x03\0\0\0\x0fringfence.token\0\0\0\x02T1\0\0\0\x01\x01\0\0";
    let Ok(FrontendMessage::Bind(bind)) = FrontendMessage::read(b'B', payload) else {
        panic!("no Bind");
    };
    let text = "SELECT set_config($1, $2, $3)";
    assert_eq!(told(text, Some(&bind)), ["local T1"]);
    let statement = &classify(text.as_bytes(), Lexing::CERTAIN).statements[0];
    let hidden = hide_in_bind(&bind, statement, |_| "orders=7".to_owned())
        .unwrap()
        .unwrap();
    let Ok(FrontendMessage::Bind(hidden)) = FrontendMessage::read(b'B', &hidden[5..]) else {
        panic!("no Bind");
    };
    assert_eq!(hidden.values[1], Some(&b"orders=7"[..]));
    assert_eq!(
        (hidden.values[0], hidden.values[2]),
        (bind.values[0], bind.values[2])
    );
    let other = &classify(b"SELECT $1, $2, $3", Lexing::CERTAIN).statements[0];
    assert_eq!(hide_in_bind(&bind, other, |_| String::new()), Ok(None));
}

fn hidden(text: &str) -> Option<String> {
    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
    let hidden = hide(text.as_bytes(), &classified, |_| "L=7".to_owned()).unwrap()?;
    Some(String::from_utf8(hidden).unwrap())
}

#[test]
fn no_text_reaches_the_server_with_a_ticket() {
    for (text, expected) in [
        ("SET ringfence.token = 'T1'", "SET ringfence.token = 'L=7'"),
        (
            "SELECT 1; SET LOCAL \"Ringfence\".token TO 'T1'; SELECT 'T2'",
            "SELECT 1; SET LOCAL ringfence.token = 'L=7'; SELECT 'T2'",
        ),
        (
            "SELECT set_config('ringfence.token', 'T1', false), 'x'",
            "SELECT set_config('ringfence.token', 'L=7', false), 'x'",
        ),
        (
            "PREPARE p AS SELECT set_config('ringfence.token', 'T1'::text, false)",
            "PREPARE p AS SELECT set_config('ringfence.token', 'L=7'::text, false)",
        ),
        (
            "SELECT 1 /*fencing_token='T1'*/",
            "SELECT 1                       ",
        ),
        (
            "/*fencing_token='T1'*/ SET ringfence.token = 'T1'",
            "                       SET ringfence.token = 'L=7'",
        ),
    ] {
        assert_eq!(hidden(text).as_deref(), Some(expected), "{text}");
    }
    for text in [
        "SELECT 1",
        "RESET ringfence.token",
        "SHOW ringfence.token",
        "SET a.b = 'T1'",
    ] {
        assert_eq!(hidden(text), None, "{text}");
    }
    for text in [
        "SET Ringfence.Token = 'T1'; SELEC 1",
        "SELECT set_config('ringfence.token', E'T1', false)",
        "SELECT set_config('ringfence.token', $$T1$$, false)",
        "SELECT set_config('ringfence.token', 'T'\n'1', false)",
    ] {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        assert!(
            hide(text.as_bytes(), &classified, |_| String::new()).is_err(),
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn no_options_make_it_panic_and_others_stay(
        words in prop::collection::vec("[-ac=b. \\\\]{0,8}", 0..6),
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        super::options::take(&bytes);
        let options = words.join(" ");
        let taken = super::options::take(options.as_bytes());
        assert_eq!(taken.value, None);
        let _ = comment::find(&bytes);
    }
}

#[test]
fn the_members_of_a_path_are_those_that_the_server_looks_for() {
    let path = |sql: &str| {
        let classified = classify(sql.as_bytes(), Lexing::CERTAIN);
        let found = changes(&classified.statements[0], None).unwrap();
        let path = found.into_iter().find_map(|change| match change {
            Change::SearchPath(To::Value(path), _) => Some(path),
            _ => None,
        });
        path.expect("it sets the path").map(|path| path.join("|"))
    };
    let long = "a".repeat(63);
    for set in [
        format!("SET search_path = '{long}b', public"),
        format!("SELECT set_config('search_path', '{long}b,public', false)"),
    ] {
        assert_eq!(path(&set), Some(format!("{long}|public")));
    }
    let odd = "SELECT set_config('search_path', '\u{a0}public', false)";
    assert_eq!(path(odd), None);
}

#[test]
fn what_is_in_doubt_may_have_set_anything_but_takes_no_ticket_away() {
    let found = |sql: &str, function, types| {
        let classified = classify(sql.as_bytes(), Lexing::CERTAIN);
        let statement = &classified.statements[0];
        Doubts { function, types }.about(statement, changes(statement, None).unwrap())
    };
    let is_lost = |sql: &str, function, types| {
        let found = found(sql, function, types);
        let lost = |it: &Change| matches!(it, Change::SearchPath(To::Value(None), _));
        found.iter().any(lost)
    };
    let plain = "SELECT set_config('search_path', 'a', false)";
    let qualified = "SELECT pg_catalog.set_config('search_path', 'a', false)";
    let cast = "SELECT pg_catalog.set_config('other'::text, 'a', false)";
    let other = "SELECT set_config('app.tenant', 'a', false)";
    for (sql, by_function, by_types) in [
        (plain, true, false),
        (qualified, false, false),
        (cast, false, true),
        (other, false, false),
    ] {
        assert!(!is_lost(sql, false, false), "{sql}");
        assert_eq!(is_lost(sql, true, false), by_function, "{sql}");
        assert_eq!(is_lost(sql, false, true), by_types, "{sql}");
    }
    let ticket = "SELECT set_config('ringfence.token', 'a', false)";
    let told = found(ticket, true, true);
    assert!(matches!(told.as_slice(), [Change::Tickets(..)]), "{told:?}");
}
