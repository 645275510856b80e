//! Whether the meaning of a text's bytes is certain: `standard_conforming_strings` and the
//! encodings, which the server reports when they change (PostgreSQL docs 54.2.7), at the latest
//! before the ReadyForQuery of the span that changed them.

use super::span::SpanId;
use crate::protocol::postgres::classify::{
    Argument, Class, Lexing, SessionControl, Statement, TransactionControl,
};

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone, PartialEq))]
pub(super) struct LexingState {
    standard_strings: bool,
    client_utf8: bool,
    server_utf8: bool,
    ascii_safe: bool,
    /// A span up to this one may change it.
    touched: Option<SpanId>,
    /// A span up to this one set it: an error may take that back until no transaction is open.
    held: Option<SpanId>,
    /// A value other than the safe one was told since a transaction was last not open.
    unsafe_strings: bool,
    /// The same for the encodings.
    unsafe_encoding: bool,
    /// One that is not safe for ASCII either.
    unsafe_ascii: bool,
}

/// Encodings whose characters beyond ASCII have no byte of ASCII, by the names that the server
/// tells (PostgreSQL docs 24.3.1). The others are Shift JIS, Big5, GBK, UHC, GB18030 and JOHAB.
const ASCII_SAFE: [&str; 34] = [
    "EUC_CN",
    "EUC_JIS_2004",
    "EUC_JP",
    "EUC_KR",
    "EUC_TW",
    "ISO_8859_5",
    "ISO_8859_6",
    "ISO_8859_7",
    "ISO_8859_8",
    "KOI8R",
    "KOI8U",
    "LATIN1",
    "LATIN10",
    "LATIN2",
    "LATIN3",
    "LATIN4",
    "LATIN5",
    "LATIN6",
    "LATIN7",
    "LATIN8",
    "LATIN9",
    "SQL_ASCII",
    "UTF8",
    "WIN1250",
    "WIN1251",
    "WIN1252",
    "WIN1253",
    "WIN1254",
    "WIN1255",
    "WIN1256",
    "WIN1257",
    "WIN1258",
    "WIN866",
    "WIN874",
];

impl LexingState {
    pub(super) fn certain(&self) -> Lexing {
        let settled = self.touched.is_none() && self.held.is_none();
        let encoding = self.client_utf8 && self.server_utf8 && !self.unsafe_encoding;
        Lexing {
            standard_strings: settled && self.standard_strings && !self.unsafe_strings,
            utf8: settled && encoding,
            ascii_safe: settled && self.ascii_safe && !self.unsafe_ascii,
        }
    }

    /// ParameterStatus before the session begins.
    pub(super) fn begins_with(&mut self, name: &[u8], value: &[u8]) {
        self.told(name, value);
        self.settle(0, true);
    }

    /// ParameterStatus.
    pub(super) fn told(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"standard_conforming_strings" => self.standard_strings = value == b"on",
            b"client_encoding" => {
                self.client_utf8 = value == b"UTF8";
                self.ascii_safe = ASCII_SAFE.iter().any(|name| value == name.as_bytes());
            }
            b"server_encoding" => self.server_utf8 = value == b"UTF8",
            _ => {}
        }
        self.unsafe_strings |= !self.standard_strings;
        self.unsafe_encoding |= !self.client_utf8;
        self.unsafe_ascii |= !self.ascii_safe;
    }

    /// A span up to this one may change it, by taking back what was set.
    pub(super) fn touch(&mut self, span: SpanId) {
        self.touched = Some(span);
    }

    /// A span up to this one may set it.
    pub(super) fn hold(&mut self, span: SpanId) {
        self.held = Some(span);
        self.touched = Some(span);
    }

    /// A span ended; `idle`: no transaction is open.
    pub(super) fn settle(&mut self, span: SpanId, idle: bool) {
        let later = |it: &SpanId| *it > span + 1;
        self.touched = self.touched.filter(later);
        if idle {
            self.held = self.held.filter(later);
            self.unsafe_strings = !self.standard_strings;
            self.unsafe_encoding = !self.client_utf8;
            self.unsafe_ascii = !self.ascii_safe;
        }
    }
}

const LEXING: [&str; 2] = ["standard_conforming_strings", "client_encoding"];

/// Whether a statement may take back what was set.
pub(super) fn may_take_back(statement: &Statement) -> bool {
    match &statement.class {
        Class::Transaction(control) => !matches!(
            control,
            TransactionControl::Begin(_) | TransactionControl::Savepoint(_)
        ),
        _ => false,
    }
}

/// Whether a statement may set the meaning of the texts after it.
pub(super) fn may_set(statement: &Statement) -> bool {
    let named = |name: &str| LEXING.contains(&name) || name == "names";
    let by_class = match &statement.class {
        Class::Session(control) => match control {
            SessionControl::Set { name, .. } | SessionControl::Reset(name) => named(name),
            SessionControl::ResetAll | SessionControl::DiscardAll => true,
            _ => false,
        },
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
