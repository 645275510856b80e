//! Audit: each refusal becomes one line of JSON in `data_dir/audit/*.jsonl`.
//!
//! - [`acts`]: what operators did, on disk before it is done.
//! - [`record`]: what a line may say. Pure.
//! - [`writer`]: the bounded queue, and the thread that writes it to files.
//! - `log`, `files`: the files, their names, their rotation.
//! - [`tail`]: reads the last lines and follows new ones.
//! - [`service`]: the gRPC service of the proxy's admin port.
//!
//! Invariants: a line never holds a ticket; the request path never waits for the disk; a record
//! that could not be kept is counted, and a later line says how many there were.
//!
//! Left to others: deciding what is refused (`proxy`), who may reach the admin port (network
//! policy). Queries and the chaining of lines come later, as modules next to these.

pub mod acts;
mod files;
mod log;
pub mod record;
pub mod service;
pub mod tail;
pub mod writer;

pub use record::{Excerpt, Mode, Record};
pub use service::Service;
pub use tail::Tail;
pub use writer::{AuditThread, AuditWriter, Limits};
