//! Compiles `proto/model_config.proto` to Rust types and to a descriptor set, without `protoc`.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let proto = "proto/model_config.proto";
    println!("cargo::rerun-if-changed={proto}");
    let descriptors = protox::compile([proto], ["proto"])?;

    // The comments go to the documentation of the types, not into the binary.
    let mut bare = descriptors.clone();
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is set by cargo")?);
    fs::write(out.join("model_config.bin"), bare.encode_to_vec())?;

    prost_build::Config::new().btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
