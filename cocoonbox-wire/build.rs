//! Compiles the protobuf contracts with a pure-Rust compiler: no protoc is needed.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const PROTOS: [&str; 5] = [
    "cocoonbox/agent/v1/session.proto",
    "cocoonbox/agent/v1/state.proto",
    "cocoonbox/control/v1/account.proto",
    "cocoonbox/control/v1/boxes.proto",
    "cocoonbox/control/v1/state.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("descriptors.bin");
    fs::write(out, descriptors.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".cocoonbox.agent.v1").compile_fds(descriptors)?;
    Ok(())
}
