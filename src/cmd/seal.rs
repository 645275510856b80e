//! `ringfence seal`: raises a proxy's watermark to a ticket's token.

use std::time::Duration;

use pasetors::Public;
use pasetors::token::UntrustedToken;
use pasetors::version4::V4;
use serde_json::json;

use crate::cli::{Output, SealArgs};
use crate::proto::SealRequest;
use crate::proto::fence_service_client::FenceServiceClient;

use super::exit::{self, Failure};
use super::{print_json, print_line, proxy_client};

/// Given on top of the time to wait for the answer to arrive.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Seals, and says up to where.
pub async fn run(args: SealArgs) -> Result<u8, Failure> {
    let mut proxy = FenceServiceClient::new(proxy_client::connect(&args.proxy.endpoint).await?);
    // The ticket names its lock. Another name on the command line is a mistake of the caller, and
    // must be found before anything is raised.
    if let Some(lock) = claimed_lock(&args.ticket)
        && lock != args.name.as_str()
    {
        let message = format!(
            "the ticket is of lock {lock:?}, not of {:?}",
            args.name.as_str()
        );
        return Err(Failure::new(exit::USAGE, message));
    }
    // 0 stands for the proxy's own time.
    let wait_ms = (args.wait.as_millis() as u64).max(1);
    let mut request = tonic::Request::new(SealRequest {
        authority: args.ticket,
        wait_ms,
    });
    request.set_timeout(args.wait + ANSWER_MAX);
    let sealed = proxy
        .seal(request)
        .await
        .map_err(|status| proxy_client::refused(&status))?;
    let sealed = sealed.into_inner();
    match args.output.output {
        Output::Json => print_json(&json!({
            "instance": sealed.instance,
            "lock": sealed.lock,
            "token": sealed.token.to_string(),
        }))?,
        Output::Text => print_line(&format!(
            "{}: lock {} is sealed at token {}",
            sealed.instance, sealed.lock, sealed.token
        ))?,
    }
    Ok(exit::OK)
}

/// The lock that a ticket claims to be of. Unverified: the proxy verifies.
fn claimed_lock(ticket: &str) -> Option<String> {
    let untrusted = UntrustedToken::<Public, V4>::try_from(ticket).ok()?;
    let body: serde_json::Value = serde_json::from_slice(untrusted.untrusted_payload()).ok()?;
    Some(body.get("lock")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_name::LockName;
    use crate::ticket::{SealScope, SigningKey, Ticket};
    use crate::token::Token;

    #[test]
    fn the_lock_of_a_ticket_is_read_and_anything_else_is_none() {
        let ticket = Ticket {
            lock: LockName::new("tenant/42").unwrap(),
            token: Token::new(7).unwrap(),
            holder: String::new(),
            session: "1f".to_owned(),
            issued_unix_ms: 0,
            seal: SealScope::Required(Vec::new()),
        };
        let envelope = SigningKey::generate().sign_ticket(&ticket);
        assert_eq!(claimed_lock(&envelope).as_deref(), Some("tenant/42"));
        for other in ["", "7", "v4.public.", "v4.public.AAAA.BBBB"] {
            assert_eq!(claimed_lock(other), None, "{other:?}");
        }
    }
}
