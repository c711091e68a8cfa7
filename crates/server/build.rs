//! Compiles the protocol's `.proto` files to Rust, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let model_config = "../serving/proto";
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed={model_config}");
    let descriptors = protox::compile(["grpc_service.proto", "health.proto"], ["proto", model_config])?;

    // Tensors are shared with the message that they came in, not copied out of it.
    let mut builder = tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .codec_path("crate::grpc::codec::BoundedCodec")
        .bytes(".inference");
    // The types of the model configuration are those of the crate `serving`.
    for file in descriptors.file.iter().filter(|file| file.name() == "model_config.proto") {
        let messages = file.message_type.iter().map(|message| message.name());
        for name in messages.chain(file.enum_type.iter().map(|item| item.name())) {
            builder =
                builder.extern_path(format!(".inference.{name}"), format!("::halimede_serving::config::proto::{name}"));
        }
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
