//! What clients send (PostgreSQL docs 54.7).

use super::fields::Fields;
use super::{FrameError, malformed};

/// A message of a client. Texts are bytes in the client's encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FrontendMessage<'b> {
    /// `Q`: its text.
    Query(&'b [u8]),
    /// `P`.
    Parse(Parse<'b>),
    /// `B`.
    Bind(Bind<'b>),
    /// `D`.
    Describe {
        /// Of which kind.
        kind: ClosedKind,
        /// Its name.
        name: &'b [u8],
    },
    /// `E`.
    Execute {
        /// The portal.
        portal: &'b [u8],
        /// Most rows that are returned; 0 for all.
        rows_max: i32,
    },
    /// `C`.
    Close {
        /// Of which kind.
        kind: ClosedKind,
        /// Its name.
        name: &'b [u8],
    },
    /// `S`.
    Sync,
    /// `H`.
    Flush,
    /// `F`: the function's oid.
    FunctionCall {
        /// Which function.
        function: u32,
    },
    /// `d`.
    CopyData,
    /// `c`.
    CopyDone,
    /// `f`.
    CopyFail,
    /// `X`.
    Terminate,
    /// `p`: a password, or an answer of SASL or GSSAPI.
    Authentication(&'b [u8]),
}

/// What Describe and Close name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClosedKind {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

/// A Parse.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parse<'b> {
    /// The statement's name; empty is the unnamed one.
    pub statement: &'b [u8],
    /// Its text.
    pub text: &'b [u8],
    /// The number of types and the types, as they came.
    pub types: &'b [u8],
}

/// A Bind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bind<'b> {
    /// The portal's name; empty is the unnamed one.
    pub portal: &'b [u8],
    /// The statement's name.
    pub statement: &'b [u8],
    /// 0 is text, 1 is binary. None: all text; one: for all; else one per value.
    pub formats: Vec<u16>,
    /// The parameters; `None` is NULL.
    pub values: Vec<Option<&'b [u8]>>,
    /// The formats of the results, as they came.
    pub results: &'b [u8],
}

/// What is read of every Bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BindHead<'b> {
    /// The portal's name; empty is the unnamed one.
    pub portal: &'b [u8],
    /// The statement's name.
    pub statement: &'b [u8],
    /// It has values, or that was not seen.
    pub has_values: bool,
}

impl<'b> BindHead<'b> {
    /// Of a Bind of which its names, at least, are there.
    pub fn read(head: &'b [u8]) -> Result<BindHead<'b>, FrameError> {
        let mut fields = Fields::new("Bind", head);
        Ok(BindHead {
            portal: fields.text()?,
            statement: fields.text()?,
            has_values: count_values(fields) != Ok(0),
        })
    }
}

fn count_values(mut fields: Fields<'_>) -> Result<u16, FrameError> {
    let formats = fields.u16()?;
    fields.bytes(2 * usize::from(formats))?;
    fields.u16()
}

impl<'b> Bind<'b> {
    /// What is read of every Bind.
    pub fn head(&self) -> BindHead<'b> {
        BindHead {
            portal: self.portal,
            statement: self.statement,
            has_values: !self.values.is_empty(),
        }
    }

    fn read(payload: &'b [u8]) -> Result<Bind<'b>, FrameError> {
        let mut fields = Fields::new("Bind", payload);
        let (portal, statement) = (fields.text()?, fields.text()?);
        let mut formats = vec![];
        for _ in 0..fields.u16()? {
            formats.push(fields.u16()?);
        }
        let mut values = vec![];
        for _ in 0..fields.u16()? {
            values.push(fields.value()?);
        }
        if formats.len() > 1 && formats.len() != values.len() {
            return Err(malformed("Bind", "it has formats for other values"));
        }
        let results = fields.rest();
        for _ in 0..fields.u16()? {
            fields.u16()?;
        }
        fields.end()?;
        Ok(Bind {
            portal,
            statement,
            formats,
            values,
            results,
        })
    }

    /// The text of parameter `$number`. Text and binary forms of a text are the same bytes. `None`
    /// for NULL and for a parameter that is not there.
    pub fn text_value(&self, number: usize) -> Option<&'b [u8]> {
        *self.values.get(number.checked_sub(1)?)?
    }
}

impl<'b> Parse<'b> {
    /// The statement's name of a Parse of which only the beginning is there.
    pub fn name(head: &'b [u8]) -> Result<&'b [u8], FrameError> {
        Fields::new("Parse", head).text()
    }

    /// The types that are given.
    pub fn type_oids(&self) -> impl Iterator<Item = u32> {
        let oids = self.types.get(2..).unwrap_or_default().chunks_exact(4);
        oids.filter_map(|oid| Some(u32::from_be_bytes(*oid.first_chunk()?)))
    }

    fn read(payload: &'b [u8]) -> Result<Parse<'b>, FrameError> {
        let mut fields = Fields::new("Parse", payload);
        let (statement, text) = (fields.text()?, fields.text()?);
        let types = fields.rest();
        for _ in 0..fields.u16()? {
            fields.i32()?;
        }
        fields.end()?;
        Ok(Parse {
            statement,
            text,
            types,
        })
    }
}

impl<'b> FrontendMessage<'b> {
    /// Reads a whole message.
    pub fn read(tag: u8, payload: &'b [u8]) -> Result<FrontendMessage<'b>, FrameError> {
        let alone =
            |what: &'static str, message| Fields::new(what, payload).end().map(|()| message);
        match tag {
            b'Q' => {
                let mut fields = Fields::new("Query", payload);
                let text = fields.text()?;
                fields.end()?;
                Ok(FrontendMessage::Query(text))
            }
            b'P' => Parse::read(payload).map(FrontendMessage::Parse),
            b'B' => Bind::read(payload).map(FrontendMessage::Bind),
            b'D' => named("Describe", payload)
                .map(|(kind, name)| FrontendMessage::Describe { kind, name }),
            b'C' => {
                named("Close", payload).map(|(kind, name)| FrontendMessage::Close { kind, name })
            }
            b'E' => {
                let mut fields = Fields::new("Execute", payload);
                let (portal, rows_max) = (fields.text()?, fields.i32()?);
                fields.end()?;
                Ok(FrontendMessage::Execute { portal, rows_max })
            }
            b'S' => alone("Sync", FrontendMessage::Sync),
            b'H' => alone("Flush", FrontendMessage::Flush),
            b'F' => {
                let function = Fields::new("FunctionCall", payload).i32()?.cast_unsigned();
                Ok(FrontendMessage::FunctionCall { function })
            }
            b'd' => Ok(FrontendMessage::CopyData),
            // The server does not look into these.
            b'c' => Ok(FrontendMessage::CopyDone),
            b'f' => Ok(FrontendMessage::CopyFail),
            b'X' => Ok(FrontendMessage::Terminate),
            b'p' => Ok(FrontendMessage::Authentication(payload)),
            tag => Err(FrameError::UnknownType { tag }),
        }
    }
}

fn named<'b>(what: &'static str, payload: &'b [u8]) -> Result<(ClosedKind, &'b [u8]), FrameError> {
    let mut fields = Fields::new(what, payload);
    let kind = match fields.byte()? {
        b'S' => ClosedKind::Statement,
        b'P' => ClosedKind::Portal,
        _ => return Err(malformed(what, "it names neither a statement nor a portal")),
    };
    let name = fields.text()?;
    fields.end()?;
    Ok((kind, name))
}
