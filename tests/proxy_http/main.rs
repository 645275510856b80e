//! The proxy's HTTP listener end to end: a real proxy in this process, a scripted backend that
//! records every byte, and raw clients.

mod durability;
mod exchange;
mod fence;
mod http2;
mod idle;
mod listeners;
mod lockd;
#[path = "../support/registry.rs"]
mod registry;
mod streamed;
mod support;
mod wire;
mod writes;
