//! Tickets, tokens and lock names.

use ringfence::lock_name::{LockName, LockPattern};
use ringfence::ticket::{Action, InvalidTicket, KeyRing, Order, SealScope, SigningKey, Ticket};
use ringfence::token::Token;

fn ticket() -> Ticket {
    Ticket {
        lock: LockName::new("account/7").unwrap(),
        token: Token::new(7).unwrap(),
        holder: "h".to_owned(),
        session: "s".to_owned(),
        issued_unix_ms: 1,
        seal: SealScope::BestEffort(vec![]),
    }
}

#[test]
fn malformed_and_forged_tickets_are_refused() {
    let (ours, theirs) = (SigningKey::generate(), SigningKey::generate());
    let ring = KeyRing::new([ours.verifying().clone()]);
    let good = ours.sign_ticket(&ticket());
    assert_eq!(ring.verify_ticket(&good), Ok(ticket()));

    let order = Order {
        action: Action::Seal,
        lock: ticket().lock,
        token: Token::MAX,
        grant: String::new(),
    };
    // Another key's envelope that claims to be of ours.
    let foreign = theirs.sign_ticket(&ticket());
    let footer = good.rsplit_once('.').unwrap().1;
    let claimed = format!("{}.{footer}", foreign.rsplit_once('.').unwrap().0);
    let cases = [
        (String::new(), "not a ticket"),
        (u64::MAX.to_string(), "not a ticket"),
        ("0".to_owned(), "not a ticket"),
        ("v4.public.".to_owned(), "not a ticket"),
        ("v4.public.ü".to_owned(), "not a ticket"),
        ("v4.local.AAAA.AAAA".to_owned(), "not a ticket"),
        (good.replacen("v4", "v3", 1), "not a ticket"),
        (good.rsplit_once('.').unwrap().0.to_owned(), "not a ticket"),
        (
            "eyJhbGciOiJub25lIn0.eyJ0b2tlbiI6IjkifQ.".to_owned(),
            "not a ticket",
        ),
        (good[..good.len() / 2].to_owned(), "not a ticket"),
        ("x".repeat(4097), "ticket is longer than 4096 bytes"),
        (foreign, "signed by an unknown key"),
        (claimed, "signature does not verify"),
        (ours.sign_order(&order), "signature does not verify"),
    ];
    for (envelope, part) in cases {
        let error = ring
            .verify_ticket(&envelope)
            .expect_err(&envelope)
            .to_string();
        assert!(
            error.contains(part),
            "{part:?} is not in {error:?} for {envelope:?}"
        );
    }
    assert!(matches!(
        KeyRing::default().verify_ticket(&good),
        Err(InvalidTicket::UnknownKey { .. })
    ));
}

#[test]
fn texts_that_are_no_token_are_refused() {
    let max = u64::MAX.to_string();
    for bad in [
        "",
        "0",
        "00",
        "01",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "0x1",
        " 1",
        "9223372036854775808",
        &max,
    ] {
        let error = bad.parse::<Token>().expect_err(bad).to_string();
        assert!(error.contains(&format!("`{bad}`")), "{error}");
    }
    assert_eq!("9223372036854775807".parse(), Ok(Token::MAX));
}

#[test]
fn texts_that_are_no_lock_name_are_refused() {
    let long = "x".repeat(256);
    for (bad, part) in [
        ("", "it is empty"),
        ("/a", "it has an empty segment"),
        ("a/", "it has an empty segment"),
        ("a//b", "it has an empty segment"),
        (".", "it has a `.` or `..` segment"),
        ("a/..", "it has a `.` or `..` segment"),
        ("a\nb", "it has a control character"),
        ("a\0", "it has a control character"),
        ("a\u{85}", "it has a control character"),
        (&long, "it is longer than 255 bytes"),
    ] {
        let error = LockName::new(bad).expect_err(bad).to_string();
        assert!(error.contains(part), "{error}");
    }
    for (bad, part) in [
        ("a/**/b", "`**` is not its last segment"),
        ("a/x*", "`*` shares a segment"),
        ("", "it is empty"),
    ] {
        let error = LockPattern::new(bad).expect_err(bad).to_string();
        assert!(error.contains(part), "{error}");
    }
}
