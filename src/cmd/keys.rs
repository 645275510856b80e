//! `ringfence keys`: the keys that sign tickets.

use std::path::PathBuf;

use serde_json::{Value, json};
use tonic::transport::Endpoint;

use crate::cli::{KeysCommand, KeysFolder, KeysShowArgs, Output};
use crate::client::PATIENCE;
use crate::config::LockdConfig;
use crate::lockd::keys::{SigningKeys, rotate};
use crate::proto::KeysRequest;
use crate::proto::registry_service_client::RegistryServiceClient;
use crate::ticket::VerifyingKey;

use super::exit::{self, Failure};
use super::{print_json, print_line};

/// Runs one of the commands.
pub async fn run(command: KeysCommand) -> Result<u8, Failure> {
    match command {
        KeysCommand::Generate(folder) => generate(folder),
        KeysCommand::Rotate(folder) => rotate_in(folder),
        KeysCommand::Show(args) => show(args).await,
    }
}

fn generate(folder: KeysFolder) -> Result<u8, Failure> {
    let folder = resolve(folder)?;
    let keys = SigningKeys::load_or_create(&folder)
        .map_err(|error| Failure::because("cannot make a key", error))?;
    print_key(keys.current().signing.verifying())?;
    Ok(exit::OK)
}

fn rotate_in(folder: KeysFolder) -> Result<u8, Failure> {
    let folder = resolve(folder)?;
    let keys = rotate(&folder).map_err(|error| Failure::because("cannot rotate", error))?;
    for key in keys.verifying() {
        print_key(key)?;
    }
    Ok(exit::OK)
}

fn resolve(folder: KeysFolder) -> Result<PathBuf, Failure> {
    match (folder.folder, folder.config) {
        (Some(folder), _) => Ok(folder),
        (None, Some(file)) => match LockdConfig::load(&file) {
            Ok(config) => Ok(config.keys_dir()),
            Err(errors) => Err(Failure::new(exit::USAGE, errors.to_string())),
        },
        (None, None) => Ok(LockdConfig::default().keys_dir()),
    }
}

/// Two lines that a proxy's key file takes as they are.
fn print_key(key: &VerifyingKey) -> Result<(), Failure> {
    print_line(&format!("# {}", key.id()))?;
    print_line(&key.to_text())
}

async fn show(args: KeysShowArgs) -> Result<u8, Failure> {
    let mut failure = None;
    for address in &args.lockd.endpoints {
        match ask(address).await {
            Ok(keys) => return print_keys(&keys, args.output.output),
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.unwrap_or_else(|| Failure::new(exit::USAGE, "no address of a lock service")))
}

async fn ask(address: &str) -> Result<Vec<crate::proto::PublicKey>, Failure> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Failure::new(
            exit::UNREACHABLE,
            format!("no lock service answers at {address}: {error}"),
        )
    };
    let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| {
        Failure::new(
            exit::USAGE,
            format!("not the address of a lock service: {address} ({error})"),
        )
    })?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| unreachable(&error))?;
    let keys = RegistryServiceClient::new(channel)
        .keys(KeysRequest {})
        .await;
    Ok(keys
        .map_err(|status| unreachable(&status.message()))?
        .into_inner()
        .keys)
}

fn print_keys(keys: &[crate::proto::PublicKey], output: Output) -> Result<u8, Failure> {
    let json = |key: &crate::proto::PublicKey| json!({ "id": key.id, "key": key.key });
    match output {
        Output::Json => print_json(&Value::Array(keys.iter().map(json).collect()))?,
        Output::Text => {
            for key in keys {
                print_line(&format!("# {}", key.id))?;
                print_line(&key.key)?;
            }
        }
    }
    Ok(exit::OK)
}
