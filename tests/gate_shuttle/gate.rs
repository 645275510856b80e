//! The gate's own source files over shuttle's mutex and atomics.

#[path = "../../src/gate/entrance.rs"]
mod entrance;
#[path = "../../src/gate/epoch.rs"]
mod epoch;
#[path = "../../src/gate/handle.rs"]
mod handle;
#[path = "../../src/gate/permit.rs"]
mod permit;
#[path = "../../src/gate/present.rs"]
mod present;
#[path = "../../src/gate/state.rs"]
mod state;
#[path = "../../src/gate/waiters.rs"]
mod waiters;
#[path = "../../src/gate/word.rs"]
mod word;

mod sync {
    pub(crate) use shuttle::sync::Mutex;
    pub(crate) use shuttle::sync::atomic::AtomicU64;

    /// The same contract as the real one, with a mutex that the schedules can interrupt.
    pub(crate) struct Swap<T>(Mutex<std::sync::Arc<T>>);

    impl<T> Swap<T> {
        pub(crate) fn new(value: std::sync::Arc<T>) -> Swap<T> {
            Swap(Mutex::new(value))
        }

        pub(crate) fn load(&self) -> std::sync::Arc<T> {
            std::sync::Arc::clone(&self.0.lock().unwrap())
        }

        pub(crate) fn store(&self, value: std::sync::Arc<T>) {
            *self.0.lock().unwrap() = value;
        }
    }
}

pub use entrance::Entrance;
pub use handle::Gate;
pub use state::{Presented, Recovered};
