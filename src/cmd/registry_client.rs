//! Connecting to the registry of a lock service.

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::client::PATIENCE;
use crate::proto::registry_service_client::RegistryServiceClient;

use super::exit::{self, Failure};

/// The first of the addresses that answers; the failure of the last one if none does.
pub(super) async fn connect(
    addresses: &[String],
) -> Result<RegistryServiceClient<Channel>, Failure> {
    let mut failure = Failure::new(exit::USAGE, "no address of a lock service");
    for address in addresses {
        match connect_to(address).await {
            Ok(channel) => return Ok(RegistryServiceClient::new(channel)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

async fn connect_to(address: &str) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| {
        Failure::new(
            exit::USAGE,
            format!("not the address of a lock service: {address} ({error})"),
        )
    })?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    endpoint.connect().await.map_err(|error| {
        Failure::new(
            exit::UNREACHABLE,
            format!("no lock service answers at {address}: {error}"),
        )
    })
}

/// The failure of a call to it.
pub(super) fn refused(status: &Status) -> Failure {
    let code = match status.code() {
        Code::Unavailable => exit::UNREACHABLE,
        Code::InvalidArgument => exit::USAGE,
        _ => exit::FAILED,
    };
    Failure::new(code, format!("lock service: {}", status.message()))
}
