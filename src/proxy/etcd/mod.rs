//! etcd behind the proxy: a gRPC reverse proxy whose checks ride inside etcd's own transactions.
//!
//! In the order of a call: [`accept`] takes connections (HTTP/2 with prior knowledge), [`door`]
//! reads and classifies a call, [`claims`] verifies its tickets, [`call`] asks the gate and sends
//! the call under the comparison of its floors, [`revoke`] does so for a lease, which [`closing`]
//! keeps from taking guarded keys meanwhile. What is not looked
//! at passes as a stream ([`body`], under tickets with a [`guard`]) over the client's own
//! connection to etcd ([`upstream`]). [`floors`] is what the gates raise before they admit a token.
//!
//! **How the gate and etcd share the work.** Presenting a token goes through the lock's gate as on
//! every listener: it is made durable here, older permits of other protocols are drained, and older
//! tokens are stale at once. Before the gate's answer is used, the lock's floor in etcd is raised
//! to the token, by whichever listener or service the token came (`gates`), so a seal on S3, or by
//! lockd, shuts old writers out of etcd before it returns. From then on each write compares the
//! floor in the transaction that carries it, and takes effect only while the floor is the token's.
//!
//! So the gate gives what etcd cannot: an early refusal, one order with other backends, and a
//! durable memory of the floor where etcd is put back to an older state. And the comparison gives
//! what no proxy can: a write that was admitted and then delayed, in this process, in the network,
//! in etcd's own queue, is refused by etcd itself once the floor has moved, even if this proxy is
//! dead and a second one, which shares nothing with it, has moved it. Therefore no write of a
//! client holds a permit here, a seal has nothing of etcd's to wait for, and **nothing is ever in
//! doubt**: a lost connection leaves an outcome that the client does not know, but not one that a
//! newer holder has to wait for.
//!
//! Invariants:
//! - a call that may write guarded keys is sent only with the comparison of every lock's floor;
//! - reads under a ticket compare too, and are linearizable;
//! - a stream of reads that was opened under a ticket ends when the floor rises above its token;
//! - etcd never sees a ticket, clients never see a fence key;
//! - a write that was sent is not sent again, unless etcd has said that it compared and did
//!   nothing.

pub mod accept;
mod body;
mod call;
mod claims;
mod closing;
mod door;
mod floors;
mod frames;
mod guard;
mod identity;
mod reply;
mod revoke;
mod upstream;

use std::sync::Arc;

use crate::ticket::Ticket;

pub use floors::Floors;

/// What a refusal says about a call.
#[derive(Clone)]
struct Asked {
    /// `Service/Method`, and a key.
    operation: String,
    tickets: Vec<Arc<Ticket>>,
}
