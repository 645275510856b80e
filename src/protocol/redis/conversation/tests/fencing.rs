//! The proxy's own command, tickets with users, and names.

use super::{Action, Change, ConversationSettings, FenceCommand, Plan, Send, Talk};
use super::{all, locks, rules, two_rules};
use crate::protocol::Code;

fn sent(plan: &Plan) -> String {
    match &plan.action {
        Action::Forward(Send::AsIs) => "as it came".to_owned(),
        Action::Forward(Send::Instead(bytes)) => {
            let text = String::from_utf8(bytes.clone()).unwrap();
            let args = text.split("\r\n").skip(2).step_by(2);
            args.collect::<Vec<_>>().join(" ")
        }
        Action::Forward(Send::Tail { head, from }) => {
            format!("{}+{from}", String::from_utf8_lossy(head).trim())
        }
        Action::Refuse(refusal) => refusal.code.as_str().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn tickets_of_the_connection_are_the_proxys_to_keep() {
    let mut talk = Talk::new(all());
    let plan = talk.plan("FENCE SET a,b");
    assert_eq!(plan.action, Action::Fence(FenceCommand::Set));
    assert_eq!(plan.tickets, ["a", "b"].map(Box::<str>::from));
    assert_eq!(
        talk.plan("fence clear").action,
        Action::Fence(FenceCommand::Clear)
    );
    assert_eq!(
        talk.plan("FENCE STATUS").action,
        Action::Fence(FenceCommand::Status)
    );
    assert_eq!(sent(&talk.plan("FENCE")), "invalid");
    // In its order among the replies.
    talk.client("GET a").client("FENCE STATUS").client("GET b");
    assert!(talk.answers().is_empty());
    talk.server("+a\r\n");
    talk.server("+b\r\n");
    assert_eq!(talk.answers(), ["+a\r\n", "+FENCE\r\n", "+b\r\n"]);
}

#[test]
fn a_ticket_for_one_command_is_taken_off_it() {
    let talk = Talk::new(two_rules());
    let plan = talk.plan("FENCE WITH t SET order 1");
    assert_eq!(sent(&plan), "*3+32");
    assert_eq!((&*plan.operation, locks(&plan)), ("set", vec!["orders"]));
    assert_eq!(plan.tickets, [Box::<str>::from("t")]);
    let inline = talk
        .plan_bytes(b"FENCE WITH t SET order \"1 2\"\r\n")
        .unwrap();
    let expected = b"*3\r\n$3\r\nSET\r\n$5\r\norder\r\n$3\r\n1 2\r\n".to_vec();
    assert_eq!(inline.action, Action::Forward(Send::Instead(expected)));
    for line in ["GET a", "BLPOP order 0", "PING", "FLUSHDB"] {
        let plan = talk.plan(&format!("FENCE WITH t {line}"));
        assert_ne!(sent(&plan), "invalid", "{line}");
    }
    for line in [
        "FENCE WITH t MULTI",
        "FENCE WITH t SELECT 1",
        "FENCE WITH t AUTH a b",
        "FENCE WITH t RESET",
        "FENCE WITH t SUBSCRIBE a",
        "FENCE WITH t FENCE SET u",
        "FENCE WITH t QUIT",
        "FENCE WITH t",
        "FENCE WITH t CLIENT REPLY OFF",
        "FENCE WITH t MONITOR",
        "FENCE WITH t WATCH a",
    ] {
        assert_eq!(sent(&talk.plan(line)), "invalid", "{line}");
    }
    assert_eq!(
        sent(&talk.plan("FENCE WITH t DEBUG SLEEP 0")),
        "unclassified"
    );
}

#[test]
fn an_inline_command_is_sent_as_it_was_read() {
    let talk = Talk::new(all());
    let plan = talk.plan_bytes(b"SET \"a b\" 'c'\r\n").unwrap();
    let expected = b"*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$1\r\nc\r\n".to_vec();
    assert_eq!(plan.action, Action::Forward(Send::Instead(expected)));
}

#[test]
fn a_ticket_behind_a_user_is_bound_when_the_server_takes_the_password() {
    let mut talk = Talk::new(all());
    let plan = talk.plan("AUTH app;fence=t1,t2 pw");
    assert_eq!((sent(&plan).as_str(), plan.barrier), ("AUTH app pw", true));
    assert_eq!(sent(&talk.plan("AUTH ;fence=t pw")), "AUTH pw");
    let bound = || Change::Tickets(vec!["t".into()]);
    assert_eq!(
        talk.both("AUTH app;fence=t pw", "-WRONGPASS no\r\n").change,
        Change::None
    );
    assert!(!talk.conversation.state().authenticated);
    assert_eq!(talk.both("AUTH app;fence=t pw", "+OK\r\n").change, bound());
    assert!(talk.conversation.state().authenticated);
    assert_eq!(talk.both("AUTH app pw", "+OK\r\n").change, Change::None);
    let hello = talk.plan("HELLO 3 AUTH app;fence=t pw SETNAME me");
    assert_eq!(sent(&hello), "HELLO 3 AUTH app pw SETNAME me");
    assert_eq!(
        sent(&talk.plan("HELLO 3 AUTH ;fence=t pw")),
        "HELLO 3 AUTH default pw"
    );
    let line = "HELLO 3 AUTH app;fence=t pw";
    assert_eq!(talk.both(line, "%1\r\n+proto\r\n:3\r\n").change, bound());
    assert_eq!(talk.conversation.state().resp, 3);
    assert_eq!(sent(&talk.plan("AUTH app pw")), "as it came");
    for line in [
        "AUTH app;fence= pw",
        "AUTH app;fence=t",
        "HELLO 3 AUTH app;fence=t",
        "AUTH a;fence=t b c",
        "HELLO 3 SETNAME x AUTH a;fence=t",
        "AUTH app pw;fence=t",
    ] {
        assert_eq!(sent(&talk.plan(line)), "invalid", "{line}");
    }
}

#[test]
fn the_clients_name_stands_behind_the_proxys() {
    let settings = ConversationSettings {
        name_prefix: Some((*b"rf|").into()),
        ..ConversationSettings::default()
    };
    let mut talk = Talk::with(all(), settings);
    assert_eq!(
        sent(&talk.plan("CLIENT SETNAME me")),
        "CLIENT SETNAME rf|me"
    );
    assert_eq!(sent(&talk.plan("CLIENT SETNAME a b")), "as it came");
    assert_eq!(
        sent(&talk.plan("HELLO 3 SETNAME me")),
        "HELLO 3 SETNAME rf|me"
    );
    assert_eq!(sent(&talk.plan("HELLO 3")), "as it came");
    talk.both("CLIENT GETNAME", "$5\r\nrf|me\r\n");
    talk.both("CLIENT LIST", "$1\r\n\n\r\n");
    let answers = talk.answers();
    assert!(
        answers[0].starts_with("Name(") && answers[1].starts_with("NameFields("),
        "{answers:?}"
    );
    talk.both("MULTI", "+OK\r\n");
    assert_eq!(sent(&talk.plan("CLIENT SETNAME me")), "unclassified");
    let mut plain = Talk::new(rules(&[]));
    assert_eq!(sent(&plain.plan("CLIENT SETNAME me")), "as it came");
    plain.both("CLIENT GETNAME", "$2\r\nme\r\n");
    assert_eq!(plain.answers(), ["$2\r\nme\r\n"]);
}

#[test]
fn a_redirection_never_reaches_the_client() {
    let mut talk = Talk::new(rules(&[]));
    let finished = talk.both("GET a", "-MOVED 15495 10.0.0.1:6379\r\n");
    assert!(!finished.succeeded);
    let answer = talk.answers().concat();
    assert!(
        answer.starts_with("-FENCEUNCLASS ") && !answer.contains("10.0.0.1"),
        "{answer}"
    );
    let refusal = super::super::refusal_reply(&crate::protocol::Refusal::unclassified("x"));
    assert!(refusal.starts_with(b"-FENCEUNCLASS"));
    assert_eq!(Code::Unclassified.as_str(), "unclassified");
}
