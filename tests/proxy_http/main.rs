//! The proxy's HTTP listener end to end: a real proxy in this process, a scripted backend that
//! records every byte, and raw clients.

mod durability;
mod fence;
mod lockd;
mod streamed;
mod support;
mod wire;
mod writes;
