//! A response to a body.

use bytes::Bytes;
use halimede_serving::{Error, Parameter, Response, wire};
use halimede_tensor::Buffer;
use hyper::header::{CONTENT_ENCODING, HeaderValue};

use super::{
    super::{
        Body, ContentType, Reply,
        body::share,
        headers::{Encoding, INFERENCE_HEADER_LENGTH},
    },
    compression, data,
    decode::{Form, Outputs},
};
use crate::{event_loops::TEXT_BYTES_MAX, json::Writer};

/// JSON and the binary outputs that follow it.
pub(super) struct Encoded {
    json: Vec<u8>,
    tensors: Vec<Buffer>,
}

/// Bytes up to which outputs are copied behind the JSON: one small write is cheaper than two.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// Whether it takes long to print the response: an element becomes several characters, and what is compressed is looked at byte by byte.
pub(super) fn is_long(response: &Response, outputs: &Outputs, encoding: Encoding) -> bool {
    let is_worked_over = |name| !matches!(encoding, Encoding::Identity) || matches!(outputs.form(name), Form::Json);
    let worked_over = response.outputs.iter().filter(|output| is_worked_over(&output.name));
    worked_over.map(|output| output.data.len()).sum::<usize>() > TEXT_BYTES_MAX / 4
}

/// Prints the response. Outputs that go to shared memory are written there.
pub(super) fn encode(response: Response, outputs: &Outputs) -> Result<Encoded, Error> {
    let mut writer = Writer::with_capacity(256);
    let mut tensors = Vec::new();
    writer.begin_object();
    if !response.id.is_empty() {
        writer.member("id", &response.id);
    }
    writer.member("model_name", &response.model);
    writer.name("model_version");
    writer.text(&response.version.to_string());
    if !response.parameters.is_empty() {
        writer.name("parameters");
        writer.begin_object();
        for (name, value) in &response.parameters {
            writer.name(name);
            match value {
                Parameter::String(value) => writer.text(value),
                Parameter::Int(value) => writer.signed(*value),
                Parameter::Bool(value) => writer.boolean(*value),
                Parameter::Double(value) => writer.double(*value),
            }
        }
        writer.end_object();
    }
    writer.name("outputs");
    writer.begin_array();
    for output in response.outputs {
        writer.begin_object();
        writer.member("name", &output.name);
        writer.member("datatype", wire::datatype_name(output.dtype));
        writer.name("shape");
        writer.begin_array();
        output.shape.iter().for_each(|dim| writer.signed(*dim));
        writer.end_array();
        match outputs.form(&output.name) {
            Form::Json => {
                writer.name("data");
                data::to_json(&mut writer, &output)?;
            }
            Form::Binary => {
                writer.name("parameters");
                writer.begin_object();
                writer.name("binary_data_size");
                writer.unsigned(output.data.len() as u64);
                writer.end_object();
                if !output.data.is_empty() {
                    tensors.push(output.data);
                }
            }
            Form::SharedMemory(place) => place.write(&output.name, &output.data)?,
        }
        writer.end_object();
    }
    writer.end_array();
    writer.end_object();
    Ok(Encoded { json: writer.into_bytes(), tensors })
}

/// The reply, compressed as the client likes it.
pub(super) fn into_reply(encoded: Encoded, encoding: Encoding) -> Result<Reply, Error> {
    let Encoded { mut json, tensors } = encoded;
    let json_len = json.len();
    let is_binary = !tensors.is_empty();
    let body = if encoding == Encoding::Identity {
        let binary_len: usize = tensors.iter().map(|tensor| tensor.len()).sum();
        if binary_len <= COPIED_BYTES_MAX {
            tensors.iter().for_each(|tensor| json.extend_from_slice(tensor));
            Body::from(Bytes::from(json))
        } else {
            Body::from_parts(std::iter::once(Bytes::from(json)).chain(tensors.into_iter().map(share)).collect())
        }
    } else {
        let parts = std::iter::once(&json[..]).chain(tensors.iter().map(|tensor| &**tensor));
        let packed = compression::compress(encoding, parts);
        Body::from(Bytes::from(packed.map_err(|error| Error::internal(format!("cannot compress the reply: {error}")))?))
    };
    let mut reply = Reply::parts(body);
    reply = match is_binary {
        true => reply.of_type(ContentType::Binary).with(INFERENCE_HEADER_LENGTH, HeaderValue::from(json_len)),
        false => reply.of_type(ContentType::Json),
    };
    Ok(match encoding {
        Encoding::Identity => reply,
        Encoding::Gzip => reply.with(CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        Encoding::Deflate => reply.with(CONTENT_ENCODING, HeaderValue::from_static("deflate")),
    })
}
