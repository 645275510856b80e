//! Who the proxy itself is at an etcd that has users: its floors are written by a user of its own,
//! which alone may write below the fence prefix.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};

use super::upstream::{Backend, own_headers};
use crate::config::BackendUser;
use crate::protocol::etcd::wire;

/// The identity, and the token that etcd gave for it.
pub struct Identity {
    user: Option<BackendUser>,
    token: Mutex<Option<HeaderValue>>,
}

impl Identity {
    /// This user; `None`: etcd knows none.
    pub fn new(user: Option<BackendUser>) -> Identity {
        Identity {
            user,
            token: Mutex::new(None),
        }
    }

    /// The headers of a call of ours. An error says why etcd does not know us.
    pub async fn headers(
        &self,
        backend: &Backend,
        wait_max: Duration,
    ) -> Result<HeaderMap, String> {
        let mut headers = own_headers();
        let Some(user) = &self.user else {
            return Ok(headers);
        };
        let known = self.slot().clone();
        let token = match known {
            Some(token) => token,
            None => {
                let token = authenticate(backend, user, wait_max).await?;
                *self.slot() = Some(token.clone());
                token
            }
        };
        headers.insert("token", token);
        Ok(headers)
    }

    /// The token may have ended. False: there is none to be had anew.
    pub fn forget(&self) -> bool {
        self.slot().take();
        self.user.is_some()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<HeaderValue>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn authenticate(
    backend: &Backend,
    user: &BackendUser,
    wait_max: Duration,
) -> Result<HeaderValue, String> {
    let file = &user.password_file;
    let password = tokio::fs::read_to_string(file).await;
    let password = password.map_err(|error| format!("{}: {error}", file.display()))?;
    // `AuthenticateRequest { name, password }`.
    let mut request = vec![];
    wire::put_bytes(&mut request, 1, user.name.as_bytes());
    wire::put_bytes(&mut request, 2, password.trim_end_matches('\n').as_bytes());
    let path = "/etcdserverpb.Auth/Authenticate";
    let called = backend.call(path, own_headers(), &request, wait_max).await;
    let unary = called.map_err(|error| error.to_string())?;
    let Some(message) = unary.message.as_ref().filter(|_| unary.status() == Some(0)) else {
        return Err(unary.reason());
    };
    // `AuthenticateResponse.token`.
    let token = wire::bytes_of(message, 2).map_err(|error| error.to_string())?;
    let mut token = HeaderValue::from_bytes(token).map_err(|error| error.to_string())?;
    token.set_sensitive(true);
    Ok(token)
}
