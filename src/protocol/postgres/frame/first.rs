//! The packets before the first typed message: SSLRequest, GSSENCRequest, CancelRequest,
//! StartupMessage (PostgreSQL docs 54.2.1, 54.2.10, 54.7), and direct TLS (PostgreSQL 17).

use super::fields::Fields;
use super::{CANCEL_KEY_BYTES_MAX, FIRST_PACKET_BYTES_MAX, FrameError, malformed};

pub(super) const CANCEL_CODE: i32 = (1234 << 16) | 5678;
pub(super) const SSL_CODE: i32 = (1234 << 16) | 5679;
const GSS_CODE: i32 = (1234 << 16) | 5680;

/// The first byte of a TLS record that holds a ClientHello (RFC 8446 5.1). It cannot begin a
/// packet: its length would be far above the bound.
const TLS_HANDSHAKE: u8 = 0x16;

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version {
    /// 3, always.
    pub major: u16,
    /// 0 or 2; a client may ask for more and is told by NegotiateProtocolVersion.
    pub minor: u16,
}

/// The first packet of a client, or of a connection that was upgraded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FirstPacket<'b> {
    /// It begins with a TLS handshake. Nothing is consumed.
    DirectTls,
    /// It asks for TLS: answer `S` and upgrade, or `N`.
    Ssl,
    /// It asks for GSSAPI encryption: answer `N`.
    GssEncryption,
    /// It cancels the query of another connection.
    Cancel {
        /// The process that BackendKeyData named.
        process: i32,
        /// The secret: 4 bytes in protocol 3.0, 4 to 256 in 3.2. Compare it in constant time.
        key: &'b [u8],
    },
    /// It begins a session.
    Startup(StartupPacket<'b>),
}

/// A StartupMessage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupPacket<'b> {
    /// What the client asks for.
    pub version: Version,
    /// Names and values as they came, in order. A repeated name counts last.
    pub parameters: Vec<(&'b [u8], &'b [u8])>,
}

impl<'b> StartupPacket<'b> {
    /// The value that counts. Names of the protocol's own parameters are compared as they are.
    pub fn get(&self, name: &str) -> Option<&'b [u8]> {
        self.parameters
            .iter()
            .rev()
            .find(|(known, _)| *known == name.as_bytes())
            .map(|(_, value)| *value)
    }

    /// Whether it asks for a replication connection, logical or physical. A value that the server
    /// would refuse counts as one.
    pub fn is_replication(&self) -> bool {
        let off: [&[u8]; 5] = [b"false", b"off", b"no", b"0", b""];
        self.get("replication")
            .is_some_and(|value| !off.contains(&value.to_ascii_lowercase().as_slice()))
    }

    /// The database, which is the user's name where it is not given.
    pub fn database(&self) -> Option<&'b [u8]> {
        self.get("database")
            .filter(|name| !name.is_empty())
            .or_else(|| self.get("user"))
    }
}

/// The steps up to the StartupMessage: each upgrade is asked for once at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Opening {
    begun: bool,
    asked_ssl: bool,
    asked_gss: bool,
    in_tls: bool,
}

impl Opening {
    /// A connection of which nothing was read.
    pub fn new() -> Opening {
        Opening::default()
    }

    /// The packet that the buffer begins with and its length; `None` while it is not whole.
    pub fn next<'b>(
        &mut self,
        buffer: &'b [u8],
    ) -> Result<Option<(FirstPacket<'b>, usize)>, FrameError> {
        if buffer.first() == Some(&TLS_HANDSHAKE) && !self.begun {
            self.asked_ssl = true;
            self.begun = true;
            return Ok(Some((FirstPacket::DirectTls, 0)));
        }
        let Some((length, rest)) = buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = i32::from_be_bytes(*length);
        let invalid = FrameError::Length {
            what: "a first packet",
            length: length.into(),
        };
        let bytes = usize::try_from(i64::from(length) - 4).map_err(|_| invalid.clone())?;
        if !(4..=FIRST_PACKET_BYTES_MAX).contains(&bytes) {
            return Err(invalid);
        }
        let Some(payload) = rest.get(..bytes) else {
            return Ok(None);
        };
        self.begun = true;
        let packet = self.read(payload)?;
        Ok(Some((packet, 4 + bytes)))
    }

    fn read<'b>(&mut self, payload: &'b [u8]) -> Result<FirstPacket<'b>, FrameError> {
        let mut fields = Fields::new("first packet", payload);
        let code = fields.i32()?;
        match code {
            SSL_CODE => {
                fields.end()?;
                if std::mem::replace(&mut self.asked_ssl, true) {
                    return Err(FrameError::Repeated { what: "TLS" });
                }
                Ok(FirstPacket::Ssl)
            }
            GSS_CODE => {
                fields.end()?;
                if std::mem::replace(&mut self.asked_gss, true) {
                    return Err(FrameError::Repeated {
                        what: "GSSAPI encryption",
                    });
                }
                Ok(FirstPacket::GssEncryption)
            }
            CANCEL_CODE => {
                let process = fields.i32()?;
                let key = fields.rest();
                if !(4..=CANCEL_KEY_BYTES_MAX).contains(&key.len()) {
                    return Err(malformed("CancelRequest", "its key is not 4 to 256 bytes"));
                }
                Ok(FirstPacket::Cancel { process, key })
            }
            _ => read_startup(code, fields).map(FirstPacket::Startup),
        }
    }

    /// The answer was `S`, or a direct handshake begins: TLS is next. `buffered` counts the bytes
    /// that were read after the request.
    pub fn begin_tls(&mut self, buffered: usize) -> Result<(), FrameError> {
        self.in_tls = true;
        match buffered {
            0 => Ok(()),
            bytes => Err(FrameError::BeforeHandshake { bytes }),
        }
    }

    /// Whether what is read now comes out of TLS.
    pub fn in_tls(&self) -> bool {
        self.in_tls
    }
}

fn read_startup(code: i32, mut fields: Fields<'_>) -> Result<StartupPacket<'_>, FrameError> {
    let version = Version {
        major: (code.cast_unsigned() >> 16) as u16,
        minor: (code & 0xffff) as u16,
    };
    if version.major != 3 {
        return Err(FrameError::Version {
            major: version.major,
            minor: version.minor,
        });
    }
    let mut parameters = vec![];
    loop {
        let name = fields.text()?;
        if name.is_empty() {
            break;
        }
        parameters.push((name, fields.text()?));
    }
    fields.end()?;
    Ok(StartupPacket {
        version,
        parameters,
    })
}
