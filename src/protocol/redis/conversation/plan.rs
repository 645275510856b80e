//! What is to become of one command.

use std::sync::Arc;

use bytes::BytesMut;

use super::super::encode;
use super::super::fence::FenceCommand;
use super::super::filter::Filter;
use super::super::treatment::Channels;
use super::withheld::ReplyMode;
use crate::lock_name::LockName;
use crate::protocol::{Kind, Refusal};

/// What is to become of one command. It is handed back to the conversation when that is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The command's name in lower case, with its subcommand as `client|list`: for the audit.
    pub operation: Arc<str>,
    /// Read or write.
    pub kind: Kind,
    /// The locks that rules name for it: sorted, each once. A write needs a current ticket for
    /// each; on a read they tell which lock a bare token is for. `EXEC` has those of all that was
    /// queued.
    pub locks: Vec<LockName>,
    /// The tickets that it carries itself, not verified: of `FENCE SET` and `AUTH` they are the
    /// connection's from its success on, of `FENCE WITH` they are for this command alone.
    pub tickets: Vec<Box<str>>,
    /// What to do.
    pub action: Action,
    /// Why it would be refused, were not all forwarded.
    pub would_refuse: Option<Box<Refusal>>,
    /// It may wait at the server for as long as it likes.
    pub blocks: bool,
    /// It needs, or makes, a backend connection of its own.
    pub pins: bool,
    /// Nothing that follows may be planned before its reply has been delivered.
    pub barrier: bool,
    /// It may be sent only while nothing is unanswered: Redis 7.2 and later leave out the reply to
    /// a failed AUTH where other replies wait to be sent (redis/redis issue 15640).
    pub alone: bool,
    pub(super) effect: Effect,
    pub(super) expect: Expect,
    pub(super) deliver: Deliver,
}

/// What to do with a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send it to the backend, once its locks are admitted.
    Forward(Send),
    /// The proxy does this itself, then answers.
    Fence(FenceCommand),
    /// The proxy answers this.
    Answer(Vec<u8>),
    /// It is refused.
    Refuse(Refusal),
}

/// Which bytes to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Send {
    /// The request's own.
    AsIs,
    /// These, then the request's from this offset on. It can be streamed.
    Tail {
        /// The new beginning.
        head: Vec<u8>,
        /// Bytes of the request that it stands for.
        from: usize,
    },
    /// These alone. The request is there whole.
    Instead(Vec<u8>),
}

impl Send {
    /// Appends them to what is to be sent, of this request or of its beginning.
    pub fn write(&self, request: &[u8], to: &mut BytesMut) {
        match self {
            Send::AsIs => to.extend_from_slice(request),
            Send::Tail { head, from } => {
                to.extend_from_slice(head);
                to.extend_from_slice(&request[*from..]);
            }
            Send::Instead(whole) => to.extend_from_slice(whole),
        }
    }
}

/// What the success of a command changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    None,
    Select(u32),
    Auth,
    Hello { version: Option<u8>, auth: bool },
    Reset,
    Quit,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Monitor,
    ReplyMode(ReplyMode),
    ClientState,
}

/// Which replies are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expect {
    One,
    /// One for each channel; none: as many as there are subscriptions.
    Confirmations {
        channels: Channels,
        subscribes: bool,
        left: Option<u64>,
    },
}

/// What the client gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Deliver {
    AsIs,
    Filtered(Filter),
    Instead(Vec<u8>),
}

impl Plan {
    /// Whether its success changes which user the connection has.
    pub fn logs_in(&self) -> bool {
        matches!(self.effect, Effect::Auth | Effect::Hello { auth: true, .. })
    }

    /// Whether it is about the writes of its own backend connection: `WAIT`, `WAITAOF`.
    pub fn is_wait(&self) -> bool {
        matches!(&*self.operation, "wait" | "waitaof")
    }

    pub(super) fn new(operation: Arc<str>, action: Action) -> Plan {
        Plan {
            operation,
            kind: Kind::Read,
            locks: vec![],
            tickets: vec![],
            action,
            would_refuse: None,
            blocks: false,
            pins: false,
            barrier: false,
            alone: false,
            effect: Effect::None,
            expect: Expect::One,
            deliver: Deliver::AsIs,
        }
    }

    pub(super) fn refuse(operation: Arc<str>, refusal: Refusal) -> Plan {
        Plan::new(operation, Action::Refuse(refusal))
    }

    pub(super) fn forward(operation: Arc<str>) -> Plan {
        Plan::new(operation, Action::Forward(Send::AsIs))
    }

    /// Sends this command instead.
    pub(super) fn instead(self, args: &[impl AsRef<[u8]>]) -> Plan {
        Plan {
            action: Action::Forward(Send::Instead(encode::command(args))),
            ..self
        }
    }
}
