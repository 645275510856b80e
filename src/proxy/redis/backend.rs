//! A connection of a client to the backend: opened, and known to the server by its id, before the
//! client's first byte passes.
//!
//! Invariant: nothing that the proxy says on it changes what the client finds: after the control
//! user has asked, RESET (redis.io/commands/reset) makes it a fresh connection again.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::control::{self, RunId, SessionId};
use crate::config::{RedisListenerConfig, RedisUser, Upstream};
use crate::protocol::redis::{CommandTable, ReplyProgress, ReplyScanner, Value, encode_command};

/// Longest reply while a connection is opened, in bytes: COMMAND's is about 200 KB.
const REPLY_BYTES_MAX: usize = 8 << 20;

/// Opens the connections of one listener.
pub struct Connector {
    upstream: Upstream,
    user: RedisUser,
    connect_max: Duration,
    /// The commands of the server life that was connected to last.
    table: Mutex<Option<(RunId, Arc<CommandTable>)>>,
}

/// An open connection.
pub struct Opened {
    /// The socket: every reply to what the proxy asked has been read from it.
    pub stream: TcpStream,
    /// Who it is for the server.
    pub session: SessionId,
    /// The server's commands.
    pub table: Arc<CommandTable>,
}

/// Why there is no connection. Nothing of the client's was sent.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The network.
    #[error("the backend cannot be reached: {0}")]
    Unreachable(#[from] std::io::Error),
    /// It took too long.
    #[error("the backend took longer than {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// What it answered.
    #[error("the backend does not tell who the connection is: {0}")]
    Refused(String),
}

impl Connector {
    /// For this listener.
    pub fn new(config: &RedisListenerConfig) -> Connector {
        Connector {
            upstream: config.upstream.clone(),
            user: config.control.clone(),
            connect_max: config.limits.upstream_connect_timeout,
            table: Mutex::default(),
        }
    }

    /// A new connection.
    pub async fn open(&self) -> Result<Opened, OpenError> {
        let timed_out = |_| OpenError::TimedOut(self.connect_max);
        tokio::time::timeout(self.connect_max, self.open_unbounded())
            .await
            .map_err(timed_out)?
    }

    async fn open_unbounded(&self) -> Result<Opened, OpenError> {
        let upstream = (self.upstream.host.as_str(), self.upstream.port);
        let stream = TcpStream::connect(upstream).await?;
        stream.set_nodelay(true)?;
        let mut asking = Asking {
            stream,
            received: BytesMut::new(),
        };
        if let Some(auth) = auth(&self.user) {
            asking.ask(&auth, |_| Ok(())).await?;
        }
        let id = asking.ask(&["CLIENT", "ID"], client_id).await?;
        let run_id = asking.ask(&["INFO", "server"], run_id).await?;
        let table = self.table(&run_id, &mut asking).await?;
        if auth(&self.user).is_some() {
            asking.ask(&["RESET"], |_| Ok(())).await?;
        }
        Ok(Opened {
            stream: asking.stream,
            session: SessionId { run_id, id },
            table,
        })
    }

    /// Carries out commands on a connection that nobody uses yet, each of which must succeed.
    pub async fn prepare(
        &self,
        stream: TcpStream,
        steps: &[Vec<u8>],
    ) -> Result<TcpStream, OpenError> {
        let mut asking = Asking {
            stream,
            received: BytesMut::new(),
        };
        let prepared = async {
            for step in steps {
                let reply = asking.ask_bytes(step).await?;
                if reply.starts_with(b"-") || reply.starts_with(b"!") {
                    let text = String::from_utf8_lossy(&reply);
                    return Err(OpenError::Refused(text.trim_end().to_owned()));
                }
            }
            Ok(())
        };
        let timed_out = |_| OpenError::TimedOut(self.connect_max);
        tokio::time::timeout(self.connect_max, prepared)
            .await
            .map_err(timed_out)??;
        Ok(asking.stream)
    }

    async fn table(
        &self,
        run_id: &RunId,
        asking: &mut Asking,
    ) -> Result<Arc<CommandTable>, OpenError> {
        let mut kept = self.table.lock().await;
        if let Some((of, table)) = &*kept
            && of == run_id
        {
            return Ok(Arc::clone(table));
        }
        let reply = asking.ask_bytes(&encode_command(&["COMMAND"])).await?;
        let table = CommandTable::parse(&reply)
            .map_err(|error| OpenError::Refused(format!("COMMAND: {error}")))?;
        let table = Arc::new(table);
        *kept = Some((Arc::clone(run_id), Arc::clone(&table)));
        Ok(table)
    }
}

fn client_id(answer: &Value<'_>) -> Result<u64, String> {
    let id = answer.as_integer().and_then(|id| u64::try_from(id).ok());
    id.ok_or_else(|| "no number".to_owned())
}

fn run_id(answer: &Value<'_>) -> Result<RunId, String> {
    let text = answer.as_text().and_then(|it| std::str::from_utf8(it).ok());
    let info = text.ok_or_else(|| "no text".to_owned())?;
    control::read_info(info).map_err(|error| error.to_string())
}

fn auth(user: &RedisUser) -> Option<Vec<&str>> {
    let password = user.password.as_deref()?;
    Some(match user.name.as_deref() {
        Some(name) => vec!["AUTH", name, password],
        None => vec!["AUTH", password],
    })
}

/// One question at a time on a connection that nobody else uses yet.
struct Asking {
    stream: TcpStream,
    received: BytesMut,
}

impl Asking {
    async fn ask<T>(
        &mut self,
        command: &[&str],
        take: impl FnOnce(&Value<'_>) -> Result<T, String>,
    ) -> Result<T, OpenError> {
        let reply = self.ask_bytes(&encode_command(command)).await?;
        let taken = match Value::parse(&reply) {
            Ok((Value::Error(text), _)) => Err(String::from_utf8_lossy(text).into()),
            Ok((value, _)) => take(&value),
            Err(error) => Err(error.to_string()),
        };
        taken.map_err(|error| OpenError::Refused(format!("{}: {error}", command[0])))
    }

    async fn ask_bytes(&mut self, command: &[u8]) -> Result<BytesMut, OpenError> {
        self.stream.write_all(command).await?;
        let mut scanner = ReplyScanner::new();
        loop {
            match scanner.scan(&self.received) {
                Ok(ReplyProgress::Complete { len, .. }) => return Ok(self.received.split_to(len)),
                Ok(_) => {}
                Err(error) => return Err(OpenError::Refused(error.to_string())),
            }
            if self.received.len() > REPLY_BYTES_MAX {
                return Err(OpenError::Refused("it answers too much".to_owned()));
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                let ended = "it has closed the connection".to_owned();
                return Err(OpenError::Refused(ended));
            }
        }
    }
}
