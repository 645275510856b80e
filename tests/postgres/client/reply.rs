//! Messages of a server, read (PostgreSQL docs 55.7 and 55.8).

use std::fmt::{Debug, Formatter};

/// A message as it came.
#[derive(Clone, PartialEq, Eq)]
pub struct Reply {
    pub tag: u8,
    pub body: Vec<u8>,
}

impl Debug for Reply {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let body: String = self
            .body
            .iter()
            .take(200)
            .map(|byte| match byte {
                0 => '|',
                b' '..=b'~' => char::from(*byte),
                _ => '.',
            })
            .collect();
        write!(f, "{} {body}", char::from(self.tag))
    }
}

/// An ErrorResponse or NoticeResponse.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fault {
    pub severity: String,
    pub code: String,
    pub message: String,
    pub detail: String,
}

impl Fault {
    /// What the server did not tell.
    pub fn local(message: &str) -> Fault {
        Fault {
            message: message.to_owned(),
            ..Fault::default()
        }
    }

    pub fn read(body: &[u8]) -> Fault {
        let mut fault = Fault::default();
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, text)) = field.split_first() else {
                continue;
            };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                b'V' => fault.severity = text,
                b'C' => fault.code = text,
                b'M' => fault.message = text,
                b'D' => fault.detail = text,
                _ => {}
            }
        }
        fault
    }

    /// The DETAIL of a refusal.
    pub fn json(&self) -> serde_json::Value {
        let parsed = serde_json::from_str(&self.detail);
        parsed.unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The messages up to a ReadyForQuery, sorted.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Columns as texts; NULL is empty.
    pub rows: Vec<Vec<String>>,
    /// What each CommandComplete said.
    pub done: Vec<String>,
    pub faults: Vec<Fault>,
    pub notices: Vec<Fault>,
    /// CopyData of the server.
    pub copied: Vec<u8>,
    /// Of ReadyForQuery: `I`, `T` or `E`; 0 where the connection has ended.
    pub status: u8,
    /// The types of all messages, in order.
    pub tags: String,
}

impl Answer {
    pub fn take(&mut self, reply: &Reply) {
        self.tags.push(char::from(reply.tag));
        match reply.tag {
            b'D' => self.rows.push(columns(&reply.body)),
            b'C' => {
                let text = reply.body.strip_suffix(&[0]).unwrap_or(&reply.body);
                self.done.push(String::from_utf8_lossy(text).into_owned());
            }
            b'E' => self.faults.push(Fault::read(&reply.body)),
            b'N' => self.notices.push(Fault::read(&reply.body)),
            b'd' => self.copied.extend(&reply.body),
            b'Z' => self.status = reply.body[0],
            _ => {}
        }
    }

    /// The SQLSTATE of its first error; empty where there is none.
    pub fn code(&self) -> &str {
        self.faults.first().map_or("", |fault| &fault.code)
    }

    /// Itself, when nothing went wrong.
    #[track_caller]
    pub fn ok(self) -> Answer {
        assert!(self.faults.is_empty() && self.status != 0, "{self:?}");
        self
    }

    /// Its only column.
    #[track_caller]
    pub fn value(self) -> String {
        let answer = self.ok();
        match answer.rows.as_slice() {
            [row] if row.len() == 1 => row[0].clone(),
            _ => panic!("no single value: {answer:?}"),
        }
    }

    /// Its error, which must have this SQLSTATE.
    #[track_caller]
    pub fn refused(&self, code: &str) -> &Fault {
        assert_eq!(self.code(), code, "{self:?}");
        &self.faults[0]
    }
}

fn columns(body: &[u8]) -> Vec<String> {
    let mut rest = &body[2..];
    let mut columns = vec![];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        columns.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    columns
}
