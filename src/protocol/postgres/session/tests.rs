use std::sync::Arc;

use super::{Considered, Deliver, Message, Session, Unexpected, may_turn_read_write};
use crate::protocol::postgres::classify::{Classified, Isolation, Lexing, Unreadable, classify};
use crate::protocol::postgres::frame::{
    BackendMessage, Bind, BindHead, ClosedKind, FrontendMessage, TransactionStatus, error_response,
};
use crate::protocol::postgres::ticket::Tickets;
use crate::protocol::postgres::ticket::change::Doubts;
use crate::protocol::postgres::ticket::scope::Settings;
use crate::protocol::refusal::Refusal;

const I: TransactionStatus = TransactionStatus::Idle;
const T: TransactionStatus = TransactionStatus::InTransaction;
const E: TransactionStatus = TransactionStatus::Failed;

/// A session whose server's answers are given by the tests.
struct Driven(Session);

impl Driven {
    fn new() -> Driven {
        let mut session = Session::new(Settings::new(
            Tickets::default(),
            Some(["public".into()].into()),
            Isolation::PerStatement,
        ));
        session.parameter(b"standard_conforming_strings", b"on");
        session.parameter(b"client_encoding", b"UTF8");
        session.parameter(b"server_encoding", b"UTF8");
        session.doubt(Doubts::NONE);
        Driven(session)
    }

    fn consider_query(&self, text: &str) -> Result<Considered, Refusal> {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        self.0
            .consider(Message::Query(text.as_bytes(), &classified))
    }

    fn query(&mut self, text: &str) -> Considered {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        self.send(Message::Query(text.as_bytes(), &classified))
    }

    fn send(&mut self, message: Message<'_>) -> Considered {
        let considered = consider(&mut self.0, message).unwrap();
        self.0.forward(&considered);
        Considered::clone(&considered)
    }

    fn parse(&mut self, name: &str, text: &str) {
        let classified = classify(text.as_bytes(), Lexing::CERTAIN);
        self.send(Message::Parse(
            name.as_bytes(),
            text.as_bytes(),
            &classified,
        ));
    }

    fn bind(&mut self, portal: &str, statement: &str) {
        self.send(bind(portal, statement));
    }

    fn execute(&mut self, portal: &str) -> Considered {
        self.send(Message::Execute(portal.as_bytes()))
    }

    /// Parse, Bind and Execute of the unnamed statement.
    fn run(&mut self, text: &str) -> Considered {
        self.parse("", text);
        self.bind("", "");
        self.execute("")
    }

    fn sync(&mut self) {
        self.send(Message::Sync);
    }

    fn try_reply(&mut self, message: BackendMessage<'_>) -> Result<Deliver, Unexpected> {
        let reply = self.0.reply(&message);
        self.0.catch_up();
        reply.map(|reply| reply.deliver)
    }

    fn reply(&mut self, message: BackendMessage<'_>) -> Deliver {
        self.try_reply(message).unwrap()
    }

    fn done(&mut self, tag: &str) -> Deliver {
        self.reply(BackendMessage::CommandComplete {
            tag: tag.as_bytes(),
        })
    }

    /// ParseComplete, BindComplete, CommandComplete.
    fn ran(&mut self, tag: &str) {
        self.reply(BackendMessage::ParseComplete);
        self.reply(BackendMessage::BindComplete);
        self.done(tag);
    }

    fn error(&mut self) -> Deliver {
        let bytes = error_response(&[(b'C', "XX000")]);
        self.reply(BackendMessage::read(b'E', &bytes[5..]).unwrap())
    }

    /// The span up to which permits end.
    fn ready(&mut self, status: TransactionStatus) -> Option<u64> {
        let reply = self
            .0
            .reply(&BackendMessage::ReadyForQuery(status))
            .unwrap();
        self.0.catch_up();
        assert_eq!(reply.deliver, Deliver::Pass);
        reply.ended
    }

    fn did(&mut self, text: &str, tag: &str, status: TransactionStatus) -> Considered {
        let considered = self.query(text);
        self.done(tag);
        self.ready(status);
        considered
    }

    fn tickets(&self) -> String {
        self.0.settings().tickets.as_slice().join(",")
    }
}

/// What a message does: recalled, which debug builds check, or found and remembered.
fn consider(session: &mut Session, message: Message<'_>) -> Result<Arc<Considered>, Refusal> {
    if let Some(considered) = session.recall(message) {
        return Ok(considered);
    }
    let considered = Arc::new(session.consider(message)?);
    session.remember(message, &considered);
    Ok(considered)
}

/// A Bind without values.
fn bind<'m>(portal: &'m str, statement: &'m str) -> Message<'m> {
    Message::BindHead(BindHead {
        portal: portal.as_bytes(),
        statement: statement.as_bytes(),
        has_values: false,
    })
}

fn of(considered: &Considered) -> Vec<String> {
    let runs = considered.runs.iter();
    runs.map(|run| run.tickets.as_slice().join(",")).collect()
}

mod copies;
mod names;
mod random;
mod recall;
mod refusals;
mod replies;
mod rollbacks;
mod settings;
mod snapshots;
mod transactions;
mod uncertain;
