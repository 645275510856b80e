//! Classification: from a text to what each of its statements is, with Postgres's own grammar.
//!
//! # Which parser
//!
//! `pg_raw_parse` (libpg_query: the grammar of PostgreSQL 18.4 cut out of the server) and not
//! `pg_query`, which wraps the same C code: that one turns every tree into protobuf and back, which
//! is ten to twenty times the cost of the parse itself (21 us against 1.3 us for pgbench's UPDATE),
//! and the recursion of that conversion is where libpg_query overflows the stack (its issue 339,
//! its pull requests 348 and 366). Here only the parser proper runs, whose stack is on the heap and
//! bounded, and the tree is visited with a list ([`sweep`]): any thread's stack will do, whatever
//! the text. `sqlparser` is no choice: it takes texts that Postgres reads differently.
//!
//! Both crates need libclang to build (their bindings are made from the server's headers), and
//! nothing of it to run. The library's state is per thread; each thread that calls it takes one of
//! the process's 1024 thread-specific keys, so call it from threads that stay.
//!
//! # Older and newer servers
//!
//! A text that this grammar refuses is unknown, which is a write to everything. What it reads
//! otherwise than an older server does: calls that have a syntax of their own since 16 or 17
//! (`json_scalar(x)`, `json_object(x)`) are noted as calls. Literals with letters behind digits
//! (`1into t`), which servers before 15 split in two, are refused by this grammar.
//!
//! # What changes the meaning of bytes
//!
//! `standard_conforming_strings = off` makes backslashes escape, and a client encoding other than
//! UTF-8 makes other names of the same bytes. [`Lexing`] says what is certain; a text that would
//! depend on what is not is unknown.
//!
//! Pure, bounded, and safe to call on any bytes: a panic of the library's wrapper is caught and
//! makes the text unknown.

mod analysed;
mod cache;
mod call;
mod definition;
mod elsewhere;
mod filling;
mod locking;
mod session;
mod shape;
mod statement;
mod sweep;
mod utility;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use cache::{Classifier, ENTRIES_MAX, ROWS, TEXT_BYTES_CACHED_MAX, TEXTS_BYTES_MAX};
pub use call::TEXT_TYPES;
pub(super) use call::truth_of;
pub(super) use elsewhere::is_shared;
pub use filling::{Kin, Takes};
pub(super) use session::isolation;
pub use statement::{
    Argument, Class, Classified, Effect, FunctionUse, Isolation, OpenedCursor, RelationName,
    SessionControl, SetConfig, SetValue, Statement, Target, TransactionControl, TransactionModes,
    Unreadable, Uses,
};

/// Longest text that is parsed, in bytes. Parsing takes about 100 times the text in memory and
/// about 50 ns per byte.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// Most statements of one text that are looked at.
pub const STATEMENTS_MAX: usize = 10_000;

/// What is certain about the meaning of a text's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lexing {
    /// `standard_conforming_strings` is on, and nothing on its way can have changed it.
    pub standard_strings: bool,
    /// Client and server encoding are UTF-8, and nothing on its way can have changed that.
    pub utf8: bool,
    /// The client's encoding has no byte of ASCII within another character, whichever it is, and
    /// nothing on its way can have changed that.
    pub ascii_safe: bool,
}

impl Lexing {
    /// Everything is certain: what a session begins with as a rule.
    pub const CERTAIN: Lexing = Lexing {
        standard_strings: true,
        utf8: true,
        ascii_safe: true,
    };

    /// The text, where its meaning is certain.
    pub fn read(self, text: &[u8]) -> Result<&str, Unreadable> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(Unreadable::TooLong);
        }
        if !self.standard_strings && text.contains(&b'\\') {
            return Err(Unreadable::Backslash);
        }
        if !self.utf8 && !text.is_ascii() {
            return Err(Unreadable::Encoding);
        }
        std::str::from_utf8(text).map_err(|_| Unreadable::Encoding)
    }
}

/// Classifies a text. [`Classifier`] remembers what it finds.
pub fn classify(text: &[u8], lexing: Lexing) -> Classified {
    match lexing.read(text) {
        Ok(text) => classify_text(text),
        Err(why) => Classified::unread(why, text),
    }
}

fn classify_text(text: &str) -> Classified {
    // The wrapper panics where a node is not of the kind that its comments promise.
    let parsed = catch_unwind(AssertUnwindSafe(|| parse(text)));
    parsed
        .unwrap_or(Err(Unreadable::Failed))
        .unwrap_or_else(|why| Classified::unread(why, text.as_bytes()))
}

fn parse(text: &str) -> Result<Classified, Unreadable> {
    let tree = pg_raw_parse::parse(text).map_err(|_| Unreadable::Syntax)?;
    if tree.len() > STATEMENTS_MAX {
        return Err(Unreadable::TooMany);
    }
    let mut statements = Vec::with_capacity(tree.len());
    for raw in tree.iter() {
        let start = usize::try_from(raw.stmt_location).unwrap_or(0);
        let end = match usize::try_from(raw.stmt_len) {
            Ok(bytes) if bytes > 0 => start + bytes,
            // Up to the end.
            _ => text.len(),
        };
        let mut statement = utility::classify(raw.stmt(), start..end.min(text.len()));
        if let Class::Unknown(_) = statement.class {
            statement.uses.every_database = elsewhere::may_be_in(text.as_bytes());
        }
        statements.push(Arc::new(statement));
    }
    Ok(Classified { statements })
}

#[cfg(test)]
mod tests;
