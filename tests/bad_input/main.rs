//! Malformed requests, tickets, lock names and configurations: each is refused with an error that
//! says what was wrong. Nothing here opens a socket; the same requests on the wire have their own
//! tests.

mod files;
mod http;
mod requests;
mod s3;
mod tickets;
