//! Redis and Valkey: RESP2, RESP3 and inline commands.
//!
//! | module | what it does |
//! |---|---|
//! | [`request`] | finds requests and their arguments in the bytes of a client |
//! | [`reply`] | finds replies in the bytes of a server, and tells what they are |
//! | [`value`] | a whole reply as a tree |
//! | [`table`] | the server's own command table, with what it does not tell laid over it |
//! | [`rules`] | which keys which locks guard |
//! | [`conversation`] | one connection: what becomes of a command, whose reply this is |
//!
//! Invariant: a write is never taken for a read, and a write that a rule covers is never passed as
//! uncovered; where the server's table, a script or a name that nobody knows leaves it open, it is
//! a write to everything. What is not understood is refused: a reply that answers nothing ends the
//! connection.

pub mod conversation;
pub mod reply;
pub mod request;
pub mod rules;
pub mod table;
pub mod value;

mod args;
mod brief;
mod class;
mod database;
mod encode;
mod fence;
mod filter;
mod inline;
mod key_pattern;
mod key_spec;
mod number;
mod options;
mod overrides;
mod pushed;
mod refusal;
mod reply_head;
mod reserved;
mod treatment;

pub use args::Args;
pub use conversation::{
    Action, Change, ConnectionState, Conversation, ConversationSettings, Delivery, Finished, Owed,
    Plain, Plan, Send, Unexpected,
};
pub use database::Databases;
pub use encode::command as encode_command;
pub use fence::FenceCommand;
pub use filter::{Filter, Filtered};
pub use key_pattern::KeyPattern;
pub use key_spec::NeedsMore;
pub use refusal::{code_word, refusal_reply};
pub use reply::{ReplyError, ReplyProgress, ReplyScanner, ReplyStreamed};
pub use reply_head::{Redirect, ReplyEnd, ReplyHead};
pub use request::{ProtocolError, RequestLimits, RequestProgress, RequestScanner, Streamed};
pub use reserved::{ReservedKeys, Scripts};
pub use rules::{RedisRule, RedisRules};
pub use table::{CommandClass, CommandTable, InvalidTable};
pub use value::Value;
