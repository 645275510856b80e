//! Making the schema `ringfence`, and checking that it is there.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

use crate::config::PostgresListenerConfig;
use crate::proxy::postgres::control::{Control, ControlError, column};
use crate::proxy::postgres::door::{Door, InvalidDoor};

const SCHEMA: &str = include_str!("schema.sql");
/// What `ringfence.format` says of it.
const VERSION: i32 = 2;
/// One installation at a time: `CREATE ... IF NOT EXISTS` does not stand its like.
const ONE: &str = "SELECT pg_advisory_xact_lock(7526180361)";
const VERSION_QUERY: &str = "SELECT version FROM ringfence.format";

/// Why the schema was not made.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The control role may not make a schema.
    #[error(
        "the control role {user:?} may not make the schema ringfence in database {database:?}: \
         {message}; GRANT CREATE ON DATABASE \"{database}\" TO \"{user}\" for as long as it installs"
    )]
    Denied {
        /// The role.
        user: String,
        /// The database.
        database: String,
        /// What the server says.
        message: String,
    },
    /// Its TLS.
    #[error(transparent)]
    Door(#[from] InvalidDoor),
    /// The server did not do it.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Makes the schema in the control role's database, or leaves what is there. Called within a tokio
/// runtime.
pub async fn install(config: &PostgresListenerConfig) -> Result<(), InstallError> {
    let Some(role) = &config.control else {
        // Without rules there is nothing to be kept.
        return Ok(());
    };
    let control = Control::new(config, Arc::new(Door::new(config)?), Handle::current());
    let client = control.connect(&role.database).await?;
    // A Query of several statements is one transaction.
    let text = format!("{ONE};\n{SCHEMA}");
    match client.batch_execute(&text).await {
        Ok(()) => Ok(check_installed(&client).await?),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let message = error.as_db_error().map(|db| db.message().to_owned());
            Err(InstallError::Denied {
                user: role.user.clone(),
                database: role.database.clone(),
                message: message.unwrap_or_default(),
            })
        }
        Err(error) => Err(ControlError::from(error).into()),
    }
}

/// An error says what to do where the schema is not there.
pub(in crate::proxy::postgres) async fn check_installed(
    client: &tokio_postgres::Client,
) -> Result<(), ControlError> {
    let missing = |what: &str| {
        Err(ControlError::Unfit(format!(
            "its control database {what} schema ringfence: run `ringfence proxy --install` with \
             this configuration first"
        )))
    };
    match client.query_typed(VERSION_QUERY, &[]).await {
        Ok(rows) => match rows.first().map(|row| column::<i32>(row, 0)).transpose()? {
            Some(VERSION) => Ok(()),
            Some(version) => Err(ControlError::Unfit(format!(
                "its schema ringfence has version {version}, this program knows {VERSION}: an \
                 older one is brought up by `ringfence proxy --install`"
            ))),
            None => missing("has an empty"),
        },
        Err(error) => match error.code() {
            Some(&SqlState::UNDEFINED_TABLE) => missing("has no"),
            _ => Err(error.into()),
        },
    }
}
