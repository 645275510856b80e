//! One Acquire from its place in the queue to its ticket.
//!
//! 1. Stand in the queue; the store's reply says who is first.
//! 2. If it is another one, wait for the watch, or for the removal that made this one first.
//! 3. Seal through the proxies ([`super::seal`]).
//! 4. Sign the ticket.
//!
//! Whatever ends the call before that, other than a shutdown of this lockd, takes its entry out of
//! the queue ([`super::place`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock;
use crate::lock_name::LockName;
use crate::lockd::Core;
use crate::lockd::place::{Joining, Place};
use crate::lockd::seal::{self, Unsealed};
use crate::lockd::status::Error;
use crate::store::{Enqueue, Enqueued, SessionId, StoreError};
use crate::ticket::{SealScope, Ticket};
use crate::token::Token;

/// How often one call may find the store's counter behind a proxy's watermark and start again.
const RAISES_MAX: u64 = 3;
/// How often one call may learn that a later attempt is the last one, and go on from there.
const ATTEMPT_TRIES_MAX: u32 = 4;
/// Bits of a stored attempt that count how often its entry was written anew, below [`CHOSEN_HERE`].
const REENTRY_BITS: u32 = 8;
/// The bit of a stored attempt that the service chose, because the client named none.
const CHOSEN_HERE: u64 = 1 << (REENTRY_BITS - 1);
/// Bytes of the holder's text that travel in the ticket.
const TICKET_HOLDER_BYTES_MAX: usize = 256;

/// What an Acquire asks for, checked.
pub(super) struct Wanted {
    pub(super) lock: LockName,
    pub(super) session: SessionId,
    pub(super) attempt: Attempt,
    pub(super) holder: String,
    pub(super) wait: Duration,
}

/// The client's attempt, and what the store keeps of it.
///
/// An entry that had to be written anew within one call (its token was behind a proxy's watermark)
/// needs a higher attempt in the store, since the one before is recorded as released. So the
/// store's attempt is the client's, followed by a count of such re-entries.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    client: u64,
    stored: u64,
}

impl Attempt {
    /// `client` is at most [`super::input::ATTEMPT_MAX`]; 0 leaves the choice to the service.
    pub(super) fn new(client: u64) -> Attempt {
        let stored = match client {
            0 => 1 << REENTRY_BITS | CHOSEN_HERE,
            client => client << REENTRY_BITS,
        };
        Attempt { client, stored }
    }

    /// What to try where the choice is ours and the store said that `last` is over.
    fn above(self, last: u64) -> Option<Attempt> {
        let stored = (last >> REENTRY_BITS)
            .checked_add(1)?
            .checked_mul(1 << REENTRY_BITS)?;
        let stored = stored | CHOSEN_HERE;
        (self.client == 0).then_some(Attempt { stored, ..self })
    }

    /// Whether an entry with this stored attempt is to be taken up: the same attempt of the client
    /// wrote it, or the client names none now and named none then.
    fn wrote(self, stored: u64) -> bool {
        match self.client {
            0 => may_be_taken_up(stored),
            client => !may_be_taken_up(stored) && stored >> REENTRY_BITS == client,
        }
    }

    fn reentry(self) -> Attempt {
        Attempt {
            stored: self.stored + 1,
            ..self
        }
    }
}

/// Whether the client named no attempt when it wrote this entry. Asking again without one takes the
/// entry up, even after its release was asked for and not answered: so such a lock is not handed
/// over before the release is written.
pub(super) fn may_be_taken_up(stored: u64) -> bool {
    stored & CHOSEN_HERE != 0
}

/// A grant that was told.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) ticket: String,
    pub(super) sealed: Vec<String>,
}

/// Acquires: see the module's documentation.
pub(super) async fn acquire(core: &Arc<Core>, mut wanted: Wanted) -> Result<Granted, Error> {
    let deadline = Instant::now() + wanted.wait;
    for _ in 0..=RAISES_MAX {
        let place = stand_until_first(core, &mut wanted, deadline).await?;
        match seal::seal_grant(core, &place, deadline).await {
            Ok(scope) => return Ok(grant(core, place, &wanted, scope)),
            Err(Unsealed::Dead) => {
                let entry = place.keep();
                return Err(Error::PlaceGone {
                    lock: entry.lock,
                    token: entry.token,
                });
            }
            Err(Unsealed::Behind { above }) => {
                tracing::warn!(lock = %wanted.lock, token = %place.token(), %above,
                    "the store's counter is behind a proxy's watermark: raising it");
                core.store.raise_above(above).await?;
                place.leave().await?;
                wanted.attempt = wanted.attempt.reentry();
            }
            Err(Unsealed::Failed { causes }) => {
                // Released before the answer: whoever asks next finds it free.
                place.leave().await?;
                return Err(Error::NotSealed {
                    lock: wanted.lock,
                    causes,
                });
            }
            Err(Unsealed::Store(error)) => return Err(error.into()),
            Err(Unsealed::Stopping) => {
                place.keep();
                return Err(Error::ShuttingDown);
            }
        }
    }
    let causes = format!("its tokens stayed behind a proxy's watermark {RAISES_MAX} times");
    Err(Error::NotSealed {
        lock: wanted.lock,
        causes,
    })
}

async fn stand_until_first(
    core: &Arc<Core>,
    wanted: &mut Wanted,
    deadline: Instant,
) -> Result<Place, Error> {
    // Before the entry is written, so that nothing the watch tells of it is missed.
    let wait = core.dispatch.open_wait(&wanted.lock)?;
    let (place, is_first) = stand(core, wanted).await?;
    if is_first {
        return Ok(place);
    }
    tokio::select! {
        biased;
        is_first = wait.is_first(place.token(), &*core.store) => {
            if is_first {
                return Ok(match wait.was_handed() {
                    true => place.covers_since_written(),
                    false => place,
                });
            }
            let entry = place.keep();
            Err(Error::PlaceGone { lock: entry.lock, token: entry.token })
        }
        () = core.stopping.cancelled() => {
            place.keep();
            Err(Error::ShuttingDown)
        }
        () = tokio::time::sleep_until(deadline) => {
            place.leave().await?;
            Err(not_granted(wanted))
        }
    }
}

/// Writes the entry. Returns it, and whether it is the first.
async fn stand(core: &Arc<Core>, wanted: &mut Wanted) -> Result<(Place, bool), Error> {
    let mut last = 0;
    for _ in 0..ATTEMPT_TRIES_MAX {
        let enqueue = Enqueue {
            lock: wanted.lock.clone(),
            session: wanted.session,
            attempt: wanted.attempt.stored,
            holder: wanted.holder.clone(),
            only_if_first: wanted.wait.is_zero(),
        };
        match Joining::new(core, enqueue).answer().await? {
            Enqueued::Standing { entry, .. }
                if core.dispatch.is_handed_over(&wanted.lock, entry.token) =>
            {
                // Its session has asked for the release, which is under way.
                last = entry.attempt;
                break;
            }
            Enqueued::Standing { entry, holder } => {
                let is_first = entry.token == holder.token;
                let place = Place::new(core, entry);
                return Ok(match is_first {
                    true => (place.first_when_written(), true),
                    false => (place, false),
                });
            }
            Enqueued::Held { .. } => return Err(not_granted(wanted)),
            Enqueued::SessionGone => return Err(Error::SessionGone(wanted.session)),
            Enqueued::AttemptOver { last: told } => {
                last = told;
                let Some(next) = next_attempt(core, wanted, told).await? else {
                    break;
                };
                wanted.attempt = next;
            }
        }
    }
    Err(Error::AttemptOver {
        lock: wanted.lock.clone(),
        attempt: wanted.attempt.client,
        last: last >> REENTRY_BITS,
    })
}

/// How to go on after the store refused the attempt. What this attempt of the client's wrote may
/// stand under a higher number than the one that was refused: that one is taken up.
async fn next_attempt(
    core: &Core,
    wanted: &Wanted,
    last: u64,
) -> Result<Option<Attempt>, StoreError> {
    let attempt = wanted.attempt;
    let view = core.store.queue(&wanted.lock).await?;
    let own = view
        .entries
        .iter()
        .find(|entry| entry.session == wanted.session);
    let again = own.filter(|entry| attempt.wrote(entry.attempt) && entry.attempt > attempt.stored);
    let again = again.map(|entry| Attempt {
        stored: entry.attempt,
        ..attempt
    });
    Ok(again.or_else(|| attempt.above(last)))
}

fn not_granted(wanted: &Wanted) -> Error {
    let wait_ms = wanted.wait.as_millis() as u64;
    Error::NotGranted {
        lock: wanted.lock.clone(),
        wait_ms,
    }
}

/// The point of no return: from here on the grant is told.
fn grant(core: &Core, place: Place, wanted: &Wanted, scope: SealScope) -> Granted {
    let entry = place.keep();
    let sealed = scope.instances().to_vec();
    let ticket = Ticket {
        lock: entry.lock,
        token: entry.token,
        holder: cut(&wanted.holder, TICKET_HOLDER_BYTES_MAX).to_owned(),
        session: entry.session.to_string(),
        issued_unix_ms: clock::unix_ms(),
        seal: scope,
    };
    let ticket = core.keys.current().signing.sign_ticket(&ticket);
    Granted {
        token: entry.token,
        ticket,
        sealed,
    }
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_attempt_goes_above_the_last_one_and_a_given_one_stays() {
        assert_eq!(
            Attempt::new(0).above(6 << 8 | 1).map(|a| a.stored),
            Some(7 << 8 | 0x80)
        );
        assert!(Attempt::new(0).above(u64::MAX).is_none());
        assert!(Attempt::new(5).above(6 << 8).is_none());
        assert!(Attempt::new(5).wrote(5 << 8 | 2));
        assert!(!Attempt::new(5).wrote(6 << 8));
        assert!(!Attempt::new(5).wrote(5 << 8 | 0x80));
        assert!(Attempt::new(0).wrote(5 << 8 | 0x80) && !Attempt::new(0).wrote(5 << 8));
    }

    #[test]
    fn the_highest_attempt_fits_with_its_reentries() {
        let attempt = Attempt::new(super::super::input::ATTEMPT_MAX);
        assert_eq!(
            attempt.stored >> REENTRY_BITS,
            super::super::input::ATTEMPT_MAX
        );
    }
}
