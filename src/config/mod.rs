//! Configuration: TOML to validated types. What is here is right: addresses parse, patterns are
//! compiled, names are unique. All errors of a file are found at once, each with its line and the
//! value that was wrong; a key that is not known is an error that names the nearest one.
//!
//! It leaves to the shells: binding, connecting, creating folders.

mod lockd;
mod proxy;
mod reader;
mod values;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

pub use lockd::{EtcdConfig, LockdConfig, SealConfig, SealMode, StoreConfig};
pub use proxy::{
    AdminConfig, AuditConfig, BackendUser, FenceKeysConfig, Limits, ListenerConfig, Mode,
    ProxyConfig, RedisLimits, RedisListenerConfig, RedisUser, TicketSource, TruncatedBody, Trust,
    Upstream, WatermarkStore, read_key_file,
};
#[cfg(feature = "postgres")]
pub use proxy::{
    ClientTls, ControlRole, PostgresLimits, PostgresListenerConfig, Replication, UpstreamPath,
    UpstreamTls, UpstreamTlsMode,
};

/// One thing that is wrong in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The line, from 1; `None` when it is about the whole file.
    pub line: Option<usize>,
    /// What is wrong, with the value.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// All that is wrong in a file, in the order of its lines.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ConfigErrors {
    /// The file, where there is one.
    pub file: Option<String>,
    /// At least one.
    pub errors: Vec<ConfigError>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.errors.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            if let Some(file) = &self.file {
                write!(f, "{file}: ")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// Reads a file and parses it; names the file in every error.
fn load<T>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, ConfigErrors>,
) -> Result<T, ConfigErrors> {
    let file = Some(path.display().to_string());
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).map_err(|errors| ConfigErrors { file, ..errors }),
        Err(error) => {
            let message = format!("cannot be read: {error}");
            Err(ConfigErrors {
                file,
                errors: vec![ConfigError {
                    line: None,
                    message,
                }],
            })
        }
    }
}
