//! What is run without its text: nothing is known of it.

use std::sync::Arc;

use super::span::Step;
use super::{Considered, Kind, Run, Session};
use crate::protocol::postgres::classify::{Class, Statement, Unreadable};
use crate::protocol::postgres::ticket::Tickets;

impl Session {
    /// A statement of which nothing is known. Only the client's own messages prepare such as are
    /// about databases: what SQL within a function prepares is not.
    pub(super) fn unknown(&self) -> Statement {
        let mut unknown = Statement::unreadable(Unreadable::Failed, 0);
        unknown.uses.every_database = self.prepares_about_databases;
        unknown
    }

    /// A function call of the protocol: which function it is tells only the catalog.
    pub(super) fn consider_function(&self) -> Considered {
        let statement = Arc::new(Statement {
            operation: "function call",
            class: Class::Write,
            ..Statement::unreadable(Unreadable::Failed, 0)
        });
        let now = self.ahead.scope.now();
        Considered {
            runs: vec![Run {
                statement,
                executed: vec![],
                tickets: now.tickets.clone(),
                comment: Tickets::default(),
                search_path: self.path_in(&self.ahead),
            }],
            asks: self.asks(),
            may_commit: !self.ahead.is_explicit() || self.is_behind(),
            steps: vec![Step::Function],
            ..self.considered(Kind::Query)
        }
    }
}
