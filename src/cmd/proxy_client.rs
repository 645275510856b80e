//! Connecting to a proxy's admin port.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::exit::{self, Failure};

/// Time to set up a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Connects, or says what is wrong.
pub(super) async fn connect(address: &str) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| {
        Failure::new(
            exit::USAGE,
            format!("not the address of a proxy: {address:?} ({error})"),
        )
    })?;
    endpoint
        .connect_timeout(CONNECT_MAX)
        .connect()
        .await
        .map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let cause = cause.unwrap_or_else(|| error.to_string());
            Failure::new(
                exit::UNREACHABLE,
                format!("no proxy answers at {address}: {cause}"),
            )
        })
}

/// The failure of a call to a proxy.
pub(super) fn refused(status: &Status) -> Failure {
    let code = if status.code() == Code::Unavailable {
        exit::UNREACHABLE
    } else {
        exit::FAILED
    };
    Failure::new(
        code,
        format!(
            "the proxy refused: {} ({:?})",
            status.message(),
            status.code()
        ),
    )
}
