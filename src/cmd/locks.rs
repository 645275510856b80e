//! `ringfence locks`, `show` and `watch`: what is held, by whom, and who waits.

use serde_json::{Value, json};

use crate::cli::{LocksArgs, Output, ShowArgs};
use crate::client::Client;
use crate::proto::{Grant, Waiter};

use super::exit::{self, Failure};
use super::signals::Signals;
use super::{print_json, print_line};

/// `ringfence locks`: every lock that is held, page by page.
pub async fn list(args: LocksArgs) -> Result<u8, Failure> {
    let client = Client::new(args.lockd.endpoints)?;
    let mut locks = Vec::new();
    let mut after = String::new();
    loop {
        let page = client.list_locks(&args.prefix, &after, 0).await?;
        locks.extend(page.locks);
        if page.next.is_empty() {
            break;
        }
        if page.next <= after {
            return Err(Failure::new(
                exit::FAILED,
                "the lock service pages backwards",
            ));
        }
        after = page.next;
    }
    match args.output.output {
        Output::Json => print_json(&Value::Array(locks.iter().map(grant_json).collect()))?,
        Output::Text => print_table(&locks)?,
    }
    Ok(exit::OK)
}

/// `ringfence show`
pub async fn show(args: ShowArgs) -> Result<u8, Failure> {
    let client = Client::new(args.lockd.endpoints)?;
    let view = client.get_lock(&args.name).await?;
    if args.output.output == Output::Json {
        print_json(&json!({
            "lock": args.name.as_str(),
            "holder": view.holder.as_ref().map(grant_json),
            "waiters": view.waiters.iter().map(waiter_json).collect::<Vec<_>>(),
            "floor": view.floor.to_string(),
        }))?;
        return Ok(exit::OK);
    }
    match &view.holder {
        None => print_line(&format!("{}: free", args.name))?,
        Some(grant) => print_line(&format!("{}: held by {}", args.name, holder_text(grant)))?,
    }
    for waiter in &view.waiters {
        let Waiter {
            session,
            holder,
            token,
        } = waiter;
        print_line(&format!(
            "  waits: token {token} {} session {session}",
            printable(holder)
        ))?;
    }
    Ok(exit::OK)
}

/// `ringfence watch`: until a signal.
pub async fn watch(args: ShowArgs) -> Result<u8, Failure> {
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let client = Client::new(args.lockd.endpoints)?;
    // Whether the service is there at all is told at once, and not by silence.
    client.get_lock(&args.name).await?;
    let mut watch = client.watch(&args.name);
    loop {
        let holder = tokio::select! {
            holder = watch.next() => holder?,
            _ = signals.next() => return Ok(exit::OK),
        };
        match (args.output.output, &holder) {
            (Output::Json, holder) => print_json(&json!({
                "lock": args.name.as_str(),
                "holder": holder.as_ref().map(grant_json),
            }))?,
            (Output::Text, None) => print_line(&format!("{}: free", args.name))?,
            (Output::Text, Some(grant)) => {
                print_line(&format!("{}: held by {}", args.name, holder_text(grant)))?;
            }
        }
    }
}

fn print_table(locks: &[Grant]) -> Result<(), Failure> {
    let names: Vec<String> = locks.iter().map(|grant| printable(&grant.lock)).collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0)
        .max(4);
    print_line(&format!(
        "{:width$}  {:>12}  {:>7}  HOLDER",
        "LOCK", "TOKEN", "WAITERS"
    ))?;
    for (name, grant) in names.iter().zip(locks) {
        let Grant { token, waiters, .. } = grant;
        let holder = describe_holder(grant);
        print_line(&format!(
            "{name:width$}  {token:>12}  {waiters:>7}  {holder}"
        ))?;
    }
    Ok(())
}

fn holder_text(grant: &Grant) -> String {
    let Grant {
        token,
        session,
        waiters,
        ..
    } = grant;
    let holder = describe_holder(grant);
    format!("{holder} (token {token}, session {session}, {waiters} waiting)")
}

fn describe_holder(grant: &Grant) -> String {
    let holder = printable(&grant.holder);
    if grant.foreign {
        format!("{holder} [not a ringfence client]")
    } else {
        holder
    }
}

/// Free text of other clients must not steer the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

// Tokens are strings in JSON: JavaScript loses integers above 2^53.

fn grant_json(grant: &Grant) -> Value {
    json!({
        "lock": grant.lock,
        "token": grant.token.to_string(),
        "session": grant.session,
        "holder": grant.holder,
        "foreign": grant.foreign,
        "waiters": grant.waiters,
    })
}

fn waiter_json(waiter: &Waiter) -> Value {
    json!({
        "session": waiter.session,
        "holder": waiter.holder,
        "token": waiter.token.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_steer_the_terminal_and_tokens_are_strings() {
        let grant = Grant {
            lock: "a".into(),
            token: (1 << 62) + 1,
            session: "1f".into(),
            holder: "x\u{1b}[2J".into(),
            foreign: true,
            waiters: 2,
        };
        assert!(!describe_holder(&grant).contains('\u{1b}'));
        assert_eq!(grant_json(&grant)["token"], "4611686018427387905");
    }
}
