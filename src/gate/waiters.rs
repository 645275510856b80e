//! Tasks that wait for a change, each under a number of its own: one task may wait twice, and
//! giving up one of its waits must not lose the other's wake-up.

use std::task::Waker;

#[derive(Default)]
pub(super) struct Waiters {
    next: u64,
    waiting: Vec<(u64, Waker)>,
}

impl Waiters {
    /// Adds the waker, or replaces the one that the number stands for.
    pub(super) fn wait(&mut self, number: &mut Option<u64>, waker: &Waker) {
        let known = number.and_then(|number| self.waiting.iter_mut().find(|it| it.0 == number));
        match known {
            Some((_, old)) => old.clone_from(waker),
            None => {
                self.next += 1;
                self.waiting.push((self.next, waker.clone()));
                *number = Some(self.next);
            }
        }
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.retain(|it| it.0 != number);
    }

    /// Takes all wakers out, to be called.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|(_, waker)| waker)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
