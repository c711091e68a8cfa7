//! Compiles ONNX's protobuf messages with a compiler written in Rust: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/onnx.proto", "proto/onnx_data.proto"], ["proto"])?;
    prost_build::Config::new()
        // Tensor data stays a reference into the model's file.
        .bytes(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
