//! `ringfence dev`: everything in one process, and lines to paste.

pub(super) mod object_store;
pub(super) mod stack;

use std::io::Write as _;

use crate::cli::DevArgs;

use super::exit::{self, Failure};
use super::print_line;
use super::signals::Signals;

use object_store::{ACCESS_KEY, BUCKET, SECRET_KEY};
use stack::{ETCD_LOCK, HTTP_LOCK, REDIS_LOCK, S3_LOCK, Stack, StackOptions};
#[cfg(feature = "postgres")]
use stack::{POSTGRES_LOCK, PostgresOptions};

/// Runs until a signal.
pub async fn run(args: DevArgs) -> Result<u8, Failure> {
    let mut signals =
        Signals::take_over().map_err(|error| Failure::because("cannot handle signals", error))?;
    let options = StackOptions {
        data: args.data,
        http: args.http,
        etcd: args.etcd,
        lockd: args.lockd_listen,
        admin: args.admin_listen,
        s3_listen: args.s3_listen,
        http_listen: args.http_listen,
        etcd_listen: args.etcd_listen,
        redis: args.redis,
        redis_listen: args.redis_listen,
        #[cfg(feature = "postgres")]
        postgres: args.postgres.map(|upstream| PostgresOptions {
            upstream,
            role: args.postgres_control,
            password: std::env::var("PGPASSWORD").ok(),
            listen: args.postgres_listen,
        }),
    };
    let stack = tokio::select! {
        stack = Stack::start(options) => stack?,
        _ = signals.next() => return Ok(exit::OK),
    };
    print_line(&introduction(&stack))?;
    signals.next().await;
    // A prompt that the terminal's ^C was printed to goes on in a new line.
    let _ = writeln!(std::io::stderr());
    stack.stop().await;
    Ok(exit::OK)
}

/// Addresses, and lines to paste.
fn introduction(stack: &Stack) -> String {
    let (lockd, admin) = (stack.lockd_url(), stack.admin_url());
    let program = std::env::current_exe()
        .map_or_else(|_| "ringfence".into(), |path| path.display().to_string());
    let object = format!("{}/{BUCKET}/hello.txt", stack.s3_url());
    let mut text = format!(
        "\
lock service   {lockd}
proxy, S3      {s3}   (access key {ACCESS_KEY}, secret key {SECRET_KEY}; or unsigned)
proxy, admin   {admin}
store itself   {store}   (past the proxy: nothing is fenced there)
",
        s3 = stack.s3_url(),
        store = stack.store_url(),
    );
    if let Some(http) = stack.http_url() {
        text += &format!("proxy, HTTP    {http}   (writes need the lock {HTTP_LOCK})\n");
    }
    if let Some(etcd) = stack.etcd_url() {
        text += &format!("proxy, etcd    {etcd}   (writes need the lock {ETCD_LOCK})\n");
    }
    if let Some(redis) = stack.redis() {
        text += &format!("proxy, Redis   {redis}   (writes need the lock {REDIS_LOCK})\n");
    }
    #[cfg(feature = "postgres")]
    if let Some(address) = stack.postgres() {
        text += &format!("proxy, Postgres {address}   (writes need the lock {POSTGRES_LOCK})\n");
    }
    text += &format!(
        r#"
The bucket {BUCKET} is guarded by the lock {S3_LOCK}. In another terminal:

  export RINGFENCE_LOCKD={lockd} RINGFENCE_PROXY={admin}
  alias ringfence='{program}'

  # refused, there is no ticket: 428
  curl -i -X PUT -d hello {object}

  # under the lock: 200
  ringfence lock {S3_LOCK} -- sh -c 'curl -i -X PUT -d hello -H "Fencing-Token: $FENCING_TOKEN" {object}'

  # a ticket from before, once a newer one was seen: 412
  OLD=$(ringfence lock {S3_LOCK} -- sh -c 'echo $FENCING_TOKEN')
  ringfence lock {S3_LOCK} -- sh -c 'curl -i -X PUT -d newer -H "Fencing-Token: $FENCING_TOKEN" {object}'
  curl -i -X PUT -d stale -H "Fencing-Token: $OLD" {object}
  ringfence audit tail
"#
    );
    if let Some(redis) = stack.redis() {
        text += &format!(
            r#"
  # the same for Redis: NOFENCE, then OK
  redis-cli -h {host} -p {port} SET hello x
  ringfence lock {REDIS_LOCK} -- sh -c \
    'redis-cli -h {host} -p {port} FENCE WITH "$FENCING_TOKEN" SET hello x'
"#,
            host = redis.ip(),
            port = redis.port(),
        );
    }
    #[cfg(feature = "postgres")]
    if let Some(address) = stack.postgres() {
        text += &format!(
            r#"
  # the same for Postgres: RF002, then a table
  export PGHOST={host} PGPORT={port}
  psql -c 'CREATE TABLE hello (n int)'
  ringfence lock {POSTGRES_LOCK} -- sh -c \
    'PGOPTIONS="-c ringfence.token=$FENCING_TOKEN" psql -c "CREATE TABLE hello (n int)"'
"#,
            host = address.ip(),
            port = address.port(),
        );
    }
    text += "\nCtrl-C ends it.";
    text
}
