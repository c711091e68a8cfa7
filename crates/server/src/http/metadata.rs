//! What the server and the models say about themselves, in JSON.

use halimede_serving::{ModelMetadata, ServerMetadata, TensorMetadata};

use crate::json::Writer;

pub(super) fn server(metadata: &ServerMetadata) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin_object();
    writer.member("name", &metadata.name);
    writer.member("version", metadata.version);
    writer.name("extensions");
    writer.begin_array();
    metadata.extensions.iter().for_each(|extension| writer.text(extension));
    writer.end_array();
    writer.end_object();
    writer.into_bytes()
}

pub(super) fn model(metadata: &ModelMetadata) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.begin_object();
    writer.member("name", &metadata.name);
    writer.name("versions");
    writer.begin_array();
    metadata.versions.iter().for_each(|version| writer.text(&version.to_string()));
    writer.end_array();
    writer.member("platform", &metadata.platform);
    tensors(&mut writer, "inputs", &metadata.inputs);
    tensors(&mut writer, "outputs", &metadata.outputs);
    writer.end_object();
    writer.into_bytes()
}

fn tensors(writer: &mut Writer, name: &str, tensors: &[TensorMetadata]) {
    writer.name(name);
    writer.begin_array();
    for tensor in tensors {
        writer.begin_object();
        writer.member("name", &tensor.name);
        writer.member("datatype", tensor.datatype);
        writer.name("shape");
        writer.begin_array();
        tensor.shape.iter().for_each(|dim| writer.signed(*dim));
        writer.end_array();
        writer.end_object();
    }
    writer.end_array();
}
