//! `ringfence audit tail`: the refusals that a proxy wrote down.

use serde_json::Value;

use crate::cli::{Output, TailArgs};
use crate::proto::TailRequest;
use crate::proto::audit_service_client::AuditServiceClient;

use super::exit::{self, Failure};
use super::signals::Signals;
use super::{print_line, proxy_client};

/// Prints the last records, and goes on if asked to.
pub async fn tail(args: TailArgs) -> Result<u8, Failure> {
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let mut proxy = AuditServiceClient::new(proxy_client::connect(&args.proxy.endpoint).await?);
    let request = TailRequest {
        backlog: args.lines,
        follow: args.follow,
    };
    let records = proxy
        .tail(request)
        .await
        .map_err(|status| proxy_client::refused(&status))?;
    let mut records = records.into_inner();
    loop {
        let record = tokio::select! {
            record = records.message() => record.map_err(|status| proxy_client::refused(&status))?,
            _ = signals.next() => return Ok(exit::OK),
        };
        let Some(record) = record else {
            return Ok(exit::OK);
        };
        match args.output.output {
            Output::Json => print_line(&record.json)?,
            Output::Text => print_line(&as_text(&record.json))?,
        }
    }
}

/// A record in one line for people; what is no record of a refusal stays as it is.
fn as_text(json: &str) -> String {
    let Ok(record) = serde_json::from_str::<Value>(json) else {
        return json.to_owned();
    };
    let field = |name: &str| record.get(name).and_then(Value::as_str);
    let (Some(time), Some(code), Some(operation)) =
        (field("time"), field("code"), field("operation"))
    else {
        return json.to_owned();
    };
    let mut text = format!("{time}  {code:12}  {operation}");
    for name in [
        "lock",
        "token",
        "watermark",
        "holder",
        "listener",
        "client",
        "mode",
    ] {
        if let Some(value) = field(name) {
            text.push_str(&format!("  {name}={value}"));
        }
    }
    // The operation holds what a client sent.
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_a_line_and_the_unknown_stays_json() {
        let json =
            r#"{"time":"T","code":"stale","operation":"PUT /\u001b","lock":"a","token":"3"}"#;
        let text = as_text(json);
        assert!(text.starts_with("T  stale"), "{text}");
        assert!(
            text.contains("lock=a  token=3") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert_eq!(as_text(r#"{"event":"loss"}"#), r#"{"event":"loss"}"#);
    }
}
