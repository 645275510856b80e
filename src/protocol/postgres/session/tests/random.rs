//! Random conversations.

use super::{
    BackendMessage, ClosedKind, Driven, E, I, Lexing, Message, Session, T, Tickets, classify,
    consider,
};
use crate::protocol::postgres::session::Forward;
use proptest::prelude::{Strategy, prop, prop_oneof, proptest};

fn step() -> impl Strategy<Value = u8> {
    prop_oneof![0_u8..28]
}

proptest! {
    /// Whatever client and server send: no panic, and a session that was given up stays refused.
    #[test]
    fn no_order_of_messages_makes_it_panic(steps in prop::collection::vec(step(), 0..60)) {
        let mut it = Driven::new();
        let rows = ["SELECT 1", "UPDATE t SET a = 1"];
        let known = rows.map(|text| classify(text.as_bytes(), Lexing::CERTAIN));
        for step in steps {
            let texts = ["BEGIN", "COMMIT", "SET ringfence.token = 'a'", "COPY t FROM STDIN"];
            let message = match step {
                0..4 => {
                    let text = texts[usize::from(step)];
                    let classified = classify(text.as_bytes(), Lexing::CERTAIN);
                    let message = Message::Parse(b"", text.as_bytes(), &classified);
                    forward_or_refuse(&mut it.0, message);
                    continue;
                }
                24..28 => {
                    let which = usize::from(step % 2);
                    let (text, known) = (rows[which], &known[which]);
                    let message = match step {
                        24 | 25 => Message::Query(text.as_bytes(), known),
                        _ => Message::Parse(b"", text.as_bytes(), known),
                    };
                    forward_or_refuse(&mut it.0, message);
                    continue;
                }
                4 => super::bind("", ""),
                5 => Message::Execute(b""),
                6 => Message::Sync,
                7 => Message::CopyEnd,
                20 => Message::Describe(ClosedKind::Portal, b""),
                21 => Message::Close(ClosedKind::Portal, b""),
                8 => Message::Close(ClosedKind::Statement, b""),
                9 => {
                    let classified = classify(b"ROLLBACK", Lexing::CERTAIN);
                    forward_or_refuse(&mut it.0, Message::Query(b"ROLLBACK", &classified));
                    continue;
                }
                10 => {
                    if it.0.is_quiet() && it.0.in_transaction() {
                        it.0.roll_back(vec![]);
                    }
                    continue;
                }
                _ => {
                    let reply = match step {
                        11 => BackendMessage::ParseComplete,
                        12 => BackendMessage::BindComplete,
                        13 => BackendMessage::CommandComplete { tag: b"ROLLBACK" },
                        14 => BackendMessage::CommandComplete { tag: b"COMMIT" },
                        15 => BackendMessage::CopyIn,
                        16 => BackendMessage::ReadyForQuery(T),
                        17 => BackendMessage::ReadyForQuery(E),
                        18 => BackendMessage::read(b'E', b"\0").unwrap(),
                        19 => BackendMessage::CloseComplete,
                        _ => BackendMessage::ReadyForQuery(I),
                    };
                    if it.0.reply(&reply).is_err() {
                        return Ok(());
                    }
                    continue;
                }
            };
            forward_or_refuse(&mut it.0, message);
        }
    }
}

fn forward_or_refuse(session: &mut Session, message: Message<'_>) {
    let mut short = session.clone();
    if short.pass(message) {
        let considered = session.consider(message).unwrap();
        assert!(considered.runs.is_empty() && considered.analyses.is_empty());
        assert!(considered.presents.iter().all(Tickets::is_empty));
        assert_eq!(session.forward(&considered), Forward::default());
        assert_eq!(*session, short);
        return;
    }
    assert_eq!(*session, short);
    match consider(session, message) {
        Ok(considered) if considered.rolled_back && !considered.only_rolls_back() => {
            session.refuse(&considered, vec![]);
        }
        Ok(considered) => {
            session.forward(&considered);
        }
        Err(_) => {
            let unread = session.unread(message);
            session.refuse(&unread, vec![]);
        }
    }
}
