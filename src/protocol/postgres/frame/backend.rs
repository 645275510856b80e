//! What servers send, as far as a proxy must understand it (PostgreSQL docs 54.7, 54.8).

use super::fields::Fields;
use super::{FrameError, Version, malformed};

/// A message of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BackendMessage<'b> {
    /// `R`.
    Authentication(Authentication<'b>),
    /// `K`: whom a CancelRequest names.
    BackendKeyData {
        /// The process.
        process: i32,
        /// The secret: 4 bytes in protocol 3.0, up to 256 in 3.2.
        key: &'b [u8],
    },
    /// `v`.
    NegotiateProtocolVersion(NegotiateProtocolVersion<'b>),
    /// `S`: name and value. May come at any time.
    ParameterStatus {
        /// The parameter.
        name: &'b [u8],
        /// Its value.
        value: &'b [u8],
    },
    /// `Z`: it waits for the next query.
    ReadyForQuery(TransactionStatus),
    /// `C`: a statement is complete.
    CommandComplete {
        /// `INSERT 0 1`, `ROLLBACK`.
        tag: &'b [u8],
    },
    /// `I`: a text without a statement is complete.
    EmptyQueryResponse,
    /// `s`: the portal has more rows.
    PortalSuspended,
    /// `1`.
    ParseComplete,
    /// `2`.
    BindComplete,
    /// `3`.
    CloseComplete,
    /// `n`.
    NoData,
    /// `t`.
    ParameterDescription,
    /// `T`.
    RowDescription,
    /// `D`.
    DataRow,
    /// `E`.
    Error(ErrorFields<'b>),
    /// `N`. May come at any time.
    Notice(ErrorFields<'b>),
    /// `A`. May come at any time.
    Notification,
    /// `G`: the server wants CopyData.
    CopyIn,
    /// `H`: CopyData follows.
    CopyOut,
    /// `W`: both ways, in replication.
    CopyBoth,
    /// `d`.
    CopyData,
    /// `c`.
    CopyDone,
    /// `V`.
    FunctionCallResponse,
    /// A type that this version does not know. It is forwarded.
    Other(u8),
}

/// A transaction's state at the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionStatus {
    /// `I`: none.
    Idle,
    /// `T`: in a transaction block.
    InTransaction,
    /// `E`: in one that failed; it takes nothing but its end.
    Failed,
}

/// What a server asks for (`R`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Authentication<'b> {
    /// 0: nothing more.
    Ok,
    /// 3.
    CleartextPassword,
    /// 5, with its salt.
    Md5Password([u8; 4]),
    /// 10: SASL, with the names of its mechanisms.
    Sasl(Vec<&'b [u8]>),
    /// 11.
    SaslContinue(&'b [u8]),
    /// 12.
    SaslFinal(&'b [u8]),
    /// Any other code: GSSAPI, SSPI.
    Other(i32),
}

/// The server speaks an older minor version, or does not know some `_pq_.` parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NegotiateProtocolVersion<'b> {
    /// The newest that it speaks.
    pub version: Version,
    /// What it does not know.
    pub unknown: Vec<&'b [u8]>,
}

/// The fields of ErrorResponse and NoticeResponse (PostgreSQL docs 54.8): type and text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorFields<'b>(Vec<(u8, &'b [u8])>);

impl<'b> ErrorFields<'b> {
    fn read(payload: &'b [u8]) -> Result<ErrorFields<'b>, FrameError> {
        let mut fields = Fields::new("ErrorResponse", payload);
        let mut found = vec![];
        loop {
            match fields.byte()? {
                0 => return fields.end().map(|()| ErrorFields(found)),
                kind => found.push((kind, fields.text()?)),
            }
        }
    }

    /// The text of a field: `b'C'` is the SQLSTATE, `b'M'` the message. A server need not send
    /// any one of them.
    pub fn get(&self, kind: u8) -> Option<&'b [u8]> {
        let (_, text) = self.0.iter().find(|(known, _)| *known == kind)?;
        Some(text)
    }

    /// The SQLSTATE.
    pub fn sqlstate(&self) -> Option<&'b [u8]> {
        self.get(b'C')
    }

    /// Whether the server ends the session with it.
    pub fn is_fatal(&self) -> bool {
        // `V` is never translated (PostgreSQL 9.6).
        matches!(self.get(b'V').or(self.get(b'S')), Some(b"FATAL" | b"PANIC"))
    }
}

impl<'b> BackendMessage<'b> {
    /// Reads a whole message. Of DataRow and CopyData nothing is read but the type.
    pub fn read(tag: u8, payload: &'b [u8]) -> Result<BackendMessage<'b>, FrameError> {
        Ok(match tag {
            b'D' => BackendMessage::DataRow,
            b'd' => BackendMessage::CopyData,
            b'C' => BackendMessage::CommandComplete {
                tag: Fields::new("CommandComplete", payload).text()?,
            },
            b'Z' => BackendMessage::ReadyForQuery(read_status(payload)?),
            b'R' => BackendMessage::Authentication(read_authentication(payload)?),
            b'K' => read_key(payload)?,
            b'v' => BackendMessage::NegotiateProtocolVersion(read_negotiation(payload)?),
            b'S' => {
                let mut fields = Fields::new("ParameterStatus", payload);
                BackendMessage::ParameterStatus {
                    name: fields.text()?,
                    value: fields.text()?,
                }
            }
            b'E' => BackendMessage::Error(ErrorFields::read(payload)?),
            b'N' => BackendMessage::Notice(ErrorFields::read(payload)?),
            b'A' => BackendMessage::Notification,
            b'I' => BackendMessage::EmptyQueryResponse,
            b's' => BackendMessage::PortalSuspended,
            b'1' => BackendMessage::ParseComplete,
            b'2' => BackendMessage::BindComplete,
            b'3' => BackendMessage::CloseComplete,
            b'n' => BackendMessage::NoData,
            b't' => BackendMessage::ParameterDescription,
            b'T' => BackendMessage::RowDescription,
            b'G' => BackendMessage::CopyIn,
            b'H' => BackendMessage::CopyOut,
            b'W' => BackendMessage::CopyBoth,
            b'c' => BackendMessage::CopyDone,
            b'V' => BackendMessage::FunctionCallResponse,
            other => BackendMessage::Other(other),
        })
    }

    /// What a message that is too long to be held is, by its type. Only data is that long from a
    /// server that means well; an error so long is one without its fields.
    pub fn streamed(tag: u8) -> BackendMessage<'static> {
        match tag {
            b'D' => BackendMessage::DataRow,
            b'd' => BackendMessage::CopyData,
            b'T' => BackendMessage::RowDescription,
            b't' => BackendMessage::ParameterDescription,
            b'V' => BackendMessage::FunctionCallResponse,
            b'A' => BackendMessage::Notification,
            b'E' => BackendMessage::Error(ErrorFields(vec![])),
            b'N' => BackendMessage::Notice(ErrorFields(vec![])),
            other => BackendMessage::Other(other),
        }
    }
}

fn read_status(payload: &[u8]) -> Result<TransactionStatus, FrameError> {
    match payload {
        b"I" => Ok(TransactionStatus::Idle),
        b"T" => Ok(TransactionStatus::InTransaction),
        b"E" => Ok(TransactionStatus::Failed),
        _ => Err(malformed("ReadyForQuery", "its status is not I, T or E")),
    }
}

fn read_authentication(payload: &[u8]) -> Result<Authentication<'_>, FrameError> {
    let mut fields = Fields::new("an authentication request", payload);
    Ok(match fields.i32()? {
        0 => Authentication::Ok,
        3 => Authentication::CleartextPassword,
        5 => {
            let salt = <[u8; 4]>::try_from(fields.rest())
                .map_err(|_| malformed("AuthenticationMD5Password", "its salt is not 4 bytes"))?;
            Authentication::Md5Password(salt)
        }
        10 => {
            let mut mechanisms = vec![];
            loop {
                match fields.text()? {
                    b"" => break Authentication::Sasl(mechanisms),
                    name => mechanisms.push(name),
                }
            }
        }
        11 => Authentication::SaslContinue(fields.rest()),
        12 => Authentication::SaslFinal(fields.rest()),
        code => Authentication::Other(code),
    })
}

fn read_key(payload: &[u8]) -> Result<BackendMessage<'_>, FrameError> {
    let mut fields = Fields::new("BackendKeyData", payload);
    let process = fields.i32()?;
    match fields.rest() {
        key if (4..=super::CANCEL_KEY_BYTES_MAX).contains(&key.len()) => {
            Ok(BackendMessage::BackendKeyData { process, key })
        }
        _ => Err(malformed("BackendKeyData", "its key is not 4 to 256 bytes")),
    }
}

fn read_negotiation(payload: &[u8]) -> Result<NegotiateProtocolVersion<'_>, FrameError> {
    let mut fields = Fields::new("NegotiateProtocolVersion", payload);
    // The whole version since PostgreSQL 18, the minor one alone before.
    let newest = fields.i32()?.cast_unsigned();
    let version = Version {
        major: 3,
        minor: (newest & 0xffff) as u16,
    };
    let count = fields.i32()?;
    let mut unknown = vec![];
    for _ in 0..count {
        unknown.push(fields.text()?);
    }
    fields.end()?;
    Ok(NegotiateProtocolVersion { version, unknown })
}
