//! `ringfence lock`: holds a lock while a command runs.
//!
//! Invariants:
//! - CMD starts only after the grant, and the lock is released only when no process of CMD's group
//!   is left.
//! - CMD's group gets SIGTERM before the lease can have ended, by the session's local deadline.
//!   Where that was impossible because this process did not run, the group is killed at once.
//!
//! What this cannot do: end a process that left the group (setsid), or act while stopped. The
//! ticket is what makes such writers harmless.

mod group;
mod supervise;
mod terminal;

use std::time::{Duration, Instant};

use crate::cli::LockArgs;
use crate::client::{Client, ClientError, Guard, Session, SessionOptions, Wait};

use super::complain;
use super::exit::{self, Failure};
use super::signals::Signals;

/// A group is told to end this part of the lease before its end, so that it has the time to.
const MARGIN_PART_OF_TTL: u32 = 5;
/// The longest such margin.
const MARGIN_MAX: Duration = Duration::from_secs(3);
/// How long a lost session's end is told to a service that may not be there.
const CLOSE_LOST_MAX: Duration = Duration::from_secs(1);

/// Runs the command; returns the exit code.
pub async fn run(args: LockArgs) -> Result<u8, Failure> {
    let mut signals = Signals::take_over_all()
        .map_err(|error| Failure::because("cannot handle signals", error))?;
    let client = Client::new(args.lockd.endpoints.iter().cloned())?;
    let options = SessionOptions {
        ttl: args.ttl,
        holder: args.holder.clone().unwrap_or_else(default_holder),
        ..SessionOptions::default()
    };
    let guard = tokio::select! {
        guard = acquire(&client, &options, &args) => guard?,
        signal = signals.next() => return Ok(exit::SIGNAL_BASE + signal.as_raw() as u8),
    };
    let margin = (guard.session().lease().ttl() / MARGIN_PART_OF_TTL).min(MARGIN_MAX);
    if args.command.is_empty() {
        hold(guard, margin, &mut signals).await
    } else {
        supervise::run(guard, margin, &args, &mut signals).await
    }
}

/// Acquires within --wait. A session that is lost on the way is replaced: the place in the queue is
/// lost with it, but not the wish.
async fn acquire(
    client: &Client,
    options: &SessionOptions,
    args: &LockArgs,
) -> Result<Guard, Failure> {
    let until = args.wait.and_then(|wait| Instant::now().checked_add(wait));
    loop {
        let session = client.open_session(options.clone()).await?;
        let wait = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => Wait::Forever,
            Some(Duration::ZERO) => Wait::Try,
            Some(left) => Wait::AtMost(left),
        };
        let error = match session.acquire(&args.name, wait).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let again = matches!(error, ClientError::SessionLost { .. })
            && until.is_none_or(|until| Instant::now() < until);
        if !again {
            close(session).await;
            return Err(match error {
                ClientError::SessionLost { .. } => Failure::new(
                    exit::NOT_ACQUIRED,
                    format!("lock {} was not acquired: {error}", args.name),
                ),
                error => error.into(),
            });
        }
    }
}

/// Without CMD: the ticket on stdout, held until a signal.
async fn hold(guard: Guard, margin: Duration, signals: &mut Signals) -> Result<u8, Failure> {
    if let Err(failure) = super::print_line(guard.ticket()) {
        // Held for nobody: whoever waits need not wait for the lease to end.
        release(guard).await;
        return Err(failure);
    }
    tokio::select! {
        biased;
        lost = guard.lost(margin) => {
            let failure = lost_failure(&guard, lost);
            close_lost(guard).await;
            Err(failure)
        }
        _ = signals.next() => {
            release(guard).await;
            Ok(exit::OK)
        }
    }
}

fn lost_failure(guard: &Guard, lost: crate::client::Lost) -> Failure {
    let (lock, token) = (guard.lock(), guard.token());
    Failure::new(
        exit::LOST,
        format!("lock {lock} (token {token}) is lost: {lost}"),
    )
}

/// Releases as well as it can be done: what fails here ends by the session's time to live.
async fn release(guard: Guard) {
    let session = guard.session().clone();
    match guard.release().await {
        Ok(true) => {}
        Ok(false) => complain("the lock was not held any more when it was released"),
        Err(error) => complain(format_args!(
            "the lock is released when its lease ends: {error}"
        )),
    }
    close(session).await;
}

async fn close(session: Session) {
    // The session ends by its time to live then; whoever waits has to wait that long.
    if let Err(error) = session.close().await {
        complain(format_args!("the session ends with its lease: {error}"));
    }
}

/// Tells the service, if it hears, that nobody uses the session any more.
async fn close_lost(guard: Guard) {
    let _ = tokio::time::timeout(CLOSE_LOST_MAX, guard.session().clone().close()).await;
}

fn default_holder() -> String {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    format!("{host}/{}", std::process::id())
}
