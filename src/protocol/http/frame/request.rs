//! The head of a request, from its bytes to the bytes that the backend gets.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::explain::explain;
use super::lines::{self, FIELDS_MAX, Line};
use super::{BodyReader, Broken};
use crate::protocol::head::{Fields, Head, is_ticket_name, list};
use crate::protocol::http::path;

/// A request's head. Its buffers serve one request after the other.
#[derive(Debug, Default)]
pub struct RequestHead {
    /// The whole head, with the empty line at its end.
    bytes: Vec<u8>,
    lines: Vec<Line>,
    method: Range<usize>,
    target: Range<usize>,
    /// What the backend gets as target.
    origin_form: Range<usize>,
    first_line_end: usize,
    facts: Facts,
}

#[derive(Debug, Default)]
struct Facts {
    version: Version,
    body: RequestBody,
    host: Option<Range<usize>>,
    asks_close: bool,
    asks_keep_alive: bool,
    expects_continue: bool,
    /// `Connection` names fields.
    nominates: bool,
}

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Version {
    /// HTTP/1.0: no chunks, and one request per connection unless it asks for more.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// How a request's body is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RequestBody {
    /// There is none: nothing is said of one (RFC 9112 6.3).
    #[default]
    None,
    /// This many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
}

/// How the body goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing {
    /// Delimited as it came.
    AsItCame,
    /// It came in chunks, and its length is known now.
    Length(u64),
}

/// Options that are no names of fields.
const OPTIONS: [&[u8]; 6] = [
    b"close",
    b"keep-alive",
    b"upgrade",
    b"te",
    b"http2-settings",
    b"proxy-connection",
];

/// Fields that `Connection` must not name away: they frame and route the request.
const NEVER_NAMED: [&[u8]; 5] = [
    b"content-length",
    b"content-type",
    b"expect",
    b"host",
    b"transfer-encoding",
];

impl RequestHead {
    /// Reads the head that `input` begins with; answers with its length. `None`: there is more to
    /// come.
    pub fn read(&mut self, input: &[u8]) -> Result<Option<usize>, Broken> {
        let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut []);
        let used = match parsed.parse_with_uninit_headers(input, &mut fields) {
            Ok(httparse::Status::Partial) => return Ok(None),
            Ok(httparse::Status::Complete(used)) => used,
            Err(error) => return Err(explain(error, input)),
        };
        let bytes = &input[..used];
        let (method, target) = match (parsed.method, parsed.path) {
            (Some(method), Some(target)) => (method, target.as_bytes()),
            _ => return Err(Broken("the first line is not `method target version`")),
        };
        if !bytes.starts_with(method.as_bytes()) {
            return Err(Broken("empty lines stand before the request"));
        }
        self.first_line_end = lines::take(bytes, parsed.headers, &mut self.lines)?;
        // One space on each side, which httparse sees to.
        self.method = 0..method.len();
        self.target = method.len() + 1..method.len() + 1 + target.len();
        self.origin_form = self.target.clone();
        self.facts = Facts {
            version: match parsed.version {
                Some(0) => Version::Http10,
                _ => Version::Http11,
            },
            ..Facts::default()
        };
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        for line in &mut self.lines {
            self.facts.note(line, bytes)?;
        }
        self.facts.check()?;
        if self.facts.nominates {
            self.leave_nominated()?;
        }
        self.find_origin_form()?;
        Ok(Some(used))
    }

    /// Fields that `Connection` names end at this hop (RFC 9110 7.6.1).
    fn leave_nominated(&mut self) -> Result<(), Broken> {
        let bytes = &self.bytes;
        let connection = |line: &&Line| line.name(bytes).eq_ignore_ascii_case(b"connection");
        let named: Vec<&[u8]> = self
            .lines
            .iter()
            .filter(connection)
            .flat_map(|line| list(line.value(bytes)))
            .collect();
        let same = |member: &[u8], known: &&[u8]| member.eq_ignore_ascii_case(known);
        for member in &named {
            if is_ticket_name(member) || NEVER_NAMED.iter().any(|known| same(member, known)) {
                return Err(Broken("connection names a header that must travel on"));
            }
        }
        for line in &mut self.lines {
            line.stays |= named.iter().any(|member| same(line.name(bytes), member));
        }
        Ok(())
    }

    /// RFC 9112 3.2.2: a target in absolute form says what `Host` says.
    fn find_origin_form(&mut self) -> Result<(), Broken> {
        let target = self.target();
        if matches!(target, [b'/', ..] | b"*") {
            return Ok(());
        }
        if path::split_target(target).is_none() {
            // `CONNECT host:port`, or nothing known: classification refuses it.
            return Ok(());
        }
        let after_scheme = target.iter().position(|&byte| byte == b':').unwrap_or(0) + 3;
        // The path begins at the first of these, or the target ends (see `split_target`).
        let rest = &target[after_scheme..];
        let ends = |byte: &u8| b"/?".contains(byte);
        let path = rest.iter().position(ends).unwrap_or(rest.len());
        let authority = self.target.start + after_scheme..self.target.start + after_scheme + path;
        let path_start = authority.end;
        if !self.bytes[authority].eq_ignore_ascii_case(self.host()) {
            return Err(Broken("the target's authority and host differ"));
        }
        self.origin_form = path_start..self.target.end;
        Ok(())
    }

    /// The method.
    pub fn method(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.method.clone()]).unwrap_or_default()
    }

    /// The target as it came.
    pub fn target(&self) -> &[u8] {
        &self.bytes[self.target.clone()]
    }

    /// The path and query, whatever the form of the target.
    pub fn origin_form(&self) -> &[u8] {
        &self.bytes[self.origin_form.clone()]
    }

    /// The value of `Host`.
    pub fn host(&self) -> &[u8] {
        self.facts.host.clone().map_or(b"", |at| &self.bytes[at])
    }

    /// What the client speaks.
    pub fn version(&self) -> Version {
        self.facts.version
    }

    /// How the body is delimited.
    pub fn body(&self) -> RequestBody {
        self.facts.body
    }

    /// The body, to be read.
    pub fn body_reader(&self) -> BodyReader {
        match self.facts.body {
            RequestBody::None => BodyReader::EMPTY,
            RequestBody::Length(length) => BodyReader::Length(length),
            RequestBody::Chunked => BodyReader::chunked(),
        }
    }

    /// Whether the client keeps the connection for more requests (RFC 9112 9.3).
    pub fn keeps_alive(&self) -> bool {
        match self.facts.version {
            Version::Http11 => !self.facts.asks_close,
            Version::Http10 => self.facts.asks_keep_alive && !self.facts.asks_close,
        }
    }

    /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110 10.1.1).
    pub fn expects_continue(&self) -> bool {
        self.facts.expects_continue
            && self.facts.version == Version::Http11
            && self.facts.body != RequestBody::None
    }

    /// As classification takes it.
    pub fn head(&self) -> Head<'_> {
        Head {
            method: self.method(),
            target: self.target(),
            authority: None,
            headers: Fields::Lines(&self.bytes, &self.lines),
        }
    }

    /// Writes the head that the backend gets: in HTTP/1.1, without what ends at this hop, all else
    /// byte for byte.
    pub fn write(&self, body: Outgoing, out: &mut Vec<u8>) {
        let as_it_came = self.origin_form == self.target && self.facts.version == Version::Http11;
        if as_it_came {
            out.extend_from_slice(&self.bytes[..self.first_line_end]);
        } else {
            out.extend_from_slice(&self.bytes[self.method.clone()]);
            out.push(b' ');
            if !matches!(self.origin_form(), [b'/', ..] | b"*") {
                // RFC 9112 3.2.1: an empty path is sent as `/`.
                out.push(b'/');
            }
            out.extend_from_slice(self.origin_form());
            out.extend_from_slice(b" HTTP/1.1\r\n");
        }
        lines::copy_kept(&self.bytes, &self.lines, out);
        match (self.facts.body, body) {
            (RequestBody::Chunked, Outgoing::AsItCame) => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            }
            (RequestBody::Chunked, Outgoing::Length(length)) => {
                out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
            }
            (RequestBody::None | RequestBody::Length(_), _) => {}
        }
        out.extend_from_slice(b"\r\n");
    }
}

impl Facts {
    fn note(&mut self, line: &mut Line, bytes: &[u8]) -> Result<(), Broken> {
        let name = line.name(bytes);
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        // By length first: most fields are decided by one comparison.
        line.stays = match name.len() {
            2 => is(b"te"),
            4 if is(b"host") => {
                if self.host.is_some() {
                    return Err(Broken("host is given more than once"));
                }
                self.host = Some(line.value_range());
                false
            }
            6 if is(b"expect") => {
                self.expects_continue |= line.value(bytes).eq_ignore_ascii_case(b"100-continue");
                true
            }
            7 => is(b"upgrade"),
            10 if is(b"connection") => {
                self.note_connection(line.value(bytes));
                true
            }
            10 => is(b"keep-alive"),
            13 => is_ticket_name(name),
            14 if is(b"content-length") => {
                match self.body {
                    RequestBody::None => {}
                    RequestBody::Chunked => return Err(twice_framed()),
                    RequestBody::Length(_) => {
                        return Err(Broken("content-length is given more than once"));
                    }
                }
                self.body = RequestBody::Length(lines::content_length(line, bytes)?);
                false
            }
            14 => is(b"http2-settings"),
            16 => is(b"proxy-connection"),
            17 if is(b"transfer-encoding") => {
                lines::check_chunked(line, bytes)?;
                if self.body != RequestBody::None {
                    return Err(match self.body {
                        RequestBody::Chunked => Broken("transfer-encoding is given more than once"),
                        _ => twice_framed(),
                    });
                }
                if self.version == Version::Http10 {
                    return Err(Broken("transfer-encoding is given in HTTP/1.0"));
                }
                self.body = RequestBody::Chunked;
                true
            }
            _ => false,
        };
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        for member in list(value) {
            self.asks_close |= member.eq_ignore_ascii_case(b"close");
            self.asks_keep_alive |= member.eq_ignore_ascii_case(b"keep-alive");
            let known = |option: &&[u8]| member.eq_ignore_ascii_case(option);
            self.nominates |= !OPTIONS.iter().any(known);
        }
    }

    fn check(&self) -> Result<(), Broken> {
        match self.host {
            Some(_) => Ok(()),
            // RFC 9112 3.2: "A server MUST respond with a 400" to it. HTTP/1.0 has no such rule,
            // but what the backend gets is HTTP/1.1.
            None => Err(Broken("host is missing")),
        }
    }
}

/// RFC 9112 6.3: the two together are an attempt to smuggle.
fn twice_framed() -> Broken {
    Broken("both content-length and transfer-encoding are given")
}
