//! The synchronisation that the gate is built from, in one place: the schedule-exploring test
//! compiles the gate's files against its own version of this module.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::AtomicU64;

/// A shared pointer that is read without a lock.
pub(crate) struct Swap<T>(arc_swap::ArcSwap<T>);

impl<T> Swap<T> {
    pub(crate) fn new(value: std::sync::Arc<T>) -> Swap<T> {
        Swap(arc_swap::ArcSwap::new(value))
    }

    /// The pointer, with its own count.
    pub(crate) fn load(&self) -> std::sync::Arc<T> {
        self.0.load_full()
    }

    pub(crate) fn store(&self, value: std::sync::Arc<T>) {
        self.0.store(value);
    }
}
