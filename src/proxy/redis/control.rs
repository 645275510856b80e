//! The control connection: what the proxy itself asks of a Redis server, beside its clients'
//! connections. Who is still connected, who is to be killed, what commands there are.
//!
//! Invariants:
//! - an answer is never taken without knowing whose it is: a connection belongs to one server
//!   process, whose `run_id` was read on it. Client ids start again with the process;
//! - only an answer of the server proves anything. A lost connection, a time-out and `-BUSY` (a
//!   script runs) prove nothing, and are tried again by whoever asks.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};
use redis::{Client, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::config::{RedisUser, Upstream};

/// How long one exchange on the control connection may take.
const CALL_MAX: Duration = Duration::from_secs(2);
/// What the control user must be allowed to do: for the error that says so.
const RIGHTS: &str = "+info +command +client|id +client|kill +client|list +reset";
/// An id that no client ever has: what rights there are is tried on it.
const NOBODY: u64 = 1 << 62;

/// One life of a server process: 40 hex digits, new with every start (`INFO server`).
pub type RunId = Arc<str>;

/// A backend session as its server knows it.
#[derive(Clone)]
pub struct SessionId {
    /// The life of the server.
    pub run_id: RunId,
    /// The client id there.
    pub id: u64,
}

/// The connection to one backend. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    connect_max: Duration,
    /// Carries the connection, whichever core asks.
    runtime: Handle,
    link: Mutex<Option<Link>>,
}

/// A connection to a known server process.
#[derive(Clone)]
pub struct Link {
    connection: MultiplexedConnection,
    /// Whose it is.
    pub run_id: RunId,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// Not now: unreachable, starting, or busy with a script.
    #[error("no answer on the control connection: {0}")]
    NotNow(RedisError),
    /// Never, until an operator changes something.
    #[error(
        "the control user may not do what proves old writes dead: {0}; it needs `{RIGHTS}` \
         (redis: ACL SETUSER), and its name and password here"
    )]
    Denied(RedisError),
    /// What answers is no Redis that this proxy can guard.
    #[error("the backend cannot be guarded: {0}")]
    Unfit(String),
}

impl From<RedisError> for ControlError {
    fn from(error: RedisError) -> ControlError {
        let denied = error.kind() == ErrorKind::AuthenticationFailed
            || error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        match denied {
            true => ControlError::Denied(error),
            false => ControlError::NotNow(error),
        }
    }
}

impl Control {
    /// A connection that opens when it is used, to this database. `runtime` carries it.
    pub fn new(
        upstream: &Upstream,
        user: &RedisUser,
        database: u32,
        connect_max: Duration,
        runtime: Handle,
    ) -> Result<Control, ControlError> {
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut settings = settings.set_db(database.into());
        if let Some(name) = &user.name {
            settings = settings.set_username(name);
        }
        if let Some(password) = &user.password {
            settings = settings.set_password(password);
        }
        let address = ConnectionAddr::Tcp(upstream.host.clone(), upstream.port);
        let address = address.into_connection_info()?.set_redis_settings(settings);
        Ok(Control {
            inner: Arc::new(Inner {
                client: Client::open(address)?,
                connect_max,
                runtime,
                link: Mutex::default(),
            }),
        })
    }

    /// Tries every right that will be needed. Blocks, for at most a few seconds; for the start.
    /// Not reachable is no error here: it may come up later.
    pub fn check(&self) -> Result<(), ControlError> {
        match self.try_rights() {
            Err(ControlError::NotNow(error)) => {
                tracing::warn!(%error, "the backend does not answer yet");
                Ok(())
            }
            checked => checked,
        }
    }

    /// Tries the rights that fence keys need. Blocks, as [`Control::check`] does.
    pub fn check_keys(&self, key: &str) -> Result<(), ControlError> {
        let try_rights = || -> Result<String, ControlError> {
            let inner = &self.inner;
            let mut connection = inner
                .client
                .get_connection_with_timeout(inner.connect_max)?;
            connection.set_read_timeout(Some(CALL_MAX))?;
            let script = "return redis.call('HGET', KEYS[1], 'state')";
            let mut eval = redis::cmd("EVAL");
            let _: Value = eval.arg(script).arg(1).arg(key).query(&mut connection)?;
            let _: Value = redis::cmd("HGET")
                .arg(key)
                .arg("state")
                .query(&mut connection)?;
            let _: Value = redis::cmd("HDEL").arg(key).arg("").query(&mut connection)?;
            let mut memory = redis::cmd("INFO");
            Ok(memory.arg("memory").query(&mut connection)?)
        };
        match try_rights() {
            Err(ControlError::NotNow(error)) => {
                tracing::warn!(%error, "the backend does not answer yet");
                Ok(())
            }
            Ok(memory) if memory.contains("maxmemory_policy:allkeys-") => {
                let reason = "its maxmemory-policy may evict fence keys: set a volatile- policy, or \
                              noeviction";
                Err(ControlError::Unfit(reason.to_owned()))
            }
            checked => checked.map(|_| ()),
        }
    }

    fn try_rights(&self) -> Result<(), ControlError> {
        let inner = &self.inner;
        let mut connection = inner
            .client
            .get_connection_with_timeout(inner.connect_max)?;
        connection.set_read_timeout(Some(CALL_MAX))?;
        let info: String = info().query(&mut connection)?;
        read_info(&info)?;
        let _: Value = redis::cmd("CLIENT").arg("ID").query(&mut connection)?;
        let _: Value = kill(&[NOBODY]).query(&mut connection)?;
        let _: Value = list(&[NOBODY]).query(&mut connection)?;
        let _: Value = redis::cmd("COMMAND").arg("COUNT").query(&mut connection)?;
        let _: Value = redis::cmd("RESET").query(&mut connection)?;
        Ok(())
    }

    /// The connection, opened if it is not.
    pub async fn link(&self) -> Result<Link, ControlError> {
        let mut kept = self.inner.link.lock().await;
        if let Some(link) = &*kept {
            return Ok(link.clone());
        }
        let inner = Arc::clone(&self.inner);
        let opening = async move { open(&inner.client, inner.connect_max).await };
        // Its reading task must live as long as the connection, not as long as the asking core.
        let opened = self.inner.runtime.spawn(opening).await;
        let link = opened.map_err(|_| ControlError::Unfit("the proxy is ending".to_owned()))??;
        *kept = Some(link.clone());
        Ok(link)
    }

    /// Whether the connection is to this life of a server, opened anew if it was to another one.
    pub async fn leads_to(&self, run_id: &str) -> Result<bool, ControlError> {
        if *self.link().await?.run_id == *run_id {
            return Ok(true);
        }
        *self.inner.link.lock().await = None;
        Ok(*self.link().await?.run_id == *run_id)
    }

    /// Runs one command. On an error of the connection, or where it cannot be told, the connection
    /// is opened anew for the next one.
    pub async fn call(&self, command: &Cmd) -> Result<(RunId, Value), ControlError> {
        let mut link = self.link().await?;
        let answer = command.query_async(&mut link.connection).await;
        self.took(link.run_id, answer).await
    }

    /// Runs several commands in one exchange.
    pub async fn call_all(&self, commands: &Pipeline) -> Result<(RunId, Value), ControlError> {
        let mut link = self.link().await?;
        let answer = commands.query_async(&mut link.connection).await;
        self.took(link.run_id, answer).await
    }

    async fn took(
        &self,
        run_id: RunId,
        answer: Result<Value, RedisError>,
    ) -> Result<(RunId, Value), ControlError> {
        match answer {
            Ok(answer) => Ok((run_id, answer)),
            Err(error) => {
                let of_server = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
                if !of_server {
                    *self.inner.link.lock().await = None;
                }
                Err(error.into())
            }
        }
    }

    /// The clients of the server but this connection, of one life of it. Not replicas: they write
    /// nothing.
    pub async fn other_clients(&self) -> Result<(RunId, Vec<u64>), ControlError> {
        let mut commands = redis::pipe();
        commands.cmd("CLIENT").arg("ID");
        for kind in ["normal", "pubsub"] {
            commands.cmd("CLIENT").arg("LIST").arg("TYPE").arg(kind);
        }
        let (run_id, answer) = self.call_all(&commands).await?;
        let unfit = || ControlError::Unfit("it does not list its clients".to_owned());
        let Value::Array(answers) = answer else {
            return Err(unfit());
        };
        let [Value::Int(own), lists @ ..] = answers.as_slice() else {
            return Err(unfit());
        };
        let mut clients = vec![];
        for list in lists {
            clients.extend(ids_of(text(list).ok_or_else(unfit)?));
        }
        clients.retain(|id| i64::try_from(*id) != Ok(*own));
        Ok((run_id, clients))
    }

    /// Kills these clients of this server process, and tells which of them it still knows
    /// afterwards: none of the others can execute anything any more.
    pub async fn kill_and_list(&self, run_id: &str, ids: &[u64]) -> Result<Vec<u64>, ControlError> {
        let link = self.link().await?;
        if *link.run_id != *run_id {
            // Clients end with their server.
            return Ok(vec![]);
        }
        let mut commands = redis::pipe();
        for id in ids {
            commands.add_command(kill(&[*id]));
        }
        commands.add_command(list(ids));
        let (answered, answer) = self.call_all(&commands).await?;
        if *answered != *run_id {
            return Ok(vec![]);
        }
        let listed = match answer {
            Value::Array(mut answers) => answers.pop(),
            _ => None,
        };
        listed
            .as_ref()
            .and_then(text)
            .map(ids_of)
            .ok_or_else(|| ControlError::Unfit("CLIENT LIST answers no text".to_owned()))
    }
}

async fn open(client: &Client, connect_max: Duration) -> Result<Link, ControlError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_max))
        .set_response_timeout(Some(CALL_MAX));
    let opening = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = opening.await?;
    let text: String = info().query_async(&mut connection).await?;
    let run_id = read_info(&text)?;
    Ok(Link { connection, run_id })
}

fn info() -> Cmd {
    let mut command = redis::cmd("INFO");
    command.arg("server");
    command
}

fn kill(ids: &[u64]) -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("KILL").arg("ID").arg(ids);
    command
}

fn list(ids: &[u64]) -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("LIST").arg("ID").arg(ids);
    command
}

/// The run id, if this proxy can guard what says so of itself.
pub fn read_info(text: &str) -> Result<RunId, ControlError> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim_end)
    };
    if field("redis_mode") == Some("cluster") {
        let reason = "it is a node of a cluster, and clients must not be sent to other nodes";
        return Err(ControlError::Unfit(reason.to_owned()));
    }
    let run_id = field("run_id").filter(|it| !it.is_empty());
    let unknown = || ControlError::Unfit("INFO tells no run_id".to_owned());
    run_id.map(Into::into).ok_or_else(unknown)
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::VerbatimString { text, .. } => Some(text),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The ids of a client list: a line per client, fields `name=value`, `id` first.
fn ids_of(list: &str) -> Vec<u64> {
    list.lines()
        .filter_map(|line| line.split(' ').find_map(|it| it.strip_prefix("id=")))
        .filter_map(|id| id.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{ids_of, read_info};

    #[test]
    fn info_tells_the_run_id_and_a_cluster_is_refused() {
        let info = "# Server\r\nredis_mode:standalone\r\nrun_id:0a1b\r\ntcp_port:6379\r\n";
        assert_eq!(&*read_info(info).unwrap(), "0a1b");
        assert!(read_info("redis_mode:cluster\r\nrun_id:0a1b\r\n").is_err());
        assert!(read_info("redis_mode:standalone\r\nrun_id:\r\n").is_err());
    }

    #[test]
    fn a_list_of_clients_tells_their_ids() {
        let list = "id=7 addr=127.0.0.1:1 name=id=9 db=0\nid=12 addr=[::1]:2 name= db=3\n";
        assert_eq!(ids_of(list), [7, 12]);
        assert!(ids_of("").is_empty());
    }
}
