//! The head of a response, from its bytes to the bytes that the client gets.

use std::mem::MaybeUninit;

use super::explain::explain;
use super::lines::{self, FIELDS_MAX, Line};
use super::request::{RequestHead, Version};
use super::{BodyReader, Broken, Encoding};
use crate::protocol::head::{is_ticket_name, list};

/// A response's head. Its buffers serve one response after the other.
#[derive(Debug, Default)]
pub struct ResponseHead {
    bytes: Vec<u8>,
    lines: Vec<Line>,
    first_line_end: usize,
    status: u16,
    body: ResponseBody,
    keeps_alive: bool,
}

/// How a response's body is delimited (RFC 9112 6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResponseBody {
    /// There is none, whatever the head says.
    #[default]
    None,
    /// This many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// Until the connection ends.
    UntilClose,
}

/// What the client's side of a response needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ToClient {
    /// What the client speaks.
    pub version: Version,
    /// Whether its connection stays open.
    pub keeps_alive: bool,
}

const VERSION: &[u8] = b"HTTP/1.1";

impl ResponseHead {
    /// Reads the head that `input` begins with, in answer to `request`; answers with its length.
    /// `None`: there is more to come.
    pub fn read(&mut self, input: &[u8], request: &RequestHead) -> Result<Option<usize>, Broken> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let read = config.parse_response_with_uninit_headers(&mut parsed, input, &mut fields);
        let used = match read {
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(used)) => used,
            Err(error) => return Err(explain(error, input)),
        };
        let bytes = &input[..used];
        if !bytes.starts_with(b"HTTP/1.") {
            return Err(Broken("empty lines stand before the response"));
        }
        self.first_line_end = lines::take(bytes, parsed.headers, &mut self.lines)?;
        self.status = parsed.code.unwrap_or_default();
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        let mut facts = Facts::default();
        for line in &mut self.lines {
            facts.note(line, bytes)?;
        }
        let is_new = parsed.version != Some(0);
        self.keeps_alive = !facts.closes && (is_new || facts.keeps_alive);
        self.body = match facts.body {
            _ if self.has_no_body(request) => ResponseBody::None,
            ResponseBody::None => ResponseBody::UntilClose,
            told => told,
        };
        if self.status == 204 || self.status < 200 {
            self.leave_framing();
        }
        if facts.nominates {
            self.leave_nominated();
        }
        Ok(Some(used))
    }

    fn has_no_body(&self, request: &RequestHead) -> bool {
        request.method() == "HEAD" || self.status < 200 || matches!(self.status, 204 | 304)
    }

    /// RFC 9110 8.6 and RFC 9112 6.1 allow neither field here, and readers differ in what they make
    /// of one.
    fn leave_framing(&mut self) {
        for line in &mut self.lines {
            let name = line.name(&self.bytes);
            line.stays |= name.eq_ignore_ascii_case(b"content-length")
                || name.eq_ignore_ascii_case(b"transfer-encoding");
        }
    }

    fn leave_nominated(&mut self) {
        let bytes = &self.bytes;
        let connection = |line: &&Line| line.name(bytes).eq_ignore_ascii_case(b"connection");
        let named: Vec<&[u8]> = self
            .lines
            .iter()
            .filter(connection)
            .flat_map(|line| list(line.value(bytes)))
            // A length that is taken away would frame the body anew.
            .filter(|member| !member.eq_ignore_ascii_case(b"content-length"))
            .collect();
        for line in &mut self.lines {
            let name = line.name(bytes);
            line.stays |= named.iter().any(|member| member.eq_ignore_ascii_case(name));
        }
    }

    /// Whether it is a gateway's word for an answer that did not come: what is behind it may carry
    /// the request out all the same (RFC 9110 15.6.3 and 15.6.5).
    pub fn leaves_in_doubt(&self) -> bool {
        matches!(self.status, 502 | 504)
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether it is interim: the final one follows (RFC 9110 15.2).
    pub fn is_interim(&self) -> bool {
        self.status < 200
    }

    /// How the body is delimited.
    pub fn body(&self) -> ResponseBody {
        self.body
    }

    /// The body, to be read.
    pub fn body_reader(&self) -> BodyReader {
        match self.body {
            ResponseBody::None => BodyReader::EMPTY,
            ResponseBody::Length(length) => BodyReader::Length(length),
            ResponseBody::Chunked => BodyReader::chunked(),
            ResponseBody::UntilClose => BodyReader::UntilClose,
        }
    }

    /// Whether the backend keeps the connection for more requests.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive && self.body != ResponseBody::UntilClose
    }

    /// How the body goes to a client of this version. Where it cannot be in chunks, it ends with
    /// the connection.
    pub fn encoding(&self, version: Version) -> Encoding {
        match (self.body, version) {
            (ResponseBody::Chunked | ResponseBody::UntilClose, Version::Http11) => {
                Encoding::Chunked
            }
            _ => Encoding::Plain,
        }
    }

    /// Whether the body ends with the backend's connection.
    pub fn ends_with_connection(&self) -> bool {
        self.body == ResponseBody::UntilClose
    }

    /// Whether the client finds the end of the body without the end of the connection.
    pub fn delimits_itself(&self, version: Version) -> bool {
        let is_open = matches!(self.body, ResponseBody::Chunked | ResponseBody::UntilClose);
        !is_open || version == Version::Http11
    }

    /// Writes the head that the client gets: in HTTP/1.1, without what ends at this hop, all else
    /// byte for byte.
    pub fn write(&self, to: ToClient, out: &mut Vec<u8>) {
        out.extend_from_slice(VERSION);
        out.extend_from_slice(&self.bytes[VERSION.len()..self.first_line_end]);
        lines::copy_kept(&self.bytes, &self.lines, out);
        let added: &[u8] = match (to.version, to.keeps_alive) {
            _ if self.is_interim() => b"",
            (Version::Http11, true) => b"",
            (Version::Http10, true) => b"Connection: keep-alive\r\n",
            (_, false) => b"Connection: close\r\n",
        };
        out.extend_from_slice(added);
        if self.encoding(to.version) == Encoding::Chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// What the fields say.
#[derive(Default)]
struct Facts {
    body: ResponseBody,
    closes: bool,
    keeps_alive: bool,
    nominates: bool,
}

impl Facts {
    fn note(&mut self, line: &mut Line, bytes: &[u8]) -> Result<(), Broken> {
        let name = line.name(bytes);
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        line.stays = match name.len() {
            2 => is(b"te"),
            7 => is(b"upgrade"),
            10 if is(b"connection") => {
                for member in list(line.value(bytes)) {
                    let is = |known: &[u8]| member.eq_ignore_ascii_case(known);
                    self.closes |= is(b"close");
                    self.keeps_alive |= is(b"keep-alive");
                    self.nominates |= !is(b"close") && !is(b"keep-alive");
                }
                true
            }
            10 => is(b"keep-alive"),
            13 => is_ticket_name(name),
            14 if is(b"content-length") => {
                if self.body != ResponseBody::None {
                    return Err(Broken("the length of the body is given twice"));
                }
                self.body = ResponseBody::Length(lines::content_length(line, bytes)?);
                false
            }
            16 => is(b"proxy-connection"),
            17 if is(b"transfer-encoding") => {
                if self.body != ResponseBody::None {
                    return Err(Broken("the length of the body is given twice"));
                }
                lines::check_chunked(line, bytes)?;
                self.body = ResponseBody::Chunked;
                true
            }
            _ => false,
        };
        Ok(())
    }
}
