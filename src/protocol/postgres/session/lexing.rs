//! Whether the meaning of a text's bytes is certain: `standard_conforming_strings` and the
//! encodings, which the server reports when they change (PostgreSQL docs 54.2.7), at the latest
//! before the ReadyForQuery of the span that changed them.

use super::span::SpanId;
use crate::protocol::postgres::classify::{
    Argument, Class, Lexing, SessionControl, Statement, TransactionControl,
};

#[derive(Debug, Default)]
pub(super) struct LexingState {
    standard_strings: bool,
    client_utf8: bool,
    server_utf8: bool,
    /// A span up to this one may change it.
    touched: Option<SpanId>,
}

impl LexingState {
    pub(super) fn certain(&self) -> Lexing {
        let settled = self.touched.is_none();
        Lexing {
            standard_strings: settled && self.standard_strings,
            utf8: settled && self.client_utf8 && self.server_utf8,
        }
    }

    /// ParameterStatus.
    pub(super) fn told(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"standard_conforming_strings" => self.standard_strings = value == b"on",
            b"client_encoding" => self.client_utf8 = value == b"UTF8",
            b"server_encoding" => self.server_utf8 = value == b"UTF8",
            _ => {}
        }
    }

    pub(super) fn touch(&mut self, span: SpanId) {
        self.touched = Some(span);
    }

    /// A span ended.
    pub(super) fn settle(&mut self, span: SpanId) {
        if self.touched.is_some_and(|touched| touched <= span + 1) {
            self.touched = None;
        }
    }
}

const LEXING: [&str; 2] = ["standard_conforming_strings", "client_encoding"];

/// Whether a statement may change the meaning of the texts after it.
pub(super) fn may_change(statement: &Statement) -> bool {
    let named = |name: &str| LEXING.contains(&name) || name == "names";
    let by_class = match &statement.class {
        Class::Session(control) => match control {
            SessionControl::Set { name, .. } | SessionControl::Reset(name) => named(name),
            SessionControl::ResetAll | SessionControl::DiscardAll => true,
            SessionControl::Execute => true,
            _ => false,
        },
        Class::Transaction(TransactionControl::Begin(_) | TransactionControl::Savepoint(_)) => {
            false
        }
        // What was set in it may be taken back.
        Class::Transaction(_) => true,
        _ => false,
    };
    let by_call = statement
        .uses
        .set_configs
        .iter()
        .any(|call| match &call.name {
            Argument::Text(name, _) => named(&name.to_ascii_lowercase()),
            _ => true,
        });
    by_class || by_call
}
