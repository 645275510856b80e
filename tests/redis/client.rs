//! A client that hides nothing: it sends what it is told, and reads one reply at a time.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use redis::{Parser, Value};

use crate::stack::PATIENCE;

pub struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    parser: Parser,
}

pub fn ok() -> Value {
    Value::Okay
}

pub fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// The text of an error, such as `FENCED ...`; panics on anything else.
pub fn error(value: &Value) -> String {
    match value {
        Value::ServerError(error) => {
            format!("{} {}", error.code(), error.details().unwrap_or_default())
        }
        other => panic!("expected an error: {other:?}"),
    }
}

/// The first word of an error.
pub fn code(value: &Value) -> String {
    let error = error(value);
    error.split(' ').next().unwrap_or_default().to_owned()
}

/// A command as clients send it: an array of bulk strings.
pub fn encode(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).into_bytes());
    }
    bytes
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).expect("nothing listens")
    }

    pub fn try_connect(address: SocketAddr) -> Option<Client> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Some(Client {
            stream,
            reader,
            parser: Parser::new(),
        })
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, arguments: &[&str]) {
        self.send_bytes(&encode(arguments));
    }

    /// Sends it if the connection is still there.
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// The next reply. Panics when none comes.
    pub fn read(&mut self) -> Value {
        self.try_read().expect("the connection has ended")
    }

    /// The next reply; `None`: the connection has ended.
    pub fn try_read(&mut self) -> Option<Value> {
        match self.parser.parse_value(&mut self.reader) {
            Ok(value) => Some(value),
            Err(error) if error.is_timeout() => panic!("no reply came within {PATIENCE:?}"),
            Err(_) => None,
        }
    }

    /// The replies that are left until the connection ends.
    pub fn drain(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.try_read()).collect()
    }

    pub fn call(&mut self, arguments: &[&str]) -> Value {
        self.send(arguments);
        self.read()
    }

    /// So many bytes as they come.
    pub fn read_bytes(&mut self, len: usize) -> String {
        let mut got = vec![0; len];
        self.reader.read_exact(&mut got).unwrap();
        String::from_utf8_lossy(&got).into_owned()
    }

    /// Reads bytes as they come, to the length of what is expected.
    pub fn expect_bytes(&mut self, expected: &[u8]) {
        let got = self.read_bytes(expected.len());
        assert_eq!(got, String::from_utf8_lossy(expected));
    }
}
