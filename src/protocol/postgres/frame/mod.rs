//! Framing of the frontend/backend protocol, versions 3.0 and 3.2 (PostgreSQL docs 54.7).
//!
//! Bytes come in any chunks; [`Decoder`] says what is whole, what streams, and how many bytes are
//! still wanted. It keeps no bytes of its own: the shell owns the buffer, forwards what it is given
//! and drops what was consumed.
//!
//! Invariants: a declared length is checked before anything waits or reserves for it; what is taken
//! for one message here is one message for the server and for libpq, whatever the bytes; nothing
//! panics on bytes from a peer.

mod backend;
mod decoder;
mod fields;
mod first;
mod frontend;
mod write;

pub use backend::{
    Authentication, BackendMessage, ErrorFields, NegotiateProtocolVersion, TransactionStatus,
};
pub use decoder::{Decoder, Next, Side};
pub use first::{FirstPacket, Opening, StartupPacket, Version};
pub use frontend::{Bind, BindHead, ClosedKind, FrontendMessage, Parse};
pub use write::{
    backend_key_data, bind, cancel_request, close_portal, close_statement, copy_fail,
    error_response, execute, flush, message, notice_response, parse, query, rewrite_bind,
    rewrite_parse, rewrite_startup, sasl_mechanisms, ssl_request, startup, sync, terminate,
};

/// Most bytes of a message that is given whole; a longer one streams.
pub const WHOLE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a long message that are waited for before it streams, so that names in it are there:
/// the names of Parse and Bind come first.
pub const HEAD_BYTES: usize = 4 << 10;

/// Longest payload of a message that carries data: what the server allocates at most (1 GB, less
/// one byte: `MaxAllocSize`).
pub const PAYLOAD_BYTES_MAX: usize = 0x3fff_ffff;

/// Longest payload of the other messages of a client: the server's `PQ_SMALL_MESSAGE_LIMIT`.
pub const SMALL_PAYLOAD_BYTES_MAX: usize = 10_000;

/// Longest answer of a client to a request for authentication: the server's
/// `PG_MAX_AUTH_TOKEN_LENGTH`.
pub const AUTH_PAYLOAD_BYTES_MAX: usize = 65_535;

/// Longest first packet without its length: the server's `MAX_STARTUP_PACKET_LENGTH`.
pub const FIRST_PACKET_BYTES_MAX: usize = 10_000;

/// Longest key of a CancelRequest, in bytes (protocol 3.2).
pub const CANCEL_KEY_BYTES_MAX: usize = 256;

/// Bytes that are not the protocol. The connection cannot go on: where the next message begins is
/// not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A length below the smallest.
    #[error("invalid length {length} of {what}")]
    Length {
        /// Of which message or packet.
        what: &'static str,
        /// What it says.
        length: i64,
    },
    /// A length above what is taken.
    #[error("{what} of {bytes} bytes is longer than {max}")]
    TooLong {
        /// Which message or packet.
        what: &'static str,
        /// Its payload.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A type that this side never sends.
    #[error("unknown message type {tag:#04x}")]
    UnknownType {
        /// The type byte.
        tag: u8,
    },
    /// A payload that is not what its type says.
    #[error("malformed {what}: {reason}")]
    Malformed {
        /// Which message.
        what: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An upgrade that was asked for twice, or within TLS.
    #[error("{what} was already negotiated")]
    Repeated {
        /// `TLS` or `GSSAPI encryption`.
        what: &'static str,
    },
    /// Bytes that came in the clear before a handshake, and could pass for encrypted ones
    /// (CVE-2021-23214, CVE-2021-43767).
    #[error("received {bytes} unencrypted bytes after the request for TLS")]
    BeforeHandshake {
        /// How many.
        bytes: usize,
    },
    /// A protocol that is not 3.x.
    #[error("unsupported frontend protocol {major}.{minor}")]
    Version {
        /// Its major version.
        major: u16,
        /// Its minor version.
        minor: u16,
    },
}

pub(super) fn malformed(what: &'static str, reason: &'static str) -> FrameError {
    FrameError::Malformed { what, reason }
}

#[cfg(test)]
mod tests;
