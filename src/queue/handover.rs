//! Handing a lock over before its release is on disk.
//!
//! When the holder's session asks to release its token, and the next entry belongs to a call that
//! waits here, that call is told at once; the removal of the old entry follows, and several of them
//! share one write. What makes this safe:
//!
//! - **Nobody is between.** Entries come in the order of their tokens and the watch tells them in
//!   that order, so once the next entry was seen, all older ones were seen too, and none can come
//!   later. So the next entry is the first of the queue as soon as the removal is done, whatever
//!   else happens, and it is durable already.
//! - **The holder has given up.** It asked for the release by its token; whatever it is answered,
//!   it may not act on this token any more. The store has to see to it that the session is never
//!   told the token again: a later attempt of the session gets a new entry, behind all others
//!   ([`Place::may_hand_over`] is false where the entry could be taken up again).
//! - **What fails, fails as a slow release does.** If this process dies before the removal, the
//!   releasing call was not answered and is repeated, or its session ends; until then the old entry
//!   blocks the queue, in which the new holder keeps its place and its token. Other lockds and
//!   foreign clients go by the store: to them the old entry is first until it is removed, so they
//!   grant nothing to anybody. The caller has to remove what was handed over to the end, even if
//!   the releasing call goes away.
//! - **Sessions.** The new holder's session may have ended in the store, which the watch has yet to
//!   tell. Its client then is past its own safety deadline, as one whose session ends just after a
//!   grant was told the usual way; and who stands behind is told only when that entry is gone too.
//! - **Chains.** The new holder may release while the removal before is still under way, and so on:
//!   each is handed over in turn, in the order of the tokens.
//! - **A restarted watch** keeps what was handed over as long as the entry still stands; while it
//!   restarts nothing is handed over.
//!
//! Left to others: that no grant which has to be sealed is told so early, since the seal's check
//! needs the grant to be the first *in the store*. Where no proxy guards the lock the ticket covers
//! none, and a proxy that has registered in the meantime refuses it as not covered: what such a
//! grant can miss is a proxy whose registration the watch has not told yet, never a stale write.

use std::ops::Bound;

use super::{Changes, Lock, Mirror, Place, Verdict, WaitId, judge_standing};
use crate::lock_name::LockName;
use crate::token::Token;

impl Mirror {
    /// The session asks to release this token. If it holds the lock by it and the next in line
    /// waits here, it is handed over: the waits of the next entry are reported as the first.
    /// `None`: it was not, and the release takes its usual course.
    pub fn hand_over(&mut self, name: &LockName, session: u64, token: Token) -> Option<Changes> {
        if !self.synced || self.incoming.is_some() {
            return None;
        }
        let lock = self.locks.get_mut(name)?;
        let holds = |place: &Place| place.session == session && place.may_hand_over;
        let next = lock.next_after(token)?;
        let mut someone_waits = false;
        if lock.head() != Some(token) || !lock.entries.get(&token).is_some_and(holds) {
            return None;
        }
        for id in lock.standing.get(&next)? {
            let wait = self.waits.get_mut(id);
            if let Some(wait) = wait.filter(|wait| wait.verdict == Verdict::Waiting) {
                wait.handed_over = true;
                someone_waits = true;
            }
        }
        if !someone_waits {
            return None;
        }
        lock.handed_over.insert(token);
        lock.first = lock.first.max(Some(next));
        let mut changes = Changes::default();
        judge_standing(lock, &mut self.waits, Token::MIN..=next, &mut changes);
        Some(changes)
    }

    /// Whether the grant with this token was handed over: its session has asked for the release,
    /// and the removal is under way.
    pub fn is_handed_over(&self, name: &LockName, token: Token) -> bool {
        let lock = self.locks.get(name);
        lock.is_some_and(|lock| lock.handed_over.contains(&token))
    }

    /// The highest token that is known to have been the first, or that the lock was handed over to:
    /// nothing below it may be shown as the holder by a read that begins now.
    pub fn first(&self, name: &LockName) -> Option<Token> {
        self.locks.get(name).and_then(|lock| lock.first)
    }

    /// Whether this wait's call was told early, because the lock was handed over to it.
    pub fn was_handed(&self, id: WaitId) -> bool {
        self.waits.get(&id).is_some_and(|wait| wait.handed_over)
    }

    /// Whether what was before this token in the queue has still to be removed.
    pub fn is_early(&self, name: &LockName, token: Token) -> bool {
        let lock = self.locks.get(name);
        lock.is_some_and(|lock| lock.entries.range(..token).next().is_some())
    }
}

impl Lock {
    /// The first entry that was not handed over.
    pub(super) fn head(&self) -> Option<Token> {
        let mut tokens = self.entries.keys();
        tokens
            .find(|token| !self.handed_over.contains(token))
            .copied()
    }

    fn next_after(&self, token: Token) -> Option<Token> {
        let behind = (Bound::Excluded(token), Bound::Unbounded);
        self.entries.range(behind).next().map(|(token, _)| *token)
    }
}
