//! Ringfence: a lock service that issues signed, strictly increasing fencing tokens, and a
//! transparent proxy that makes storage refuse stale ones.
//!
//! Modules in reading order: the leaves, the three pure cores (`gate`, `protocol`, `queue`), the
//! two shells (`proxy`, `lockd`), the store adapters, and what surrounds them.

// These panic where the other end of a pipe is closed.
#![warn(clippy::print_stderr, clippy::print_stdout)]

pub mod clock;
pub mod lock_name;
pub mod ticket;
pub mod token;

pub mod gate;
pub mod protocol;
pub mod queue;

pub mod lockd;
pub mod proxy;
pub mod store;

pub mod admin;
pub mod audit;
pub mod client;
pub mod config;
pub mod incoming;
pub mod telemetry;

pub mod cli;
pub mod cmd;

/// Types and services generated from `proto/ringfence/v1`.
pub mod proto {
    #![allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        clippy::wildcard_imports,
        reason = "generated code"
    )]
    tonic::include_proto!("ringfence.v1");

    /// The compiled descriptors, for gRPC reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

/// The part of etcd's v3 API in `proto/etcd`, generated.
pub mod etcd_proto {
    #![allow(
        missing_docs,
        clippy::all,
        clippy::allow_attributes_without_reason,
        clippy::wildcard_imports,
        reason = "generated code"
    )]
    /// Keys, values and events.
    pub mod mvccpb {
        tonic::include_proto!("mvccpb");
    }
    /// Requests, responses and services.
    pub mod etcdserverpb {
        tonic::include_proto!("etcdserverpb");
    }
}
