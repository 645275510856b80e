//! `ringfence keys`: the keys that sign tickets.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cli::{KeysCommand, KeysFolder, KeysShowArgs, Output};
use crate::config::LockdConfig;
use crate::lockd::keys::{SigningKeys, rotate};
use crate::proto::KeysRequest;
use crate::ticket::VerifyingKey;

use super::exit::{self, Failure};
use super::registry_client;
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
    let mut registry = registry_client::connect(&args.lockd.endpoints).await?;
    let answer = registry.keys(KeysRequest {}).await;
    let keys = answer
        .map_err(|status| registry_client::refused(&status))?
        .into_inner()
        .keys;
    print_keys(&keys, args.output.output)
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
