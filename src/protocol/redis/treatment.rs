//! How a command is treated whose flags do not tell.

use super::table::CommandClass;

/// How a command is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Treatment {
    /// It cannot change data: flagged neither `write` nor `readonly`, or its keys are only read.
    Read,
    /// It changes something, but nothing that has a key: no rule can cover it.
    Keyless,
    /// It can change any key of any database, or what commands do with them.
    Server,
    /// It is not let through, for this reason.
    Denied,
    /// It is taken apart by hand.
    Special(Special),
}

/// Commands that are taken apart by hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Special {
    // Data.
    Eval {
        writes: bool,
    },
    Sort,
    GeoRadius {
        options: usize,
    },
    XRead {
        writes: bool,
    },
    BitField,
    Copy,
    Move,
    SwapDb,
    FlushDb,
    Keys,
    Scan,
    RandomKey,
    AclLog,
    SlowLog,
    Wait,
    // The state of the connection.
    Select,
    Auth,
    Hello,
    Reset,
    Quit,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    Subscribe(Channels),
    Unsubscribe(Channels),
    Monitor,
    ClientReply,
    ClientSetName,
    ClientGetName,
    ClientList,
    /// Anything else that the server keeps with a connection.
    ClientState,
}

impl Special {
    /// What is known of it without its arguments.
    pub(super) fn class(self) -> CommandClass {
        match self {
            Special::Eval { writes: false }
            | Special::XRead { writes: false }
            | Special::Keys
            | Special::Scan
            | Special::RandomKey
            | Special::SlowLog
            | Special::Wait => CommandClass::Read,
            Special::Eval { writes: true }
            | Special::Sort
            | Special::GeoRadius { .. }
            | Special::BitField
            | Special::AclLog => CommandClass::ByArguments,
            Special::XRead { writes: true } | Special::Copy | Special::Move => CommandClass::Write,
            Special::SwapDb | Special::FlushDb => CommandClass::Whole,
            _ => CommandClass::Connection,
        }
    }
}

/// What is subscribed to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Channels {
    Plain,
    Patterns,
    Shards,
}
