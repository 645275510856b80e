//! A client that hides nothing: it sends the bytes that it is told, and keeps all that it hears.

mod reply;
pub mod send;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::stack::PATIENCE;

pub use reply::{Answer, Fault, Reply};
use send::{V3_0, cancel_request, startup};

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// What BackendKeyData told.
    pub key: Vec<u8>,
    /// Every ParameterStatus of the start, in order.
    pub parameters: Vec<(String, String)>,
    /// Every message since the start.
    pub heard: Vec<Reply>,
}

impl Client {
    /// A connection on which nothing was said yet.
    pub fn open(address: SocketAddr) -> Client {
        Client::try_open(address).expect("nothing listens")
    }

    fn try_open(address: SocketAddr) -> Option<Client> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some(Client {
            stream,
            buffer: vec![],
            key: vec![],
            parameters: vec![],
            heard: vec![],
        })
    }

    /// A session of the role `app` in its database.
    #[track_caller]
    pub fn connect(address: SocketAddr) -> Client {
        Client::connect_with(address, &[])
    }

    /// The same with these parameters at its start.
    #[track_caller]
    pub fn connect_with(address: SocketAddr, parameters: &[(&str, &str)]) -> Client {
        let started = Client::try_connect(address, parameters);
        started.unwrap_or_else(|fault| panic!("no session: {fault:?}"))
    }

    /// The error in place of a session; one without a code where the server told none.
    pub fn try_connect(address: SocketAddr, parameters: &[(&str, &str)]) -> Result<Client, Fault> {
        let mut all = vec![("user", "app"), ("database", "app")];
        all.retain(|(name, _)| !parameters.iter().any(|(given, _)| given == name));
        all.extend(parameters);
        let mut client =
            Client::try_open(address).ok_or_else(|| Fault::local("nothing listens"))?;
        client.send(&startup(V3_0, &all));
        client.begin()?;
        Ok(client)
    }

    /// Reads to the first ReadyForQuery.
    pub fn begin(&mut self) -> Result<(), Fault> {
        loop {
            let ended = || Fault::local("the connection has ended");
            let reply = self.try_read().ok_or_else(ended)?;
            match reply.tag {
                b'R' if reply.body != [0; 4] => panic!("a password is asked for: {reply:?}"),
                b'S' => {
                    let text = String::from_utf8_lossy(&reply.body);
                    let mut texts = text.split('\0').map(str::to_owned);
                    let (name, value) = (texts.next().unwrap(), texts.next().unwrap());
                    self.parameters.push((name, value));
                }
                b'K' => self.key = reply.body,
                b'E' => return Err(Fault::read(&reply.body)),
                b'Z' => {
                    self.heard.clear();
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// The pid that the server told. Behind the proxy it may be another one than the backend's.
    pub fn backend_pid(&mut self) -> i32 {
        let told = self.query("SELECT pg_backend_pid()").value();
        told.parse().expect("a pid")
    }

    /// Sends it if the connection is still there.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next message; `None`: the connection has ended.
    pub fn try_read(&mut self) -> Option<Reply> {
        let reply = loop {
            if let Some(reply) = self.take() {
                break reply;
            }
            let mut chunk = [0; 64 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(read) => self.buffer.extend(&chunk[..read]),
                Err(error) if timed_out(&error) => {
                    panic!("nothing came within {PATIENCE:?} after {:?}", self.heard)
                }
                Err(_) => return None,
            }
        };
        self.heard.push(reply.clone());
        Some(reply)
    }

    fn take(&mut self) -> Option<Reply> {
        let head = self.buffer.first_chunk::<5>()?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if self.buffer.len() < length + 1 {
            return None;
        }
        let message: Vec<u8> = self.buffer.drain(..=length).collect();
        Some(Reply {
            tag: message[0],
            body: message[5..].to_vec(),
        })
    }

    #[track_caller]
    pub fn read(&mut self) -> Reply {
        let reply = self.try_read();
        reply.unwrap_or_else(|| panic!("the connection has ended after {:?}", self.heard))
    }

    /// Reads to a message of this type.
    #[track_caller]
    pub fn read_until(&mut self, tag: u8) -> Reply {
        loop {
            let reply = self.read();
            assert!(
                reply.tag == tag || reply.tag != b'Z',
                "ready before {}: {:?}",
                char::from(tag),
                self.heard
            );
            if reply.tag == tag {
                return reply;
            }
        }
    }

    /// Nothing comes for this long: it has no end to wait for.
    #[track_caller]
    pub fn hears_nothing(&mut self, time: Duration) {
        assert!(self.buffer.is_empty(), "{:?}", self.buffer);
        self.stream.set_read_timeout(Some(time)).unwrap();
        let mut chunk = [0; 1024];
        match self.stream.read(&mut chunk) {
            Err(error) if timed_out(&error) => {}
            other => panic!(
                "{other:?}: {:?}",
                &chunk[..other.as_ref().map_or(0, |it| *it)]
            ),
        }
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// One byte that is no message: the answer to an SSLRequest.
    pub fn read_byte(&mut self) -> Option<u8> {
        let mut byte = [0];
        matches!(self.stream.read(&mut byte), Ok(1)).then_some(byte[0])
    }

    /// What comes up to the next ReadyForQuery, or to the end of the connection.
    pub fn answer(&mut self) -> Answer {
        let mut answer = Answer::default();
        while let Some(reply) = self.try_read() {
            answer.take(&reply);
            if reply.tag == b'Z' {
                break;
            }
        }
        answer
    }

    /// A simple query.
    pub fn query(&mut self, sql: &str) -> Answer {
        self.ask(&send::query(sql))
    }

    /// Bytes that one ReadyForQuery answers.
    pub fn ask(&mut self, bytes: &[u8]) -> Answer {
        self.send(bytes);
        self.answer()
    }

    /// Parse, Bind, Execute, Sync.
    pub fn run(&mut self, sql: &str, values: &[&str]) -> Answer {
        self.ask(&[send::run(sql, values), send::sync()].concat())
    }

    /// Whether the other side has ended the connection; reads what is left.
    pub fn has_ended(&mut self) -> bool {
        while self.try_read().is_some() {}
        true
    }

    /// Another handle, for a thread that sends.
    pub fn writer(&self) -> Writer {
        Writer(self.stream.try_clone().unwrap())
    }

    pub fn shut_down(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Sends on a client's connection.
pub struct Writer(TcpStream);

impl Writer {
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }
}

fn timed_out(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends a CancelRequest and waits until the other side ends the connection, as libpq does.
pub fn cancel(address: SocketAddr, key: &[u8]) {
    let mut client = Client::open(address);
    client.send(&cancel_request(key));
    assert_eq!(client.read_byte(), None, "an answer to a cancel request");
}
