//! Sessions of a superuser's that send simple queries, and what is answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::postgres::Postgres;
use ringfence::protocol::postgres::frame::{
    BackendMessage, Decoder, Next, Side, Version, query, startup,
};

const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A running server; it ends with the value.
pub struct Server(Postgres);

/// How a query ended.
#[derive(PartialEq, Eq, Debug)]
pub enum Answer {
    /// Without an error.
    Done,
    /// With this SQLSTATE.
    Error(String),
}

impl Server {
    pub fn start() -> Server {
        Server(Postgres::start())
    }

    /// For programs that are told a host and a port.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub fn connect(&self) -> Client {
        self.connect_with(&[])
    }

    /// The same with these parameters at its start.
    pub fn connect_with(&self, parameters: &[(&str, &str)]) -> Client {
        let stream = TcpStream::connect(self.0.address).expect("the server takes a connection");
        stream.set_nodelay(true).unwrap();
        Client::start(stream, parameters).expect("the server takes a session")
    }
}

/// A session that sends simple queries, on the proxy's own framing.
pub struct Client {
    stream: TcpStream,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Client {
    /// `None` where the server refuses it.
    fn start(stream: TcpStream, parameters: &[(&str, &str)]) -> Option<Client> {
        let mut client = Client {
            stream,
            decoder: Decoder::new(Side::Server),
            buffer: vec![],
        };
        let version = Version { major: 3, minor: 0 };
        let role = [("user", "postgres"), ("database", "postgres")];
        let all = role.iter().chain(parameters);
        let all = all.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        client.stream.write_all(&startup(version, all)).ok()?;
        let (answer, _) = client.read_to_ready()?;
        (answer == Answer::Done).then_some(client)
    }

    /// Runs a text.
    pub fn query(&mut self, text: &str) -> Answer {
        self.rows(text).0
    }

    /// Runs a text; its rows as texts.
    pub fn rows(&mut self, text: &str) -> (Answer, Vec<Vec<String>>) {
        self.stream.write_all(&query(text.as_bytes())).unwrap();
        self.read_to_ready().expect("the server answers")
    }

    /// Runs a text; every message of the answer.
    pub fn messages(&mut self, text: &str) -> Vec<(u8, Vec<u8>)> {
        self.stream.write_all(&query(text.as_bytes())).unwrap();
        let mut messages = vec![];
        while messages.last().is_none_or(|(tag, _)| *tag != b'Z') {
            messages.push(self.message().expect("the server answers"));
        }
        messages
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next message; a server that says nothing fails the test.
    pub fn receive(&mut self) -> (u8, Vec<u8>) {
        self.stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        self.message().expect("the server answers")
    }

    fn read_to_ready(&mut self) -> Option<(Answer, Vec<Vec<String>>)> {
        let (mut answer, mut rows) = (Answer::Done, vec![]);
        loop {
            let (tag, payload) = self.message()?;
            if tag == b'D' {
                rows.push(columns(&payload));
            }
            match BackendMessage::read(tag, &payload).expect("a message of the protocol") {
                BackendMessage::Error(fields) => {
                    let state = String::from_utf8_lossy(fields.sqlstate()?).into_owned();
                    if fields.is_fatal() {
                        return None;
                    }
                    answer = Answer::Error(state);
                }
                BackendMessage::ReadyForQuery(_) => return Some((answer, rows)),
                BackendMessage::CopyIn => {
                    // CopyFail.
                    self.stream.write_all(b"f\0\0\0\x05\0").ok()?;
                }
                _ => {}
            }
        }
    }

    /// One message, put together where it streams.
    fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut whole: Option<(u8, Vec<u8>)> = None;
        loop {
            let next = self
                .decoder
                .next(&self.buffer)
                .expect("the server's framing");
            let consumed = next.consumed();
            let mut done = false;
            match next {
                Next::More { .. } => {
                    let mut chunk = [0; 16 << 10];
                    let read = self.stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
                    self.buffer.extend_from_slice(&chunk[..read]);
                }
                Next::Whole { tag, payload, .. } => {
                    whole = Some((tag, payload.to_vec()));
                    done = true;
                }
                Next::Begin { tag, head, .. } => whole = Some((tag, head.to_vec())),
                Next::Part { raw, left, .. } => {
                    whole.as_mut()?.1.extend_from_slice(raw);
                    done = left == 0;
                }
            }
            self.buffer.drain(..consumed);
            if done {
                return whole;
            }
        }
    }
}

/// The columns of a DataRow; NULL is empty.
fn columns(payload: &[u8]) -> Vec<String> {
    let mut rest = &payload[2..];
    let mut columns = vec![];
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        columns.push(String::from_utf8_lossy(&after[..length]).into_owned());
        rest = &after[length..];
    }
    columns
}
