//! The types of `model_config.proto` and their descriptor.

#![allow(missing_docs, clippy::all)]

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

include!(concat!(env!("OUT_DIR"), "/inference.rs"));

/// The `FileDescriptorSet` of `model_config.proto`, serialized.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));

/// The descriptor of [`ModelConfig`]. Constant data, decoded on first use.
pub(super) fn model_config_descriptor() -> MessageDescriptor {
    static DESCRIPTOR: LazyLock<MessageDescriptor> = LazyLock::new(|| {
        let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the build wrote a valid descriptor set");
        pool.get_message_by_name("inference.ModelConfig").expect("the build compiled ModelConfig")
    });
    DESCRIPTOR.clone()
}
