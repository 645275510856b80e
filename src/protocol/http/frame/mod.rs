//! The frames of HTTP/1.1 (RFC 9112): where a head and its body end, which lines of a head travel
//! on, and the bytes that do.
//!
//! Lines travel on byte for byte, as they came; only what ends at this hop and the ticket stay
//! behind. Invariant: what two readers could frame differently is refused and never put right: a
//! bare LF, a folded line, white space before a colon, two lengths, a transfer coding that is not
//! exactly `chunked`, a crooked chunk size. Bodies are framed anew from their decoded payload, so
//! that a backend frames what was framed here.
//!
//! It leaves to others: what a head means (`head`, `http`, `s3`), reading and writing (`proxy`).

mod body;
mod chunked;
mod explain;
mod lines;
#[cfg(test)]
mod oracle;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use body::{BodyReader, Broken, Encoding, Piece};
pub use chunked::TRAILER_BYTES_MAX;
pub use lines::{FIELDS_MAX, Line};
pub use request::{Outgoing, RequestBody, RequestHead, Version};
pub use response::{ResponseBody, ResponseHead, ToClient};
