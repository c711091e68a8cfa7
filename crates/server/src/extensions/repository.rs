//! The model repository extension: index, load and unload.

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use halimede_serving::{Error, IndexEntry, LoadParameters, Server};
use halimede_tensor::Buffer;

use crate::json::{Document, Value, Writer};

/// Base64 with or without padding, as clients send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Prefix of parameters that hold files.
const FILE_PREFIX: &str = "file:";

/// The index; the body may ask for models that are ready only.
pub(crate) fn http_index(server: &Server, body: &[u8]) -> Result<Vec<u8>, Error> {
    let mut ready_only = false;
    if !body.is_empty() {
        let document = Document::parse(body)?;
        ready_only = document.root().find("ready").map_or(Ok(false), Value::boolean)?;
    }
    let mut writer = Writer::default();
    writer.begin_array();
    for entry in server.repository_index(ready_only)? {
        write(&mut writer, &entry);
    }
    writer.end_array();
    Ok(writer.into_bytes())
}

fn write(writer: &mut Writer, entry: &IndexEntry) {
    writer.begin_object();
    writer.member("name", &entry.name);
    if let Some(version) = entry.version {
        writer.member("version", &version.to_string());
    }
    if let Some(state) = entry.state {
        writer.member("state", state.name());
    }
    if !entry.reason.is_empty() {
        writer.member("reason", &entry.reason);
    }
    writer.end_object();
}

/// Loads a model; the body may replace its configuration and files.
pub(crate) fn http_load(server: &Server, model: &str, body: &[u8]) -> Result<(), Error> {
    let mut load = LoadParameters::default();
    if !body.is_empty() {
        let document = Document::parse(body)?;
        if let Some(parameters) = document.root().find("parameters") {
            for (name, value) in parameters.members()? {
                let value = value.text()?;
                match name.strip_prefix(FILE_PREFIX) {
                    Some(path) => load.files.push((path.to_owned(), file(path, &value)?)),
                    None if name == "config" => load.config = Some(value.into_owned()),
                    None => return Err(Error::internal("unexpected error on creating Triton parameter")),
                }
            }
        }
    }
    server.load(model, load)
}

fn file(path: &str, text: &str) -> Result<Buffer, Error> {
    // Some encoders break lines.
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let bytes = BASE64.decode(text);
    bytes.map(Buffer::foreign).map_err(|error| Error::invalid(format!("parameter 'file:{path}' is no base64: {error}")))
}

/// Unloads a model, and with it the models that only it uses if the body says so.
pub(crate) fn http_unload(server: &Server, model: &str, body: &[u8]) -> Result<(), Error> {
    let mut dependents = false;
    if !body.is_empty() {
        let document = Document::parse(body)?;
        let parameters = document.root().find("parameters");
        if let Some(value) = parameters.and_then(|parameters| parameters.find("unload_dependents")) {
            dependents = value.boolean().map_err(|error| Error {
                message: format!("Unable to parse 'unload_dependents': {}", error.message),
                ..error
            })?;
        }
    }
    server.unload(model, dependents)
}
