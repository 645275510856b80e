//! `ringfence proxies`: the set that lockd seals grants through.

use serde_json::{Value, json};

use crate::cli::{Output, ProxiesCommand, ProxiesListArgs, ProxiesRemoveArgs};
use crate::proto::{ListProxiesRequest, RegisterRequest, UnregisterRequest};

use super::exit::{self, Failure};
use super::registry_client;
use super::{print_json, print_line};

/// Runs one of the commands.
pub async fn run(command: ProxiesCommand) -> Result<u8, Failure> {
    match command {
        ProxiesCommand::List(args) => list(args).await,
        ProxiesCommand::Remove(args) => remove(args).await,
    }
}

async fn list(args: ProxiesListArgs) -> Result<u8, Failure> {
    let mut registry = registry_client::connect(&args.lockd.endpoints).await?;
    let answer = registry.list_proxies(ListProxiesRequest {}).await;
    let proxies = answer
        .map_err(|status| registry_client::refused(&status))?
        .into_inner()
        .proxies;
    match args.output.output {
        Output::Json => print_json(&Value::Array(proxies.iter().map(proxy_json).collect()))?,
        Output::Text => {
            for proxy in &proxies {
                let RegisterRequest {
                    instance,
                    admin,
                    patterns,
                    ..
                } = proxy;
                print_line(&format!("{instance}  {admin}  {}", patterns.join(" ")))?;
            }
        }
    }
    Ok(exit::OK)
}

fn proxy_json(proxy: &RegisterRequest) -> Value {
    json!({
        "instance": proxy.instance,
        "admin": proxy.admin,
        "store_id": proxy.store_id,
        "locks": proxy.patterns,
    })
}

async fn remove(args: ProxiesRemoveArgs) -> Result<u8, Failure> {
    if !args.sessions_proven_dead {
        let message = "a proxy is taken out only when no connection of it to a backend lives: what \
                       it left in flight would land unfenced. Prove that, then say \
                       --sessions-proven-dead";
        return Err(Failure::new(exit::USAGE, message));
    }
    let mut registry = registry_client::connect(&args.lockd.endpoints).await?;
    let request = UnregisterRequest {
        instance: args.instance.clone(),
        reason: args.reason,
        sessions_proven_dead: args.sessions_proven_dead,
    };
    registry
        .unregister(request)
        .await
        .map_err(|status| registry_client::refused(&status))?;
    print_line(&format!(
        "{}: taken out; grants are sealed without it from now on",
        args.instance
    ))?;
    Ok(exit::OK)
}
