//! Opening the control connection, asking on it, and opening it again.

use std::future::poll_fn;
use std::sync::{Arc, Weak};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, Notify};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Row};

use super::{CALL_MAX, Control, ControlError, Inner, check_system, column, rights};

/// What a server and its log call our connections.
const APPLICATION: &str = "ringfence control";
/// Whatever is set for the role: nothing of ours is found in a schema that somebody has put before
/// the server's own, and what we write is on disk when we are told so.
const OPTIONS: &str = "-c search_path=pg_catalog -c default_transaction_isolation=read\\ committed \
     -c default_transaction_read_only=off -c synchronous_commit=on";
/// Where proxies tell each other that a watermark was raised.
const LISTEN: &str = "LISTEN ringfence";

/// A connection to a known server.
#[derive(Clone)]
pub struct Link {
    pub(super) client: Arc<Client>,
    /// Whose it is: the database cluster's own number.
    pub system: Arc<str>,
    /// The role can end superusers' sessions.
    pub is_superuser: bool,
}

const WHO: &str = "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
     (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), pg_is_in_recovery()";

impl Control {
    /// The connection, opened if there is none.
    pub(super) async fn link(&self) -> Result<Link, ControlError> {
        let mut kept = self.inner.link.lock().await;
        if let Some(link) = &*kept
            && !link.client.is_closed()
        {
            return Ok(link.clone());
        }
        let client = self.connect(&self.role()?.database).await?;
        let link = Link::new(client).await?;
        if let Some(raised) = &self.inner.raised {
            within(async { Ok(link.client.batch_execute(LISTEN).await?) }).await?;
            // What was told while there was no link.
            raised.notify_one();
        }
        *kept = Some(link.clone());
        Ok(link)
    }

    /// Which database cluster answers: its own number.
    pub(in crate::proxy::postgres) async fn system(&self) -> Result<Arc<str>, ControlError> {
        Ok(self.link().await?.system)
    }

    /// Waits until another proxy may have raised a watermark in the server. For one task.
    pub(in crate::proxy::postgres) async fn raised(&self) {
        match &self.inner.raised {
            Some(raised) => raised.notified().await,
            None => std::future::pending().await,
        }
    }

    /// One question, and its answer.
    pub(in crate::proxy::postgres) async fn call(
        &self,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, ControlError> {
        let link = self.link().await?;
        self.ask(&link, statement, params).await
    }

    /// The same about sessions of this system: another one's answer would prove nothing.
    pub(in crate::proxy::postgres) async fn call_on(
        &self,
        system: &str,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, ControlError> {
        let link = self.link().await?;
        check_system(&link, system)?;
        self.ask(&link, statement, params).await
    }

    /// A connection of its own to a database, which ends with the client. Errors where the role may
    /// not connect to it.
    pub(in crate::proxy::postgres) async fn connect(
        &self,
        database: &str,
    ) -> Result<Client, ControlError> {
        let connecting = async {
            let stream = self.inner.door.connect().await;
            let stream = stream.map_err(|error| match error.is_final() {
                true => ControlError::Unfit(error.to_string()),
                false => ControlError::NotNow(error.to_string()),
            })?;
            let settings = self.settings(database)?;
            let (client, connection) = settings.connect_raw(stream, NoTls).await?;
            self.inner
                .runtime
                .spawn(carry(connection, Arc::downgrade(&self.inner)));
            Ok(client)
        };
        within(connecting).await
    }

    /// Runs a task beside the control connection.
    pub(in crate::proxy::postgres) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.inner.runtime.spawn(task);
    }

    fn settings(&self, database: &str) -> Result<Config, ControlError> {
        let role = self.role()?;
        let mut config = Config::new();
        config
            .user(&role.user)
            .dbname(database)
            .application_name(APPLICATION)
            .options(OPTIONS)
            // The door has negotiated it.
            .ssl_mode(SslMode::Disable);
        if let Some(password) = &role.password {
            config.password(password);
        }
        Ok(config)
    }

    /// One question on the link, and its answer. A link that does not answer in time is given up.
    pub(super) async fn ask(
        &self,
        link: &Link,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, ControlError> {
        let asked = async { Ok(link.client.query_typed(statement, params).await?) };
        let answer = within(asked).await;
        if matches!(answer, Err(ControlError::NotNow(_))) {
            let mut kept = self.inner.link.lock().await;
            if kept
                .as_ref()
                .is_some_and(|it| Arc::ptr_eq(&it.client, &link.client))
            {
                *kept = None;
            }
        }
        answer
    }

    /// Tries every right that will be needed. Blocks, for at most a few seconds; for the start.
    /// Not reachable is no error here: it may come up later.
    pub fn check(&self) -> Result<(), ControlError> {
        if !self.has_role() {
            return Ok(());
        }
        // A thread and a runtime of their own: the caller may be within one, which must not be
        // blocked on.
        let checked = std::thread::scope(|scope| scope.spawn(|| self.try_rights()).join());
        match checked {
            Ok(Err(ControlError::NotNow(error))) => {
                tracing::warn!(%error, "the backend does not answer yet");
                Ok(())
            }
            Ok(checked) => checked,
            Err(_) => Err(ControlError::Unfit("it was not asked".to_owned())),
        }
    }

    fn try_rights(&self) -> Result<(), ControlError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ControlError::NotNow(error.to_string()))?;
        let control = Control {
            inner: Arc::new(Inner {
                door: Arc::clone(&self.inner.door),
                role: self.inner.role.clone(),
                path: self.inner.path,
                runtime: runtime.handle().clone(),
                link: Mutex::default(),
                raised: self.inner.raised.is_some().then(Notify::new),
            }),
        };
        runtime.block_on(rights::check(&control))
    }
}

impl Link {
    async fn new(client: Client) -> Result<Link, ControlError> {
        let asked = async { Ok(client.query_typed(WHO, &[]).await?) };
        let rows = within(asked).await?;
        let Some(row) = rows.first() else {
            return Err(ControlError::Unfit("it does not say who it is".to_owned()));
        };
        // It would list none of the sessions that write at the primary. It stays one until it is
        // restarted or promoted, and a primary becomes none without a restart.
        if column(row, 2)? {
            let standby = "it is a standby, which does not know who writes at the primary";
            return Err(ControlError::NotNow(standby.to_owned()));
        }
        Ok(Link {
            system: column::<String>(row, 0)?.into(),
            is_superuser: column(row, 1)?,
            client: Arc::new(client),
        })
    }
}

/// Carries a connection to its end.
async fn carry<S, T>(mut connection: Connection<S, T>, control: Weak<Inner>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            None => return,
            Some(Ok(AsyncMessage::Notification(_))) => {
                let inner = control.upgrade();
                if let Some(raised) = inner.as_ref().and_then(|it| it.raised.as_ref()) {
                    raised.notify_one();
                }
            }
            // Notices are for people.
            Some(Ok(_)) => {}
            Some(Err(error)) => return tracing::debug!(%error, "a control connection has ended"),
        }
    }
}

/// The answer, unless it takes too long.
async fn within<T>(
    answer: impl Future<Output = Result<T, ControlError>>,
) -> Result<T, ControlError> {
    match tokio::time::timeout(CALL_MAX, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(ControlError::NotNow(format!(
            "nothing came for {CALL_MAX:?}"
        ))),
    }
}
