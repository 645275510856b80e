//! Compiles `proto/` into Rust with protox: no protoc on the machine is needed.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);

    let ours = ["lock", "election", "fence", "audit", "registry"]
        .map(|name| format!("ringfence/v1/{name}.proto"));
    let descriptors = protox::compile(&ours, ["proto"])?;
    // Served by gRPC reflection.
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;

    let etcd = protox::compile(["etcd/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(etcd)?;
    Ok(())
}
